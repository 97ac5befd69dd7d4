"""Incremental prompt cache of one path: a call costs what is new."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from typing import NamedTuple

from ..backends import PromptIds
from ..trajectory import Turn
from ..trajectory.media import Medium, moved

_CAPACITY_BYTES = 1 << 25
"""Prompt text that one model keeps; the text of a path that was pushed out is written again from its ids."""

_PROMPTS = 8
"""Prompts of calls whose turns are not held yet."""


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

    def followed_by(self, turn: Turn, prompt: PromptIds) -> HeldPath:
        """This path and one more turn; `prompt` holds the ids of this path and the prompt of the turn."""
        done = turn.completion
        stop, rows = done.finish.stop_token_id, turn.expanded_end - 1 - max(turn.start + self.growth - 1, 0)
        experts = done.routed_experts
        return HeldPath(
            ids=prompt.followed_by(done.output_ids),
            media=self.media + moved(turn.media, len(self.ids)),
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
        self._keeps = keeps
        self._paths: OrderedDict[Turn, HeldPath] = OrderedDict()
        self._bytes = 0
        # The latest prompts by the identity of their last ids, which the turn that comes of one will hold.
        self._prompts: OrderedDict[int, tuple[PromptIds, array[int], PromptIds]] = OrderedDict()
        self._lock = threading.RLock()

    def clear(self) -> None:
        """Forget them, as when the episode ends."""
        with self._lock:
            self._paths.clear()
            self._prompts.clear()
            self._bytes = 0

    def extended(self, path: HeldPath, ids: array[int]) -> PromptIds:
        """The prompt of a call: the ids of a path and new ones. It is kept for the turn."""
        prompt = path.ids.followed_by(ids)
        if self._keeps:
            with self._lock:
                self._prompts[id(ids)] = path.ids, ids, prompt
                while len(self._prompts) > _PROMPTS:
                    self._prompts.popitem(last=False)
        return prompt

    def up_to(self, turn: Turn | None) -> HeldPath:
        """The path that ends with a turn; the empty one for None."""
        missing: list[Turn] = []
        path = HeldPath()
        with self._lock:
            while turn is not None and turn not in self._paths:
                missing.append(turn)
                turn = turn.parent
            if turn is not None:
                path = self._paths[turn]
                self._paths.move_to_end(turn)
            for later in reversed(missing):
                before, ids, prompt = self._prompts.pop(id(later.prompt_ids), (None, None, PromptIds()))
                if ids is not later.prompt_ids or before is not path.ids:
                    prompt = path.ids.followed_by(later.prompt_ids)
                path = path.followed_by(later, prompt)
            if missing and self._keeps:
                self._keep(missing[0], path)
        return path

    def _keep(self, turn: Turn, path: HeldPath) -> None:
        self._paths[turn] = path
        self._bytes += path.ids.size
        if turn.parent is not None:  # it has been extended; a second extension walks back from here
            self._drop(turn.parent)
        while self._bytes > _CAPACITY_BYTES and len(self._paths) > 1:
            self._drop(next(iter(self._paths)))

    def _drop(self, turn: Turn) -> None:
        path = self._paths.pop(turn, None)
        if path is not None:
            self._bytes -= path.ids.size
