"""Many steps at once in one process, and long episodes: throughput and memory of the environment layer.

    python benchmarks/env_concurrency.py [--steps 500] [--turns 10] [--rounds 6] [--long 50 100 200 400]

Every model is scripted (no network, no sampling) and calls one small tool a turn, so what is measured is the Strands
SDK and the environment around it. `RSS` is resident memory after a round whose results were dropped: it must not
grow. For long episodes the cost of a turn is CPU time; with the SDK alone it grows in proportion to the history.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from typing import Any

import psutil
from strands import tool

from strands_env import Action, Environment
from strands_env.testing import ScriptedModel, call


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


class AddEnv(Environment):
    def get_tools(self) -> list[Any]:
        return [add]


def model_factory(turns: int) -> Any:
    def make() -> ScriptedModel:
        return ScriptedModel([*(call("add", a=i, b=1) for i in range(turns - 1)), "done"])

    return make


async def run_round(env: Environment, steps: int) -> int:
    results = await asyncio.gather(*(env.rollout(Action(message="go")) for _ in range(steps)))
    assert all(result.observation.final_response == "done" for result in results)
    return sum(result.observation.metrics["model_calls"] for result in results)


async def concurrent(steps: int, turns: int, rounds: int) -> None:
    env = AddEnv(model_factory=model_factory(turns))
    process = psutil.Process()
    print(f"{steps} concurrent steps of {turns} turns")
    print(f"{'round':>5} {'steps/s':>8} {'turns/s':>8} {'CPU ms/turn':>12} {'RSS MB':>8}")
    for index in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        calls = await run_round(env, steps)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        gc.collect()
        rss = process.memory_info().rss / 1e6
        print(
            f"{index:>5} {steps / wall:>8.0f} {calls / wall:>8.0f} {1e3 * cpu / calls:>12.2f} {rss:>8.0f}", flush=True
        )


async def long_episodes(lengths: list[int]) -> None:
    print("\none episode")
    print(f"{'turns':>5} {'CPU ms/turn':>12}")
    for turns in lengths:
        env = AddEnv(model_factory=model_factory(turns))
        cpu = time.process_time()
        result = await env.step(Action(message="go"))
        assert result.observation.metrics["model_calls"] == turns
        print(f"{turns:>5} {1e3 * (time.process_time() - cpu) / turns:>12.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--long", type=int, nargs="*", default=[50, 100, 200, 400])
    options = parser.parse_args()
    asyncio.run(concurrent(options.steps, options.turns, options.rounds))
    asyncio.run(long_episodes(options.long))


if __name__ == "__main__":
    main()
