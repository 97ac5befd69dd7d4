"""One rollout as a separate task, so that it can outlive slime's call: its backend, its abort, its suspension."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from strands_env.core import StepResult
from strands_env.training.slime.sample import CallRecord, Pictures, kept_sets_of
from strands_sglang.backends import BackendWrapper, GenerateAnswer, GenerateRequest
from strands_sglang.exceptions import BackendAbortedError, TokenBudgetReachedError
from strands_sglang.trajectory import FinishType

logger = logging.getLogger(__name__)


class _HeldError(Exception):
    """An attempt of a model call that may not be started."""


@dataclass(slots=True, kw_only=True, eq=False)
class RolloutControl:
    """State that the clients of all models of a rollout share.

    Attributes:
        is_aborted: Whether slime has asked to stop.
        suspends: An aborted rollout waits to be resumed (partial rollout) instead of ending.
        sampled_limit: Tokens that all models of the rollout sample together; None for no limit.
        sampled: Tokens sampled so far.
        sample: slime's sample, for its trace.
        stopping: Set as soon as slime is seen to ask to stop.
        paused: The rollout is suspended: slime may train meanwhile, and no call may start.
        resume: Set to let waiting calls continue.
        resumptions: How often the rollout continued after a suspension.
        held: Ids that were sampled before the last resumption, each from the start of its path.
    """

    is_aborted: Callable[[], bool]
    suspends: bool = False
    sampled_limit: int | None = None
    sampled: int = 0
    sample: Any = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    paused: bool = False
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    resumptions: int = 0
    held: list[list[int]] = field(default_factory=list)

    def is_held(self) -> bool:
        """Whether no call may start."""
        return self.paused or self.is_aborted()

    def check(self) -> None:
        """Raise where a call may not be started."""
        if self.is_held():
            raise _HeldError

    def left_to_sample(self) -> int | None:
        """Tokens that the rollout may still sample; None for no limit.

        Raises:
            TokenBudgetReachedError: There are none left.
        """
        if self.sampled_limit is None:
            return None
        if self.sampled >= self.sampled_limit:
            raise TokenBudgetReachedError("strands_env_max_sampled_tokens", self.sampled_limit, self.sampled)
        return self.sampled_limit - self.sampled

    async def wait(self, prompt: Sequence[int]) -> None:
        """Wait for the resumption, and note the ids of the call that waits; `BackendAbortedError` if none will come."""
        while self.is_held():
            if not self.suspends:
                raise BackendAbortedError("slime ended the rollout step; no further turn is started")
            self.held.append(list(prompt))
            self.resume.clear()
            self.stopping.set()
            await self.resume.wait()

    def go_on(self) -> None:
        """Let calls through again."""
        self.resumptions += self.paused
        self.paused = False
        self.stopping.clear()
        self.resume.set()


_SPECULATIVE = ("spec_accept_token_num", "spec_draft_token_num", "spec_verify_ct")
"""Fields of SGLang's `meta_info` that are summed up over the answers of a rollout."""


