"""A rollout in progress: its model calls under slime's control, its abort, and its suspension between two calls."""

from __future__ import annotations

import asyncio
import atexit
import base64
import concurrent.futures
import contextlib
import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strands_env.core import StepResult
from strands_env.core.tokens import common_prefix
from strands_env.training.sample import TrainingSample
from strands_env.training.slime.call import Call, HeldError, RolloutControl
from strands_sglang.backends import BackendWrapper, GenerateAnswer, GenerateRequest
from strands_sglang.trajectory import FinishType, SamplingMask

logger = logging.getLogger(__name__)


POLL_SECONDS = 0.3
"""Interval at which each running rollout reads slime's flag, which nothing else announces."""


# ---- its life -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class Episode:
    """A rollout in progress.

    Attributes:
        task: Runs `Environment.rollout`.
        config_error: The reason why every rollout of this configuration fails, if one was found.
    """

    task: asyncio.Task[StepResult]
    control: RolloutControl
    config_error: Exception | None = None

    def complete(self, source: TrainingSample, call: Call) -> TrainingSample:
        """A sample with the top-p data that the trainer needs, and without loss on off-policy tokens if slime asks."""
        if not call.needs.top_p:
            source = replace(source, sampling_mask=None)
        elif source.sampling_mask is None and self.control.records:
            source = replace(source, sampling_mask=sampling_mask_of_path(source.token_ids, self.control.records))
        if call.partial and getattr(call.args, "mask_offpolicy_in_partial_rollout", False):
            mask = source.loss_mask.copy()
            mask[: self._off_policy(source)] = 0
            source = replace(source, loss_mask=mask)
        return source

    def _off_policy(self, source: TrainingSample) -> int:
        """Tokens up to the last that is older than a resumption, or that other weights sampled than the last ones.

        Weights change under a rollout where slime does not stop it for that (fully asynchronous).
        """
        held = max((common_prefix(source.token_ids, ids) for ids in self.control.held), default=0)
        # A span without a version says nothing of its age, and is left to the resumptions.
        spans = [span for span in source.weight_versions if span.version is not None]
        older = max((span.end for span in spans if span.version != spans[-1].version), default=0)
        return max(held, older)

    @property
    def has_failed(self) -> bool:
        """It has ended in failure."""
        if not self.task.done():
            return False
        if self.task.cancelled() or self.task.exception() is not None:
            return True
        return self.task.result().termination_reason.is_failure

    async def run(self) -> StepResult | None:
        """Wait for the end; None when the rollout was suspended or stopped because slime is stopping.

        Cancelling this call ends the rollout, its cleanup included.
        """
        if self.control.suspensions:  # whatever is sampled by now is older than this call
            self.control.held.extend(
                list(path.token_ids) for model in self.control.models for path in model.trajectories
            )
        try:
            while not self.task.done():
                if self.control.is_aborted():
                    if self.control.suspends:
                        self.control.paused = True  # until slime asks again, whatever its flag says until then
                        self.control.suspensions += 1
                    else:
                        await self.cancel()
                    return None
                self.control.go_on()
                await asyncio.wait({self.task}, timeout=POLL_SECONDS)
        except asyncio.CancelledError:
            await self.cancel()
            raise
        return self.task.result()

    async def cancel(self) -> None:
        """End the rollout; its environment cleans up."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


# ---- its model calls ------------------------------------------------------------------------------------------------


_SPECULATIVE = ("spec_accept_token_num", "spec_draft_token_num", "spec_verify_ct")
"""Fields of SGLang's `meta_info` that are summed up over the answers of a rollout."""


