"""Costs of the gateway: CPU a request over a bare HTTP handler, many open sessions, memory, and litellm's proxy.

    python -m benchmarks.gateway [--passes 60] [--sessions 1000]
    python -m benchmarks.gateway --litellm VENV/bin/litellm     # pip install 'litellm[proxy]' there

Conversations grow by a tool round a request, as agents' do; the model answers at once. The bare handler reads the same
bodies and answers with the same bytes on the same loop, and client and server share the process, so the difference of
the two CPU times is the gateway.

With `--litellm` three servers, each a process of its own, get the same bodies in turn: a bare handler; litellm's proxy
in front of it (one worker, a master key, no database); the gateway in front of a model that answers at once. The agent
has 21 tools. What a server takes beyond the bare handler is what it adds. The proxy passes text on; the gateway locates
the history, renders and encodes what is new, and holds every token.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil
from aiohttp import web
from benchmarks.shape import arguments, median, print_figures

from strands_sglang.backends import Backend
from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.backends.engine.tiny import make_tiny_tokenizer
from strands_sglang.backends.sglang.answer import read_answer
from strands_sglang.gateway import Gateway, Session
from strands_sglang.testing import Reply, build_answer

CALL = '<tool_call>{"name": "tool_0", "arguments": {"path": "src/module.py"}}</tool_call>'
KEY = "sk-benchmark"
WORD = "module "
ANSWER = orjson.dumps(
    {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": CALL}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
)  # fmt: skip


def tokenizer() -> Any:
    """The tiny tokenizer, with a template that prints tools."""
    made = make_tiny_tokenizer(1024, 10**6)
    made.chat_template = HERMES_TEMPLATE
    return made


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


async def serve_bare(path: str, answer: Any) -> tuple[web.AppRunner, str]:
    """A handler that reads a body and sends what `answer` returns; its runner and address."""

    async def handler(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=answer(), content_type="application/json")

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post(path, handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


# ---- in this process -------------------------------------------------------------------------------------------------


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


async def measured(http: Any, session: Session, bare: str, case: Case, rounds: int) -> tuple[list[float], int]:
    """Median CPU milliseconds of a request through the gateway and to the bare handler, and the prompt's tokens."""
    taken: list[list[float]] = [[], []]
    gc.collect()
    for _ in range(rounds):
        body = case.body()
        answers = []
        for url, times in zip((session.anthropic_url, bare), taken, strict=True):
            started = time.process_time()
            answers.append(await ask(http, url, session.key, body))
            times.append(1e3 * (time.process_time() - started))
        case.take(answers[0])
    return [median(times) for times in taken], session.conversation.forest.turns[-1].end


async def overhead(rounds: int, limit: int) -> list[dict[str, Any]]:
    """CPU per request at several sizes, each at most `limit` rounds long at first."""
    small, few = tools(2, 300), tools(2, 100)
    cases: list[tuple[str, dict[str, Any], int, float | None]] = [
        ("3k tokens, 2 tools", {"system": WORD * 100, "tools": small, "result": WORD * 5}, 10, 0.8),
        ("36k tokens, 21 tools", {"system": WORD * 900, "tools": tools(21, 3000), "result": WORD * 50}, 10, 1.5),
        ("90k tokens, 200 messages", {"system": WORD * 300, "tools": small, "result": WORD * 150}, 100, 3.0),
        ("10 rounds", {"system": "Go", "tools": few, "result": WORD * 20}, 10, None),
        ("200 rounds", {"system": "Go", "tools": few, "result": WORD * 20}, 200, None),
    ]
    rows = []
    made = tokenizer()
    async with Gateway(client=InstantModel(made), tokenizer=made) as gateway, aiohttp.ClientSession() as http:
        for name, parts, before, target in cases:
            session, case = gateway.open(), Case(**parts)
            answer = await ask(http, session.anthropic_url, session.key, case.body())
            case.take(answer)
            await grow(http, session, case, min(before, limit) - 1)
            size = len(case.body())
            runner, bare = await serve_bare("/v1/messages", lambda answer=answer: answer)
            (own, other), tokens = await measured(http, session, bare, case, rounds)
            await runner.cleanup()
            rows.append(
                {"case": name, "body_kb": round(size / 1000), "prompt_tokens": tokens, "gateway_ms": own,
                 "bare_ms": other, "over_it_ms": round(own - other, 2), "target_ms": target}
            )  # fmt: skip
    return rows


async def many_sessions(count: int, in_flight: int) -> dict[str, float]:
    """Latency added with many open sessions, and memory of a held token."""
    made, pause = tokenizer(), 1.0
    model = InstantModel(made)
    added: list[float] = []
    async with (
        Gateway(client=model, tokenizer=made) as gateway,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        parts = dict(system=WORD * 300, tools=tools(2, 300), result=WORD * 50)
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
        p50, p99 = (round(1e3 * added[int(share * len(added))], 1) for share in (0.5, 0.99))
        return {"sessions": count, "in_flight": in_flight, "added_p50_ms": p50, "added_p99_ms": p99}


async def memory() -> float:
    """Bytes of a held token, in a session of 100 rounds, one history included."""
    made = tokenizer()
    async with Gateway(client=InstantModel(made), tokenizer=made) as gateway, aiohttp.ClientSession() as http:
        parts = dict(system=WORD * 100, tools=tools(2, 300), result=WORD * 300)
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
        return round(held / tokens, 1)


# ---- beside litellm's proxy, in processes of their own ---------------------------------------------------------------


async def serve(kind: str) -> None:
    """Serve until killed, as the bare handler or as the gateway; the first line printed is the address."""
    if kind == "gateway":
        made = tokenizer()
        async with Gateway(client=InstantModel(made), tokenizer=made, auto_sessions=True) as gateway:
            print(gateway.url, flush=True)
            await asyncio.Event().wait()
    print((await serve_bare("/v1/chat/completions", lambda: ANSWER))[1], flush=True)
    await asyncio.Event().wait()


@asynccontextmanager
async def process(*command: str, log: Path, **environment: str) -> Any:
    """A server in a process of its own, ended with all its children."""
    with log.open("wb") as output:
        started = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environment}, start_new_session=True
        )
    try:
        yield psutil.Process(started.pid)
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def cpu(server: psutil.Process) -> float:
    """CPU seconds of a server and its children."""
    return sum(sum(member.cpu_times()[:2]) for member in (server, *server.children(recursive=True)))


