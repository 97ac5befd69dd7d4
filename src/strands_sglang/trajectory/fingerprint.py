"""Digests and prints by which a history is recognised.

A client hands over a fresh, normalised copy of the history with every call: neither object identity nor message ids
survive. What survives is the content, so a call is located by a chain of digests over its messages. A turn that was
sampled here is recognised by its `ReplyPrint`: the ids of its tool calls, its text and its reasoning, which come back
as they were given, while arguments and names may be rewritten.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import orjson

BLANK_TEXT = "[blank text]"
"""The SDK's stand-in for an assistant message without visible text."""


def digest(*parts: bytes) -> bytes:
    """A 16-byte digest of the parts; their boundaries count."""
    whole = b"".join([piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)])
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


def digest_after(key: bytes, message: Mapping[str, Any]) -> bytes:
    """Digest of the history with digest `key` and one more message, not sampled here, as a chat template would see it.

    Whether text comes as one block or several, in which order tools finished, and directions to a provider's cache make
    no difference to what is printed, so they make none here.
    """
    printed = encode_value([message.get("role"), _as_printed(message.get("content"))])
    return hashlib.blake2b(printed, digest_size=16, key=key).digest()


def _as_printed(content: Any) -> Any:
    if isinstance(content, str):
        return [{"text": content}]
    if not isinstance(content, list):
        return content
    printed: list[Any] = []
    results: list[tuple[str, bool, Any]] = []
    for block in content:
        if not isinstance(block, (dict, Mapping)):  # the plain type first: it is tested faster
            continue
        for kind, value in block.items():  # each is printed, as if it were a block of its own
            if kind == "toolResult":
                name, is_error = str(value.get("toolUseId")), value.get("status") == "error"
                results.append((name, is_error, _as_printed(value.get("content"))))
            elif kind == "text" and printed and "text" in printed[-1]:
                printed[-1] = {"text": f"{printed[-1]['text']}\n{value}"}
            elif kind != "cachePoint":
                printed.append({kind: value})
    if len(results) > 1:
        results.sort(key=itemgetter(0))
    return [*results, *printed]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyPrint:
    """The features by which a reply is recognised in a later history.

    Attributes:
        call_ids: Ids of its tool calls, in order.
        call_names: Names of the tools, in order.
        reasoning: The reasoning, or None where there is none.
    """

    call_ids: tuple[str, ...]
    call_names: tuple[str, ...]
    text: str
    reasoning: str | None

    @classmethod
    def of(cls, *, calls: Sequence[tuple[str, str]] = (), text: str = "", reasoning: str = "") -> ReplyPrint:
        """The print of a reply as the caller is given it; calls are (id, name)."""
        visible, thought = text.strip(), reasoning.strip()
        return cls(
            call_ids=tuple([call_id for call_id, _ in calls]),
            call_names=tuple([name for _, name in calls]),
            text="" if visible == BLANK_TEXT else visible,
            reasoning=thought or None,
        )

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> ReplyPrint | None:
        """The print of an assistant message in a history, or None when it holds a block never emitted here."""
        texts: list[str] = []
        reasoning: list[str] = []
        calls: list[tuple[str, str]] = []
        content = message.get("content")
        if isinstance(content, str):
            content = [{"text": content}]
        for block in content or ():
            for kind, value in block.items():
                if kind == "text":
                    texts.append(value)
                elif kind == "toolUse":
                    calls.append((str(value.get("toolUseId")), str(value.get("name"))))
                elif kind == "reasoningContent" and "reasoningText" in value:
                    reasoning.append(value["reasoningText"].get("text") or "")
                elif kind != "cachePoint":
                    return None
        return cls.of(calls=calls, text="".join(texts), reasoning="".join(reasoning))

    def is_seen_in(self, observed: ReplyPrint, *, with_ids: bool = True) -> bool:
        """True if an observed message is this reply: same calls, same text, and the same reasoning or none at all.

        Without `with_ids`, for a client that gives every call an id of its own, names and number of the calls count.
        """
        same_calls = self.call_ids == observed.call_ids
        if not with_ids:
            same_calls = bool(self.call_ids) and self.call_names == observed.call_names
        return same_calls and self.text == observed.text and observed.reasoning in (None, self.reasoning)
