"""`EvalSample`: one evaluated sample, and `Score`: what metrics need of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from strands_env.core import Action, ErrorRecord, StepResult, Trajectory


class Score(NamedTuple):
    """The fields of a sample that metrics read.

    Attributes:
        task: Digest of its task.
        index: Index among the samples of the prompt.
        reward: None for a sample that was not scored or is aborted.
        aborted: Lost to infrastructure.
        error: The part of the episode, type and message of its error.
        cleanup_error: The same of a cleanup that failed.
        tool_errors: Tool, type and message of each exception that tools raised.
        attempts: Rollouts that were run for it.
    """

    prompt_id: str
    task: str
    index: int  # type: ignore[assignment]  # the field, not the method of tuples
    reward: float | None
    aborted: bool
    reason: str
    error: tuple[str, str, str] | None
    cleanup_error: tuple[str, str, str] | None
    tool_errors: Sequence[tuple[str, str, str]]
    metrics: Mapping[str, Any]
    attempts: int
    duration_s: float


class EvalSample(BaseModel):
    """One sample of one task.

    Attributes:
        action: The task; its id is the prompt's id and the index of the sample.
        aborted: Lost to infrastructure or refused by `Evaluator.validate_sample`: it has no part in metrics and a
            resume tries it again.
        place: Position of the task in the data; None where it was not recorded.
        id: Identity by content: hash of task, configuration and index.
        duration_s: Seconds from its start to its end, all attempts and pauses included.
    """

    model_config = ConfigDict(ser_json_inf_nan="constants")

    action: Action
    step_result: StepResult
    aborted: bool = False
    id: str = ""
    prompt_id: str = ""
    task_digest: str = ""
    index: int = 0
    place: int | None = None
    attempts: int = 1
    duration_s: float = 0.0

    @property
    def reward(self) -> float | None:
        """The reward, None for a sample that was not scored or is aborted."""
        reward = self.step_result.reward
        return None if self.aborted or reward is None else reward.reward

    def score(self) -> Score:
        """The fields that metrics read."""
        result = self.step_result
        return Score(
            prompt_id=self.prompt_id,
            task=self.task_digest,
            index=self.index,
            reward=self.reward,
            aborted=self.aborted,
            reason=result.termination_reason.value,
            error=_describe(result.error),
            cleanup_error=_describe(result.cleanup_error),
            tool_errors=[(item.tool, *_words(item.error)) for item in result.tool_errors],
            metrics=result.observation.metrics,
            attempts=self.attempts,
            duration_s=self.duration_s,
        )


def _describe(error: ErrorRecord | None) -> tuple[str, str, str] | None:
    return None if error is None else (str(error.where), *_words(error))


def _words(error: ErrorRecord) -> tuple[str, str]:
    return error.type, add_location(error.message, error.raised_at)


def add_location(message: str, raised_at: str | None) -> str:
    """An error's message with the line of the user's code that raised it."""
    return message if raised_at is None else f"{message} ({raised_at})"


def recorded_trajectories(result: StepResult) -> list[Trajectory]:
    """All token trajectories of a step; the observed one where the provider gives no others."""
    if result.trajectories:
        return result.trajectories
    tokens = result.observation.tokens
    return [] if tokens is None else [Trajectory(agent_name="agent", tokens=tokens)]
