"""Throughput of the gateway's workers: two beside one, where the engine is elsewhere; or a load of real clients.

    python -m benchmarks.gateway_workers [--sessions 100] [--turns 10] [--passes 5] [--seed 0]
    python -m benchmarks.gateway_workers --clients --sessions 5000      # pip install openai anthropic

A scripted SGLang server, the gateway as its command starts it, and this process with the clients are processes of their
own. Sessions grow by a tool round a request, eight at a time, in a random order of the seed, on connections that all
sessions share, so half of the requests of two workers change hands. Two figures a pass:

- `wall`: requests a second. On two cores the clients and the engine take what the second worker needs: with three or
  more busy processes it says little about the workers.
- `bound`: requests over the CPU seconds of the busiest worker: what the workers alone could answer on a core each. It
  has in it all that several workers cost: connections that change hands, and sessions that are not evenly spread.

With `--clients` all sessions are open at once on two workers with a state folder, and the clients of OpenAI and of
Anthropic take turns, with streams and without, two calls each. The engine numbers its replies, each of which has to be
trained once. Memory (RSS) and descriptors are those of parent and workers together.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from benchmarks.gateway import CALL, WORD, Case, ask, process, ready, tokenizer
from benchmarks.shape import arguments, median, print_figures
from tests.gateway_clients import chat, messages

from strands_sglang.testing import Reply

AT_A_TIME = 8


async def serve_engine() -> None:
    """A server that answers every request with the same call, until killed; the first line printed is the address."""
    from tests.servers import FaultyServer, faults

    made, numbers = tokenizer(), itertools.count()

    def answer(call: Any) -> Any:
        server.requests.clear()  # thousands of prompts would be kept otherwise
        text = f"Reply {next(numbers)}.{CALL}"
        return faults.answer(Reply(ids=[*made.encode(text, add_special_tokens=False), made.eos_token_id]))

    async with FaultyServer(answer, max_model_len=10**6) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


async def storm(
    http: aiohttp.ClientSession, url: str, sessions: int, turns: int, seed: int, *, is_shared: bool = False
) -> None:
    """Every session's conversation, the requests of all in a random order."""
    order, slots = random.Random(seed), asyncio.Semaphore(AT_A_TIME)

    async def talk(wait: float) -> None:
        async with http.post(f"{url}/sessions", json={}) as response:
            session = await response.json()
        case = Case(system=WORD * 100, tools=2, size=300, result=WORD * 5)
        async with aiohttp.ClientSession() as own:
            for _ in range(turns):
                await asyncio.sleep(wait)
                async with slots:
                    client, address = http if is_shared else own, session["base_urls"]["openai"]
                    case.take(await ask(client, address, session["key"], case.body()))
        async with http.post(f"{url}/sessions/{session['id']}/close", json={}) as response:
            await response.read()
        async with http.delete(f"{url}/sessions/{session['id']}") as response:
            await response.read()

    await asyncio.gather(*[talk(order.random() / 10) for _ in range(sessions)])


def busy(server: psutil.Process, count: int) -> list[float]:
    """CPU seconds of each worker."""
    members = server.children(recursive=True) if count > 1 else [server]
    return [sum(member.cpu_times()[:2]) for member in members]


@asynccontextmanager
async def gateways(folder: Path, http: aiohttp.ClientSession, *counts: int, state: bool = False) -> Any:
    """The processes and addresses of gateways with so many workers, by their number, in front of one engine."""
    async with AsyncExitStack() as stack:
        engine = [sys.executable, "-m", "benchmarks.gateway_workers", "--engine"]
        await stack.enter_async_context(process(*engine, log=folder / "engine.log"))
        address = await ready(folder / "engine.log", None, http)
        tokenizer().save_pretrained(folder / "tokenizer")
        servers = {}
        for count in counts:
            log, command = folder / f"{count}.log", [sys.executable, "-m", "strands_sglang", "gateway"]
            command += ["--base-url", address, "--tokenizer", str(folder / "tokenizer"), "--workers", str(count)]
            command += ["--state", str(folder / "state")] if state else []
            server = await stack.enter_async_context(process(*command, log=log))
            servers[count] = server, await ready(log, None, http)
        yield servers


