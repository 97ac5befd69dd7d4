"""Reasoning blocks: is one open where generation starts, and which variable makes a template keep earlier ones."""

from __future__ import annotations

import re
from functools import lru_cache
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
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|channel>thought", "<channel|>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
)
"""Opening and closing tags of reasoning blocks in public chat templates."""
_OPENINGS: Final = tuple(opening for opening, _ in REASONING_TAGS)
_UNLISTED: Final = re.compile(r"[<\[◁]([\w:.-]+)[>\]▷]$")
_NAMED: Final = re.compile(r"think|thought|reason", re.IGNORECASE)
# Names of blocks that are not reasoning, though a template may open them for every reply.
_ANSWERS: Final = re.compile(r"answer|response|reply|output|solution|tool|call", re.IGNORECASE)

KEEP_REASONING: Final[tuple[tuple[str, Any], ...]] = (
    ("preserve_thinking", True),
    ("keep_past_thinking", True),
    ("clear_thinking", False),
    ("truncate_history_thinking", False),
    ("keep_all_reasoning", True),
    ("drop_thinking", False),
)
"""Variables by which public templates keep earlier reasoning; which of them a template honours is tried out."""


def opened_tags(
    prompt_text: str, generation_prompt: str = "", reply_header: str | None = None
) -> tuple[str, str] | None:
    """Tags of the reasoning block in which generation starts, or None.

    Only the generation prompt counts, or the very end of the text where it ends otherwise: a tag that a user wrote
    earlier is not an open block.

    Args:
        reply_header: Text that the template prints before a past reply, which tells a tag of the role from one that
            opens reasoning. None if unknown: then unlisted tags count only if they are named after thoughts.
    """
    if generation_prompt and prompt_text.endswith(generation_prompt):
        return _left_open(generation_prompt, reply_header)
    return _opened_at_end(prompt_text[-200:], None)


def _opened_at_end(text: str, reply_header: str | None) -> tuple[str, str] | None:
    end = text.rstrip()
    if end.endswith(_OPENINGS):
        return next(tags for tags in REASONING_TAGS if end.endswith(tags[0]))
    unlisted = _UNLISTED.search(end)
    if unlisted is None:
        return None
    tag, name = unlisted.group(), unlisted[1]
    is_of_role = reply_header is None or reply_header.rstrip().endswith(tag) or _ANSWERS.search(name)
    return None if is_of_role and not _NAMED.search(name) else (tag, f"{tag[0]}/{tag[1:]}")


@lru_cache(maxsize=64)
def _left_open(generation_prompt: str, reply_header: str | None) -> tuple[str, str] | None:
    """Tags of the block that a generation prompt leaves open, wherever in it the tag is."""
    for opening, closing in REASONING_TAGS:
        at = generation_prompt.rfind(opening)
        if at >= 0 and closing not in generation_prompt[at:]:
            return opening, closing
    return _opened_at_end(generation_prompt, reply_header)


def tags_of(template_text: str) -> tuple[str, str] | None:
    """Tags of the reasoning blocks that a template names, the first of those known here; None if it names none."""
    return next((tags for tags in REASONING_TAGS if tags[0] in template_text and tags[1] in template_text), None)
