"""Measures the share of completions that do not survive decoding and encoding, on the embedded model.

    python examples/retokenization_drift.py                          # 64 completions of SmolLM2-135M at temperature 1
    python examples/retokenization_drift.py --model tiny --samples 500

A trainer that works on text instead of the sampled ids computes gradients of tokens nobody sampled. The table says for
how many completions that is so, and why.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter

from strands_env.eval.drift import DriftKind, find_drift
from strands_sglang.backends import GenerateRequest, token_array
from strands_sglang.backends.engine import EmbeddedEngine

QUESTIONS = (
    "Write a short poem about the sea in French, with emoji.",
    "Show a Python function that reverses a list, and its output.",
    'Answer with JSON: {"city": ..., "population": ...} for Zürich.',
    "Explain in two sentences why the sky is blue.",
    "List five Japanese words with their meaning.",
    "Write a Markdown table of three planets and their masses.",
    "Translate 'good morning, my friend' into four languages.",
    "What is 17 * 23? Think step by step.",
)


async def sample(engine: EmbeddedEngine, args: argparse.Namespace) -> list[list[int]]:
    """Completions as token ids, without their stop tokens."""

    async def one(number: int) -> list[int]:
        message = {"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}
        prompt = engine.tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        params = {
            "temperature": args.temperature,
            "max_new_tokens": args.max_new_tokens,
            "sampling_seed": args.seed * 1_000_003 + number,
        }
        ids = token_array(engine.tokenizer.encode(prompt, add_special_tokens=False))
        answer = await engine.ask(GenerateRequest(prompt=ids, sampling_params=params))
        sampled = answer.output_ids.tolist()
        return sampled if answer.finish.stop_token_id is None else sampled[:-1]

    return await asyncio.gather(*(one(number) for number in range(args.samples)))


def report(completions: list[list[int]], engine: EmbeddedEngine) -> None:
    """Print how many completions and tokens drift, by kind."""
    spans: Counter[DriftKind] = Counter()
    tokens: Counter[DriftKind] = Counter()
    affected: Counter[DriftKind] = Counter()
    examples: dict[DriftKind, str] = {}
    drifted = 0
    for ids in completions:
        found = find_drift(ids, engine.tokenizer)
        drifted += bool(found)
        affected.update({span.kind for span in found})
        for span in found:
            spans[span.kind] += 1
            tokens[span.kind] += span.end - span.start
            pieces = [engine.tokenizer.decode([token]) for token in ids[span.start : span.end]]
            again = [engine.tokenizer.decode([token]) for token in span.retokenized_ids]
            examples.setdefault(span.kind, f"{pieces[:4]} -> {again[:4]}")
    total = sum(map(len, completions))
    print(
        f"{drifted} of {len(completions)} completions drift ({drifted / len(completions):.1%}), {total} tokens in all"
    )
    print(f"\n{'kind':14} {'completions':>11} {'stretches':>9} {'tokens':>6}  first example (sampled -> encoded again)")
    for kind in DriftKind:
        example = examples.get(kind, "-")
        print(f"{kind.value:14} {affected[kind]:11} {spans[kind]:9} {tokens[kind]:6}  {example}")


async def main() -> int:
    """Sample and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2", help="smollm2, tiny, a Hugging Face id or a folder")
    parser.add_argument("--samples", type=int, default=64, help="number of completions (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=100)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same table")
    parser.add_argument("--threads", type=int, help="PyTorch threads")
    args = parser.parse_args()
    if args.samples < 1:
        parser.error(f"--samples {args.samples}: expected at least 1")
    async with EmbeddedEngine(args.model, threads=args.threads) as engine:
        report(await sample(engine, args), engine)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
