"""Scores a step."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from .deadline import run_with_timeout
from .termination import Phase, TerminationReason
from .threads import DaemonThreads, reward_threads
from .types import Action, RewardFunction, RewardResult, StepResult

logger = logging.getLogger(__name__)

RewardValue: TypeAlias = RewardResult | float | None
RewardCallable: TypeAlias = Callable[[Action, StepResult], RewardValue | Awaitable[RewardValue]]
"""A plain function, sync or async. A sync one runs in its own thread, so that it cannot block other rollouts."""


class FunctionReward(RewardFunction):
    """A plain function as a reward function.

    Args:
        function: Takes the action and the step result; returns a `RewardResult`, a number, or None to abstain.
        threads: Threads of a synchronous one; those of all rewards if None.
    """

    def __init__(self, function: RewardCallable, threads: DaemonThreads | None = None) -> None:
        if not callable(function):
            raise TypeError(
                f"a reward function has an async compute(action, step_result) or is a plain function, got {function!r}"
            )
        try:
            inspect.signature(function).bind(None, None)
        except ValueError:  # a built-in without a signature
            pass
        except TypeError as error:
            name, takes = getattr(function, "__name__", repr(function)), inspect.signature(function)
            raise TypeError(f"a reward function takes (action, step_result), got {name}{takes}") from error
        self.function = function
        self._threads = threads or reward_threads

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Call the function and give its value the right type."""
        if inspect.iscoroutinefunction(self.function):
            value = await self.function(action, step_result)
        else:
            value = await self._threads.run(self.function, action, step_result)
            if inspect.isawaitable(value):
                value = await value
        return as_reward_result(value)


def as_reward_result(value: Any) -> RewardResult:
    """A reward function's value as a `RewardResult`.

    Raises:
        TypeError: It is not a result, a number or None.
        ValueError: It is infinite or NaN.
    """
    if isinstance(value, RewardResult):
        return value
    if value is None:
        return RewardResult()
    if isinstance(value, Real | np.bool_):  # numpy's numbers are Real, its truth values are not
        if not math.isfinite(value):
            raise ValueError(f"a reward must be a finite number, or None to abstain, got {value!r}")
        return RewardResult(reward=float(value))
    raise TypeError(f"a reward function must return a RewardResult, a number or None, got {value!r}")


_REFUSED = {
    TerminationReason.CONTEXT_WINDOW_OVERFLOW: "answer_too_long",
    TerminationReason.CONTENT_FILTERED: "answer_filtered",
}
"""The ends of a judge's call that an answer can bring about, as the reason of its 0."""


async def computed_reward(
    reward: Any, action: Action, result: StepResult, *, timeout: float | None = None
) -> RewardResult:
    """The checked reward of a step; 0 if the reward function fails because of the policy's answer.

    That is an answer the policy never gave, or one that a model asked by the function cannot take although it takes a
    short one. Unscored, such episodes would leave the denominator.
    """

    async def compute(scored: StepResult) -> RewardResult:
        computed = reward.compute(action, scored)
        if not hasattr(computed, "__await__"):
            raise TypeError(f"{type(reward).__name__}.compute() must be async: write 'async def compute'")
        return as_reward_result(await run_with_timeout(computed, timeout, Phase.REWARD))

    try:
        return await compute(result)
    except Exception as error:
        # A client's own exceptions (unreachable, throttled) are of other types than those of reading an absent answer.
        reads_answer = isinstance(error, AttributeError | TypeError | LookupError)
        refused = await refused_answer(error, result, compute, reads_answer=reads_answer)
        if refused is None:
            raise
        return refused


async def refused_answer(
    error: Exception, result: StepResult, judge: Callable[[StepResult], Awaitable[Any]], *, reads_answer: bool
) -> RewardResult | None:
    """0 for an answer that is missing, too long for a judge, or filtered; None if the grader itself is broken.

    Decided by trying, never by the words of the error: a grader that works takes a short answer in place of the
    policy's part of the conversation, and the missing answer makes it fail a second time.

    Args:
        judge: Scores a result as the call that failed did.
        reads_answer: The call that failed may have tried to read an answer that is missing.
    """
    is_missing = reads_answer and result.observation.final_response is None
    reason = _REFUSED.get(TerminationReason.from_error(error)) or ("no_final_response" if is_missing else None)
    if reason is None:
        return None
    messages = result.observation.messages
    first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    for text in ("I do not know.", "0")[: 1 + is_missing]:  # "0" for a reward that reads a number
        short = [*messages[:first], {"role": "assistant", "content": [{"text": text}]}]
        observation = result.observation.model_copy(update={"messages": short})
        try:
            await judge(result.model_copy(update={"observation": observation}))
            break
        except Exception as other:
            logger.debug("answer=<%s>, error=<%s> | the grader cannot take a short answer either", text, other)
    else:
        return None
    if is_missing:
        try:
            again = await judge(result)
        except type(error):
            logger.debug("error=<%s> | the grader needs an answer", error)
        else:  # it failed once, for another reason
            return again if isinstance(again, RewardResult) else None
    logger.warning("reason=<%s>, error=<%s> | the grader cannot take the answer: 0", reason, error)
    info = {"status": "success", "reason": reason, "error": f"{type(error).__name__}: {error}"}
    return RewardResult(reward=0.0, info=info)


def as_reward_function(reward: Any, threads: DaemonThreads | None = None) -> Any:
    """Anything with a `compute` as it is, a plain function wrapped; `TypeError` for another value.

    A synchronous function runs in these threads.
    """
    if inspect.isclass(reward) and hasattr(reward, "compute"):
        raise TypeError(f"give an instance of the reward function, {reward.__name__}(...), not the class {reward!r}")
    return reward if hasattr(reward, "compute") else FunctionReward(reward, threads)
