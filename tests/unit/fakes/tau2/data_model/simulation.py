"""The record of an episode."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class SimulationRun(BaseModel):
    id: str
    task_id: str
    start_time: str
    end_time: str
    duration: float
    termination_reason: str
    messages: list[Any]


class RewardInfo(BaseModel):
    reward: float
    note: str | None = None
