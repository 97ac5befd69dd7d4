"""`TrainingSample`: one token sequence to train on, neutral between trainers; and its files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strands_env.core.files import arrow
from strands_env.core.termination import ANSWERED, End, ErrorRecord, Outcome, Phase, TerminationReason
from strands_env.core.types import WeightVersionSpan
from strands_sglang.lines import replacing
from strands_sglang.trajectory import Role, SamplingMask
from strands_sglang.trajectory.media import PlacedMedium
from strands_sglang.trajectory.packed import decode_routed_experts
from strands_sglang.trajectory.tokens import mask_runs

TEACHER_ERROR = "teacher_error"
"""The entry of a sample's metadata that says why the teacher did not score it."""

MASKED_TOKENS = "masked_tokens"
"""The entry of a sample's metadata that counts the tokens `TrainingSample.masked` took out of the loss."""


class InvalidSampleError(ValueError):
    """A sample contradicts itself; the message names the first contradiction."""


# By identity: comparing arrays gives no single truth value.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSample:
    """A path of one rollout, prompt and response together.

    All per-token arrays have the length of `token_ids`. Nothing is filled in: a log-probability that was not recorded
    is NaN, a reward that was not given is None; adapters decide the value their trainer gets instead.

    Attributes:
        token_ids: int32[tokens], prompt and response.
        prompt_length: Tokens before the first sampled one.
        loss_mask: uint8[tokens], 1 where this sample trains the token. Each sampled token of a rollout is 1 in one
            sample only. Count with `loss_mask.sum()`: Python's `sum` adds in 8 bits.
        trained_elsewhere: uint8[tokens], 1 where the token was sampled on this path too and another sample of the
            rollout trains it; None without such tokens.
        logprobs: float64[tokens], natural logarithms under the weights that sampled; NaN where there is none. None
            when none were asked for.
        weight_versions: Versions of the weights over the sampled tokens, as spans over `token_ids`.
        routed_experts: Little-endian int32 rows `[tokens - 1, layers, top_k]`, or None.
        experts_shape: `(layers, top_k)` of a row, where known.
        sampling_mask: The tokens that survived top-k and top-p at each position, or None.
        media: Images in order: bytes, digest, grid, and the tokens they take in `token_ids`.
        teacher_logprobs: float64[tokens], natural logarithms under another model, of `score_with_teacher`; position i
            is about token i. NaN in the prompt. None without a teacher.
        teacher_top_ids: int32[tokens, k], that model's most likely tokens at each position, best first; -1 in the
            prompt. None where they were not asked for.
        teacher_top_logprobs: float32[tokens, k], their natural logarithms; NaN in the prompt.
        token_rewards: float64[tokens], rewards of turns and spans in their places, or None; they count where the token
            is trained. Not part of `reward`.
        loss_weight: Factor on the loss of each trained token, as `weigh_rollouts` sets it.
        group_id: Rollouts of one prompt share it; None without groups.
        rollout_id: Samples of one rollout share it.
        agent_id, role, parent: As of a `Trajectory`.
        end: The end of its rollout. Lost ones are never trained, and have no reward.
        finish_reason: End of the last completion of this path: `stop`, `length`, `abort`, `unknown` or None.
        metadata: Other facts, as JSON values.
    """

    token_ids: NDArray[np.int32]
    prompt_length: int
    loss_mask: NDArray[np.uint8]
    logprobs: NDArray[np.float64] | None = None
    trained_elsewhere: NDArray[np.uint8] | None = None
    teacher_logprobs: NDArray[np.float64] | None = None
    teacher_top_ids: NDArray[np.int32] | None = None
    teacher_top_logprobs: NDArray[np.float32] | None = None
    weight_versions: tuple[WeightVersionSpan, ...] = ()
    routed_experts: bytes | None = None
    experts_shape: tuple[int, int] | None = None
    sampling_mask: SamplingMask | None = None
    media: tuple[PlacedMedium, ...] = ()
    reward: float | None = None
    token_rewards: NDArray[np.float64] | None = None
    loss_weight: float = 1.0
    group_id: str | None = None
    rollout_id: str | None = None
    agent_name: str = "agent"
    agent_id: str | None = None
    role: Role = Role.MAIN
    parent: str | None = None
    end: End = ANSWERED
    finish_reason: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def response_length(self) -> int:
        """Tokens from the first sampled one on, tool results included."""
        return len(self.token_ids) - self.prompt_length

    @property
    def trained_tokens(self) -> int:
        """Number of tokens with loss."""
        return int(self.loss_mask.sum())

    @property
    def is_usable(self) -> bool:
        """True if it can be trained on: not lost, rewarded, and not empty."""
        return self.is_scored and self.trained_tokens > 0

    @property
    def is_scored(self) -> bool:
        """Its reward counts in the statistics of its group, also where no token is trained."""
        return not self.end.outcome.is_lost and self.reward is not None

    @property
    def masked_share(self) -> float:
        """Share of the trained tokens that `masked` took out of the loss, from 0.0 to 1.0."""
        masked: int = self.metadata.get(MASKED_TOKENS, 0)
        return masked / max(masked + self.trained_tokens, 1)

    def experts_array(self) -> NDArray[np.int32] | None:
        """Routed experts as `int32[tokens - 1, layers, top_k]`, or None; `ValueError` without a fitting shape."""
        return None if self.routed_experts is None else self.required_experts()

    def required_experts(self) -> NDArray[np.int32]:
        """`experts_array` for a trainer that replays them; `InvalidSampleError` without experts or their shape."""
        if self.routed_experts is None or self.experts_shape is None:
            raise InvalidSampleError(
                f"rollout {self.rollout_id!r} has no routed experts of a known shape: sample with "
                "return_routed_experts=True, and give experts_shape=(layers, top_k)"
            )
        return decode_routed_experts(self.routed_experts, len(self), *self.experts_shape)

    def trained_mask(self, *, images_follow: bool = False, weight_follows: bool = False) -> list[int]:
        """The loss mask over all tokens, all 0 where the sample may not be trained (lost, without reward).

        Args:
            images_follow: The caller gives the trainer the images too.
            weight_follows: The caller gives the trainer `loss_weight` too.

        Raises:
            InvalidSampleError: The sample has images, or a weight other than 1, that do not follow.
        """
        if self.loss_weight != 1 and not weight_follows:
            raise InvalidSampleError(
                f"rollout {self.rollout_id!r} has loss weight {self.loss_weight:g}, which cannot be given to this "
                "trainer: leave out weigh_rollouts()"
            )
        if self.media and not images_follow:
            raise InvalidSampleError(
                f"rollout {self.rollout_id!r} has {len(self.media)} images, which cannot be given to this trainer; "
                "its tokens without them are not what the model saw"
            )
        mask: list[int] = self.loss_mask.tolist() if self.is_usable else [0] * len(self)
        return mask

    def full_logprobs(self) -> list[float]:
        """Log-probabilities of all tokens, 0.0 without loss; `InvalidSampleError` if a trained token has none."""
        if not self.is_usable:
            return [0.0] * len(self)
        return [0.0] * self.prompt_length + self.response_logprobs()

    def response_logprobs(self) -> list[float]:
        """Log-probabilities of the response, 0.0 without loss; `InvalidSampleError` if a trained token has none."""
        response = slice(self.prompt_length, None)
        mask = self.loss_mask[response]
        values = np.full(len(mask), np.nan) if self.logprobs is None else self.logprobs[response]
        if np.isnan(values[mask == 1]).any():  # 0.0 in its place would say that the token was certain
            raise InvalidSampleError(no_logprob(self))
        filled = [0.0] * len(values)  # no object for each token: most are results of tools
        for start, end in mask_runs(mask):
            filled[start:end] = values[start:end].tolist()
        return filled

    def truncated(self, max_tokens: int) -> TrainingSample:
        """The sample cut to its first `max_tokens` tokens, all arrays together; itself when it is not longer.

        A cut sample of an answer ended with `max_tokens_reached` and finish reason `length`: what follows the cut, a
        tool call's second half perhaps, is gone.

        A cut inside an image moves to its start: no model can be fed half an image.

        Raises:
            ValueError: The cut is inside the prompt.
        """
        if len(self) <= max_tokens:
            return self
        for image in self.media:
            if image.offset < max_tokens < image.offset + image.length:
                max_tokens = image.offset
        count = len(self)
        if max_tokens < self.prompt_length:
            raise ValueError(f"cannot cut to {max_tokens} tokens: the prompt alone has {self.prompt_length}")
        spans = tuple(
            replace(span, end=min(span.end, max_tokens)) for span in self.weight_versions if span.start < max_tokens
        )
        row = len(self.routed_experts) // (count - 1) if self.routed_experts is not None and count > 1 else 0
        is_whole = self.end.outcome is Outcome.POLICY and not self.end.is_limit
        held = {name: values for name in PER_TOKEN if (values := getattr(self, name)) is not None}
        return replace(
            self,
            **{name: values[:max_tokens] for name, values in held.items()},
            weight_versions=spans,
            # The last token was never fed, so there is one row less than tokens.
            routed_experts=None if self.routed_experts is None else self.routed_experts[: row * max(max_tokens - 1, 0)],
            sampling_mask=None if self.sampling_mask is None else self.sampling_mask.part(0, max_tokens),
            media=tuple(image for image in self.media if image.offset < max_tokens),
            end=End(TerminationReason.MAX_TOKENS_REACHED) if is_whole else self.end,
            finish_reason="length",
        )

    def version_numbers(self, version_of: Callable[[str], int] = int) -> NDArray[np.int64]:
        """The number of the weight version of each token, int64[tokens]; -1 where none is known.

        Args:
            version_of: Makes a number, from 0, of a weight version.

        Raises:
            InvalidSampleError: A version is not a number, or a trained token has none.
        """
        versions = np.full(len(self), -1, dtype=np.int64)
        for span in self.weight_versions:
            if span.version is None:
                continue
            try:
                versions[span.start : span.end] = int(version_of(span.version))
            except (TypeError, ValueError, LookupError, OverflowError) as error:
                raise InvalidSampleError(
                    f"weight versions are numbers here, and one is {span.version!r}: publish weights under a number, "
                    "or give version_of= to make one of it"
                ) from error
        # The age of a token decides about it: one without a version would count as sampled by the oldest weights.
        if (missing := (self.loss_mask == 1) & (versions < 0)).any():
            raise InvalidSampleError(f"token {_first(missing)} is trained and has no weight version")
        return versions

    def masked(self, *, min_version: int, version_of: Callable[[str], int] = int) -> TrainingSample:
        """The sample without loss on tokens that older weights sampled; itself where there are none.

        `masked_share` tells how much that was. A sample that is masked whole still counts in its group's statistics.
        The rewards of masked turns count no more: compute `turn_advantages` first.

        Args:
            min_version: The oldest version that is trained.
            version_of: Makes a number, from 0, of a weight version.

        Raises:
            InvalidSampleError: A version is not a number, or a trained token has none.
        """
        if not self.is_usable:
            return self
        is_fresh = self.version_numbers(version_of) >= min_version
        elsewhere = self.trained_elsewhere
        stale = self.trained_tokens - int((self.loss_mask * is_fresh).sum())
        if not stale and (elsewhere is None or is_fresh[elsewhere == 1].all()):
            return self
        return replace(
            self,
            loss_mask=self.loss_mask * is_fresh,
            # Where this path is exported alone, it trains these too.
            trained_elsewhere=None if elsewhere is None else elsewhere * is_fresh,
            metadata={**self.metadata, MASKED_TOKENS: self.metadata.get(MASKED_TOKENS, 0) + stale},
        )

    def validate(self, *, logprobs_required: bool = False) -> TrainingSample:
        """Check the sample and return it; `InvalidSampleError` names the first contradiction.

        With `logprobs_required` every trained token must have a log-probability.
        """
        for problem in sample_problems(self, logprobs_required=logprobs_required):
            raise InvalidSampleError(problem)
        return self


