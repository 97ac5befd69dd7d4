"""Environments and results for the tests of evaluation: real ones, without a model server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from strands_env.core import (
    Action,
    Observation,
    RewardResult,
    StepResult,
    TaskContext,
    TerminationReason,
    TokenObservation,
    Trajectory,
)
from strands_env.eval import EvalSample


def task(name: str, **context: Any) -> Action:
    return Action(message=f"question {name}", task_context=TaskContext(id=name, **context))


def tasks(count: int) -> list[Action]:
    return [task(f"p{number}", ground_truth=str(number)) for number in range(count)]


def outcome(
    reward: float | None = 1.0, reason: TerminationReason = TerminationReason.TASK_COMPLETE, text: str = "answer"
) -> StepResult:
    observation = Observation(
        messages=[
            {"role": "user", "content": [{"text": "question"}]},
            {"role": "assistant", "content": [{"text": text}]},
        ],
        metrics={"input_tokens": {"total": 10}, "output_tokens": {"total": 5}, "model_calls": 1},
    )
    scored = None if reward is None else RewardResult(reward=reward)
    return StepResult(observation=observation, reward=scored, termination_reason=reason)


def sample(reward: float | None, index: int = 0, *, aborted: bool = False, prompt: str = "p") -> EvalSample:
    return EvalSample(
        action=task(f"{prompt}_{index}"),
        step_result=outcome(reward),
        aborted=aborted,
        id=f"{abs(hash((prompt, index))):032x}",
        prompt_id=prompt,
        task_digest=prompt,
        index=index,
    )


def with_tokens(result: StepResult) -> StepResult:
    tokens = TokenObservation(
        token_ids=[1, 2, 3, 4], prompt_length=2, loss_mask=[0, 0, 1, 1], logprobs=[None, None, -0.25, -1.5]
    )
    result.observation.tokens = tokens
    result.trajectories = [Trajectory(agent_name="agent", tokens=tokens, is_main=True, routed_experts=b"\x01\x02")]
    return result


class FakeEnv:
    """Looks like an environment: three methods. Counts what happens to it."""

    running = 0
    most = 0
    cleanups = 0

    def __init__(self, answer: Callable[[Action], Any] | None = None, delay: float = 0.0) -> None:
        self._answer = answer or (lambda action: outcome())
        self._delay = delay

    @classmethod
    def forget(cls) -> None:
        cls.running = cls.most = cls.cleanups = 0

    async def reset(self) -> None:
        FakeEnv.running += 1
        FakeEnv.most = max(FakeEnv.most, FakeEnv.running)

    async def step(self, action: Action) -> StepResult:
        await asyncio.sleep(self._delay)
        answer = self._answer(action)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def cleanup(self) -> None:
        FakeEnv.running -= 1
        FakeEnv.cleanups += 1


def tool_results(result: StepResult) -> list[Any]:
    """Every tool result of a conversation, in order."""
    blocks = [block for message in result.observation.messages for block in message["content"]]
    return [block["toolResult"] for block in blocks if "toolResult" in block]


def display(note: Callable[[str, Any], None]) -> Any:
    """A display of progress that notes its calls: their names and the state."""
    return SimpleNamespace(**{name: partial(note, name) for name in ("start", "update", "finish")})
