"""`Environment`: one step is one whole agent loop."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from strands import Agent
from strands.agent.agent_result import AgentResult
from strands.agent.conversation_manager import ConversationManager, NullConversationManager
from strands.handlers.callback_handler import PrintingCallbackHandler
from strands.models import Model
from strands.types.tools import AgentTool

from strands_sglang.exceptions import check_positive, explain_arguments
from strands_sglang.trajectory import Role

from .deadline import EpisodeProgress, forget_frames, keep_error, run_shielded, run_with_timeout
from .jsonable import copy_data
from .limits import LimitedTool, with_limits
from .metrics import event_loop_metrics_to_dict
from .overrides import flatten_tools, methods_with_action, tool_mistakes, warn_of_misspelt_overrides
from .scope import (
    DEFAULT_REASONS,
    EpisodeLimiter,
    LoopRecorder,
    StepScope,
    TrackedModel,
    decide_training,
    fail_step,
    trajectories_of_step,
    watch_agent,
)
from .scoring import RewardCallable, as_reward_function, computed_reward
from .sdk_patches import end_background_tasks
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
    system_prompt_of,
    tools_as_text,
)

logger = logging.getLogger(__name__)

DEFAULT_TOOL_TIMEOUT = 300.0
"""Seconds one tool call may take."""
DEFAULT_MAX_TOOL_OUTPUT_CHARS = 100_000
"""Characters of text in one tool result."""


_LIMITS = ("max_tool_iters", "max_tool_calls", "max_parallel_tool_calls", "max_total_tokens", "max_messages")
_TIMEOUTS = ("setup_timeout", "step_timeout", "reward_timeout", "cleanup_timeout", "tool_timeout")
"""Attributes that are a positive number of seconds, or None."""


_OVERRIDDEN = {
    "tools": ": return them from get_tools()",
    "hooks": ": return them from get_hooks()",
    "messages": ": return them from get_history()",
    "conversation_manager": ": return it from get_conversation_manager()",
    "model": ": give model_factory=lambda: ..., which makes a fresh one for every step",
}
"""Arguments of `strands.Agent` that are given to an environment otherwise."""


class Environment:
    """A task world around a Strands agent: its model, tools, limits and reward.

    Override what you need: `reset`, `get_tools`, `get_hooks`, `get_system_prompt` and `get_history`, each without
    arguments or with `action`; `cleanup`, `interact`, `compute_metrics`. A step runs one whole agent loop (prompt, tool
    calls and results, answer) with a fresh model, so a stateless environment may run many steps at once. An episode
    that fails is data, not an exception: see `TerminationReason` and `StepResult.error`.

    Args:
        model_factory: Makes a fresh model for every step.
        system_prompt: System prompt; None reads `default_system_prompt_path`, where the class has one.
        reward_fn: Scores a finished step: a `RewardFunction`, or a plain function. None for no reward.
        max_tool_iters: Number of replies with tool calls after which the loop ends.
        max_tool_calls: Number of tool calls after which the loop ends.
        max_parallel_tool_calls: Number of calls of one reply that are run; further ones are answered with an error.
        max_messages: Number of messages, prompts included, after which the loop ends, once calls have their results.
        tool_timeout: Seconds one tool call may take; then it is answered with an error. None for no limit. Agents as
            tools have none.
        max_tool_output_chars: Characters of text in one tool result; what is longer keeps its beginning and end. None
            for no limit.
        max_total_tokens: Budget of the whole trajectory in tokens, prompt and tool results included. Exact with
            `SGLangModel`; checked before each model call with other providers.
        verbose: Print the agent's output as it comes.
        setup_timeout: Seconds `reset()` may take in `rollout` and `async with`.
        step_timeout: Seconds the agent loop may take.
        reward_timeout: Seconds the reward may take.
        cleanup_timeout: Seconds `cleanup()` may take in `rollout` and `async with`.
        agent_name: Name of the agent in trajectories, and in the spans of the SDK.

    Raises:
        TypeError: An unknown argument, named with the nearest one. When a subclass is made: one of the five methods
            above has other parameters.
        ValueError: A limit or deadline is out of range.
        FileNotFoundError: `default_system_prompt_path` does not exist.
    """

    default_system_prompt_path: ClassVar[Path | None] = None
    """File with the system prompt of this kind of environment, or None."""
    _with_action: ClassVar[frozenset[str]] = frozenset({"get_history"})

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._with_action = methods_with_action(cls, Environment)

    @partial(explain_arguments, elsewhere=_OVERRIDDEN)
    def __init__(
        self,
        *,
        model_factory: ModelFactory,
        system_prompt: str | None = None,
        reward_fn: RewardFunction | RewardCallable | None = None,
        max_tool_iters: int | None = None,
        max_tool_calls: int | None = None,
        verbose: bool = False,
        max_parallel_tool_calls: int | None = None,
        max_total_tokens: int | None = None,
        max_messages: int | None = None,
        setup_timeout: float | None = None,
        step_timeout: float | None = None,
        reward_timeout: float | None = None,
        cleanup_timeout: float | None = 60.0,
        agent_name: str = "agent",
        tool_timeout: float | None = DEFAULT_TOOL_TIMEOUT,
        max_tool_output_chars: int | None = DEFAULT_MAX_TOOL_OUTPUT_CHARS,
    ) -> None:
        check_factory(model_factory, "model_factory")
        if not isinstance(system_prompt, str | list | None):
            raise TypeError(f"system_prompt={system_prompt!r}: expected text; Path(...).read_text() is that of a file")
        self.model_factory = model_factory
        if system_prompt is None and self.default_system_prompt_path is not None:
            system_prompt = Path(self.default_system_prompt_path).read_text(encoding="utf-8").strip()
        self.system_prompt = system_prompt
        self.max_tool_iters = max_tool_iters
        self.max_tool_calls = max_tool_calls
        self.max_parallel_tool_calls = max_parallel_tool_calls
        self.max_total_tokens = max_total_tokens
        self.max_messages = max_messages
        self.verbose = verbose
        self.setup_timeout = setup_timeout
        self.step_timeout = step_timeout
        self.reward_timeout = reward_timeout
        self.cleanup_timeout = cleanup_timeout
        self.agent_name = agent_name
        self.tool_timeout = tool_timeout
        self.max_tool_output_chars = max_tool_output_chars
        self._owes_reset = "reset" in self._with_action  # the task is not known before `step`, unless `rollout` runs it
        self._own_thread: OneThread | None = None
        if not inspect.iscoroutinefunction(self.reset):
            self._own_thread = OneThread()
            weakref.finalize(self, self._own_thread.close)
        self.reward_fn = reward_fn
        self._new_limiter()  # checks the limits
        check_positive("seconds", optional=True, **{name: getattr(self, name) for name in _TIMEOUTS})
        check_positive("characters", optional=True, max_tool_output_chars=max_tool_output_chars)
        known = {"_rollout": "interact(self, agent, action)"}  # as upstream
        if getattr(reward_fn, "__name__", None) != "compute_reward":  # else the method itself is the reward
            known["compute_reward"] = "the argument reward_fn"
        warn_of_misspelt_overrides(type(self), Environment, OVERRIDES, known)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if "_reward_fn" in vars(self):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            raise AttributeError(
                f"{type(self).__name__} has no {name!r} yet: its __init__ must first call "
                "super().__init__(model_factory=model_factory, ...)"
            )

    @property
    def reward_fn(self) -> Any:
        """The reward function as it was given; a wrong one is refused when it is set."""
        return self._reward_fn

    @reward_fn.setter
    def reward_fn(self, reward_fn: Any) -> None:
        self._scorer = None if reward_fn is None else as_reward_function(reward_fn, self._own_thread)
        self._reward_fn = reward_fn

    # ---- what a subclass overrides -----------------------------------------------------------------------------------

    # `*args, **kwargs` lets an override declare `(self)` or `(self, action)` before type checkers; `__init_subclass__`
    # refuses anything else.
    async def reset(self, *args: Any, **kwargs: Any) -> None:
        """Start an episode: start containers, open sessions. What this starts, `cleanup` ends.

        Write `reset(self)`, or `reset(self, action)` to read the task; without `rollout` the first step then runs it.

        As a plain function (`def reset(self)`) it runs on a thread of the environment's own, together with the
        synchronous tools, a synchronous reward and a plain `cleanup`, one after the other: for SQLite, browsers and
        whatever else belongs to the thread that opened it.
        """

    async def cleanup(self) -> None:
        """End the episode and free its resources. Must work after a `reset` that failed half-way, and twice."""

    def get_tools(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The agent's tools, asked for at every step: `get_tools(self)` or `get_tools(self, action)`."""
        return []

    def get_hooks(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Further Strands hooks of the agent, asked for at every step: with or without `action`."""
        return []

    def get_system_prompt(self, *args: Any, **kwargs: Any) -> str | list[Any] | None:
        """The agent's system prompt, asked for at every step: with or without `action`."""
        return self.system_prompt

    def get_history(self, action: Action) -> list[Any]:
        """The messages before the action's: with or without `action`. The default is the task's own history."""
        return list(action.task_context.conversation_history)

    def get_conversation_manager(self) -> ConversationManager:
        """The agent's conversation manager. The default never changes the history: a full context ends the episode."""
        return NullConversationManager()

    def make_agent(self, **options: Any) -> Agent:
        """The agent of a step, from arguments of `strands.Agent`. Override it for an agent that is made otherwise.

        Limits and records are among its `hooks`; its tools are limited afterwards.
        """
        return Agent(**options)

    async def interact(self, agent: Agent, action: Action) -> AgentResult:
        """The conversation of one step. The default gives the agent the action's message and waits for its answer.

        Override it for a conversation of several user turns; use `invoke` for each, and return the last result.
        """
        return await self.invoke(agent, action.prompt)

    def compute_metrics(
        self, event_loop_metrics: Any, tool_parse_errors: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """Metrics from the SDK's own counters; extend it with `super()` to add some. JSON values only.

        It runs where a plain `reset` runs: on the environment's own thread, elsewhere on the event loop. An exception
        is the step's error, and the step has no reward.
        `tool_parse_errors` counts malformed calls by tool name, where the model counts them.
        """
        return event_loop_metrics_to_dict(event_loop_metrics, tool_parse_errors)

    def is_trained(self, trajectory: Trajectory) -> bool:
        """Decides which trajectories are meant to be trained, by their `role`, `agent_name` and `parent`.

        The default, in `trainable`: those of agents, unless `model_for(trainable=False)` made the model, but no
        summaries, and no models of tools. An exception is the step's error, and the step has no reward.
        """
        return trajectory.trainable

    def is_scored(self, reason: TerminationReason) -> bool:
        """Decides which steps the reward function scores, by how they ended. The default: the policy's outcomes.

        Of time-outs only the step's own is asked for.
        """
        return reason is TerminationReason.TIMEOUT or not reason.is_failure

    # ---- running -----------------------------------------------------------------------------------------------------

    async def step(self, action: Action, *, cancel_signal: threading.Event | None = None) -> StepResult:
        """Run one agent loop and score it. Only cancellation of the calling task raises.

        Args:
            action: The task. Its `conversation_history` comes before the message.
            cancel_signal: Ends the loop when set; the result keeps what had been sampled.

        Returns:
            Messages, tokens and metrics of this step, its reward, and why it ended.
        """
        if not isinstance(action, Action):
            raise TypeError(f"got the action {action!r:.200}, expected Action(message=..., task_context=...)")
        started = time.perf_counter()
        try:
            if self._owes_reset:
                await self._set_up(action)
            before = self._list_of("get_history", action)
            history = copy_data(before)
            model = self._make_model(self.model_factory)
        except Exception as error:
            return self._fail(error, Phase.SETUP)
        scope = StepScope(recorder=LoopRecorder(), limiter=self._new_limiter(), cancel_signal=cancel_signal)
        scope.models.append(TrackedModel(model=model, agent_name=self.agent_name, trainable=True, is_main=True))
        seen = len(history)
        with scope.active():
            try:
                agent = self._build_agent(model, scope, history, action)
            except Exception as error:
                return self._fail(error, Phase.SETUP)
            end = await self._run(agent, action, scope)
            result = await self._observe(agent, scope, seen)
            result.observation.history = before or None
            is_whole = result.error is None
            if is_whole or (end.error is not None and end.outcome is not Outcome.POLICY):
                result.end = end
            if is_whole:  # else the reward would read an incomplete observation, and its own error would hide this one
                await self.score(action, result)
        result.observation.metrics["wall_s"] = round(time.perf_counter() - started, 4)
        return result

    async def invoke(self, agent: Agent, prompt: str | list[Any] | None) -> AgentResult:
        """Invoke the step's agent. For `interact`.

        Args:
            prompt: Text, content blocks, or None to continue.

        Raises:
            ToolLimitReachedError: A limit stopped the loop; let it pass, so that the step ends with it.
        """
        scope = StepScope.current()
        if scope is None:
            raise RuntimeError("Environment.invoke runs inside a step: call it from interact(), or use step()")
        options: dict[str, Any] = {} if scope.cancel_signal is None else {"cancel_signal": scope.cancel_signal}
        result = await agent.invoke_async(prompt, **options)
        if scope.limiter.reached is not None:
            raise scope.limiter.reached
        return result

    async def rollout(self, action: Action, *, cancel_signal: threading.Event | None = None) -> StepResult:
        """Run a whole episode of one step: `reset`, `step`, and always `cleanup`, each within its deadline.

        A failing `reset` gives a result with reason `SETUP_ERROR` or `TIMEOUT`; a failing `cleanup` is kept in
        `cleanup_error`. Only cancellation of the calling task raises, after the cleanup.
        """
        with EpisodeProgress.current(take=True) as progress:
            progress.is_scored = self.reward_fn is not None
            try:
                try:
                    progress.phase = Phase.SETUP
                    await self._set_up(action)
                except Exception as error:
                    result = self._fail(error, Phase.SETUP)
                else:
                    progress.phase = Phase.LOOP
                    # An override may be `step(self, action)`.
                    options = {} if cancel_signal is None else {"cancel_signal": cancel_signal}
                    stepping = self.step(action, **options)
                    if not inspect.isawaitable(stepping):
                        raise TypeError(f"{type(self).__name__}.step() must be async: write 'async def step'")
                    result = await stepping
                    if not isinstance(result, StepResult):
                        raise TypeError(f"{type(self).__name__}.step() must return a StepResult, got {result!r}")
                    if (result.observation.history or []) == action.task_context.conversation_history:
                        result.observation.history = None
            finally:
                progress.phase = Phase.CLEANUP
                cleanup_error = await keep_error(self._clean_up())
        result.cleanup_error = cleanup_error
        return result

    async def __aenter__(self) -> Self:
        if self._owes_reset:
            return self
        try:
            await self._set_up()
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await (self._clean_up() if error is None else keep_error(self._clean_up()))

    def model_for(
        self,
        agent_name: str,
        *,
        trainable: bool = True,
        role: str = "subagent",
        model_factory: ModelFactory | None = None,
    ) -> Model:
        """A model for a sub-agent of the running step (agent as tool, Graph node, Swarm member).

        Its trajectories appear in `StepResult.trajectories` under this name, and each has the budget
        `max_total_tokens`. A step in which such a model failed ends with that failure and without a reward; the
        calling agent only sees a tool result.

        Args:
            trainable: Its tokens are meant to be trained, if `is_trained` agrees.
            role: The part that it has in the episode: a `Role`.
            model_factory: Makes the model; the environment's own factory if not given.

        Raises:
            RuntimeError: No step is running. Make sub-agents in `get_tools()` or inside a tool.
            ValueError: There is no such role.
        """
        scope = StepScope.current()
        if scope is None:
            raise RuntimeError(
                f"model_for({agent_name!r}) needs a running step: make sub-agents in get_tools(), get_hooks() or a tool"
            )
        try:
            part = Role(role)
        except ValueError as error:
            fail_step(error)  # a tool may make a result of it
            raise
        model = self._make_model(model_factory or self.model_factory)
        scope.watch(model)
        scope.models.append(TrackedModel(model=model, agent_name=agent_name, trainable=trainable, role=part))
        return model

    # ---- the parts of a step -----------------------------------------------------------------------------------------

    async def _call(self, part: Callable[..., Any], *arguments: Any) -> None:
        if inspect.iscoroutinefunction(part):
            returned = part(*arguments)
        else:
            returned = await (self._own_thread or default_threads).run(part, *arguments)
        if inspect.isawaitable(returned):
            await returned

    async def _set_up(self, *action: Action) -> None:
        self._owes_reset = False
        arguments = action if "reset" in self._with_action else ()  # a world may depend on its task
        await run_with_timeout(self._call(self.reset, *arguments), self.setup_timeout, Phase.SETUP)

    async def _clean_up(self) -> None:
        try:
            await run_shielded(self._call(self.cleanup), self.cleanup_timeout, Phase.CLEANUP)
        finally:
            self._owes_reset = "reset" in self._with_action
            if self._own_thread is not None:
                self._own_thread.close()

    def _new_limiter(self) -> EpisodeLimiter:
        return EpisodeLimiter(**{name: getattr(self, name) for name in _LIMITS})

    def _build_agent(self, model: Model, scope: StepScope, history: list[Any], action: Action) -> Agent:
        tools = list(flatten_tools(self._list_of("get_tools", action)))
        for mistake in tool_mistakes(tools):
            raise TypeError(mistake)
        system = system_prompt_of(action.task_context)
        agent = self.make_agent(
            model=model,
            messages=history,
            tools=tools,
            system_prompt=self._call_override("get_system_prompt", action) if system is None else system,
            hooks=[scope.limiter, *self._list_of("get_hooks", action), scope.recorder],
            conversation_manager=self.get_conversation_manager(),
            callback_handler=PrintingCallbackHandler() if self.verbose else None,
            retry_strategy=None,  # the model retries inside one call; a second retry around it would multiply attempts
            name=self.agent_name,
            agent_id=uuid.uuid4().hex,
            trace_attributes=getattr(action.task_context, "trace_attributes", None),
        )
        if not hasattr(agent, "tool_registry"):
            raise TypeError(f"{type(self).__name__}.make_agent() must return a strands.Agent, got {agent!r:.100}")
        registry = agent.tool_registry.registry
        registry.update({name: self._limit_tool(tool) for name, tool in registry.items()})
        watch_agent(agent)
        scope.agents.append(agent)
        return agent

    def _call_override(self, name: str, action: Action) -> Any:
        return getattr(self, name)(*((action,) if name in self._with_action else ()))

    def _list_of(self, name: str, action: Action) -> list[Any]:
        items = self._call_override(name, action)
        if not isinstance(items, Iterable):
            what = f"{type(self).__name__}.{name}() must return a list, got {items!r:.100}"
            raise TypeError(f"{what}: write 'def {name}(self): return [...]'")
        return list(items)

    def _limit_tool(self, tool: AgentTool) -> AgentTool:
        """The tool within the environment's limits, unless it has its own, or is an agent, whose time is model time."""
        if isinstance(tool, LimitedTool) or tool.tool_type == "agent":
            return tool
        return with_limits(
            tool, timeout=self.tool_timeout, max_output_chars=self.max_tool_output_chars, threads=self._own_thread
        )

    async def _run(self, agent: Agent, action: Action, scope: StepScope) -> End:
        outer = sys.exception()
        try:
            try:
                outcome = await run_with_timeout(self.interact(agent, action), self.step_timeout, Phase.LOOP)
            finally:
                for member in scope.agents:
                    await end_background_tasks(member)
            if scope.limiter.reached is not None:  # interact() invoked the agent itself, or went on
                raise scope.limiter.reached
        except Exception as error:
            end = self._ended_by(error, scope)
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
        if scope.failures and end.outcome is Outcome.POLICY:
            where, failed = next(iter(scope.failures.values()))
            end = End.from_error(failed, where, default=DEFAULT_REASONS[where])
            logger.warning("end=<%s> | a part of the step failed unseen", end)
        return end

    def _ended_by(self, error: Exception, scope: StepScope) -> End:
        reason = TerminationReason.from_error(error, default=DEFAULT_REASONS.get(scope.recorder.phase))
        if reason is TerminationReason.MAX_TOKENS_REACHED:  # the reply's own bound, a budget, or the context
            limit = getattr(scope.models[0].model, "length_limit", None)
            budget = self.max_total_tokens
            if limit is None and budget is not None and scope.limiter.total_tokens >= budget:
                reason = TerminationReason.TOKEN_BUDGET_REACHED
            else:
                reason = TerminationReason.from_length_limit(limit)
        if reason.is_limit:
            logger.debug("reason=<%s> | agent loop reached a limit", reason)
            return End(reason)
        where = error.where if isinstance(error, EpisodeTimeoutError) else scope.recorder.phase
        end = End(reason, error=ErrorRecord.from_exception(error, where))
        logger.warning("end=<%s> | step failed", end)
        return end

    async def _observe(self, agent: Agent, scope: StepScope, seen: int) -> StepResult:
        recorder, limiter, main = scope.recorder, scope.limiter, scope.models[0]
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
        try:  # whatever a subclass or a provider does here, what has been collected so far is kept
            trajectories = trajectories_of_step(scope.models)
            metrics |= decide_training(trajectories, self.is_trained)
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

    async def _compute_metrics(self, event_loop_metrics: Any, parse_errors: Any) -> dict[str, Any]:
        """`compute_metrics`, on the environment's own thread if it has one: it may read what `reset` opened."""
        parse_errors = parse_errors if isinstance(parse_errors, Mapping) else None
        if self._own_thread is None:
            computed: Any = self.compute_metrics(event_loop_metrics, tool_parse_errors=parse_errors)
        else:
            # A tool that never returned may hold the thread, which would hold up an episode without a deadline.
            work = self._own_thread.run(self.compute_metrics, event_loop_metrics, tool_parse_errors=parse_errors)
            computed = await run_with_timeout(work, self.reward_timeout or self.cleanup_timeout, Phase.LOOP)
        if not isinstance(computed, Mapping) or not all(isinstance(name, str) for name in computed):
            raise TypeError(f"compute_metrics() must give every metric a name, in a dict, got {computed!r:.200}")
        return dict(computed)

    async def score(self, action: Action, result: StepResult) -> None:
        """Give a finished step its reward, as `step` does; an exception of the reward becomes the result's error."""
        if self._scorer is None:
            return
        seen = result.observation
        metrics = seen.metrics
        started = time.perf_counter()
        reason, failure = TerminationReason.REWARD_ERROR, None
        try:
            timed_out = result.end.reason is TerminationReason.TIMEOUT
            if (timed_out and result.end.outcome is not Outcome.POLICY) or not self.is_scored(result.end.reason):
                return
            # What code that is not ours changes in its copy, the record keeps. Tokens cannot be changed.
            observation = seen.model_copy(
                update={"messages": copy_data(seen.messages), "metrics": copy_data(seen.metrics)}
            )
            copied = result.model_copy(update={"observation": observation, "trajectories": list(result.trajectories)})
            with EpisodeProgress.current() as progress:
                progress.phase = Phase.REWARD
                result.reward = await computed_reward(self._scorer, action, copied, timeout=self.reward_timeout)
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

    def _fail(self, error: BaseException, where: Phase) -> StepResult:
        end = End.from_error(error, where, default=TerminationReason.SETUP_ERROR)
        if end.reason.is_limit:  # another agent's limit: this one has not begun, so nothing was cut short
            end = End(TerminationReason.SETUP_ERROR, error=end.error)
        logger.warning("where=<%s>, end=<%s> | step failed", where, end)
        return StepResult(observation=Observation(), end=end)

    def _make_model(self, factory: ModelFactory) -> Model:
        check_factory(factory, "model_factory")
        model = check_model(factory(), "model_factory")
        config = getattr(model, "config", None)
        if self.max_total_tokens is not None and isinstance(config, dict) and "max_trajectory_tokens" in config:
            model.update_config(max_trajectory_tokens=self.max_total_tokens)
        return model


OVERRIDES = frozenset(
    name for name, value in vars(Environment).items() if inspect.isfunction(value) and not name.startswith("_")
) - {"invoke", "model_for", "score"}
"""Methods that a subclass may override."""
