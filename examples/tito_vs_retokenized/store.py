"""The folder of an experiment: a state a run while it is made, a result when it is done, both replaced atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


class Store:
    """Results and states by the name of the run.

    Args:
        folder: Made if it does not exist.
        settings: What all runs of the folder share.

    Raises:
        SystemExit: The folder holds runs of other settings.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        for part in ("runs", "states"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        file = folder / "settings.json"
        if not file.exists():
            self._replace(file, json.dumps(settings, indent=1).encode())
        known = json.loads(file.read_text())
        for name in sorted(known.keys() | settings.keys()):
            if known.get(name) != settings.get(name):
                raise SystemExit(
                    f"{folder} holds runs of --{name.replace('_', '-')} {known.get(name)}, not {settings.get(name)}; "
                    "use a folder for each"
                )

    def is_done(self, name: str) -> bool:
        """The run has its result."""
        return self._result(name).exists()

    def load(self, name: str) -> Any:
        """The last saved state, or None."""
        file = self._state(name)
        return torch.load(file, weights_only=False) if file.exists() else None

    def save(self, name: str, state: Mapping[str, Any]) -> None:
        """Replace the state."""
        file = self._state(name)
        torch.save(state, file.with_suffix(".new"))
        os.replace(file.with_suffix(".new"), file)

    def finish(self, name: str, result: Mapping[str, Any]) -> None:
        """Write the result, and drop the state."""
        self._replace(self._result(name), json.dumps(result).encode())
        self._state(name).unlink(missing_ok=True)

    def _replace(self, file: Path, content: bytes) -> None:
        file.with_suffix(".new").write_bytes(content)
        os.replace(file.with_suffix(".new"), file)

    def _result(self, name: str) -> Path:
        return self.folder / "runs" / f"{name}.json"

    def _state(self, name: str) -> Path:
        return self.folder / "states" / f"{name}.pt"
