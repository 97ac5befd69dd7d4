"""Does it learn? Trains the embedded model once a seed, and evaluates it on other questions before and after.

python learn.py --seeds 0 1 2      # the same command goes on after a kill
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from strands_env.commands.cli import main
from strands_env.eval import read_scores, summarize
from strands_env.training import read_training


def held_out_reward(output: Path, *model: str) -> float:
    """Mean reward on the held-out questions."""
    main(["eval", "run.yaml", "--data", "held_out.jsonl", "--seed", "0", *model, "-o", str(output), "-q", "--resume"])
    return float(summarize(read_scores(output)).mean_reward.value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    seeds = parser.parse_args().seeds
    os.chdir(Path(__file__).parent)
    before, lines = held_out_reward(Path("runs/before")), []
    for seed in seeds:
        folder = Path("runs") / f"train-{seed}"
        resume = ["--resume"] if folder.exists() else []
        if status := main(["train", "run.yaml", "--seed", str(seed), "-o", str(folder), *resume]):
            raise SystemExit(status)
        rewards = " ".join(f"{step['reward']:.2f}" for step in read_training(folder))
        after = held_out_reward(Path("runs") / f"after-{seed}", "--model", str(folder / "model"))
        lines.append(f"| {seed} | {rewards} | {before:.2f} | {after:.2f} |")
    print("| seed | reward by step | held out, before | after |\n|---|---|---|---|", *lines, sep="\n")
    print(f"{time.process_time() / 60:.1f} minutes of one core")
