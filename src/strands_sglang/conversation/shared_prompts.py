"""Dialects and first prompts that all rollouts of one tokenizer share: a group renders and encodes its prompt once.

Each rollout has a model of its own, and thousands of them have the same tools and begin alike. Keys are digests of all
that an entry was made from, in a form that tells all types apart; what has no such form is not shared.
"""

from __future__ import annotations

import marshal
import threading
import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from .fast_paths import FastPath
from .recent import Recent


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRoot:
    """A first prompt as it was rendered and encoded; `in_reasoning` if it ends inside a reasoning block.

    `ids` are copied before they are handed on; `characters` is the length of the text.
    """

    ids: array[int]
    characters: int
    in_reasoning: bool


class SharedPrompts:
    """The dialects and first prompts of one tokenizer.

    Attributes:
        dialects: Dialects by all that they are made from.
        roots: First prompts by dialect and messages; bounded by the number of ids.
    """

    def __init__(self) -> None:
        self.dialects: Recent[Any] = Recent(256)
        self.roots: Recent[EncodedRoot] = Recent(1 << 22)

    def key(self, parts: Sequence[Any]) -> bytes | None:
        """Key of what is made from these parts alone; None where it is not to be shared."""
        return _digest(parts) if FastPath.SHARED_PROMPTS.is_on else None

    def root_key(self, dialect: bytes | None, messages: list[dict[str, Any]]) -> bytes | None:
        """Key of the prompt of these messages in a dialect."""
        return None if dialect is None else _digest(messages, dialect)


_shared: weakref.WeakKeyDictionary[Any, SharedPrompts] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def shared_prompts(codec: Any) -> SharedPrompts:
    """What the rollouts with this codec share, of which there is one a tokenizer."""
    with _lock:
        return _shared.setdefault(codec, SharedPrompts())


def _digest(value: Any, key: bytes = b"") -> bytes | None:
    try:
        # Unlike JSON, it tells all types apart, and it refuses those that it cannot. Version 2 knows no references.
        return blake2b(marshal.dumps(value, 2), digest_size=16, key=key).digest()
    except ValueError:
        return None
