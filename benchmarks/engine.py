"""Speed and exactness of the embedded engine.

    python benchmarks/engine.py [--model smollm2] [--batches 1,2,4,8,16] [--new-tokens 48] [--threads N]

Prints tokens per second of wall time: prompts without and with a cached prefix, decoding for each batch size; then the
largest difference of a recorded logprob from a separate plain forward pass. Wall time depends on what else runs: the
load of the machine is printed with it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from typing import Any

import torch

from strands_sglang.engine import EmbeddedEngine
from strands_sglang.engine.loader import load_model


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2", help="smollm2, tiny, a Hugging Face id or a folder")
    parser.add_argument("--batches", default="1,2,4,8,16", help="batch sizes (default: %(default)s)")
    parser.add_argument("--new-tokens", type=int, default=48, help="tokens to sample per request")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, help="PyTorch threads (default: the engine's)")
    parser.add_argument("--varying-rows", action="store_true", help="measure with batch_invariant=False")
    return parser.parse_args()


def prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(20, 900) for _ in range(length)]


async def timed(work: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = await work
    return time.perf_counter() - start, result


async def decode_speed(engine: EmbeddedEngine, batch: int, new_tokens: int) -> float:
    """Tokens per second over `batch` requests with short, cached prompts."""
    params = {"temperature": 1.0, "ignore_eos": True, "sampling_seed": 1}
    prompts = [prompt(16, seed) for seed in range(batch)]
    for ids in prompts:
        await engine.generate(ids, sampling_params=params | {"max_new_tokens": 1})
    group = (
        engine.generate(ids, sampling_params=params | {"max_new_tokens": new_tokens}, return_logprob=True)
        for ids in prompts
    )
    seconds, _ = await timed(asyncio.gather(*group))
    return batch * new_tokens / seconds


async def worst_difference(engine: EmbeddedEngine, model: str) -> float:
    """Largest difference between recorded logprobs and those of a plain forward pass."""
    ids = prompt(100, 7)
    params = {"temperature": 1.0, "ignore_eos": True, "sampling_seed": 2, "max_new_tokens": 32}
    answer = await engine.generate(ids, sampling_params=params, return_logprob=True, logprob_start_len=0)
    with torch.no_grad():
        logits = load_model(model).model(torch.tensor([ids + answer["output_ids"]])).logits[0].float()
    expected = torch.log_softmax(logits, dim=-1)
    meta = answer["meta_info"]
    entries = [*meta["input_token_logprobs"], *meta["output_token_logprobs"]]
    return max(abs(lp - float(expected[i - 1, token])) for i, (lp, token, _) in enumerate(entries) if i)


async def main() -> None:
    args = parse_args()
    start = time.perf_counter()
    engine = EmbeddedEngine(args.model, threads=args.threads, seed=0, batch_invariant=not args.varying_rows)
    async with engine:
        print(f"model {engine.model_path}, torch {torch.__version__}, {os.cpu_count()} processors, ", end="")
        print(f"load {os.getloadavg()[0]:.1f}, ready in {time.perf_counter() - start:.1f} s")
        ids = prompt(args.prompt_tokens, 1)
        for label in ("prompt, nothing cached", "prompt again, cached"):
            seconds, answer = await timed(engine.generate(ids, sampling_params={"max_new_tokens": 1}))
            cached = answer["meta_info"]["cached_tokens"]
            print(f"{label:24} {len(ids):5} tokens ({cached} cached) in {seconds * 1e3:7.1f} ms")
        for batch in map(int, args.batches.split(",")):
            print(f"decode, batch {batch:2} {await decode_speed(engine, batch, args.new_tokens):19.1f} tokens/s")
        print(f"largest logprob difference {await worst_difference(engine, args.model):.1e}")


if __name__ == "__main__":
    asyncio.run(main())
