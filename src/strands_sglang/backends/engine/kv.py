"""Keys and values of sequences, and the store of finished ones whose prefixes are used again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...trajectory.tokens import common_prefix


class SequenceKV:
    """Keys and values of one sequence: per layer two tensors `[kv_heads, capacity, head_dim]` that grow by half.

    One tensor per sequence means no padding in attention, at the price of a copy when a prefix is used
    by a second sequence.
    """

    def __init__(self, layers: int) -> None:
        self.length = 0
        """Positions whose keys and values are complete in every layer."""
        self._pairs: list[tuple[torch.Tensor, ...] | None] = [None] * layers

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[kv_heads, n, head_dim]` behind `length`, and return all keys and values including them."""
        end = self.length + keys.shape[1]
        pair = self._pairs[layer]
        if pair is None or pair[0].shape[1] < end:
            old, capacity = pair, max(64, end + end // 2)
            pair = tuple(each.new_empty(each.shape[0], capacity, each.shape[2]) for each in (keys, values))
            for target, source in zip(pair, old or (), strict=False):
                target[:, : self.length] = source[:, : self.length]
            self._pairs[layer] = pair
        pair[0][:, self.length : end] = keys
        pair[1][:, self.length : end] = values
        return pair[0][:, :end], pair[1][:, :end]

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


_Running = Sequence[tuple[list[int], SequenceKV]]


class PrefixCache:
    """Finished sequences, the most recently used last, within a budget of tokens; 0 keeps nothing."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._entries: list[_Entry] = []

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()

    def match(self, tokens: list[int], limit: int, running: _Running) -> int:
        """Length of the longest known prefix of `tokens`, at most `limit`."""
        return self._find(tokens, limit, running)[0]

    def take(self, tokens: list[int], limit: int, running: _Running) -> SequenceKV | None:
        """Keys and values of the longest known prefix of `tokens`, at most `limit` positions, or None.

        Prefixes of `running` sequences count too. An entry that is wholly a prefix is handed over without a copy: the
        sequence that continues it will be stored in its place.
        """
        length, source, entry = self._find(tokens, limit, running)
        if source is None:
            return None
        if entry is not None:
            self._entries.remove(entry)
            if length == len(entry.tokens):
                return source
            self._entries.append(entry)  # used just now: the last to make room
        return source.copy_prefix(length)

    def _find(self, tokens: list[int], limit: int, running: _Running) -> tuple[int, SequenceKV | None, _Entry | None]:
        prefix = np.asarray(tokens[:limit], dtype=np.int64)
        best: tuple[int, SequenceKV | None, _Entry | None] = (0, None, None)
        for entry in self._entries:  # a few dozen, compared by NumPy: no tree is worth its code
            if (length := common_prefix(prefix, entry.tokens)) > best[0]:
                best = (length, entry.kv, entry)
        for other, kv in running:
            computed = np.asarray(other[: kv.length], dtype=np.int64)
            if (length := common_prefix(prefix, computed)) > best[0]:
                best = (length, kv, None)
        return best

    def put(self, tokens: list[int], kv: SequenceKV) -> None:
        """Store a finished sequence, known up to `kv.length`; the least recently used ones make room."""
        computed = np.asarray(tokens[: kv.length], dtype=np.int64)
        if not 0 < len(computed) <= self._budget:
            return
        entries, is_held = [], False
        for entry in self._entries:
            length = common_prefix(computed, entry.tokens)
            if length < len(entry.tokens):  # one that is wholly a prefix of the new one is covered by it
                entries.append(entry)
                is_held = is_held or length == len(computed)
        if not is_held:
            entries.append(_Entry(computed, kv))
        size = sum(len(entry.tokens) for entry in entries)
        while size > self._budget:
            size -= len(entries.pop(0).tokens)
        self._entries = entries
