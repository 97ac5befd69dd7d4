"""A request as SGLang's `/generate` takes it: the names of its fields, and their checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...exceptions import BackendRequestError
from ..contract import (
    Capabilities,
    GenerateRequest,
    LogprobKind,
    PromptIds,
    PromptScoring,
    check_vocabulary,
)
from ..sampling import CONSTRAINTS
from .sampling import CONTEXT_RESERVE, validate_fields, validate_sampling_params

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


def check_sampling_params(
    params: Mapping[str, Any], *, extra_keys: Collection[str] = (), vocab_size: int | None = None
) -> dict[str, Any]:
    """`validate_sampling_params` for a call that has one answer."""
    checked = validate_sampling_params(params, extra_keys=extra_keys, vocab_size=vocab_size)
    if checked.get("n", 1) != 1:
        raise BackendRequestError(f"sampling_params['n']={checked['n']}: a call has one answer")
    return checked


def checked_fields(
    prompt: PromptIds,
    fields: Mapping[str, Any],
    *,
    vocab_size: int | None = None,
    extra_sampling_keys: Collection[str] = (),
) -> dict[str, Any]:
    """A checked copy of anyone's top-level fields of `/generate`, without those that are None.

    Args:
        vocab_size: Rows of the embedding: token ids must be below it. None if unknown.
        extra_sampling_keys: Sampling parameters to let through unchecked.

    Raises:
        BackendRequestError: A field of the wrong type or out of range, an unknown sampling parameter, or a token id
            outside the vocabulary.
    """
    check_vocabulary(prompt.highest, vocab_size)
    checked = validate_fields(fields, len(prompt), vocab_size)
    if "sampling_params" in checked:
        checked["sampling_params"] = check_sampling_params(
            checked["sampling_params"], extra_keys=extra_sampling_keys, vocab_size=vocab_size
        )
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
        fields = {**validate_fields(request.fields, request.prompt_tokens, request.vocab_size), **fields}
    check_vocabulary(request.prompt.highest, request.vocab_size)
    return fields
