"""`strands-env demo`: rollouts of a model, and a place where their text tokenises to other tokens."""

from __future__ import annotations

import io
import json

import pytest

from strands_env.commands import demo
from strands_env.commands.cli import main as command_line
from strands_env.commands.terminal import paint, paints
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


def test_without_colours_the_changed_tokens_stand_in_brackets() -> None:
    lines = demo._lines(example(), DriftTotals(tokenizer=None), colour=False)
    assert '  sampled   is| 2|["}]|[}]|\\n|\\x1b[2J' in lines
    assert '  from text is| 2|["]|[}}]|\\n|\\x1b[2J' in lines


def test_on_a_terminal_the_changed_tokens_are_painted() -> None:
    lines = demo._lines(example(), DriftTotals(tokenizer=None), colour=True)
    assert f"  sampled   is| 2|{paint(chr(34) + '}', 'green', True)}|{paint('}', 'green', True)}|\\n|\\x1b[2J" in lines
    assert not any("\x1b[2J" in line for line in lines)


def test_a_demo_without_drift_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    demo._show([], None, DriftTotals(tokenizer=None), right=0)
    assert "would change none of these 0 tokens" in capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert paints(Terminal()) and not paints(io.StringIO()) and not paints(None)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not paints(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not paints(Terminal())