PER_TOKEN: Mapping[str, Any] = {
    "token_ids": np.int32,
    "loss_mask": np.uint8,
    "trained_elsewhere": np.uint8,
    "logprobs": np.float64,
    "token_rewards": np.float64,
    "teacher_logprobs": np.float64,
    "teacher_top_ids": np.int32,
    "teacher_top_logprobs": np.float32,
}
"""Arrays with a value, or a row, for each token, and their types."""


def sample_problems(sample: TrainingSample, *, logprobs_required: bool) -> Iterator[str]:
    """The contradictions of a sample, in order. Ask for the next only if the last can be tolerated."""
    count = len(sample.token_ids)
    for name, dtype in PER_TOKEN.items():
        values = getattr(sample, name)
        if values is None and name not in ("token_ids", "loss_mask"):
            continue
        axes = "two dimensions" if "_top_" in name else "one dimension"
        if getattr(values, "dtype", None) != dtype or values.ndim != (2 if "_top_" in name else 1):
            got = f"{values.dtype} of {values.shape}" if isinstance(values, np.ndarray) else repr(type(values).__name__)
            yield f"{name} must be {np.dtype(dtype)} in {axes}, got {got}"
        if len(values) != count:
            yield f"{name} has {len(values)} values for {count} tokens"
    if count and sample.token_ids.min() < 0:
        yield f"token_ids holds {int(sample.token_ids.min())}, expected ids from 0"
    if not 0 <= sample.prompt_length <= count:
        yield f"prompt_length is {sample.prompt_length} of {count} tokens"
    trained = sample.loss_mask == 1
    if (sample.loss_mask > 1).any():
        yield "loss_mask must hold 0 and 1 only"
    if trained[: sample.prompt_length].any():
        yield f"loss_mask is 1 inside the prompt, at token {_first(trained)}"
    if sample.trained_elsewhere is not None and (sample.loss_mask & sample.trained_elsewhere).any():
        yield f"token {_first(sample.loss_mask & sample.trained_elsewhere)} is trained here and elsewhere"
    if sample.logprobs is not None:
        values = sample.logprobs[trained]
        if (values > 0).any() or np.isneginf(values).any():  # a token that was drawn had a probability
            yield f"a trained token has log-probability {float(values.max())} or {float(values.min())}"
    if logprobs_required and (trained if sample.logprobs is None else np.isnan(sample.logprobs[trained])).any():
        yield no_logprob(sample)
    if sample.token_rewards is not None and not np.isfinite(sample.token_rewards).all():
        where = _first(~np.isfinite(sample.token_rewards))
        yield f"token_rewards holds {float(sample.token_rewards[where])} at token {where}; no reward there is 0.0"
    weight: Any = sample.loss_weight
    if isinstance(weight, bool) or not (isinstance(weight, int | float | np.number) and 0 <= weight < math.inf):
        yield f"loss_weight is {weight!r}, expected a finite number from 0; 1.0 is no weight"
    reward: Any = sample.reward
    is_number = isinstance(reward, int | float | np.integer | np.floating) and not isinstance(reward, bool)
    if reward is not None and not (is_number and np.isfinite(reward)):
        yield f"reward is {reward!r}, expected a finite number; a missing reward is None"
    if reward is not None and sample.end.outcome.is_lost:  # what was lost says nothing about the policy
        yield f"a lost rollout has reward {reward!r}; it must have none"
    end = sample.prompt_length  # nothing was sampled before
    for span in sample.weight_versions:
        if not end <= span.start <= span.end <= count:
            yield f"weight version span [{span.start}, {span.end}) must lie between {end} and {count}"
        end = span.end
    if sample.routed_experts is not None:
        size, rows = len(sample.routed_experts), max(count - 1, 0)  # the last token was never fed
        whole = 4 * rows * math.prod(sample.experts_shape or (1, 1))
        if size != whole if sample.experts_shape else size % (whole or 1) or (size and not whole):
            yield f"routed_experts must be {rows} rows of int32{list(sample.experts_shape or ())}, got {size} bytes"
    if (mask := sample.sampling_mask) is not None:
        if len(mask.offsets) != count + 1:
            yield f"sampling_mask.offsets has {len(mask.offsets)} values, expected {count + 1} for {count} tokens"
        sizes = np.diff(mask.offsets)
        if mask.offsets[0] != 0 or (sizes < 0).any() or mask.offsets[-1] != len(mask.ids):
            yield f"sampling_mask.offsets must rise from 0 to {len(mask.ids)}, got {mask.offsets.tolist()!r:.80}"
        if (empty := (sizes == 0) & trained).any():
            yield f"token {_first(empty)} is trained and has an empty sampling mask"


