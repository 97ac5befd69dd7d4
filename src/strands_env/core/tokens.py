"""The token types of `strands_sglang` under the names that results have for them."""

from __future__ import annotations

from typing import Any, TypeAlias

from strands_sglang.trajectory import Trajectory, WeightSpan
from strands_sglang.trajectory.tokens import Segment, TokenSequence, common_prefix

__all__ = ["Segment", "TokenObservation", "Trajectory", "WeightVersionSpan", "common_prefix", "trajectories_of"]

TokenObservation: TypeAlias = TokenSequence
"""The tokens of one path: the first prompt, then everything sampled and every tool result, in order."""

WeightVersionSpan: TypeAlias = WeightSpan
"""Tokens `[start, end)` were sampled with weights of this version (None where the server reports none)."""


def trajectories_of(model: Any) -> list[Trajectory] | None:
    """The trajectories of a model; None where it has no token data.

    Token data is found by name, so that any provider may have it: `trajectories`, or a `token_manager` alone, which
    shows the path of the last call.
    """
    exported = getattr(model, "trajectories", None)
    if isinstance(exported, list | tuple):
        return [trajectory for trajectory in exported if isinstance(trajectory, Trajectory)]
    manager = getattr(model, "token_manager", None)
    if manager is None:
        return None
    tokens = TokenSequence.from_token_manager(manager)
    return [] if tokens is None else [Trajectory(tokens=tokens, agent_name=None, is_main=True)]
