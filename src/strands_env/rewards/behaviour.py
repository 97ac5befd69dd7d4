"""Rewards for how the agent works: the form of its replies and its use of tools."""

from __future__ import annotations

import re
from dataclasses import dataclass

from strands_env.core.types import Action, RewardFunction, RewardResult, StepResult

from .matching import DEFAULT_TIMEOUT, Pattern
from .turns import turns_of


class FormatReward(RewardFunction):
    r"""1.0 where replies have a form, else 0.0: `FormatReward(r"\\boxed\{")`.

    With `every_turn` the reward is the share of replies that have it, and each turn has its own reward.
    A reply on which the search takes too long does not have the form; `info` has the reason `timeout`.

    Args:
        pattern: Regular expression, searched for anywhere in a reply's text; anchor it with `^` and `$` for the whole.
        every_turn: Look at every reply that has text; else at the final response only.
        flags: Flags of `re`; by default `.` matches line breaks too.
        timeout: Seconds of CPU time one search may take.

    Raises:
        ValueError: The expression is wrong, or `timeout` is not positive.
    """

    def __init__(
        self,
        pattern: str,
        *,
        every_turn: bool = False,
        flags: re.RegexFlag = re.DOTALL,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self.every_turn = every_turn
        self._expression = Pattern(pattern, flags, timeout)

    def examples(self, action: Action) -> None:
        """None: a form says nothing of right and wrong."""

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Search the replies."""
        answer = step_result.observation.final_response
        if not self.every_turn:
            texts = {} if answer is None else {0: answer}
        else:
            # A turn of calls alone has no form to look at.
            texts = {turn.index: turn.text for turn in turns_of(step_result.observation.messages) if turn.text}
        if not texts:
            return RewardResult(reward=0.0, info={"reason": "no_text"})
        info: dict[str, str] = {}
        scored = dict.fromkeys(texts, 0.0)
        for index, text in texts.items():
            try:
                scored[index] = float(await self._expression.search(text) is not None)
            except TimeoutError:
                info["reason"] = "timeout"
        reward = sum(scored.values()) / len(scored)
        return RewardResult(reward=reward, info=info, turn_rewards=scored if self.every_turn else {})


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
