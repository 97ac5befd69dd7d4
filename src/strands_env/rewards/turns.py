"""Rewards of single turns, and where they go in the token sequence."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from strands_env.core.tokens import TokenObservation
from strands_env.core.types import Action, RewardFunction, RewardResult, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTurn:
    """One reply of the model and the results of its tool calls.

    Attributes:
        index: Index of the reply; the same as `TokenObservation.turn_index` of its tokens, as long as no call was
            sampled again and no history rewritten.
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

    Only tokens that carry loss are rewarded: a turn's reward goes to the tokens the model sampled in it, a span's to
    the sampled tokens inside the span.

    Args:
        placement: The tokens of a span that get its reward.

    Returns:
        One float per token of `tokens`, 0.0 without a reward.

    Raises:
        ValueError: A turn does not exist or sampled nothing, or a span is outside the tokens or holds no sampled one.
    """
    where, mask, spans = Placement(placement), tokens.loss_mask, tokens.turn_spans
    rewards = [0.0] * len(mask)
    given = [(f"turn {turn}", spans.get(turn, []), reward) for turn, reward in result.turn_rewards.items()]
    given += [(f"span [{one.start}, {one.end})", [(one.start, one.end)], one.reward) for one in result.span_rewards]
    for what, ranges, reward in given:
        if not all(0 <= start < end <= len(mask) for start, end in ranges):
            raise ValueError(f"{what} lies outside the {len(mask)} tokens")
        # Sampled tokens alone: a reward on any other trains nothing, so it would be lost.
        positions = [i for start, end in ranges for i in range(start, end) if mask[i]]
        if not positions:
            raise ValueError(f"{what} has a reward but no trained token; turns with tokens are {sorted(spans)}")
        if where is Placement.LAST:
            positions = positions[-1:]
        share = reward / len(positions) if where is Placement.UNIFORM else reward
        for position in positions:
            rewards[position] += share
    return rewards
