"""The gateway beside litellm's proxy: latency and CPU of equal requests, in one run, in turn.

    python -m benchmarks.gateway_litellm --litellm VENV/bin/litellm     # pip install 'litellm[proxy]' there

Three servers, each a process of its own: a bare handler that answers at once; litellm's proxy in front of it (one
worker, a master key, no database); the gateway in front of a model that answers at once. A conversation of an agent
with 21 tools grows by a tool round a request; each body goes to all three, in turn. What a server takes beyond the bare
handler is what it adds. The proxy passes text on; the gateway locates the history, renders and encodes what is new, and
holds every token. The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil
from aiohttp import web
from benchmarks.gateway_overhead import CALL, InstantModel

from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.backends.engine.tiny import make_tiny_tokenizer
from strands_sglang.gateway import Gateway

KEY = "sk-benchmark"
ANSWER = orjson.dumps(
    {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": CALL}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
)  # fmt: skip


async def serve(kind: str) -> None:
    """Serve until killed, as the bare handler or as the gateway; the first line printed is the address."""
    if kind == "gateway":
        tokenizer = make_tiny_tokenizer(1024, 10**6)
        tokenizer.chat_template = HERMES_TEMPLATE
        async with Gateway(client=InstantModel(tokenizer), tokenizer=tokenizer, auto_sessions=True) as gateway:
            print(gateway.url, flush=True)
            await asyncio.Event().wait()

    async def handler(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=ANSWER, content_type="application/json")

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
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


async def ask(http: aiohttp.ClientSession, url: str, body: bytes) -> tuple[float, bytes]:
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
    return [{"role": "system", "content": "module " * 900}, {"role": "user", "content": "Go"}], tools


async def measure(litellm: str, rounds: int, port: int) -> dict[str, Any]:
    """Median latencies, and CPU per request, of the three servers."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)))
        own = [sys.executable, "-m", "benchmarks.gateway_litellm", "--serve"]
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
                taken, answers[name] = await ask(http, url, body)
                if number >= warm:
                    seconds[name].append(taken)
            reply = orjson.loads(answers["gateway"])["choices"][0]["message"]
            messages.append({key: value for key, value in reply.items() if value is not None})
            messages += [
                {"role": "tool", "tool_call_id": made["id"], "content": "module " * 50} for made in reply["tool_calls"]
            ]
        used = {name: 1e3 * (cpu(server) - before[name]) / rounds for name, server in servers.items()}
    latency = {name: 1e3 * statistics.median(values) for name, values in seconds.items()}
    # The proxy's requests reach the bare handler too, so that one's CPU is for two.
    used["bare"] /= 2
    added = {name: latency[name] - latency["bare"] for name in ("gateway", "litellm")}
    print("| server | body | latency | added | CPU |\n|---|---|---|---|---|")
    for name in urls:
        more = f"{added[name]:.2f} ms" if name in added else ""
        print(f"| {name} | {len(body) / 1000:.0f} kB | {latency[name]:.2f} ms | {more} | {used[name]:.2f} ms |")
    ratio = {"added": added["litellm"] / added["gateway"], "cpu": used["litellm"] / used["gateway"]}
    print(f"\nlitellm's proxy adds {ratio['added']:.1f} times the latency, and takes {ratio['cpu']:.1f} times the CPU.")
    return {
        "latency_ms": {name: round(value, 2) for name, value in latency.items()},
        "cpu_ms": {name: round(value, 2) for name, value in used.items()},
        "ratio": {name: round(value, 1) for name, value in ratio.items()},
        "rounds": rounds,
    }


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litellm", help="the program litellm of an environment with litellm[proxy]")
    parser.add_argument("--rounds", type=int, default=60, help="requests measured")
    parser.add_argument("--port", type=int, default=48291, help="port of the proxy")
    parser.add_argument("--serve", choices=("bare", "gateway"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve(args.serve))
    elif not args.litellm:
        parser.error("--litellm is needed")
    else:
        figures = asyncio.run(measure(args.litellm, args.rounds, args.port))
        print(json.dumps({"benchmark": "gateway_litellm", **figures}))


if __name__ == "__main__":
    main()
