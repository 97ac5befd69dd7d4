"""Costs of scoring a tool result, for a server: time, prefix cache and memory, by the length of the result.

    python -m benchmarks.prompt_logprobs                              # starts the server of scripts/sglang-cpu
    python -m benchmarks.prompt_logprobs --base-url URL [--pid PID]   # a server of yours, and one of its processes

The server of its own has the tiny model with as many rows of logits as a real model's vocabulary.
For each length a prefix of 1,000 tokens is put into the cache, then the prefix and a result follow, without scores and
with them, each on a prefix of its own. Memory is the peak of the server's processes during the request above what they
held before it (Linux, a server on this machine).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

from benchmarks.shape import arguments, medians, print_figures

from strands_sglang import SGLangClient

ROOT = Path(__file__).resolve().parents[1]
SERVER = str(ROOT / "scripts" / "sglang-cpu")
PREFIX = 1000


@contextmanager
def genuine_server(vocab_size: int) -> Iterator[tuple[str, int]]:
    """Address and process of a genuine SGLang server on CPU, its model with rows for ids that no text gives."""
    from strands_sglang.backends.engine.tiny import make_tiny_model

    tiny = make_tiny_model(context_length=65536)
    tiny.model.resize_token_embeddings(vocab_size, mean_resizing=False)
    name = f"prompt-logprobs-{os.getpid()}"
    home = Path(os.environ.get("SGLANG_CPU_HOME", ROOT / ".cache" / "sglang-cpu"))
    with tempfile.TemporaryDirectory() as folder:
        tiny.model.save_pretrained(folder)
        tiny.tokenizer.save_pretrained(folder)
        serve = [SERVER, "serve", "--name", name, "--max-total-tokens", "60000", "--context-length", "50000"]
        try:
            started = subprocess.run(serve, env={**os.environ, "SGLANG_CPU_MODEL": folder}, stdout=PIPE, text=True)
            if started.returncode:
                raise SystemExit("the genuine server did not start: run scripts/sglang-cpu install, or give --base-url")
            yield started.stdout.split()[-1], int((home / "run" / name / "pid").read_text())
        finally:
            subprocess.run([SERVER, "stop", "--name", name], stdout=DEVNULL)


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


async def measure(client: Any, length: int, scored: bool, pids: list[int], rng: random.Random) -> dict[str, float]:
    """Seconds, cached tokens and extra memory at the peak of one request."""
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
    peak = (_memory(pids, "VmHWM") - before) / 2**20
    return {"seconds": seconds, "cached tokens": meta["cached_tokens"], "peak MiB": peak}


async def run(args: argparse.Namespace, base_url: str, pid: int | None) -> list[dict[str, float]]:
    """Medians for each length."""
    rng = random.Random(args.seed)
    pids = _session(pid) if pid else []
    rows = []
    async with SGLangClient(base_url) as client:
        await measure(client, 100, True, pids, rng)
        for length in args.lengths:
            rows.append({"tokens": length})
            for scored in (False, True):
                runs = [await measure(client, length, scored, pids, rng) for _ in range(args.passes)]
                rows[-1] |= {f"{name}{' with scores' * scored}": value for name, value in medians(runs).items()}
    return rows


def main() -> None:
    """Print the figures."""
    parser = arguments(__doc__, passes=3)
    parser.add_argument("--vocab-size", type=int, default=151936, help="of its own server (default: Qwen3's)")
    parser.add_argument("--base-url", help="measure this server")
    parser.add_argument("--pid", type=int, help="a process of that server; its session's memory is measured")
    parser.add_argument("--lengths", type=int, nargs="+", default=[165, 1000, 5000])
    args = parser.parse_args()
    if args.quick:
        args.passes, args.lengths = 1, [165]
    given = nullcontext((args.base_url, args.pid))
    with given if args.base_url else genuine_server(args.vocab_size) as (base_url, pid):
        print_figures("prompt_logprobs", prefix=PREFIX, rows=asyncio.run(run(args, base_url, pid)))


if __name__ == "__main__":
    main()