def no_logprob(sample: TrainingSample) -> str:
    """The sentence about a trained token without log-probability."""
    trained = sample.loss_mask == 1
    where = _first(trained if sample.logprobs is None else np.isnan(sample.logprobs) & trained)
    return (
        f"token {where} is trained and has no log-probability: sample with return_logprob=True, or leave the rollout "
        f"out (rollout {sample.rollout_id!r}, agent {sample.agent_name!r})"
    )


def _first(values: Any) -> int:
    return int(np.argmax(values != 0))


# ---- Parquet files (extra `train`) -----------------------------------------------------------------------------------


FORMAT_VERSION = "2"
"""Version of the columns, kept in the file's metadata."""

_VERSION_KEY = b"strands_env.training.format"


def save_samples(samples: Iterable[TrainingSample], path: str | Path) -> int:
    """Write samples to a Parquet file, replaced if it exists, and return their number.

    The file appears under its name only when it is complete.

    Raises:
        ImportError: pyarrow is not installed.
        TypeError: An element is not a TrainingSample, or its metadata cannot be written as JSON.
    """
    pa, parquet = arrow()
    samples = list(samples)
    for place, sample in enumerate(samples):
        if not isinstance(sample, TrainingSample):
            raise TypeError(
                f"samples[{place}] is {sample!r:.80}, expected a TrainingSample: samples_from_step() makes them"
            )
    rows = [_to_row(sample) for sample in samples]
    table = pa.Table.from_pylist(rows, schema=_schema(pa))
    with replacing(Path(path)) as partial:
        parquet.write_table(table, partial, compression="zstd")
    return len(rows)