class RolloutBackend(BackendWrapper):
    """The backend of one rollout: the shared client under slime's control.

    Args:
        inner: The client that all rollouts share.
        control: State of the rollout.
        records: Where answers with top-p data are kept; None where the trainer replays none.
        counters: Where tokens and speculative steps are summed up.
        pictures: What expands the images of prompts, for a vision model.
    """

    def __init__(
        self,
        inner: Any,
        control: RolloutControl,
        records: list[CallRecord] | None,
        counters: Counter[str],
        pictures: Pictures | None = None,
    ) -> None:
        super().__init__(inner)
        self._control = control
        self._records = records
        self._counters = counters
        self._pictures = pictures

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        """One model call, unless slime is stopping or the rollout has sampled what it may.

        Raises:
            BackendAbortedError: slime is stopping.
            TokenBudgetReachedError: All paths together have sampled what a rollout may.
        """
        while True:
            if self._control.is_held():
                await self._control.wait(self._seen(request))
            try:
                return await self._ask(request)
            except _HeldError:  # stopped before a token came: it starts over after the resumption
                continue

    def _seen(self, request: GenerateRequest) -> Sequence[int]:
        """The prompt as the model sees it and trajectories hold it, images expanded."""
        ids = request.prompt.tolist()
        return ids if not request.images or self._pictures is None else self._pictures.expanded(ids, request.images)

    async def _ask(self, request: GenerateRequest) -> GenerateAnswer:
        control = self._control
        left = control.left_to_sample()
        if left is not None and left < (request.max_new_tokens or sys.maxsize):
            request = request.limited_to(left)
        request = replace(request, before_attempt=control.check)
        resumptions = control.resumptions
        trace: Any = sys.modules.get("slime.observability.trace_utils")  # slime has imported it where it runs
        answer = await (self.inner.ask(request) if trace is None else self._traced(trace, request))
        meta = answer.payload.get("meta_info") or {}
        if not answer.output_ids and answer.finish.type is FinishType.ABORT:
            control.check()  # stopped before its first token: asked again later, and no abort to the model
        control.sampled += len(answer.output_ids)
        counters = self._counters
        counters["prompt_tokens"] += answer.prompt_tokens or 0
        counters["cached_tokens"] += answer.cached_tokens or 0
        counters["completion_tokens"] += len(answer.output_ids)
        if "spec_verify_ct" in meta:
            counters.update({name: int(meta.get(name) or 0) for name in _SPECULATIVE})
        if resumptions != control.resumptions:  # begun before the suspension, ended after it
            control.held.append([*self._seen(request), *answer.output_ids])
        if self._records is not None and (kept := kept_sets_of(meta, len(answer.output_ids))) is not None:
            self._records.append(CallRecord(prompt=self._seen(request), output=answer.output_ids, kept=kept))
        return answer

    async def _traced(self, trace: Any, request: GenerateRequest) -> GenerateAnswer:
        """A call in a span of slime's trace of the sample, from which slime makes its `perf/*` metrics of requests."""
        attrs = {"max_new_tokens": request.max_new_tokens}
        with trace.trace_span(self._control.sample, "sglang_generate", attrs=attrs) as span:
            answer = await self.inner.ask(request)
            if hasattr(span, "update"):  # slime yields its target instead of a span where it cannot trace
                span.update(trace.build_sglang_meta_trace_attrs(answer.payload.get("meta_info") or {}))
        return answer


POLL_SECONDS = 0.2
"""How often the flag is read while rollouts run."""


class AbortWatch:
    """Sets `stopping` of every rollout it watches once slime is stopping; one task, whatever their number."""

    def __init__(self) -> None:
        self._watched: set[RolloutControl] = set()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def of_running_loop(cls) -> AbortWatch:
        """The watch of the running event loop."""
        return _WATCHES.setdefault(asyncio.get_running_loop(), cls())

    @contextmanager
    def watching(self, control: RolloutControl) -> Iterator[None]:
        """Watch a rollout for the length of a `with` block."""
        self._watched.add(control)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._poll())
        try:
            yield
        finally:
            self._watched.discard(control)
            if not self._watched and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _poll(self) -> None:
        while True:
            for control in tuple(self._watched):
                try:
                    if control.is_aborted():
                        control.stopping.set()
                except Exception as error:  # boundary: what one rollout cannot read must not keep others from stopping
                    logger.warning("error=<%r> | abort flag cannot be read", error)
            await asyncio.sleep(POLL_SECONDS)


_WATCHES: WeakKeyDictionary[asyncio.AbstractEventLoop, AbortWatch] = WeakKeyDictionary()


