"""`InspectEnvironment`: any task of inspect_ai as an environment."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from inspect_ai import Task
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageUser,
    Model,
    ModelOutput,
    execute_tools,
)
from inspect_ai.scorer import Score
from inspect_ai.solver import TaskState
from inspect_ai.tool import Tool, ToolCall, ToolDef
from strands import Agent
from strands.agent.agent_result import AgentResult
from strands.types.exceptions import ContextWindowOverflowException, MaxTokensReachedException
from strands.types.tools import AgentTool, ToolUse

from strands_env.core import (
    Action,
    End,
    Environment,
    ModelFactory,
    Phase,
    RewardFunction,
    RewardResult,
    StepResult,
    TerminationReason,
)
from strands_env.core.chat_messages import spoken_text
from strands_env.core.episode import Episode
from strands_env.core.sdk_patches import inside_a_step
from strands_env.core.termination import TaskTimeLimitReachedError
from strands_env.sandbox import SandboxLostError
from strands_env.tools.results import make_tool
from strands_sglang.callers import outermost
from strands_sglang.conversation.messages import to_strands
from strands_sglang.exceptions import MaxMessagesReachedError

from ..outside_agents import conversation_of, result_of, take_over
from .inspect_provider import AgentPath, Seat
from .inspect_run import InspectEpisode
from .inspect_tasks import InspectTask

_STOP_REASONS = {
    "turn": "limit_turns",
    "custom": "limit_turns",
    "token": "limit_total_tokens",
    "cost": "limit_total_tokens",
    "operator": "interrupt",
}
"""Stop reasons for limits of inspect; those of time and messages are errors here."""
LIMITS = {
    "message": TerminationReason.MAX_MESSAGES_REACHED,
    **dict.fromkeys(("time", "working"), TerminationReason.TASK_TIME_LIMIT_REACHED),
    **{name: TerminationReason.from_stop_reason(reason) for name, reason in _STOP_REASONS.items()},
}
"""Ends for limits of inspect."""
_WORDS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""Numbers for values of scores, as inspect counts them."""
_NOT_GRADED = frozenset({"grader_failed", "scoring_failed"})
"""Reasons by which a scorer says that it could not grade."""
_episode: ContextVar[InspectEpisode | None] = ContextVar("strands_env_inspect_episode", default=None)


class InspectReward(RewardFunction):
    """The score that a task's own scorer gives, as a number.

    A scorer that fails, or says that it could not grade, is a failure of the grader; a score that is no number (NaN)
    has no reward. Outside of an episode (a proof, a saved run) a single reply without calls is played once more to the
    task; there is no reward for any other then, since its sandbox is gone.

    Args:
        task: Name of the task, or the task.
        task_args: Its arguments.
        score: The scorer to read, or `scorer.key` for one of its values; None for the only one.
        model_roles: See `InspectEnvironment`.
    """

    def __init__(
        self,
        task: str | Task,
        task_args: Mapping[str, Any] | None = None,
        score: str | None = None,
        model_roles: Mapping[str, str | Model | ModelFactory] | None = None,
    ) -> None:
        self.task = InspectTask.of(task, task_args or {}, model_roles or {})
        self.score = score

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Have the running episode scored; without one, play the reply again."""
        if (episode := _episode.get()) is not None:
            return read_scores(await episode.score(), self.score)
        replies = [each for each in step_result.observation.messages if each["role"] == "assistant"]
        if len(replies) > 1 or any("toolUse" in block for each in replies for block in each["content"]):
            return RewardResult(reward=None, info={"reason": "only its own episode can score several turns"})
        text = step_result.observation.final_response or ""
        episode = InspectEpisode(sample=self.task.sample_of(action), seat=_Recited(text), grading=_no_grader)
        await self.task.start(episode)
        try:
            await asyncio.shield(episode.solved)
            return read_scores(await episode.score(), self.score)
        finally:
            await self.task.finish(episode)


def read_scores(scores: Mapping[str, Score], chosen: str | None = None) -> RewardResult:
    """The reward of a sample's scores, of which one is chosen; raises where they are none."""
    values: dict[str, Any] = {}
    for name, score in scores.items():
        if isinstance(score.value, Mapping):
            values |= {f"{name}.{key}": value for key, value in score.value.items()}
        else:
            values[name] = score.value
    chosen = chosen or (next(iter(values)) if len(values) == 1 else None)
    if chosen is None or chosen not in values:
        given = "no scorer" if not values else f"the scores {', '.join(values)}"
        wanted = "several: name one" if chosen is None else f"not {chosen!r}: give one of these"
        raise ValueError(f"the task gives {given}, {wanted} with score= (--env-config)")
    score = scores[chosen] if chosen in scores else scores[chosen.rpartition(".")[0]]
    if score.reason in _NOT_GRADED:
        raise RuntimeError(f"the scorer {chosen!r} could not grade: {score.reason}: {score.explanation or ''}"[:500])
    info: dict[str, Any] = {"scores": values, "answer": score.answer, "explanation": score.explanation}
    reward = _number(values[chosen])
    if reward is None:
        info["reason"] = score.reason or f"the score is {values[chosen]!r:.100}, which is no number"
    return RewardResult(reward=reward, info={key: value for key, value in info.items() if value is not None})


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        if (known := _WORDS.get(value, _WORDS.get(value.lower()))) is not None:
            return known
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _no_grader() -> Seat:
    raise RuntimeError("the scorer asks for a model: name it in model_roles")


