"""One sample: rollouts of a task on an executor, until one is not lost to infrastructure."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from strands_env.core import (
    Action,
    End,
    EpisodeTimeoutError,
    ErrorRecord,
    Observation,
    Outcome,
    Phase,
    RewardResult,
    StepResult,
    TerminationReason,
)
from strands_env.core.attempts import RetryPolicy, run_attempts
from strands_env.core.deadline import run_with_timeout
from strands_env.core.rollout import LocalExecutor
from strands_env.core.seeds import FIELD as SEED_FIELD
from strands_env.eval.errors import EvalError
from strands_env.eval.options import EvalOptions
from strands_env.eval.run.tasks import copy_of, set_context, with_context
from strands_env.eval.sample import EvalSample

logger = logging.getLogger(__name__)

# Seconds after `sample_timeout` in which an executor must answer: the time of a cleanup, and some more.
UNANSWERED_SECONDS = 120.0


class Executor(Protocol):
    """Runs whole rollouts. `strands_env.eval.executors` has executors over processes and Ray.

    Asked for where an executor has them: a keyword `timeout` of `rollout`, the `sample_timeout`, so that
    it is kept where the phases of the episode are known; the attributes `env_factory_name`, and `environments`,
    descriptions of the environments it runs elsewhere, so that results of other ones are not continued; and the method
    `describe` of `LocalExecutor`, for the same where no sample is left to run.
    """

    async def rollout(self, action: Action) -> StepResult:
        """Run one rollout with a fresh environment.

        An exception is a failure of the executor or of the environment's own code; a `ConnectionError` is a worker
        that died, whose rollout may be run again. One with a true attribute `is_fatal` ends the evaluation.
        """

    async def close(self) -> None:
        """Free what the executor started, and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRunner:
    """Runs samples of an evaluator on an executor."""

    executor: Executor
    options: EvalOptions
    retry: RetryPolicy
    validate_sample: Callable[[EvalSample], bool]

    async def sample(
        self, action: Action, on_retry: Callable[[], None] | None = None, *, seed: int | None = None, **identity: Any
    ) -> EvalSample:
        """Run one sample; `on_retry` is called before each repeated rollout, `identity` has its identifying fields."""
        started = time.perf_counter()
        attempts = 0

        async def attempt() -> StepResult:
            nonlocal attempts
            attempts += 1
            if attempts > 1 and on_retry is not None:
                on_retry()
            # A copy each: what an environment does to its action reaches neither the next attempt nor the record.
            copied = copy_of(action)
            if seed is not None:
                set_context(copied, **{SEED_FIELD: seed})
            return await self._attempt(copied)

        def find_loss(result: StepResult) -> str | None:
            return result.end.reason.value if result.end.outcome.is_lost else None

        result = await run_attempts(attempt, find_loss, self.retry, action.task_context.id)
        if not self.options.keep_tokens and (result.trajectories or result.observation.tokens is not None):
            result.observation.tokens = result.observation.tools = None
            result.trajectories = []
        sample = EvalSample(
            # A recorded seed is one that was used.
            action=with_context(action, **{SEED_FIELD: seed}) if result.is_seeded else action,
            step_result=result,
            attempts=attempts,
            duration_s=round(time.perf_counter() - started, 6),
            **identity,
        )
        if not sample.aborted and not self.validate_sample(sample):
            sample.aborted = True
        return sample

    async def _attempt(self, action: Action) -> StepResult:
        rollout: Any = self.executor.rollout
        timeout = self.options.sample_timeout
        silence: float | None = None
        try:
            if isinstance(self.executor, LocalExecutor):
                result = await rollout(action, timeout=timeout)
            elif timeout is None or "timeout" not in inspect.signature(rollout).parameters:
                result = await run_with_timeout(rollout(action), timeout, Phase.LOOP)
            else:  # it keeps the deadline itself, where it knows the phases; ours only notices that it is gone
                silence = timeout + UNANSWERED_SECONDS
                result = await run_with_timeout(rollout(action, timeout=timeout), silence, Phase.LOOP)
            return _check_result(result)
        except EpisodeTimeoutError as error:
            if error.seconds != silence:
                end, reward = End(TerminationReason.TIMEOUT, error=ErrorRecord.from_exception(error, error.where)), None
                if error.is_scored and end.outcome is Outcome.POLICY:  # nothing is left that could be scored
                    reward = RewardResult(reward=0.0, info={"reason": "sample_timeout"})
                return StepResult(observation=Observation(), reward=reward, end=end)
            lost = ConnectionError(f"the executor did not answer for {silence:g} s: its worker is considered lost")
            return StepResult(observation=Observation(), end=End.from_error(lost, Phase.LOOP))
        except Exception as error:
            if isinstance(error, EvalError) or getattr(error, "is_fatal", False):
                raise
            logger.warning("task=<%s>, error=<%r> | rollout raised", action.task_context.id, error)
            # It is a defect of the environment's own code: run again, never scored.
            where = getattr(error, "where", None)  # an exception of the user's may have an attribute of that name
            where = where if isinstance(where, Phase) else Phase.LOOP
            end = End.from_error(error, where, outcome=Outcome.INFRASTRUCTURE)
            return StepResult(observation=Observation(), end=end)


def _check_result(result: object) -> StepResult:
    """The result of an environment, after a check of the fields that every caller needs."""
    if not isinstance(result, StepResult):
        raise TypeError(f"an environment's step must return a StepResult, got {type(result).__name__}: {result!r}")
    reward: object = result.reward
    if reward is not None and not isinstance(reward, RewardResult):
        raise TypeError(f"the reward of a StepResult must be a RewardResult or None, got {reward!r}")
    if not isinstance(result.end, End):
        raise TypeError(f"the end of a StepResult must be an End, got {result.end!r:.200}")
    return result


def fixed_seed(config: Any, n_samples: int) -> str | None:
    """The complaint about a fixed seed in a model's `sampling_params` while prompts have several samples, or None."""
    params = config.get("sampling_params") if isinstance(config, Mapping) else None
    if n_samples < 2 or not isinstance(params, Mapping):
        return None
    for name in ("sampling_seed", "seed"):
        if (seed := params.get(name)) is not None:
            return (
                f"{name}={seed!r} in the sampling parameters would make all {n_samples} samples of a prompt the same: "
                "leave it out, for every sample gets its own seed from that of the run (sampling_seed of the "
                "evaluator, --seed)"
            )
    return None
