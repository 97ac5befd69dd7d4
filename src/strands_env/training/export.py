"""Helpers shared by the trainer adapters."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strands_env.core.termination import UNKNOWN, End
from strands_env.training.sample import TEACHER_ERROR, InvalidSampleError, TrainingSample
from strands_sglang.trajectory.images import ProcessorExpander

WRITTEN_FOR = {
    "areal": "1.0.4",
    "prime-rl": "559b44772 (0.8.0)",
    "skyrl": "0.4.0",
    "slime": "624b824a8 (0.3.1)",
    "tinker": "0.38.0",
    "trl": "1.16.0",
    "verifiers": "0.4.0",
    "verl": "0.9.1",
}
"""The version of each trainer that its adapter was written for and is tested with."""


class TrainerVersionError(RuntimeError):
    """The installed trainer does not take what its adapter makes, and is not the version it was written for."""


@contextmanager
def written_for(package: str) -> Iterator[None]:
    """Names the version an adapter was written for in the error of a trainer whose interface changed.

    Raises:
        TrainerVersionError: Another version is installed, and the block failed on its interface.
        ImportError: The package is not installed. With the right version, the block's own error passes.
    """
    try:
        yield
    except (ImportError, AttributeError, TypeError, ValueError, LookupError) as error:
        if (installed := _version_of(package)) is None and isinstance(error, ImportError):
            message = f"this adapter needs the package {package}: pip install {package}=={WRITTEN_FOR[package]}"
            raise ImportError(message) from error
        if installed in (None, WRITTEN_FOR[package]):
            raise
        raise TrainerVersionError(
            f"{package} {installed} does not take what this adapter makes ({type(error).__name__}: {error}); it was "
            f"written for {package} {WRITTEN_FOR[package]}"
        ) from error


def check_fields(package: str, module: str, name: str, fields: Iterable[str]) -> None:
    """`TrainerVersionError` if a trainer's class, once the trainer has loaded it, lacks fields that an adapter sets."""
    kind = getattr(sys.modules.get(module), name, None)
    for attribute in ("__struct_fields__", "model_fields", "__annotations__"):  # msgspec, pydantic, a TypedDict
        if fields_there := getattr(kind, attribute, None):
            break
    else:
        return
    if unknown := sorted(set(fields) - set(fields_there)):
        raise TrainerVersionError(
            f"{package} {_version_of(package) or 'as loaded'} has no {unknown} in {name}; this adapter was written for "
            f"{package} {WRITTEN_FOR[package]}"
        )


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def one_path(samples: Sequence[TrainingSample]) -> TrainingSample:
    """The path that represents a rollout for a trainer that takes one: most trained tokens were sampled on it.

    Among equals the later one. It trains all of them, including those that another path trains where every path is
    exported; what was sampled only on other paths is not trained.

    Raises:
        InvalidSampleError: `samples` is empty.
    """
    if not samples:
        raise InvalidSampleError("the rollout has no sample: nothing was sampled, or nothing that is to be trained")
    paths = [with_all_sampled_tokens(sample) for sample in samples]
    return max(enumerate(paths), key=lambda pair: (pair[1].trained_tokens, pair[0]))[1]


def with_all_sampled_tokens(sample: TrainingSample) -> TrainingSample:
    """The sample with loss on the tokens that other samples of its rollout train. For a path that is exported alone."""
    if sample.trained_elsewhere is None:
        return sample
    return replace(sample, loss_mask=sample.loss_mask | sample.trained_elsewhere, trained_elsewhere=None)


def one_row(
    samples: Sequence[TrainingSample],
    *,
    end: End = UNKNOWN,
    experts_shape: tuple[int, int] | None = None,
) -> TrainingSample:
    """`one_path`, or a row without loss where the rollout has no sampled token and the trainer must have a row.

    Args:
        end: The end of a rollout without samples.
        experts_shape: `(layers, top_k)` where every row must have routed experts. A row that may not be trained gets
            placeholders.

    Raises:
        InvalidSampleError: A row that may be trained has no routed experts.
    """
    row = one_path(samples) if samples else _empty(end)
    if not row.response_length:
        row = _empty(row.end if samples else end, row.reward)
    if experts_shape is None or (row.routed_experts is not None and row.experts_shape is not None):
        return row
    if row.is_usable:
        row.required_experts()
    layers, top_k = experts_shape
    distinct = np.arange(top_k, dtype="<i4") if top_k > 1 else np.ones(1, dtype="<i4")  # slime refuses a layer of zeros
    experts = np.broadcast_to(distinct, (len(row) - 1, layers, top_k)).tobytes()
    return replace(row, routed_experts=experts, experts_shape=experts_shape)


def status_of(end: End) -> str:
    """The word for an end that trainers share: `failed`, `truncated` or `completed`."""
    return "failed" if end.outcome.is_lost else "truncated" if end.is_limit else "completed"


