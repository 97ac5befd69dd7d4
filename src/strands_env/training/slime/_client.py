"""The client of one rollout: slime's abort, the budget of the whole response, and what the answers said."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strands_env.training.sample import KeptSets
from strands_sglang.exceptions import SGLangAbortedError, TokenBudgetReachedError

_TOP_P_IDS = ("top_p_token_ids", "top_p_kept_token_ids")
_TOP_P_OFFSETS = ("top_p_token_offsets", "top_p_kept_token_offsets")


@dataclass(slots=True, kw_only=True)
class RolloutControl:
    """State that the clients of all models of a rollout share.

    Attributes:
        is_aborted: Whether slime has asked to stop.
        suspends: An aborted rollout waits to be resumed (partial rollout) instead of ending.
        budget: Tokens of the response of one path, tool results included; None for no limit.
        suspended: Set while a call waits.
        resume: Set to let it go on.
        held: Ids of calls that were waiting: everything in them is older than the resumption.
    """

    is_aborted: Callable[[], bool]
    suspends: bool = False
    budget: int | None = None
    suspended: asyncio.Event = field(default_factory=asyncio.Event)
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    held: list[list[int]] = field(default_factory=list)

    async def gate(self, input_ids: Sequence[int]) -> None:
        """Pass, wait for the resumption, or raise `SGLangAbortedError`."""
        while self.is_aborted():
            if not self.suspends:
                raise SGLangAbortedError("slime ended the rollout step; no further turn is started")
            self.held.append(list(input_ids))
            self.resume.clear()
            self.suspended.set()
            await self.resume.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """What one answer said beyond the trajectory.

    Attributes:
        prompt: int32, ids of the request.
        output: int32, sampled ids.
        kept: Top-p survivors of the sampled ids, or None.
    """

    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    kept: KeptSets | None


@dataclass(slots=True, kw_only=True)
class RolloutCounters:
    """Sums over the answers of a rollout, named as in `meta_info`."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    spec_accept_token_num: int = 0
    spec_draft_token_num: int = 0
    spec_verify_ct: int = 0
    seconds: float = 0.0

    def add(self, meta: Mapping[str, Any]) -> None:
        """Add an answer."""
        for name in self.__dataclass_fields__:
            key = "e2e_latency" if name == "seconds" else name
            value = meta.get(key)
            if isinstance(value, int | float):
                setattr(self, name, getattr(self, name) + value)


class RolloutClient:
    """Speaks the generate contract for one rollout, over the client that all rollouts share.

    Args:
        client: The shared client, or a function that makes it at the first call.
        control: State of the rollout.
        records: Where answers with top-p data are kept.
        counters: Where `meta_info` is summed up.
    """

    def __init__(
        self, client: Any, control: RolloutControl, records: list[CallRecord], counters: RolloutCounters
    ) -> None:
        self._client = client
        self._control = control
        self._records = records
        self._counters = counters
        self._roots: list[NDArray[np.int32]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)  # what the model asks of a client: context length, vocabulary

    async def generate(self, input_ids: Sequence[int], **fields: Any) -> dict[str, Any]:
        """One model call, unless slime is stopping or the budget of the response is used up.

        Raises:
            SGLangAbortedError: slime is stopping.
            TokenBudgetReachedError: The response has `max_new_tokens` tokens already, tool results included.
        """
        await self._control.gate(input_ids)
        prompt = np.array(input_ids, dtype=np.int32)
        params = dict(fields.pop("sampling_params", None) or {})
        room = self._room(prompt)
        if room is not None:
            params["max_new_tokens"] = min(params.get("max_new_tokens", room), room)
        answer: dict[str, Any] = await self._client.generate(input_ids, sampling_params=params, **fields)
        meta = answer.get("meta_info") or {}
        self._counters.add(meta)
        output = np.array(answer.get("output_ids") or (), dtype=np.int32)
        kept = kept_sets_of(meta, len(output))
        if kept is not None:
            self._records.append(CallRecord(prompt=prompt, output=output, kept=kept))
        return answer

    def _room(self, prompt: NDArray[np.int32]) -> int | None:
        """Tokens left in the response of the path this prompt belongs to."""
        budget = self._control.budget
        if budget is None:
            return None
        for root in reversed(self._roots):
            if len(root) <= len(prompt) and np.array_equal(root, prompt[: len(root)]):
                used = len(prompt) - len(root)
                break
        else:
            self._roots.append(prompt)
            used = 0
        if used >= budget:
            raise TokenBudgetReachedError("rollout_max_response_len", budget, used)
        return budget - used


def kept_sets_of(meta: Mapping[str, Any], count: int) -> KeptSets | None:
    """The top-p data of slime's patched server: int32 arrays, as lists or base64; None where the answer has none.

    Raises:
        ValueError: The data does not fit the number of sampled tokens.
    """
    ids, offsets = _int32(meta, _TOP_P_IDS), _int32(meta, _TOP_P_OFFSETS)
    if ids is None or offsets is None:
        return None
    if len(offsets) != count + 1 or int(offsets[-1]) != len(ids):
        raise ValueError(
            f"top-p data has {len(offsets)} offsets up to {int(offsets[-1]) if len(offsets) else None} and {len(ids)} "
            f"ids for {count} sampled tokens"
        )
    return KeptSets(ids=ids, offsets=offsets.astype(np.int64))


def _int32(meta: Mapping[str, Any], names: Sequence[str]) -> NDArray[np.int32] | None:
    for name in names:
        value = meta.get(name)
        if value is None:
            continue
        if isinstance(value, str):
            return np.frombuffer(base64.b64decode(value, validate=True), dtype="<i4").astype(np.int32)
        return np.array(value, dtype=np.int32)
    return None


def kept_of_sample(token_ids: NDArray[np.int32], records: Sequence[CallRecord]) -> KeptSets | None:
    """Top-p data of a path, out of the calls that made it; None where no call belongs to it."""
    lengths = np.zeros(len(token_ids), dtype=np.int64)
    parts: dict[int, KeptSets] = {}
    for record in records:
        start, end = len(record.prompt), len(record.prompt) + len(record.output)
        on_path = np.array_equal(token_ids[:start], record.prompt) and np.array_equal(
            token_ids[start:end], record.output
        )
        if on_path and record.kept is not None:
            lengths[start:end] = np.diff(record.kept.offsets)
            parts[start] = record.kept
    if not parts:
        return None
    ids = np.concatenate([parts[start].ids for start in sorted(parts)])
    return KeptSets(ids=ids, offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
