"""TRL: a `rollout_func` for `GRPOTrainer`. Written against TRL 1.16.0, where the interface is experimental.

```python
trainer = GRPOTrainer(..., rollout_func=make_rollout_func(run), reward_funcs=environment_reward)
```
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from strands_env.training.driver import collect_rollouts
from strands_env.training.export import one_row, written_for
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
        # TRL asks its own reward function; the field carries the environment's rewards there.
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
    """The reward function that returns the environment's rewards."""
    rewards: list[float | None] = list(kwargs[REWARD_FIELD])
    if len(rewards) != len(completions):
        raise ValueError(f"got {len(rewards)} rewards of the environment for {len(completions)} completions")
    return rewards


# ---- a whole training ------------------------------------------------------------------------------------------------


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written; the last one that is whole stays."""


class DisagreementError(RuntimeError):
    """The trainer's log-probabilities are not those that were sampled: it would train another policy."""


MICRO_BATCH = 4
"""Most sequences of one backward pass, which bounds the memory."""
MAX_GAP = 0.01
"""Nats by which a token's log-probability may differ between sampler and trainer; in float32 they differ by 1e-5."""


def grpo_trainer(
    model: Any,
    tokenizer: Any,
    rollout_func: Callable[[list[Any], Any], dict[str, list[Any]]],
    *,
    schedule: Sequence[str],
    folder: Path,
    group: int,
    steps: int,
    lr: float,
    temperature: float,
    save_every: int,
    seed: int,
    on_step: Callable[[int, dict[str, float], bool], None],
) -> Any:
    """TRL's `GRPOTrainer` on this CPU, in float32, one update a generation.

    Args:
        schedule: The prompts of all steps, one after the other: `len(schedule) // steps` a step, each sampled `group`
            times. So a step's prompts depend on nothing but its number.
        temperature: That of sampling: the policy that is trained is the tempered one.
        on_step: Called after every step with its number from 1, TRL's metrics and `logprob_gap`, the largest difference
            of a token's log-probability between sampler and trainer, and True where its checkpoint is whole.

    Raises:
        ImportError: TRL is not installed.
        TrainerVersionError: Another version is, and it does not fit.
    """
    with written_for("trl"):
        import datasets
        from transformers import PrinterCallback, TrainerCallback
        from trl import GRPOConfig, GRPOTrainer

        class ExactTrainer(GRPOTrainer):  # type: ignore[misc]
            """Measures how far its log-probabilities are from the sampled ones."""

            gap = 0.0

            def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
                computed = super()._get_per_token_logps_and_entropies(*args, **kwargs)
                self._own_logprobs = computed[0].detach()
                return computed

            def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
                loss = super()._compute_loss(model, inputs)
                trained = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
                gaps = (self._own_logprobs - inputs["sampling_per_token_logps"])[trained].abs()
                self.gap = max(self.gap, float(gaps.max())) if gaps.numel() else self.gap
                if not self.gap <= MAX_GAP:  # NaN is not, either
                    raise DisagreementError(
                        f"the trainer's log-probabilities differ from the sampled ones by up to {self.gap:.3g} nats, "
                        f"at most {MAX_GAP} is rounding: sample at a temperature alone, without penalties, grammars "
                        "or biases, from a float32 model"
                    )
                return loss

            def _save_checkpoint(self, model: Any, trial: Any) -> None:
                target = folder / f"checkpoint-{self.state.global_step}"
                try:
                    super()._save_checkpoint(model, trial)
                except Exception as error:  # safetensors and torch have their own errors for a full disk
                    shutil.rmtree(target, ignore_errors=True)
                    raise CheckpointError(f"cannot write {str(target)!r}: {error}") from error

            def create_model_card(self, *args: Any, **kwargs: Any) -> None:
                """None: the folder is not for a hub."""

        class Steps(TrainerCallback):  # type: ignore[misc]
            """Reports a step when it is logged, or, where it is saved, when its checkpoint is whole."""

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
                if "loss" not in (logs or {}):  # the summary of the whole training
                    return
                self.logs = {**logs, "logprob_gap": trainer.gap}
                trainer.gap = 0.0
                if not control.should_save:
                    on_step(state.global_step, self.logs, False)

            def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                on_step(state.global_step, self.logs, True)

        batch = len(schedule) // steps * group
        micro = max(size for size in range(1, min(batch, MICRO_BATCH) + 1) if batch % size == 0)
        trainer = ExactTrainer(
            model=model,
            processing_class=tokenizer,
            rollout_func=rollout_func,
            reward_funcs=environment_reward,
            train_dataset=datasets.Dataset.from_dict({"prompt": list(schedule)}),
            args=GRPOConfig(
                output_dir=str(folder),
                max_steps=steps,
                num_generations=group,
                per_device_train_batch_size=micro,
                gradient_accumulation_steps=batch // micro,
                shuffle_dataset=False,
                learning_rate=lr,
                lr_scheduler_type="constant",  # so that more steps may follow
                temperature=temperature,
                disable_dropout=True,
                off_policy_mask_threshold=0.5,  # without vLLM, this makes TRL keep the sampled log-probabilities
                gradient_checkpointing=False,
                bf16=False,
                use_cpu=True,
                seed=seed,
                save_strategy="steps",
                save_steps=save_every,
                save_total_limit=2,  # the new one is whole before the last but one goes
                logging_steps=1,
                report_to=[],
                disable_tqdm=True,
            ),
            callbacks=[Steps()],
        )
        trainer.remove_callback(PrinterCallback)
        return trainer
