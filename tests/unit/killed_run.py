"""A program that evaluates, to be killed: `python -m tests.unit.killed_run OUTPUT EXECUTOR`."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

from strands_env.core import Action
from strands_env.distributed import ProcessExecutor
from strands_env.eval import Evaluator, RetryPolicy
from strands_env.eval.store import RunConfig
from tests.unit.eval_support import FakeEnv, outcome, tasks, with_tokens

TASKS = 40
SAMPLES = 3


def factory() -> Any:
    """Environments whose answers depend on the task alone."""

    def make(action: Action) -> FakeEnv:
        rng = random.Random(action.task_context.id)

        def answer(action: Action) -> Any:
            reward = round(rng.random(), 3)
            return with_tokens(outcome(reward, text=f"{action.task_context.id} {'x' * rng.randint(0, 3000)}"))

        return FakeEnv(answer, delay=0.002 + 0.01 * rng.random())

    return make


async def evaluate(output: str, kind: str) -> None:
    runner = ProcessExecutor("tests.unit.killed_run:factory", n_workers=2) if kind == "processes" else None
    evaluator = Evaluator(
        factory() if runner is None else None,
        executor=runner,
        n_samples_per_prompt=SAMPLES,
        max_concurrency=8,
        keep_tokens=True,
        output_path=output,
        retry=RetryPolicy(delay=0.0),
    )
    # The same configuration wherever the samples run, so that results of all executors can be compared.
    evaluator.run_config = lambda: RunConfig(evaluator.paths.run, {"run": "killed"})  # type: ignore[method-assign]
    print("started", flush=True)
    try:
        await evaluator.run(tasks(TASKS))
    finally:
        if runner is not None:
            await runner.close()


if __name__ == "__main__":
    asyncio.run(evaluate(*sys.argv[1:3]))