async def ready(log: Path, url: str | None, http: aiohttp.ClientSession) -> str:
    """The address of a server: the one it prints, or the one given, once it is healthy."""
    for _ in range(1200):
        if url is None:
            printed = log.read_text().split()
            if printed and printed[0].startswith("http"):
                return printed[0]
        else:
            try:
                async with http.get(f"{url}/health/liveliness") as response:
                    if response.status == 200:
                        return url
            except aiohttp.ClientError:
                pass
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the server did not start:\n{log.read_text()[-3000:]}")


async def timed(http: aiohttp.ClientSession, url: str, body: bytes) -> tuple[float, bytes]:
    """Seconds of one request, and the answer."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    started = time.perf_counter()
    async with http.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
        answer = await response.read()
        assert response.status == 200, answer
    return time.perf_counter() - started, answer


def first_messages() -> tuple[list[Any], list[Any]]:
    """System prompt and tools of about 36k tokens of text as real tokenizers count them."""
    schema = {"type": "object", "properties": {"path": {"type": "string", "description": "A path. " * 8}}}
    tools = [
        {
            "type": "function",
            "function": {"name": f"tool_{k}", "description": "Does things. " * 230, "parameters": schema},
        }
        for k in range(21)
    ]
    return [{"role": "system", "content": WORD * 900}, {"role": "user", "content": "Go"}], tools


async def beside(litellm: str, rounds: int, port: int) -> dict[str, Any]:
    """Median latencies, and CPU per request, of the three servers."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)))
        own = [sys.executable, "-m", "benchmarks.gateway", "--serve"]
        servers, urls = {}, {}
        for name in ("bare", "gateway"):
            log = folder / f"{name}.log"
            servers[name] = await stack.enter_async_context(process(*own, name, log=log))
            urls[name] = await ready(log, None, http)
        config = folder / "config.yaml"
        model = {"model": "openai/m", "api_base": f"{urls['bare']}/v1", "api_key": "x"}
        settings = {"model_list": [{"model_name": "m", "litellm_params": model}]}
        config.write_text(json.dumps({**settings, "general_settings": {"master_key": KEY}}))
        command = [litellm, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
        log = folder / "litellm.log"
        quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "PYTHONPATH": ""}
        servers["litellm"] = await stack.enter_async_context(process(*command, log=log, **quiet))
        urls["litellm"] = await ready(log, f"http://127.0.0.1:{port}", http)

        messages, tools = first_messages()
        seconds: dict[str, list[float]] = {name: [] for name in urls}
        warm = 10
        for number in range(warm + rounds):
            if number == warm:
                before = {name: cpu(server) for name, server in servers.items()}
            body = orjson.dumps({"model": "m", "messages": messages, "tools": tools})
            answers = {}
            for name, url in urls.items():
                taken, answers[name] = await timed(http, url, body)
                if number >= warm:
                    seconds[name].append(taken)
            reply = orjson.loads(answers["gateway"])["choices"][0]["message"]
            messages.append({key: value for key, value in reply.items() if value is not None})
            messages += [
                {"role": "tool", "tool_call_id": made["id"], "content": WORD * 50} for made in reply["tool_calls"]
            ]
        used = {name: 1e3 * (cpu(server) - before[name]) / rounds for name, server in servers.items()}
    latency = {name: 1e3 * median(values, 9) for name, values in seconds.items()}
    # The proxy's requests reach the bare handler too, so that one's CPU is for two.
    used["bare"] /= 2
    added = {name: latency[name] - latency["bare"] for name in ("gateway", "litellm")}
    return {
        "latency_ms": {name: round(value, 2) for name, value in latency.items()},
        "cpu_ms": {name: round(value, 2) for name, value in used.items()},
        "litellm_over_gateway": {
            "added_latency": round(added["litellm"] / added["gateway"], 1),
            "cpu": round(used["litellm"] / used["gateway"], 1),
        },
        "rounds": rounds,
        "body_kb": round(len(body) / 1000),
    }


def main() -> None:
    """Print all figures."""
    parser = arguments(__doc__, passes=60)
    parser.add_argument("--sessions", type=int, default=1000, help="open sessions")
    parser.add_argument("--in-flight", type=int, default=200, help="requests at a time")
    parser.add_argument("--litellm", help="this alone: the program litellm of an environment with litellm[proxy]")
    parser.add_argument("--port", type=int, default=48291, help="port of the proxy")
    parser.add_argument("--serve", choices=("bare", "gateway"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.passes, args.sessions, args.in_flight = 3, 20, 10
    if args.serve:
        asyncio.run(serve(args.serve))
    elif args.litellm:
        print_figures("gateway", litellm=asyncio.run(beside(args.litellm, args.passes, args.port)))
    else:
        print_figures(
            "gateway",
            requests=asyncio.run(overhead(args.passes, 20 if args.quick else 200)),
            crowd=asyncio.run(many_sessions(args.sessions, args.in_flight)),
            bytes_per_held_token=asyncio.run(memory()),
        )


if __name__ == "__main__":
    main()
