"""A user's environment with a tool, a reward function and a reward class."""

from __future__ import annotations

from typing import Any

# The SDK leaves a type argument of `tool` open.
from strands import tool  # pyright: ignore[reportUnknownVariableType]

from strands_env.core import Action, Environment, RewardFunction, RewardResult, StepResult, TaskContext
from strands_env.core.models import sglang_model_factory
from strands_sglang import SGLangClient, SGLangModel, get_tokenizer, get_tool_parser


@tool
def price_of(item: str) -> str:
    """Look up a price.

    Args:
        item: What to look up.
    """
    return {"lamp": "35 dollars"}.get(item, "unknown")


def answered(action: Action, result: StepResult) -> float:
    return float(str(action.task_context.ground_truth) in (result.observation.final_response or ""))


class Brief(RewardFunction):
    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        length = len(step_result.observation.final_response or "")
        return RewardResult(reward=1.0 if length < 80 else 0.0, info={"length": length})


class ShopEnv(Environment):
    def get_tools(self) -> list[Any]:
        return [price_of]

    async def reset(self) -> None:
        self.visits = len(self.action.text)

    def get_history(self, action: Action) -> list[Any]:
        return [*super().get_history(action), {"role": "assistant", "content": [{"text": "Welcome."}]}]


async def rollout(url: str) -> list[int]:
    async with SGLangClient(base_url=url) as client:
        tokenizer = get_tokenizer("Qwen/Qwen3-8B")
        models = sglang_model_factory(client=client, tokenizer=tokenizer)
        environment = ShopEnv(model_factory=models, reward_fn=Brief(), max_tool_iters=4)
        action = Action(message="What does a lamp cost?", task_context=TaskContext(id="lamp", ground_truth="35"))
        result = await environment.step(action)
        reward: float | None = result.reward.reward if result.reward is not None else None
        print(reward, result.termination_reason.value)
        tokens = result.observation.tokens
        ids: list[int] = [] if tokens is None else tokens.token_ids
        return ids


async def provider(client: SGLangClient) -> None:
    tokenizer = get_tokenizer("Qwen/Qwen3-8B")
    model = SGLangModel(client=client, tokenizer=tokenizer, tool_parser=get_tool_parser("hermes"))
    model.reset()
    print(len(model.rollout), model.token_manager.loss_mask, model.token_manager.logprobs)
    for trajectory in model.trajectories:
        print(trajectory.agent_name, trajectory.is_discarded, len(trajectory.tokens))
