"""Costs of the gateway: CPU a request over a bare HTTP handler, and beside litellm's proxy.

    python -m benchmarks.gateway [--passes 60]
    python -m benchmarks.gateway --litellm VENV/bin/litellm     # pip install 'litellm[proxy]' there
    python -m benchmarks.gateway --telemetry                    # with and without counts and spans
    python -m benchmarks.gateway --throughput [--seed 0]        # requests a second of one process

Conversations grow by a tool round a request, as agents' do; the model answers at once. The bare handler reads the same
bodies and answers with the same bytes on the same loop, and client and server share the process, so the difference of
the two CPU times is the gateway.

With `--litellm` three servers, each a process of its own, get the same bodies in turn: a bare handler; litellm's proxy
in front of it (one worker, a master key, no database); the gateway in front of a model that answers at once. The agent
has 21 tools. What a server takes beyond the bare handler is what it adds. The proxy passes text on; the gateway locates
the history, renders and encodes what is new, and holds every token.
With `--telemetry` equal conversations take turns of eight requests, in a random order, on gateways of three kinds:
without counts, times and spans; without an exporter, as it comes; and with an exporter that drops every span. The
figures are ratios: of CPU where the model answers at once, in five times as many passes, and of CPU and time where it
takes 20 ms, so that sampling has a span of its own.
With `--throughput` a scripted SGLang server, the gateway as its command starts it, and this process with the clients
are processes of their own. 100 sessions grow by ten tool rounds, eight requests at a time, in a random order of the
seed. `per_s` is requests a second of wall time, in which all three processes share the cores; `per_cpu_s` is requests
over the CPU seconds of the gateway: the most that it answers on a core that is its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil
from aiohttp import web
from benchmarks.shape import arguments, median, print_figures
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NoOpTracer

from strands_sglang.backends import Backend
from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.backends.engine.tiny import make_tiny_tokenizer
from strands_sglang.backends.sglang.answer import read_answer
from strands_sglang.gateway import Gateway, telemetry
from strands_sglang.testing import Reply, build_answer

CALL = '<tool_call>{"name": "tool_0", "arguments": {"path": "src/module.py"}}</tool_call>'
KEY = "sk-benchmark"
WORD = "module "
BLOCK = 8  # requests at a time, so that equal ones meet the same load of the machine
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
    """Answers every request with the same call, at once or after a delay in seconds."""

    def __init__(self, tokenizer: Any, delay: float = 0.0) -> None:
        self._delay = delay
        ids = [*tokenizer.encode(CALL, add_special_tokens=False), tokenizer.eos_token_id]
        self._answer = build_answer(Reply(ids=ids), [1], {"return_logprob": True}, rid="r", tokenizer=tokenizer)

    async def ask(self, request: Any) -> Any:
        """The answer."""
        if self._delay:
            await asyncio.sleep(self._delay)
        return read_answer(self._answer, vocab_size=None, max_new_tokens=request.max_new_tokens)


async def serve_bare(answer: bytes) -> tuple[web.AppRunner, str]:
    """A handler that reads a body and sends an answer; its runner and base address."""

    async def handler(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=answer, content_type="application/json")

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"


class Case:
    """A conversation that grows by a tool round a request, with `tools` tools of `size` bytes of description each."""

    def __init__(self, *, system: str, tools: int, size: int, result: str) -> None:
        properties = {
            name: {"type": "string", "description": "A value of some kind. " * 3} for name in ("path", "text")
        }
        schema = {"type": "object", "properties": properties, "required": ["path"], "additionalProperties": False}
        about = {"description": "Does things. " * (size // 13), "parameters": schema}
        self.tools = [{"type": "function", "function": {"name": f"tool_{k}", **about}} for k in range(tools)]
        self.messages: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": "Go"}]
        self.result = result

    def body(self) -> bytes:
        """The request to come."""
        return orjson.dumps({"model": "m", "max_tokens": 512, "messages": self.messages, "tools": self.tools})

    def take(self, answer: bytes) -> None:
        """Add the reply and a result."""
        reply = orjson.loads(answer)["choices"][0]["message"]
        self.messages.append({key: value for key, value in reply.items() if value is not None})
        self.messages += [
            {"role": "tool", "tool_call_id": made["id"], "content": self.result} for made in reply["tool_calls"]
        ]


async def ask(http: aiohttp.ClientSession, base_url: str, key: str, body: bytes) -> bytes:
    """One request."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    async with http.post(f"{base_url}/chat/completions", data=body, headers=headers) as response:
        answer = await response.read()
        assert response.status == 200, answer
        return answer


# ---- in this process -------------------------------------------------------------------------------------------------


