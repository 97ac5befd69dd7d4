"""What the evaluator itself costs, beside the rollouts it runs.

    python benchmarks/evaluator.py                          # 20,000 samples at concurrency 1,000
    python benchmarks/evaluator.py --index 1000000          # resume with a million finished samples

The environment answers at once with a message of 2 kB and tokens, so all time is the evaluator's: scheduling, identity,
serialising, writing, syncing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
import tempfile
import time

from strands_env.core import Action, Observation, RewardResult, StepResult, TaskContext, TerminationReason
from strands_env.core import TokenObservation as Tokens
from strands_env.eval import EvalSample, Evaluator
from strands_env.eval.store import ResultLog, StorePaths

TEXT = "x" * 1900


def result(tokens: int) -> StepResult:
    """A step's result of about 2 kB, with so many tokens."""
    observation = Observation(
        messages=[{"role": "user", "content": [{"text": "q"}]}, {"role": "assistant", "content": [{"text": TEXT}]}],
        metrics={"input_tokens": {"total": 100.0}, "output_tokens": {"total": 400.0}},
    )
    if tokens:
        half = tokens // 2
        observation.tokens = Tokens(
            token_ids=range(tokens), prompt_length=half, loss_mask=[0] * half + [1] * (tokens - half)
        )
    return StepResult(
        observation=observation,
        reward=RewardResult(reward=1.0),
        termination_reason=TerminationReason.TASK_COMPLETE,
    )


class InstantEnv:
    """Answers after one turn of the event loop."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    async def reset(self) -> None: ...

    async def step(self, action: Action) -> StepResult:
        await asyncio.sleep(0)
        return result(self._tokens)

    async def cleanup(self) -> None: ...


def actions(count: int) -> list[Action]:
    """Tasks."""
    return [Action(message=f"question {i}", task_context=TaskContext(id=f"t{i}")) for i in range(count)]


async def measure(samples: int, concurrency: int, tokens: int, output: str | None) -> float:
    """Milliseconds a sample, without what the environment itself takes."""
    started = time.perf_counter()
    for _ in range(samples):
        result(tokens)
    environment = time.perf_counter() - started
    evaluator = Evaluator(
        lambda: InstantEnv(tokens), max_concurrency=concurrency, keep_tokens=bool(tokens), output_path=output
    )
    tasks = actions(samples)
    started = time.perf_counter()
    await evaluator.run(tasks)
    return (time.perf_counter() - started - environment) / samples * 1e3


def measure_index(samples: int) -> None:
    """Write so many samples, then open the file again."""
    base = EvalSample(action=actions(1)[0], step_result=result(0), prompt_id="p", task_digest="0" * 32)
    with tempfile.TemporaryDirectory() as name:
        paths = StorePaths.of(name)
        log = ResultLog(paths, fsync_interval=None)
        marks = []
        for start in range(0, samples, 10_000):
            batch = [
                base.model_copy(update={"id": f"{i:032x}", "prompt_id": f"p{i // 8}", "index": i % 8})
                for i in range(start, min(samples, start + 10_000))
            ]
            started = time.perf_counter()
            log.append(batch)
            marks.append((time.perf_counter() - started) / len(batch) * 1e6)
        log.close()
        tenth = max(1, len(marks) // 10)
        print(
            f"append      {sum(marks[:tenth]) / tenth:8.1f} us a sample in the first tenth, "
            f"{sum(marks[-tenth:]) / tenth:.1f} us in the last"
        )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        log = ResultLog(paths)
        seconds = time.perf_counter() - started
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        started = time.perf_counter()
        found = sum(log.is_final(f"{i:032x}") for i in range(samples))
        look = (time.perf_counter() - started) / samples * 1e6
        log.close()
        print(
            f"open        {seconds:8.1f} s for {found:,} samples, {os.path.getsize(paths.results) / 1e9:.2f} GB, "
            f"peak memory grown by {grown / 1024:.0f} MiB; look-up {look:.2f} us"
        )


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--index", type=int, metavar="N", help="measure the store with N samples instead")
    args = parser.parse_args()
    if args.index:
        measure_index(args.index)
        return 0
    print(f"{args.samples:,} samples at concurrency {args.concurrency:,}, milliseconds a sample")
    print(f"in memory            {asyncio.run(measure(args.samples, args.concurrency, 0, None)):.3f}")
    with tempfile.TemporaryDirectory() as name:
        print(f"saved                {asyncio.run(measure(args.samples, args.concurrency, 0, f'{name}/a')):.3f}")
        with_tokens = asyncio.run(measure(args.samples, args.concurrency, args.tokens, f"{name}/b"))
        print(f"saved, {args.tokens} tokens    {with_tokens:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
