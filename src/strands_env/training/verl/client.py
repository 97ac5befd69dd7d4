"""The generate contract over the `server_manager` of verl."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from strands_sglang.exceptions import MediaError, SGLangDecodingError, TokenBudgetReachedError

_LIMIT_NAMES = ("max_tokens", "max_new_tokens")


class ServerManagerClient:
    """The generate contract over verl's `server_manager`, for one rollout.

    verl's own sampling parameters are used for every call, with the limit of the reply.

    Args:
        server_manager: verl's.
        sampling_params: What verl handed to `run`.
        stop_token_ids: Ids that end a turn. vLLM's servers call a reply that ends with one and a reply that was cut
            `completed` alike.
        response_length: Tokens a path may have after its first prompt, tool results included; None for no limit.

    Attributes:
        seconds: Spent in calls.
        experts_shape: `(layers, top_k)` of the routed experts of the last answer that had some.
        steps: Lowest and highest training step whose weights sampled, or None.
    """

    def __init__(
        self,
        server_manager: Any,
        sampling_params: Mapping[str, Any],
        stop_token_ids: Collection[int],
        response_length: int | None = None,
    ) -> None:
        self._manager = server_manager
        self._params = dict(sampling_params)
        self._stops = frozenset(stop_token_ids)
        self._request_id = uuid.uuid4().hex  # one for all turns: the sticky session
        self._budget = response_length
        self._roots: list[list[int]] = []
        self.seconds = 0.0
        self.experts_shape: tuple[int, int] | None = None
        self.steps: tuple[int, int] | None = None

    async def generate(self, input_ids: Sequence[int], **fields: Any) -> dict[str, Any]:
        """One model call.

        Raises:
            TokenBudgetReachedError: The response has reached its limit.
            MediaError: The prompt has images.
        """
        if fields.get("image_data"):
            raise MediaError(
                "verl's servers are given expanded image tokens, which SGLang expands again: sample rollouts with "
                "images over a client of your own, and hand them to agent_loop_output(..., expander=...)"
            )
        params = dict(self._params)
        limits = [params.pop(name, None) for name in _LIMIT_NAMES]
        limits.append(self._room(list(input_ids)))
        limits.append((fields.get("sampling_params") or {}).get("max_new_tokens"))
        limit = min((value for value in limits if value is not None), default=None)
        if limit is not None:
            params["max_tokens"] = limit
        started = time.perf_counter()
        try:
            answer = await self._manager.generate(
                request_id=self._request_id, prompt_ids=list(input_ids), sampling_params={**params, "logprobs": True}
            )
        finally:
            self.seconds += time.perf_counter() - started
        ids = list(answer.token_ids)[:limit]
        meta: dict[str, Any] = {
            "id": self._request_id,
            "prompt_tokens": len(input_ids),
            "completion_tokens": len(ids),
            "finish_reason": self._finish(answer, ids, limit),
            **self._version(getattr(answer, "extra_fields", None) or {}),
        }
        logprobs = list(answer.log_probs or [])[: len(ids)]
        if logprobs:
            if len(logprobs) != len(ids):
                raise SGLangDecodingError(f"verl's answer has {len(logprobs)} log-probabilities for {len(ids)} tokens")
            meta["output_token_logprobs"] = [[value, token, None] for value, token in zip(logprobs, ids, strict=True)]
        if fields.get("return_routed_experts"):
            experts = self._experts(getattr(answer, "routed_experts", None), len(input_ids) + len(ids) - 1)
            if experts is not None:
                start = int(fields.get("routed_experts_start_len") or 0)
                meta["routed_experts"] = base64.b64encode(experts[start:].tobytes()).decode()
        return {"text": "", "output_ids": ids, "meta_info": meta}

    def _room(self, prompt: list[int]) -> int | None:
        """Tokens left in the response of the path this prompt belongs to."""
        if self._budget is None:
            return None
        root = next((root for root in reversed(self._roots) if prompt[: len(root)] == root), None)
        if root is None:
            self._roots.append(root := prompt)
        used = len(prompt) - len(root)
        if used >= self._budget:
            raise TokenBudgetReachedError("rollout.response_length", self._budget, used)
        return self._budget - used

    def _finish(self, answer: Any, ids: Sequence[int], limit: int | None) -> dict[str, Any]:
        """Why the reply ended. verl says `stop`, `length`, `aborted` or `abort`, `completed`, or nothing."""
        reason = getattr(answer, "stop_reason", None)
        if reason in ("aborted", "abort"):
            return {"type": "abort", "message": "aborted by verl"}
        cut = reason == "length" or (limit is not None and len(answer.token_ids) > limit)
        if ids and not cut and (reason == "stop" or ids[-1] in self._stops):
            return {"type": "stop", "matched": ids[-1]}
        return {"type": "length", "length": len(ids)}

    def _version(self, extra: Mapping[str, Any]) -> dict[str, str]:
        step = extra.get("global_steps")
        first, last = extra.get("min_global_steps", step), extra.get("max_global_steps", step)
        known = [int(value) for value in (first, last, step) if value is not None]
        if not known:
            return {}
        lowest, highest = self.steps or (known[0], known[0])
        self.steps = min(lowest, *known), max(highest, *known)
        # Of a reply that several versions sampled verl does not say which token is whose.
        return {"weight_version": str(known[0])} if len(set(known)) == 1 else {}

    def _experts(self, experts: Any, rows: int) -> Any:
        """Rows of positions `[0, rows)` as little-endian int32, or None where they are missing."""
        if experts is None:
            return None
        array = np.asarray(experts)
        if array.ndim != 3 or len(array) < rows:
            raise SGLangDecodingError(f"verl's routed experts are {array.shape}, expected {rows} rows [layers, top_k]")
        self.experts_shape = (array.shape[1], array.shape[2])
        return np.ascontiguousarray(array[:rows], dtype="<i4")


def stop_token_ids(tokenizer: Any) -> frozenset[int]:
    """Ids a reply may end with: the special tokens of a tokenizer, its end of sequence among them."""
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    special = {token_id for token_id, token in added.items() if getattr(token, "special", False)}
    eos = getattr(tokenizer, "eos_token_id", None)
    ends = eos if isinstance(eos, list | tuple) else [] if eos is None else [eos]
    return frozenset([*special, *(getattr(tokenizer, "all_special_ids", None) or ()), *ends])
