"""Cost of a sandbox: start, calls, memory, and many at once.

    python benchmarks/sandbox.py [--sandboxes 32]

Prints one JSON object; times in milliseconds, memory in MiB of proportional set size (shared pages counted once).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable

import psutil

from strands_env.sandbox import BubblewrapSandbox, SandboxSlots


async def milliseconds(work: Callable[[], Awaitable[object]], times: int) -> float:
    """Median duration."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - started) * 1000)
    return round(statistics.median(taken), 2)


def children_mib() -> float:
    """Memory of all processes below this one."""
    total = 0
    for child in psutil.Process().children(recursive=True):
        with open(f"/proc/{child.pid}/smaps_rollup") as file:
            total += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total / 1024


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sandboxes", type=int, default=32, help="sandboxes at the same time")
    count = parser.parse_args().sandboxes
    figures: dict[str, float] = {"cpus": os.cpu_count() or 0}

    async def start_and_close() -> None:
        async with BubblewrapSandbox():
            pass

    figures["start_and_close_ms"] = await milliseconds(start_and_close, 10)
    async with BubblewrapSandbox() as sandbox:
        figures["first_python_call_ms"] = await milliseconds(lambda: sandbox.run_python("x = 1"), 1)
        figures["python_call_ms"] = await milliseconds(lambda: sandbox.run_python("x + 1"), 50)
        figures["shell_call_ms"] = await milliseconds(lambda: sandbox.exec("true"), 50)

    slots = SandboxSlots(count)
    sandboxes = [BubblewrapSandbox(slots=slots) for _ in range(count)]
    started = time.perf_counter()
    await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
    figures["start_all_ms_each"] = round((time.perf_counter() - started) * 1000 / count, 2)
    figures["idle_mib_each"] = round(children_mib() / count, 1)
    started = time.perf_counter()
    await asyncio.gather(*(sandbox.run_python("1 + 1") for sandbox in sandboxes))
    figures["first_python_calls_ms_each"] = round((time.perf_counter() - started) * 1000 / count, 2)
    figures["with_interpreter_mib_each"] = round(children_mib() / count, 1)
    started = time.perf_counter()
    await asyncio.gather(*(sandbox.run_python("1 + 1") for sandbox in sandboxes for _ in range(10)))
    figures["python_calls_per_second"] = round(10 * count / (time.perf_counter() - started), 1)
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
    figures["processes_left"] = len(psutil.Process().children(recursive=True))
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
