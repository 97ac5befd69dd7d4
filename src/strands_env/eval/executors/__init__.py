"""Executors for `Evaluator(executor=...)` that run rollouts elsewhere: worker processes, and Ray."""

from __future__ import annotations

from .processes import ProcessExecutor
from .ray import RayExecutor
from .worker import QuarantinedTaskError, WorkerLostError, WorkerSetupError

__all__ = ["ProcessExecutor", "QuarantinedTaskError", "RayExecutor", "WorkerLostError", "WorkerSetupError"]
