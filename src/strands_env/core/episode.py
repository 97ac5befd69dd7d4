"""`Episode`: an action that an environment runs, from its `reset` to its reward."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
import time
import uuid
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from strands import Agent
from strands.agent.conversation_manager import ConversationManager
from strands.handlers.callback_handler import PrintingCallbackHandler
from strands.models import Model
from strands.types.tools import AgentTool

from strands_sglang.callers import outermost
from strands_sglang.limits import Limits
from strands_sglang.trajectory import Role

from .deadline import EpisodeProgress, forget_frames, keep_error, run_shielded, run_with_timeout
from .jsonable import copy_data
from .limits import LimitedTool, with_limits
from .loop_records import (
    DEFAULT_REASONS,
    EpisodeLimiter,
    LoopRecorder,
    TrackedModel,
    decide_training,
    trajectories_of_step,
    watch_agent,
)
from .metrics import event_loop_metrics_to_dict
from .overrides import declares_action, flatten_tools, tool_mistakes
from .scoring import computed_reward
from .sdk_patches import current_step, end_background_tasks, inside_a_step, only_reads, watch_background_tasks
from .termination import End, EpisodeTimeoutError, ErrorRecord, Outcome, Phase, TerminationReason
from .threads import OneThread, default_threads
from .types import (
    Action,
    ModelFactory,
    Observation,
    RewardFunction,
    StepResult,
    TokenObservation,
    Trajectory,
    check_factory,
    check_model,
    check_state,
    system_prompt_of,
    tools_as_text,
)

logger = logging.getLogger(__name__)


class _Environment(Protocol):
    """The parts of an `Environment` that an episode uses; their documentation is there."""

    model_factory: ModelFactory
    agent_name: str
    limits: Limits
    verbose: bool
    setup_timeout: float | None
    step_timeout: float | None
    reward_timeout: float | None
    cleanup_timeout: float | None
    tool_timeout: float | None
    max_tool_output_chars: int | None
    _is_set_up: bool
    _own_thread: OneThread | None

    @property
    def reward_fn(self) -> Any: ...
    @property
    def _scorer(self) -> RewardFunction | None: ...
    def reset(self) -> Awaitable[None]: ...
    def cleanup(self) -> Awaitable[None]: ...
    def step(self, action: Action, *, cancel_signal: threading.Event | None = None) -> Awaitable[StepResult]: ...
    def get_state(self) -> Awaitable[Any]: ...
    def get_system_prompt(self) -> Any: ...
    def get_conversation_manager(self) -> ConversationManager: ...
    def make_agent(self, **options: Any) -> Agent: ...
    def interact(self, agent: Agent, action: Action) -> Awaitable[Any]: ...
    def score(self, action: Action, result: StepResult) -> Awaitable[None]: ...
    def compute_metrics(self, event_loop_metrics: Any, tool_parse_errors: Any = None) -> Any: ...
    def is_trained(self, trajectory: Trajectory) -> object: ...
    def is_scored(self, reason: TerminationReason) -> bool: ...


class Episode:
    """An environment with an action: runs, observes and scores it. Code that it runs finds it with `current`.

    An environment makes one for each `rollout`, `step` and `score`; that of a step lies inside that of its rollout.

    Attributes:
        outer: The episode inside which this one was made.
        models: The step's models, the one of the environment's own agent first; none outside of a step.
        agents: Background tasks of these end with the agent loop; those of a parent before those of the agents that it
            made. Agents that have ended leave it, and come back with the next task that they begin.
        failures: Failures that the agent sees as no more than a tool result: of the last call of a sub-agent's model,
            by the model's id, and of a tool's provider.
    """

    def __init__(self, env: _Environment, action: Action, cancel_signal: threading.Event | None = None) -> None:
        if not isinstance(action, Action):
            raise TypeError(f"got the action {action!r:.200}, expected Action(message=..., task_context=...)")
        self.env = env
        self.action = action
        self.cancel_signal = cancel_signal
        self.outer = Episode.current()
        self.models: list[TrackedModel] = []
        self.agents: list[Any] = []
        self.failures: dict[int | str, tuple[Phase, Exception]] = {}
        self.recorder = LoopRecorder()
        self.limiter = EpisodeLimiter(env.limits)

    @staticmethod
    def current() -> Episode | None:
        """The episode that the calling code runs in, threads and tasks started by it included; None at its end."""
        episode = current_step.get()
        return episode if isinstance(episode, Episode) and vars(episode) else None

    def outwards(self) -> Iterator[Episode]:
        """This one, then those around it, as far as they still run."""
        episode: Episode | None = self
        while episode is not None and vars(episode):
            yield episode
            episode = episode.outer

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the current episode. At its end it forgets everything.

        Connections, timers and threads started meanwhile hold its context, and this with it, some for hours.
        """
        try:
            with inside_a_step(self):
                yield
        finally:
            vars(self).clear()

    # ---- its parts ---------------------------------------------------------------------------------------------------

    async def rollout(self) -> StepResult:
        """`reset`, `step`, and always `cleanup`: see `Environment.rollout`."""
        env, action = self.env, self.action
        with EpisodeProgress.current(take=True) as progress, self.active():
            progress.is_scored = env.reward_fn is not None
            try:
                try:
                    progress.phase = Phase.SETUP
                    await set_up(env)
                except Exception as error:
                    result = failed(error, Phase.SETUP)
                else:
                    progress.phase = Phase.LOOP
                    # An override may be `step(self, action)`.
                    options = {} if self.cancel_signal is None else {"cancel_signal": self.cancel_signal}
                    stepping = env.step(action, **options)
                    if not inspect.isawaitable(stepping):
                        raise TypeError(f"{type(env).__name__}.step() must be async: write 'async def step'")
                    result = await stepping
                    if not isinstance(result, StepResult):
                        raise TypeError(f"{type(env).__name__}.step() must return a StepResult, got {result!r}")
                    if (result.observation.history or []) == action.task_context.conversation_history:
                        result.observation.history = None
            finally:
                progress.phase = Phase.CLEANUP
                cleanup_error = await keep_error(clean_up(env))
        result.cleanup_error = cleanup_error
        return result

    async def step(self) -> StepResult:
        """Run the agent loop once, and score it: see `Environment.step`."""
        env, action, started = self.env, self.action, time.perf_counter()
        with self.active(), outermost():  # agents of the step work for nobody who runs it
            try:
                if not env._is_set_up and declares_action(env.reset):
                    await set_up(env)
                before = list_of(env, "get_history")
                history = copy_data(before)
                model = make_model(env, env.model_factory)
                self.models.append(TrackedModel(model=model, agent_name=env.agent_name, trainable=True, is_main=True))
                seen = len(history)
                agent = self._make_agent(model, history)
            except Exception as error:
                return failed(error, Phase.SETUP)
            end = await self._run(agent)
            result = await self._observe(agent, seen)
            result.observation.history = before or None
            is_whole = result.error is None
            if is_whole or (end.error is not None and end.outcome is not Outcome.POLICY):
                result.end = end
            if is_whole and end.outcome is Outcome.POLICY:
                is_whole = await self._read_state(result)
            if is_whole:  # else the reward would read an incomplete observation, and its own error would hide this one
                await env.score(action, result)
        result.observation.metrics["wall_s"] = round(time.perf_counter() - started, 4)
        return result

    async def score(self, result: StepResult) -> None:
        """Give a finished step its reward; an exception of the reward becomes the result's error."""
        env = self.env
        if env._scorer is None:
            return
        seen = result.observation
        metrics = seen.metrics
        started = time.perf_counter()
        reason, failure = TerminationReason.REWARD_ERROR, None
        with EpisodeProgress.current() as progress, self.active():
            try:
                timed_out = result.end.reason is TerminationReason.TIMEOUT
                if (timed_out and result.end.outcome is not Outcome.POLICY) or not env.is_scored(result.end.reason):
                    return
                # Foreign code changes its copy, never the record. Tokens cannot be changed.
                observation = seen.model_copy(
                    update={"messages": copy_data(seen.messages), "metrics": copy_data(seen.metrics)}
                )
                own = {"trajectories": list(result.trajectories), "state": copy_data(result.state)}
                copied = result.model_copy(update={"observation": observation, **own})
                progress.phase = Phase.REWARD
                result.reward = await computed_reward(env._scorer, self.action, copied, timeout=env.reward_timeout)
                failure = result.reward.error if result.reward.reward is None else None
            except Exception as error:
                result.reward, failure = None, ErrorRecord.from_exception(error, Phase.REWARD)
                if TerminationReason.from_error(error) is TerminationReason.TIMEOUT:
                    reason = TerminationReason.TIMEOUT
        if failure is not None:
            metrics["loop_termination_reason"] = result.end.reason.value
            if result.end.error is not None:  # of the step's own time-out: to score it again
                metrics["loop_error"] = asdict(result.end.error)
            result.end = End(reason, error=failure)
            values = (failure.type, failure.message, failure.raised_at)
            logger.warning("error=<%s>, message=<%s>, raised_at=<%s> | reward failed", *values)
        metrics["reward_latency_s"] = round(time.perf_counter() - started, 4)

    # ---- the parts of a step -----------------------------------------------------------------------------------------

    def _make_agent(self, model: Model, history: list[Any]) -> Agent:
        env, context = self.env, self.action.task_context
        tools = list(flatten_tools(list_of(env, "get_tools")))
        for mistake in tool_mistakes(tools):
            raise TypeError(mistake)
        system = system_prompt_of(context)
        agent = env.make_agent(
            model=model,
            messages=history,
            tools=tools,
            system_prompt=env.get_system_prompt() if system is None else system,
            hooks=[self.limiter, *list_of(env, "get_hooks"), self.recorder],
            conversation_manager=env.get_conversation_manager(),
            callback_handler=PrintingCallbackHandler() if env.verbose else None,
            retry_strategy=None,  # the model retries inside one call; a second retry around it would multiply attempts
            name=env.agent_name,
            agent_id=uuid.uuid4().hex,
            trace_attributes=getattr(context, "trace_attributes", None),
        )
        if not hasattr(agent, "tool_registry"):
            raise TypeError(f"{type(env).__name__}.make_agent() must return a strands.Agent, got {agent!r:.100}")
        registry = agent.tool_registry.registry
        registry.update({name: limit_tool(env, tool) for name, tool in registry.items()})
        watch_agent(agent)
        self.add_agent(agent)
        return agent

    async def _run(self, agent: Agent) -> End:
        env, outer = self.env, sys.exception()
        try:
            try:
                outcome = await run_with_timeout(env.interact(agent, self.action), env.step_timeout, Phase.LOOP)
            finally:
                while self.agents:
                    await end_background_tasks(self.agents.pop(0))
            if self.limiter.reached is not None:  # interact() invoked the agent itself, or went on
                raise self.limiter.reached
        except Exception as error:
            end = self._ended_by(error)
            forget_frames(error, outer)
        else:
            stop_reason = getattr(outcome, "stop_reason", None)
            end = End(TerminationReason.from_stop_reason(stop_reason))
            if outcome is None or end.reason is TerminationReason.UNCLASSIFIED_ERROR:
                unknown = ValueError(
                    f"the agent loop ended with the unknown stop reason {stop_reason!r}: interact() gave back "
                    f"{outcome!r}, and must return the AgentResult of its last invoke()"
                )
                return End.from_error(unknown, Phase.LOOP)
        if self.failures and end.outcome is Outcome.POLICY:
            where, unseen = next(iter(self.failures.values()))
            end = End.from_error(unseen, where, default=DEFAULT_REASONS[where])
            logger.warning("end=<%s> | a part of the step failed unseen", end)
        return end

    def _ended_by(self, error: Exception) -> End:
        reason = TerminationReason.from_error(error, default=DEFAULT_REASONS.get(self.recorder.phase))
        if reason is TerminationReason.MAX_TOKENS_REACHED:  # the reply's own bound, a budget, or the context
            limit = getattr(self.models[0].model, "length_limit", None)
            budget = self.env.limits.max_trajectory_tokens
            if limit is None and budget is not None and self.limiter.total_tokens >= budget:
                reason = TerminationReason.TOKEN_BUDGET_REACHED
            else:
                reason = TerminationReason.from_length_limit(limit)
        if reason.is_limit:
            logger.debug("reason=<%s> | agent loop reached a limit", reason)
            return End(reason)
        where = error.where if isinstance(error, EpisodeTimeoutError) else self.recorder.phase
        end = End(reason, error=ErrorRecord.from_exception(error, where))
        logger.warning("end=<%s> | step failed", end)
        return end

    async def _observe(self, agent: Agent, seen: int) -> StepResult:
        recorder, limiter, main = self.recorder, self.limiter, self.models[0]
        messages = recorder.messages_of_step(list(agent.messages), seen)
        end = End()
        metrics: dict[str, Any] = {
            "message_count": len(messages),
            "tool_iters": limiter.tool_iter_count,
            "tool_calls": limiter.tool_call_count,
            "cancelled_tool_calls": limiter.cancelled_tool_call_count,
        }
        tokens: TokenObservation | None = None
        trajectories: list[Trajectory] = []
        try:  # an error of a subclass or a provider keeps everything collected so far
            trajectories = trajectories_of_step(self.models)
            metrics |= decide_training(trajectories, self.env.is_trained)
            tokens = main.observe(trajectories)
            parse_errors = getattr(main.model, "tool_parse_errors", None)
            metrics |= await self._compute_metrics(agent.event_loop_metrics, parse_errors)
        except Exception as failure:
            logger.warning("error=<%s> | observation is incomplete", failure, exc_info=True)
            end = End(TerminationReason.UNCLASSIFIED_ERROR, error=ErrorRecord.from_exception(failure, Phase.LOOP))
            metrics |= event_loop_metrics_to_dict(agent.event_loop_metrics, None)  # tokens were spent anyway
        metrics |= recorder.metrics(agent.event_loop_metrics)
        prompt = agent.system_prompt
        observation = Observation(
            messages=messages,
            tokens=tokens,
            metrics=metrics,
            system_prompt=prompt if isinstance(prompt, str) else None,
            tools=tools_as_text(agent.tool_registry.get_all_tool_specs()),
        )
        return StepResult(observation=observation, end=end, trajectories=trajectories, tool_errors=recorder.tool_errors)

    async def _read_state(self, result: StepResult) -> bool:
        """Give a result the state of the world; False if it cannot be had, which is the result's end then."""
        env = self.env
        with EpisodeProgress.current() as progress:
            progress.phase = Phase.REWARD  # a deadline that passes here is not the policy's
            try:
                deadline = env.reward_timeout or env.cleanup_timeout
                state = await run_with_timeout(call_part(env, env.get_state), deadline, Phase.REWARD)
                result.state = check_state(state)
            except Exception as error:
                record = ErrorRecord.from_exception(error, Phase.LOOP)  # sampled again: no reward can judge it later
                result.end = End(TerminationReason.UNCLASSIFIED_ERROR, error=record)
                logger.warning("end=<%s> | the state cannot be had", result.end)
                return False
        return True

    async def _compute_metrics(self, event_loop_metrics: Any, parse_errors: Any) -> dict[str, Any]:
        """`compute_metrics`, on the environment's own thread if it has one: it may read what `reset` opened."""
        env = self.env
        parse_errors = parse_errors if isinstance(parse_errors, Mapping) else None
        if env._own_thread is None:
            computed: Any = env.compute_metrics(event_loop_metrics, tool_parse_errors=parse_errors)
        else:
            # A tool that never returned may hold the thread, which would hold up an episode without a deadline.
            work = env._own_thread.run(env.compute_metrics, event_loop_metrics, tool_parse_errors=parse_errors)
            computed = await run_with_timeout(work, env.reward_timeout or env.cleanup_timeout, Phase.LOOP)
        if not isinstance(computed, Mapping) or not all(isinstance(name, str) for name in computed):
            raise TypeError(f"compute_metrics() must give every metric a name, in a dict, got {computed!r:.200}")
        return dict(computed)

    def add_agent(self, agent: Any) -> None:
        """Let the background tasks of an agent end with the agent loop. A step that has ended knows none."""
        if vars(self) and not any(agent is known for known in self.agents):
            watch_background_tasks(agent)
            self.agents.append(agent)

    # ---- sub-agents --------------------------------------------------------------------------------------------------

    def add_model(self, factory: ModelFactory, agent_name: str, *, trainable: bool, role: Role) -> Model:
        """A model for a sub-agent: see `Environment.model_for`.

        Its failures are recorded, so that the step ends as what they are: the agent that called the sub-agent sees a
        tool result, but an unreachable server is not a wrong answer.
        """
        model = make_model(self.env, factory)
        for name in ("stream", "structured_output"):
            method = getattr(model, name)
            # The model holds the wrapper, and must not hold itself (core/garbage.py): so its own method is held
            # weakly. A method of another object may have no other owner.
            is_its_own = inspect.ismethod(method) and method.__self__ is model
            get_method = weakref.WeakMethod(method) if is_its_own else lambda method=method: method
            watched = partial(_with_failures, self.failures, id(model), get_method)
            watched.only_reads_messages = only_reads(method)  # type: ignore[attr-defined]
            setattr(model, name, watched)
        self.models.append(TrackedModel(model=model, agent_name=agent_name, trainable=trainable, role=role))
        return model


