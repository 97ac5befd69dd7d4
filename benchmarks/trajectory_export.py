"""What it costs to turn an episode's tokens into a step's observation and into training samples.

Run: `python benchmarks/trajectory_export.py [--tokens 100000] [--turns 100]`. Prints milliseconds, the best of several
runs, for one linear trajectory: observation and trajectories as `Environment.step` makes them, then the samples.
"""

from __future__ import annotations

import argparse
import json
import time
from array import array
from collections.abc import Callable
from typing import Any

from strands_env.core.scope import TrackedModel
from strands_env.core.types import Observation, StepResult
from strands_env.training import samples_from_step
from strands_sglang.trajectory import Completion, Finish, FinishType, ReplyPrint, TokenManager, TrajectoryForest


class Model:
    """As much of a model as the export needs."""

    def __init__(self, tokens: int, turns: int) -> None:
        self.forest = TrajectoryForest()
        self.token_manager = TokenManager(self.forest)
        messages: list[Any] = []
        for turn in range(turns):
            messages.append({"role": "user", "content": [{"text": f"question {turn}"}]})
            half = tokens // turns // 2
            done = Completion(
                output_ids=array("i", range(half)),
                output_logprobs=array("d", [-0.5] * half),
                finish=Finish(type=FinishType.STOP),
            )
            reply = ReplyPrint.of(text=f"answer {turn}")
            location = self.forest.locate(b"", messages)
            self.forest.commit(location, prompt_ids=array("i", range(half)), completion=done, reply=reply)
            messages.append({"role": "assistant", "content": [{"text": f"answer {turn}"}]})

    @property
    def trajectories(self) -> Any:
        return self.forest.trajectories()


def milliseconds(work: Callable[[], Any], runs: int = 7) -> float:
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return 1000 * best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=100)
    options = parser.parse_args()
    tracked: Any = TrackedModel(
        model=Model(options.tokens, options.turns),  # type: ignore[arg-type]
        agent_name="agent",
        trainable=True,
        is_main=True,
    )

    def observe() -> StepResult:
        trajectories = tracked.trajectories()
        observation = Observation(tokens=tracked.observed(trajectories))
        return StepResult(observation=observation, trajectories=trajectories)

    result = observe()
    assert len(samples_from_step(result)) == 1
    print(f"{options.tokens} tokens in {options.turns} turns")
    figures = {
        "observation_ms": round(milliseconds(observe), 3),
        "samples_ms": round(milliseconds(lambda: samples_from_step(result)), 3),
    }
    print(f"observation and trajectories {figures['observation_ms']:8.2f} ms")
    print(f"training samples             {figures['samples_ms']:8.2f} ms")
    print(json.dumps({"benchmark": "trajectory_export", **vars(options), **figures}))


if __name__ == "__main__":
    main()
