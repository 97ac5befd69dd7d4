"""What rollouts that begin alike share: a fast path beside rendering each first prompt anew."""

from __future__ import annotations

import marshal
import threading
import weakref
from hashlib import blake2b
from typing import Any

from ..cache import Recent


class SharedPrompts:
    """The formats and first prompts that all rollouts of one tokenizer share: a group renders its prompt once.

    Each rollout has a model of its own, and thousands of them have the same tools and begin alike.

    Attributes:
        formats: Formats by all that they are made from.
        roots: First prompts by format and messages, each with the length of its text; bounded by the number of ids.
    """

    def __init__(self) -> None:
        self.formats: Recent[Any] = Recent(256)
        self.roots: Recent[tuple[Any, int]] = Recent(1 << 22)


_shared: weakref.WeakKeyDictionary[Any, SharedPrompts] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def shared_prompts(codec: Any) -> SharedPrompts:
    """Formats and prompts that rollouts with this codec share; a tokenizer has one codec."""
    with _lock:
        return _shared.setdefault(codec, SharedPrompts())


def digest_parts(value: Any, key: bytes = b"") -> bytes | None:
    """Digest of all that a shared entry is made from; None where it has a part that cannot be told from others."""
    try:
        # Unlike JSON, it tells all types apart, and it refuses those that it cannot. Version 2 knows no references.
        return blake2b(marshal.dumps(value, 2), digest_size=16, key=key).digest()
    except ValueError:
        return None
