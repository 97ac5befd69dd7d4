"""The switch of the fast paths.

A fast path stands beside a plain path that says what is right; it gives the same ids, events and messages in less time.
`STRANDS_ROLLOUT_PLAIN=1` turns all of them off; names turn off single ones: `STRANDS_ROLLOUT_PLAIN=pieces,flat_loop`.
What each saves: "Fast paths" in `docs/architecture.md`.
"""

from __future__ import annotations

import os
from enum import StrEnum
from functools import lru_cache

VARIABLE = "STRANDS_ROLLOUT_PLAIN"
"""The environment variable: `1`, or names of fast paths, separated by commas."""


class FastPath(StrEnum):
    """A fast path."""

    PIECES = "pieces"
    """Byte-level BPE encodes and decodes piece by piece in Python; plainly, the Rust tokenizer does. In
    `tokenizer/pieces.py`."""
    HISTORY_MEMORY = "history_memory"
    """The path of a history is followed from where the last call ended; plainly, from its start. In
    `trajectory/history.py`."""
    SHARED_PROMPTS = "shared_prompts"
    """Rollouts that begin alike share their first prompt; plainly, each renders it. `SharedPrompts`."""
    FLAT_LOOP = "flat_loop"
    """The SDK's loop runs turn after turn; plainly, each turn inside the one before. In
    `strands_env/core/sdk_patches.py`, as the others below."""
    SHARED_HISTORY = "shared_history"
    """The SDK shares the history with models that only read it; plainly, it copies it twice a turn."""
    SILENT_SPANS = "silent_spans"
    """The history is written as JSON for spans that record; plainly, for all."""

    @property
    def is_on(self) -> bool:
        """True unless the environment turned it off.

        Raises:
            ValueError: The environment variable names something else.
        """
        return self not in turned_off()


def turned_off() -> frozenset[FastPath]:
    """The fast paths that the environment turns off now; raises as `FastPath.is_on`."""
    return _named(os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=8)
def _named(text: str) -> frozenset[FastPath]:
    names = {name.strip().lower() for name in text.split(",")} - {"", "0"}
    if "1" in names:
        return frozenset(FastPath)
    if unknown := names - set(FastPath):
        known = ", ".join(FastPath)
        raise ValueError(f"{VARIABLE}={text!r} names {sorted(unknown)[0]!r}: write 1, or some of {known}")
    return frozenset(map(FastPath, names))
