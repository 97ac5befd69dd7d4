"""A mathematics environment of a few lines, on any backend.

    python examples/math_env.py --backend local                                                   # no server, on CPU
    python examples/math_env.py --backend sglang --sglang-base-url http://localhost:30000
    python examples/math_env.py --backend openai --model-id NAME                                  # no token data

Prints each problem with the agent's answer, the reward, why the episode ended, and the tokens there are to train on.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from strands_env.core import Action, Environment, ModelFactory, StepResult, TaskContext
from strands_env.core.backends import BACKENDS, model_factory_from_args
from strands_env.rewards import NumberReward
from strands_env.tools import calculator
from strands_sglang.exceptions import StrandsSGLangError

PROBLEMS = [("2^10", "1024"), ("321 + 54", "375"), ("25 * 17", "425"), ("812 - 97", "715")]


class MathEnv(Environment):
    """The whole environment: everything not set here has a default."""

    def get_tools(self) -> list:
        return [calculator]


def make_factory(args: argparse.Namespace) -> tuple[ModelFactory, str, list]:
    """The model factory, the system prompt, and the messages that come before a problem."""
    sampling = {"temperature": args.temperature, "max_new_tokens": args.max_new_tokens}
    factory = model_factory_from_args(
        args.backend,
        sglang_base_url=args.sglang_base_url,
        model_id=args.model_id,
        tokenizer=args.tokenizer,
        sampling_params=sampling,
    )
    if args.backend == "local" and args.model_id is None:  # a model of 135M parameters needs to be shown how
        from strands_sglang.backends.engine.smollm2 import SYSTEM_PROMPT, few_shot_messages

        return factory, SYSTEM_PROMPT, few_shot_messages()
    return factory, "Use the calculator for every computation, then state the final answer as a number.", []


async def main() -> int:
    """Run the problems at once; exit status 1 when no episode came to its end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", choices=BACKENDS, default="local")
    parser.add_argument("--sglang-base-url", "--base-url", help="server of the backends sglang and openai")
    parser.add_argument("--model-id", help="model: a name for local, needed for openai and bedrock")
    parser.add_argument("--tokenizer", help="tokenizer of the SGLang server, if it does not name one itself")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-new-tokens", type=int, default=None, help="per model call")
    args = parser.parse_args()
    args.max_new_tokens = args.max_new_tokens or (64 if args.backend == "local" else 1024)
    try:
        factory, system_prompt, history = make_factory(args)
    except (ValueError, ImportError, StrandsSGLangError) as error:
        parser.error(str(error))
    env = MathEnv(model_factory=factory, system_prompt=system_prompt, reward_fn=NumberReward(), max_tool_iters=5)

    async def episode(problem: str, answer: str) -> StepResult:
        context = TaskContext(id=problem, ground_truth=answer, conversation_history=history)
        return await env.rollout(Action(message=f"What is {problem}?", task_context=context))

    results = await asyncio.gather(*(episode(*problem) for problem in PROBLEMS))
    for (problem, answer), result in zip(PROBLEMS, results, strict=True):
        observation = result.observation
        print(f"\nWhat is {problem}? (expected {answer})")
        print(f"  answer       {observation.final_response!r}")
        print(f"  tool calls   {observation.metrics.get('tool_calls', 0)}")
        print(f"  reward       {None if result.reward is None else result.reward.reward}")
        print(f"  termination  {result.termination_reason}{f': {result.error.message}' if result.error else ''}")
        if observation.tokens is not None:
            tokens = observation.tokens
            print(f"  tokens       {len(tokens)}, {sum(tokens.loss_mask)} of them trained, ids kept as sampled")
    engine = getattr(factory, "engine", None)
    if engine is not None:
        await engine.close()
    return 0 if any(not result.termination_reason.is_failure for result in results) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
