"""What scoring a tool result costs a server: time, prefix cache and memory, by the length of the result.

    python -m benchmarks.prompt_logprobs --model-folder FOLDER                  # a small model with a large vocabulary
    SGLANG_CPU_MODEL=FOLDER scripts/sglang-cpu serve --max-total-tokens 60000 --context-length 50000
    python -m benchmarks.prompt_logprobs --base-url URL --pid $(cat .cache/sglang-cpu/run/default/pid)

For each length a prefix of 1,000 tokens is put into the cache, then the prefix and a result follow, without scores and
with them, each on a prefix of its own. Memory is the peak of the server's processes during the request above what they
held before it (Linux, a server of yours). Prints a table; the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from pathlib import Path

from strands_sglang import SGLangClient

PREFIX = 1000


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model-folder", type=Path, help="write the model here, and stop")
    parser.add_argument("--vocab-size", type=int, default=151936, help="of that model (default: Qwen3's %(default)s)")
    parser.add_argument("--base-url", default="http://127.0.0.1:30000")
    parser.add_argument("--pid", type=int, help="a process of the server; its session's memory is measured")
    parser.add_argument("--lengths", default="165,1000,5000,20000")
    parser.add_argument("--passes", type=int, default=3)
    return parser.parse_args()


def make_model(folder: Path, vocab_size: int) -> None:
    """The tiny model with rows for ids that its tokenizer never makes: logits are as wide as a real model's."""
    from strands_sglang.backends.engine.tiny import make_tiny_model

    tiny = make_tiny_model(context_length=65536)
    tiny.model.resize_token_embeddings(vocab_size, mean_resizing=False)
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)


def _session(pid: int) -> list[int]:
    wanted = _field(pid, 5)
    found = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return [other for other in found if _field(other, 5) == wanted]


def _field(pid: int, number: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[number - 2]
    except OSError:
        return ""


def _memory(pids: list[int], name: str) -> int:
    """Bytes of `VmRSS` or `VmHWM` of all processes."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                total += int(line.split()[1]) * 1024
    return total


async def measure(client: SGLangClient, length: int, scored: bool, pids: list[int], rng: random.Random) -> list[float]:
    """Seconds, cached tokens and extra bytes at the peak of one request."""
    params = {"max_new_tokens": 1, "temperature": 0.0}
    prefix = [rng.randrange(300, 1000) for _ in range(PREFIX)]
    await client.generate(prefix, sampling_params=params)
    result = [rng.randrange(300, 1000) for _ in range(length)]
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak starts over
    before = _memory(pids, "VmRSS")
    start = PREFIX - 1 if scored else -1
    begun = time.perf_counter()
    answer = await client.generate(
        prefix + result, sampling_params=params, return_logprob=True, logprob_start_len=start
    )
    seconds = time.perf_counter() - begun
    meta = answer["meta_info"]
    values = [entry[0] for entry in meta["input_token_logprobs"]]
    if scored and (len(values) != length + 1 or any(value is None for value in values[1:])):
        raise RuntimeError(f"{len(values)} scores for {length} tokens")
    return [seconds, meta["cached_tokens"], _memory(pids, "VmHWM") - before]


async def run(args: argparse.Namespace) -> None:
    rng = random.Random(0)
    pids = _session(args.pid) if args.pid else []
    rows = []
    print("| tokens of the result | seconds | with scores | cached tokens | with scores | peak MiB | with scores |")
    print("|---|---|---|---|---|---|---|")
    async with SGLangClient(args.base_url) as client:
        await measure(client, 100, True, pids, rng)
        for length in map(int, args.lengths.split(",")):
            both = []
            for scored in (False, True):
                runs = [await measure(client, length, scored, pids, rng) for _ in range(args.passes)]
                both.append([statistics.median(column) for column in zip(*runs, strict=True)])
            (plain_s, plain_cached, plain_bytes), (scored_s, scored_cached, scored_bytes) = both
            print(
                f"| {length} | {plain_s:.2f} | {scored_s:.2f} | {plain_cached:.0f} | {scored_cached:.0f} "
                f"| {plain_bytes / 2**20:.0f} | {scored_bytes / 2**20:.0f} |"
            )
            rows.append({"length": length, "plain": both[0], "scored": both[1]})
    print(json.dumps({"prefix": PREFIX, "rows": rows}))


def main() -> None:
    args = parse_args()
    if args.model_folder:
        make_model(args.model_folder, args.vocab_size)
    else:
        asyncio.run(run(args))


if __name__ == "__main__":
    main()