async def overhead(rounds: int, limit: int) -> list[dict[str, Any]]:
    """Median CPU of a request at several sizes, whose conversations have at most `limit` rounds at first."""
    cases: list[tuple[str, dict[str, Any], int, float]] = [
        ("3k tokens, 2 tools", {"system": WORD * 100, "tools": 2, "size": 300, "result": WORD * 5}, 10, 0.8),
        ("36k tokens, 21 tools", {"system": WORD * 900, "tools": 21, "size": 3000, "result": WORD * 50}, 10, 1.5),
        ("90k tokens, 200 messages", {"system": WORD * 300, "tools": 2, "size": 300, "result": WORD * 150}, 100, 3.0),
    ]
    rows = []
    made = tokenizer()
    async with Gateway(client=InstantModel(made), tokenizer=made) as gateway, aiohttp.ClientSession() as http:
        for name, parts, before, target in cases:
            session, case = gateway.open(), Case(**parts)
            for _ in range(min(before, limit)):
                answer = await ask(http, session.base_url, session.key, case.body())
                case.take(answer)
            size = len(case.body())
            runner, bare = await serve_bare(answer)
            taken: dict[str, list[float]] = {session.base_url: [], bare: []}
            gc.collect()
            for _ in range(rounds):
                body = case.body()
                for url, times in taken.items():
                    started = time.process_time()
                    answer = await ask(http, url, session.key, body)
                    times.append(1e3 * (time.process_time() - started))
                    if url != bare:
                        case.take(answer)
            await runner.cleanup()
            own, other = (median(times) for times in taken.values())
            tokens = session.conversation.forest.turns[-1].end
            rows.append(
                {"case": name, "body_kb": round(size / 1000), "prompt_tokens": tokens, "gateway_ms": own,
                 "bare_ms": other, "over_it_ms": round(own - other, 2), "target_ms": target}
            )  # fmt: skip
    return rows


# ---- with and without telemetry --------------------------------------------------------------------------------------


class Silent(telemetry.Telemetry):
    """Neither counts nor times nor spans."""

    def request(self, request: Any, call: Any, dialect: str) -> Any:
        """Nothing around a request."""
        return nullcontext()

    def note(self, phase: Any, call: Any, began: int | None = None) -> None:
        """Nothing of a phase."""


class Dropped(SpanExporter):
    """Takes spans and drops them."""

    def export(self, spans: Any) -> SpanExportResult:
        """Drop them."""
        return SpanExportResult.SUCCESS


