"""`Environment`, as a user overrides it: a model, tools, limits and a reward. core/episode.py runs it."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from strands import Agent
from strands.agent.agent_result import AgentResult
from strands.agent.conversation_manager import ConversationManager, NullConversationManager
from strands.models import Model

from strands_sglang.exceptions import check_positive, explain_arguments
from strands_sglang.limits import Limits, limit_of
from strands_sglang.trajectory import Role

from .deadline import keep_error
from .episode import Episode, clean_up, fail_step, set_up
from .metrics import event_loop_metrics_to_dict
from .overrides import action_optional, declares_action, make_action_optional, warn_of_misspelt_overrides
from .scoring import RewardCallable, as_reward_function
from .termination import TerminationReason
from .threads import OneThread
from .types import Action, ModelFactory, RewardFunction, StepResult, Trajectory, check_factory

DEFAULT_TOOL_TIMEOUT = 300.0
"""Seconds one tool call may take."""
DEFAULT_MAX_TOOL_OUTPUT_CHARS = 100_000
"""Characters of text in one tool result."""

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

    Override the methods you need: `reset`, `get_tools`, `get_hooks`, `get_system_prompt` and `get_history`, in which
    `self.action` is the task (as a parameter, `action`, where you prefer); `cleanup`, `interact`, `get_state`,
    `compute_metrics`. A step runs one whole agent loop (prompt, tool calls and results, answer) with a fresh model, so
    a stateless environment may run many steps at once: see `Episode` (core/episode.py). An episode that fails is data,
    not an exception: see `TerminationReason` and `StepResult.error`.

    Args:
        model_factory: Makes a fresh model for every step.
        system_prompt: System prompt; None reads `default_system_prompt_path`, where the class has one.
        reward_fn: Scores a finished step: a `RewardFunction`, or a plain function. None for no reward.
        limits: `Limits` on the loop and on tokens. Tokens are counted exactly with `SGLangModel`; with other providers
            there is `max_trajectory_tokens` alone, checked before each model call.
        max_tool_iters, max_tool_calls, max_parallel_tool_calls, max_messages, max_total_tokens: See `Limits`, in which
            the last is `max_trajectory_tokens`.
        tool_timeout: Seconds one tool call may take; then it is answered with an error. None for no limit. Agents as
            tools have none.
        max_tool_output_chars: Characters of text in one tool result; longer text keeps its beginning and end. None
            for no limit.
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

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        make_action_optional(cls, Environment.action.__get__)

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
        limits: Limits | None = None,
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
        check_positive(whole=True, optional=True, zero=True, max_total_tokens=max_total_tokens)
        self.limits = Limits.of(
            limits,
            max_tool_iters=max_tool_iters,
            max_tool_calls=max_tool_calls,
            max_parallel_tool_calls=max_parallel_tool_calls,
            max_trajectory_tokens=max_total_tokens,
            max_messages=max_messages,
        )
        self.limits.set_ones("loop", "tokens", owner=type(self).__name__)
        self.verbose = verbose
        self.setup_timeout = setup_timeout
        self.step_timeout = step_timeout
        self.reward_timeout = reward_timeout
        self.cleanup_timeout = cleanup_timeout
        self.agent_name = agent_name
        self.tool_timeout = tool_timeout
        self.max_tool_output_chars = max_tool_output_chars
        self._is_set_up = False
        self._own_thread: OneThread | None = None
        if not inspect.iscoroutinefunction(self.reset):
            self._own_thread = OneThread()
            weakref.finalize(self, self._own_thread.close)
        self.reward_fn = reward_fn
        check_positive("seconds", optional=True, **{name: getattr(self, name) for name in _TIMEOUTS})
        check_positive("characters", optional=True, max_tool_output_chars=max_tool_output_chars)
        known = {"_rollout": "interact(self, agent, action)"}  # as upstream
        if getattr(reward_fn, "__name__", None) != "compute_reward":  # else the method itself is the reward
            known["compute_reward"] = "the argument reward_fn"
        warn_of_misspelt_overrides(type(self), Environment, OVERRIDES, known)

    max_tool_iters = limit_of("max_tool_iters")
    max_tool_calls = limit_of("max_tool_calls")
    max_parallel_tool_calls = limit_of("max_parallel_tool_calls")
    max_total_tokens = limit_of("max_trajectory_tokens")
    max_messages = limit_of("max_messages")

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

    # ---- for subclasses to override ----------------------------------------------------------------------------------

    @property
    def action(self) -> Action:
        """The task of the running step; of each its own where several run at once.

        Raises:
            RuntimeError: Nothing is running.
        """
        episode = Episode.current()
        if episode is None:
            raise RuntimeError(
                f"{type(self).__name__}.action is the running step's task, and no step is running: 'async with' calls "
                "reset(self) before the first one, and reset(self, action) in it"
            )
        return next((each for each in episode.outwards() if each.env is self), episode).action

    @action_optional
    async def reset(self) -> None:
        """Start an episode: start containers, open sessions. `cleanup` ends whatever it starts.

        It runs in `rollout` before the step, and where `async with` begins. Declared as `reset(self, action)`, it waits
        for the first step if there is no `rollout`. Nothing else runs it.

        As a plain function (`def reset(self)`) it runs on a thread of the environment's own, together with the
        synchronous tools, a synchronous reward and a plain `cleanup`, one after the other: for SQLite, browsers and
        whatever else belongs to the thread that opened it.
        """

    async def cleanup(self) -> None:
        """End the episode and free its resources. Must work after a `reset` that failed half-way, and twice."""

    @action_optional
    def get_tools(self) -> list[Any]:
        """The agent's tools, asked for at every step."""
        return []

    @action_optional
    def get_hooks(self) -> list[Any]:
        """Further Strands hooks of the agent, asked for at every step."""
        return []

    @action_optional
    def get_system_prompt(self) -> str | list[Any] | None:
        """The agent's system prompt, asked for at every step."""
        return self.system_prompt

    @action_optional
    def get_history(self) -> list[Any]:
        """The messages before the action's, asked for at every step. The default is the task's own history."""
        return list(self.action.task_context.conversation_history)

    async def get_state(self) -> Any:
        """The world as the agent left it, for the reward and the record: `StepResult.state`. None for nothing.

        JSON values of at most a megabyte: what a reward must know, such as the rows of an order, and counts or digests
        of what an agent can make large. It is asked before the reward, where the step's end is the policy's, within
        `reward_timeout` (`cleanup_timeout` without one), and may be a plain function as `reset` may. `strands-env
        rescore` judges the same state. If it raises, or returns anything else (`StateError`), that is the step's error,
        and the step has no reward.
        """
        return None

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
        return await Episode(self, action, cancel_signal).step()

    async def invoke(self, agent: Agent, prompt: str | list[Any] | None) -> AgentResult:
        """Invoke the step's agent. For `interact`.

        Args:
            prompt: Text, content blocks, or None to continue.

        Raises:
            ToolLimitReachedError: A limit stopped the loop; let it pass, so that the step ends with it.
        """
        episode = Episode.current()
        if episode is None:
            raise RuntimeError("Environment.invoke runs inside a step: call it from interact(), or use step()")
        options: dict[str, Any] = {} if episode.cancel_signal is None else {"cancel_signal": episode.cancel_signal}
        result = await agent.invoke_async(prompt, **options)
        if episode.limiter.reached is not None:
            raise episode.limiter.reached
        return result

    async def rollout(self, action: Action, *, cancel_signal: threading.Event | None = None) -> StepResult:
        """Run a whole episode of one step: `reset`, `step`, and always `cleanup`, each within its deadline.

        A failing `reset` gives a result with reason `SETUP_ERROR` or `TIMEOUT`; a failing `cleanup` is kept in
        `cleanup_error`. Only cancellation of the calling task raises, after the cleanup.
        """
        return await Episode(self, action, cancel_signal).rollout()

    async def __aenter__(self) -> Self:
        if declares_action(self.reset):  # there is none yet
            return self
        try:
            await set_up(self)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await (clean_up(self) if error is None else keep_error(clean_up(self)))

    async def score(self, action: Action, result: StepResult) -> None:
        """Give a finished step its reward, as `step` does; an exception of the reward becomes the result's error."""
        await Episode(self, action).score(result)

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
        current = Episode.current()
        step = None if current is None else next((each for each in current.outwards() if each.models), None)
        if step is None:
            raise RuntimeError(
                f"model_for({agent_name!r}) needs a running step: make sub-agents in get_tools(), get_hooks() or a tool"
            )
        try:
            part = Role(role)
        except ValueError as error:
            fail_step(error)  # a tool may make a result of it
            raise
        return step.add_model(model_factory or self.model_factory, agent_name, trainable=trainable, role=part)


OVERRIDES = frozenset(
    name for name, value in vars(Environment).items() if inspect.isfunction(value) and not name.startswith("_")
) - {"invoke", "model_for", "score"}
"""Methods that a subclass may override."""
