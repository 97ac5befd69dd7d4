"""Seconds and memory of a resume, and of the commands that read a run, with many finished samples.

    python benchmarks/store_scale.py                        # 200,000 samples of 2 kB, one a prompt
    python benchmarks/store_scale.py --samples 1000000      # 2.6 GB on disk

The results are written once; each case then runs in a fresh process, whose peak resident memory is shown. Tasks come
from a generator, as a data set's do. One JSON line a case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from strands_env.core import Action, Observation, RewardResult, StepResult, TaskContext, TerminationReason
from strands_env.eval import EvalSample, Evaluator, summarize, verify_run
from strands_env.eval.run.groups import read_scores
from strands_env.eval.run.tasks import TaskNamer, sample_id
from strands_env.eval.store import ResultLog, ResultReader, RunConfig, StorePaths

MESSAGES = [{"role": "user", "content": [{"text": "q"}]}, {"role": "assistant", "content": [{"text": "x" * 1900}]}]


class NoEnv:
    """An environment that is never asked: everything is finished."""

    async def reset(self) -> None:
        raise AssertionError("a finished sample was run again")


def tasks(count: int) -> Iterator[Action]:
    """Tasks, made as they are read."""
    for i in range(count):
        yield Action(message=f"question {i}", task_context=TaskContext(id=f"t{i}", ground_truth=str(i)))


def evaluator(folder: str) -> Evaluator:
    """The evaluator of all cases."""
    return Evaluator(NoEnv, output_path=folder, max_concurrency=100)


def write(folder: str, count: int) -> None:
    """The results of so many samples."""
    run = evaluator(folder)
    config: RunConfig = run.run_config()
    config.check(has_results=False)
    log = ResultLog(StorePaths.of(folder), fsync_interval=None)
    namer = TaskNamer()
    batch: list[EvalSample] = []
    for number, action in enumerate(tasks(count)):
        prompt = namer.name(action)
        result = StepResult(
            observation=Observation(messages=MESSAGES, metrics={"input_tokens": {"total": 100.0}}),
            reward=RewardResult(reward=float(number % 2)),
            termination_reason=TerminationReason.TASK_COMPLETE,
        )
        batch.append(
            EvalSample(
                action=action,
                step_result=result,
                id=sample_id(config.digest, prompt, 0),
                prompt_id=prompt.id,
                task_digest=prompt.digest,
            )
        )
        if len(batch) == 5000:
            log.append(batch)
            batch = []
    log.append(batch)
    log.close()


def peak_kb() -> int:
    """Peak resident memory of this process; `ru_maxrss` would be that of the parent that started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def case(name: str, folder: str, count: int) -> None:
    """One case in this process; prints seconds and peak memory."""
    logging.disable(logging.WARNING)
    before = peak_kb()
    started = time.perf_counter()
    if name == "resume":
        results = asyncio.run(evaluator(folder).run(tasks(count)))
        found = sum(map(len, results.values()))
    elif name == "resume and metrics":
        run = evaluator(folder)
        asyncio.run(run.run(tasks(count)))
        found = int(run.compute_metrics()["samples"])
    elif name == "list, compare":
        found = summarize(read_scores(folder)).samples
    elif name == "view one":
        with ResultReader(folder) as reader:
            reader.read(reader.entries[-1])
            found = len(reader.entries)
    else:
        found = verify_run(folder).samples
    seconds = time.perf_counter() - started
    assert found == count, found
    peak = peak_kb()
    figures = {"seconds": round(seconds, 1), "peak_mb": peak // 1024, "grown_mb": (peak - before) // 1024}
    print(json.dumps({"case": name, "samples": count, **figures}))


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--child", nargs=2, metavar=("CASE", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        case(*args.child, args.samples)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        write(folder, args.samples)
        for name in ("resume", "resume and metrics", "list, compare", "view one", "verify"):
            command = [sys.executable, __file__, "--child", name, folder, "--samples", str(args.samples)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            print(done.stdout, end="", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
