"""What the gateway costs: CPU per request over a bare HTTP handler, many open sessions, bytes of a held token.

    python -m benchmarks.gateway_overhead [--rounds 60] [--sessions 1000]

Conversations grow by a tool round a request, as agents' do; the model answers at once. The bare handler reads the same
bodies and answers with the same bytes on the same loop, and client and server share the process, so the difference of
the two CPU times is the gateway. The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import platform
import statistics
import time
import tracemalloc
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from strands_sglang.backends import Backend
from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.backends.engine.tiny import make_tiny_tokenizer
from strands_sglang.backends.sglang.answer import read_answer
from strands_sglang.gateway import Gateway, Session
from strands_sglang.testing import Reply, build_answer

CALL = '<tool_call>{"name": "tool_0", "arguments": {"path": "src/module.py"}}</tool_call>'


class InstantModel(Backend):
    """Answers every request with the same call, at once or after a pause."""

    def __init__(self, tokenizer: Any) -> None:
        ids = [*tokenizer.encode(CALL, add_special_tokens=False), tokenizer.eos_token_id]
        self._answer = build_answer(Reply(ids=ids), [1], {"return_logprob": True}, rid="r", tokenizer=tokenizer)
        self.pause = 0.0

    async def ask(self, request: Any) -> Any:
        """The answer."""
        if self.pause:
            await asyncio.sleep(self.pause)
        return read_answer(self._answer, vocab_size=None, max_new_tokens=request.max_new_tokens)


def tools(count: int, size: int) -> list[dict[str, Any]]:
    """Tools of Messages, `size` bytes of description each."""
    properties = {name: {"type": "string", "description": "A value of some kind. " * 3} for name in ("path", "text")}
    schema = {"type": "object", "properties": properties, "required": ["path"], "additionalProperties": False}
    return [
        {"name": f"tool_{k}", "description": "Does things. " * (size // 13), "input_schema": schema}
        for k in range(count)
    ]


class Case:
    """A conversation of Messages that grows by a round a request."""

    def __init__(self, *, system: str, tools: list[Any], result: str) -> None:
        self.head = {"model": "m", "max_tokens": 512, "system": system, "tools": tools}
        self.messages: list[Any] = [{"role": "user", "content": "Go"}]
        self.result = result

    def body(self) -> bytes:
        """The request to come."""
        return orjson.dumps({**self.head, "messages": self.messages})

    def take(self, answer: bytes) -> None:
        """Add the reply and a result."""
        content = orjson.loads(answer)["content"]
        self.messages.append({"role": "assistant", "content": content})
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": self.result, "is_error": False}
            for block in content
            if block["type"] == "tool_use"
        ]
        self.messages.append({"role": "user", "content": results})


async def ask(http: aiohttp.ClientSession, url: str, key: str, body: bytes) -> bytes:
    """One request."""
    headers = {"Content-Type": "application/json", "x-api-key": key}
    async with http.post(f"{url}/v1/messages", data=body, headers=headers) as response:
        answer = await response.read()
        assert response.status == 200, answer
        return answer


async def grow(http: aiohttp.ClientSession, session: Session, case: Case, rounds: int) -> None:
    """Add rounds without measuring."""
    for _ in range(rounds):
        case.take(await ask(http, session.anthropic_url, session.key, case.body()))


async def measured(
    http: aiohttp.ClientSession, session: Session, bare: str, case: Case, rounds: int
) -> tuple[float, float, int]:
    """Median CPU milliseconds of a request through the gateway and to the bare handler, and the prompt's tokens."""
    own: list[float] = []
    other: list[float] = []
    gc.collect()
    for _ in range(rounds):
        body = case.body()
        started = time.process_time()
        answer = await ask(http, session.anthropic_url, session.key, body)
        own.append(time.process_time() - started)
        started = time.process_time()
        await ask(http, bare, session.key, body)
        other.append(time.process_time() - started)
        case.take(answer)
    tokens = session.conversation.forest.turns[-1].end
    return 1e3 * statistics.median(own), 1e3 * statistics.median(other), tokens


