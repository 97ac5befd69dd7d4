"""What a conversation keeps between calls, so that a call costs what is new."""

from __future__ import annotations

import marshal
import threading
import weakref
from array import array
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from ..backends import PromptIds
from ..cache import Recent
from ..trajectory import Turn
from ..trajectory.media import Medium, move_media

# ---- dialects and first prompts ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRoot:
    """A first prompt as it was rendered and encoded, and the tags of the reasoning block that it leaves `open`.

    `ids` are copied before they are handed on; `characters` is the length of the text.
    """

    ids: array[int]
    characters: int
    open: tuple[str, str] | None


class SharedPrompts:
    """The dialects and first prompts that all rollouts of one tokenizer share: a group renders its prompt once.

    Each rollout has a model of its own, and thousands of them have the same tools and begin alike.

    Attributes:
        dialects: Dialects by all that they are made from.
        roots: First prompts by dialect and messages; bounded by the number of ids.
    """

    def __init__(self) -> None:
        self.dialects: Recent[Any] = Recent(256)
        self.roots: Recent[EncodedRoot] = Recent(1 << 22)


_shared: weakref.WeakKeyDictionary[Any, SharedPrompts] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def shared_prompts(codec: Any) -> SharedPrompts:
    """Dialects and prompts that rollouts with this codec share; a tokenizer has one codec."""
    with _lock:
        return _shared.setdefault(codec, SharedPrompts())


def digest_parts(value: Any, key: bytes = b"") -> bytes | None:
    """Digest of all that a shared entry is made from; None where it has a part that cannot be told from others."""
    try:
        # Unlike JSON, it tells all types apart, and it refuses those that it cannot. Version 2 knows no references.
        return blake2b(marshal.dumps(value, 2), digest_size=16, key=key).digest()
    except ValueError:
        return None


# ---- paths ------------------------------------------------------------------------------------------------------


_CAPACITY_BYTES = 1 << 25
"""Prompt text that one model keeps; the text of a path that was pushed out is written again from its ids."""


class HeldPath(NamedTuple):
    """The turns that a call extends.

    Attributes:
        media: Images of their prompts in order; positions are those in `ids`.
        growth: Tokens by which those images make the path longer for the server.
        first_prompt: Length of the first prompt as the server counts it, or None for the empty path.
        stop_ids: Stop tokens that ended them.
        expert_row_bytes: Bytes of routed experts of one token, or None if unknown.
    """

    ids: PromptIds = PromptIds()
    media: tuple[Medium, ...] = ()
    growth: int = 0
    first_prompt: int | None = None
    stop_ids: frozenset[int] = frozenset()
    expert_row_bytes: int | None = None

    @property
    def tokens(self) -> int:
        """Length of the path as the server counts it."""
        return len(self.ids) + self.growth

    def followed_by(self, turn: Turn, prompt: PromptIds | None = None) -> HeldPath:
        """This path and one more turn; `prompt` is what that turn was sampled from, where it is at hand."""
        prompt = prompt or self.ids.followed_by(turn.prompt_ids)
        done = turn.completion
        stop, rows = done.finish.stop_token_id, turn.expanded_end - 1 - max(turn.start + self.growth - 1, 0)
        experts = done.routed_experts
        return HeldPath(
            ids=prompt.followed_by(done.output_ids),
            media=self.media + move_media(turn.media, len(self.ids)),
            growth=turn.growth,
            first_prompt=len(prompt) + turn.growth if self.first_prompt is None else self.first_prompt,
            stop_ids=self.stop_ids if stop is None else self.stop_ids | {stop},
            expert_row_bytes=len(experts) // rows if experts and rows else self.expert_row_bytes,
        )


class HeldPaths:
    """The paths that were extended lately, by their last turn. They may be asked for from several threads.

    Args:
        keeps: False makes every path from its turns.
    """

    def __init__(self, *, keeps: bool = True) -> None:
        self._paths: Recent[HeldPath] = Recent(_CAPACITY_BYTES if keeps else 0)
        self._keeps = keeps
        self._asked: tuple[array[int], PromptIds] | None = None

    def prompt(self, path: HeldPath, ids: array[int]) -> PromptIds:
        """The prompt of a call that appends these ids to a path; the path of its turn goes on from there."""
        prompt = path.ids.followed_by(ids)
        self._asked = (ids, prompt) if self._keeps else None
        return prompt

    def up_to(self, turn: Turn | None) -> HeldPath:
        """The path that ends with a turn; the empty one for None."""
        missing: list[Turn] = []
        path: HeldPath | None = None
        while turn is not None and (path := self._paths.get(turn)) is None:
            missing.append(turn)
            turn = turn.parent
        path = path or HeldPath()
        for later in reversed(missing):
            asked = self._asked  # by object: an array of ids is appended to one path only
            path = path.followed_by(later, asked[1] if asked and asked[0] is later.prompt_ids else None)
        if missing:
            self._paths.put(missing[0], path, path.ids.size)
            if missing[0].parent is not None:  # it has been extended; a second extension walks back from here
                self._paths.drop(missing[0].parent)
        return path
