"""`EvalSample`: one evaluated sample."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pydantic import ConfigDict, computed_field, model_validator

from strands_env.core import Action, End, Outcome, StepResult
from strands_env.core.jsonable import PartedModel


class EvalSample(PartedModel):
    """A sample of one task.

    Attributes:
        action: The task; its id is the prompt's id and the index of the sample.
        place: Position of the task in the data; None where it was not recorded.
        id: Identity by content: hash of task, configuration and index.
        duration_s: Seconds from its start to its end, all attempts and pauses included.
    """

    model_config = ConfigDict(ser_json_inf_nan="constants")

    action: Action
    step_result: StepResult
    id: str = ""
    prompt_id: str = ""
    task_digest: str = ""
    index: int = 0
    place: int | None = None
    attempts: int = 1
    duration_s: float = 0.0

    @model_validator(mode="wrap")
    @classmethod
    def _take_aborted(cls, data: Any, read: Any) -> Any:
        sample = read(data)
        if isinstance(data, dict) and data.get("aborted"):
            sample.aborted = True
        return sample

    @computed_field  # type: ignore[prop-decorator]
    @property
    def aborted(self) -> bool:
        """True if lost to infrastructure, or refused by `Evaluator.validate_sample`.

        It has no part in metrics and a resume tries it again. The constructor takes it, too.
        """
        return self.step_result.end.outcome is Outcome.INFRASTRUCTURE

    @aborted.setter
    def aborted(self, value: bool) -> None:
        end = self.step_result.end
        lost = replace(end, outcome=Outcome.INFRASTRUCTURE) if value else End(end.reason, error=end.error)
        self.step_result = self.step_result.model_copy(update={"end": lost})

    def _repr_html_(self) -> str:
        return f"<b>{html.escape(f'{self.prompt_id}/{self.index}')}</b>{self.step_result._repr_html_()}"

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