async def overhead(rounds: int) -> list[dict[str, Any]]:
    """CPU per request at several sizes."""
    rows = []
    tokenizer = make_tiny_tokenizer(1024, 10**6)
    tokenizer.chat_template = HERMES_TEMPLATE
    word = "module "

    async def bare_handler(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=answer, content_type="application/json")

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/messages", bare_handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    bare = f"http://127.0.0.1:{runner.addresses[0][1]}"
    small, few = tools(2, 300), tools(2, 100)
    cases: list[tuple[str, dict[str, Any], int, float | None]] = [
        ("3k tokens, 2 tools", {"system": word * 100, "tools": small, "result": word * 5}, 10, 0.8),
        ("36k tokens, 21 tools", {"system": word * 900, "tools": tools(21, 3000), "result": word * 50}, 10, 1.5),
        ("90k tokens, 200 messages", {"system": word * 300, "tools": small, "result": word * 150}, 100, 3.0),
        ("10 rounds", {"system": "Go", "tools": few, "result": word * 20}, 10, None),
        ("200 rounds", {"system": "Go", "tools": few, "result": word * 20}, 200, None),
    ]
    print("| conversation | body | prompt | gateway | bare handler | over it | target |")
    print("|---|---|---|---|---|---|---|")
    async with (
        Gateway(client=InstantModel(tokenizer), tokenizer=tokenizer) as gateway,
        aiohttp.ClientSession() as http,
    ):
        for name, parts, before, target in cases:
            session, case = gateway.open(), Case(**parts)
            answer = b""
            body = case.body()
            answer = await ask(http, session.anthropic_url, session.key, body)
            case.take(answer)
            await grow(http, session, case, before - 1)
            size = len(case.body())
            own, other, tokens = await measured(http, session, bare, case, rounds)
            parse = body_parse(case)
            rows.append(
                {"case": name, "body_kb": round(size / 1000), "prompt_tokens": tokens, "gateway_ms": round(own, 2),
                 "bare_ms": round(other, 2), "over_it_ms": round(own - other, 2), "target_ms": target}
            )  # fmt: skip
            print(
                f"| {name} | {size / 1000:.0f} kB | {tokens} tokens | {own:.2f} ms | {other:.2f} ms "
                f"| **{own - other:.2f} ms** ({own - other - parse:.2f} without the parse) | {target or ''} |"
            )
    await runner.cleanup()
    return rows


def body_parse(case: Case) -> float:
    """Milliseconds that parsing the body's JSON takes."""
    body = case.body()
    times = []
    for _ in range(20):
        started = time.perf_counter()
        orjson.loads(body)
        times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times)


async def many_sessions(count: int, in_flight: int) -> dict[str, float]:
    """Latency added with many open sessions, and memory of a held token."""
    tokenizer = make_tiny_tokenizer(1024, 10**6)
    tokenizer.chat_template = HERMES_TEMPLATE
    pause = 1.0
    model = InstantModel(tokenizer)
    added: list[float] = []
    async with (
        Gateway(client=model, tokenizer=tokenizer) as gateway,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        parts = dict(system="module " * 300, tools=tools(2, 300), result="module " * 50)
        sessions = [(gateway.open(), Case(**parts)) for _ in range(count)]

        async def run(session: Session, case: Case) -> None:
            body = case.body()
            started = time.perf_counter()
            answer = await ask(http, session.anthropic_url, session.key, body)
            added.append(time.perf_counter() - started - pause)
            case.take(answer)

        for session, case in sessions:  # first prompts are encoded whole, which any gateway has to
            await run(session, case)
        model.pause = pause
        added.clear()
        # So many at a time, started evenly over the pause, as independent agents are.
        for at in range(0, count, in_flight):
            batch = []
            for session, case in sessions[at : at + in_flight]:
                batch.append(asyncio.create_task(run(session, case)))
                await asyncio.sleep(pause / in_flight)
            await asyncio.gather(*batch)
        added.sort()
        median, p99 = (round(1e3 * added[int(share * len(added))], 1) for share in (0.5, 0.99))
        print(
            f"\n{count} open sessions, {in_flight} in flight: added latency median {median} ms, p99 {p99} ms "
            "(target 20 ms)"
        )
        return {"sessions": count, "in_flight": in_flight, "added_p50_ms": median, "added_p99_ms": p99}


async def memory() -> float:
    """Bytes of a held token, in a session of 100 rounds."""
    tokenizer = make_tiny_tokenizer(1024, 10**6)
    tokenizer.chat_template = HERMES_TEMPLATE
    async with (
        Gateway(client=InstantModel(tokenizer), tokenizer=tokenizer) as gateway,
        aiohttp.ClientSession() as http,
    ):
        parts = dict(system="module " * 100, tools=tools(2, 300), result="module " * 300)
        warm, case = gateway.open(), Case(**parts)
        await grow(http, warm, case, 3)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        session, case = gateway.open(), Case(**parts)
        await grow(http, session, case, 100)
        tokens = session.conversation.forest.turns[-1].end
        case.messages.clear()
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        history = len(orjson.dumps(session.history))
        print(
            f"a session of {tokens} held tokens: {held / tokens:.0f} bytes a token, "
            f"its history of {history / 1000:.0f} kB included (target 40 and one history)"
        )
        return round(held / tokens, 1)


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="requests measured a case")
    parser.add_argument("--sessions", type=int, default=1000, help="open sessions")
    parser.add_argument("--in-flight", type=int, default=200, help="requests at a time")
    args = parser.parse_args()
    figures = {
        "requests": asyncio.run(overhead(args.rounds)),
        "crowd": asyncio.run(many_sessions(args.sessions, args.in_flight)),
        "bytes_per_held_token": asyncio.run(memory()),
    }
    print(json.dumps({"benchmark": "gateway_overhead", **figures, "python": platform.python_version()}))


if __name__ == "__main__":
    main()
