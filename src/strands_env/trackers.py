"""Experiment trackers behind one small interface: W&B, MLflow, TensorBoard and trackio (extra `trackers`).

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
import os
import queue
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from strands_sglang.exceptions import did_you_mean

__all__ = ["TRACKERS", "BackgroundTracker", "Tracker", "TrackerError", "make_tracker", "numbers_of"]

logger = logging.getLogger(__name__)


class TrackerError(Exception):
    """A tracker is unknown, its package is missing, or it refuses to start."""


class Tracker(Protocol):
    """Destination of a run's numbers, with a fixed configuration; it may block."""

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Log numbers of one step. Steps do not go backwards."""

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
    if kind not in TRACKERS:
        raise TrackerError(
            f"unknown tracker {kind!r}{did_you_mean(kind, TRACKERS)}; expected one of {', '.join(TRACKERS)}"
        )
    try:
        return _KINDS[kind](project=project, name=name, config=dict(config or {}), folder=Path(folder))
    except ImportError as error:
        raise TrackerError(f"the tracker {kind!r} needs a package: pip install {kind} ({error})") from error
    except Exception as error:
        raise TrackerError(f"the tracker {kind!r} does not start: {type(error).__name__}: {error}") from error


class BackgroundTracker:
    """A tracker on a thread of its own: it never blocks who logs, and its failure is a warning, once."""

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
    found: dict[str, float] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found |= numbers_of(value, f"{path}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[path] = float(value)
    return found


class _WandbTracker:
    """A run of Weights & Biases; one that a trainer has opened is joined and left open.

    `WANDB_MODE=offline` writes files that `wandb sync` sends later.
    """

    def __init__(self, *, project: str, name: str, config: dict[str, Any], folder: Path) -> None:
        wandb: Any = import_module("wandb")
        self._is_own = wandb.run is None
        options = {"project": project, "name": name, "config": config, "dir": str(folder)}
        self._run = wandb.init(**options) if self._is_own else wandb.run
        self._run.define_metric("strands/step")
        self._run.define_metric("strands/*", step_metric="strands/step")

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Log with a step of our own: W&B's belongs to the trainer."""
        self._run.log({**{f"strands/{name}": value for name, value in metrics.items()}, "strands/step": step})

    def finish(self, summary: Mapping[str, float]) -> None:
        """Write the summary."""
        self._run.summary.update({f"strands/{name}": value for name, value in summary.items()})
        if self._is_own:
            self._run.finish()


class _LastStepTracker(ABC):
    """A tracker without a summary of its own: final numbers are logged at the last step, under `final/`."""

    _last_step = 0

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Log numbers of one step."""
        self._last_step = step
        self._write(metrics, step)

    def finish(self, summary: Mapping[str, float]) -> None:
        """Log the summary, and end the run."""
        self._write({f"final/{name}": value for name, value in summary.items()}, self._last_step)
        self._close()

    @abstractmethod
    def _write(self, metrics: Mapping[str, float], step: int) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...


class _MlflowTracker(_LastStepTracker):
    """A run of MLflow. Without `MLFLOW_TRACKING_URI` runs go to a database file in the folder."""

    _UNSAFE = re.compile(r"[^\w\-. /]")
    _MAX_PARAM = 6000

    def __init__(self, *, project: str, name: str, config: dict[str, Any], folder: Path) -> None:
        mlflow: Any = import_module("mlflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.resolve() / 'mlflow.db'}"
        folder.mkdir(parents=True, exist_ok=True)
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name(project)
        experiment = known.experiment_id if known is not None else self._client.create_experiment(project)
        self._run_id = self._client.create_run(experiment, run_name=name).info.run_id
        for key, value in config.items():
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            self._client.log_param(self._run_id, self._safe(key), text[: self._MAX_PARAM])

    def _write(self, metrics: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        for name, value in metrics.items():
            self._client.log_metric(self._run_id, self._safe(name), value, timestamp=now, step=step)

    def _close(self) -> None:
        self._client.set_terminated(self._run_id)

    def _safe(self, name: str) -> str:
        """A name that MLflow accepts: `pass@1` becomes `pass_at_1`."""
        return self._UNSAFE.sub("_", name.replace("@", "_at_").replace("^", "_hat_"))


class _TensorBoardTracker(_LastStepTracker):
    """Event files in `folder/tensorboard/project/name`, written without torch."""

    def __init__(self, *, project: str, name: str, config: dict[str, Any], folder: Path) -> None:
        summary: Any = import_module("tensorboard.summary")
        place = folder / "tensorboard" / project / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps(config, indent=2, default=str), encoding="utf-8")
        self._writer = summary.Writer(str(place))

    def _write(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def _close(self) -> None:
        self._writer.close()


class _TrackioTracker(_LastStepTracker):
    """A run of trackio: a database file under its own `TRACKIO_DIR`, shown by `trackio show`."""

    def __init__(self, *, project: str, name: str, config: dict[str, Any], folder: Path) -> None:
        self._trackio: Any = import_module("trackio")  # its functions belong to the run that was opened last
        self._trackio.init(project=project, name=name, config=config)

    def _write(self, metrics: Mapping[str, float], step: int) -> None:
        self._trackio.log(dict(metrics), step=step)

    def _close(self) -> None:
        self._trackio.finish()


_KINDS: Mapping[str, Callable[..., Tracker]] = {
    "wandb": _WandbTracker,
    "mlflow": _MlflowTracker,
    "tensorboard": _TensorBoardTracker,
    "trackio": _TrackioTracker,
}
TRACKERS = tuple(_KINDS)