@dataclass(slots=True, kw_only=True, eq=False)
class Episode:
    """A rollout in progress.

    Attributes:
        task: Runs `Environment.rollout`.
        control: Its abort, budget and suspension.
        models: The models it has made.
        records: Top-p data of its calls.
        counters: Sums of `meta_info` over its calls.
        suspensions: How often it was suspended.
        successes: Training rollouts that had succeeded when it began.
        scores: Whether its environment has a reward function.
        config_error: What makes every rollout of this configuration fail, if that was found.
    """

    task: asyncio.Task[StepResult]
    control: RolloutControl
    models: list[Any] = field(default_factory=list)
    records: list[CallRecord] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    suspensions: int = 0
    successes: int = 0
    scores: bool = False
    config_error: Exception | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it has ended in failure."""
        if not self.task.done():
            return False
        if self.task.cancelled() or self.task.exception() is not None:
            return True
        return self.task.result().termination_reason.is_failure

    async def run(self) -> StepResult | None:
        """Wait for the end; None when the rollout was suspended or stopped because slime is stopping.

        Cancelling this call ends the rollout, its cleanup included.
        """
        if self.suspensions:  # whatever is sampled by now is older than this call
            self.control.held.extend(list(path.token_ids) for model in self.models for path in model.trajectories)
        try:
            with AbortWatch.of_running_loop().watching(self.control):
                while not self.task.done():
                    if self.control.is_aborted():
                        await self._stop()
                        return None
                    self.control.go_on()
                    waiter = asyncio.ensure_future(self.control.stopping.wait())
                    try:
                        await asyncio.wait({self.task, waiter}, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        waiter.cancel()
        except asyncio.CancelledError:
            await self.cancel()
            raise
        return self.task.result()

    async def _stop(self) -> None:
        if not self.control.suspends:
            await self.cancel()
            return
        self.control.paused = True  # until slime asks for the rollout again, whatever its flag says until then
        self.suspensions += 1

    async def cancel(self) -> None:
        """End the rollout; its environment cleans up."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


# ---- rollouts that wait to be resumed -----------------------------------------------------------------------------

MAX_SUSPENDED = 4096
"""Suspended rollouts that are kept; beyond that the oldest are ended."""

EXIT_SECONDS = 30.0
"""How long the process waits at exit for their cleanups."""


class SuspendedEpisodes:
    """Rollouts that wait, by the key of their sample, the longest waiting first."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Any, tuple[Episode, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, key: Any, episode: Episode) -> None:
        """Keep a rollout; another one of that key is ended, and the oldest if there are too many."""
        if earlier := self._waiting.pop(key, None):
            _end(earlier[0])
        self._waiting[key] = (episode, time.monotonic())
        while len(self._waiting) > MAX_SUSPENDED:
            self._drop_oldest("there are too many")

    def take(self, key: Any) -> Episode | None:
        """The rollout of that key, no longer kept; one of another event loop is ended there, and None returned."""
        episode, _ = self._waiting.pop(key, (None, 0.0))
        if episode is None or episode.task.get_loop() is asyncio.get_running_loop():
            return episode
        _end(episode)
        return None

    def expire(self, seconds: float) -> None:
        """End what has waited for longer; 0 for no limit."""
        while seconds and self._waiting and time.monotonic() - next(iter(self._waiting.values()))[1] > seconds:
            self._drop_oldest(f"it waited for more than {seconds:g} s (strands_env_max_suspension)")

    async def close(self) -> None:
        """End all, and wait for their cleanups."""
        ends = [asyncio.wrap_future(end) for end in self._end_all()]
        await asyncio.gather(*ends, return_exceptions=True)

    def close_at_exit(self) -> None:
        """End those whose event loops run in other threads, and wait for their cleanups for a while."""
        concurrent.futures.wait(list(self._end_all()), timeout=EXIT_SECONDS)

    def _drop_oldest(self, reason: str) -> None:
        key, (episode, _) = self._waiting.popitem(last=False)
        logger.warning("sample=<%s> | suspended rollout ended, %s", key, reason)
        _end(episode)

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
"""Of this process."""

atexit.register(SUSPENDED.close_at_exit)


async def close() -> None:
    """End the rollouts that wait for slime to resume them (`--partial-rollout`), their cleanups included."""
    await SUSPENDED.close()
