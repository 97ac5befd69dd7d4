"""CPU of the evaluator for each sample, beside that of strands-env in the same environment.

    python -m benchmarks.evaluator_cost [--passes 5] [--samples 3000]

Instant samples at concurrency 500, saved, and a resume of all of them. Environments answer at once with equal messages
of 2 kB, so all time is the evaluator's. Ours also keeps a deadline for every cleanup, reads each line back, syncs to
the device and gives each sample a seed; strands-env does not. Each run has a fresh process, and the order changes from
pass to pass. Figures are CPU milliseconds a sample, medians of the passes; ratios are medians of those within a pass.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.shape import ROOT, arguments, environment_of, median, medians, print_figures

UPSTREAM = "0.7.3"
CONCURRENCY = 500
MESSAGES = [
    {"role": "user", "content": [{"text": "q"}]},
    {"role": "assistant", "content": [{"text": "x" * 1900}]},
]


def ours(count: int, folder: str) -> Any:
    """Our evaluator and its tasks."""
    from strands_env.core import Action, Observation, RewardResult, StepResult, TaskContext, TerminationReason
    from strands_env.eval import Evaluator

    class InstantEnv:
        async def reset(self) -> None: ...

        async def step(self, action: Action) -> StepResult:
            await asyncio.sleep(0)
            return StepResult(
                observation=Observation(messages=json.loads(json.dumps(MESSAGES))),
                reward=RewardResult(reward=1.0),
                termination_reason=TerminationReason.TASK_COMPLETE,
            )

        async def cleanup(self) -> None: ...

    tasks = [Action(message=f"question {i}", task_context=TaskContext(id=f"t{i}")) for i in range(count)]
    return Evaluator(InstantEnv, max_concurrency=CONCURRENCY, output_path=folder), tasks


def upstream(count: int, folder: str) -> Any:
    """That of strands-env and its tasks."""
    from strands_env.core import RewardResult, RolloutResult, Task, TerminationReason
    from strands_env.eval import Evaluator

    class InstantEnv:
        async def rollout(self, task: Any) -> Any:
            await asyncio.sleep(0)
            return RolloutResult(
                messages=json.loads(json.dumps(MESSAGES)),
                reward_result=RewardResult(reward=1.0),
                termination_reason=TerminationReason.TASK_COMPLETE,
            )

    async def factory() -> Any:
        return InstantEnv()

    evaluator = Evaluator(factory, max_concurrency=CONCURRENCY, output_path=Path(folder, "results.jsonl"))
    return evaluator, [Task(id=f"t{i}", message=f"question {i}") for i in range(count)]


def work(arm: str, count: int, folder: str) -> None:
    """One run in this process; prints its CPU milliseconds a sample."""
    logging.disable(logging.WARNING)
    evaluator, tasks = {"ours": ours, "upstream": upstream}[arm](count, folder)
    started = time.process_time()
    results = asyncio.run(evaluator.run(tasks))
    spent = time.process_time() - started
    assert sum(map(len, results.values())) == count
    print(json.dumps(spent / count * 1000))


def measure(python: str, arm: str, count: int) -> dict[str, float]:
    """A run and its resume, each in a process of its own."""
    path = os.pathsep.join([*([str(ROOT / "src")] if arm == "ours" else []), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore::RuntimeWarning"}
    with tempfile.TemporaryDirectory() as folder:
        command = [python, __file__, "--work", arm, folder, "--samples", str(count)]
        run, resume = (
            float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)
            for _ in range(2)
        )
    return {"run": run, "resume": resume}


def main() -> None:
    """Measure."""
    parser = arguments(__doc__, passes=5)
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work[0], args.samples, args.work[1])
        return
    python, reason = environment_of(f"strands-env=={UPSTREAM}", "orjson", "prometheus-client")
    if python is None:
        raise SystemExit(reason)
    passes = []
    for number in range(1 if args.quick else args.passes):
        arms = ("ours", "upstream") if number % 2 else ("upstream", "ours")
        passes.append({arm: measure(python, arm, args.samples) for arm in arms})
    figures: dict[str, Any] = {arm: medians([each[arm] for each in passes], 3) for arm in ("ours", "upstream")}
    ratios = {
        case: median(each["ours"][case] / each["upstream"][case] for each in passes) for case in ("run", "resume")
    }
    print_figures("evaluator_cost", passes=len(passes), samples=args.samples, cost=figures, ours_over_upstream=ratios)


if __name__ == "__main__":
    sys.exit(main())
