"""verl's `server_manager` as a backend."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from strands_sglang.backends import Backend, Capabilities, GenerateAnswer, GenerateRequest, LogprobKind
from strands_sglang.backends.answer import check_output, checked_ids, checked_logprobs, weight_spans
from strands_sglang.exceptions import BackendAnswerError
from strands_sglang.trajectory import Finish, FinishType

_LIMIT_NAMES = ("max_tokens", "max_new_tokens")
_CAPABILITIES = Capabilities(
    logprobs=LogprobKind.TEMPERED,
    routed_experts=True,
    weight_versions=True,
    ordered_versions=True,
    session_affinity=True,
    hints={
        "routed_experts": "verl's server returned none; set rollout.enable_rollout_routing_replay",
        "images": "verl's servers are given expanded image tokens, which SGLang expands again: sample rollouts with "
        "images over a client of your own, and hand them to agent_loop_output(..., expander=...)",
    },
)


class ServerManagerBackend(Backend):
    """verl's `server_manager`, for one rollout.

    verl's own sampling parameters are used for every call, with the limit of the reply.

    Args:
        server_manager: verl's.
        sampling_params: Those that verl handed to `run`.
        stop_token_ids: Ids that end a turn. vLLM's servers call a reply that ends with one and a reply that was cut
            `completed` alike.

    Attributes:
        seconds: Spent in calls.
        experts_shape: `(layers, top_k)` of the routed experts of the last answer that had some.
        steps: Training steps whose weights sampled.
    """

    capabilities = _CAPABILITIES

    def __init__(
        self, server_manager: Any, sampling_params: Mapping[str, Any], stop_token_ids: Collection[int]
    ) -> None:
        self._manager = server_manager
        self._params = dict(sampling_params)
        self._stops = frozenset(stop_token_ids)
        self._request_id = uuid.uuid4().hex  # one for all turns: the sticky session
        self.seconds = 0.0
        self.experts_shape: tuple[int, int] | None = None
        self.steps: list[int] = []

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        """One model call."""
        params = dict(self._params)
        limits = [params.pop(name, None) for name in _LIMIT_NAMES]
        limits.append(request.max_new_tokens)
        # verl's bound is for the whole response, the request's for what is left of it.
        limit = min((value for value in limits if value is not None), default=None)
        if limit is not None:
            params["max_tokens"] = limit
        prompt = request.prompt.tolist()
        started = time.perf_counter()
        try:
            answer = await self._manager.generate(
                request_id=self._request_id, prompt_ids=prompt, sampling_params={**params, "logprobs": True}
            )
        finally:
            self.seconds += time.perf_counter() - started
        ids = checked_ids("token_ids", list(answer.token_ids)[:limit])
        finish = self._finish(answer, ids, limit)
        check_output(ids, finish, vocab_size=request.vocab_size, max_new_tokens=limit)
        logprobs = list(answer.log_probs or [])[: len(ids)]
        if logprobs and len(logprobs) != len(ids):
            raise BackendAnswerError(f"verl's answer has {len(logprobs)} log-probabilities for {len(ids)} tokens")
        experts = None
        if request.experts_from is not None:
            rows = self._experts(getattr(answer, "routed_experts", None), len(prompt) + len(ids) - 1)
            experts = None if rows is None else rows[request.experts_from :].tobytes()
        version = self._version(getattr(answer, "extra_fields", None) or {})
        return GenerateAnswer(
            output_ids=ids,
            finish=finish,
            output_logprobs=checked_logprobs("log_probs", logprobs) if logprobs or not ids else None,
            weight_spans=weight_spans(None, version, len(ids)),
            routed_experts=experts,
            rid=self._request_id,
            prompt_tokens=len(prompt),
        )

    def _finish(self, answer: Any, ids: Sequence[int], limit: int | None) -> Finish:
        """The end of the reply. verl says `stop`, `length`, `aborted` or `abort`, `completed`, or nothing."""
        reason = getattr(answer, "stop_reason", None)
        if reason in ("aborted", "abort"):
            return Finish(type=FinishType.ABORT, message="aborted by verl")
        cut = reason == "length" or (limit is not None and len(answer.token_ids) > limit)
        if ids and not cut and (reason == "stop" or ids[-1] in self._stops):
            return Finish(type=FinishType.STOP, matched=ids[-1])
        return Finish(type=FinishType.LENGTH)

    def _version(self, extra: Mapping[str, Any]) -> str | None:
        step = extra.get("global_steps")
        first, last = extra.get("min_global_steps", step), extra.get("max_global_steps", step)
        versions = [int(value) for value in (first, last, step) if value is not None]
        self.steps += versions
        # Of a reply that several versions sampled verl does not say which token is whose.
        return str(versions[0]) if len(set(versions)) == 1 else None

    def _experts(self, experts: Any, rows: int) -> Any:
        """Rows of positions `[0, rows)` as little-endian int32, or None where they are missing."""
        if experts is None:
            return None
        table = np.asarray(experts)
        if table.ndim != 3 or len(table) < rows:
            raise BackendAnswerError(f"verl's routed experts are {table.shape}, expected {rows} rows [layers, top_k]")
        self.experts_shape = (table.shape[1], table.shape[2])
        return np.ascontiguousarray(table[:rows], dtype="<i4")


def stop_token_ids(tokenizer: Any) -> frozenset[int]:
    """Ids a reply may end with: the special tokens of a tokenizer, its end of sequence among them."""
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    special = {token_id for token_id, token in added.items() if getattr(token, "special", False)}
    eos = getattr(tokenizer, "eos_token_id", None)
    ends = eos if isinstance(eos, list | tuple) else [] if eos is None else [eos]
    return frozenset([*special, *(getattr(tokenizer, "all_special_ids", None) or ()), *ends])
