"""kill -9 an evaluation at random moments, resume it, and compare with the uninterrupted run, many times.

    python -m benchmarks.kill_resume --rounds 50 --executor inline|processes|ray

A round runs an evaluation of 120 samples, kills it with signal 9 when its results have grown by a random number of
bytes, three times over, lets it finish, and compares every sample, tokens included, with those of a run nobody killed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.unit import killed_run
from tests.unit.test_eval_kill import contents, run_and_kill, size, start


def one_round(kind: str, rng: random.Random, expected: dict[str, object]) -> tuple[int, int]:
    """Kill, resume and compare once; number of kills that came in time, and samples saved before the last start."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kills = sum(run_and_kill(folder, kind, rng) for _ in range(3))
        kept = len(contents(folder)) if size(folder) else 0
        process = start(folder, kind)
        _, errors = process.communicate(timeout=300)
        if process.returncode != 0:
            raise SystemExit(f"the resumed run failed:\n{errors}")
        found = contents(folder)
        if found != expected:
            missing, other = set(expected) - set(found), [i for i in found if found[i] != expected.get(i)]
            shown = "".join(f"\n{found[i]!r}\n{expected.get(i)!r}" for i in other[:1])
            raise SystemExit(f"results differ: {len(missing)} samples missing, {len(other)} others{shown}")
        if (folder / "results.jsonl").read_bytes().count(b"\n") != len(expected):
            raise SystemExit("a sample was written twice")
        return kills, kept


def main() -> int:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--executor", choices=["inline", "processes", "ray"], default="inline")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(killed_run.evaluate(name, "inline"))
        expected = contents(Path(name))
    rng = random.Random(args.seed)
    started, kills = time.monotonic(), 0
    for number in range(1, args.rounds + 1):
        killed, kept = one_round(args.executor, rng, expected)
        kills += killed
        print(
            f"round {number}: {killed} kills, {kept} of {len(expected)} samples were saved, results equal", flush=True
        )
    print(
        f"{args.rounds} rounds, {kills} kills, executor {args.executor}: all results equal the uninterrupted run's "
        f"({time.monotonic() - started:.0f} s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
