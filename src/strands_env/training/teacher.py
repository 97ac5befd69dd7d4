"""On-policy distillation: another model's log-probabilities of the tokens that were sampled."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strands_env.training.sample import TEACHER_ERROR, TrainingSample
from strands_sglang import get_tokenizer
from strands_sglang.backends import Backend, ScoredPrompt, as_backend
from strands_sglang.exceptions import BackendAnswerError
from strands_sglang.trajectory.tokens import common_prefix

logger = logging.getLogger(__name__)


async def score_with_teacher(
    samples: Sequence[TrainingSample],
    teacher: Any,
    *,
    tokenizer: Any,
    teacher_tokenizer: Any = None,
    top_k: int = 0,
    concurrency: int = 64,
) -> list[TrainingSample]:
    """The samples with a teacher's log-probabilities of every token from the first sampled one on, in their order.

    A prefix that samples share, of a forest or of a group, is scored once. The teacher computes the prompt, too, and
    scores none of it. Its log-probabilities are those of temperature 1, regardless of the samples' own.

    ```python
    teacher = SGLangClient("http://teacher:30000")
    samples = await score_with_teacher(samples, teacher, tokenizer=tokenizer, top_k=8)
    ```

    Args:
        teacher: A backend that scores prompts: `SGLangClient`, `VLLMClient`, `EmbeddedEngine`, one of yours.
        tokenizer: Tokenizer of the model that sampled.
        teacher_tokenizer: Tokenizer of the teacher, which must have the same vocabulary. If None, the engine's own, or
            the one that the server names.
        top_k: Number of the teacher's most likely tokens to keep at each position.
        concurrency: Requests at a time.

    Returns:
        Copies with `teacher_logprobs`, and with `teacher_top_ids` and `teacher_top_logprobs` where `top_k` is not 0. A
        sample without trained tokens comes back as it is. So does one that the teacher failed on or answered with
        scores of other tokens, whose images it does not take or expands to other tokens, or too long for it: the
        reason is `metadata["teacher_error"]`. The tokens of images have no value.

    Raises:
        ValueError: The tokenizers differ, or the teacher's is not known.
        Exception: The teacher scored none of the samples: the failure of the first, mostly a `StrandsSGLangError`.
    """
    backend = as_backend(teacher)
    if teacher_tokenizer is None:
        teacher_tokenizer = await asyncio.to_thread(_tokenizer_of, teacher)
    await asyncio.to_thread(check_same_vocabulary, tokenizer, teacher_tokenizer)

    def order(place: int) -> tuple[bytes, list[str]]:
        # Bytes of big-endian ids sort as the ids do: a path stands beside those it shares most with.
        sample = samples[place]
        return sample.token_ids.astype(">i4").tobytes(), [image.digest for image in sample.media]

    trained = (place for place, each in enumerate(samples) if each.trained_tokens or each.trained_elsewhere is not None)
    places = sorted(trained, key=order)
    paths = [samples[place] for place in places]
    shared = [0, *(_common_length(one, other) for one, other in pairwise(paths))]
    limit = asyncio.Semaphore(concurrency)
    tasks: list[asyncio.Task[TrainingSample]] = []
    for number, path in enumerate(paths):
        owner = number - 1
        while owner > 0 and shared[owner] >= shared[number]:
            owner -= 1  # the first path through the prefix, which scores it and brings it into the teacher's cache
        wait = tasks[owner] if shared[number] else None
        tasks.append(asyncio.create_task(_score(backend, path, top_k, wait, shared[number], limit)))
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)  # a backend of one's own may raise anything
    failures = [each for each in outcomes if isinstance(each, BaseException)]
    if failures and len(failures) == len(outcomes):
        raise failures[0]
    scored = list(samples)
    for place, each in zip(places, outcomes, strict=True):
        if isinstance(each, BaseException):
            logger.warning("rollout=<%s>, error=<%s> | the teacher did not score it", samples[place].rollout_id, each)
            why = {TEACHER_ERROR: f"{type(each).__name__}: {each}"}
            scored[place] = replace(samples[place], metadata={**samples[place].metadata, **why})
        else:
            scored[place] = each
    return scored


def check_same_vocabulary(tokenizer: Any, other: Any) -> None:
    """`ValueError` unless every id is the same token in both: ids of one model mean nothing to another otherwise."""
    if tokenizer is not other:
        can_be_kept = isinstance(tokenizer, Hashable) and isinstance(other, Hashable)
        (_compare if can_be_kept else _compare.__wrapped__)(tokenizer, other)


@functools.lru_cache(maxsize=8)  # a training asks for every batch, and vocabularies are large
def _compare(tokenizer: Any, other: Any) -> None:
    own, theirs = tokenizer.get_vocab(), other.get_vocab()
    if own == theirs:
        return
    token = min((own.keys() | theirs.keys()), key=lambda each: (own.get(each) == theirs.get(each), str(each)))
    raise ValueError(
        f"the teacher's tokenizer is not that of the model that sampled: the token {token!r} is {own.get(token)} here "
        f"and {theirs.get(token)} there; choose a teacher with the same vocabulary"
    )


def _common_length(one: TrainingSample, other: TrainingSample) -> int:
    """Length of the common prefix; equal tokens of different images are not common."""
    length = common_prefix(one.token_ids, other.token_ids)
    images = zip(one.media, other.media, strict=False)
    return min([length, *(first.offset for first, second in images if first.digest != second.digest)])


async def _score(
    backend: Backend,
    path: TrainingSample,
    top_k: int,
    owner: asyncio.Task[TrainingSample] | None,
    shared: int,
    limit: asyncio.Semaphore,
) -> TrainingSample:
    """The path with its scores; those of the shared prefix are its owner's."""
    count, start = len(path), path.prompt_length
    arrays: dict[str, NDArray[Any]] = {"teacher_logprobs": np.full(count, np.nan)}
    if top_k:
        arrays["teacher_top_ids"] = np.full((count, top_k), -1, dtype=np.int32)
        arrays["teacher_top_logprobs"] = np.full((count, top_k), np.nan, dtype=np.float32)
    if owner is not None:
        await asyncio.wait({owner})  # its request brings the shared prefix into the teacher's cache
    if owner is not None and owner.exception() is None and (first := owner.result()).teacher_logprobs is not None:
        # Only up to the first gap: the rest is asked for in one request, which scores from a position on.
        missing = np.isnan(first.teacher_logprobs[start:shared])
        end = start + int(np.argmax(missing)) if missing.any() else max(start, shared)
        for name, values in arrays.items():
            values[start:end] = getattr(first, name)[start:end]
        start = end
    if start < count:
        async with limit:
            scores = await backend.score(path.token_ids, start=start, top_k=top_k, images=path.media)
        for problem in _problems(scores, path.token_ids[start:].tolist(), start, top_k):
            raise BackendAnswerError(problem)
        columns = (scores.logprobs, scores.top_ids, scores.top_logprobs)
        for values, column in zip(arrays.values(), columns, strict=False):
            values[start:] = np.array(column).reshape(values[start:].shape)
    return replace(path, **arrays)  # type: ignore[arg-type]


