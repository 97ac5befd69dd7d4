"""Costs of the evaluator: CPU a sample beside strands-env 0.7.3, and resuming and reading large runs.

    python -m benchmarks.evaluator
    python -m benchmarks.evaluator --large 1000000          # 2.6 GB on disk
    python -m benchmarks.evaluator --kills 50 [--executor inline processes ray]

- **samples**: instant samples at concurrency 500, saved (ours is also synced to the device; strands-env never syncs),
  then a resume of all, each in a fresh process, both evaluators in turn in the same interpreter.
- **large**: seconds and memory of a resume, and of what commands do that read a run, with `--large` finished samples of
  2 kB, one a prompt. Each case runs in a fresh process, whose peak memory is shown.
- **kills**: so many evaluations of 120 samples, each killed with signal 9 at three random moments and resumed. Every
  sample, tokens included, must equal that of a run nobody killed, and be written once; else the exit status is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.shape import arguments, environment_of, medians, print_figures

ROOT = Path(__file__).resolve().parents[1]
MESSAGES = [{"role": "user", "content": [{"text": "q"}]}, {"role": "assistant", "content": [{"text": "x" * 1900}]}]
CONCURRENCY = 500
CASES = ("resume", "resume and metrics", "list, compare", "view one", "verify")


def tasks(count: int) -> Iterator[Any]:
    """Tasks, made as they are read."""
    from strands_env.core import Action, TaskContext

    for i in range(count):
        yield Action(message=f"question {i}", task_context=TaskContext(id=f"t{i}", ground_truth=str(i)))


def result(reward: float) -> Any:
    """The result of one of our environments."""
    from strands_env.core import Observation, RewardResult, StepResult, TerminationReason

    return StepResult(
        observation=Observation(messages=json.loads(json.dumps(MESSAGES)), metrics={"input_tokens": {"total": 100.0}}),
        reward=RewardResult(reward=reward),
        termination_reason=TerminationReason.TASK_COMPLETE,
    )


class InstantEnv:
    """An environment of ours that answers at once."""

    async def reset(self) -> None: ...

    async def step(self, action: Any) -> Any:
        await asyncio.sleep(0)
        return result(1.0)

    async def cleanup(self) -> None: ...


def evaluator(folder: str) -> Any:
    """Our evaluator."""
    from strands_env.eval import Evaluator

    return Evaluator(InstantEnv, max_concurrency=CONCURRENCY, output_path=folder)


def upstream(count: int, folder: str) -> Any:
    """The run of strands-env 0.7.3."""
    from strands_env.core import RewardResult, RolloutResult, Task, TerminationReason
    from strands_env.eval import Evaluator

    class Instant:
        async def rollout(self, task: Any) -> Any:
            await asyncio.sleep(0)
            return RolloutResult(
                messages=json.loads(json.dumps(MESSAGES)),
                reward_result=RewardResult(reward=1.0),
                termination_reason=TerminationReason.TASK_COMPLETE,
            )

    async def factory() -> Any:
        return Instant()

    made = Evaluator(factory, max_concurrency=CONCURRENCY, output_path=Path(folder, "results.jsonl"))
    return made.run([Task(id=f"t{i}", message=f"question {i}") for i in range(count)])


# ---- in a process of its own -----------------------------------------------------------------------------------------


def write(folder: str, count: int) -> None:
    """The results of so many samples."""
    from strands_env.eval import EvalSample
    from strands_env.eval.run.tasks import TaskNamer, sample_id
    from strands_env.eval.store import ResultLog, StorePaths

    config = evaluator(folder).run_config()
    config.check(has_results=False)
    log, namer = ResultLog(StorePaths.of(folder), fsync_interval=None), TaskNamer()
    batch: list[Any] = []
    for number, action in enumerate(tasks(count)):
        prompt = namer.name(action)
        names = {"id": sample_id(config.digest, prompt, 0), "prompt_id": prompt.id, "task_digest": prompt.digest}
        batch.append(EvalSample(action=action, step_result=result(float(number % 2)), **names))
        if len(batch) == 5000 or number + 1 == count:
            log.append(batch)
            batch = []
    log.close()


def read(name: str, folder: str, count: int) -> int:
    """Read a run in one of the ways; the samples that were found."""
    from strands_env.eval import summarize, verify_run
    from strands_env.eval.run.groups import read_scores
    from strands_env.eval.store import ResultReader

    if name in ("resume", "resume and metrics"):
        run = evaluator(folder)
        results = asyncio.run(run.run(tasks(count)))
        return sum(map(len, results.values())) if name == "resume" else int(run.compute_metrics()["samples"])
    if name == "list, compare":
        return summarize(read_scores(folder)).samples
    if name == "view one":
        with ResultReader(folder) as reader:
            reader.read(reader.entries[-1])
            return len(reader.entries)
    return verify_run(folder).samples


def peak_kb() -> int:
    """Peak resident memory of this process; `ru_maxrss` would be that of the parent that started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def child(name: str, folder: str, count: int) -> None:
    """One case in this process; prints its cost."""
    logging.disable(logging.WARNING)
    if name == "write":
        return write(folder, count)
    if name in ("ours", "upstream"):
        made = evaluator(folder).run(list(tasks(count))) if name == "ours" else upstream(count, folder)
        cpu, wall = time.process_time(), time.perf_counter()
        results = asyncio.run(made)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        assert sum(len(samples) for samples in results.values()) == count
        print(json.dumps({"cpu_ms": cpu / count * 1e3, "wall_s": wall}))
        return None
    import strands_env.eval  # noqa: F401 loaded before the case begins

    before, started = peak_kb(), time.perf_counter()
    found = read(name, folder, count)
    seconds, peak = time.perf_counter() - started, peak_kb()
    assert found == count, found
    print(json.dumps({"seconds": round(seconds, 1), "peak_mb": peak // 1024, "grown_mb": (peak - before) // 1024}))


def fresh(name: str, folder: str, count: int, python: str = sys.executable) -> Any:
    """The figures of a case in a fresh process."""
    path = os.pathsep.join([str(ROOT), *([] if name == "upstream" else [str(ROOT / "src")])])
    command = [python, __file__, "--child", name, folder, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout or "null")


# ---- the runs --------------------------------------------------------------------------------------------------------


def samples(args: argparse.Namespace) -> list[dict[str, Any]]:
    """CPU of a sample, ours and upstream's in turn."""
    found, reason = environment_of("strands-env==0.7.3", "orjson", "aiohttp")
    if found is None:
        print(f"strands-env is left out: {reason}", file=sys.stderr)
    python = found or sys.executable  # of both
    passes: dict[str, list[dict[str, float]]] = {"ours": []} | ({"upstream": []} if found else {})
    for _ in range(args.passes):
        for kind, runs in passes.items():
            with tempfile.TemporaryDirectory() as folder:
                cases = {case: fresh(kind, folder, args.samples, python) for case in ("run", "resume")}
            runs.append({f"{case}_{name}": value for case, each in cases.items() for name, value in each.items()})
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]
    about = {"python": version, "samples": args.samples}
    return [{"evaluator": kind, **about, **medians(runs, 3)} for kind, runs in passes.items()]


def large(count: int) -> list[dict[str, Any]]:
    """Each way to read a large run."""
    with tempfile.TemporaryDirectory() as folder:
        fresh("write", folder, count)
        return [{"case": name, "samples": count, **fresh(name, folder, count)} for name in CASES]


def kills(args: argparse.Namespace) -> bool:
    """Kill, resume and compare, many times with each executor; True if every run equals that of one nobody killed."""
    from tests.unit import killed_run
    from tests.unit.test_eval_kill import contents, resumed, run_and_kill

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(killed_run.evaluate(folder, "inline"))
        expected = contents(Path(folder))
    all_equal = True
    for executor in args.executor:
        rng, in_time, equal = random.Random(args.seed), 0, 0
        for _ in range(args.kills):
            with tempfile.TemporaryDirectory() as folder:
                in_time += sum(run_and_kill(Path(folder), executor, rng) for _ in range(3))
                equal += resumed(Path(folder), executor) == expected
        print_figures("evaluator", executor=executor, runs=args.kills, kills=in_time, equal_to_one_run=equal)
        all_equal &= equal == args.kills
    return all_equal


def main() -> None:
    """Measure."""
    parser = arguments(__doc__, passes=5)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--large", type=int, default=200_000, help="samples of the large run; 0 for none")
    parser.add_argument("--kills", type=int, default=0, help="this alone: so many runs that are killed and resumed")
    parser.add_argument("--executor", nargs="+", choices=["inline", "processes", "ray"], default=["inline"])
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        name, folder, count = args.child
        return child(name, folder, int(count))
    if args.kills:
        raise SystemExit(not kills(args))
    if args.quick:
        args.passes, args.samples, args.large = 1, 200, 1000
    return print_figures("evaluator", samples=samples(args), large=large(args.large) if args.large else [])


if __name__ == "__main__":
    main()
