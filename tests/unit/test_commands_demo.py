"""`strands-env demo`: rollouts of a model, and a place where their text tokenises to other tokens."""

from __future__ import annotations

import json

import pytest

from strands_env.commands import demo
from strands_env.commands.cli import main as command_line
from strands_sglang.trajectory.drift import DriftTotals

TINY = ["demo", "--model", "tiny", "--questions", "1", "--samples", "2", "--max-new-tokens", "24"]


def example(**changes: object) -> demo.Example:
    values = {
        "question": "What is 2 + 2?",
        "kind": "other-merge",
        "before": ["is", " 2"],
        "after": ["\n", "\x1b[2J"],
        "sampled_ids": [7, 8],
        "sampled": ['"}', "}"],
        "retokenized_ids": [9, 10],
        "retokenized": ['"', "}}"],
        "sampled_logprob": -1.5,
        "retokenized_logprob": -2.5,
    }
    return demo.Example(**(values | changes))


def test_a_place_where_the_text_comes_back_as_other_tokens_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    command_line([*TINY, "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["rollouts"] == 2 and 0 < shown["changed_tokens"] <= shown["sampled_tokens"]
    found = shown["example"]
    assert found["sampled_ids"] != found["retokenized_ids"]
    assert len(found["sampled"]) == len(found["sampled_ids"])
    assert found["sampled_logprob"] < 0 and found["retokenized_logprob"] < 0


def test_the_last_lines_say_what_to_do_next_and_how_many_answers_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert command_line(TINY) == 1  # a random model adds nothing up
    *_, advice, right = capsys.readouterr().out.splitlines()
    assert advice.split()[:3] == ["next", "strands-env", "eval"]
    assert right == "0 of 2 answers right"


def test_a_setting_that_cannot_be_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert command_line([*TINY, "--temperature", "-1"]) == 2
    assert "greater than or equal to 0" in capsys.readouterr().err


def test_the_changed_tokens_stand_in_brackets_and_cannot_drive_the_terminal() -> None:
    lines = demo._lines(example(), DriftTotals(tokenizer=None))
    assert '  sampled   is| 2|["}]|[}]|\\n|\\x1b[2J' in lines
    assert '  from text is| 2|["]|[}}]|\\n|\\x1b[2J' in lines


def test_a_demo_without_drift_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    demo._show([], None, DriftTotals(tokenizer=None), right=0)
    assert "would change none of these 0 tokens" in capsys.readouterr().out
