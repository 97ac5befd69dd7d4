"""The loop of a training, written out: policy gradients on a tiny random model, half a minute on a CPU.

    python examples/training_loop.py       # then: strands-env report runs/training

`strands-env train` does this for any environment with TRL's trainer. Here each step is a saved evaluation and one step
of Adam; the reward is one that the model can earn by chance, two digits in the reply.
"""

import asyncio

import torch

from strands_env.core import Action, Environment, TaskContext
from strands_env.core.models import sglang_model_factory
from strands_env.eval import Evaluator
from strands_env.training import group_advantages, samples_from_step
from strands_sglang.backends.engine import EmbeddedEngine
from strands_sglang.backends.engine.tiny import make_tiny_model

STEPS, GROUP = 10, 16
TASKS = [
    Action(message=f"Name a number, {name}.", task_context=TaskContext(id=name)) for name in ("Ada", "Alan", "Grace")
]


def two_digits(action, result):
    text = result.observation.final_response or ""
    return float(sum(character.isdigit() for character in text) >= 2)


def logprobs_of(model, sample):
    """The trainer's log-probability of every token but the first."""
    ids = torch.from_numpy(sample.token_ids.astype("int64"))
    return torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1], dim=-1).gather(-1, ids[1:, None]).squeeze(-1)


async def main():
    tiny = make_tiny_model(seed=0)
    optimizer = torch.optim.Adam(tiny.model.parameters(), lr=5e-3)
    async with EmbeddedEngine(tiny.model, tokenizer=tiny.tokenizer) as engine:
        sampling = {"temperature": 1.0, "max_new_tokens": 6}
        models = sglang_model_factory(tokenizer=engine.tokenizer, client=engine, sampling_params=sampling)
        for step in range(STEPS):
            evaluator = Evaluator(
                lambda: Environment(model_factory=models, reward_fn=two_digits),
                n_samples_per_prompt=GROUP,
                max_concurrency=16,
                sampling_seed=step,
                keep_tokens=True,
                config={"step": step},
                output_path=f"runs/training/step-{step}/results.jsonl",
            )
            results = await evaluator.run(TASKS)
            samples = [
                sample
                for prompt, group in results.items()
                for rollout in group
                for sample in samples_from_step(rollout.step_result, group_id=prompt)
            ]
            advantages = group_advantages(
                [sample.reward for sample in samples],
                group_ids=[sample.group_id for sample in samples],
                rollout_ids=[sample.rollout_id for sample in samples],
            )
            count = sum(sample.trained_tokens for sample in samples)
            optimizer.zero_grad()
            gap = 0.0
            for sample, advantage in zip(samples, advantages, strict=True):
                mask = torch.from_numpy(sample.loss_mask[1:].astype(bool))
                logprobs = logprobs_of(tiny.model, sample)[mask]
                recorded = torch.tensor(sample.logprobs[1:]).float()[mask]
                gap = max(gap, float((logprobs - recorded).detach().abs().max()))
                (-(torch.exp(logprobs - recorded) * float(advantage)).sum() / count).backward()
            optimizer.step()
            await engine.update_weights(tiny.model, f"step-{step + 1}")
            reward = sum(sample.reward for sample in samples) / len(samples)
            print(f"step {step:2}  reward {reward:.2f}  largest logprob difference {gap:.0e}")


asyncio.run(main())
