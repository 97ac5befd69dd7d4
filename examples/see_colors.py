"""Reinforcement learning of an agent that sees, start to end on a CPU: pictures, two user turns, exact tokens, GRPO.

    python examples/see_colors.py [--steps 40] [--tasks 10] [--samples 6] [--seed 0]

A tiny random vision-language model (Qwen2.5-VL architecture, real image processor, nothing downloaded) is first taught
to answer with some color, regardless of the picture. Then GRPO teaches it to look: in each episode it is shown two
pictures, one after the other, and asked for their colors. Printed for every step: the mean reward (0.5 is chance), and
the largest difference between a log-probability the sampler recorded and the trainer's for the same token
with the same pixels.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import random
import sys
from typing import Any

import torch
from PIL import Image

from strands_env.core import Action, Environment, StepResult, TaskContext
from strands_env.core.models import sglang_model_factory
from strands_env.training import TrainingSample, group_advantages, image_inputs, samples_from_step
from strands_sglang.backends.engine import EmbeddedEngine, TinyModel, make_tiny_vision_model

COLORS = {"red": (220, 30, 40), "blue": (30, 50, 220)}
QUESTION = "Which color is this?"


def picture(color: str, rng: random.Random) -> dict[str, Any]:
    """A picture of one color, with some noise in its tone and size."""
    tone = tuple(max(0, min(255, value + rng.randint(-25, 25))) for value in COLORS[color])
    file = io.BytesIO()
    Image.new("RGB", (rng.choice((56, 64, 84)), rng.choice((48, 56))), tone).save(file, "PNG")
    return {"image": {"format": "png", "source": {"bytes": file.getvalue()}}}


class ColorEnv(Environment):
    """Shows one picture after the other, and asks for the color of each."""

    async def interact(self, agent: Any, action: Action) -> Any:
        rng = random.Random(action.task_context.seed)
        for color in action.task_context.ground_truth:
            result = await self.invoke(agent, [picture(color, rng), {"text": QUESTION}])
        return result


def reward(action: Action, result: StepResult) -> float:
    """Share of the colors that were named right."""
    said = [
        "".join(block.get("text", "") for block in message["content"]).strip()
        for message in result.observation.messages
        if message["role"] == "assistant"
    ]
    truth = action.task_context.ground_truth
    return sum(a == b for a, b in zip(said, truth, strict=False)) / len(truth)


def logprobs_of(tiny: TinyModel, sample: TrainingSample, expander: Any) -> torch.Tensor:
    """The trainer's log-probability of every token but the first: expanded ids and the pixels beside them."""
    row = torch.from_numpy(sample.token_ids.astype("int64"))[None]
    fed = {name: torch.from_numpy(values) for name, values in image_inputs(sample, expander).items()}
    kinds = (row == expander.placeholder_id).int()
    logits = tiny.model(input_ids=row, mm_token_type_ids=kinds, **fed).logits[0, :-1]
    return torch.log_softmax(logits.float(), dim=-1).gather(-1, row[0, 1:, None]).squeeze(-1)


