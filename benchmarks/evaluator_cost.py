"""CPU of the evaluator for each sample, beside strands-env 0.7.3 in the same interpreter.

    python benchmarks/evaluator_cost.py --upstream /path/to/python3.12    # a Python with strands-env==0.7.3 installed
    python benchmarks/evaluator_cost.py                                   # ours alone

5,000 instant samples at concurrency 500, saved (ours is also synced to the device; strands-env never syncs), then a
resume of all. Environments answer at once with equal messages of 2 kB, so all time is the evaluator's. The runs are
interleaved, each in a fresh process; the median of the passes is shown, one JSON line a case.

Make the other Python with: python3.12 -m venv DIR && DIR/bin/pip install strands-env==0.7.3 orjson numpy httptools
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TEXT = "x" * 1900
MESSAGES = [{"role": "user", "content": [{"text": "q"}]}, {"role": "assistant", "content": [{"text": TEXT}]}]


def ours(count: int, concurrency: int, folder: str) -> Any:
    """Our evaluator, ready to run."""
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

    evaluator = Evaluator(InstantEnv, max_concurrency=concurrency, output_path=folder)
    tasks = [Action(message=f"question {i}", task_context=TaskContext(id=f"t{i}")) for i in range(count)]
    return evaluator.run, tasks


def upstream(count: int, concurrency: int, folder: str) -> Any:
    """The evaluator of strands-env 0.7.3, ready to run."""
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

    evaluator = Evaluator(factory, max_concurrency=concurrency, output_path=Path(folder, "results.jsonl"))
    tasks = [Task(id=f"t{i}", message=f"question {i}") for i in range(count)]
    return evaluator.run, tasks


def child(kind: str, count: int, concurrency: int, folder: str) -> None:
    """One run in this process; prints its cost."""
    logging.disable(logging.WARNING)
    run, tasks = {"ours": ours, "upstream": upstream}[kind](count, concurrency, folder)
    cpu, wall = time.process_time(), time.perf_counter()
    results = asyncio.run(run(tasks))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert sum(len(samples) for samples in results.values()) == count
    print(json.dumps({"cpu_ms": cpu / count * 1e3, "wall_s": wall}))


def measure(python: str, kind: str, args: argparse.Namespace) -> dict[str, float]:
    """A run and its resume, each in its own process."""
    found = {}
    environment = dict(os.environ)
    environment["PYTHONPATH"] = str(Path(__file__).parents[1] / "src") if kind == "ours" else ""
    with tempfile.TemporaryDirectory() as folder:
        for case in ("run", "resume"):
            command = [python, __file__, "--child", kind, folder, "--samples", str(args.samples)]
            command += ["--concurrency", str(args.concurrency)]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
            figures = json.loads(done.stdout.splitlines()[-1])
            found |= {f"{case}_{name}": value for name, value in figures.items()}
    return found


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--upstream", metavar="PYTHON", help="a Python that has strands-env 0.7.3")
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--concurrency", type=int, default=500)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--child", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child[0], args.samples, args.concurrency, args.child[1])
        return 0
    kinds = ["ours", "upstream"] if args.upstream else ["ours"]
    python = args.upstream or sys.executable  # of both
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]
    passes: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in range(args.passes):
        for kind in kinds:
            passes[kind].append(measure(python, kind, args))
    for kind, runs in passes.items():
        medians = {name: round(statistics.median(run[name] for run in runs), 3) for name in runs[0]}
        print(json.dumps({"evaluator": kind, "python": version, "samples": args.samples, **medians}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
