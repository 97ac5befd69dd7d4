"""One `/generate` request: a prompt and its fields, checked once where they enter, then sent as they are.

A prompt is held as the JSON text in which it is sent. A path grows by appending text, so a turn costs what is new, and
ids that were checked once are not looked at again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from ...exceptions import SGLangRequestError
from .sampling import check_vocabulary, validate_fields, validate_input_ids, validate_sampling_params

before_attempt: ContextVar[Callable[[], None] | None] = ContextVar("before_attempt", default=None)
"""Called just before each attempt of a call, retries included, once it has its turn: what it raises ends the call.

So a caller that may not sample any more (a trainer updates the weights) stops a call between its attempts.
"""


_PIECES = 32
"""Pieces of a prompt's text that are kept apart; more are joined."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptIds:
    """Token ids of a prompt, each known to be an integer of at least 0.

    Attributes:
        pieces: The ids in JSON, without the brackets, in pieces: a longer prompt shares those of the shorter one.
        length: Number of ids.
        highest: The largest id, or -1 where there is none: what a vocabulary is compared with.
        size: Bytes of all pieces.
    """

    pieces: tuple[bytes, ...] = ()
    length: int = 0
    highest: int = -1
    size: int = 0

    @classmethod
    def of(cls, ids: Sequence[int] | array[int] | Any) -> PromptIds:
        """Check ids and write them as JSON.

        Args:
            ids: A list or tuple of integers, an integer `array`, or a one-dimensional integer ndarray.

        Raises:
            SGLangRequestError: No ids, something else than integers, or a negative one.
        """
        plain: Any = ids.tolist() if isinstance(ids, array) else ids
        highest = validate_input_ids(plain)
        plain = plain.tolist() if hasattr(plain, "tolist") else plain
        text = orjson.dumps(plain)[1:-1]
        return cls((text,), len(plain), highest, len(text))

    def followed_by(self, ids: array[int]) -> PromptIds:
        """These ids and further ones; only the further ones are checked and encoded.

        Raises:
            SGLangRequestError: One of the further ids is negative.
        """
        if not ids:
            return self
        values = ids.tolist()
        text = orjson.dumps(values)
        if b"-" in text:
            PromptIds.of(ids)  # says what is wrong
        piece = b",%b" % text[1:-1] if self.length else text[1:-1]
        pieces = (*self.pieces, piece)
        if len(pieces) > _PIECES:
            pieces = (b"".join(pieces),)
        return PromptIds(pieces, self.length + len(values), max(self.highest, max(values)), self.size + len(piece))

    def __len__(self) -> int:
        return self.length

    def tolist(self) -> list[int]:
        """The ids as a fresh list."""
        ids: list[int] = orjson.loads(b"".join((b"[", *self.pieces, b"]")))
        return ids


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """A checked `/generate` request. `checked` makes one of anything; the constructor trusts what it is given.

    Attributes:
        prompt: The prompt.
        fields: Top-level fields without the prompt, the id and the routing key; `sampling_params` among them.
        rid: Id of the first attempt, or None for a random one.
        routing_key: Session affinity key, or None.
        vocab_size: Number of ids the model has, or None if unknown; the answer is checked against it.
        growth: Tokens by which the server's prompt is longer than the ids that are sent: what images expand to.
    """

    prompt: PromptIds
    fields: Mapping[str, Any] = field(default_factory=dict)
    rid: str | None = None
    routing_key: str | None = None
    vocab_size: int | None = None
    growth: int = 0

    @classmethod
    def checked(
        cls,
        prompt: PromptIds,
        fields: Mapping[str, Any],
        *,
        vocab_size: int | None = None,
        extra_sampling_keys: Collection[str] = (),
        growth: int = 0,
    ) -> GenerateRequest:
        """Check the fields of a request.

        Args:
            prompt: The prompt.
            fields: Top-level fields, `rid` and `routing_key` among them; never changed. Those that are None are left
                out.
            vocab_size: Rows of the embedding: token ids must be below it. None if unknown.
            extra_sampling_keys: Sampling parameters to let through unchecked.
            growth: Tokens by which images make the server's prompt longer.

        Raises:
            SGLangRequestError: A field of the wrong type or out of range, an unknown sampling parameter, or a token id
                outside the vocabulary.
        """
        check_vocabulary(prompt.highest, vocab_size)
        checked = validate_fields(fields, len(prompt) + growth, vocab_size)
        if "sampling_params" in checked:
            params = validate_sampling_params(
                checked["sampling_params"], extra_keys=extra_sampling_keys, vocab_size=vocab_size
            )
            if params.get("n", 1) != 1:
                raise SGLangRequestError(f"sampling_params['n']={params['n']}: a call has one answer")
            checked["sampling_params"] = params
        rid, routing_key = checked.pop("rid", None), checked.pop("routing_key", None)
        return cls(
            prompt=prompt, fields=checked, rid=rid, routing_key=routing_key, vocab_size=vocab_size, growth=growth
        )

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt as the server counts it."""
        return len(self.prompt) + self.growth

    @property
    def max_new_tokens(self) -> int | None:
        """Most tokens that may be sampled; None where the request leaves it to the server."""
        limit = (self.fields.get("sampling_params") or {}).get("max_new_tokens")
        return limit if isinstance(limit, int) else None

    def with_prompt(self, prompt: PromptIds, **fields: Any) -> GenerateRequest:
        """The same request for another prompt, with some fields replaced; both are trusted."""
        return replace(self, prompt=prompt, fields={**self.fields, **fields})

    def keywords(self) -> dict[str, Any]:
        """The arguments of `generate` besides the ids, for clients that take it in that form."""
        named = {"rid": self.rid, "routing_key": self.routing_key}
        return {**self.fields, **{name: value for name, value in named.items() if value is not None}}

    def encode_fields(self) -> bytes:
        """The fields in JSON, without the closing brace.

        Raises:
            SGLangRequestError: They hold something that JSON cannot represent.
        """
        try:
            return orjson.dumps({**self.fields, "stream": False}, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        except orjson.JSONEncodeError as error:
            raise SGLangRequestError(f"the request cannot be written as JSON: {error}") from error

    def body(self, rid: str, encoded_fields: bytes) -> tuple[bytes, ...]:
        """The whole request in JSON, in pieces, so that the prompt is copied once, into what is sent.

        Args:
            rid: Id of the attempt.
            encoded_fields: What `encode_fields` returned, which all attempts share.
        """
        return b'{"rid":', orjson.dumps(rid), b",", encoded_fields, b',"input_ids":[', *self.prompt.pieces, b"]}"
