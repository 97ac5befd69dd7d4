"""What a request costs beside its content: the client's connections and aiohttp's, side by side.

    python -m benchmarks.transport [--passes 7]

20 tasks post 20 prompts each to a scripted server in a process of its own, and read its answer of 100 tokens, unparsed.
Figures are CPU microseconds of this process a request, medians of the passes, in which the two take turns. The last
line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
from benchmarks.provider_floor import MOST_NEW_TOKENS, Worker, machine, save_tokenizer

from strands_sglang.backends.http.connections import HTTPClient, Target

TASKS, REQUESTS = 20, 20
TOKENS = (1_500, 18_000, 45_000)
"""Mean length of the prompts of a rollout that ends with 3k, 36k and 90k tokens."""
LIMIT = 1 << 28


async def cpu_us(post: Callable[[], Awaitable[int]]) -> float:
    """CPU microseconds of a request."""

    async def task() -> None:
        for _ in range(REQUESTS):
            assert await post() > 1000

    started = time.process_time()
    await asyncio.gather(*(task() for _ in range(TASKS)))
    return 1e6 * (time.process_time() - started) / (TASKS * REQUESTS)


async def ours(url: str, body: bytes) -> float:
    """With the client's connections."""
    client, target = HTTPClient(connect_timeout=5.0), Target.of("POST", url, {"Content-Type": "application/json"})

    async def post() -> int:
        return len((await client.request(target, (body,), timeout=60.0, limit=LIMIT)).body)

    try:
        return await cpu_us(post)
    finally:
        client.close()


async def with_aiohttp(url: str, body: bytes) -> float:
    """With an aiohttp session."""
    headers, timeout = {"Content-Type": "application/json"}, aiohttp.ClientTimeout(total=60.0)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:

        async def post() -> int:
            async with session.post(url, data=body) as response:
                return len(await response.read())

        return await cpu_us(post)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--passes", type=int, default=7)
    passes = parser.parse_args().passes
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(Path(folder), None)
        server = Worker(sys.executable, "--serve", folder)
        try:
            assert server.process.stdout is not None
            url = f"http://127.0.0.1:{server.process.stdout.readline().strip()}/generate"
            for tokens in TOKENS:
                ids = b",".join(b"%d" % (1000 + token % 30_000) for token in range(tokens))
                params = b'{"max_new_tokens":%d}' % (MOST_NEW_TOKENS + 10)
                body = b'{"rid":"%032d","sampling_params":%b,"input_ids":[%b]}' % (0, params, ids)
                taken: dict[str, list[float]] = {"ours": [], "aiohttp": []}
                for _ in range(passes + 1):
                    for name, arm in (("ours", ours), ("aiohttp", with_aiohttp)):
                        gc.collect()
                        taken[name].append(asyncio.run(arm(url, body)))
                medians = {f"{name}_us": round(statistics.median(each[1:])) for name, each in taken.items()}
                rows.append(
                    {"tokens": tokens, **medians, "ratio": round(medians["ours_us"] / medians["aiohttp_us"], 2)}
                )
                print(f"{tokens:>7} tokens: ours {medians['ours_us']:>4} us, aiohttp {medians['aiohttp_us']:>4} us")
        finally:
            server.close()
    print(json.dumps({"benchmark": "transport", "passes": passes, "rows": rows, **machine()}))


if __name__ == "__main__":
    main()
