"""The ids of a prompt, checked once where they enter and held as the JSON text in which they are sent.

A path grows by appending text, so a turn costs what is new, and ids that were checked once are not looked at again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ..exceptions import BackendRequestError

_CHUNKS = 32
"""Chunks of a prompt's text that are kept apart; more are joined."""


def _plain_ids(ids: Any) -> Sequence[int]:
    """Ids as Python integers; no Python code runs per token."""
    if not isinstance(ids, list | tuple):
        if not hasattr(ids, "tolist"):  # an array has it, and an ndarray
            raise BackendRequestError(f"input_ids is a {type(ids).__name__}: expected a list of integer token ids")
        ids = ids.tolist()
        if not isinstance(ids, list):
            raise BackendRequestError("input_ids is a single number: expected a list of integer token ids")
    if not ids:
        raise BackendRequestError("input_ids is empty: expected at least one token id")
    if not set(map(type, ids)) <= {int}:
        where = next(i for i, item in enumerate(ids) if type(item) is not int)
        raise BackendRequestError(f"input_ids[{where}]={ids[where]!r}: expected an integer token id")
    plain: Sequence[int] = ids
    if (lowest := min(plain)) < 0:
        raise BackendRequestError(f"input_ids has {lowest}: a negative id would kill the server")
    return plain


def check_vocabulary(highest: int, vocab_size: int | None) -> None:
    """Refuse a prompt (`BackendRequestError`) whose largest id is outside the vocabulary; None if it is unknown."""
    if vocab_size is not None and highest >= vocab_size:
        raise BackendRequestError(
            f"input_ids has {highest}, outside the vocabulary of {vocab_size}: it would kill the server; "
            "is this the tokenizer of the served model?"
        )


@dataclass(frozen=True, slots=True, eq=False)
class PromptIds:
    """Token ids of a prompt, each known to be an integer of at least 0.

    Attributes:
        chunks: The ids in JSON, without the brackets, in chunks: a longer prompt shares those of the shorter one.
        highest: The largest id, or -1 where there is none: what a vocabulary is compared with.
        size: Bytes of all chunks.
    """

    chunks: tuple[bytes, ...] = ()
    length: int = 0
    highest: int = -1
    size: int = 0

    @classmethod
    def of(cls, ids: Sequence[int] | array[int] | Any) -> PromptIds:
        """Check ids (a list, tuple, array or ndarray) and write them as JSON.

        Raises:
            BackendRequestError: There are none, or they are not integers from 0 on in one dimension.
        """
        plain = _plain_ids(ids)
        text = orjson.dumps(plain)[1:-1]
        return cls((text,), len(plain), max(plain), len(text))

    def followed_by(self, ids: array[int]) -> PromptIds:
        """These ids and further ones, which alone are checked and encoded; `BackendRequestError` for a negative one."""
        if not ids:
            return self
        values = ids.tolist()
        text = orjson.dumps(values)
        if b"-" in text:
            PromptIds.of(ids)  # says what is wrong
        chunk = b",%b" % text[1:-1] if self.length else text[1:-1]
        chunks = (*self.chunks, chunk)
        if len(chunks) > _CHUNKS:
            chunks = (b"".join(chunks),)
        return PromptIds(chunks, self.length + len(values), max(self.highest, max(values)), self.size + len(chunk))

    def __len__(self) -> int:
        return self.length

    def tolist(self) -> list[int]:
        """The ids as a fresh list."""
        ids: list[int] = orjson.loads(b"".join((b"[", *self.chunks, b"]")))
        return ids
