"""Compact storage of tokens: packed ids and log-probabilities, weight versions, sampling masks, routed experts.

Ids are held as 32-bit integers and log-probabilities as 64-bit floats, 12 bytes a sampled token. NumPy is imported only
where it is used: a model can be imported without it.
"""

from __future__ import annotations

import base64
import binascii
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import CoreSchema, core_schema

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TOKEN_TYPECODE = "i"
"""Array type of token ids: signed 32 bits."""
LOGPROB_TYPECODE = "d"
"""Array type of log-probabilities: 64-bit floats, so that the server's values come back bit for bit. NaN = none."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token, for callers who like objects; the storage itself holds none of these.

    Attributes:
        token_id: Id in the model's vocabulary.
        logprob: Natural logarithm of the probability it was sampled with, or None.
        loss_mask: True when the model sampled it.
    """

    token_id: int
    logprob: float | None = None
    loss_mask: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSpan:
    """Tokens `[start, end)`, of the output inside a turn, of the whole sequence elsewhere, and their weights' version.

    `version` is None where the server reports none.
    """

    version: str | None
    start: int
    end: int


def append_span(spans: list[WeightSpan], version: str | None, start: int, end: int) -> None:
    """Add the version of tokens behind those of some spans; where it is that of the last one, that grows."""
    if spans and spans[-1].end == start and spans[-1].version == version:
        start = spans.pop().start
    spans.append(WeightSpan(version=version, start=start, end=end))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingMask:
    """The tokens that survived top-k and top-p at each position of a sequence, as ragged arrays.

    Attributes:
        ids: int32, all sets one after the other.
        offsets: int64[tokens + 1]; the set of position `i` is `ids[offsets[i]:offsets[i + 1]]`, empty where no token
            was sampled.
    """

    ids: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def from_sets(cls, sets: Iterable[Iterable[int]]) -> SamplingMask:
        """The mask of these sets."""
        import numpy as np

        ids, offsets = array(TOKEN_TYPECODE), array("q", [0])
        for survivors in sets:
            ids.extend(survivors)
            offsets.append(len(ids))
        return cls(ids=np.array(ids, dtype=np.int32), offsets=np.array(offsets, dtype=np.int64))

    @classmethod
    def empty(cls, length: int) -> SamplingMask:
        """The mask of as many tokens that were not sampled."""
        import numpy as np

        return cls(ids=np.zeros(0, dtype=np.int32), offsets=np.zeros(length + 1, dtype=np.int64))

    @classmethod
    def join(cls, masks: Sequence[SamplingMask]) -> SamplingMask:
        """The mask of a sequence of sequences; at least one."""
        import numpy as np

        firsts = accumulate((len(mask.ids) for mask in masks), initial=0)
        parts = [mask.offsets[1:] + first for mask, first in zip(masks, firsts, strict=False)]
        return cls(
            ids=np.concatenate([mask.ids for mask in masks]),
            offsets=np.concatenate([np.zeros(1, dtype=np.int64), *parts]),
        )

    def part(self, start: int, end: int) -> SamplingMask:
        """The sets of positions `[start, end)`, with offsets from 0."""
        offsets = self.offsets[start : end + 1]  # one more than positions: where the last set ends
        return SamplingMask(ids=self.ids[offsets[0] : offsets[-1]], offsets=offsets - offsets[0])