class RolloutBackend(BackendWrapper):
    """The backend of one rollout: the client that all rollouts share, under slime's control.

    Args:
        expand: Expands the images of a prompt, given its ids and their data URLs; for a vision model.
    """

    def __init__(
        self,
        inner: Any,
        control: RolloutControl,
        expand: Callable[[Sequence[int], Sequence[str]], Sequence[int]] | None = None,
    ) -> None:
        super().__init__(inner)
        self._control = control
        self._expand = expand

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        """One model call, unless slime is stopping or the rollout has sampled what it may.

        Raises:
            BackendAbortedError: slime is stopping.
            TokenBudgetReachedError: All paths together have sampled what a rollout may.
        """
        while True:
            if self._control.is_held():
                await self._control.wait(self._prompt_as_seen(request))
            try:
                return await self._ask(request)
            except HeldError:  # stopped before a token came: it starts over after the resumption
                continue

    def _prompt_as_seen(self, request: GenerateRequest) -> Sequence[int]:
        """The prompt as the model sees it and trajectories hold it, images expanded."""
        ids = request.prompt.tolist()
        return ids if not request.images or self._expand is None else self._expand(ids, request.images)

    async def _ask(self, request: GenerateRequest) -> GenerateAnswer:
        control = self._control
        left = control.left_to_sample()  # of all paths together; each path has its own bound in the model
        if left is not None and left < (request.max_new_tokens or sys.maxsize):
            request = request.limited_to(left)
        request = replace(request, before_attempt=control.check)
        resumptions = control.resumptions
        trace: Any = sys.modules.get(control.trainer.traces or "")  # the trainer has imported it where it runs
        answer = await (self.inner.ask(request) if trace is None else self._ask_in_span(trace, request))
        meta = control.trainer.meta_of(answer.payload)
        if not answer.output_ids and answer.finish.type is FinishType.ABORT:
            control.check()  # stopped before its first token: asked again later, and no abort to the model
        control.sampled += len(answer.output_ids)
        counters = control.counters
        counters["prompt_tokens"] += answer.prompt_tokens or 0
        counters["cached_tokens"] += answer.cached_tokens or 0
        counters["completion_tokens"] += len(answer.output_ids)
        if "spec_verify_ct" in meta:
            counters.update({name: int(meta.get(name) or 0) for name in _SPECULATIVE})
        if resumptions != control.resumptions:  # begun before the suspension, ended after it
            control.held.append([*self._prompt_as_seen(request), *answer.output_ids])
        if control.records is not None and (mask := sampling_mask_of(meta, len(answer.output_ids))) is not None:
            control.records.append(
                CallRecord(prompt=self._prompt_as_seen(request), output=answer.output_ids, sampling_mask=mask)
            )
        return answer

    async def _ask_in_span(self, trace: Any, request: GenerateRequest) -> GenerateAnswer:
        """A call in a span of slime's trace of the sample, from which slime makes its `perf/*` metrics of requests."""
        sample, trainer = self._control.sample, self._control.trainer
        with trace.trace_span(sample, trainer.span, attrs={"max_new_tokens": request.max_new_tokens}) as span:
            answer = await self.inner.ask(request)
            if hasattr(span, "update"):  # slime yields its target instead of a span where it cannot trace
                span.update(getattr(trace, trainer.attributes)(trainer.meta_of(answer.payload)))
        return answer


_TOP_P_IDS = ("top_p_token_ids", "top_p_kept_token_ids")
_TOP_P_OFFSETS = ("top_p_token_offsets", "top_p_kept_token_offsets")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One answer's top-p survivors, beside the ids of the request as the model saw them and the sampled ids."""

    prompt: Sequence[int]
    output: Sequence[int]
    sampling_mask: SamplingMask


def sampling_mask_of(meta: Mapping[str, Any], count: int) -> SamplingMask | None:
    """The top-p data of slime's patched server: int32 arrays, as lists or base64; None where the answer has none.

    Raises:
        ValueError: The data does not fit the number of sampled tokens.
    """
    ids, offsets = _int32(meta, _TOP_P_IDS), _int32(meta, _TOP_P_OFFSETS)
    if ids is None or offsets is None or not (count or len(offsets)):
        return None  # without tokens there may be no offsets
    if len(offsets) != count + 1 or int(offsets[-1]) != len(ids):
        raise ValueError(
            f"top-p data has {len(offsets)} offsets up to {int(offsets[-1]) if len(offsets) else None} and {len(ids)} "
            f"ids for {count} sampled tokens"
        )
    return SamplingMask(ids=ids, offsets=offsets.astype(np.int64))


