"""A rollout in progress: its model calls under slime's control, its abort, and its suspension between two calls."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strands_env.core import StepResult
from strands_env.training.sample import TrainingSample
from strands_env.training.slime.settings import RolloutCall
from strands_sglang.backends import BackendWrapper, GenerateAnswer, GenerateRequest
from strands_sglang.exceptions import BackendAbortedError, BackendAnswerError, TokenBudgetReachedError
from strands_sglang.trajectory import FinishType, SamplingMask
from strands_sglang.trajectory.tokens import common_prefix

POLL_SECONDS = 0.3
"""Interval at which each running rollout reads slime's flag; slime does not announce it."""


# ---- its life -------------------------------------------------------------------------------------------------------


class HeldError(Exception):
    """An attempt of a model call that may not be started."""


@dataclass(slots=True, kw_only=True, eq=False)
class Episode:
    """A rollout in progress: its task, its abort, its budget, its suspension, and its models' tokens.

    Attributes:
        call: slime's call that waits for it: another one after a suspension.
        task: Runs `Environment.rollout`; None until it is started.
        scores: Its environment has a reward function.
        config_error: The reason why every rollout of this configuration fails, if one was found.
        models: The models it has made.
        counters: Sums of tokens and speculative steps over its calls.
        paused: The rollout is suspended: slime may train meanwhile, and no call may start.
        suspensions: Number of its suspensions.
        resume: Set to let waiting calls continue.
        earlier_ids: Ids that were sampled before the last resumption, each from the start of its path.
    """

    call: RolloutCall
    task: asyncio.Task[StepResult] | None = None
    scores: bool = False
    config_error: Exception | None = None
    models: list[Any] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    paused: bool = False
    suspensions: int = 0
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    earlier_ids: list[list[int]] = field(default_factory=list)

    @property
    def running(self) -> asyncio.Task[StepResult]:
        """The task, once it was started."""
        assert self.task is not None
        return self.task

    @property
    def text_of(self) -> Callable[[Sequence[int]], str]:
        """Decodes ids as its models do, for logs; nothing is ever encoded again from it."""
        return self.models[0].conversation.text_of if self.models else lambda ids: ""

    @property
    def has_failed(self) -> bool:
        """True if the rollout failed."""
        if not self.running.done():
            return False
        if self.running.cancelled() or self.running.exception() is not None:
            return True
        return self.running.result().end.reason.is_failure

    async def run(self) -> StepResult | None:
        """Wait for the end; None when the rollout was suspended or stopped because slime is stopping.

        Cancelling this call ends the rollout, its cleanup included.
        """
        if self.suspensions:  # tokens sampled by now are older than this call
            self.earlier_ids.extend(list(path.token_ids) for model in self.models for path in model.trajectories)
        try:
            while not self.running.done():
                if self.call.is_stopping:
                    if self.call.partial:
                        self.paused = True  # until slime asks again, even if the flag is reset before
                        self.suspensions += 1
                    else:
                        await self.cancel()
                    return None
                self.paused = False
                self.resume.set()
                # Polled, for slime sets its flag without telling anyone.
                await asyncio.wait({self.running}, timeout=POLL_SECONDS)
        except asyncio.CancelledError:
            await self.cancel()
            raise
        return self.running.result()

    async def cancel(self) -> None:
        """End the rollout; its environment cleans up."""
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    def check(self) -> None:
        """Raise where a call may not be started."""
        if self.paused or self.call.is_stopping:
            raise HeldError

    def left_to_sample(self) -> int | None:
        """Tokens that the rollout may still sample; None for no limit, `TokenBudgetReachedError` if none are left."""
        limit = self.call.sampled_limit
        if limit is not None and (sampled := self.counters["completion_tokens"]) >= limit:
            raise TokenBudgetReachedError("strands_env_max_sampled_tokens", limit, sampled)
        return None if limit is None else limit - self.counters["completion_tokens"]

    async def wait(self, prompt: Callable[[], Sequence[int]]) -> None:
        """Wait for the resumption, and note the ids of the call that waits; `BackendAbortedError` if none will come."""
        while self.paused or self.call.is_stopping:
            if not self.call.partial:
                raise BackendAbortedError("slime ended the rollout step; no further turn is started")
            # A call that the server aborted carries what it has sampled in its prompt, and no trajectory holds it yet.
            self.earlier_ids.append(list(prompt()))
            self.resume.clear()
            await self.resume.wait()

    def take_loss_off_policy(self, source: TrainingSample) -> TrainingSample:
        """A sample without loss on tokens older than a resumption, or sampled by other weights than the last ones.

        Weights change under a rollout where slime does not stop it for that (fully asynchronous).
        """
        resumed = max((common_prefix(source.token_ids, ids) for ids in self.earlier_ids), default=0)
        # A span without a version says nothing of its age, and is left to the resumptions.
        spans = [span for span in source.weight_versions if span.version is not None]
        older = max((span.end for span in spans if span.version != spans[-1].version), default=0)
        mask = source.loss_mask.copy()
        mask[: max(resumed, older)] = 0
        return replace(source, loss_mask=mask)


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
        episode: Episode,
        expand: Callable[[Sequence[int], Sequence[str]], Sequence[int]] | None = None,
    ) -> None:
        super().__init__(inner)
        self._episode = episode
        self._expand = expand

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        """A model call, unless slime is stopping or the budget of the rollout is used up.

        Raises:
            BackendAbortedError: slime is stopping.
            TokenBudgetReachedError: All paths together have used up the budget of a rollout.
        """
        while True:
            await self._episode.wait(lambda: self._prompt_as_seen(request))
            try:
                return await self._ask(request)
            except HeldError:  # stopped before a token came: it starts over after the resumption
                continue

    def _prompt_as_seen(self, request: GenerateRequest) -> Sequence[int]:
        """The prompt as the model sees it and trajectories hold it, images expanded."""
        ids = request.prompt.tolist()
        return ids if not request.images or self._expand is None else self._expand(ids, request.images)

    async def _ask(self, request: GenerateRequest) -> GenerateAnswer:
        episode, suspensions = self._episode, self._episode.suspensions
        trainer, keeps_top_p = episode.call.trainer, episode.call.keeps_top_p
        left = episode.left_to_sample()  # of all paths together; each path has its own bound in the model
        if left is not None and left < (request.max_new_tokens or sys.maxsize):
            request = request.limited_to(left)
        # slime's patched server sends the survivors because of `custom_params`, and knows no other way to ask for them.
        asks = request.sampling_mask and (trainer.asks_for_top_p or not keeps_top_p)
        request = replace(request, before_attempt=episode.check, sampling_mask=asks)
        trace: Any = sys.modules.get(trainer.traces or "")  # the trainer has imported it where it runs
        answer = await (self.inner.ask(request) if trace is None else self._ask_in_span(trace, request))
        meta = trainer.meta_of(answer.payload)
        if not answer.output_ids and answer.finish.type is FinishType.ABORT:
            episode.check()  # stopped before its first token: asked again later, and no abort to the model
        counters = episode.counters
        counters["prompt_tokens"] += answer.prompt_tokens or 0
        counters["cached_tokens"] += answer.cached_tokens or 0
        counters["completion_tokens"] += len(answer.output_ids)
        if "spec_verify_ct" in meta:
            counters.update({name: int(meta.get(name) or 0) for name in _SPECULATIVE})
        if suspensions != episode.suspensions:  # begun before the suspension, ended after it
            episode.earlier_ids.append([*self._prompt_as_seen(request), *answer.output_ids])
        if keeps_top_p and answer.sampling_mask is None:
            answer = replace(answer, sampling_mask=sampling_mask_of(meta, len(answer.output_ids)))
        return answer

    async def _ask_in_span(self, trace: Any, request: GenerateRequest) -> GenerateAnswer:
        """A call in a span of slime's trace of the sample, from which slime makes its `perf/*` metrics of requests."""
        sample, trainer = self._episode.call.sample, self._episode.call.trainer
        with trace.trace_span(sample, trainer.span, attrs={"max_new_tokens": request.max_new_tokens}) as span:
            answer = await self.inner.ask(request)
            if hasattr(span, "update"):  # slime yields its target instead of a span where it cannot trace
                span.update(getattr(trace, trainer.attributes)(trainer.meta_of(answer.payload)))
        return answer


def sampling_mask_of(meta: Mapping[str, Any], count: int) -> SamplingMask:
    """The top-p data of slime's patched server: int32 arrays, as lists or base64.

    Raises:
        BackendAnswerError: There is none, or it does not fit the number of sampled tokens.
    """
    if not count:
        return SamplingMask.empty(0)  # without tokens there may be no offsets
    for name in ("top_p_token", "top_p_kept_token"):  # slime reads both
        if (ids := meta.get(f"{name}_ids")) is not None and (offsets := meta.get(f"{name}_offsets")) is not None:
            break
    else:
        raise BackendAnswerError("rollout_top_p is not 1, and the server returned no top-p token ids")
    ids, offsets = _int32(ids), _int32(offsets)
    if len(offsets) != count + 1 or int(offsets[-1]) != len(ids):
        raise BackendAnswerError(
            f"top-p data must have {count + 1} offsets up to {len(ids)}, got {len(offsets)} up to {offsets[-1:]}"
        )
    return SamplingMask(ids=ids, offsets=offsets.astype(np.int64))


def _int32(value: Any) -> NDArray[np.int32]:
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value, validate=True), dtype="<i4").astype(np.int32)
    return np.array(value, dtype=np.int32)
