"""Experiment trackers behind one small interface: W&B, trackio and TensorBoard (extra `trackers`).

```python
tracker = make_tracker("wandb", project="my-agents", name="first", config={"model": "Qwen/Qwen3-8B"})
tracker.log({"reward": 0.5}, step=0)
tracker.finish({"pass@1": 0.5})
```
"""

from __future__ import annotations

import json
import logging
import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

__all__ = ["TRACKERS", "BackgroundTracker", "Tracker", "TrackerError", "make_tracker", "numbers_of"]

logger = logging.getLogger(__name__)


class TrackerError(Exception):
    """A tracker is unknown, its package is missing, or it refuses to start."""


class Tracker(Protocol):
    """Destination of a run's numbers, with a fixed configuration; it may block."""

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Log numbers of one step. Steps do not go backwards."""

    def log_table(self, name: str, rows: Sequence[Mapping[str, Any]], *, step: int) -> None:
        """Log rows of equal columns, where the tracker has tables: texts, numbers and None."""

    def finish(self, summary: Mapping[str, float]) -> None:
        """Log the final numbers, and end the run."""


def make_tracker(
    kind: str, *, project: str, name: str, config: Mapping[str, Any] | None = None, folder: str | Path = "."
) -> Tracker:
    """Open a run at a tracker.

    Args:
        kind: One of `TRACKERS`.
        config: Configuration to save; JSON values.
        folder: Where a tracker that writes files puts them, unless its own environment variables say otherwise.

    Raises:
        TrackerError: The tracker is unknown, its package is not installed, or it does not start.
    """
    check_tracker(kind)
    try:
        return _KINDS[kind](project=project, name=name, config=dict(config or {}), folder=Path(folder))
    except ImportError as error:
        raise TrackerError(f"the tracker {kind!r} needs a package: pip install {kind} ({error})") from error
    except Exception as error:
        raise TrackerError(f"the tracker {kind!r} does not start: {type(error).__name__}: {error}") from error


def check_tracker(kind: str) -> None:
    """Refuse an unknown tracker with a `TrackerError`."""
    if kind not in TRACKERS:
        from strands_sglang.exceptions import did_you_mean  # brings the SDK, which help does without

        hint = did_you_mean(kind, TRACKERS)
        raise TrackerError(f"unknown tracker {kind!r}{hint}; expected one of {', '.join(TRACKERS)}")


class BackgroundTracker:
    """A tracker on its own thread: it never blocks the caller, and its failure is a warning, once."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_broken = False
        self._thread = threading.Thread(target=self._work, name="strands-tracker", daemon=True)
        self._thread.start()

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Log numbers of one step, soon."""
        numbers = dict(metrics)
        self._queue.put(lambda: self._tracker.log(numbers, step=step))

    def log_table(self, name: str, rows: Sequence[Mapping[str, Any]], *, step: int) -> None:
        """Log a table, soon."""
        self._queue.put(lambda: self._tracker.log_table(name, rows, step=step))

    def finish(self, summary: Mapping[str, float], *, timeout: float = 60.0) -> None:
        """Log the final numbers, end the run, and wait for that; `timeout` in seconds, for an unreachable tracker."""
        numbers = dict(summary)
        self._queue.put(lambda: self._tracker.finish(numbers))
        self._queue.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            logger.warning("seconds=<%s> | the tracker did not finish in time", timeout)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            except Exception:  # of a service, a disk, a network: never the run's end
                if not self._is_broken:
                    logger.warning("the tracker failed, and misses numbers", exc_info=True)
                self._is_broken = True


def numbers_of(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The finite numbers in nested JSON values, by names such as `pass_at/1/value` behind the prefix."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            numbers |= numbers_of(value, f"{path}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            numbers[path] = float(value)
    return numbers


class WandbTracker:
    """A run of Weights & Biases, or of trackio, which has its interface.

    A run of W&B that a trainer has opened is joined and left open. `WANDB_MODE=offline` writes files that `wandb sync`
    sends later; trackio's are under `TRACKIO_DIR`.
    """

    def __init__(self, package: str, *, project: str, name: str, config: dict[str, Any], folder: Path) -> None:
        module: Any = import_module(package)
        self._module = module
        is_wandb = package == "wandb"
        opened = module.run if is_wandb else None
        options = {"dir": str(folder)} if is_wandb else {}
        self._run = opened or module.init(project=project, name=name, config=config, **options)
        self._is_own = opened is None
        if is_wandb:  # a trainer's run has its own steps
            self._run.define_metric("strands/*", step_metric="strands/step")

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Log numbers of one step."""
        self._log({f"strands/{name}": value for name, value in metrics.items()}, step)

    def _log(self, values: dict[str, Any], step: int) -> None:
        self._run.log({**values, "strands/step": step}, **({"step": step} if self._is_own else {}))

    def log_table(self, name: str, rows: Sequence[Mapping[str, Any]], *, step: int) -> None:
        """Log a table."""
        if rows:
            table = self._module.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
            self._log({f"strands/{name}": table}, step)

    def finish(self, summary: Mapping[str, float]) -> None:
        """Log the final numbers, and end the run unless it is the trainer's."""
        self._run.log({f"strands/final/{name}": value for name, value in summary.items()})
        if self._is_own:
            self._run.finish()


class TensorBoardTracker:
    """Event files in `folder/tensorboard/project/name`, written without torch; final numbers are under `final/`."""

    def __init__(self, *, project: str, name: str, config: dict[str, Any], folder: Path) -> None:
        summary: Any = import_module("tensorboard.summary")
        place = folder / "tensorboard" / project / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps(config, indent=2, default=str), encoding="utf-8")
        self._writer = summary.Writer(str(place))
        self._last_step = 0

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Log numbers of one step."""
        self._last_step = step
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def log_table(self, name: str, rows: Sequence[Mapping[str, Any]], *, step: int) -> None:
        """Nothing: TensorBoard has no tables."""

    def finish(self, summary: Mapping[str, float]) -> None:
        """Log the final numbers at the last step, and close the files."""
        self.log({f"final/{name}": value for name, value in summary.items()}, step=self._last_step)
        self._writer.close()


_KINDS: Mapping[str, Callable[..., Tracker]] = {
    "wandb": partial(WandbTracker, "wandb"),
    "trackio": partial(WandbTracker, "trackio"),
    "tensorboard": TensorBoardTracker,
}
TRACKERS = tuple(_KINDS)