def teach_to_answer(tiny: TinyModel, steps: int, rng: random.Random) -> None:
    """Supervised steps on random answers: the form of an answer, and nothing about pictures."""
    optimizer = torch.optim.Adam(tiny.model.parameters(), lr=3e-3)
    tokenizer, images = tiny.tokenizer, tiny.image_processor
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    for _ in range(steps):
        content: list[Any] = []
        for _ in range(2):
            shown = picture(rng.choice(list(COLORS)), rng)["image"]["source"]["bytes"]
            content.append((Image.open(io.BytesIO(shown)), rng.choice(list(COLORS))))
        fed = images(images=[image for image, _ in content], return_tensors="pt")
        ids: list[int] = []
        trained: list[bool] = []
        for (_, answer), grid in zip(content, fed["image_grid_thw"], strict=True):
            question = f"<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{QUESTION}<|im_end|>\n"
            for token in tokenizer.encode(question + "<|im_start|>assistant\n"):
                ids += [token] * (int(grid.prod()) // 4 if token == pad else 1)
            trained += [False] * (len(ids) - len(trained))
            ids += tokenizer.encode(answer + "<|im_end|>")
            trained += [True] * (len(ids) - len(trained))
            ids += tokenizer.encode("\n")
            trained += [False] * (len(ids) - len(trained))
        row = torch.tensor([ids])
        logits = tiny.model(input_ids=row, mm_token_type_ids=(row == pad).int(), **fed).logits[0, :-1]
        mask = torch.tensor(trained[1:])
        loss = torch.nn.functional.cross_entropy(logits[mask], row[0, 1:][mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


async def collect(engine: EmbeddedEngine, tasks: int, samples: int, rng: random.Random) -> list[TrainingSample]:
    """Episodes of a batch of tasks, all at once."""
    factory = sglang_model_factory(
        tokenizer=engine.tokenizer, client=engine, sampling_params={"temperature": 1.0, "max_new_tokens": 8}
    )
    env = ColorEnv(model_factory=factory, reward_fn=reward)

    async def one(group: int, truth: list[str], seed: int) -> list[TrainingSample]:
        action = Action(message=QUESTION, task_context=TaskContext(ground_truth=truth, seed=seed))
        return samples_from_step(await env.step(action), group_id=str(group))

    jobs = []
    for group in range(tasks):
        truth, seed = [rng.choice(list(COLORS)) for _ in range(2)], rng.randrange(2**31)
        jobs += [one(group, truth, seed) for _ in range(samples)]
    return [sample for made in await asyncio.gather(*jobs) for sample in made]


async def main() -> int:
    """Train; exit status 1 when a recorded log-probability is not that of the trainer."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=40, help="GRPO steps")
    parser.add_argument("--tasks", type=int, default=10, help="pairs of pictures a step")
    parser.add_argument("--samples", type=int, default=6, help="episodes a pair")
    parser.add_argument("--answers", type=int, default=150, help="supervised steps before")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of GRPO")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(args.seed)
    tiny = make_tiny_vision_model(seed=args.seed)
    print("teaching the form of an answer ...", flush=True)
    teach_to_answer(tiny, args.answers, rng)
    optimizer = torch.optim.Adam(tiny.model.parameters(), lr=args.lr)
    worst = 0.0
    engine = EmbeddedEngine(
        tiny.model, tokenizer=tiny.tokenizer, image_processor=tiny.image_processor, max_batch_size=36, seed=args.seed
    )
    async with engine:
        expander = engine.image_expander
        for step in range(args.steps):
            samples = await collect(engine, args.tasks, args.samples, rng)
            usable = [sample for sample in samples if sample.is_usable]
            advantages = group_advantages(
                [sample.reward for sample in usable],
                group_ids=[sample.group_id for sample in usable],
                rollout_ids=[sample.rollout_id for sample in usable],
            )
            optimizer.zero_grad()
            gap, count = 0.0, sum(sample.trained_tokens for sample in usable)
            for sample, advantage in zip(usable, advantages, strict=True):
                logprobs = logprobs_of(tiny, sample, expander)
                mask = torch.from_numpy(sample.loss_mask[1:].astype(bool))
                recorded = torch.tensor(sample.logprobs[1:]).float()[mask]
                gap = max(gap, float((logprobs[mask] - recorded).detach().abs().max()))
                (-(torch.exp(logprobs[mask] - recorded) * float(advantage)).sum() / count).backward()
            torch.nn.utils.clip_grad_norm_(tiny.model.parameters(), 1.0)
            optimizer.step()
            worst = max(worst, gap)
            mean = sum(sample.reward or 0.0 for sample in usable) / max(1, len(usable))
            print(
                f"step {step:2}  reward {mean:.2f}  episodes {len(usable)}/{len(samples)}  "
                f"images {sum(len(sample.media) for sample in usable)}  largest logprob difference {gap:.1e}",
                flush=True,
            )
            await engine.update_weights(tiny.model, f"step-{step + 1}")
    print(f"largest difference of all steps {worst:.1e}")
    return 0 if worst < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
