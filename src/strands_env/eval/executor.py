"""Where rollouts run: the interface of executors."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

from strands_env.core import Action, EpisodeTimeoutError, Phase, StepResult
from strands_env.core.deadline import within
from strands_env.core.rollout import EnvFactory, LocalExecutor

__all__ = ["EnvFactory", "Executor", "LocalExecutor", "rollout_within"]

UNANSWERED_SECONDS = 120.0
"""How long after `sample_timeout` an executor may take to answer: the time of a cleanup, and some more."""


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


async def rollout_within(executor: Executor, action: Action, timeout: float | None) -> StepResult:
    """A rollout with a deadline, kept by the executor where it can.

    Args:
        executor: Where it runs.
        action: The task.
        timeout: Seconds for everything before the cleanup.

    Raises:
        EpisodeTimeoutError: They passed.
        ConnectionError: What keeps the deadline did not answer: a worker is lost, and the rollout may be run again.
    """
    if isinstance(executor, LocalExecutor):
        return await executor.rollout(action, timeout=timeout)
    if timeout is None or "timeout" not in inspect.signature(executor.rollout).parameters:
        return await within(executor.rollout(action), timeout, Phase.LOOP)
    rollout: Any = executor.rollout

    async def answer() -> StepResult | Exception:
        try:
            return await rollout(action, timeout=timeout)  # type: ignore[no-any-return]
        except Exception as error:
            return error

    patience = timeout + UNANSWERED_SECONDS
    try:
        answered = await within(answer(), patience, Phase.LOOP)
    except EpisodeTimeoutError:
        raise ConnectionError(
            f"the executor did not answer for {patience:g} s: its worker is considered lost"
        ) from None
    try:
        if isinstance(answered, Exception):
            raise answered
        return answered
    finally:
        del answered  # its traceback has this frame, which must not hold it in turn
