"""Token-exact against re-tokenised GRPO, on CPU: `python examples/tito_vs_retokenized/run.py`.

A model learns a tool-calling task half-way, then GRPO goes on from that checkpoint once for each arm, with the same
problems and seeds. One arm trains the tokens that were sampled, one the tokens that their text encodes to, one those of
the conversation as OpenAI-style messages. Stop it when you like: the same command goes on from the last step. See
README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from grpo import update
from rollouts import Rollout, collect, retokenized, reward, through_chat
from store import Store
from task import held_out_problems, load_smollm2, make_model, make_problem, make_tokenizer, supervise

from strands_sglang.backends.engine import EmbeddedEngine

ARMS = ("token-exact", "re-tokenised", "chat text")
CORRECTED = "re-tokenised, corrected"
SHRUNK = "token-exact, shrunk"
GATEWAY = "chat text, gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The runs that answer one question: every arm at every dropout and rate, once for each seed.

    Attributes:
        arms: Some of `ARMS`, `CORRECTED`, `SHRUNK` and `GATEWAY`.
        dropouts: BPE dropout of the supervised data; without dropout the drift is the model's own.
        rates: Learning rates of GRPO.
        seeds: Number of repetitions.
    """

    arms: tuple[str, ...]
    dropouts: tuple[float, ...] = (0.3,)
    rates: tuple[float, ...] = (4e-4,)
    seeds: int


