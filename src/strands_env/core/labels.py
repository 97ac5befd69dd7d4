"""Who sampled what in a step: its models, and the labels of their trajectories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strands.models import Model

from strands_sglang.trajectory import Role

from .types import TokenObservation, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedModel:
    """A model whose trajectories belong to the step.

    Attributes:
        role: The part of the agents it was made for.
        is_main: It is the model of the environment's own agent.
    """

    model: Model
    agent_name: str
    trainable: bool
    role: Role = Role.SUBAGENT
    is_main: bool = False

    def trajectories(self) -> list[Trajectory]:
        """The trajectories that the model holds now."""
        paths = trajectories_of(self.model) or ()
        names = {path.agent_id: path.agent_name for path in paths if path.agent_name is not None}
        labelled = []
        for path in paths:
            # What was made for an agent is that agent's, also where a tool calls it, but not its own summaries.
            role = path.role if self.is_main or path.parent in names else self.role
            # Agents may share the main model: the path knows who asked. Others have the name they were made for.
            name = path.agent_name or names.get(path.parent) if self.is_main else None
            labels = {"agent_name": name or self.agent_name, "role": role, "is_main": self.is_main and path.is_main}
            labelled.append(path.with_labels(**labels, trainable=self.trainable and role.is_agent))
        return labelled

    def observe(self, trajectories: Sequence[Trajectory]) -> TokenObservation | None:
        """The path of the last call, out of the `trajectories` where they hold it with all its loss."""
        manager = getattr(self.model, "token_manager", None)
        main = next((item.tokens for item in trajectories if item.is_main), None)
        if manager is None:
            return None
        if main is not None and len(main) == len(manager) and main.is_all_trained:
            return main
        return TokenObservation.from_token_manager(manager)


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
    tokens = TokenObservation.from_token_manager(manager)
    return [] if tokens is None else [Trajectory(tokens=tokens, agent_name=None, is_main=True)]


def watch_agent(agent: Any) -> None:
    """Let the agent's model know it from the start, where the model asks who calls it."""
    watch = getattr(agent.model, "watch_agent", None)
    if watch is not None:
        watch(agent)


def trajectories_of_step(models: Sequence[TrackedModel]) -> list[Trajectory]:
    """The trajectories of all models, with agents numbered from the main one: the same in every run of a rollout."""
    paths = [path for tracked in models for path in tracked.trajectories()]
    ids: dict[str | None, str | None] = {None: None}
    for path in sorted(paths, key=lambda path: not path.is_main):
        if path.agent_id not in ids:
            ids[path.agent_id] = f"agent-{len(ids) - 1}"
    return [replace(path, agent_id=ids[path.agent_id], parent=ids.get(path.parent)) for path in paths]


def decide_training(trajectories: Sequence[Trajectory], is_trained: Callable[[Trajectory], object]) -> dict[str, int]:
    """Ask which trajectories are meant to be trained.

    Returns:
        The metric `untrained_tokens`.

    Raises:
        RuntimeError: The decision of the environment failed.
        TypeError: It is neither True nor False.
    """
    for path in trajectories:
        what = f"is_trained() of the {path.role} {path.agent_name!r}"
        try:
            decision = is_trained(replace(path))  # an override cannot change what is recorded
        except Exception as error:
            raise RuntimeError(f"{what} failed: {type(error).__name__}: {error}") from error
        if not isinstance(decision, bool):
            raise TypeError(f"{what} must return True or False, got {decision!r:.100}")
        path.trainable = decision
    untrained = [path.tokens.loss_mask_array for path in trajectories if not path.trainable]
    return {"untrained_tokens": sum(int(mask.sum()) for mask in untrained)}
