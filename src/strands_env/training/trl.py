"""TRL: a `rollout_func` for `GRPOTrainer`. Written against TRL 1.16.0, where the interface is experimental.

```python
trainer = GRPOTrainer(..., rollout_func=make_rollout_func(run), reward_funcs=environment_reward)
```
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from strands_env.training.driver import collect_rollouts
from strands_env.training.export import one_row
from strands_env.training.sample import TrainingSample

REWARD_FIELD = "strands_reward"
"""The extra field that carries the environment's rewards to `environment_reward`."""

RunPrompt = Callable[[Any, Any], Awaitable[Sequence[TrainingSample]]]
"""Runs one rollout of a prompt (text or messages) for a trainer, and returns its samples."""
Prepare = Callable[[Any], Awaitable[None]]
"""Awaited with the trainer once before the rollouts of a generation."""


def rollout_output(rollouts: Sequence[Sequence[TrainingSample]]) -> dict[str, list[Any]]:
    """The answer of a `rollout_func`, one row per rollout: prompt and completion ids, log-probabilities, `env_mask`.

    `env_mask` is 1 on tokens to train. A rollout that cannot be trained, or has no sample, has mask 0 and, unless it is
    scored, reward None, which TRL leaves out of its group's statistics.

    Raises:
        InvalidSampleError: A trained token has no log-probability.
    """
    rows = [one_row(samples) for samples in rollouts]
    return {
        "prompt_ids": [row.token_ids[: row.prompt_length].tolist() for row in rows],
        "completion_ids": [row.token_ids[row.prompt_length :].tolist() for row in rows],
        "logprobs": [row.full_logprobs()[row.prompt_length :] for row in rows],
        "env_mask": [row.trained_mask()[row.prompt_length :] for row in rows],
        # TRL asks a reward function of its own; the field carries the environment's rewards there.
        REWARD_FIELD: [row.reward if row.is_scored else None for row in rows],
    }


def make_rollout_func(
    run: RunPrompt, *, prepare: Prepare | None = None, retries: int = 2
) -> Callable[[list[Any], Any], dict[str, list[Any]]]:
    """A `rollout_func` that runs all prompts concurrently.

    TRL hands over every prompt `num_generations` times in a row. Each call has its own event loop, so clients must not
    be tied to another.

    Args:
        prepare: Gives the engine the trainer's current weights, for instance
            `await engine.update_weights(trainer.model, str(trainer.state.global_step))`. Rollouts must not come from
            older weights than the trainer assumes.
        retries: Further attempts of a rollout that raised or was lost to infrastructure. After the last one it is a row
            without loss and reward; only a batch in which every rollout raised is an error.
    """

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        async def run_all() -> list[Sequence[TrainingSample]]:
            if prepare is not None:
                await prepare(trainer)
            return await collect_rollouts([partial(run, prompt, trainer) for prompt in prompts], retries=retries)

        return rollout_output(asyncio.run(run_all()))

    return rollout_func


def environment_reward(completions: Sequence[Any], **kwargs: Any) -> list[float | None]:
    """The reward function that returns what the environment gave."""
    rewards: list[float | None] = list(kwargs[REWARD_FIELD])
    if len(rewards) != len(completions):
        raise ValueError(f"got {len(rewards)} rewards of the environment for {len(completions)} completions")
    return rewards
