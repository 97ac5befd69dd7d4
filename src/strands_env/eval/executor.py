"""Where rollouts run: the interface of executors."""

from __future__ import annotations

from typing import Protocol

from strands_env.core import Action, StepResult
from strands_env.core.rollout import EnvFactory, LocalExecutor

__all__ = ["EnvFactory", "Executor", "LocalExecutor"]


class Executor(Protocol):
    """Runs whole rollouts. `strands_env.distributed` has executors over processes and Ray.

    Asked for where an executor has them: a keyword `timeout` of `rollout`, the `sample_timeout`, so that
    it is kept where the phases of the episode are known; the attributes `env_factory_name`, and `environments`,
    descriptions (`describe`) of the environments it runs elsewhere, so that results of other ones are not continued.
    """

    async def rollout(self, action: Action) -> StepResult:
        """Run one rollout with a fresh environment.

        An exception is a failure of the executor or of the environment's own code; a `ConnectionError` is a worker
        that died, whose rollout may be run again. One with a true attribute `is_fatal` ends the evaluation.
        """

    async def close(self) -> None:
        """Free what the executor started, and nothing else."""
