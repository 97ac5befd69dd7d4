"""Routers (sglang-router, smg) in front of SGLang: they re-serialise requests, and lose fields without an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ROUTING_KEY_HEADER = "X-SMG-Routing-Key"
"""Header by which routers keep the requests of one episode on one worker (policies `manual`, `consistent_hashing`)."""

# Measured: both routers drop these sampling parameters, and answer 200.
_DROPPED_SAMPLING_KEYS = frozenset(
    {"spaces_between_special_tokens", "logit_bias", "custom_params", "stop_regex", "structural_tag"}
)
# Request field -> where its effect shows in the answer.
_EFFECTS = {
    "return_logprob": ("meta_info", "output_token_logprobs"),
    "return_routed_experts": ("meta_info", "routed_experts"),
    "return_indexer_topk": ("meta_info", "indexer_topk"),
    "return_sampling_mask": ("meta_info", "output_token_sampling_mask"),
    "return_prompt_token_ids": (None, "prompt_token_ids"),
}
_SERVER_FLAGS = {
    "return_routed_experts": "--enable-return-routed-experts",
    "return_indexer_topk": "--enable-return-indexer-topk",
}


def dropped_fields(
    fields: Mapping[str, Any], rid: str, answer: Mapping[str, Any], headers: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """`(field, reason)` of each top-level field, or sampling parameter, that was lost on the way to the model."""
    meta = answer["meta_info"]
    finish = meta.get("finish_reason")
    was_aborted = isinstance(finish, Mapping) and finish.get("type") == "abort"
    if "id" in meta and meta["id"] != rid:
        yield "rid", "the answer has another request id; aborts by request id cannot work"
    if not was_aborted and answer["output_ids"]:
        for name, (parent, key) in _EFFECTS.items():
            if fields.get(name) is True and key not in (meta if parent else answer):
                flag = _SERVER_FLAGS.get(name)
                reason = "the answer lacks it; a router dropped the field"
                yield name, f"{reason}, or the server runs without {flag}" if flag else reason
    sampling = fields.get("sampling_params")
    dropped = _DROPPED_SAMPLING_KEYS & sampling.keys() if isinstance(sampling, Mapping) else ()
    if any(header.startswith("x-smg-") or header == "x-request-id" for header in headers):  # a router's
        for name in sorted(dropped):
            yield f"sampling_params.{name}", "routers are known to drop it; it may have had no effect"