def _empty(end: End, reward: float | None = None) -> TrainingSample:
    """A sample with one token of prompt, one of response, and no loss. Id 0 is a token of every model."""
    ids, mask = np.zeros(2, dtype=np.int32), np.zeros(2, dtype=np.uint8)
    return TrainingSample(token_ids=ids, prompt_length=1, loss_mask=mask, end=end, reward=reward)


def image_inputs(sample: TrainingSample, expander: ProcessorExpander) -> dict[str, NDArray[Any]]:
    """The inputs of a vision-language model besides the tokens of a sample: its images, processed again.

    Args:
        expander: `strands_sglang.trajectory.images.image_expander(model)` of the model that is trained.

    Returns:
        `pixel_values` float32[patches, values] and `image_grid_thw` int64[images, 3], all images one after the other.

    Raises:
        InvalidSampleError: The sample was sampled under another processor, an image gives another grid now, or the
            model sampled a token that stands for an image.
    """
    image_tokens = int((sample.token_ids == expander.placeholder_id).sum())
    if image_tokens != (expected := sum(medium.length for medium in sample.media)):
        raise InvalidSampleError(
            f"rollout {sample.rollout_id!r} has {image_tokens} image tokens, and its images account for {expected}: "
            "the model sampled the others, which no trainer can feed"
        )
    processed = []
    for medium in sample.media:
        if medium.processor != expander.fingerprint:
            raise InvalidSampleError(
                f"rollout {sample.rollout_id!r} was sampled under the image processor {medium.processor}, this one is "
                f"{expander.fingerprint}: its images would get other tokens"
            )
        inputs = expander.pixels(medium.image)
        if (grid := tuple(inputs["image_grid_thw"][0].tolist())) != medium.grid:
            raise InvalidSampleError(f"an image has the grid {grid} now, and had {medium.grid} when it was sampled")
        processed.append(inputs)
    return {
        "pixel_values": np.concatenate([each["pixel_values"] for each in processed]),
        "image_grid_thw": np.concatenate([each["image_grid_thw"] for each in processed]).astype(np.int64),
    }


def image_tensors(sample: TrainingSample, expander: ProcessorExpander) -> dict[str, Any]:
    """`image_inputs` as torch tensors, with the same errors."""
    import torch

    return {name: torch.from_numpy(values) for name, values in image_inputs(sample, expander).items()}


def small_experts(sample: TrainingSample, *types: type[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """Routed experts in the first of these types that holds them; `InvalidSampleError` where there are none."""
    experts = sample.required_experts()
    highest = int(experts.max(initial=0))
    return experts.astype(next(each for each in types if highest <= np.iinfo(each).max))


def token_level_rewards(sample: TrainingSample) -> list[float]:
    """Rewards over the response: those of turns and spans, and the rollout's on the last trained token."""
    rewards = np.zeros(sample.response_length)
    if not sample.is_usable:
        return [0.0] * sample.response_length
    if sample.token_rewards is not None:
        # Those of tokens that another sample trains are there too.
        mask = sample.loss_mask[sample.prompt_length :]
        rewards += np.nan_to_num(sample.token_rewards[sample.prompt_length :]) * mask
    trained = np.flatnonzero(sample.loss_mask[sample.prompt_length :])
    rewards[trained[-1]] += sample.reward or 0.0  # on a token that is trained, or nothing would learn from it
    listed: list[float] = rewards.tolist()
    return listed


def token_advantages(sample: TrainingSample, advantage: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """An advantage for each token, float64[tokens]; 0.0 where the sample trains nothing.

    Raises:
        ValueError: `advantage` is neither a number nor one for each token.
    """
    values = np.asarray(advantage, dtype=np.float64)
    if values.shape not in ((), (len(sample),)):
        raise ValueError(
            f"advantage has shape {values.shape}, expected a number, or one for each of {len(sample)} tokens"
        )
    return np.where(sample.loss_mask if sample.is_usable else 0, values, 0.0)


def reference_logprobs(sample: TrainingSample) -> list[float]:
    """The teacher's log-probabilities of all tokens, 0.0 for tokens without one, none of which is trained.

    Raises:
        InvalidSampleError: The sample may be trained, and the teacher did not score all of its trained tokens.
    """
    if not sample.is_usable:
        return [0.0] * len(sample)
    values = sample.teacher_logprobs
    if values is None or np.isnan(values[sample.loss_mask.astype(bool)]).any():
        why = sample.metadata.get(TEACHER_ERROR, "score it with score_with_teacher(), or leave the rollout out")
        raise InvalidSampleError(f"rollout {sample.rollout_id!r} has no log-probabilities of the teacher: {why}")
    listed: list[float] = np.nan_to_num(values).tolist()
    return listed
