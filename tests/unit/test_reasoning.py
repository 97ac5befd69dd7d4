"""Splitting sampled text into reasoning and visible text."""

from __future__ import annotations

import pytest

from strands_sglang.exceptions import ToolParserError
from strands_sglang.tool_parsers.reasoning import split_reasoning


@pytest.mark.parametrize(
    ("sampled", "text", "reasoning"),
    [
        ("", "", ""),
        ("hello", "hello", ""),
        ("<think>\nhm\n</think>\n\nhello", "\n\nhello", "\nhm\n"),
        ("<think></think>hello", "hello", ""),
        ("a<think>1</think>b<think>2</think>c", "abc", "1\n2"),
        ("<think>never ends", "", "never ends"),
        ("a<think>", "a", ""),
        ("<think>a <think> b</think>c", "c", "a <think> b"),
        ("a</think>b", "b", "a"),
        ("<think>a</think>b</think>c", "b</think>c", "a"),
        ("half a tag <thin", "half a tag <thin", ""),
    ],
)
def test_split(sampled: str, text: str, reasoning: str) -> None:
    assert split_reasoning(sampled) == (text, reasoning)


@pytest.mark.parametrize(
    ("sampled", "text", "reasoning"),
    [
        ("", "", ""),
        ("hm", "", "hm"),
        ("hm</think>hello", "hello", "hm"),
        ("</think>hello", "hello", ""),
        ("<think>hm</think>hello", "hello", "<think>hm"),
        ("1</think>a<think>2</think>b", "ab", "1\n2"),
    ],
)
def test_split_of_text_that_starts_in_reasoning(sampled: str, text: str, reasoning: str) -> None:
    assert split_reasoning(sampled, in_reasoning=True) == (text, reasoning)


def test_other_tags_and_none() -> None:
    assert split_reasoning("[THINK]<think>[/THINK]hello", ("[THINK]", "[/THINK]")) == ("hello", "<think>")
    for in_reasoning in (True, False):
        assert split_reasoning("<think>a</think>b", None, in_reasoning=in_reasoning) == ("<think>a</think>b", "")


@pytest.mark.parametrize("tags", [("", "</think>"), ("<think>", ""), ("|", "|")])
def test_tags_that_cannot_be_told_apart_are_refused(tags: tuple[str, str]) -> None:
    with pytest.raises(ToolParserError, match="think_tokens"):
        split_reasoning("x", tags)
