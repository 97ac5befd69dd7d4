"""Retokenisation drift: what encoding the decoded text again would have changed.

A model samples token sequences that its tokenizer would never produce: other merges of the same characters, half of a
character, the letters of a special token. Decoding and encoding such a sequence gives other ids, and a trainer that
works on those computes the gradient of tokens nobody sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_WINDOW = 64  # how far apart two sequences may drift before they are matched again
_ANCHOR = 3  # equal tokens in a row that end a drifted stretch


class DriftKind(StrEnum):
    """Why a stretch comes back with other ids."""

    BROKEN_UTF8 = "broken-utf8"
    """The sampled tokens do not form valid UTF-8; decoding put a replacement character in."""
    SPECIAL_TOKEN = "special-token"
    """Ordinary tokens spell a special token, or the other way round."""
    WHITESPACE = "whitespace"
    """The stretch is white space, merged differently."""
    OTHER_MERGE = "other-merge"
    """The same characters, split differently."""
    OTHER_TEXT = "other-text"
    """The text itself changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftSpan:
    """Tokens `[start, end)` of the sampled sequence that would come back as `retokenized_ids`.

    Attributes:
        start: Index of the first changed token.
        end: Index after the last one.
        retokenized_ids: What encoding the text gives instead.
        kind: Why.
    """

    start: int
    end: int
    retokenized_ids: tuple[int, ...]
    kind: DriftKind


def find_drift(token_ids: Sequence[int], tokenizer: Any) -> list[DriftSpan]:
    """Stretches of a token sequence that decoding and encoding would change.

    Args:
        token_ids: Token ids as they were sampled.
        tokenizer: Hugging Face style tokenizer.

    Returns:
        The changed stretches in order; empty when the round trip is exact.
    """
    ids = list(token_ids)
    again = list(tokenizer.encode(_decode(tokenizer, ids), add_special_tokens=False))
    spans: list[DriftSpan] = []
    i = j = 0
    while i < len(ids) or j < len(again):
        if i < len(ids) and j < len(again) and ids[i] == again[j]:
            i, j = i + 1, j + 1
            continue
        step_i, step_j = _resynchronise(ids, again, i, j)
        old, new = ids[i : i + step_i], again[j : j + step_j]
        spans.append(
            DriftSpan(start=i, end=i + step_i, retokenized_ids=tuple(new), kind=_classify(old, new, tokenizer))
        )
        i, j = i + step_i, j + step_j
    return spans


def count_changed_tokens(token_ids: Sequence[int], tokenizer: Any) -> int:
    """Number of sampled tokens that would not survive decoding and encoding."""
    return sum(span.end - span.start for span in find_drift(token_ids, tokenizer))


def _resynchronise(ids: list[int], again: list[int], i: int, j: int) -> tuple[int, int]:
    """Tokens to skip on both sides so that the sequences agree again; the fewest in sum, or all that is left."""
    for total in range(1, 2 * _WINDOW):
        for step_i in range(max(0, total - _WINDOW), min(total, _WINDOW) + 1):
            step_j = total - step_i
            a, b = ids[i + step_i : i + step_i + _ANCHOR], again[j + step_j : j + step_j + _ANCHOR]
            at_end = i + step_i == len(ids) and j + step_j == len(again)
            if at_end or (a and a == b):
                return step_i, step_j
    return len(ids) - i, len(again) - j


def _classify(old: list[int], new: list[int], tokenizer: Any) -> DriftKind:
    special = set(getattr(tokenizer, "all_special_ids", ())) | set(_added_ids(tokenizer))
    if (special & set(old)) != (special & set(new)):
        return DriftKind.SPECIAL_TOKEN
    before, after = _decode(tokenizer, old), _decode(tokenizer, new)
    if "\ufffd" in before or "\ufffd" in after:
        return DriftKind.BROKEN_UTF8
    if before != after:
        return DriftKind.OTHER_TEXT
    return DriftKind.WHITESPACE if not before.strip() else DriftKind.OTHER_MERGE


def _added_ids(tokenizer: Any) -> list[int]:
    added: Any = getattr(tokenizer, "get_added_vocab", dict)()
    return list(added.values()) if isinstance(added, dict) else []


def _decode(tokenizer: Any, ids: list[int]) -> str:
    if not ids:
        return ""
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