async def _with_failures(
    failures: dict[int | str, tuple[Phase, Exception]],
    key: int,
    get_method: Callable[[], Any],
    *args: Any,
    **kwargs: Any,
) -> AsyncIterator[Any]:
    events = get_method()(*args, **kwargs)
    try:
        async for event in events:
            yield event
    except Exception as error:
        if TerminationReason.from_error(error, default=TerminationReason.MODEL_ERROR).is_failure:
            failures[key] = Phase.MODEL, error
        raise
    else:
        failures.pop(key, None)  # a retry went well
    finally:
        if hasattr(events, "aclose"):
            await events.aclose()


def fail_step(error: Exception, where: Phase = Phase.TOOL) -> None:
    """End the running step with this error, whatever its agent does next: the agent is not responsible for it."""
    if (episode := Episode.current()) is not None:
        episode.failures.setdefault("provider", (where, error))


def failed(error: BaseException, where: Phase) -> StepResult:
    """The result of an episode whose agent loop has not begun."""
    end = End.from_error(error, where, default=TerminationReason.SETUP_ERROR)
    if end.reason.is_limit:  # another agent's limit: this one has not begun, so nothing was cut short
        end = End(TerminationReason.SETUP_ERROR, error=end.error)
    logger.warning("where=<%s>, end=<%s> | step failed", where, end)
    return StepResult(observation=Observation(), end=end)


