"""Evaluations that are killed and resumed: does each end with the results of a run that nobody killed?

    python -m benchmarks.evaluator [--passes 20] [--executor inline processes ray]

A pass is an evaluation of 120 samples, killed with signal 9 at three random moments and resumed. Every sample, tokens
included, must equal that of a run nobody killed, and be written once; else the exit status is 1.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

from benchmarks.shape import arguments, print_figures
from tests.unit.strands_env.eval.test_eval_kill import contents, evaluate, resumed, run_and_kill


def kills(executor: str, passes: int, seed: int, expected: object) -> bool:
    """Kill, resume and compare, many times; True if every run equals that of one nobody killed."""
    rng, in_time, equal = random.Random(seed), 0, 0
    for _ in range(passes):
        with tempfile.TemporaryDirectory() as folder:
            in_time += sum(run_and_kill(Path(folder), executor, rng) for _ in range(3))
            equal += resumed(Path(folder), executor) == expected
    print_figures("evaluator", executor=executor, runs=passes, kills=in_time, equal_to_one_run=equal)
    return equal == passes


def main() -> None:
    """Measure."""
    parser = arguments(__doc__, passes=20)
    parser.add_argument("--executor", nargs="+", choices=["inline", "processes", "ray"], default=["inline"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(evaluate(folder, "inline"))
        expected = contents(Path(folder))
    passes = 1 if args.quick else args.passes
    if not all([kills(executor, passes, args.seed, expected) for executor in args.executor]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
