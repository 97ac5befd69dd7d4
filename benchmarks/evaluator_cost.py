"""CPU of the evaluator for each sample, beside that of strands-env in the same environment; CPU of commands.

    python -m benchmarks.evaluator_cost [--passes 5] [--samples 3000] [--commands]

Instant samples at concurrency 500, saved, and a resume of all of them. Environments answer at once with equal messages
of 2 kB, so all time is the evaluator's. Ours also keeps a deadline for every cleanup, reads each line back, syncs to
the device and gives each sample a seed; strands-env does not. Each run has a fresh process, and the order changes from
pass to pass. Figures are CPU milliseconds a sample, medians of the passes; ratios are medians of those within a pass.

Then the milliseconds from the end of our sample until it is synced, the 99th percentile and the longest: in such a run,
and with samples of 0.2 s, 4 at a time. Medians of the passes, too.

`--commands`: CPU seconds of whole commands instead, imports included, each the least of the passes: an evaluation of 80
samples on the embedded model (one pass), then commands that read it, and commands that end with a mistake.
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
LATENCY: dict[str, dict[str, Any]] = {
    "instant": {"count": 2000, "concurrency": CONCURRENCY, "seconds": 0.0},
    "slow": {"count": 20, "concurrency": 4, "seconds": 0.2},
}
MESSAGES = [
    {"role": "user", "content": [{"text": "q"}]},
    {"role": "assistant", "content": [{"text": "x" * 1900}]},
]


EVALUATION = ("eval", "arithmetic", "-n", "4", "--temperature", "1", "--seed", "1", "--quiet")
COMMANDS = {
    "help": (("--help",), (0,)),
    "report": (("report", "RUN"), (0,)),
    "health": (("health", "RUN"), (0, 1)),
    "check": (("check", "arithmetic"), (0,)),
    "wrong name": (("eval", "arithmatic"), (2,)),
    "wrong file": (("eval", "RUN/missing.yaml"), (2,)),
}
"""Commands, and the exit statuses that they may have: 1 of `health` is a finding."""


def ours(count: int, folder: str, concurrency: int = CONCURRENCY, seconds: float = 0, ended: Any = None) -> Any:
    """Our evaluator and its tasks; `ended` gets the time at which each sample was ready."""
    from strands_env.core import Action, Observation, RewardResult, StepResult, TaskContext, TerminationReason
    from strands_env.eval import Evaluator

    class InstantEnv:
        async def reset(self) -> None: ...

        async def step(self, action: Action) -> StepResult:
            await asyncio.sleep(seconds)
            result = StepResult(
                observation=Observation(messages=json.loads(json.dumps(MESSAGES))),
                reward=RewardResult(reward=1.0),
                termination_reason=TerminationReason.TASK_COMPLETE,
            )
            if ended is not None:
                ended[action.task_context.id] = time.perf_counter()
            return result

        async def cleanup(self) -> None: ...

    tasks = [Action(message=f"question {i}", task_context=TaskContext(id=f"t{i}")) for i in range(count)]
    return Evaluator(InstantEnv, max_concurrency=concurrency, output_path=folder), tasks


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


def latency(count: int, folder: str, concurrency: int, seconds: float) -> None:
    """One run of ours in this process; prints the milliseconds from the end of each sample until it is synced."""
    from strands_env.eval.store import ResultLog

    ended: dict[str, float] = {}
    waits: list[float] = []
    write = ResultLog.write

    def watched(log: Any, lines: Any) -> None:
        write(log, lines)
        now = time.perf_counter()
        waits.extend((now - ended[f"{line.entry.prompt_id}_{line.entry.index}"]) * 1000 for line in lines)

    ResultLog.write = watched  # type: ignore[method-assign]
    evaluator, tasks = ours(count, folder, concurrency, seconds, ended)
    asyncio.run(evaluator.run(tasks))
    assert len(waits) == count
    waits.sort()
    print(json.dumps({"p99": waits[len(waits) * 99 // 100], "longest": waits[-1]}))


def work(arm: str, count: int, folder: str) -> None:
    """One run in this process; prints its CPU milliseconds a sample."""
    logging.disable(logging.WARNING)
    evaluator, tasks = {"ours": ours, "upstream": upstream}[arm](count, folder)
    started = time.process_time()
    results = asyncio.run(evaluator.run(tasks))
    spent = time.process_time() - started
    assert sum(map(len, results.values())) == count
    print(json.dumps(spent / count * 1000))


def run(python: str, arm: str, *options: str) -> list[Any]:
    """What a run and its resume print, each in a process of its own."""
    path = os.pathsep.join([*([] if arm == "upstream" else [str(ROOT / "src")]), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore::RuntimeWarning"}
    with tempfile.TemporaryDirectory() as folder:
        command = [python, __file__, "--work", arm, folder, *options]
        return [
            json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)
            for _ in range(1 if arm in LATENCY else 2)
        ]


def cpu_seconds(*command: str, expected: tuple[int, ...] = (0,)) -> float:
    """User and system time of a command of `strands-env` in a process of its own, with one of these exit statuses."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        [sys.executable, "-m", "strands_env", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    _, status, used = os.wait4(process.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in expected:
        raise SystemExit(f"strands-env {' '.join(command)} ended with {code}, expected one of {expected}")
    return used.ru_utime + used.ru_stime


def commands(passes: int, limit: int) -> None:
    """Measure commands."""
    with tempfile.TemporaryDirectory() as folder:
        cost = {"evaluation": cpu_seconds(*EVALUATION, "--limit", str(limit), "-o", folder)}
        for _ in range(passes):
            for name, (words, expected) in COMMANDS.items():
                spent = cpu_seconds(*(word.replace("RUN", folder) for word in words), expected=expected)
                cost[name] = min(cost.get(name, spent), spent)
    print_figures("commands", passes=passes, cpu_s={name: round(spent, 2) for name, spent in cost.items()})


def main() -> None:
    """Measure."""
    parser = arguments(__doc__, passes=5)
    parser.add_argument("--commands", action="store_true", help="of whole commands instead")
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        arm, folder = args.work
        if arm in LATENCY:
            latency(folder=folder, **LATENCY[arm])
        else:
            work(arm, args.samples, folder)
        return
    if args.commands:
        commands(passes=1 if args.quick else args.passes, limit=2 if args.quick else 20)
        return
    python, reason = environment_of(f"strands-env=={UPSTREAM}", "orjson", "prometheus-client")
    if python is None:
        raise SystemExit(reason)
    passes, waits = [], []
    for number in range(1 if args.quick else args.passes):
        arms = ("ours", "upstream") if number % 2 else ("upstream", "ours")
        costs = {arm: run(python, arm, "--samples", str(args.samples)) for arm in arms}
        passes.append({arm: dict(zip(("run", "resume"), cost, strict=True)) for arm, cost in costs.items()})
        waits.append({arm: run(python, arm)[0] for arm in LATENCY})
    figures: dict[str, Any] = {arm: medians([each[arm] for each in passes], 3) for arm in ("ours", "upstream")}
    ratios = {
        case: median(each["ours"][case] / each["upstream"][case] for each in passes) for case in ("run", "resume")
    }
    until_synced_ms = {arm: medians([each[arm] for each in waits], 1) for arm in LATENCY}
    print_figures(
        "evaluator_cost",
        passes=len(passes),
        samples=args.samples,
        cost=figures,
        ours_over_upstream=ratios,
        until_synced_ms=until_synced_ms,
    )


if __name__ == "__main__":
    sys.exit(main())
