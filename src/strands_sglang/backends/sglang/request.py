"""A request as SGLang's `/generate` takes it: the names of its fields, and their checks.

A server answers most mistakes with 400, ignores others, and dies of one: an id outside the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from ...exceptions import BackendRequestError
from .. import sampling
from ..contract import Capabilities, GenerateRequest, LogprobKind, PromptScoring
from ..http.client_options import check_rid
from ..sampling import CONSTRAINTS, Count, SamplingParams, must

CONTEXT_RESERVE = 2
"""Tokens the server keeps free: with `max_new_tokens` equal to `context - prompt`, two fewer are sampled.

Servers also refuse prompts within six tokens of the context (506 of 512, measured on 0.5.23), as context overflow.
"""

CAPABILITIES = Capabilities(
    logprobs=LogprobKind.TEMPERED,
    prompt_scoring=PromptScoring.CACHED,
    routed_experts=True,
    sampling_mask=True,
    images=True,
    constraints=CONSTRAINTS,
    weight_versions=True,
    session_affinity=True,
    context_reserve=CONTEXT_RESERVE,
    hints={
        "routed_experts": "start the server with --enable-return-routed-experts, and mind that some routers drop the "
        "field",
        "sampling_mask": "it needs SGLang 0.5.18 or newer",
        "show_prompt": "SGLang 0.5.23 does",
        "images": "it expands them differently, or tokenised the prompt again (SGLANG_MM_AVOID_RETOKENIZE)",
    },
)
"""The abilities of SGLang's `/generate`."""

_SET_BY_US = frozenset(
    {
        "input_ids",
        "text",
        "input_embeds",
        "sampling_params",
        "rid",
        "stream",
        "return_logprob",
        "logprob_start_len",
        "return_routed_experts",
        "routed_experts_start_len",
        "return_sampling_mask",
        "image_data",
    }
)
_INEXACT = frozenset({"video_data", "audio_data"})


def _check_mapping(value: Any) -> dict[str, Any]:
    must(isinstance(value, Mapping) and all(isinstance(name, str) for name in value), "be a mapping with string keys")
    try:  # a copy; NaN would be sent as null
        value = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError) as error:
        must(False, f"hold JSON values only ({error})")
    return dict(value)


def _check_one(value: Any) -> int:
    must(value == 1 and not isinstance(value, bool), "be 1, since a call has one answer")
    return 1


class SGLangSamplingParams(SamplingParams):
    """Every sampling parameter of the server that can be sent (`choice` is listed by its schema, but answers 500)."""

    n: Annotated[int | None, PlainValidator(_check_one)] = None
    custom_params: Annotated[dict[str, Any] | None, PlainValidator(_check_mapping)] = None
    beam_width: Annotated[Count, Field(ge=1)] | None = None
    stream_interval: Annotated[Count, Field(ge=1)] | None = None
    watermark: Any = None


def check_request_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A user's fields, checked; `BackendRequestError` if a conversation sets one, or it makes the prompt inexact."""
    if inexact := sorted(_INEXACT & fields.keys()):
        raise BackendRequestError(
            f"request_fields may not hold {inexact}: with video or audio in a request SGLang decodes the ids and "
            "tokenises them again; send frames as image blocks, or a transcript as text"
        )
    if ours := sorted(_SET_BY_US & fields.keys()):
        raise BackendRequestError(f"request_fields may not hold {ours}: the model sets these itself")
    return dict(fields)


check_sampling_params = partial(sampling.check_sampling_params, model=SGLangSamplingParams)


def checked_fields(
    fields: Mapping[str, Any], *, vocab_size: int | None = None, extra_sampling_keys: Collection[str] = ()
) -> dict[str, Any]:
    """A checked copy of anyone's top-level fields of `/generate`, without those that are None.

    Other fields than those below pass: servers refuse wrong types, and ignore unknown names.

    Args:
        vocab_size: Rows of the embedding: token ids must be below it. None if unknown.
        extra_sampling_keys: Sampling parameters to let through unchecked.

    Raises:
        BackendRequestError: A field this client cannot serve, an unknown sampling parameter, or a token id outside the
            vocabulary.
    """
    checked = {key: value for key, value in fields.items() if value is not None}
    scored = checked.get("token_ids_logprob", [])
    if not isinstance(scored, (list, tuple)) or any(
        type(token) is not int or token < 0 or (vocab_size is not None and token >= vocab_size) for token in scored
    ):
        below = "" if vocab_size is None else f" below the vocabulary size, {vocab_size}"
        raise BackendRequestError(f"token_ids_logprob must be a list of token ids{below}, got {scored!r:.200}")
    if checked.get("stream"):
        raise BackendRequestError("stream must be left out: this client reads one whole answer per call")
    if "rid" in checked:
        check_rid(checked["rid"])
    for key in ("text", "input_embeds"):
        if key in checked:
            raise BackendRequestError(f"{key} must be left out: the server would use input_ids")
    if (params := checked.get("sampling_params")) is not None:
        known = check_sampling_params(params, extra_keys=extra_sampling_keys, vocab_size=vocab_size)
        # None has a meaning there: all that fits.
        checked["sampling_params"] = {"max_new_tokens": None, **known} if "max_new_tokens" in params else known
    return checked


def wire_fields(request: GenerateRequest) -> dict[str, Any]:
    """The fields of a conversation's request, without prompt, id and routing key.

    Only its own fields, which users write, are checked (`BackendRequestError`).
    """
    params = {"skip_special_tokens": False, **request.sampling_params}
    fields: dict[str, Any] = {"sampling_params": params, "return_logprob": request.logprobs}
    if request.logprobs:
        # -1 leaves the whole prefix cache usable; a start inside the prompt caps the cache there. The first scored
        # position has no value, so scoring starts one early: at the last sampled token, whose key and value were
        # never computed, so that this costs no cache either.
        fields["logprob_start_len"] = -1 if request.score_from is None else max(request.score_from - 1, 0)
    if request.score_top_k:
        fields["top_logprobs_num"] = request.score_top_k
    fields["return_routed_experts"] = request.experts_from is not None
    if request.experts_from is not None:
        fields["routed_experts_start_len"] = request.experts_from
    if request.sampling_mask:
        fields["return_sampling_mask"] = True
    if request.images:
        fields["image_data"] = list(request.images)
    if request.show_prompt:
        fields["return_prompt_token_ids"] = True
    if request.constrain_answer_only:
        fields["require_reasoning"] = True
    if request.fields:
        fields = {**checked_fields(request.fields, vocab_size=request.vocab_size), **fields}
    return fields