def load_samples(path: str | Path) -> list[TrainingSample]:
    """Read a file of `save_samples`.

    Raises:
        ImportError: pyarrow is not installed.
        FileNotFoundError: The file does not exist.
        ValueError: `save_samples` of this version did not write the file.
    """
    pa, parquet = arrow()
    try:
        table = parquet.read_table(path)
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"{str(path)!r} is not a complete Parquet file, expected one that save_samples() wrote"
        ) from error
    version = (table.schema.metadata or {}).get(_VERSION_KEY, b"").decode()
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{str(path)!r} has format {version or 'unknown'!r}, expected {FORMAT_VERSION!r}: a file of save_samples()"
        )
    return [_from_row(row) for row in table.to_pylist()]


def _schema(pa: Any) -> Any:
    span = pa.struct([("version", pa.string()), ("start", pa.int64()), ("end", pa.int64())])
    texts = [("data", pa.string()), ("digest", pa.string()), ("processor", pa.string())]
    places = [("grid", pa.list_(pa.int64())), ("offset", pa.int64()), ("length", pa.int64())]

    def column(name: str, dtype: Any) -> Any:
        values = pa.list_(pa.from_numpy_dtype(np.dtype(dtype)))
        return pa.list_(values) if "_top_" in name else values

    fields = [
        *((name, column(name, dtype)) for name, dtype in PER_TOKEN.items()),
        ("prompt_length", pa.int64()),
        ("weight_versions", pa.list_(span)),
        ("routed_experts", pa.large_binary()),
        ("experts_shape", pa.list_(pa.int64())),
        ("sampling_mask_ids", pa.list_(pa.int32())),
        ("sampling_mask_offsets", pa.list_(pa.int64())),
        ("media", pa.list_(pa.struct([*texts, *places]))),
        ("reward", pa.float64()),
        ("loss_weight", pa.float64()),
        *((name, pa.string()) for name in ("group_id", "rollout_id", "agent_name", "agent_id", "role", "parent")),
        *((name, pa.string()) for name in ("termination_reason", "outcome", "error")),
        ("finish_reason", pa.string()),
        ("advantage", pa.float64()),
        ("metadata", pa.string()),
    ]
    return pa.schema(fields, metadata={_VERSION_KEY: FORMAT_VERSION.encode()})


