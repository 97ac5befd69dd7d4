"""Retokenisation drift: the changes that encoding the decoded text again would have made.

A model samples token sequences that its tokenizer would never produce: other merges of the same characters, half of a
character, the letters of a special token. Decoding and encoding such a sequence gives other ids, and a trainer that
works on those computes the gradient of tokens nobody sampled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from strands_env.core import TokenObservation

_WINDOW = 64  # how far apart two sequences may drift before they are matched again
_ANCHOR = 3  # equal tokens in a row that end a drifted stretch


class DriftKind(StrEnum):
    """The reason a stretch comes back with other ids."""

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
    """Tokens `[start, end)` of the sampled sequence that would come back as `retokenized_ids`."""

    start: int
    end: int
    retokenized_ids: tuple[int, ...]
    kind: DriftKind


def find_drift(token_ids: Sequence[int], tokenizer: Any) -> list[DriftSpan]:
    """Stretches of sampled ids, in order, that decoding and encoding by a Hugging Face style tokenizer would change."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftExample:
    """A drifted place: where, the texts of the tokens that were sampled, and of those that come back."""

    name: str
    start: int
    kind: DriftKind
    sampled: list[str]
    retokenized: list[str]


@dataclass(slots=True, kw_only=True)
class DriftTotals:
    """Changes that decoding and encoding by a Hugging Face style tokenizer would make to many trajectories.

    Attributes:
        changed_trajectories: Those that would come back with other ids.
        changed_tokens: Sampled tokens that would come back different, or not at all.
        kinds: Number of places by kind.
    """

    tokenizer: Any
    max_examples: int = 0
    trajectories: int = 0
    changed_trajectories: int = 0
    sampled_tokens: int = 0
    changed_tokens: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    examples: list[DriftExample] = field(default_factory=list)

    def add(self, tokens: TokenObservation, *, name: str = "") -> list[DriftSpan]:
        """Count a trajectory (`name`: for examples); returns its drifted stretches."""
        token_ids, sampled_mask = tokens.token_ids, tokens.output_mask
        spans = find_drift(token_ids, self.tokenizer)
        self.trajectories += 1
        self.changed_trajectories += bool(spans)
        self.sampled_tokens += sum(sampled_mask)
        for span in spans:
            self.changed_tokens += sum(sampled_mask[span.start : span.end])
            self.kinds[span.kind.value] += 1
            if len(self.examples) < self.max_examples:
                sampled, again = (
                    [_decode(self.tokenizer, [token]) for token in tokens[:8]]
                    for tokens in (token_ids[span.start : span.end], span.retokenized_ids)
                )
                example = DriftExample(name=name, start=span.start, kind=span.kind, sampled=sampled, retokenized=again)
                self.examples.append(example)
        return spans

    def __str__(self) -> str:
        changed = f"{self.changed_trajectories} of {self.trajectories}"
        return f"{changed} trajectories would change if their text were tokenised again"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        names = ("trajectories", "changed_trajectories", "sampled_tokens", "changed_tokens")
        counts = {name: getattr(self, name) for name in names}
        examples = [asdict(example) for example in self.examples]
        return {**counts, "kinds": dict(self.kinds.most_common()), "examples": examples}


def _resynchronise(ids: list[int], again: list[int], i: int, j: int) -> tuple[int, int]:
    """Tokens to skip on both sides so that the sequences agree again; the fewest in sum, or all that is left."""
    # By the sum of both skips: the first place where the two agree is then the smallest difference that explains it.
    for total in range(1, 2 * _WINDOW):
        for step_i in range(max(0, total - _WINDOW), min(total, _WINDOW) + 1):
            step_j = total - step_i
            a, b = ids[i + step_i : i + step_i + _ANCHOR], again[j + step_j : j + step_j + _ANCHOR]
            at_end = i + step_i == len(ids) and j + step_j == len(again)
            if at_end or (a and a == b):
                return step_i, step_j
    return len(ids) - i, len(again) - j


def _classify(old: list[int], new: list[int], tokenizer: Any) -> DriftKind:
    added: Any = getattr(tokenizer, "get_added_vocab", dict)()
    special = {*getattr(tokenizer, "all_special_ids", ()), *(added.values() if isinstance(added, dict) else ())}
    if (special & set(old)) != (special & set(new)):
        return DriftKind.SPECIAL_TOKEN
    before, after = _decode(tokenizer, old), _decode(tokenizer, new)
    if "\ufffd" in before or "\ufffd" in after:
        return DriftKind.BROKEN_UTF8
    if before != after:
        return DriftKind.OTHER_TEXT
    return DriftKind.WHITESPACE if not before.strip() else DriftKind.OTHER_MERGE


def _decode(tokenizer: Any, ids: list[int]) -> str:
    if not ids:
        return ""
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