async def load(sessions: int, at_a_time: int = 32) -> dict[str, Any]:
    """What a load of real clients trains, and what the gateway takes for it."""
    made, slots, trained, counts, held = tokenizer(), asyncio.Semaphore(at_a_time), Counter(), Counter(), []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)))
        servers = await stack.enter_async_context(gateways(folder, http, 2, state=True))
        server, url = servers[2]

        def hold(when: str) -> None:
            members = [server, *server.children(recursive=True)]
            sums = {
                "rss_mb": sum(member.memory_info().rss for member in members) >> 20,
                "descriptors": sum(member.num_fds() for member in members),
                "logs": len(list((folder / "state").glob("*.jsonl"))),
            }
            held.append({"when": when, **sums})

        async def call(method: str, path: str) -> Any:
            async with slots, http.request(method, url + path, json={} if method == "POST" else None) as response:
                response.raise_for_status()
                return await response.json()

        async def talk(number: int, session: Any) -> None:
            client, urls = messages if number % 2 else chat, session["base_urls"]
            async with slots:
                await client(urls["anthropic"], session["key"], ["Go"], stream=number % 4 > 1, rounds=2)

        async def export(session: Any) -> None:
            await call("POST", f"/sessions/{session['id']}/close")
            for row in await call("GET", f"/sessions/{session['id']}/trajectories"):
                ids = [token for token, mask in zip(row["token_ids"], row["loss_mask"], strict=True) if mask]
                trained.update(re.findall(r"Reply (\d+)\.", made.decode(ids)))
                counts.update(rows=1, discarded=row["is_discarded"], sampled_tokens=len(ids))
            await call("DELETE", f"/sessions/{session['id']}")

        hold("before")
        opened = await asyncio.gather(*[call("POST", "/sessions") for _ in range(sessions)])
        hold("opened")
        began = time.perf_counter()
        await asyncio.gather(*[talk(number, session) for number, session in enumerate(opened)])
        counts["requests_per_s"] = round(2 * sessions / (time.perf_counter() - began))
        hold("answered")
        for session in (await call("GET", "/sessions"))["sessions"]:
            counts.update({name: session["counters"][name] for name in ("requests", "sampled", "undelivered", "cut")})
        await asyncio.gather(*map(export, opened))
        await http.close()
        await asyncio.sleep(20)  # longer than unused connections to the engine are kept
        hold("deleted")
    is_exact = trained == Counter(map(str, range(2 * sessions)))
    return {"every_reply_trained_once": is_exact, **counts, "held": held}


async def measure(sessions: int, turns: int, passes: int, seed: int, *, is_shared: bool) -> dict[str, Any]:
    """Medians of both figures with one worker and with two, and of their ratios."""
    passed: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)))
        servers = await stack.enter_async_context(gateways(folder, http, *passed))
        for _, url in servers.values():
            await storm(http, url, 8, 2, seed)  # warm
        for number in range(passes):
            for count, (server, url) in servers.items():
                before, started = busy(server, count), time.perf_counter()
                await storm(http, url, sessions, turns, seed + number, is_shared=is_shared)
                wall = time.perf_counter() - started
                used = [after - first for after, first in zip(busy(server, count), before, strict=True)]
                passed[count].append((sessions * turns / wall, sessions * turns / max(used)))
    figures: dict[str, Any] = {}
    for at, name in enumerate(("wall", "bound")):
        one, two = ([each[at] for each in passed[count]] for count in passed)
        ratios = [second / first for first, second in zip(one, two, strict=True)]
        figures[name] = {"one": median(one, 0), "two": median(two, 0), "ratio": median(ratios)}
        figures[name]["ratios"] = [round(ratio, 2) for ratio in sorted(ratios)]
    return figures


def main() -> None:
    """Print both figures."""
    parser = arguments(__doc__, passes=5)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--clients", action="store_true", help="this alone: a load of real clients")
    parser.add_argument("--shared", action="store_true", help="all sessions share eight connections")
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        asyncio.run(serve_engine())
        return
    sessions, passes = (20, 1) if args.quick else (args.sessions, args.passes)
    if args.clients:
        figures = asyncio.run(load(sessions))
    else:
        figures = asyncio.run(measure(sessions, args.turns, passes, args.seed, is_shared=args.shared))
    print_figures("gateway_workers", **figures)


if __name__ == "__main__":
    main()
