"""Rewards of turns and of their tool calls, and where rewards of turns go in the token sequence."""

from __future__ import annotations

import inspect
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strands_env.core.types import Action, RewardFunction, RewardResult, StepResult, TokenObservation, Trajectory
from strands_sglang.trajectory.tokens import common_prefix

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurn:
    """A reply of the model and the results of its tool calls.

    Attributes:
        index: Index of the reply in the step; the same as `TokenObservation.turn_index` of its tokens where the history
            did not branch.
        results: The `toolResult` of every call of the reply, in order; empty for an answer.
    """

    index: int
    message: dict[str, Any]
    results: tuple[dict[str, Any], ...]

    @property
    def text(self) -> str:
        """Text of the reply; reasoning blocks and calls are left out."""
        return "\n".join(block["text"] for block in self.message["content"] if "text" in block)

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The `toolUse` of every call of the reply."""
        return [block["toolUse"] for block in self.message["content"] if "toolUse" in block]

    @property
    def error_count(self) -> int:
        """Number of calls whose result is an error."""
        return sum(result.get("status") == "error" for result in self.results)


def turns_of(messages: Sequence[dict[str, Any]]) -> list[AgentTurn]:
    """The turns of a step's messages."""
    turns: list[AgentTurn] = []
    for position, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        # Results are the message behind the reply; a reply that ended the step has none.
        following = messages[position + 1]["content"] if position + 1 < len(messages) else []
        results = tuple(block["toolResult"] for block in following if "toolResult" in block)
        turns.append(AgentTurn(index=len(turns), message=message, results=results))
    return turns


def exchanges_of(messages: Sequence[dict[str, Any]]) -> list[Sequence[dict[str, Any]]]:
    """The messages from each one in which the user speaks to the next; results of tools are none."""
    starts = [
        place
        for place, message in enumerate(messages)
        if message["role"] == "user" and not any("toolResult" in block for block in message["content"])
    ]
    return [messages[start:end] for start, end in zip(starts, [*starts[1:], len(messages)], strict=True)]


class Aggregate(StrEnum):
    """Aggregation of the rewards of turns."""

    MEAN = "mean"
    """Their mean."""
    SUM = "sum"
    """Their sum."""
    LAST = "last"
    """The reward of the last scored turn."""


class TurnReward(RewardFunction):
    """A reward for every turn; the step's reward is their mean, sum, or the last one (`aggregate`).

    Subclass it and implement `compute_turn`. A turn for which it returns None is left out; a step without any scored
    turn has no reward.
    """

    def __init__(self, *, aggregate: Aggregate | str = Aggregate.MEAN) -> None:
        self.aggregate = Aggregate(aggregate)

    @abstractmethod
    def compute_turn(
        self, turn: AgentTurn, action: Action, step_result: StepResult
    ) -> float | Awaitable[float | None] | None:
        """The reward of one turn, or None for none. May be a coroutine."""

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Score every turn."""
        rewards: dict[int, float] = {}
        for turn in turns_of(step_result.observation.messages):
            value = self.compute_turn(turn, action, step_result)
            reward = await value if inspect.isawaitable(value) else value
            if reward is not None:
                rewards[turn.index] = float(reward)
        values, total = list(rewards.values()), None
        if values and self.aggregate is Aggregate.LAST:
            total = values[-1]
        elif values:
            total = sum(values) / (len(values) if self.aggregate is Aggregate.MEAN else 1)
        return RewardResult(reward=total, turn_rewards=rewards)


@dataclass(kw_only=True, eq=False)
class ToolUseReward(RewardFunction):
    """1.0 for a step with the right number of tool calls, less a penalty for every failed one; at least `floor`.

    A call has failed when its result is an error: malformed, unknown tool, wrong arguments, a tool that failed.

    Args:
        min_calls: Fewest calls that succeeded.
        max_calls: Most calls, failed ones included; None for any number.
        tools: Names of the tools that count; None for all.

    Raises:
        ValueError: `max_calls` is below `min_calls`.
    """

    min_calls: int = 1
    max_calls: int | None = None
    tools: set[str] | None = None
    error_penalty: float = 0.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.max_calls is not None and self.max_calls < self.min_calls:
            raise ValueError(f"max_calls={self.max_calls!r} is below min_calls={self.min_calls!r}")

    def examples(self, action: Action) -> None:
        """None: calls say nothing of right and wrong."""

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Count calls and errors in the messages."""
        calls = errors = 0
        for turn in turns_of(step_result.observation.messages):
            # Results name their call, not their tool.
            counted = {call["toolUseId"] for call in turn.calls if self.tools is None or call["name"] in self.tools}
            calls += len(counted)
            errors += sum(result["toolUseId"] in counted and result.get("status") == "error" for result in turn.results)
        fits = calls - errors >= self.min_calls and (self.max_calls is None or calls <= self.max_calls)
        reward = max(self.floor, float(fits) - self.error_penalty * errors)
        return RewardResult(reward=reward, info={"tool_calls": calls, "tool_errors": errors, "in_range": fits})


