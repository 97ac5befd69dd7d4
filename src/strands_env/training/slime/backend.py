"""The backend of one rollout: its calls under slime's control, with the top-p data of their answers."""

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

from strands_env.training.slime.settings import SLIME, Trainer
from strands_sglang.backends import BackendWrapper, GenerateAnswer, GenerateRequest
from strands_sglang.exceptions import BackendAbortedError, TokenBudgetReachedError
from strands_sglang.trajectory import FinishType, SamplingMask


class _HeldError(Exception):
    """An attempt of a model call that may not be started."""


@dataclass(slots=True, kw_only=True, eq=False)
class RolloutControl:
    """State of a rollout: its abort, its budget, its suspension, and what its models have sampled.

    Attributes:
        is_aborted: True once slime has asked to stop.
        suspends: An aborted rollout waits to be resumed (partial rollout) instead of ending.
        sampled_limit: Tokens that all models of the rollout sample together; None for no limit.
        sample: slime's sample, for its trace.
        stopping: Set as soon as slime is seen to ask to stop.
        paused: The rollout is suspended: slime may train meanwhile, and no call may start.
        resume: Set to let waiting calls continue.
        held: Ids that were sampled before the last resumption, each from the start of its path.
        models: The models it has made.
        records: Top-p data of its calls; None where the trainer replays none.
        counters: Sums of tokens and speculative steps over its calls.
        suspensions: Number of its suspensions.
        successes: Training rollouts that had succeeded when it began.
        scores: Its environment has a reward function.
    """

    is_aborted: Callable[[], bool]
    suspends: bool = False
    sampled_limit: int | None = None
    sampled: int = 0
    sample: Any = None
    trainer: Trainer = SLIME
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    paused: bool = False
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    resumptions: int = 0
    held: list[list[int]] = field(default_factory=list)
    models: list[Any] = field(default_factory=list)
    records: list[CallRecord] | None = None
    counters: Counter[str] = field(default_factory=Counter)
    suspensions: int = 0
    successes: int = 0
    scores: bool = False

    @property
    def text_of(self) -> Callable[[Sequence[int]], str]:
        """Decodes ids as its models do, for logs; nothing is ever encoded again from it."""
        return self.models[0].conversation.text_of if self.models else lambda ids: ""

    def is_held(self) -> bool:
        """No call may start."""
        return self.paused or self.is_aborted()

    def check(self) -> None:
        """Raise where a call may not be started."""
        if self.is_held():
            raise _HeldError

    def left_to_sample(self) -> int | None:
        """Tokens that the rollout may still sample; None for no limit, `TokenBudgetReachedError` if none are left."""
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
    """The backend of one rollout: the client that all rollouts share, under slime's control.

    Args:
        expanded: Expands the images of a prompt, given its ids and their data URLs; for a vision model.
    """

    def __init__(
        self,
        inner: Any,
        control: RolloutControl,
        expanded: Callable[[Sequence[int], Sequence[str]], Sequence[int]] | None = None,
    ) -> None:
        super().__init__(inner)
        self._control = control
        self._expanded = expanded

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
        return ids if not request.images or self._expanded is None else self._expanded(ids, request.images)

    async def _ask(self, request: GenerateRequest) -> GenerateAnswer:
        control = self._control
        left = control.left_to_sample()
        if left is not None and left < (request.max_new_tokens or sys.maxsize):
            request = request.limited_to(left)
        request = replace(request, before_attempt=control.check)
        resumptions = control.resumptions
        trace: Any = sys.modules.get(control.trainer.traces or "")  # the trainer has imported it where it runs
        answer = await (self.inner.ask(request) if trace is None else self._traced(trace, request))
        meta = answer.payload.get("meta_info") or {}
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
            control.held.append([*self._seen(request), *answer.output_ids])
        if control.records is not None and (mask := sampling_mask_of(meta, len(answer.output_ids))) is not None:
            control.records.append(CallRecord(prompt=self._seen(request), output=answer.output_ids, sampling_mask=mask))
        return answer

    async def _traced(self, trace: Any, request: GenerateRequest) -> GenerateAnswer:
        """A call in a span of slime's trace of the sample, from which slime makes its `perf/*` metrics of requests."""
        sample, trainer = self._control.sample, self._control.trainer
        with trace.trace_span(sample, trainer.span, attrs={"max_new_tokens": request.max_new_tokens}) as span:
            answer = await self.inner.ask(request)
            if hasattr(span, "update"):  # slime yields its target instead of a span where it cannot trace
                meta = answer.payload if trainer.server == "vllm" else answer.payload.get("meta_info") or {}
                span.update(getattr(trace, trainer.attributes)(meta))
        return answer


# ---- top-p data ---------------------------------------------------------------------------------------------------

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
