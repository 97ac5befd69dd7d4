"""mini-swe-agent as an environment: small tasks in a sandbox, the model calls exact, by the gateway.

    python -m venv agents && agents/bin/pip install mini-swe-agent mcp
    python examples/gateway_mini_swe.py --mini agents/bin/mini                                # embedded model, on CPU
    python examples/gateway_mini_swe.py --mini agents/bin/mini --backend sglang --sglang-base-url http://localhost:30000

Each task is a folder and a request; a shell command tells whether it was met. The embedded model of 135 million
parameters is not expected to meet any; it shows that the rest works: tokens, counters, limits, the reward. The sandbox
needs bubblewrap (extra `sandbox`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strands_env.core import Action, StepResult, TaskContext
from strands_env.core.backends import BACKENDS, model_factory_from_args
from strands_env.environments.harness import HarnessEnvironment, mini_swe_agent
from strands_env.eval import EvalError, Evaluator
from strands_env.sandbox import SandboxUnavailableError
from strands_sglang.exceptions import StrandsSGLangError

TASKS = [
    ("Create a file named hello.txt with the single word hello in it.", "true", "grep -qx hello hello.txt"),
    ("Rename the file a.txt to b.txt.", "echo one > a.txt", "test -f b.txt && test ! -e a.txt"),
    (
        "The function in add.py returns a wrong result. Fix it.",
        "printf 'def add(a, b):\\n    return a - b\\n' > add.py",
        "python3 -c 'from add import add; assert add(2, 3) == 5'",
    ),
]


class SmallTask(HarnessEnvironment):
    """A folder with a task's files, and a check of their final state."""

    def __init__(self, **options: Any) -> None:
        super().__init__(reward_fn=self.check, **options)

    async def prepare(self, action: Action) -> None:
        """Write the task's files."""
        await self.sandbox.exec(action.task_context.setup)

    async def check(self, action: Action, result: StepResult) -> float:
        """1 where the task's check passes."""
        done = await self.sandbox.exec(action.task_context.ground_truth)
        return float(done.exit_code == 0)


class SmallTasks(Evaluator):
    """The tasks above."""

    benchmark_name = "small-tasks"

    def load_dataset(self) -> Iterator[Action]:
        """The tasks."""
        for number, (request, setup, check) in enumerate(TASKS):
            yield Action(
                message=request, task_context=TaskContext(id=f"task_{number}", ground_truth=check, setup=setup)
            )


async def main() -> int:
    """Evaluate; exit status 1 when nothing could be scored."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mini", required=True, type=Path, help="the program mini, installed in its own environment")
    parser.add_argument(
        "--backend", choices=[name for name in BACKENDS if name in ("local", "sglang")], default="local"
    )
    parser.add_argument("--sglang-base-url", help="server of the backend sglang")
    parser.add_argument("--model-id", help="name of the embedded model")
    parser.add_argument("--max-requests", type=int, default=4, help="model calls an episode (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/small-tasks"), help="folder of the run (%(default)s)")
    args = parser.parse_args()
    mini = args.mini.absolute()
    factory = model_factory_from_args(
        args.backend,
        sglang_base_url=args.sglang_base_url,
        model_id=args.model_id,
        sampling_params={"temperature": 0.7, "max_new_tokens": 96 if args.backend == "local" else 2048},
    )

    def make() -> SmallTask:
        return SmallTask(
            model_factory=factory,
            harness=mini_swe_agent(str(mini), step_limit=args.max_requests),
            python=str(mini.with_name("python")),
            read_only=[str(mini.parents[1])],
            max_requests=args.max_requests,
        )

    try:
        evaluator = SmallTasks(make, max_concurrency=2, keep_tokens=True, output_path=args.output / "results.jsonl")
        results = await evaluator.run()
    except (EvalError, SandboxUnavailableError, StrandsSGLangError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        if args.backend == "local":
            await factory.engine.close()
    scored = 0
    for samples in results.values():
        for sample in samples:
            result = sample.step_result
            counts = result.observation.metrics.get("gateway", {})
            tokens = sum(sum(trajectory.tokens.loss_mask) for trajectory in result.trajectories)
            scored += result.reward is not None
            print(
                f"{sample.action.task_context.id}: {result.termination_reason.value}, "
                f"reward {result.reward.reward if result.reward else None}, {counts.get('sampled', 0)} calls, "
                f"extension rate {counts.get('extension_rate')}, {tokens} sampled tokens"
            )
    return 0 if scored else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
