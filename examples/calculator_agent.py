"""A Strands agent with a calculator on a real language model, and the exact tokens of its run.

    python examples/calculator_agent.py                            # SmolLM2-135M in this process, on CPU
    python examples/calculator_agent.py --base-url http://localhost:30000 --tokenizer Qwen/Qwen3-8B

For each question: the answer, the tool calls, the segments of the token trajectory, its ids, loss mask and
log-probabilities in short, and how many sampled tokens would have been other ones had the text been tokenised again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator

from strands import Agent

from strands_env.eval.drift import find_drift
from strands_env.tools.calculator import calculator
from strands_sglang import SGLangClient, SGLangModel, get_tokenizer, get_tool_parser

OPERATIONS = ("+", "-", "*")


def make_questions(count: int, seed: int) -> list[tuple[str, int]]:
    """Two-operand arithmetic questions and their answers."""
    rng = random.Random(seed)
    questions = []
    for _ in range(count):
        a, b, operation = rng.randint(11, 999), rng.randint(11, 99), rng.choice(OPERATIONS)
        questions.append((f"What is {a} {operation} {b}?", {"+": a + b, "-": a - b, "*": a * b}[operation]))
    return questions


@contextlib.asynccontextmanager
async def open_model(args: argparse.Namespace) -> AsyncIterator[tuple[SGLangModel, list, str | None]]:
    """The model, the messages that come before a question, and the system prompt."""
    sampling = {"temperature": args.temperature, "max_new_tokens": args.max_new_tokens}
    if args.base_url is not None:
        async with SGLangClient(args.base_url) as client:
            model = SGLangModel(client=client, tokenizer=get_tokenizer(args.tokenizer), sampling_params=sampling)
            yield model, [], "Use the calculator for every computation."
        return
    from strands_sglang.backends.engine import EmbeddedEngine
    from strands_sglang.backends.engine.smollm2 import SYSTEM_PROMPT, few_shot_messages

    print("loading SmolLM2-135M-Instruct (the first time it is fetched and converted) ...", flush=True)
    async with EmbeddedEngine(args.model, seed=args.seed) as engine:
        model = SGLangModel(
            client=engine, tokenizer=engine.tokenizer, tool_parser=get_tool_parser("hermes"), sampling_params=sampling
        )
        yield model, few_shot_messages(), SYSTEM_PROMPT


def show(model: SGLangModel, question: str, expected: int, answer: str, messages: list) -> bool:
    """Print one rollout; whether the answer is right."""
    calls = [block["toolUse"] for m in messages for block in m["content"] if "toolUse" in block]
    results = [block["toolResult"] for m in messages for block in m["content"] if "toolResult" in block]
    correct = str(expected) in answer.replace(",", "")
    print(f"\n{question}")
    print(f"  answer      {answer!r} ({'right' if correct else f'wrong, expected {expected}'})")
    for call, result in zip(calls, results, strict=False):
        print(f"  tool call   {call['name']}({call['input']}) -> {result['content'][0].get('text')!r}")
    tokens = model.token_manager
    ids, mask, logprobs = tokens.token_ids, tokens.loss_mask, tokens.logprobs
    print("  segment   tokens  ids                              mask  logprobs")
    start = 0
    for is_output, length in tokens.segment_info:
        piece = slice(start, start + length)
        shown = ["-" if lp is None else f"{lp:.3f}" for lp in logprobs[piece][:4]]
        dots = " ..." if length > 4 else ""
        kind = "response" if is_output else "prompt"
        ids_shown = " ".join(map(str, ids[piece][:4])) + dots
        print(f"  {kind:8}  {length:6}  {ids_shown:31}  {mask[start]:4}  {' '.join(shown)}{dots}")
        start += length
    spans = find_drift(ids, model.tokenizer)
    changed = sum(mask[i] for span in spans for i in range(span.start, span.end))
    kinds = ", ".join(sorted({span.kind.value for span in spans})) or "none"
    print(f"  {sum(mask)} of {len(ids)} tokens are trained")
    print(f"  tokenising the text again would change {changed} of them ({kinds})")
    return correct


async def main() -> int:
    """Ask the questions; exit status 1 when no answer was right."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base-url", help="an SGLang server instead of the embedded model")
    parser.add_argument("--tokenizer", help="tokenizer of that server: a hub id or a folder")
    parser.add_argument("--model", default="smollm2", help="embedded model: smollm2, a hub id or a folder")
    parser.add_argument("--questions", type=int, default=4, help="number of questions")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="per model call")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if (args.base_url is None) != (args.tokenizer is None):
        parser.error("--base-url and --tokenizer go together")
    right = 0
    async with open_model(args) as (model, history, system_prompt):
        questions = make_questions(args.questions, args.seed)
        for question, expected in questions:
            model.reset()
            agent = Agent(
                model=model,
                tools=[calculator],
                system_prompt=system_prompt,
                messages=list(history),
                callback_handler=None,
                context_manager=False,
                retry_strategy=None,
            )
            result = await agent.invoke_async(question, limits={"turns": 6})
            right += show(model, question, expected, str(result).strip(), agent.messages[len(history) :])
    print(f"\n{right} of {len(questions)} answers right")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
