"""Many rollouts at once, on one machine: what one process carries, and what more processes add.

    python -m benchmarks.many_rollouts [--crowds 200 1000 5000] [--turns 6] [--tokens 2000] [--no-ray]
    python -m benchmarks.many_rollouts --only held growth

Whole rollouts of an `Environment` with `SGLangModel` run against the scripted server of `rollouts`, which has a
process of its own. Each measurement runs in a fresh process, warmed up, with the garbage collection of our own worker
processes (`tune_garbage_collection`):

- **at once**: so many rollouts, the server answering at once: the most turns a second that the process takes.
- **paced**: the same rollouts with a server that takes its time, so that the process takes `--load` of these turns a
  second and all rollouts are under way together: memory, connections, and the added latency of a turn, which is the
  time between two answers of a rollout that the server did not hold the request.
- **held**: rollouts whose conversations are complete and all alive: an `Agent` with `SGLangModel`, one with
  strands-sglang, and rollouts of an `Environment`, each in a process of upstream's environment; kilobytes for each.
- **growth**: rollouts one after the other in one process, each with a question of its own: kilobytes of the process
  after so many of them, less those after the first number of `--growth`, when what is made once is there. Caches of
  first prompts and pieces of text grow up to their bounds.
- **spread**: rollouts over this process, worker processes and Ray actors. `parent` is the CPU time of the process that
  hands them out, for each rollout.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
from benchmarks.rollouts import (
    MOST_NEW_TOKENS,
    QUESTION,
    SYSTEM,
    Worker,
    library,
    order_of,
    resident_kb,
    result_of,
    scripted_server,
    upstream_python,
)
from benchmarks.shape import arguments, print_figures

from strands_env import Action, Environment
from strands_env.core.garbage import tune_garbage_collection
from strands_env.core.models import sglang_model_factory
from strands_env.core.rollout import LocalExecutor
from strands_sglang import SGLangClient

PARTS = ("crowds", "held", "growth", "spread")
WARM_UP = 8
"""Rollouts that run first."""
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
"""Of this machine. A measured process keeps to the first, the server, which stands for another machine, to the rest:
else they wait for each other."""


class TimedClient(SGLangClient):
    """Notes for every answer what happened since the one before of the same rollout.

    Attributes:
        added: Seconds that the server did not hold the request.
        answers: Their number.
        most_in_flight: Most requests at a time, each of which has a connection.
    """

    def __init__(self, base_url: str, **options: Any) -> None:
        super().__init__(base_url, **options)
        self._answered: dict[str | None, float] = {}
        self.added: list[float] = []
        self.answers = 0
        self._in_flight = self.most_in_flight = 0

    async def ask(self, request: Any) -> Any:
        self._in_flight += 1
        self.most_in_flight = max(self._in_flight, self.most_in_flight)
        answer = await super().ask(request)
        self._in_flight -= 1
        now, before = time.perf_counter(), self._answered.get(request.routing_key)
        if before is not None:
            self.added.append(now - before - answer.latency)
        self._answered[request.routing_key] = now
        self.answers += 1
        return answer


@functools.cache
def tokenizer_in(folder: str) -> Any:
    """The tokenizer of `rollouts`."""
    if "transformers" not in sys.modules:  # it would load torch: 300 MB and seconds
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def environment(client: Any, turns: int, folder: str, result: str) -> Environment:
    """An environment with the tool of `rollouts`."""
    params = {"max_new_tokens": MOST_NEW_TOKENS + turns}  # by which the server knows the last turn
    factory = sglang_model_factory(client=client, tokenizer=tokenizer_in(folder), sampling_params=params)
    return library(result)(model_factory=factory, system_prompt=SYSTEM, reward_fn=lambda action, result: 1.0)


def library_factory(url: str, turns: int, folder: str, result: str) -> Callable[[], Environment]:
    """The environment that worker processes and actors make."""
    env = environment(SGLangClient(url, max_connections=10_000), turns, folder, result)
    return lambda: env


def resident_mb() -> float:
    """Memory of the process."""
    return psutil.Process().memory_info().rss / 1e6


def denied_s() -> float:
    """Seconds that this thread was ready to run and another had the core: latencies mean little where they are many."""
    schedule = Path("/proc/self/schedstat")
    return int(schedule.read_text().split()[1]) / 1e9 if schedule.exists() else 0.0


async def watch(peak: dict[str, float]) -> None:
    """Keep the highest memory. What takes milliseconds, such as counting descriptors, would show in the latencies."""
    while True:
        peak["mb"] = max(peak.get("mb", 0.0), resident_mb())
        await asyncio.sleep(0.2)


async def gather(rollout: Callable[[Action], Awaitable[Any]], count: int, stagger: float = 0.0) -> list[Any]:
    """Run rollouts at once, their starts spread over some seconds."""

    async def one(number: int) -> Any:
        await asyncio.sleep(stagger * number / count)
        return await rollout(Action(message=QUESTION))

    results = list(await asyncio.gather(*(one(number) for number in range(count))))
    failed = next((result.error for result in results if result.error is not None), None)
    assert failed is None, failed
    return results


# ---- measurements, each in a process of its own ----------------------------------------------------------------------


async def crowd(order: dict[str, Any]) -> dict[str, Any]:
    """So many rollouts at once in this process."""
    count, turns, delay = order["rollouts"], order["turns"], order["delay_ms"]
    async with TimedClient(order["url"], max_connections=count + 10) as quick:
        await gather(environment(quick, turns, order["folder"], order["result"]).rollout, WARM_UP)
    client = TimedClient(f"{order['url']}/{delay}" if delay else order["url"], max_connections=count + 10)
    env = environment(client, turns, order["folder"], order["result"])
    tune_garbage_collection()
    peak, before = dict[str, float](), resident_mb()
    watching = asyncio.create_task(watch(peak))
    wall, cpu, denied = time.perf_counter(), time.process_time(), denied_s()
    results = await gather(env.rollout, count, delay / 1000)
    wall, cpu, denied = time.perf_counter() - wall, time.process_time() - cpu, denied_s() - denied
    watching.cancel()
    await client.close()
    taken = client.answers
    assert taken == count * turns, f"{taken} turns, expected {count * turns}"
    return {
        "rollouts": count,
        "turns": turns,
        "tokens": len(results[0].observation.tokens.token_ids),
        "delay_ms": delay,
        "wall_s": round(wall, 2),
        "turns_per_s": round(taken / wall, 1),
        "cpu_ms_per_turn": round(1000 * cpu / taken, 3),
        "denied_share": round(denied / wall, 3),
        "added_ms": percentiles(client.added),
        "process_mb": round(before, 1),
        "peak_mb": round(peak["mb"], 1),
        "kb_per_rollout": round(1000 * (peak["mb"] - before) / count, 1),
        "connections": client.most_in_flight,
    }


async def growth(order: dict[str, Any]) -> list[dict[str, Any]]:
    """Rollouts one after the other in this process."""
    marks: list[int] = order["marks"]
    resident: dict[int, float] = {}
    async with SGLangClient(order["url"]) as client:
        rollout = environment(client, order["turns"], order["folder"], order["result"]).rollout
        for number in range(1, marks[-1] + 1):
            result = await rollout(Action(message=f"{number}: {QUESTION}"))
            assert result.error is None, result.error
            if number in marks:
                resident[number] = round(resident_kb())
    return [{"rollouts": mark, "grown_kb": round(resident[mark] - resident[marks[0]])} for mark in marks]


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Milliseconds that half of these latencies stay below, and 99 % of them."""
    ordered = sorted(seconds)
    return {name: round(1000 * ordered[int(share * len(ordered))], 1) for name, share in (("p50", 0.5), ("p99", 0.99))}