class Placement(StrEnum):
    """The tokens of a span that get its reward."""

    LAST = "last"
    """The last token."""
    UNIFORM = "uniform"
    """All tokens, in equal shares that add up to the reward."""
    ALL = "all"
    """Every token the whole reward."""


def token_rewards(
    result: RewardResult, tokens: TokenObservation, *, placement: Placement | str = Placement.LAST
) -> list[float]:
    """A reward for every token, from the rewards of turns and spans. The step's scalar reward is not among them.

    Only tokens that the model sampled are rewarded: those of a turn, or those inside a span.

    Args:
        placement: The tokens of a span that get its reward.

    Returns:
        One float per token of `tokens`, 0.0 without a reward.

    Raises:
        ValueError: A turn is not on this path, or a span is outside the tokens or holds no sampled one.
    """
    spans = tokens.turn_spans
    if missing := sorted(set(result.turn_rewards) - set(spans)):
        raise ValueError(f"turn {missing[0]} has a reward, but no sampled token: turns with tokens are {sorted(spans)}")
    given = [(spans[turn], reward) for turn, reward in result.turn_rewards.items()]
    for one in result.span_rewards:
        where = f"span [{one.start}, {one.end})"
        if not 0 <= one.start < one.end <= len(tokens):
            raise ValueError(f"{where} lies outside the {len(tokens)} tokens")
        if not tokens.output_mask_array[one.start : one.end].any():
            raise ValueError(f"{where} has a reward, but no sampled token")
        given.append(([(one.start, one.end)], one.reward))
    return _place(given, tokens, Placement(placement)).tolist()  # type: ignore[no-any-return]


def rewards_of_paths(
    result: RewardResult, step_result: StepResult, *, placement: Placement | str = Placement.LAST
) -> list[NDArray[np.float64] | None]:
    """`token_rewards` for each of the step's trajectories; None for those of other agents.

    A reply may be on several paths where the history branched: its reward is on all of them, and only the one that
    trains its tokens gets it. Where replies and model calls do not correspond (a call was sampled again outside the
    agent's steps, a history was summarised by the same model), rewards of turns are left out, with a warning.

    Raises:
        ValueError: A turn with a reward does not exist, or a span is outside the main path or holds no sampled token.
    """
    where, paths, main = Placement(placement), step_result.recorded_trajectories, step_result.main_trajectory
    if main is None or not (result.turn_rewards or result.span_rewards):
        return [None] * len(paths)
    rank = turns_of_calls(step_result)
    if rank and (unknown := sorted(set(result.turn_rewards) - set(rank.values()))):
        raise ValueError(f"turn {unknown[0]} has a reward, but the step has only {len(rank)} turns, counted from 0")
    of_spans = np.array(token_rewards(RewardResult(span_rewards=result.span_rewards), main.tokens, placement=where))
    placed: list[NDArray[np.float64] | None] = []
    for path in paths:
        if not _is_of(main, path):
            placed.append(None)
            continue
        spans = path.tokens.turn_spans
        given = [
            (spans[position], result.turn_rewards[rank[call]])
            for position, call in enumerate(_calls(path))
            if position in spans and rank.get(call) in result.turn_rewards
        ]
        values = _place(given, path.tokens, where)
        shared = common_prefix(path.tokens.token_ids_array, main.tokens.token_ids_array)
        values[:shared] += of_spans[:shared]
        placed.append(values)
    return placed


def _is_of(main: Trajectory, path: Trajectory) -> bool:
    """True for a path of the agent with the main path; its summaries have its name too."""
    return (path.agent_name, path.role) == (main.agent_name, main.role)


def turns_of_calls(step_result: StepResult) -> dict[int, int]:
    """The turn of each model call of the environment's agent, by `Trajectory.order`; empty where they do not match."""
    main = step_result.main_trajectory
    if main is None:
        return {}
    own = [path for path in step_result.recorded_trajectories if _is_of(main, path)]
    if len(own) == 1:
        return {call: turn for turn, call in enumerate(_calls(main))}
    replies = len(turns_of(step_result.observation.messages))
    calls = sorted({call for path in own if not path.is_discarded for call in path.order})
    if len(calls) == replies and all(path.order for path in own):
        return {call: turn for turn, call in enumerate(calls)}
    logger.warning(
        "replies=<%d>, calls=<%d> | rewards of turns are left out: the history branched, and these do not match",
        replies,
        len(calls),
    )
    return {}


def _calls(path: Trajectory) -> Sequence[int]:
    return path.order or range(max(path.tokens.turn_spans, default=-1) + 1)


def _place(
    given: Sequence[tuple[Sequence[tuple[int, int]], float]], tokens: TokenObservation, placement: Placement
) -> NDArray[np.float64]:
    """Rewards over the sampled tokens of their spans: on any other they would train nothing."""
    rewards, sampled = np.zeros(len(tokens)), tokens.output_mask_array
    for spans, reward in given:
        positions = np.concatenate([start + np.flatnonzero(sampled[start:end]) for start, end in spans])
        if placement is Placement.LAST:
            positions = positions[-1:]
        rewards[positions] += reward / len(positions) if placement is Placement.UNIFORM else reward
    return rewards
