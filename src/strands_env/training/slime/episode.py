"""One rollout as a separate task, so that it can outlive slime's call: its client, its abort, its suspension."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from strands_env.core import StepResult
from strands_env.training.slime.fill import CallRecord, kept_sets_of
from strands_env.training.slime.prompt import Pictures
from strands_sglang.exceptions import SGLangAbortedError, TokenBudgetReachedError

logger = logging.getLogger(__name__)


class _HeldError(Exception):
    """An attempt of a model call that may not be started."""


@dataclass(slots=True, kw_only=True, eq=False)
class RolloutControl:
    """State that the clients of all models of a rollout share.

    Attributes:
        is_aborted: Whether slime has asked to stop.
        suspends: An aborted rollout waits to be resumed (partial rollout) instead of ending.
        budget: Tokens of the response of one path, tool results included; None for no limit.
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
    budget: int | None = None
    sampled_limit: int | None = None
    sampled: int = 0
    sample: Any = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    paused: bool = False
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    resumptions: int = 0
    held: list[list[int]] = field(default_factory=list)

    def check(self) -> None:
        """Raise where a call may not be started."""
        if self.paused or self.is_aborted():
            raise _HeldError

    async def gate(self, input_ids: Sequence[int]) -> None:
        """Pass, wait for the resumption, or raise `SGLangAbortedError`."""
        while self.paused or self.is_aborted():
            if not self.suspends:
                raise SGLangAbortedError("slime ended the rollout step; no further turn is started")
            self.held.append(list(input_ids))
            self.resume.clear()
            self.stopping.set()
            await self.resume.wait()

    def go_on(self) -> None:
        """Let calls through again."""
        self.resumptions += self.paused
        self.paused = False
        self.stopping.clear()
        self.resume.set()


_COUNTED = (
    *("prompt_tokens", "cached_tokens", "completion_tokens"),
    *("spec_accept_token_num", "spec_draft_token_num", "spec_verify_ct"),
)
"""Fields of `meta_info` that are summed up over the answers of a rollout."""


class RolloutClient:
    """Speaks the generate contract for one rollout, over the client that all rollouts share.

    Args:
        client: The shared client.
        control: State of the rollout.
        records: Where answers with top-p data are kept.
        counters: Where `meta_info` is summed up.
        pictures: What expands the images of prompts, for a vision model.
    """

    def __init__(
        self,
        client: Any,
        control: RolloutControl,
        records: list[CallRecord],
        counters: Counter[str],
        pictures: Pictures | None = None,
    ) -> None:
        self._client = client
        self._control = control
        self._records = records
        self._counters = counters
        self._pictures = pictures
        self._roots: list[NDArray[np.int32]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)  # what the model asks of a client: context length, vocabulary

    async def generate(self, input_ids: Sequence[int], **fields: Any) -> dict[str, Any]:
        """One model call, unless slime is stopping or the budget of the response is used up.

        Raises:
            SGLangAbortedError: slime is stopping.
            TokenBudgetReachedError: The response of this path has `max_new_tokens` tokens already, tool results
                included, or all paths together have sampled what a rollout may.
        """
        while True:
            await self._control.gate(self._seen(input_ids, fields))
            with contextlib.suppress(_HeldError):  # stopped before a token came: it starts over after the resumption
                return await self._generate(input_ids, **fields)

    def _seen(self, input_ids: Sequence[int], fields: Mapping[str, Any]) -> Sequence[int]:
        """The prompt as the model sees it and trajectories hold it, images expanded."""
        images = fields.get("image_data")
        return input_ids if not images or self._pictures is None else self._pictures.expanded(input_ids, images)

    async def _generate(
        self, input_ids: Sequence[int], *, sampling_params: Mapping[str, Any] | None = None, **fields: Any
    ) -> dict[str, Any]:
        from strands_sglang.backends.sglang import before_attempt

        prompt = np.array(self._seen(input_ids, fields), dtype=np.int32)
        params = dict(sampling_params or {})
        room = self._room(prompt)
        if room is not None:
            params["max_new_tokens"] = min(params.get("max_new_tokens", room), room)
            if "min_new_tokens" in params:  # a server refuses a minimum above the maximum
                params["min_new_tokens"] = min(params["min_new_tokens"], params["max_new_tokens"])
        resumptions = self._control.resumptions
        token = before_attempt.set(self._control.check)
        try:
            with _traced(self._control.sample, params) as note:
                answer: dict[str, Any] = await self._client.generate(input_ids, sampling_params=params, **fields)
                meta = answer.get("meta_info") or {}
                note(meta)
        finally:
            before_attempt.reset(token)
        if not answer.get("output_ids") and (meta.get("finish_reason") or {}).get("type") == "abort":
            self._control.check()  # stopped before its first token: asked again later, and no abort to the model
        for name in _COUNTED:
            value = meta.get(name)
            self._counters[name] += int(value) if isinstance(value, int | float) else 0
        output = np.array(answer.get("output_ids") or (), dtype=np.int32)
        self._control.sampled += len(output)
        if resumptions != self._control.resumptions:  # begun before the suspension, ended after it
            self._control.held.append([*prompt.tolist(), *output.tolist()])
        kept = kept_sets_of(meta, len(output))
        if kept is not None:
            self._records.append(CallRecord(prompt=prompt, output=output, kept=kept))
        return answer

    def _room(self, prompt: NDArray[np.int32]) -> int | None:
        """Tokens left in the response of the path this prompt belongs to, and in the rollout."""
        budget, sampled_limit, sampled = self._control.budget, self._control.sampled_limit, self._control.sampled
        if sampled_limit is not None and sampled >= sampled_limit:
            raise TokenBudgetReachedError("strands_env_max_sampled_tokens", sampled_limit, sampled)
        left = None if sampled_limit is None else sampled_limit - sampled
        if budget is None:
            return left
        for root in reversed(self._roots):
            if len(root) <= len(prompt) and np.array_equal(root, prompt[: len(root)]):
                used = len(prompt) - len(root)
                break
        else:
            self._roots.append(prompt)
            used = 0
        if used >= budget:
            raise TokenBudgetReachedError("rollout_max_response_len", budget, used)
        return budget - used if left is None else min(budget - used, left)


@contextlib.contextmanager
def _traced(sample: Any, params: Mapping[str, Any]) -> Iterator[Callable[[Mapping[str, Any]], Any]]:
    """A span `sglang_generate` in slime's trace of the sample, from which slime makes its `perf/*` metrics of requests.

    Yields:
        Takes the `meta_info` of the answer.
    """
    try:
        trace: Any = importlib.import_module("slime.observability.trace_utils")
    except ImportError:
        yield lambda meta: None
        return
    with trace.trace_span(sample, "sglang_generate", attrs={"max_new_tokens": params.get("max_new_tokens")}) as span:
        # slime yields its target instead of a span where it cannot trace.
        update = getattr(span, "update", lambda attrs: None)
        yield lambda meta: update(trace.build_sglang_meta_trace_attrs(meta))


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
