"""Costs of a request beyond its content: the client's connections and those of other clients, side by side.

    python -m benchmarks.transport [--passes 7]

20 tasks post 20 prompts each to a scripted server in a process of its own, and read its answer of 100 tokens, unparsed.
Each client does as little as it can: no compression, cookies, redirects or proxies, bodies as bytes, but the length of
an answer is bounded and the whole request has a time limit. `pyreqwest` and `wreq` (Rust) take part where they are
installed. Figures are CPU microseconds of this process a request, all threads together; ratios are to the client's own
connections.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

from benchmarks.provider_floor import MOST_NEW_TOKENS, scripted_server
from benchmarks.shape import arguments, median, print_figures

from strands_sglang.backends.http.connections import HTTPClient, Target

TASKS, REQUESTS = 20, 20
TOKENS = (3_000, 36_000, 90_000)
HEADERS = {"Content-Type": "application/json"}
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
    """The client's own connections."""
    client, target = HTTPClient(connect_timeout=5.0), Target.of("POST", url, HEADERS)

    async def post() -> int:
        return len((await client.request(target, (body,), timeout=60.0, limit=LIMIT)).body)

    try:
        return await cpu_us(post)
    finally:
        client.close()


async def bounded(chunks: AsyncIterable[Any]) -> int:
    """Read an answer no longer than the limit, which the other clients do not have, and return its length."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > LIMIT:
            raise ValueError("too long")
    return len(bytes(body))


async def chunks(read: Callable[[], Awaitable[Any]]) -> AsyncIterator[Any]:
    """Chunks until the reader returns None."""
    while (chunk := await read()) is not None:
        yield chunk


async def with_aiohttp(url: str, body: bytes) -> float:
    """An aiohttp session."""
    import aiohttp
    from yarl import URL

    address = URL(url)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        headers=HEADERS,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=1 << 22,
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
        timeout=aiohttp.ClientTimeout(total=60.0),
    ) as session:

        async def post() -> int:
            async with session.post(address, data=body, allow_redirects=False) as response:
                return await bounded(response.content.iter_any())

        return await cpu_us(post)


async def with_pyreqwest(url: str, body: bytes) -> float:
    """A pyreqwest client."""
    from pyreqwest.client import ClientBuilder

    builder = ClientBuilder().default_headers(HEADERS).http1_only().no_proxy().follow_redirects(False)
    builder = builder.gzip(False).brotli(False).zstd(False).deflate(False).timeout(timedelta(seconds=60))
    async with builder.build() as client:

        async def post() -> int:
            async with client.post(url).body_bytes(body).build_streamed() as response:
                return await bounded(chunks(response.body_reader.read_chunk))

        return await cpu_us(post)


async def with_wreq(url: str, body: bytes) -> float:
    """A wreq client."""
    import wreq

    plain = dict.fromkeys(("gzip", "brotli", "zstd", "deflate"), False)
    client = wreq.Client(headers=HEADERS, http1_only=True, no_proxy=True, timeout=timedelta(seconds=60), **plain)

    async def post() -> int:
        async with (await client.post(url, body=body)).stream() as chunks:
            return await bounded(chunks)

    return await cpu_us(post)


ARMS = {"ours": ours, "aiohttp": with_aiohttp, "pyreqwest": with_pyreqwest, "wreq": with_wreq}


def main() -> None:
    """Print the figures."""
    args = arguments(__doc__, passes=7).parse_args()
    passes = 1 if args.quick else args.passes
    arms = {name: arm for name, arm in ARMS.items() if name == "ours" or importlib.util.find_spec(name)}
    rows = []
    with scripted_server() as (_, address, _):
        for tokens in TOKENS:
            ids = b",".join(b"%d" % (1000 + token % 30_000) for token in range(tokens))
            params = b'{"max_new_tokens":%d}' % (MOST_NEW_TOKENS + 10)
            body = b'{"rid":"%032d","sampling_params":%b,"input_ids":[%b]}' % (0, params, ids)
            taken: list[dict[str, float]] = [{} for _ in range(passes + 1)]
            for each in taken:
                for name, arm in arms.items():
                    gc.collect()
                    each[name] = asyncio.run(arm(f"{address}/generate", body))
            del taken[0]  # warmed up
            rows.append({"tokens": tokens} | {f"{name}_us": median((each[name] for each in taken), 0) for name in arms})
            ratios = {name: median(each[name] / each["ours"] for each in taken) for name in arms if name != "ours"}
            rows[-1] |= {f"{name}_ratio": ratio for name, ratio in ratios.items()}
    print_figures("transport", passes=passes, rows=rows)


if __name__ == "__main__":
    main()
