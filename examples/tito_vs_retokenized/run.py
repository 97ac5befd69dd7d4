"""Token-exact against re-tokenised GRPO, on CPU: `python examples/tito_vs_retokenized/run.py`.

A model learns a tool-calling task half-way, then GRPO goes on from that checkpoint once for each arm, with the same
problems and seeds. One arm trains the tokens that were sampled, one the tokens that their text encodes to, one those of
the conversation as OpenAI-style messages. See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import logging
import random
import time
from pathlib import Path
from typing import Any

import torch
from grpo import update
from report import check_results, read_results, write_report
from rollouts import Rollout, collect, retokenized, through_chat
from task import load_smollm2, make_model, make_problem, make_tokenizer, supervise

from strands_sglang.backends.engine import EmbeddedEngine

ARMS = ("token-exact", "re-tokenised", "chat text")

MODELS: dict[str, dict[str, float]] = {
    "tiny": {"rate": 4e-4, "supervised_rate": 3e-3, "dropout": 0.3},
    "smollm2": {"rate": 5e-6, "supervised_rate": 1e-4, "dropout": 0.0},
}
"""What differs by model where the command line does not say it."""


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--seeds", type=positive, default=5, help="number of repetitions")
    parser.add_argument("--first-seed", type=int, default=0, help="the first seed; the others follow")
    parser.add_argument("--steps", type=positive, default=60, help="GRPO steps")
    parser.add_argument("--problems", type=positive, default=8, help="problems a step")
    parser.add_argument("--samples", type=positive, default=8, help="rollouts a problem")
    unset = argparse.SUPPRESS  # it differs by model
    parser.add_argument("--model", choices=sorted(MODELS), default="tiny", help="a random one, or SmolLM2-135M")
    parser.add_argument("--device", default="cpu", help="of training and sampling, such as cuda")
    parser.add_argument("--arms", type=arm_list, default=",".join(ARMS), help="what is trained, with commas between")
    parser.add_argument("--rate", type=float, default=unset, help="learning rate of GRPO (4e-4; smollm2: 5e-6)")
    parser.add_argument(
        "--supervised-rate", type=float, default=unset, help="that of the supervision (3e-3; smollm2: 1e-4)"
    )
    parser.add_argument(
        "--dropout", type=float, default=unset, help="BPE dropout of the supervised data (0.3; smollm2: 0)"
    )
    parser.add_argument("--micro-batch", type=positive, default=64, help="samples of one forward pass of training")
    parser.add_argument("--target", type=float, default=0.25, help="sampled reward that ends the supervision")
    parser.add_argument("--vocabulary", type=positive, default=600, help="tokens of the tokenizer")
    parser.add_argument("--evaluation", type=positive, default=256, help="held-out problems before and after")
    parser.add_argument("--checked", type=positive, default=128, help="problems that say whether supervision may end")
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/tito_vs_retokenized"), help="folder of the results"
    )
    options = parser.parse_args(arguments)
    for name, value in MODELS[options.model].items():
        if not hasattr(options, name):
            setattr(options, name, value)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    planned = {
        "settings": settings_of(options),
        "runs": [{"seed": seed, "arm": arm} for seed in seeds for arm in options.arms],
    }
    try:  # now, and not after hours: whether the report will take them together
        check_results({**read_results(options.output), file_of(options): planned})
    except ValueError as error:
        parser.error(str(error))
    return options


def arm_list(text: str) -> list[str]:
    """Names of arms."""
    names = [name.strip() for name in text.split(",")]
    if unknown := sorted(set(names) - set(ARMS)):
        raise argparse.ArgumentTypeError(f"got {unknown!r}, expected some of {', '.join(ARMS)}")
    return names


def positive(text: str) -> int:
    """A number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {number}, expected at least 1")
    return number


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What the results say about how they were made."""
    return {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}


def file_of(options: argparse.Namespace) -> str:
    """Further seeds may be run apart, into the same folder; the report takes all of them."""
    return f"results-{options.first_seed}.json" if options.first_seed else "results.json"


async def start(model: Any, tokenizer: Any, options: argparse.Namespace, seed: int) -> dict[str, float]:
    """Supervise the model until it gets `target` of what it samples right; its evaluation before GRPO.

    Sampled, for models of one likelihood differ widely in what they get right, and what GRPO makes of them with it.
    """

    async def sampled(problems: str, count: int) -> dict[str, float]:
        async with make_engine(copy.deepcopy(model).eval(), tokenizer, seed, options.device) as engine:
            return await evaluate(engine, count, problems)

    async def is_enough() -> bool:
        return (await sampled(f"start {seed}", options.checked))["reward"] >= options.target

    await supervise(
        model,
        tokenizer,
        is_enough=is_enough,
        dropout=options.dropout,
        seed=seed,
        rate=options.supervised_rate,
        batch_size=min(32, options.micro_batch),
    )
    model.eval()
    return await sampled(f"evaluation {seed}", options.evaluation)


async def train(
    options: argparse.Namespace, start: Any, tokenizer: Any, before: dict[str, float], *, seed: int, arm: str
) -> dict[str, Any]:
    """One run of GRPO from a checkpoint, evaluated as `before`; its curves."""
    model = copy.deepcopy(start)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.0, betas=(0.9, 0.95))
    problems = random.Random(f"training {seed}")
    curves: list[dict[str, Any]] = []
    async with make_engine(model, tokenizer, seed, options.device) as engine:
        for step in range(options.steps):
            began = time.perf_counter()
            batch = [make_problem(problems) for _ in range(options.problems)]
            rollouts = await collect(engine, batch, samples_per_problem=options.samples)
            for rollout in rollouts:
                versions = {span.version for span in rollout.sample.weight_versions}
                assert versions == {f"step-{step}"}, versions
            sampled = [rollout.sample for rollout in rollouts]
            trained = [trained_by(arm, rollout, tokenizer) for rollout in rollouts]
            statistics = update(
                model, optimizer, trained, sampled, pad=tokenizer.pad_token_id, micro_batch=options.micro_batch
            )
            await engine.update_weights(model, f"step-{step + 1}")
            point = {"step": step, **measure(rollouts), **{k: getattr(statistics, k) for k in statistics.__slots__}}
            curves.append(point | {"seconds": time.perf_counter() - began})
            print(
                f"seed {seed} {arm:12} step {step:3}  reward {point['reward']:.2f}  valid calls {point['called']:.2f}  "
                f"drift {point['drift']:.2f}  gap {point['sequence_gap']:.2g}  {curves[-1]['seconds']:.1f} s",
                flush=True,
            )
        after = await evaluate(engine, options.evaluation, f"evaluation {seed}")
    return {"seed": seed, "arm": arm, "before": before, "after": after, "curves": curves}


def trained_by(arm: str, rollout: Rollout, tokenizer: Any) -> Any:
    """What an arm trains of a rollout."""
    if arm == "token-exact":
        return rollout.sample
    return retokenized(rollout.sample, tokenizer) if arm == "re-tokenised" else through_chat(rollout, tokenizer)


def make_engine(model: Any, tokenizer: Any, seed: int, device: str) -> EmbeddedEngine:
    """The engine that samples; its weights have version `step-0`."""
    return EmbeddedEngine(
        model,
        tokenizer=tokenizer,
        device=device,
        max_batch_size=64,
        seed=seed,
        weight_version="step-0",
        batch_invariant=False,
    )


def measure(rollouts: list[Rollout]) -> dict[str, float]:
    """Means over a batch of rollouts."""
    count = len(rollouts)
    sampled = sum(rollout.sample.trained_tokens for rollout in rollouts)
    return {
        "reward": sum(rollout.reward for rollout in rollouts) / count,
        "called": sum(rollout.called for rollout in rollouts) / count,
        "answered": sum(rollout.answered for rollout in rollouts) / count,
        "drift": sum(rollout.drifted_tokens > 0 for rollout in rollouts) / count,
        "drifted_tokens": sum(rollout.drifted_tokens for rollout in rollouts) / max(sampled, 1),
        "sampled_tokens": sampled / count,
    }


async def evaluate(engine: Any, count: int, problems: str) -> dict[str, float]:
    """Problems of this name, one sample each at temperature 1."""
    rng = random.Random(problems)
    return measure(await collect(engine, [make_problem(rng) for _ in range(count)], samples_per_problem=1))


async def main() -> None:
    """All seeds, both arms."""
    options = parse_arguments()
    logging.getLogger("strands").setLevel(logging.CRITICAL)  # a model that learns calls tools that do not exist
    logging.getLogger("strands_env").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    tokenizer = make_tokenizer(options.vocabulary) if options.model == "tiny" else load_smollm2()[1]
    runs: list[dict[str, Any]] = []
    began = time.perf_counter()
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        model = make_model(tokenizer, seed) if options.model == "tiny" else load_smollm2()[0]
        model.to(options.device)
        before = await start(model, tokenizer, options, seed)
        print(
            f"seed {seed} starts at reward {before['reward']:.2f}, {sum(p.numel() for p in model.parameters())} "
            f"parameters, {time.perf_counter() - began:.0f} s",
            flush=True,
        )
        for arm in options.arms:
            runs.append(await train(options, model, tokenizer, before, seed=seed, arm=arm))
            options.output.mkdir(parents=True, exist_ok=True)
            text = json.dumps(
                {"settings": settings_of(options), "seconds": time.perf_counter() - began, "runs": runs},
                indent=1,
                default=float,
            )
            (options.output / file_of(options)).write_text(text)
    print(write_report(options.output))


if __name__ == "__main__":
    asyncio.run(main())
