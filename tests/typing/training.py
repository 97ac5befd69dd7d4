"""A user's training: slime's environment hook and own functions, and the neutral samples of any other trainer."""

from __future__ import annotations

from typing import Any

from strands_env.core import Action, Environment, ModelFactory, StepResult
from strands_env.training import TrainingSample, group_advantages, load_samples, samples_from_step
from strands_env.training.slime import generate as strands_generate
from strands_env.training.slime import reward_func as strands_reward_func
from strands_env.utils import get_cached_client_from_slime_args
from strands_sglang import SGLangModel, get_tokenizer


def right(action: Action, result: StepResult) -> float:
    return float(result.observation.final_response == action.task_context.ground_truth)


def make_env(*, model_factory: ModelFactory, args: Any, options: dict[str, Any]) -> Environment:
    return Environment(model_factory=model_factory, reward_fn=right, max_tool_calls=int(options.get("calls", 4)))


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    return await strands_generate(args, sample, sampling_params)


async def reward_func(args: Any, sample: Any, **options: Any) -> Any:
    return await strands_reward_func(args, sample, **options)


async def by_hand(args: Any, sample: Any) -> None:
    client = get_cached_client_from_slime_args(args)
    tokenizer = get_tokenizer("Qwen/Qwen3-8B")
    environment = Environment(model_factory=lambda: SGLangModel(client=client, tokenizer=tokenizer), reward_fn=right)
    result = await environment.step(Action(message=str(sample.prompt)))
    tokens = result.observation.tokens
    if tokens is not None:
        sample.tokens = tokens.token_ids
        sample.loss_mask = tokens.rollout_loss_mask
        sample.rollout_log_probs = tokens.rollout_logprobs


def advantages(results: list[StepResult]) -> list[float]:
    samples: list[TrainingSample] = [
        sample for number, result in enumerate(results) for sample in samples_from_step(result, group_id=str(number))
    ]
    values = group_advantages(
        [sample.reward for sample in samples],
        group_ids=[sample.group_id for sample in samples],
        rollout_ids=[sample.rollout_id for sample in samples],
    )
    return [float(value) for value in values]


def trained_tokens(path: str) -> int:
    return sum(sample.trained_tokens for sample in load_samples(path))
