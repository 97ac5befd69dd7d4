"""Keys and values of sequences, and the store of finished ones whose prefixes are used again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch


class SequenceKV:
    """Keys and values of one sequence: per layer two tensors `[kv_heads, capacity, head_dim]` that grow by half.

    A tensor of its own for every sequence means no padding in attention, at the price of a copy when a prefix is used
    by a second sequence.
    """

    def __init__(self, layers: int) -> None:
        self.length = 0
        """Positions whose keys and values are complete in every layer."""
        self._pairs: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * layers

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[kv_heads, n, head_dim]` behind `length`, and return all keys and values including them."""
        end = self.length + keys.shape[1]
        pair = self._pairs[layer]
        if pair is None or pair[0].shape[1] < end:
            pair = self._grown(pair, keys, values, capacity=max(64, end + end // 2))
            self._pairs[layer] = pair
        pair[0][:, self.length : end] = keys
        pair[1][:, self.length : end] = values
        return pair[0][:, :end], pair[1][:, :end]

    def _grown(
        self, old: tuple[torch.Tensor, torch.Tensor] | None, keys: torch.Tensor, values: torch.Tensor, *, capacity: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        new = (
            keys.new_empty(keys.shape[0], capacity, keys.shape[2]),
            values.new_empty(values.shape[0], capacity, values.shape[2]),
        )
        if old is not None:
            for target, source in zip(new, old, strict=True):
                target[:, : self.length] = source[:, : self.length]
        return new

    def copy_prefix(self, length: int) -> SequenceKV:
        """An independent copy of the first `length` positions."""
        copy = SequenceKV(len(self._pairs))
        for layer, pair in enumerate(self._pairs):
            if pair is not None:
                copy.write(layer, pair[0][:, :length], pair[1][:, :length])
        copy.length = length
        return copy


@dataclass(slots=True, eq=False)
class _Entry:
    tokens: np.ndarray
    kv: SequenceKV


class PrefixCache:
    """Finished sequences, the most recently used last, within a budget of tokens.

    Args:
        budget: Most tokens to keep; 0 keeps nothing.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._entries: list[_Entry] = []

    @property
    def tokens(self) -> int:
        """Tokens held."""
        return sum(len(entry.tokens) for entry in self._entries)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()

    def take(self, tokens: list[int], limit: int, running: Iterable[tuple[list[int], SequenceKV]]) -> SequenceKV | None:
        """Keys and values of the longest known prefix of `tokens`, at most `limit` positions, or None.

        Prefixes of running sequences count too. An entry that is wholly a prefix is handed over without a copy: the
        sequence that continues it will be stored in its place.
        """
        wanted = np.asarray(tokens[:limit], dtype=np.int64)
        best, best_length, best_entry = None, 0, None
        for entry in self._entries:
            if (length := _common(wanted, entry.tokens)) > best_length:
                best, best_length, best_entry = entry.kv, length, entry
        for other, kv in running:
            if (length := min(_common(wanted, np.asarray(other, dtype=np.int64)), kv.length)) > best_length:
                best, best_length, best_entry = kv, length, None
        if best is None:
            return None
        if best_entry is not None:
            self._entries.remove(best_entry)
            if best_length == len(best_entry.tokens):
                return best
            self._entries.append(best_entry)
        return best.copy_prefix(best_length)

    def put(self, tokens: list[int], kv: SequenceKV) -> None:
        """Store a finished sequence, known up to `kv.length`; the least recently used ones make room."""
        known = np.asarray(tokens[: kv.length], dtype=np.int64)
        if not 0 < len(known) <= self._budget:
            return
        kept = [entry for entry in self._entries if _common(known, entry.tokens) < len(entry.tokens)]
        if not any(_common(known, entry.tokens) == len(known) for entry in kept):
            kept.append(_Entry(known, kv))
        held = sum(len(entry.tokens) for entry in kept)
        while held > self._budget:
            held -= len(kept.pop(0).tokens)
        self._entries = kept


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """Length of the common prefix of two id arrays."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length