def _problems(scores: Any, expected: list[int], start: int, top_k: int) -> Iterator[str]:
    """The reasons why the answer of a backend, whose `score` may be its own, is not the scores of these tokens.

    NaN, no log-probability, is fine; an infinite one would make every loss and advantage of its batch infinite.
    """
    if not isinstance(scores, ScoredPrompt):
        yield f"score() must be a ScoredPrompt, got {type(scores).__name__}"
    if list(scores.ids) != expected:
        yield (
            f"scores must be of the {len(expected)} tokens from position {start} on, {expected!r:.100}, "
            f"got {len(scores.ids)}: {list(scores.ids)!r:.100}"
        )
    if top_k and len(scores.top_ids or ()) != top_k * len(expected):
        yield f"scores must have the {top_k} most likely tokens of each position"
    if np.isinf(scores.logprobs).any() or np.isinf(scores.top_logprobs or ()).any():
        yield "log-probabilities must be finite or NaN for none, got an infinite one"


def _tokenizer_of(teacher: Any) -> Any:
    """The tokenizer of an engine, or the one that a server names."""
    if (own := getattr(teacher, "tokenizer", None)) is not None:
        return own
    name = teacher.served_tokenizer() if hasattr(teacher, "served_tokenizer") else None
    try:
        if name is not None:
            return get_tokenizer(name)
        reason = "it names none"
    except Exception as error:  # errors of a tokenizer's files or of their hub
        reason = f"it names {name!r}, which cannot be loaded ({type(error).__name__}: {error})"
    raise ValueError(f"the tokenizer of the teacher is not known: {reason}; give teacher_tokenizer=")
