"""`EvalSample`: one evaluated sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict

from strands_env.core import Action, StepResult


class EvalSample(BaseModel):
    """A sample of one task.

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

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        yield from (("prompt_id", self.prompt_id), ("index", self.index))
        if self.aborted:
            yield "aborted", True
        yield from self.step_result.__repr_args__()

    @property
    def reward(self) -> float | None:
        """The reward, None for a sample that was not scored or is aborted."""
        reward = self.step_result.reward
        return None if self.aborted or reward is None else reward.reward
