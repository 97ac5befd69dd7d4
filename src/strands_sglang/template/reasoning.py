"""Reasoning blocks: is one open where generation starts, and which variable makes a template keep earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

REASONING_TAGS: Final = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<mm:think>", "</mm:think>"),
    ("<seed:think>", "</seed:think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|channel>thought", "<channel|>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
)
"""Opening and closing tags of reasoning blocks in public chat templates."""
_OPENINGS: Final = tuple(opening for opening, _ in REASONING_TAGS)

KEEP_REASONING: Final[tuple[tuple[str, Any], ...]] = (
    ("preserve_thinking", True),
    ("keep_past_thinking", True),
    ("clear_thinking", False),
    ("truncate_history_thinking", False),
    ("keep_all_reasoning", True),
    ("drop_thinking", False),
)
"""Variables by which public templates keep earlier reasoning; which of them a template honours is tried out."""


def generation_opens_reasoning(prompt_text: str) -> str | None:
    """Opening tag of the reasoning block in which generation starts, or None.

    Only the very end of the rendered prompt or delta counts: a tag that a user wrote earlier is not an open block.
    """
    end = prompt_text[-200:].rstrip()
    return next(filter(end.endswith, _OPENINGS)) if end.endswith(_OPENINGS) else None


def opened_by(generation_prompt: str) -> str | None:
    """Opening tag of a block that a generation prompt leaves open, wherever in it the tag is."""
    for opening, closing in REASONING_TAGS:
        at = generation_prompt.rfind(opening)
        if at >= 0 and closing not in generation_prompt[at:]:
            return opening
    return None


def keep_reasoning_candidates(template_text: str, kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Settings worth trying: the template mentions the variable and the caller has not set it."""
    return [{name: value} for name, value in KEEP_REASONING if name in template_text and name not in kwargs]
