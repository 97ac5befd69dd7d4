"""The folder of an experiment: a state and, at its end, a result of every run, both replaced atomically."""

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
        settings: Shared by all runs of the folder; only the number of steps may grow.

    Raises:
        SystemExit: The folder holds runs of other settings.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        for part in ("runs", "states"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        file = folder / "settings.json"
        known = json.loads(file.read_text()) if file.exists() else settings
        for name in sorted(known.keys() | settings.keys()):
            if name != "steps" and known.get(name) != settings.get(name):
                raise SystemExit(
                    f"{folder} holds runs of --{name.replace('_', '-')} {known.get(name)}, not {settings.get(name)}; "
                    "use a folder for each"
                )

        self._replace(file, json.dumps(settings, indent=1).encode())

    def is_done(self, name: str, steps: int) -> bool:
        """The run has a result of so many steps."""
        file = self._result(name)
        return file.exists() and len(json.loads(file.read_text())["curves"]) >= steps

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
        """Write the result; the state stays, so that a run can be made longer."""
        self._replace(self._result(name), json.dumps(result).encode())

    def _replace(self, file: Path, content: bytes) -> None:
        file.with_suffix(".new").write_bytes(content)
        os.replace(file.with_suffix(".new"), file)

    def _result(self, name: str) -> Path:
        return self.folder / "runs" / f"{name}.json"

    def _state(self, name: str) -> Path:
        return self.folder / "states" / f"{name}.pt"
