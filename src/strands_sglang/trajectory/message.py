"""The one form of a message, and the digests by which histories are recognised.

A message is read once, where it enters (`conversation.messages` for the SDK's, a dialect of the gateway for those on
the wire), and refused there if a chat template has no place for a part of it. From then on everything asks the same
object: the digest of a history, the memory of followed histories, the recognition of replies, and the renderer. Its
`key` is made of all that is printed, so two messages with one key print the same; but for parts that one call alone is
shown, which no later history has.
"""

from __future__ import annotations

import hashlib
import json
import marshal
from collections.abc import Iterator, Reversible, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

BLANK_TEXT = "[blank text]"
"""The SDK's stand-in for an assistant message without visible text."""


def digest(*parts: bytes) -> bytes:
    """A 16-byte digest of the parts; their boundaries count."""
    whole = b""
    for part in parts:  # few
        whole += len(part).to_bytes(8, "little") + part
    return hashlib.blake2b(whole, digest_size=16).digest()


def encode_value(value: Any) -> bytes:
    """Bytes of a JSON-like value; raw bytes (images) enter by their digest. The order of keys counts: it is printed."""
    try:
        return orjson.dumps(value, default=encode_other, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, orjson.JSONEncodeError):  # lone surrogates, integers beyond 64 bits
        return json.dumps(value, default=encode_other, ensure_ascii=True).encode()


def encode_other(value: Any) -> Any:
    """JSON stand-in for a value that JSON does not know."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"__bytes__": hashlib.blake2b(value, digest_size=16).hexdigest()}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return repr(value)


def digest_after(key: bytes, message: Message) -> bytes:
    """Digest of the history with digest `key` and one more message."""
    return hashlib.blake2b(message.key, digest_size=16, key=key).digest()


@dataclass(frozen=True, slots=True)
class Image:
    """An encoded image.

    Attributes:
        kind: Its format as the sender names it, such as `png`.
        problem: Why it cannot be shown, if the sender gave something other than an image; empty for an image.
        key: Digest of the data.
    """

    data: bytes
    kind: str = "png"
    problem: str = ""
    key: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", digest(self.data, self.problem.encode()))


Parts = tuple[str | Image, ...]
"""Content in order; neighbouring texts are one."""


class Call(NamedTuple):
    """A tool call of an assistant message; an `input` that is not an object is the text of a malformed call."""

    id: str
    name: str
    input: Any


class Result(NamedTuple):
    """The result of a tool call."""

    call_id: str
    parts: Parts
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Message:
    """A message of a history. Messages with equal keys are equal.

    Attributes:
        role: `user`, `assistant` or `system`.
        results: Results of tools, in the order of the calls that they answer; printed before `parts`.
        receipt: Index of the turn that an assistant message came from, where the caller can prove it.
        durable: The message as later histories have it, where one call alone is shown more; it gives the key.
    """

    role: str
    parts: Parts = ()
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()
    receipt: int | None = None
    durable: Message | None = None
    _identity: tuple[bytes, int] | None = field(default=None, init=False, repr=False)

    def _identify(self) -> tuple[bytes, int]:
        identity = self._identity
        if identity is None:
            results = [(result.call_id, _keys(result.parts), result.is_error) for result in self.results]
            calls = list(map(tuple, self.calls))
            # Unlike JSON it tells 1, 1.0 and True apart, and refuses other types. Version 2 has no references.
            whole = marshal.dumps((self.role, _keys(self.parts), self.reasoning, calls, results, self.receipt), 2)
            identity = hashlib.blake2b(whole, digest_size=16).digest(), len(whole)
            object.__setattr__(self, "_identity", identity)
        return identity

    @property
    def key(self) -> bytes:
        """Digest of its lasting form; made on demand, which never comes for a reply that was sampled here."""
        return (self if self.durable is None else self.durable)._identify()[0]

    @property
    def size(self) -> int:
        """Its length in bytes, images aside."""
        return self._identify()[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def text(self) -> str:
        """Its texts, joined by newlines."""
        return "\n".join([part for part in self.parts if isinstance(part, str)])

    @property
    def images(self) -> Iterator[Image]:
        """Its images, those of results first."""
        for parts in (*[result.parts for result in self.results], self.parts):
            yield from [part for part in parts if isinstance(part, Image)]

    @property
    def call_ids(self) -> tuple[str, ...]:
        """Ids of its calls, in order."""
        return tuple([call.id for call in self.calls])

    @property
    def visible(self) -> tuple[tuple[str, ...], str]:
        """Ids of its calls, and its text without blanks at the ends: clients give both back unchanged."""
        text = self.text.strip()
        return self.call_ids, "" if text == BLANK_TEXT else text

    def is_seen_in(self, observed: Message, *, with_ids: bool = True) -> bool:
        """True if an observed message is this reply: same calls, same text, and the same reasoning or none at all.

        Names and arguments may have been rewritten. Without `with_ids`, for a client that gives every call an id of its
        own, names and number of the calls count.
        """
        if observed is self:
            return True
        (ids, text), (observed_ids, observed_text) = self.visible, observed.visible
        same_calls = ids == observed_ids
        if not with_ids:
            same_calls = bool(ids) and [call.name for call in self.calls] == [call.name for call in observed.calls]
        is_text = not observed.parts or observed.parts == (observed.text,)
        if not same_calls or text != observed_text or not is_text:
            return False
        return observed.reasoning.strip() in ("", self.reasoning.strip())


def _keys(parts: Parts) -> list[str | bytes]:
    return [part if isinstance(part, str) else part.key for part in parts]


def join_parts(parts: Sequence[str | Image], glue: str = "\n") -> Parts:
    """Parts with neighbouring texts joined, by a newline as the SDK joins those of a system prompt."""
    joined: list[str | Image] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += glue + part
        else:
            joined.append(part)
    return tuple(joined)


def order_results(results: Sequence[Result], before: Reversible[Message]) -> tuple[Result, ...]:
    """Results in the order of the calls of the last reply before them; those of no call of it stand last."""
    if len(results) > 1:
        reply = next((message for message in reversed(before) if message.role == "assistant"), None)
        places = {} if reply is None else {call.id: at for at, call in reversed(list(enumerate(reply.calls)))}
        results = sorted(results, key=lambda result: places.get(result.call_id, len(places)))
    return tuple(results)
