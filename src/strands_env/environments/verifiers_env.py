"""`VerifiersEnvironment`: an environment of verifiers (v1) as an environment. Written against verifiers 0.4.0."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from strands import Agent
from strands.agent.agent_result import AgentResult
from strands.models.openai import OpenAIModel
from strands.tools.mcp import MCPClient
from strands.types.exceptions import MaxTokensReachedException
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.configs.env import EnvConfig
from verifiers.v1.env import Env
from verifiers.v1.episode import Episode
from verifiers.v1.harness import HarnessSession
from verifiers.v1.harnesses.null import NullHarness, NullHarnessConfig
from verifiers.v1.runtimes import ProgramResult, SubprocessConfig
from verifiers.v1.task import Task
from verifiers.v1.trace import Trace
from verifiers.v1.utils.loaders import (
    default_harness_id,
    load_environment,
    load_taskset,
    resolve_env_config,
    task_type,
)

from strands_env.core import Action, Environment, RewardResult, StepResult, TaskContext, TerminationReason
from strands_env.core.chat_messages import ChatPrompt, UnsupportedPromptError, is_image
from strands_env.core.limits import DEFAULT_TIMEOUT
from strands_env.core.types import Trajectory
from strands_env.sandbox import SandboxLostError
from strands_sglang import ToolLimiter
from strands_sglang.callers import outermost
from strands_sglang.exceptions import MaxToolCallsReachedError, MaxToolIterationsReachedError

from .mcp import MCPTools
from .outside_agents import conversation_of, result_of, session_of, take_over

_OWN_LIMITS = (MaxTokensReachedException, MaxToolIterationsReachedError, MaxToolCallsReachedError)
"""Ends of an agent's run that are the policy's; the run is scored."""
_STOPS = {
    "max_turns": "limit_turns",
    "max_input_tokens": "limit_total_tokens",
    "max_output_tokens": "limit_total_tokens",
    "max_total_tokens": "limit_total_tokens",
}
"""Stop reasons of a loop for limits that a seat of verifiers has."""


class VerifiersError(ValueError):
    """An environment of verifiers does not exist, or cannot be made here; the message says what to type or install."""


def config_of(name: str, config: Mapping[str, Any] | None = None) -> EnvConfig:
    """The configuration of an environment by name, with a harness for each of its seats.

    A seat for which neither the configuration nor the package names a harness is played by an agent of ours. The
    default of verifiers is a shell on this machine.

    Args:
        name: The taskset, or `ENV+TASKSET`.
        config: The fields of verifiers' `[env]`: `{"taskset": {...}, "agent": {"max_turns": 8}}`.

    Raises:
        VerifiersError: There is no such environment, or an option is wrong.
    """
    env_id, _, taskset = name.rpartition("+")
    raw: dict[str, Any] = {"id": env_id} if env_id else {}
    raw |= config or {}
    raw["taskset"] = {**raw.get("taskset", {}), "id": taskset}
    try:
        resolved = resolve_env_config(raw)
        pinned = default_harness_id(taskset) != "bash"
    except (ImportError, ValueError, AttributeError, TypeError) as error:
        raise VerifiersError(_explain(error, name, env_id, taskset)) from error
    update = {}
    for seat, agent in agent_config_fields(resolved).items():
        if not pinned and agent.harness is None:
            # Our agent runs nothing there, so the default of verifiers, a sandbox in its maker's cloud, is not needed.
            runtime = agent.runtime if "runtime" in agent.model_fields_set else SubprocessConfig()
            update[seat] = agent.model_copy(update={"harness": _AgentConfig(id="null"), "runtime": runtime})
    return resolved.model_copy(update=update)


def _explain(error: Exception, name: str, env_id: str, taskset: str) -> str:
    """The reason why verifiers has no such environment here, and the remedy."""
    match error:
        case ModuleNotFoundError():
            missing, module = error.name or "", taskset.rpartition("/")[2].partition("@")[0].replace("-", "_").lower()
            if isinstance(error.__cause__, ModuleNotFoundError):
                missing = error.__cause__.name or missing
            if missing in ("", module, f"verifiers.v1.tasksets.{module}", env_id.replace("-", "_")):
                where = "install its package ('prime env install OWNER/NAME' for one of the hub)"
                return f"there is no environment {name!r} of verifiers here: {where}"
            return f"the environment {name!r} needs a package: pip install {missing}"
        case ValidationError():
            faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            return f"the options of {name!r} are wrong: {faults}"
        case AttributeError() | TypeError():  # a module, and no taskset of v1
            return f"{name!r} is no taskset of verifiers v1: {error}"
    return f"the environment {name!r} cannot be made: {error}"


def actions_of(name: str, config: Mapping[str, Any] | None = None) -> Iterator[Action]:
    """The tasks of an environment as actions, which hold the task's whole data.

    Raises:
        VerifiersError: See `config_of`; or the tasks cannot be read.
    """
    resolved = config_of(name, config)
    try:
        for task in load_taskset(resolved.taskset):
            data = task.data.model_dump(mode="json")
            label = task.data.id or task.data.name or task.data.idx
            context = TaskContext(
                id=f"{name}/{label}", ground_truth=data.get("answer"), system_prompt=None, task_data=data
            )
            yield Action(message=task.data.prompt_text or "(the environment speaks first)", task_context=context)
    except Exception as error:
        what = f"the tasks of {name!r} cannot be read: {type(error).__name__}: {error}"
        raise VerifiersError(f"{what}; where they are on the hub, run where it can be reached") from error


class VerifiersEnvironment(Environment):
    """An environment of verifiers: its taskset gives the actions, its seats play, its rewards score.

    Every call of the policy goes through verifiers' own interception and then a session of an in-process gateway, so
    limits, stops and rewards of verifiers work as ever, and the tokens are exact. Seats are agents with
    their names; one that the environment marks as not trainable is not trained.

    Args:
        taskset: Its name, or `ENV+TASKSET`: `best-of-n+gsm8k`.
        config: Options of the environment; see `config_of`.
        seat: The seat whose reward counts, where several are trained.
        **options: Further arguments of `Environment`. Limits on tools are for seats that an agent of ours plays. A
            `reward_fn` replaces the rewards of verifiers.

    Raises:
        VerifiersError: There is no such environment, or it cannot be made here.
    """

    def __init__(
        self, *, taskset: str, config: Mapping[str, Any] | None = None, seat: str | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.config = config_of(taskset, config)
        seats = agent_config_fields(self.config)
        if seat is not None and seat not in seats:
            raise VerifiersError(f"{taskset!r} has no seat {seat!r}; it has {', '.join(seats)}")
        self.seat, self.is_alone = seat, len(seats) == 1
        if self.reward_fn is None:
            self.reward_fn = self.episode_reward
        self._traces: list[Trace] = []
        self._limit: Exception | None = None
        self._counters: dict[str, Any] = {}
        self._episode: asyncio.Task[Episode] | None = None

    def identity(self) -> dict[str, Any]:
        """The reward's state, so that a resumed run is scored as it was begun."""
        return {"config": self.config.model_dump(mode="json"), "seat": self.seat}

    async def cleanup(self) -> None:
        """End the episode, where it still runs."""
        episode, self._episode = self._episode, None
        if episode is not None:
            episode.cancel()
            await asyncio.wait([episode])

    async def interact(self, agent: Agent, action: Action) -> AgentResult:
        """Have the environment play, and score."""
        await self.cleanup()
        self._traces, self._limit = [], None
        env, task = self._env(), self._task(action)
        conversation = conversation_of(agent.model)
        first_turn = len(conversation.forest.turns)
        async with session_of(conversation, join_equal=False, key="EMPTY") as session:
            # A client of verifiers reads its key from an environment variable, or says EMPTY. This gateway serves one
            # episode, and this machine only.
            client = EvalClientConfig(base_url=session.base_url, api_key_var="STRANDS_ENV_NO_KEY")
            context = ModelContext(model="policy", client=client)
            self._episode = playing = asyncio.create_task(self._play(env, task, context))
            try:
                episode = await asyncio.shield(playing)
            except asyncio.CancelledError:  # the step's time is over; grading, which is not the policy's, goes on
                if not self._is_grading:
                    playing.cancel()
                    await asyncio.wait([playing])
                raise
            finally:
                self._counters = session.counters.to_json()
                take_over(agent, conversation, first_turn, session.history, session.last_turn)
            return self._conclude(agent, session, episode)

    async def _play(self, env: Env[Any], task: Task[Any], context: ModelContext) -> Episode:
        try:
            with outermost():
                async with env.serving():
                    return await env.run_episode(
                        task, context, on_trace=self._traces.append, on_discard=self._traces.remove
                    )
        except SystemExit as error:  # where a key is missing
            raise RuntimeError(f"verifiers gave up: {error}") from error

    def _env(self) -> Env[Any]:
        """The environment, whose seats of ours get their agents when an episode is set up."""
        env = load_environment(self.config)
        set_up = env.setup

        async def setup(agents: Any) -> None:
            await set_up(agents)
            for name, seat in agent_config_fields(self.config).items():
                if isinstance(seat.harness, _AgentConfig):
                    getattr(agents, name).harness = _AgentHarness(seat.harness, self, name)

        env.setup = setup
        return env

    def _task(self, action: Action) -> Task[Any]:
        kind = task_type(self.config.taskset.id)
        data = (action.task_context.model_extra or {}).get("task_data")
        if data is None:
            data = {"prompt": action.message, "answer": action.task_context.ground_truth}
        try:
            return kind(kind.data_type().model_validate(data), self.config.taskset.task)
        except ValidationError as error:
            missing = ", ".join(".".join(map(str, each["loc"])) for each in error.errors())
            raise ValueError(f"the action {action.task_context.id!r} is none of this taskset: {missing}") from error

    @property
    def _is_grading(self) -> bool:
        return bool(self._traces) and all(trace.timing.finalize.start for trace in self._traces)

    def _conclude(self, agent: Agent, session: Any, episode: Episode) -> AgentResult:
        # Of the model, or a limit of ours, even if the environment took it for something else.
        if (failure := session.failure or self._limit) is not None:
            raise failure
        for trace in self._traces:
            if not trace.ok and not trace.timing.scoring.start and (error := trace.last_error) is not None:
                kind = SandboxLostError if error.type == "SandboxError" else RuntimeError
                raise kind(f"the environment failed: {error.type}: {error.message}"[:2000])
        if not session.counters.sampled or not agent.messages:
            errors = "; ".join(f"{each.type}: {each.message}" for each in episode.errors)
            raise RuntimeError(f"the environment made no model call: {errors or 'and named no error'}"[:2000])
        stops = [_STOPS[stop] for trace in self._traces if (stop := trace.stop_condition or "") in _STOPS]
        return result_of(agent, stops[-1] if stops else "end_turn")

    def compute_metrics(
        self, event_loop_metrics: Any, tool_parse_errors: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """The usual metrics, the tool calls of all seats, and under `gateway` the counters of the session."""
        metrics = super().compute_metrics(event_loop_metrics, tool_parse_errors)
        return {**metrics, "tool_calls": self._counters.get("calls", 0), "gateway": self._counters}

    def is_trained(self, trajectory: Trajectory) -> bool:
        """Decides which trajectories are meant to be trained: not those of seats that the environment holds fixed."""
        fixed = {trace.agent.name for trace in self._traces if trace.agent is not None and not trace.agent.trainable}
        is_fixed = trajectory.agent_name in fixed if not self.is_alone else bool(fixed)
        return not is_fixed and super().is_trained(trajectory)

    async def episode_reward(self, action: Action, result: StepResult) -> RewardResult:
        """The reward that verifiers gave: that of the one trained seat, or of `seat`, averaged over its runs."""
        if self._episode is None or (self._episode.done() and self._episode.cancelled()):
            reason = "the step's time was over before verifiers scored it"
            return RewardResult(reward=0.0 if result.termination_reason is TerminationReason.TIMEOUT else None,
                                info={"reason": reason})  # fmt: skip
        episode = await asyncio.shield(self._episode)  # its grading may have outlived the step
        for error in (*episode.errors, *(error for trace in self._traces for error in trace.errors)):
            raise RuntimeError(f"verifiers could not score the episode: {error.type}: {error.message}"[:2000])
        trained = [trace for trace in self._traces if trace.agent is None or trace.agent.trainable]
        names = sorted({trace.agent.name for trace in trained if trace.agent is not None})
        if self.seat is None and len(names) > 1:
            raise ValueError(f"the seats {', '.join(names)} are trained: name the one whose reward counts with seat=")
        scored = [trace for trace in trained if self.seat in (None, trace.agent and trace.agent.name)]
        values = [trace.reward for trace in scored]
        info: dict[str, Any] = {
            "rewards": [{name: each and each.value for name, each in trace.rewards.items()} for trace in scored],
            "metrics": [trace.metrics for trace in scored],
            "stop_condition": [trace.stop_condition for trace in scored],
        }
        if not any(trace.rewards for trace in scored):
            return RewardResult(reward=None, info={**info, "reason": "the task has no reward"})
        reward = sum(values) / len(values)
        return RewardResult(reward=reward if math.isfinite(reward) else None, info=info)


# ---- a seat that an agent of ours plays ------------------------------------------------------------------------------


class _AgentConfig(NullHarnessConfig):
    """Configuration of a seat that an agent of ours plays, in place of the program of `null`."""


class _AgentHarness(NullHarness):
    """A Strands agent in this process, with the task's tools alone."""

    SUPPORTS_TOOL_INTERCEPTION = False

    def __init__(self, config: _AgentConfig, env: VerifiersEnvironment | None = None, seat: str = "agent") -> None:
        super().__init__(config)
        self.env, self.seat, self.runs = env, seat, 0

    async def setup(self, runtime: Any) -> None:
        """There is no program to prepare."""

    async def session(self, *arguments: Any, **options: Any) -> HarnessSession:
        """The agent of one run."""
        self.runs += 1
        return _AgentSession(self, *arguments, **options)


class _AgentSession(HarnessSession):
    """The agent of one run, which remembers the conversation between turns of a user."""

    harness: _AgentHarness
    _agent: Agent | None = None
    _tools: MCPTools | None = None

    async def _run(self, messages: Any) -> ProgramResult:
        prompt: Any = messages
        if self._agent is None:
            system, prompt = self.harness.resolve_prompt(self.data)
            prompt = _chat([*([] if prompt is None else prompt), *(messages or [])], prompt)
            self._agent = await self._make_agent(prompt, system)
            prompt = prompt.turns[-1]["content"]
        else:
            prompt = _chat(messages, messages).turns[-1]["content"]
        try:
            await self._agent.invoke_async(prompt)
        except _OWN_LIMITS as limit:
            assert self.harness.env is not None
            self.harness.env._limit = limit
        return ProgramResult(exit_code=0, stdout="", stderr="")

    async def _make_agent(self, prompt: ChatPrompt, system: str | None) -> Agent:
        env, harness = self.harness.env, self.harness
        assert env is not None
        name = harness.seat if harness.runs == 1 else f"{harness.seat}-{harness.runs}"
        # The gateway tells agents apart by this header; a lone run is the episode's main agent.
        headers = {} if env.is_alone and harness.runs == 1 else {"x-claude-code-agent-id": name}
        options = {"base_url": self.endpoint, "api_key": self.secret, "max_retries": 0, "default_headers": headers}
        tools: Sequence[Any] = ()
        if self.mcp_urls:
            self._tools = MCPTools(
                *(MCPClient(url=url) for url in self.mcp_urls.values()), timeout=env.tool_timeout or DEFAULT_TIMEOUT
            )
            await self._tools.open()
            tools = self._tools.tools
        return Agent(
            model=OpenAIModel(client_args=options, model_id=self.ctx.model),
            system_prompt=system or prompt.system,
            messages=prompt.turns[:-1],  # type: ignore[arg-type]
            tools=[*tools],
            hooks=[ToolLimiter(max_tool_iters=env.max_tool_iters, max_tool_calls=env.max_tool_calls)],
            callback_handler=None,
            retry_strategy=None,
            name=name,
        )

    async def close(self) -> None:
        """Disconnect from the task's tools."""
        await super().close()
        tools, self._tools = self._tools, None
        if tools is not None:
            await tools.close()


def _chat(messages: Sequence[Any], prompt: Any) -> ChatPrompt:
    """A prompt of verifiers, text or messages, as Strands messages."""
    if isinstance(prompt, str):
        messages = [{"role": "user", "content": prompt}]
    else:
        messages = [message.model_dump(exclude_none=True) for message in messages]
    if any(is_image(part) for message in messages for part in message["content"] if not isinstance(part, str)):
        raise UnsupportedPromptError("the prompt has an image, which an agent of ours is not given: name a harness")
    return ChatPrompt.of(messages, None)
