"""kill -9 at random moments, then resume: nothing is lost, nothing is done twice, nothing differs.

The program that is killed is this file: `python -m tests.unit.strands_env.eval.test_eval_kill OUTPUT EXECUTOR`.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from strands_env.core import Action
from strands_env.eval import Evaluator, RetryPolicy, read_results
from strands_env.eval.executors import ProcessExecutor, RayExecutor
from strands_env.eval.store import RunConfig
from tests.conftest import ROOT
from tests.unit.eval_support import FakeEnv, outcome, tasks, with_tokens

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


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
    executors = {"inline": None, "processes": ProcessExecutor, "ray": RayExecutor}  # the benchmark kills all three
    make = executors[kind]
    runner = None if make is None else make("tests.unit.strands_env.eval.test_eval_kill:factory", n_workers=2)
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


def start(folder: Path, kind: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.unit.strands_env.eval.test_eval_kill", str(folder), kind]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def contents(folder: Path) -> dict[str, Any]:
    """Everything of the samples but their times, by identity."""
    found: dict[str, Any] = {}
    for sample in read_results(folder, with_tokens=True):
        assert sample.id not in found
        sample.duration_s = 0.0
        sample.attempts = 1
        found[sample.id] = sample
    return found


def size(folder: Path) -> int:
    path = folder / "results.jsonl"
    return path.stat().st_size if path.exists() else 0


def run_and_kill(folder: Path, kind: str, rng: random.Random) -> bool:
    """Run until the results have grown by a random number of bytes, then kill -9; whether it was killed in time."""
    target = size(folder) + rng.randint(0, 40_000)
    process = start(folder, kind)
    with process.stdout, process.stderr:
        assert process.stdout.readline() == "started\n"
        while process.poll() is None and size(folder) < target:
            time.sleep(0.001)
        process.kill()
        return process.wait() == -9


def resumed(folder: Path, kind: str) -> dict[str, Any]:
    """Let the run end, see that every sample was written once, and return them."""
    asyncio.run(evaluate(str(folder), kind))
    found = contents(folder)
    assert (folder / "results.jsonl").read_bytes().count(b"\n") == len(found)
    return found


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole")
    asyncio.run(evaluate(str(folder), "inline"))
    results = contents(folder)
    assert len(results) == TASKS * SAMPLES
    return results


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills"), [("inline", 4), ("processes", 2)])
def test_killed_again_and_again_the_results_are_those_of_one_run(kind, kills, uninterrupted, tmp_path):
    """Here at a few moments; `tests/property/test_eval_simulation.py` crashes at every one."""
    rng = random.Random(0)
    assert any([run_and_kill(tmp_path, kind, rng) for _ in range(kills)])
    kept = set(contents(tmp_path)) if size(tmp_path) else set()
    assert resumed(tmp_path, kind) == uninterrupted
    assert kept <= set(uninterrupted)


if __name__ == "__main__":
    asyncio.run(evaluate(*sys.argv[1:3]))