# ---- parts of an environment -----------------------------------------------------------------------------------------


async def set_up(env: _Environment) -> None:
    """`reset` within its deadline. `rollout` and `async with` begin with it; one that takes the task, the first step.

    Nobody runs it otherwise.
    """
    env._is_set_up = True
    await run_with_timeout(call_part(env, env.reset), env.setup_timeout, Phase.SETUP)


async def clean_up(env: _Environment) -> None:
    """`cleanup` within its deadline, also while the caller is being cancelled."""
    try:
        await run_shielded(call_part(env, env.cleanup), env.cleanup_timeout, Phase.CLEANUP)
    finally:
        env._is_set_up = False
        if env._own_thread is not None:
            env._own_thread.close()


async def call_part(env: _Environment, part: Callable[..., Any]) -> Any:
    """Call `reset`, `get_state` or `cleanup`: plain functions run on a thread."""
    if inspect.iscoroutinefunction(part):
        returned = part()
    else:
        returned = await (env._own_thread or default_threads).run(part)
    return await returned if inspect.isawaitable(returned) else returned


def list_of(env: _Environment, name: str) -> list[Any]:
    """The list that a method of the environment returns; `TypeError` for another type."""
    items = getattr(env, name)()
    if not isinstance(items, Iterable):
        what = f"{type(env).__name__}.{name}() must return a list, got {items!r:.100}"
        raise TypeError(f"{what}: write 'def {name}(self): return [...]'")
    return list(items)


def make_model(env: _Environment, factory: ModelFactory) -> Model:
    """A model of the factory, within the environment's budget."""
    check_factory(factory, "model_factory")
    model = check_model(factory(), "model_factory")
    config = getattr(model, "config", None)
    known = config if isinstance(config, dict) else {}
    budgets = env.limits.set_ones("tokens")
    if unknown := sorted(budgets.keys() - known.keys() - {"max_trajectory_tokens"}):  # that the limiter checks
        raise ValueError(f"{type(model).__name__} keeps no {', '.join(unknown)}: SGLangModel does")
    if kept := {name: value for name, value in budgets.items() if name in known}:
        model.update_config(**kept)
    return model


def limit_tool(env: _Environment, tool: AgentTool) -> AgentTool:
    """The tool within the environment's limits, unless it has its own, or is an agent, whose time is model time."""
    if isinstance(tool, LimitedTool) or tool.tool_type == "agent":
        return tool
    return with_limits(
        tool, timeout=env.tool_timeout, max_output_chars=env.max_tool_output_chars, threads=env._own_thread
    )
