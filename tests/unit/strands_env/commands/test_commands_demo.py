"""`strands-env demo`: rollouts of a model, and a place where their text tokenises to other tokens."""

from __future__ import annotations

import json

import pytest

from strands_env.commands import demo
from strands_env.commands.cli import main as command_line
from strands_env.eval.drift import DriftTotals

TINY = ["demo", "--model", "tiny", "--questions", "1", "--samples", "2", "--max-new-tokens", "24"]


def test_a_place_where_the_text_comes_back_as_other_tokens_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    command_line([*TINY, "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["rollouts"] == 2 and 0 < shown["changed_tokens"] <= shown["sampled_tokens"]
    found = shown["example"]
    assert found["sampled_ids"] != found["retokenized_ids"]
    assert len(found["sampled"]) == len(found["sampled_ids"])
    assert found["sampled_logprob"] < 0 and found["retokenized_logprob"] < 0
    assert command_line(TINY) == 1  # a random model adds nothing up
    *lines, advice = capsys.readouterr().out.splitlines()
    for title, name in (("sampled", "sampled"), ("from text", "retokenized")):
        (row,) = [line for line in lines if line.startswith(f"  {title:10}") and "ids " not in line]
        assert row.count("|[") == len(found[name]) and row.isprintable()
    assert advice.split()[:3] == ["next", "strands-env", "eval"]
    # In the order of reading: the answers, how many are right, the place, what to do next.
    wrong = [place for place, line in enumerate(lines) if line.startswith("  wrong")]
    assert len(wrong) == 2 and wrong[-1] < lines.index("0 of 2 answers are right.") < lines.index(row)


def test_a_setting_that_cannot_be_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert command_line([*TINY, "--temperature", "-1"]) == 2
    assert "greater than or equal to 0" in capsys.readouterr().err


def test_a_demo_without_drift_says_so() -> None:
    lines = demo.summary_lines([], None, DriftTotals(tokenizer=None), right=0)
    assert "would change none of these 0 tokens" in "\n".join(lines)
