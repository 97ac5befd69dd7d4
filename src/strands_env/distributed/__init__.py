"""Executors for `Evaluator(executor=...)` that run rollouts elsewhere: worker processes, and Ray."""

from __future__ import annotations

from .errors import QuarantinedTaskError, WorkerLostError, WorkerSetupError
from .processes import ProcessExecutor
from .ray import RayExecutor

__all__ = ["ProcessExecutor", "QuarantinedTaskError", "RayExecutor", "WorkerLostError", "WorkerSetupError"]
