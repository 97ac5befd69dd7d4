"""Splitting sampled text into reasoning and visible text."""

from __future__ import annotations

import pytest

from strands_sglang.exceptions import ToolParserError
from strands_sglang.tool_parsers.reasoning import split_reasoning


@pytest.mark.parametrize(
    ("in_reasoning", "sampled", "text", "reasoning"),
    [
        (False, "", "", ""),
        (False, "hello", "hello", ""),
        (False, "<think>\nhm\n</think>\n\nhello", "\n\nhello", "\nhm\n"),
        (False, "<think></think>hello", "hello", ""),
        (False, "a<think>1</think>b<think>2</think>c", "abc", "1\n2"),
        (False, "<think>never ends", "", "never ends"),
        (False, "a<think>", "a", ""),
        (False, "<think>a <think> b</think>c", "c", "a <think> b"),
        (False, "a</think>b", "b", "a"),
        (False, "<think>a</think>b</think>c", "b</think>c", "a"),
        (False, "half a tag <thin", "half a tag <thin", ""),
        (True, "", "", ""),
        (True, "hm", "", "hm"),
        (True, "</think>hello", "hello", ""),
        (True, "<think>hm</think>hello", "hello", "<think>hm"),
        (True, "1</think>a<think>2</think>b", "ab", "1\n2"),
    ],
)
def test_split(in_reasoning: bool, sampled: str, text: str, reasoning: str) -> None:
    assert split_reasoning(sampled, in_reasoning=in_reasoning) == (text, reasoning)


def test_other_tags_and_none() -> None:
    assert split_reasoning("[THINK]<think>[/THINK]hello", ("[THINK]", "[/THINK]")) == ("hello", "<think>")
    for in_reasoning in (True, False):
        assert split_reasoning("<think>a</think>b", None, in_reasoning=in_reasoning) == ("<think>a</think>b", "")


@pytest.mark.parametrize("tags", [("", "</think>"), ("<think>", ""), ("|", "|")])
def test_tags_that_cannot_be_told_apart_are_refused(tags: tuple[str, str]) -> None:
    with pytest.raises(ToolParserError, match="think_tokens"):
        split_reasoning("x", tags)