async def telemetry_costs(passes: int, rounds: int, seed: int, delay: float) -> list[dict[str, Any]]:
    """The cost of a request against one without telemetry: quartiles of the blocks of requests."""
    clocks = {"CPU": time.process_time, **({"latency": time.perf_counter} if delay else {})}
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Dropped()))
    tracers = {"off": NoOpTracer(), "no exporter": NoOpTracer(), "exporter": provider.get_tracer("benchmark")}
    order, made = random.Random(seed), tokenizer()
    ratios: dict[tuple[str, str], list[float]] = {(name, arm): [] for name in clocks for arm in tracers if arm != "off"}
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        gateways = {arm: Gateway(client=InstantModel(made, delay), tokenizer=made) for arm in tracers}
        gateways["off"].telemetry = Silent()
        for gateway in gateways.values():
            await stack.enter_async_context(gateway)
        for _ in range(passes):
            talks = {
                arm: (gateway.open(), Case(system=WORD * 900, tools=21, size=3000, result=WORD * 50))
                for arm, gateway in gateways.items()
            }
            gc.collect()
            for turn in range(rounds // BLOCK + 1):
                taken = {}
                for arm in order.sample(list(tracers), len(tracers)):
                    telemetry.TRACER, (session, case) = tracers[arm], talks[arm]
                    started = {name: clock() for name, clock in clocks.items()}
                    for _ in range(BLOCK):
                        case.take(await ask(http, session.base_url, session.key, case.body()))
                    gateways[arm].telemetry.make_spans()
                    taken |= {(name, arm): clock() - started[name] for name, clock in clocks.items()}
                for (name, arm), values in ratios.items() if turn else ():  # the first warms up
                    values.append(taken[name, arm] / taken[name, "off"])
            for arm, (session, _) in talks.items():
                await gateways[arm].delete(session)
    provider.shutdown()
    rows = []
    for (name, arm), values in ratios.items():
        low, middle, high = (round(value, 3) for value in statistics.quantiles(values, n=4))
        what = f"{name}, model {1000 * delay:g} ms" if delay else name
        rows.append({"ratio": what, "arm": arm, "median": middle, "quartiles": f"{low} to {high}"})
    return rows


# ---- beside litellm's proxy, in processes of their own ---------------------------------------------------------------


async def serve(kind: str) -> None:
    """Serve until killed, as the bare handler, the gateway or the engine; the first line printed is the address."""
    if kind == "engine":
        from tests.servers import FaultyServer, faults

        made = tokenizer()
        ids = [*made.encode(CALL, add_special_tokens=False), made.eos_token_id]

        def reply(call: Any) -> Any:
            server.requests.clear()  # thousands of prompts would be kept otherwise
            return faults.answer(Reply(ids=ids))

        async with FaultyServer(reply, max_model_len=10**6) as server:
            print(server.url, flush=True)
            await asyncio.Event().wait()
    if kind == "gateway":
        made = tokenizer()
        async with Gateway(client=InstantModel(made), tokenizer=made, auto_sessions=True) as gateway:
            print(f"{gateway.url}/v1", flush=True)
            await asyncio.Event().wait()
    print((await serve_bare(ANSWER))[1], flush=True)
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
            printed = [word for word in log.read_text().split() if word.startswith("http")]
            if printed:
                return printed[0]
        else:
            try:
                async with http.get(f"{url.removesuffix('/v1')}/health/liveliness") as response:
                    if response.status == 200:
                        return url
            except aiohttp.ClientError:
                pass
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the server did not start:\n{log.read_text()[-3000:]}")


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
        model = {"model": "openai/m", "api_base": urls["bare"], "api_key": "x"}
        settings = {"model_list": [{"model_name": "m", "litellm_params": model}]}
        config.write_text(json.dumps({**settings, "general_settings": {"master_key": KEY}}))
        command = [litellm, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
        log = folder / "litellm.log"
        quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "PYTHONPATH": ""}
        servers["litellm"] = await stack.enter_async_context(process(*command, log=log, **quiet))
        urls["litellm"] = await ready(log, f"http://127.0.0.1:{port}/v1", http)

        case = Case(system=WORD * 900, tools=21, size=3000, result=WORD * 50)
        seconds: dict[str, list[float]] = {name: [] for name in urls}
        warm = 10
        for number in range(warm + rounds):
            if number == warm:
                before = {name: cpu(server) for name, server in servers.items()}
            body, answers = case.body(), {}
            for name, url in urls.items():
                started = time.perf_counter()
                answers[name] = await ask(http, url, KEY, body)
                if number >= warm:
                    seconds[name].append(time.perf_counter() - started)
            case.take(answers["gateway"])
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


async def throughput(sessions: int, turns: int, passes: int, seed: int) -> dict[str, Any]:
    """Medians of the requests a second, and a CPU second, of one gateway process, with their spread."""
    at_once = asyncio.Semaphore(8)

    async def talk(url: str, http: aiohttp.ClientSession, pauses: random.Random) -> None:
        async with http.post(f"{url}/sessions", json={}) as response:
            session = await response.json()
        case = Case(system=WORD * 100, tools=2, size=300, result=WORD * 5)
        for pause in [pauses.random() / 10 for _ in range(turns)]:
            await asyncio.sleep(pause)
            async with at_once:
                case.take(await ask(http, session["base_urls"]["openai"], session["key"], case.body()))
        async with http.delete(f"{url}/sessions/{session['id']}") as response:
            await response.read()

    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        own = [sys.executable, "-m", "benchmarks.gateway", "--serve", "engine"]
        await stack.enter_async_context(process(*own, log=folder / "engine.log"))
        engine = await ready(folder / "engine.log", None, http)
        tokenizer().save_pretrained(folder / "tokenizer")
        command = [sys.executable, "-m", "strands_sglang", "gateway", "--base-url", engine]
        command += ["--tokenizer", str(folder / "tokenizer")]
        server = await stack.enter_async_context(process(*command, log=folder / "gateway.log"))
        url = await ready(folder / "gateway.log", None, http)
        rates: dict[str, list[float]] = {"per_s": [], "per_cpu_s": []}
        for number in range(passes + 1):  # the first warms up
            pauses, used, began = random.Random(seed + number), cpu(server), time.perf_counter()
            await asyncio.gather(*[talk(url, http, pauses) for _ in range(sessions)])
            for rate, taken in zip(rates.values(), (time.perf_counter() - began, cpu(server) - used), strict=True):
                rate.append(sessions * turns / taken)
    return {name: {"median": median(rate[1:], 0), "all": sorted(map(round, rate[1:]))} for name, rate in rates.items()}


def main() -> None:
    """Print all figures."""
    parser = arguments(__doc__, passes=60)
    parser.add_argument("--litellm", help="this alone: the program litellm of an environment with litellm[proxy]")
    parser.add_argument("--telemetry", action="store_true", help="this alone: the cost of counts and spans")
    parser.add_argument("--throughput", action="store_true", help="this alone: requests a second of one process")
    parser.add_argument("--port", type=int, default=48291, help="port of the proxy")
    parser.add_argument("--serve", choices=("bare", "gateway", "engine"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.passes = 3
    if args.serve:
        asyncio.run(serve(args.serve))
    elif args.telemetry:
        passes, rounds = (2, BLOCK) if args.quick else (args.passes, 40)
        costs = [
            row
            for delay, passes in ((0.0, 5 * passes), (0.02, passes))
            for row in asyncio.run(telemetry_costs(passes, rounds, args.seed, delay))
        ]
        print_figures("gateway", telemetry=costs)
    elif args.throughput:
        sessions, turns, passes = (4, 2, 1) if args.quick else (100, 10, args.passes)
        print_figures("gateway", throughput=asyncio.run(throughput(sessions, turns, passes, args.seed)))
    elif args.litellm:
        print_figures("gateway", litellm=asyncio.run(beside(args.litellm, args.passes, args.port)))
    else:
        print_figures("gateway", requests=asyncio.run(overhead(args.passes, 20 if args.quick else 200)))


if __name__ == "__main__":
    main()