def pack_ids(ids: Any, name: str = "token_ids", error: type[Exception] = ValueError) -> array[int]:
    """Token ids of a list, tuple, array or ndarray as a compact array; no Python code runs per token.

    Raises:
        error: They are not integers from 0 on, of at most 31 bits, in one dimension.
    """
    listed = ids.tolist() if hasattr(ids, "tolist") else ids  # an array has it, and an ndarray
    if not isinstance(listed, list | tuple):
        raise error(f"{name} is a {type(listed).__name__}: expected a list of integer token ids")
    if not set(map(type, listed)) <= {int}:
        index = next(i for i, item in enumerate(listed) if type(item) is not int)
        raise error(f"{name}[{index}]={listed[index]!r:.200}: expected an integer token id")
    wrong = min(listed, default=0)
    try:
        if wrong >= 0:
            return array(TOKEN_TYPECODE, listed)
    except OverflowError:
        wrong = max(listed)
    raise error(f"{name} has {wrong}: expected token ids from 0 to 2147483647")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenRun:
    """A run of tokens of one kind.

    Attributes:
        logprobs: One value a token (NaN = none), or None when there is none at all.
        is_output: True when the model sampled these tokens.
        is_trained: True when they carry loss. Differs from `is_output` only where an earlier exported trajectory
            already trains them.
        turn: Index of the turn within its sequence (prompt and output of one model call share it).
        weight_spans: Versions of the weights, relative to the start of the segment.
    """

    ids: array[int]
    logprobs: array[float] | None
    is_output: bool
    is_trained: bool
    turn: int
    weight_spans: tuple[WeightSpan, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The tokens `[start, end)`, sampled or not, of the model call `turn`; a prompt belongs to the call it prepares."""

    is_output: bool
    start: int
    end: int
    turn: int


class TokenArrays(Protocol):
    """Tokens as arrays: a `TokenSequence`, whose module imports NumPy."""

    token_ids_array: npt.NDArray[np.int32]
    loss_mask_array: npt.NDArray[np.uint8]
    logprobs_array: npt.NDArray[np.float64]
    prompt_length: int
    segments: tuple[Segment, ...]
    weight_versions: tuple[WeightSpan, ...]

    @property
    def output_mask_array(self) -> npt.NDArray[np.uint8]:
        """1 where the model sampled the token."""


def int_list(values: npt.NDArray[Any]) -> list[int]:
    """Whole numbers as a list."""
    listed: list[int] = values.tolist()
    return listed


def logprob_list(values: npt.NDArray[Any]) -> list[float | None]:
    """Log-probabilities as a list, None where there is none."""
    listed: list[float | None] = values.tolist()
    for index in (values != values).nonzero()[0].tolist():  # NaN
        listed[index] = None
    return listed


class TokenView:
    """Read access to a token sequence. Lists are fresh copies, one value a token."""

    __slots__ = ()

    @property
    def sequence(self) -> TokenArrays:
        """The tokens as arrays."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.sequence.token_ids_array)

    @property
    def token_ids(self) -> list[int]:
        """All token ids in order."""
        return int_list(self.sequence.token_ids_array)

    @property
    def loss_mask(self) -> list[int]:
        """1 where a token carries loss: the model sampled it, and no other trajectory trains it."""
        return int_list(self.sequence.loss_mask_array)

    @property
    def output_mask(self) -> list[bool]:
        """True where the model sampled the token, trained here or not."""
        listed: list[bool] = self.sequence.output_mask_array.view("bool").tolist()
        return listed

    @property
    def logprobs(self) -> list[float | None]:
        """Natural log-probabilities, None where the server returned none (all rendered tokens)."""
        return logprob_list(self.sequence.logprobs_array)

    @property
    def segment_info(self) -> list[tuple[bool, int]]:
        """`(is_output, number of tokens)` of every segment."""
        return [(part.is_output, part.end - part.start) for part in self.sequence.segments]

    @property
    def initial_prompt_length(self) -> int:
        """Number of tokens before the first sampled one."""
        return self.sequence.prompt_length

    @property
    def weight_versions(self) -> tuple[WeightSpan, ...]:
        """Weight versions of the sampled tokens as spans over the whole sequence; touching equal spans are joined."""
        return self.sequence.weight_versions


def decode_routed_experts(data: str | bytes, seq_len: int, num_layers: int, top_k: int) -> npt.NDArray[np.int32]:
    """Decode what `SGLangModel.routed_experts` or the server's `meta_info["routed_experts"]` holds.

    Args:
        data: Base64 text, or raw bytes, of little-endian int32 in C order.
        seq_len: Number of tokens of the sequence, prompt and response.
        num_layers: Layers of the model, dense ones included.
        top_k: Experts per token.

    Returns:
        `int32[seq_len - 1, num_layers, top_k]`; row `r` belongs to token `r`. The last token was never fed, so it has
        none.

    Raises:
        ValueError: The data is not base64, or its size is not that of the shape.
    """
    import numpy as np

    if isinstance(data, str):
        try:
            data = base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise ValueError(f"routed experts are not valid base64: {error}") from error
    shape = (seq_len - 1, num_layers, top_k)
    expected = 4 * shape[0] * shape[1] * shape[2]
    if len(data) != expected:
        raise ValueError(
            f"routed experts hold {len(data)} bytes, but int32{list(shape)} takes {expected}; check seq_len ({seq_len} "
            f"tokens, prompt and response), num_layers ({num_layers}, dense layers included) and top_k ({top_k})"
        )
    return np.frombuffer(data, dtype="<i4").reshape(shape).astype(np.int32, copy=False)


def closed_schema(cls: Any) -> CoreSchema:
    """A schema by which pydantic holds a class with `from_dict` and `to_dict`: instances unread, mappings parsed."""

    def validate(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            return cls.from_dict(value)
        raise ValueError(f"expected a {cls.__name__} or its dict, got {type(value).__name__}")

    return core_schema.no_info_plain_validator_function(
        validate, serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.to_dict())
    )
