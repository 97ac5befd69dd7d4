"""Records of an agent loop: trajectories of its models, the limit it reached, its times, and errors of its tools."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strands.hooks import (
    AfterModelCallEvent,
    AfterToolCallEvent,
    AfterToolsEvent,
    BeforeModelCallEvent,
    BeforeToolsEvent,
    HookOrder,
    HookProvider,
    HookRegistry,
    MessageAddedEvent,
)
from strands.models import Model

from strands_sglang.exceptions import ToolLimitReachedError
from strands_sglang.limits import Limits
from strands_sglang.tool_limiter import ToolLimiter
from strands_sglang.trajectory import Role

from .metrics import summarize, turn_metrics
from .termination import ErrorRecord, Phase, TerminationReason, ToolErrorRecord
from .types import TokenObservation, Trajectory

DEFAULT_REASONS = {Phase.MODEL: TerminationReason.MODEL_ERROR, Phase.TOOL: TerminationReason.TOOL_ERROR}
"""Reasons for an error that says nothing by itself, by where it happened."""
MAX_TOOL_ERRORS = 20
"""Exceptions of tools that a step records in full."""
_NOT_THE_TOOLS = "Validation failed for input parameters"
"""Beginning of the SDK's message about arguments that the model got wrong."""

# ---- models and trajectories -----------------------------------------------------------------------------------------


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

    def label_paths(self, paths: Sequence[Trajectory], agents: Collection[str | None]) -> list[Trajectory]:
        """The trajectories of the model, each with its place in the step.

        Args:
            agents: The agents that have a trajectory in the step.
        """
        names = {path.agent_id: path.agent_name for path in paths if path.agent_name is not None}
        labelled = []
        for path in paths:
            # A model made for an agent is that agent's, also where a tool calls it, but not its own summaries. A guard
            # that lets its agent say nothing is the only one that is heard of that agent.
            is_silent = path.role is Role.SUMMARY and path.parent is not None and path.parent not in agents
            role = path.role if self.is_main or path.parent in names or is_silent else self.role
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
    held = [(tracked, trajectories_of(tracked.model) or []) for tracked in models]
    agents = {path.agent_id for _, paths in held for path in paths}
    paths = [path for tracked, own in held for path in tracked.label_paths(own, agents)]
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
            decision = is_trained(replace(path))  # an override cannot change the record
        except Exception as error:
            raise RuntimeError(f"{what} failed: {type(error).__name__}: {error}") from error
        if not isinstance(decision, bool):
            raise TypeError(f"{what} must return True or False, got {decision!r:.100}")
        path.trainable = decision
    untrained = [path.tokens.loss_mask_array for path in trajectories if not path.trainable]
    return {"untrained_tokens": sum(int(mask.sum()) for mask in untrained)}


# ---- the loop --------------------------------------------------------------------------------------------------------


class LoopRecorder(HookProvider):
    """Measures the agent loop.

    Attributes:
        model_latencies: Seconds of every model call.
        tool_seconds: Seconds in which at least one tool ran.
        tool_latencies: The same by the index of the model call that asked for the tools.
        model_error: Failure of the last model call, or None.
        tool_errors: The first exceptions that tools raised; arguments the model got wrong are not among them.
        tool_exceptions: Number of all of them.
        messages: Every message that was added, also those that a conversation manager has dropped since.
    """

    def __init__(self) -> None:
        self._model_started: float | None = None
        self._tools_started: float | None = None
        self._in_tools = False
        self.model_latencies: list[float] = []
        self.tool_seconds = 0.0
        self.tool_latencies: dict[int, float] = {}
        self.model_error: BaseException | None = None
        self.messages: list[Any] = []
        self.tool_errors: list[ToolErrorRecord] = []
        self.tool_exceptions = 0

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Register with an agent."""
        registry.add_callback(BeforeModelCallEvent, self._before_model, order=HookOrder.SDK_LAST)
        registry.add_callback(AfterModelCallEvent, self._after_model, order=HookOrder.SDK_FIRST)
        registry.add_callback(MessageAddedEvent, self._message_added)
        registry.add_callback(BeforeToolsEvent, self._before_tools)
        registry.add_callback(AfterToolCallEvent, self._after_tool)
        registry.add_callback(AfterToolsEvent, self._after_tools, order=HookOrder.SDK_LAST)

    def metrics(self, event_loop_metrics: Any) -> dict[str, Any]:
        """The part of `Metrics` that was measured here; the token counts of turns are those of the SDK."""
        summary = summarize(self.model_latencies, 4)
        return {
            **({} if summary is None else {"model_latency_s": summary}),
            "tool_s": round(self.tool_seconds, 4),
            "turns": turn_metrics(self.model_latencies, self.tool_latencies, event_loop_metrics),
            "tool_exceptions": self.tool_exceptions,
        }

    @property
    def phase(self) -> Phase:
        """The place where the loop was when it stopped with an error."""
        if self.model_error is not None:
            return Phase.MODEL
        return Phase.TOOL if self._in_tools else Phase.LOOP

    def messages_of_step(self, messages: list[Any], seen: int) -> list[Any]:
        """The messages of this step, after the first `seen`; the agent's own where it still has them all."""
        own = messages[seen:]
        kept = {id(message) for message in own}
        return own if all(id(message) in kept for message in self.messages) else list(self.messages)

    def _before_model(self, event: BeforeModelCallEvent) -> None:
        self._model_started = time.perf_counter()

    def _after_model(self, event: AfterModelCallEvent) -> None:
        # Without a start, a hook before the call failed.
        self.model_error = event.exception if self._model_started is not None else None
        if self._model_started is not None:
            self.model_latencies.append(time.perf_counter() - self._model_started)
            self._model_started = None

    def _message_added(self, event: MessageAddedEvent[Any]) -> None:
        self.messages.append(event.message)
        self._in_tools = False  # the message after tools is their results

    def _before_tools(self, event: BeforeToolsEvent) -> None:
        self._tools_started = time.perf_counter()
        self._in_tools = True

    def _after_tool(self, event: AfterToolCallEvent) -> None:
        error = event.exception
        if error is None or event.selected_tool is None or str(error).startswith(_NOT_THE_TOOLS):
            return
        self.tool_exceptions += 1
        if len(self.tool_errors) < MAX_TOOL_ERRORS:
            record = ErrorRecord.from_exception(error, Phase.TOOL)
            name, call = str(event.tool_use.get("name")), str(event.tool_use.get("toolUseId"))
            self.tool_errors.append(ToolErrorRecord(tool=name, tool_use_id=call, error=record))

    def _after_tools(self, event: AfterToolsEvent) -> None:
        if self._tools_started is not None:
            seconds = time.perf_counter() - self._tools_started
            self.tool_seconds += seconds
            self.tool_latencies[len(self.model_latencies) - 1] = seconds
            self._tools_started = None


class EpisodeLimiter(ToolLimiter):
    """A `ToolLimiter` that notes the limit in `reached`: if it raised in the loop, the SDK would log an error."""

    reached: ToolLimitReachedError | None = None

    def __init__(self, limits: Limits) -> None:
        super().__init__(max_total_tokens=limits.max_trajectory_tokens, **limits.set_ones("loop"))

    def _on_message_added(self, event: MessageAddedEvent[Any]) -> None:
        try:
            super()._on_message_added(event)
        except ToolLimitReachedError as error:
            self.reached = error
            event.agent.cancel(after_current_tools=True)
