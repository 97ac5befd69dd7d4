"""The folder of the cache."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder for models, images and other things that can be fetched again.

    `$STRANDS_ROLLOUT_CACHE`, else `$XDG_CACHE_HOME/strands-rollout`, else `~/.cache/strands-rollout`.
    """
    if override := os.environ.get("STRANDS_ROLLOUT_CACHE"):
        return Path(override).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "strands-rollout"
