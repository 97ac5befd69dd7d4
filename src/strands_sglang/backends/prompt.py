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


def validate_input_ids(ids: Sequence[int] | array[int] | Any, vocab_size: int | None = None) -> int:
    """Check prompt ids, and return the largest. An id outside the vocabulary kills an SGLang server and its requests.

    Costs one pass in C; no Python code runs per token.

    Args:
        ids: A list or tuple of integers, an integer `array`, or a one-dimensional integer ndarray.
        vocab_size: Rows of the embedding (ids are 0 to `vocab_size - 1`), or None if unknown.

    Raises:
        BackendRequestError: No ids, ids that are not integers, or ids outside the vocabulary.
    """
    if isinstance(ids, (list, tuple)):
        kinds = set(map(type, ids))
        if not kinds <= {int}:
            where = next(i for i, item in enumerate(ids) if type(item) is not int)
            raise BackendRequestError(f"input_ids[{where}]={ids[where]!r}: expected an integer token id")
    elif isinstance(ids, array):
        if ids.typecode not in "bBhHiIlLqQ":
            raise BackendRequestError(f"input_ids is an array of type {ids.typecode!r}: expected integers")
    elif hasattr(ids, "dtype") and hasattr(ids, "ndim"):  # an ndarray, without importing NumPy for it
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise BackendRequestError(f"input_ids is a {ids.ndim}-d array of {ids.dtype}: expected 1-d integers")
    else:
        raise BackendRequestError(f"input_ids is a {type(ids).__name__}: expected a list of integer token ids")
    if not len(ids):
        raise BackendRequestError("input_ids is empty: expected at least one token id")
    values: Any = ids
    if hasattr(values, "ndim"):
        values = values.tolist()
    low, high = min(values), max(values)
    if low < 0:
        raise BackendRequestError(f"input_ids has {low}: a negative id would kill the server")
    check_vocabulary(high, vocab_size)
    return int(high)


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
        """Check ids and write them as JSON; `BackendRequestError` for none, for non-integers, or for a negative one.

        Args:
            ids: A list or tuple of integers, an integer `array`, or a one-dimensional integer ndarray.
        """
        plain: Any = ids.tolist() if isinstance(ids, array) else ids
        highest = validate_input_ids(plain)
        plain = plain.tolist() if hasattr(plain, "tolist") else plain
        text = orjson.dumps(plain)[1:-1]
        return cls((text,), len(plain), highest, len(text))

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
