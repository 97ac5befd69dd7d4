"""A request as vLLM's `/inference/v1/generate` takes it: the names of its fields, and their checks.

The server ignores names it does not know and cuts `max_tokens` to the room that is left, both without a word. So names
are checked here, and the room by the client.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final

from pydantic import Field

from ...exceptions import BackendRequestError
from .. import sampling
from ..contract import CONSTRAINTS, Capabilities, GenerateRequest, LogprobKind, PromptScoring
from ..sampling import Count, Number, SamplingParams

CAPABILITIES: Final = Capabilities(
    logprobs=LogprobKind.SAMPLED,
    prompt_scoring=PromptScoring.UNCACHED,
    routed_experts=True,
    sampling_mask=True,
    images=True,
    constraints=CONSTRAINTS,
    weight_versions=True,
    session_affinity=True,
    hints={
        "routed_experts": "start the server with --enable-return-routed-experts; its Rust front end never returns them",
        "sampling_mask": "start the server with --return-sampling-mask and --logprobs-mode processed_logprobs, and set "
        "top_k",
        "images": "it sizes them differently: was it started with --mm-processor-kwargs, or another processor?",
        "show_prompt": "vLLM 0.32 does",
    },
)
"""Capabilities of `/inference/v1/generate` on a server that returns log-probabilities of the sampled distribution."""

RAW_HINT: Final = (
    "the server returns log-probabilities from before temperature, penalties, top-p and top-k (vLLM's default), which "
    "are those of the sampling only at temperature 1 without any of these; start it with "
    "--logprobs-mode processed_logprobs, or, where nothing is trained, set return_logprob=False"
)

# Our names of sampling parameters, which are SGLang's, to vLLM's, where they differ.
_NAMES: Final = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
}

_STRUCTURES: Final = {"json_schema": "json", "regex": "regex", "ebnf": "grammar", "structural_tag": "structural_tag"}
# Parameters that only shape the text of an answer, which is not asked for.
_OF_TEXT: Final = frozenset({"skip_special_tokens", "no_stop_trim", "spaces_between_special_tokens"})


class VLLMSamplingParams(SamplingParams):
    """vLLM's ranges, where they differ."""

    max_new_tokens: Annotated[Count, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0)] | None = None

    lacking = ("stop_regex",)
    why_lacking = "vLLM would ignore it without a word"


FIELDS: Final = frozenset({"model", "cache_salt", "priority", "kv_transfer_params", "reasoning_ended"})
"""Top-level fields that a user may add to every request."""


check_sampling_params = partial(sampling.check_sampling_params, model=VLLMSamplingParams)


def check_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A user's top-level fields; `BackendRequestError` for one that vLLM does not have, or that the client sets."""
    if unknown := sorted(set(fields) - FIELDS):
        raise BackendRequestError(f"request_fields must be some of {sorted(FIELDS)}, got {unknown}")
    return dict(fields)


def is_plain(params: Mapping[str, Any]) -> bool:
    """True if tokens are sampled from the model's own distribution, so that raw log-probabilities are right."""
    neutral = {"temperature": (1,), "top_p": (1,), "top_k": (-1, 0), "min_p": (0,)}
    neutral |= {"frequency_penalty": (0,), "presence_penalty": (0,), "repetition_penalty": (1,)}
    return (
        all(params.get(name, values[0]) in values for name, values in neutral.items())
        and not params.get("logit_bias")
        and not params.get("min_new_tokens")
        and not any(name in params for name in _STRUCTURES)
    )


def wire_fields(request: GenerateRequest) -> dict[str, Any]:
    """The fields of a checked request as vLLM names them, without prompt and id."""
    fields: dict[str, Any] = {**request.fields, "sampling_params": _wire_params(request)}
    if request.images:  # the ids have one placeholder for each, which the server expands
        fields["content_parts"] = [{"type": "image_url", "url": image} for image in request.images]
    if request.constrain_answer_only:
        fields["reasoning_ended"] = False
    if request.show_prompt:
        fields["return_token_ids"] = True
    return fields


def _wire_params(request: GenerateRequest) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for name, value in request.sampling_params.items():
        if value is None or name in _OF_TEXT:
            continue
        if name in _STRUCTURES:
            is_text = name == "json_schema" and isinstance(value, str)  # SGLang takes a schema as text
            params["structured_outputs"] = {_STRUCTURES[name]: json.loads(value) if is_text else value}
        else:
            params[_NAMES.get(name, name)] = value
    if request.logprobs:
        params["logprobs"] = 0  # of the sampled token alone
    if request.score_from is not None:
        # Those of the prompt's own tokens always come; switches the prefix cache off for this request.
        params["prompt_logprobs"] = request.score_top_k
    if request.experts_from is not None:
        params["routed_experts_prompt_start"] = request.experts_from
    if params.get("stop"):
        params["skip_special_tokens"] = False  # stop strings may be special tokens
    else:
        params["detokenize"] = False  # nobody reads the text
    return params
