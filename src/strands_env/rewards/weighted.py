"""`WeightedReward`: several rewards as one, with every part kept."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from strands_env.core.deadline import run_with_timeout
from strands_env.core.scoring import RewardCallable, as_reward_function, as_reward_result
from strands_env.core.termination import Phase
from strands_env.core.types import Action, RewardFunction, RewardResult, SpanReward, StepResult

from .proof import RewardExamples, asks_models, examples_of


class AbstainPolicy(StrEnum):
    """The sum when a part abstains."""

    ABSTAIN = "abstain"
    """The whole abstains: a sum with a part missing is another quantity."""
    RENORMALIZE = "renormalize"
    """The others take over its share: they are scaled so that the absolute weights keep their sum."""


class WeightedReward(RewardFunction):
    r"""The weighted sum of other rewards, computed side by side.

    `info["parts"]` has each part's reward, weight and info. Turn and span rewards of the parts are weighted and added
    too. A part of weight 0 is recorded and changes nothing, not even by abstaining. A part that raises fails the whole.

    ```python
    WeightedReward({"answer": (MathRewardFunction(), 1.0), "format": (FormatReward(r"\\boxed"), 0.1)})
    ```

    Args:
        parts: Name to reward function (or plain function) and weight.

    Raises:
        TypeError: A part is not a pair of a reward function and a weight.
        ValueError: There are no parts, or a weight is not a finite number.
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[RewardFunction | RewardCallable, float]],
        *,
        on_abstain: AbstainPolicy | str = AbstainPolicy.ABSTAIN,
    ) -> None:
        if not isinstance(parts, Mapping) or not parts:
            raise ValueError(f"WeightedReward needs parts as {{'name': (reward_fn, weight)}}, got {parts!r}")
        self.parts: dict[str, tuple[RewardFunction, float]] = {}
        for name, part in parts.items():
            if not isinstance(part, tuple | list) or len(part) != 2:
                raise TypeError(f"the part {name!r} must be (reward_fn, weight), got {part!r}")
            reward, weight = part
            if not isinstance(weight, int | float) or not math.isfinite(weight):
                raise ValueError(f"the weight of {name!r} must be a finite number, got {weight!r}")
            try:
                self.parts[name] = as_reward_function(reward), float(weight)
            except TypeError as error:
                raise TypeError(f"the part {name!r}: {error}") from error
        self.on_abstain = AbstainPolicy(on_abstain)
        self.asks_models = any(map(asks_models, (reward for reward, _ in self.parts.values())))

    def examples(self, action: Action) -> RewardExamples | None:
        """The answers of the weightiest part that an answer alone decides; None where none is."""
        for reward, weight in sorted(self.parts.values(), key=lambda part: -abs(part[1])):
            if weight and (found := examples_of(reward, action)) is not None:
                return found
        return None

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Compute all parts and add them up."""
        try:
            # `run_with_timeout`, because an exit that leaves a task would end the event loop.
            async with asyncio.TaskGroup() as group:
                tasks = {
                    name: group.create_task(run_with_timeout(reward.compute(action, step_result), None, Phase.REWARD))
                    for name, (reward, _) in self.parts.items()
                }
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # as it would be without the other parts
        results: dict[str, RewardResult] = {name: as_reward_result(task.result()) for name, task in tasks.items()}
        weights = {name: weight for name, (_, weight) in self.parts.items()}
        broken = next((part.error for name, part in results.items() if part.error and weights[name]), None)
        info: dict[str, Any] = {}
        turn_rewards: defaultdict[int, float] = defaultdict(float)
        span_rewards: list[SpanReward] = []
        for name, result in results.items():
            info[name] = {"reward": result.reward, "weight": weights[name], "info": result.info}
            for turn, value in result.turn_rewards.items():
                turn_rewards[turn] += weights[name] * value
            span_rewards += [replace(span, reward=weights[name] * span.reward) for span in result.span_rewards]
        return RewardResult(
            reward=None if broken else self._sum(results, weights),
            error=broken,
            info={"parts": info},
            turn_rewards=turn_rewards,
            span_rewards=span_rewards,
        )

    def _sum(self, results: Mapping[str, RewardResult], weights: Mapping[str, float]) -> float | None:
        counted = {name: weight for name, weight in weights.items() if weight}
        given = {
            name: result.reward for name, result in results.items() if name in counted and result.reward is not None
        }
        if len(given) < len(counted) and (self.on_abstain is AbstainPolicy.ABSTAIN or not given):
            return None
        # By absolute weights: a penalty that abstains must not turn the sign of the rest.
        total = sum(counted[name] * reward for name, reward in given.items())
        share = sum(abs(counted[name]) for name in given)
        return total * sum(map(abs, counted.values())) / share if len(given) < len(counted) else total