def _int32(meta: Mapping[str, Any], names: Sequence[str]) -> NDArray[np.int32] | None:
    for name in names:
        value = meta.get(name)
        if value is None:
            continue
        if isinstance(value, str):
            return np.frombuffer(base64.b64decode(value, validate=True), dtype="<i4").astype(np.int32)
        return np.array(value, dtype=np.int32)
    return None


def sampling_mask_of_path(token_ids: NDArray[np.int32], records: Sequence[CallRecord]) -> SamplingMask | None:
    """Top-p data of a path, out of the calls that made it; None where no call belongs to it.

    A position that several calls sampled alike (a retry of one prompt) has the set of the longest of them.
    """
    sets: dict[int, NDArray[np.int32]] = {}
    # Longest last, so that its sets win: an aborted call is a prefix of the one that resumed it.
    for record in sorted(records, key=lambda record: len(record.output)):
        start, end = len(record.prompt), len(record.prompt) + len(record.output)
        on_path = np.array_equal(token_ids[:start], record.prompt) and np.array_equal(
            token_ids[start:end], record.output
        )
        if on_path:
            mask = record.sampling_mask
            sets.update(zip(range(start, end), np.split(mask.ids, mask.offsets[1:-1]), strict=False))
    if not sets:
        return None
    none = np.zeros(0, dtype=np.int32)
    parts = [sets.get(position, none) for position in range(len(token_ids))]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return SamplingMask(ids=np.concatenate(parts).astype(np.int32), offsets=offsets)


# ---- rollouts that wait to be resumed -------------------------------------------------------------------------------


EXIT_SECONDS = 30.0
"""Longest wait at exit for their cleanups."""


class SuspendedEpisodes:
    """Rollouts that wait, by the key of their sample, the longest waiting first."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Any, tuple[Episode, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, key: Any, episode: Episode) -> None:
        """Keep a rollout; another one of that key is ended."""
        if earlier := self._waiting.pop(key, None):
            _end(earlier[0])
        self._waiting[key] = (episode, time.monotonic())

    def take(self, key: Any) -> Episode | None:
        """Remove and return the rollout of that key; one of another event loop is ended there, and None returned."""
        episode, _ = self._waiting.pop(key, (None, 0.0))
        if episode is None or episode.task.get_loop() is asyncio.get_running_loop():
            return episode
        _end(episode)
        return None

    def expire(self, seconds: float) -> None:
        """End what has waited for longer; 0 for no limit."""
        while seconds and self._waiting and time.monotonic() - next(iter(self._waiting.values()))[1] > seconds:
            key, (episode, _) = self._waiting.popitem(last=False)
            logger.warning(
                "sample=<%s>, seconds=<%g> | suspended rollout ended: strands_env_max_suspension", key, seconds
            )
            _end(episode)

    async def close(self) -> None:
        """End all, and wait for their cleanups."""
        ends = [asyncio.wrap_future(end) for end in self._end_all()]
        await asyncio.gather(*ends, return_exceptions=True)

    def close_at_exit(self) -> None:
        """End those whose event loops run in other threads, and wait for their cleanups for a while."""
        concurrent.futures.wait(list(self._end_all()), timeout=EXIT_SECONDS)

    def _end_all(self) -> Iterator[concurrent.futures.Future[None]]:
        while self._waiting:
            episode, _ = self._waiting.popitem()[1]
            loop = episode.task.get_loop()
            if loop.is_running():
                yield asyncio.run_coroutine_threadsafe(episode.cancel(), loop)


def _end(episode: Episode) -> None:
    """Cancel a rollout on its own event loop, unless that is closed."""
    with contextlib.suppress(RuntimeError):
        episode.task.get_loop().call_soon_threadsafe(episode.task.cancel)


SUSPENDED = SuspendedEpisodes()
"""The suspended rollouts of this process."""

atexit.register(SUSPENDED.close_at_exit)


async def close() -> None:
    """End the rollouts that wait for slime to resume them (`--partial-rollout`), their cleanups included."""
    await SUSPENDED.close()