async def spread(order: dict[str, Any]) -> dict[str, Any]:
    """The same rollouts over an executor."""
    kind, workers, count = order["kind"], order["workers"], order["rollouts"]
    arguments = {name: order[name] for name in ("url", "turns", "folder", "result")}
    executor: Any
    if kind == "local":
        executor = LocalExecutor(library_factory(**arguments))
        tune_garbage_collection()
    else:
        distributed = import_module("strands_env.eval.executors")
        make = distributed.RayExecutor if kind == "ray" else distributed.ProcessExecutor
        executor = make("benchmarks.many_rollouts:library_factory", arguments, n_workers=workers)

    def cpu_of_children() -> float:
        return sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children(recursive=True))

    try:
        await gather(executor.rollout, 4 * workers)
        wall, own, others = time.perf_counter(), time.process_time(), cpu_of_children()
        await gather(executor.rollout, count)
        wall, own = time.perf_counter() - wall, time.process_time() - own
        others = cpu_of_children() - others
    finally:
        if kind != "local":
            await executor.close()
    turns = count * order["turns"]
    return {
        "kind": kind,
        "workers": workers,
        "rollouts": count,
        "turns_per_s": round(turns / wall, 1),
        "cpu_ms_per_turn": round(1000 * (own + others) / turns, 3),
        "parent_cpu_ms_per_rollout": None if kind == "local" else round(1000 * own / count, 3),
    }