class _Recited(Seat):
    """A seat in which one text is said, and nothing sampled."""

    def __init__(self, text: str) -> None:
        self._text: str | None = text
        self.main = None

    async def generate(self, model: str, *call: Any) -> ModelOutput:
        text, self._text = self._text, None
        if text is None:
            raise RuntimeError("the task asks for more than the one reply that is scored")
        return ModelOutput.from_content(model, text)


class InspectEnvironment(Environment):
    """A task of inspect_ai: its data set gives the actions, its solver plays, its scorer gives the reward.

    The step's model is the policy, so sampling, budgets and seeds are its own, and sampling parameters of the task
    count only where it has none. Agents of one sample are paths with their names. Each limit of the task ends an
    episode that is scored; a scorer that fails is the grader's failure, and a sandbox that dies is lost.

    Args:
        task: The task: `inspect_evals/gsm8k`, `file.py`, `file.py@name`, or a `Task`.
        task_args: Arguments of a task that is named.
        score: See `InspectReward`.
        model_roles: Models for the roles that the task asks for, such as `grader`: a model of inspect, its name, or a
            factory of ours. They are never trained. A role that nobody names is in inspect the policy itself; the one
            that a scorer asks for then is another model, not trained either.
        own_agent: Have the environment's agent play in place of the task's solver, with the tools of `get_tools` and
            those that the task's setup gives.
        **options: Further arguments of `Environment`. Limits on tools are for `own_agent`. A `reward_fn` replaces the
            task's scorer.

    Raises:
        InspectTaskError: There is no such task, or it cannot be made here.
    """

    def __init__(
        self,
        *,
        task: str | Task,
        task_args: Mapping[str, Any] | None = None,
        score: str | None = None,
        model_roles: Mapping[str, str | Model | ModelFactory] | None = None,
        own_agent: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        reward = InspectReward(task, task_args, score, model_roles)
        self.task, self.own_agent = reward.task, own_agent
        if self.reward_fn is None:
            self.reward_fn = reward
        self._episode: InspectEpisode | None = None

    async def cleanup(self) -> None:
        """End the sample and its sandbox."""
        episode, self._episode = self._episode, None
        if episode is not None:
            await self.task.finish(episode)

    async def interact(self, agent: Agent, action: Action) -> AgentResult:
        """Have the sample's solver play."""
        await self.cleanup()
        conversation = conversation_of(agent.model)
        first_turn = len(conversation.forest.turns)
        seat = Seat(conversation)
        own = _OwnPlay(self.invoke, agent) if self.own_agent else None
        sample = await asyncio.to_thread(self.task.sample_of, action)
        episode = InspectEpisode(sample=sample, seat=seat, grading=self._grader, play=own)
        await self.task.start(episode)
        self._episode = episode
        try:
            limit = await asyncio.shield(episode.solved)
        except asyncio.CancelledError:  # the episode's time is over
            episode.stop()
            await asyncio.wait([episode.solved])
            raise
        finally:
            if own is None:
                _take_over(agent, seat, first_turn, episode.state)
        if own is not None:
            return own.result()
        return _conclude(agent, seat, episode.state, limit)

    async def score(self, action: Action, result: StepResult) -> None:
        """Score a finished step; a sandbox that died before or under the scorer is lost."""
        episode = self._episode
        token = _episode.set(episode)
        try:
            await super().score(action, result)
        finally:
            _episode.reset(token)
        if episode is None or not episode.scores.done():
            return
        if isinstance(lost := episode.scores.exception(), SandboxLostError):
            result.reward, result.end = None, End.from_error(lost, Phase.TOOL, default=TerminationReason.TOOL_ERROR)

    def _grader(self) -> Seat:
        return Seat(conversation_of(self.model_factory()))


def _take_over(agent: Agent, seat: Seat, first_turn: int, state: TaskState | None) -> None:
    """Give the agent the messages of the sample's main agent.

    An answer that the task takes from elsewhere, such as a call of `submit`, is the last text of the last message.
    """
    main = seat.main or AgentPath(None)
    take_over(agent, seat.conversation, first_turn, map(to_strands, main.history), main.turn)
    if seat.main is None:
        return
    agent.system_prompt = main.system or None
    own = state is not None and not state.output.empty and seat.sampled(state.output.message)
    answer = state.output.completion if state is not None and own else ""
    last = agent.messages[-1]
    if answer.strip() and answer.strip() != (spoken_text(last, last=True) or "").strip():
        last["content"].append({"text": answer})


def _conclude(agent: Agent, seat: Seat, state: TaskState | None, limit: str | None) -> AgentResult:
    """The end of a sample as one of an agent loop."""
    if (error := _error_of(agent, seat, state, limit)) is not None:
        raise error
    return result_of(agent, "end_turn" if limit is None else _STOP_REASONS[limit])


def _error_of(agent: Agent, seat: Seat, state: TaskState | None, limit: str | None) -> Exception | None:
    """The error by which our steps know this end; None where they know it by a stop reason."""
    stop = "stop" if state is None or state.output.empty else state.output.stop_reason
    if seat.failure is not None:  # the solver ended because of it, even if it took it for something else
        return seat.failure
    if limit in ("time", "working"):
        return TaskTimeLimitReachedError(f"the task's limit of {limit} time is reached")
    if limit == "message":
        return MaxMessagesReachedError(len(agent.messages), len(agent.messages))
    if limit is None and stop == "model_length":
        return ContextWindowOverflowException(state.output.completion if state is not None else "")
    if seat.main is None and limit is None:
        return RuntimeError("the task sampled nothing from the policy: its outputs came from a cache or another model")
    if limit is None and stop == "max_tokens":
        return MaxTokensReachedException("the last reply was cut")  # the step asks the model by which bound
    return None


class _OwnPlay:
    """The environment's agent in place of a solver, within the sample's context."""

    def __init__(self, invoke: Callable[..., Any], agent: Agent) -> None:
        self._invoke, self._agent, self._running = invoke, agent, Episode.current()
        self._outcome: AgentResult | Exception | None = None

    async def __call__(self, state: TaskState) -> TaskState:
        agent = self._agent
        *before, last = state.messages
        texts = [each.text for each in before if each.role == "system"]
        if texts and agent.system_prompt is None:
            agent.system_prompt = "\n".join(texts)
        if len(texts) != len(before) or not isinstance(last, ChatMessageUser):
            raise ValueError("the environment's own agent begins with one message of the user; this sample has others")
        agent.tool_registry.process_tools([_as_strands(ToolDef(tool), state.tools) for tool in state.tools])
        with inside_a_step(self._running), outermost():
            try:
                self._outcome = await self._invoke(agent, last.text)
            except Exception as error:  # the sample is scored where this is the policy's doing
                self._outcome = error
        texts = [spoken_text(message) or "" for message in agent.messages]
        played: list[ChatMessage] = [
            ChatMessageAssistant(content=text) if message["role"] == "assistant" else ChatMessageUser(content=text)
            for message, text in zip(agent.messages, texts, strict=True)
        ]
        state.messages = [*before, *played]
        state.output = ModelOutput.from_content("policy", texts[-1] if texts else "")
        return state

    def result(self) -> AgentResult:
        """The result of the agent; raises its error."""
        if isinstance(self._outcome, Exception):
            raise self._outcome
        if self._outcome is None:
            raise RuntimeError("the sample ended before its agent")
        return self._outcome


def _as_strands(tool: ToolDef, tools: list[Tool]) -> AgentTool:
    """A tool of inspect for an agent of ours: inspect itself runs it, with its limits and approvals."""

    async def call(tool_use: ToolUse) -> dict[str, Any]:
        asked = ToolCall(id=tool_use["toolUseId"], function=tool.name, arguments=dict(tool_use["input"]))
        messages, _ = await execute_tools([ChatMessageAssistant(content="", tool_calls=[asked])], tools)
        error = getattr(messages[0], "error", None)
        text = messages[0].text if error is None else error.message
        return {"status": "success" if error is None else "error", "content": [{"text": text}]}

    return make_tool(tool.name, tool.description, tool.parameters.model_dump(exclude_none=True), call)