def _to_row(sample: TrainingSample) -> dict[str, Any]:
    row = {name: getattr(sample, name) for name in sample.__dataclass_fields__}
    mask, end = row.pop("sampling_mask"), row.pop("end")
    return row | {
        # Arrow takes an array of one dimension as it is, and rows of a matrix one by one.
        **{name: list(row[name]) for name in PER_TOKEN if np.ndim(row[name]) > 1},
        "weight_versions": [asdict(span) for span in sample.weight_versions],
        "sampling_mask_ids": None if mask is None else mask.ids,
        "sampling_mask_offsets": None if mask is None else mask.offsets,
        "media": [asdict(medium) for medium in sample.media],
        "termination_reason": end.reason,
        "outcome": end.outcome,
        "error": None if end.error is None else json.dumps(asdict(end.error)),
        "advantage": sample.metadata.get("advantage"),  # for other readers; `load_samples` has it in the metadata
        "metadata": json.dumps(dict(sample.metadata)),
    }


def _from_row(row: dict[str, Any]) -> TrainingSample:
    ids, offsets = row.pop("sampling_mask_ids"), row.pop("sampling_mask_offsets")
    mask = None
    if offsets is not None:
        mask = SamplingMask(ids=np.array(ids, dtype=np.int32), offsets=np.array(offsets, dtype=np.int64))
    reason, outcome, error = (row.pop(name) for name in ("termination_reason", "outcome", "error"))
    fields = error and json.loads(error)
    record = None if error is None else ErrorRecord(**{**fields, "where": Phase(fields["where"])})
    del row["advantage"]  # in the metadata, too
    media = [{**each, "grid": each["grid"] and tuple(each["grid"])} for each in row["media"]]
    arrays = {name: np.array(row[name], dtype=dtype) for name, dtype in PER_TOKEN.items() if row[name] is not None}
    return TrainingSample(
        **row
        | arrays
        | {
            "weight_versions": tuple(WeightVersionSpan(**span) for span in row["weight_versions"]),
            "experts_shape": row["experts_shape"] and tuple(row["experts_shape"]),
            "sampling_mask": mask,
            "media": tuple(PlacedMedium(**each) for each in media),
            "role": Role(row["role"]),
            "end": End(TerminationReason(reason), Outcome(outcome), record),
            "metadata": json.loads(row["metadata"]),
        }
    )