STUDIES = {
    "main": Study(arms=ARMS, seeds=8),
    "natural": Study(arms=ARMS[:2], dropouts=(0.0,), seeds=15),
    "drift": Study(arms=ARMS[:2], dropouts=(0.03, 0.1), seeds=8),
    "correction": Study(arms=(CORRECTED, SHRUNK), seeds=8),
    "rate": Study(arms=ARMS[:2], rates=(3e-5, 1e-4, 2e-4, 1e-3), seeds=4),
    "natural-rate": Study(arms=ARMS[:2], dropouts=(0.0,), rates=(3e-5, 1e-4, 2e-4, 1e-3), seeds=4),
    # The rate of `natural-rate` that is best for the re-tokenised arm, for as many seeds as `natural` has.
    "natural-best": Study(arms=ARMS[:2], dropouts=(0.0,), rates=(2e-4,), seeds=15),
    "gateway": Study(arms=(GATEWAY,), seeds=2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings that all runs of one folder share."""

    model: str = "tiny"
    steps: int = 60
    problems: int = 8
    samples: int = 8
    target: float = 0.25
    vocabulary: int = 600
    evaluation: int = 128
    checked: int = 64
    supervised_rate: float = 3e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run, and the settings in which it differs from others.

    Attributes:
        seed: Of the model's first weights, the data, and sampling.
        arm: One of `ARMS`, `CORRECTED`, `SHRUNK` or `GATEWAY`.
        dropout: BPE dropout of the supervised data, which makes the model drift.
        rate: Learning rate of GRPO.
    """

    seed: int
    arm: str
    dropout: float
    rate: float

    @property
    def name(self) -> str:
        """Name of the run's files."""
        return (
            f"{self.arm.replace(', ', '-').replace(' ', '-')}_dropout{self.dropout:g}_rate{self.rate:g}_seed{self.seed}"
        )


def plan(studies: Sequence[str], *, first_seed: int, seeds: int | None, rate_factor: float = 1.0) -> list[Run]:
    """The runs of studies in the order in which they are made: every study of a seed before the next seed.

    Args:
        studies: Names in `STUDIES`.
        first_seed: The first seed of each study.
        seeds: At most so many seeds of each study; None for all.
        rate_factor: Multiplies the learning rates, which are those of the tiny model.
    """
    counts = {name: min(STUDIES[name].seeds, seeds or STUDIES[name].seeds) for name in studies}
    runs = [
        Run(seed=first_seed + i, arm=arm, dropout=dropout, rate=rate * rate_factor)
        for i in range(max(counts.values()))
        for name in studies
        if i < counts[name]
        for dropout in STUDIES[name].dropouts
        for rate in STUDIES[name].rates
        for arm in STUDIES[name].arms
    ]
    return list(dict.fromkeys(runs))  # two studies may share a run


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    default = Settings()
    parser.add_argument("--studies", type=study_list, default=",".join(STUDIES), help="with commas between")
    parser.add_argument("--seeds", type=positive, help="at most so many repetitions of each study")
    parser.add_argument("--first-seed", type=int, default=0, help="the first seed; the others follow")
    parser.add_argument("--rate-factor", type=float, default=1.0, help="multiplies the learning rates of GRPO")
    parser.add_argument("--minutes", type=float, help="start no step after this time")
    parser.add_argument("--device", default="cpu", help="of training and sampling, such as cuda")
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/tito_vs_retokenized"), help="folder of results and states"
    )
    shared = parser.add_argument_group("the same for all runs of a folder")
    shared.add_argument("--model", choices=("tiny", "smollm2"), default=default.model, help="a random one, or SmolLM2")
    shared.add_argument("--steps", type=positive, default=default.steps, help="GRPO steps")
    shared.add_argument("--problems", type=positive, default=default.problems, help="problems a step")
    shared.add_argument("--samples", type=positive, default=default.samples, help="rollouts a problem")
    shared.add_argument("--target", type=float, default=default.target, help="sampled reward that ends supervision")
    shared.add_argument("--vocabulary", type=positive, default=default.vocabulary, help="tokens of the tokenizer")
    shared.add_argument(
        "--evaluation", type=positive, default=default.evaluation, help="held-out problems before and after"
    )
    shared.add_argument("--checked", type=positive, default=default.checked, help="problems that may end supervision")
    shared.add_argument(
        "--supervised-rate", type=float, default=default.supervised_rate, help="learning rate of supervision"
    )
    options = parser.parse_args(arguments)
    options.settings = Settings(**{name: getattr(options, name) for name in Settings.__dataclass_fields__})
    return options


def study_list(text: str) -> list[str]:
    """Names of studies."""
    names = [name.strip() for name in text.split(",")]
    if unknown := sorted(set(names) - set(STUDIES)):
        raise argparse.ArgumentTypeError(f"got {unknown!r}, expected some of {', '.join(STUDIES)}")
    return names


def positive(text: str) -> int:
    """A number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {number}, expected at least 1")
    return number


class OutOfTime(Exception):
    """`--minutes` are over."""


class Experiment:
    """Runs of one folder, each made up to its last step, or to the deadline."""

    def __init__(self, store: Store, settings: Settings, *, device: str = "cpu", deadline: float | None = None) -> None:
        self.store, self.settings, self.device, self.deadline = store, settings, device, deadline
        self.tokenizer = make_tokenizer(settings.vocabulary) if settings.model == "tiny" else load_smollm2()[1]

    async def make(self, run: Run) -> None:
        """Make a run, from where it was stopped."""
        if self.store.is_done(run.name, self.settings.steps):
            return
        state = self.store.load(run.name)
        if state is None:
            start = await self.start(run.seed, run.dropout)
            state = {"model": start["model"], "optimizer": None, "before": start["before"], "curves": []}
        model = self._new_model(run.seed)
        model.load_state_dict(state["model"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=run.rate, weight_decay=0.0, betas=(0.9, 0.95))
        if state["optimizer"] is not None:
            optimizer.load_state_dict(state["optimizer"])
        curves: list[dict[str, float | None]] = state["curves"]
        async with self._engine(model, f"step-{len(curves)}") as engine:
            while len(curves) < self.settings.steps:
                self._check_time()
                point = await self.step(run, len(curves), model, optimizer, engine)
                curves.append(point)
                state.update(model=model.state_dict(), optimizer=optimizer.state_dict())
                self.store.save(run.name, state)
                print(
                    f"{run.name} step {len(curves):3}  reward {point['reward']:.2f}  drift {point['drift']:.2f}  "
                    f"gap {point['sequence_gap']:.2g}  {point['seconds']:.1f} s of CPU",
                    flush=True,
                )
            self._check_time()
            after = await self.evaluate(engine, run.seed)
        self.store.finish(run.name, {**asdict(run), "before": state["before"], "after": after, "curves": curves})

    async def step(self, run: Run, step: int, model: Any, optimizer: Any, engine: Any) -> dict[str, Any]:
        """Sample a batch, train it as the arm does, and put the new weights into the engine."""
        began, settings = time.process_time(), self.settings
        name = f"seed {run.seed} step {step}"
        rng = random.Random(name)
        batch = [make_problem(rng) for _ in range(settings.problems)]
        rollouts = await collect(
            engine, batch, samples_per_problem=settings.samples, seed=name, gateway=run.arm == GATEWAY
        )
        for rollout in rollouts:
            versions = {span.version for span in rollout.sample.weight_versions}
            assert versions == {f"step-{step}"}, versions
        # Both arms weight a rollout by the probability of its re-tokenised form; they differ in what they train.
        is_weighted = run.arm in (CORRECTED, SHRUNK)
        statistics = update(
            model,
            optimizer,
            [trained_by(run.arm, rollout, self.tokenizer) for rollout in rollouts],
            [rollout.sample for rollout in rollouts],
            pad=self.tokenizer.pad_token_id,
            weighed=[retokenized(rollout.sample, self.tokenizer) for rollout in rollouts] if is_weighted else None,
        )
        await engine.update_weights(model, f"step-{step + 1}")
        return {**measure(rollouts), **asdict(statistics), "seconds": time.process_time() - began}

    async def start(self, seed: int, dropout: float) -> dict[str, Any]:
        """The supervised model from which all arms of a seed go on, and its evaluation.

        Supervision ends when `target` of what the model samples is right: models of one likelihood differ widely in
        what they get right, and what GRPO makes of them with it.
        """
        name = f"start_dropout{dropout:g}_seed{seed}"
        if (state := self.store.load(name)) is not None:
            return state
        model = self._new_model(seed)
        rng = random.Random(f"start {seed}")
        problems = [make_problem(rng) for _ in range(self.settings.checked)]

        async def is_enough() -> bool:
            self._check_time()
            async with self._engine(model, "start") as engine:
                found = await collect(engine, problems, samples_per_problem=1, seed=f"start {seed}")
            return measure(found)["reward"] >= self.settings.target

        steps = await supervise(
            model,
            self.tokenizer,
            is_enough=is_enough,
            dropout=dropout,
            seed=seed,
            rate=self.settings.supervised_rate,
        )
        async with self._engine(model, "start") as engine:
            before = await self.evaluate(engine, seed)
        print(f"{name}: {steps} steps of supervision, held-out reward {before['reward']:.2f}", flush=True)
        self.store.save(name, {"model": model.state_dict(), "before": before})
        return {"model": model.state_dict(), "before": before}

    async def evaluate(self, engine: Any, seed: int) -> dict[str, float]:
        """Held-out problems, one sample each at temperature 1."""
        problems = held_out_problems(seed, self.settings.evaluation)
        return measure(await collect(engine, problems, samples_per_problem=1, seed=f"evaluation {seed}"))

    def _new_model(self, seed: int) -> Any:
        model = make_model(self.tokenizer, seed) if self.settings.model == "tiny" else load_smollm2()[0]
        return model.to(self.device).eval()

    def _engine(self, model: Any, version: str) -> EmbeddedEngine:
        """Samples with a copy of the weights."""
        return EmbeddedEngine(
            copy.deepcopy(model),
            tokenizer=self.tokenizer,
            device=self.device,
            max_batch_size=64,
            seed=0,
            weight_version=version,
            batch_invariant=False,
        )

    def _check_time(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime


def trained_by(arm: str, rollout: Rollout, tokenizer: Any) -> Any:
    """The sample that an arm trains of a rollout."""
    if arm in (ARMS[0], SHRUNK):
        return rollout.sample
    return (
        retokenized(rollout.sample, tokenizer) if arm.startswith("re-tokenised") else through_chat(rollout, tokenizer)
    )


def measure(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Means over a batch of rollouts."""
    count = len(rollouts)
    sampled = sum(rollout.sample.trained_tokens for rollout in rollouts)
    return {
        "reward": sum(reward(rollout.called, rollout.answered) for rollout in rollouts) / count,
        "called": sum(rollout.called for rollout in rollouts) / count,
        "drift": sum(rollout.drifted_tokens > 0 for rollout in rollouts) / count,
        "drifted_tokens": sum(rollout.drifted_tokens for rollout in rollouts) / max(sampled, 1),
        "sampled_tokens": sampled / count,
    }


async def main() -> None:
    """All runs that are not done yet."""
    options = parse_arguments()
    torch.set_num_threads(1)
    store = Store(options.output, asdict(options.settings))
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    experiment = Experiment(store, options.settings, device=options.device, deadline=deadline)
    runs = plan(options.studies, first_seed=options.first_seed, seeds=options.seeds, rate_factor=options.rate_factor)
    try:
        for run in runs:
            await experiment.make(run)
    except OutOfTime:
        print("out of time; the same command goes on from here", flush=True)
    done = sum(store.is_done(run.name, options.steps) for run in runs)
    print(f"{done} of {len(runs)} runs are done; report.py {options.output} prints the tables")


if __name__ == "__main__":
    asyncio.run(main())
