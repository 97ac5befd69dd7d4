"""`TokenSequence`: the tokens of one path in compact arrays.

No token is a Python object: 100,000 tokens are three NumPy arrays (13 bytes a token), and lists are built only when a
caller asks for them.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema

from .packed import Segment, TokenRun, TokenView, WeightSpan, append_span, closed_schema, int_list, logprob_list

_MAGIC = b"STOK1\n"
_HEADER = struct.Struct("<I")
_FIELDS = frozenset(
    ("token_ids", "prompt_length", "loss_mask", "logprobs", "segment_info", "segment_turns", "weight_versions")
)


class TokenSequence(TokenView):
    """A linear token trajectory: the first prompt, then everything sampled and every tool result, in order.

    All per-token sequences have the length of `token_ids`; the `rollout_*` ones start after the initial prompt, the way
    trainers want a response.

    Args:
        prompt_length: Number of tokens of the initial prompt.
        loss_mask: 1 where the token carries loss, 0 elsewhere. Empty means all 0.
        logprobs: Natural log-probability of each sampled token, None where there is none. Empty means none at all.
        segment_info: `(is_output, length)` of every segment, in order. Derived from the loss mask when not given.
        segment_turns: Index of the model call of every segment. Derived from `segment_info` when not given.

    Attributes:
        token_ids_array: int32[tokens]; arrays cannot be written to.
        loss_mask_array: uint8[tokens], 1 where the token carries loss.
        logprobs_array: float64[tokens]; NaN where there is no log-probability.
        prompt_length: Number of tokens of the initial prompt.
        segments: The runs of prompt and sampled tokens, in order.
        weight_versions: Weight versions of the sampled tokens, as spans over all tokens.

    Raises:
        ValueError: Two lengths contradict each other.
    """

    __slots__ = ("logprobs_array", "loss_mask_array", "prompt_length", "segments", "token_ids_array", "weight_versions")
    token_ids_array: NDArray[np.int32]
    loss_mask_array: NDArray[np.uint8]
    logprobs_array: NDArray[np.float64]
    prompt_length: int
    segments: tuple[Segment, ...]
    weight_versions: tuple[WeightSpan, ...]

    def __init__(
        self,
        *,
        token_ids: Iterable[int] = (),
        prompt_length: int = 0,
        loss_mask: Iterable[int] = (),
        logprobs: Iterable[float | None] = (),
        segment_info: Iterable[tuple[bool, int]] | None = None,
        segment_turns: Iterable[int] | None = None,
        weight_versions: Iterable[WeightSpan] = (),
    ) -> None:
        self.token_ids_array = _id_column(token_ids)
        count = len(self.token_ids_array)
        self.loss_mask_array = _column("loss_mask", loss_mask, np.uint8, count, 0)
        self.logprobs_array = _column("logprobs", logprobs, np.float64, count, math.nan)
        if not 0 <= prompt_length <= count:
            raise ValueError(
                f"prompt_length must be between 0 and {count}, the number of tokens, got {prompt_length!r}"
            )
        self.prompt_length = int(prompt_length)
        self.segments = _segments(segment_info, segment_turns, self.loss_mask_array, self.prompt_length)
        self.weight_versions = tuple(weight_versions)

    @classmethod
    def from_token_manager(cls, token_manager: Any) -> TokenSequence | None:
        """A copy of the tokens of a `TokenManager`, or anything with its read API; None if it is empty."""
        if len(token_manager) == 0:
            return None
        if isinstance(own := getattr(token_manager, "sequence", None), cls):
            return own
        return cls(
            token_ids=token_manager.token_ids,
            prompt_length=len(token_manager.initial_prompt),
            loss_mask=token_manager.loss_mask,
            logprobs=token_manager.logprobs,
            segment_info=token_manager.segment_info,
        )

    @classmethod
    def from_runs(cls, runs: Sequence[TokenRun]) -> TokenSequence:
        """The sequence of these runs, built in one pass and without a Python object a token."""
        sequence = cls.__new__(cls)
        starts = list(accumulate((len(run.ids) for run in runs), initial=0))
        ids = np.empty(starts[-1], dtype=np.int32)
        mask = np.zeros(starts[-1], dtype=np.uint8)
        logprobs = np.full(starts[-1], math.nan)
        weights: list[WeightSpan] = []
        for run, start, end in zip(runs, starts, starts[1:], strict=False):
            ids[start:end] = run.ids
            mask[start:end] = run.is_trained
            if run.logprobs is not None:
                logprobs[start:end] = run.logprobs
            for span in run.weight_spans:
                # They touch where a turn has no prompt, as in a manager filled by hand.
                append_span(weights, span.version, start + span.start, start + span.end)
        sequence.token_ids_array = _freeze(ids)
        sequence.loss_mask_array = _freeze(mask)
        sequence.logprobs_array = _freeze(logprobs)
        sequence.segments = tuple(
            Segment(is_output=run.is_output, start=start, end=end, turn=run.turn)
            for run, start, end in zip(runs, starts, starts[1:], strict=False)
        )
        sequence.prompt_length = next((part.start for part in sequence.segments if part.is_output), len(ids))
        sequence.weight_versions = tuple(weights)
        return sequence

    # Everything, one value a token

    @property
    def sequence(self) -> TokenSequence:
        """These tokens."""
        return self

    @property
    def is_all_trained(self) -> bool:
        """True if every sampled token carries loss here."""
        return bool(np.array_equal(self.loss_mask_array, self.output_mask_array))

    @property
    def turn_index(self) -> list[int]:
        """Index of the model call each token belongs to; a prompt belongs to the call it prepares."""
        turns = np.zeros(len(self.token_ids_array), dtype=np.int32)
        for segment in self.segments:
            turns[segment.start : segment.end] = segment.turn
        return turns.tolist()

    @property
    def turn_spans(self) -> dict[int, list[tuple[int, int]]]:
        """The sampled tokens of every model call as `[start, end)` spans, by turn index."""
        spans: dict[int, list[tuple[int, int]]] = {}
        for segment in self.segments:
            if segment.is_output:
                spans.setdefault(segment.turn, []).append((segment.start, segment.end))
        return spans

    # From the end of the initial prompt

    @property
    def initial_prompt_token_ids(self) -> list[int]:
        """Ids of the initial prompt."""
        return int_list(self.token_ids_array[: self.prompt_length])

    @property
    def rollout_token_ids(self) -> list[int]:
        """Ids after the initial prompt."""
        return int_list(self.token_ids_array[self.prompt_length :])

    @property
    def rollout_loss_mask(self) -> list[int]:
        """Loss mask after the initial prompt."""
        return int_list(self.loss_mask_array[self.prompt_length :])

    @property
    def rollout_logprobs(self) -> list[float | None]:
        """Log-probabilities after the initial prompt."""
        return logprob_list(self.logprobs_array[self.prompt_length :])

    # Without a copy, for exporters

    @property
    def output_mask_array(self) -> NDArray[np.uint8]:
        """uint8[tokens], 1 where the model sampled the token, trained here or not."""
        mask = np.zeros(len(self.token_ids_array), dtype=np.uint8)
        for segment in self.segments:
            mask[segment.start : segment.end] = segment.is_output
        return mask

    # JSON and bytes

    def to_dict(self) -> dict[str, Any]:
        """A JSON object; `from_dict` gives an equal sequence back. Infinite log-probabilities are strings."""
        return {
            "token_ids": self.token_ids,
            "prompt_length": self.prompt_length,
            "loss_mask": self.loss_mask,
            "logprobs": [str(value) if value is not None and math.isinf(value) else value for value in self.logprobs],
            **self._structure(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TokenSequence:
        """The sequence that `to_dict` wrote; `ValueError` for an unknown key, or lengths that contradict each other.

        `token_ids`, `prompt_length`, `loss_mask` and `logprobs` suffice.
        """
        if unknown := sorted(set(data) - _FIELDS):
            raise ValueError(f"unknown keys {unknown!r} of a token sequence; known are {sorted(_FIELDS)!r}")
        fields = dict(data)
        fields["logprobs"] = [float(value) if isinstance(value, str) else value for value in data.get("logprobs", ())]
        fields["weight_versions"] = [WeightSpan(**span) for span in data.get("weight_versions", ())]
        return cls(**fields)

    def to_bytes(self) -> bytes:
        """A compact binary form (about 13 bytes a token); `from_bytes` gives an equal sequence back."""
        header = {"count": len(self.token_ids_array), "prompt_length": self.prompt_length, **self._structure()}
        encoded = json.dumps(header, separators=(",", ":")).encode()
        arrays = (
            self.token_ids_array.astype("<i4", copy=False).tobytes(),
            self.logprobs_array.astype("<f8", copy=False).tobytes(),
            self.loss_mask_array.tobytes(),
        )
        return b"".join((_MAGIC, _HEADER.pack(len(encoded)), encoded, *arrays))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> TokenSequence:
        """The sequence that `to_bytes` wrote; `ValueError` if the bytes are anything else, or cut off."""
        view = memoryview(data)
        start = len(_MAGIC) + _HEADER.size
        if bytes(view[: len(_MAGIC)]) != _MAGIC or len(view) < start:
            raise ValueError(f"not a token sequence: expected {_MAGIC!r} first, got {bytes(view[: len(_MAGIC)])!r}")
        (length,) = _HEADER.unpack(view[len(_MAGIC) : start])
        if len(view) < start + length:
            raise ValueError(f"a token sequence of {len(view)} bytes is cut off in its header")
        header = json.loads(bytes(view[start : start + length]))
        count = header.pop("count")
        body = start + length
        if len(view) != body + 13 * count:
            raise ValueError(f"a token sequence of {count} tokens has {body + 13 * count} bytes, got {len(view)}")
        ids = np.frombuffer(view, dtype="<i4", count=count, offset=body)
        logprobs = np.frombuffer(view, dtype="<f8", count=count, offset=body + 4 * count)
        mask = np.frombuffer(view, dtype=np.uint8, count=count, offset=body + 12 * count)
        weights = [WeightSpan(**span) for span in header.pop("weight_versions", ())]
        return cls(token_ids=ids, loss_mask=mask, logprobs=logprobs, weight_versions=weights, **header)

    def _structure(self) -> dict[str, Any]:
        return {
            "segment_info": [list(pair) for pair in self.segment_info],
            "segment_turns": [segment.turn for segment in self.segments],
            "weight_versions": [asdict(span) for span in self.weight_versions],
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenSequence):
            return NotImplemented
        return (
            self.prompt_length == other.prompt_length
            and self.segments == other.segments
            and self.weight_versions == other.weight_versions
            and np.array_equal(self.token_ids_array, other.token_ids_array)
            and np.array_equal(self.loss_mask_array, other.loss_mask_array)
            and np.array_equal(self.logprobs_array, other.logprobs_array, equal_nan=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"TokenSequence(tokens={len(self.token_ids_array)}, prompt_length={self.prompt_length}, "
            f"trained={int(self.loss_mask_array.sum())}, segments={len(self.segments)})"
        )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return closed_schema(cls)


def _freeze(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


def _raw(values: Iterable[Any], dtype: Any = None) -> NDArray[Any]:
    return np.array(values if isinstance(values, Sequence | np.ndarray) else list(values), dtype=dtype)


def _id_column(values: Iterable[int]) -> NDArray[np.int32]:
    raw = _raw(values)
    if raw.size and (raw.dtype.kind not in "iu" or raw.ndim != 1):
        raise ValueError(f"token_ids must be integers in one dimension, got dtype {raw.dtype} of shape {raw.shape}")
    if raw.size and not (raw.min() >= -(2**31) and raw.max() < 2**31):
        raise ValueError(f"token_ids must fit 32 bits, got values from {raw.min()} to {raw.max()}")
    return _freeze(raw.astype(np.int32))


def _column(name: str, values: Iterable[Any], dtype: Any, count: int, missing: float) -> NDArray[Any]:
    """A value per token; `missing` everywhere where there are none at all."""
    raw = _raw(values, None if dtype is np.uint8 else dtype)  # in a log-probability None becomes NaN
    if raw.size == 0:
        raw = np.full(count, missing)
    if len(raw) != count:
        raise ValueError(f"{name} has {len(raw)} values for {count} tokens")
    if dtype is np.uint8 and not np.isin(raw, (0, 1)).all():
        raise ValueError(f"{name} must hold 0 and 1 only")
    return _freeze(raw.astype(dtype))


def _segments(
    info: Iterable[tuple[bool, int]] | None,
    turns: Iterable[int] | None,
    mask: NDArray[np.uint8],
    prompt_length: int,
) -> tuple[Segment, ...]:
    if info is None:  # stretches of one kind, the first prompt apart
        edges = {0, len(mask), *(np.flatnonzero(np.diff(mask)) + 1).tolist()}
        edges.update({prompt_length} if 0 < prompt_length < len(mask) else ())
        info = [(bool(mask[start]), end - start) for start, end in pairwise(sorted(edges))]
    pairs = [(bool(is_output), int(length)) for is_output, length in info]
    if turns is None:  # a turn ends with its output
        ends = [before and not after for (before, _), (after, _) in pairwise(pairs)]
        listed = list(accumulate(ends, initial=0)) if pairs else []
    else:
        listed = [int(turn) for turn in turns]
    if any(length < 0 for _, length in pairs):
        raise ValueError(f"segment_info has a segment of {min(length for _, length in pairs)} tokens")
    if len(listed) != len(pairs):
        raise ValueError(f"segment_turns has {len(listed)} values for {len(pairs)} segments")
    segments = []
    start = 0
    for (is_output, length), turn in zip(pairs, listed, strict=True):
        segments.append(Segment(is_output=is_output, start=start, end=start + length, turn=turn))
        start += length
    if start != len(mask):
        raise ValueError(f"segment_info covers {start} tokens of {len(mask)}")
    return tuple(segments)


def mask_runs(mask: NDArray[np.uint8]) -> list[tuple[int, int]]:
    """`[start, end)` of every run of ones in a mask."""
    # The mask between zeros: its differences are not 0 where a run begins and behind its end, in turn.
    edges = np.flatnonzero(np.diff(mask, prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def common_prefix(one: Any, other: Any) -> int:
    """Number of ids with which two sequences of them begin alike."""
    length = min(len(one), len(other))
    different = np.flatnonzero(np.asarray(one[:length]) != np.asarray(other[:length]))
    return int(different[0]) if different.size else length