def keep_to(cores: list[int], process: psutil.Process) -> None:
    """Let a process run on these cores only, where the system can do that."""
    if hasattr(process, "cpu_affinity"):
        process.cpu_affinity(cores)


def run(measure: Callable[[dict[str, Any]], Any], order: dict[str, Any]) -> Any:
    """Measure in this process."""
    if measure is not spread:
        keep_to(CORES[:1], psutil.Process())
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return asyncio.run(measure(order))


def held(folder: str, url: str, *, quick: bool) -> dict[str, Any]:
    """Kilobytes that a rollout holds while it is alive, by its size, and the ratios to upstream's."""
    python, version = upstream_python()
    sizes: dict[str, Any] = {}
    for size, count in {"3k": 10 if quick else 200, "36k": 2 if quick else 40}.items():
        figures: dict[str, Any] = {}
        for arm in ("ours", "environment", *(("upstream",) if python else ())):
            worker = Worker(python or sys.executable, "--work", arm, folder, ours=arm != "upstream")
            order = {**order_of(size, url), "held": True}
            try:
                worker.ask({**order, "agents": WARM_UP})
                figures[arm] = round(worker.ask({**order, "agents": count}))
            finally:
                worker.close()
        if python:
            for arm in ("ours", "environment"):
                figures[f"{arm}_over_upstream"] = round(figures[arm] / figures["upstream"], 2)
        sizes[size] = figures
    return {"upstream": version, **sizes}


# ---- the run ---------------------------------------------------------------------------------------------------------


def measured(measure: Callable[[dict[str, Any]], Any], order: dict[str, Any]) -> Any:
    """Measure in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(run, measure, order).result()


def measure_all(args: argparse.Namespace, folder: str, address: str, server: psutil.Process) -> dict[str, Any]:
    """The measurements that are asked for."""
    keep_to(CORES[1:] or CORES, server)
    order = {
        "folder": folder,
        "url": address,
        "turns": args.turns,
        "delay_ms": 0,
        "result": result_of(args.tokens, args.turns),
    }
    figures: dict[str, Any] = {"load": args.load}
    if "crowds" in args.only:
        at_once = [measured(crowd, {**order, "rollouts": count}) for count in args.crowds]
        delays = [round(full["rollouts"] * full["cpu_ms_per_turn"] / args.load) for full in at_once]
        paced = [{"rollouts": full["rollouts"], "delay_ms": delay} for full, delay in zip(at_once, delays, strict=True)]
        figures |= {"at_once": at_once, "paced": [measured(crowd, {**order, **each}) for each in paced]}
    if "held" in args.only:
        figures["held"] = held(folder, address, quick=args.quick)
    if "growth" in args.only:
        figures["growth"] = measured(growth, {**order, "marks": args.growth})
    keep_to(CORES, server)  # processes that share the work need them all
    others = [(kind, number) for kind in ("processes", "ray") for number in sorted({1, args.workers})]
    if "spread" in args.only:
        figures["spread"] = [
            measured(spread, {**order, "rollouts": args.spread, "kind": kind, "workers": number})
            for kind, number in [("local", 1), *others]
            if not (args.no_ray and kind == "ray")
        ]
    return figures


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="measure these alone")
    parser.add_argument("--crowds", type=int, nargs="+", default=[200, 1000, 5000])
    parser.add_argument("--growth", type=int, nargs="+", default=[1000, 2000, 6000, 10_000])
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=2000, help="of a rollout")
    parser.add_argument("--load", type=float, default=0.45, help="of the turns a second at once, in the paced runs")
    parser.add_argument("--spread", type=int, default=200, help="rollouts over an executor")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--no-ray", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.crowds, args.growth, args.spread, args.workers, args.no_ray = [20], [2, 4], 20, 1, True
    with scripted_server() as (folder, address, server):
        figures = measure_all(args, folder, address, psutil.Process(server.process.pid))
    print_figures("many_rollouts", **figures)


if __name__ == "__main__":
    main()
