"""A request as SGLang's `/generate` takes it: the names of its fields, their checks, the body."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ...exceptions import BackendRequestError
from ..contract import CONSTRAINTS, Capabilities, GenerateRequest, LogprobKind, PromptScoring
from ..prompt import PromptIds, check_vocabulary
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    """A checked `/generate` request. `checked` makes one of anything; the constructor trusts what it is given.

    Attributes:
        fields: Top-level fields without the prompt, the id and the routing key; `sampling_params` among them.
        rid: Id of the first attempt, or None for a random one.
        routing_key: Session affinity key, or None.
        vocab_size: Number of ids the model has, or None if unknown; the answer is checked against it.
    """

    prompt: PromptIds
    fields: Mapping[str, Any] = field(default_factory=dict)
    rid: str | None = None
    routing_key: str | None = None
    vocab_size: int | None = None
    before_attempt: Callable[[], None] | None = None

    @classmethod
    def checked(
        cls,
        prompt: PromptIds,
        fields: Mapping[str, Any],
        *,
        vocab_size: int | None = None,
        extra_sampling_keys: Collection[str] = (),
    ) -> WireRequest:
        """Check the fields of a request.

        Args:
            fields: Top-level fields, `rid` and `routing_key` among them; never changed. Those that are None are left
                out.
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
        rid, routing_key = checked.pop("rid", None), checked.pop("routing_key", None)
        return cls(prompt=prompt, fields=checked, rid=rid, routing_key=routing_key, vocab_size=vocab_size)

    @classmethod
    def of(cls, request: GenerateRequest) -> WireRequest:
        """A request of a conversation. Only its own fields, which users write, are checked (`BackendRequestError`)."""
        params = {"skip_special_tokens": False, **request.sampling_params}
        fields: dict[str, Any] = {"sampling_params": params, "return_logprob": request.logprobs}
        if request.logprobs:
            # -1 leaves the whole prefix cache usable; a start inside the prompt caps the cache there. The first scored
            # position has no value, so scoring starts one early: at the last sampled token, whose key and value were
            # never computed, so that this costs no cache either.
            fields["logprob_start_len"] = -1 if request.score_from is None else max(request.score_from - 1, 0)
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
        return cls(
            prompt=request.prompt,
            fields=fields,
            rid=request.rid,
            routing_key=request.routing_key,
            vocab_size=request.vocab_size,
            before_attempt=request.before_attempt,
        )

    @property
    def max_new_tokens(self) -> int | None:
        """Most tokens that may be sampled; None where the request leaves it to the server."""
        limit = (self.fields.get("sampling_params") or {}).get("max_new_tokens")
        return limit if isinstance(limit, int) else None

    def keywords(self) -> dict[str, Any]:
        """The arguments of `generate` besides the ids, for clients that take it in that form."""
        named = {"rid": self.rid, "routing_key": self.routing_key}
        return {**self.fields, **{name: value for name, value in named.items() if value is not None}}

    def encode_fields(self) -> bytes:
        """The fields in JSON, without the closing brace; `BackendRequestError` if JSON cannot represent them."""
        try:
            return orjson.dumps({**self.fields, "stream": False}, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        except orjson.JSONEncodeError as error:
            raise BackendRequestError(f"the request cannot be written as JSON: {error}") from error

    def body(self, rid: str, encoded_fields: bytes) -> tuple[bytes, ...]:
        """The whole request in JSON, in parts, so that the prompt is copied once, into what is sent.

        `encoded_fields` is the result of `encode_fields`, which all attempts share.
        """
        return b'{"rid":', orjson.dumps(rid), b",", encoded_fields, b',"input_ids":[', *self.prompt.chunks, b"]}"
