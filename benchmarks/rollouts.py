"""Costs of whole rollouts beside strands-sglang: an agent, an `Environment`, and through slime.

    python -m benchmarks.rollouts [--passes 5] [--sizes 3k 36k 90k] [--arms sdk floor ours upstream]
    python -m benchmarks.rollouts --arms environment --without all pieces flat_loop   # what each fast path saves

Agents of the Strands SDK run against a scripted server in a process of its own. Each arm is a process, too, and has
loaded the tokenizer with transformers, as training and evaluation do: the garbage collector walks what was imported.
All arms run in one environment, with the same Python and packages: that of strands-sglang, made on the first run under
`.cache`; ours come first on its path. What a rollout makes for itself, agent and model included, is part of its cost.

- `sdk`: an `Agent` whose model answers at once, without a server: the SDK's own loop;
- `floor`: an `Agent` with the least that a provider can do: it encodes the new text, sends the ids, parses the answer
  and keeps what came, with no check, template, retry or second thought;
- `ours`: an `Agent` with `SGLangModel`;
- `environment`: a whole rollout of an `Environment` with `SGLangModel`, token observation and trajectories included;
- `slime`: the same rollouts through `strands_env.training.slime.generate`, filled samples included;
- `upstream`: an `Agent` with strands-sglang;
- `--without NAME`: `environment` with one fast path turned off, or all of them; what it saves is `1 - with / without`
  of a pass.

Every pass runs all arms of a size one after the other; the order changes from pass to pass, so that a slow minute hits
all of them. Figures are CPU milliseconds of the arm's process per turn, medians of the passes; ratios are medians of
the ratios within a pass. A provider is what an arm takes beyond `sdk`: `provider_over_floor` and
`provider_over_upstream` are ratios of these differences, and `floor_over_upstream` is what the floor itself costs.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import orjson
from benchmarks.shape import arguments, environment_of, median, newer_python, print_figures

ROOT = Path(__file__).resolve().parents[1]
SEED = 7
REPLY_TOKENS = 100
MOST_NEW_TOKENS = 4096  # `max_new_tokens` is this and the number of turns, by which the server knows the last one
SIZES = {"3k": (3_000, 10, 50), "36k": (36_000, 40, 10), "90k": (90_000, 100, 4)}
"""Tokens of a trajectory, turns, agents at a time."""
ARMS = ("sdk", "floor", "ours", "upstream", "environment", "slime")
RATIOS = (
    ("provider_over_floor", "ours", "floor", "sdk"),
    ("provider_over_upstream", "ours", "upstream", "sdk"),
    ("floor_over_upstream", "floor", "upstream", "sdk"),
    ("environment_over_upstream", "environment", "upstream", None),
    ("slime_over_environment", "slime", "environment", None),
)
"""Name of a ratio, its arm and the arm below, and the arm that is subtracted from both."""
UPSTREAM = {True: "0.6.2", False: "0.4.3"}  # whether there is a Python of at least 3.12
WORDS = "the search found several pages about rivers lakes mountains weather trains cities and their history"
TOOL = {
    "name": "search",
    "description": "Search the library and return the pages that were found.",
    "inputSchema": {
        "json": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look for."}},
            "required": ["query"],
        }
    },
}
MARK = " dragon"  # in calls only: the server counts turns by it
QUERY = f"rivers and lakes near the{MARK}"
CALL = f'<tool_call>\n{{"name": "search", "arguments": {{"query": "{QUERY}"}}}}\n</tool_call>'
LAST = "That is all."
JSON_HEADERS = {"Content-Type": "application/json"}
SYSTEM, QUESTION = "You are a librarian. Use the search tool.", "Which of the lakes is the deepest?"


def words(count: int, seed: int) -> str:
    """About `count` tokens of text."""
    choose = random.Random(seed)
    return " ".join(choose.choices(WORDS.split(), k=count))


def reply_ids(tokenizer: Any, text: str) -> list[int]:
    """The ids of a reply of the usual length that ends with this text."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    filler = tokenizer.encode(words(200, 2), add_special_tokens=False).ids
    return [*filler[: REPLY_TOKENS - len(ids)], *ids]


# ---- arms ------------------------------------------------------------------------------------------------------------


def search_tool(result: str) -> Any:
    """The tool."""
    from strands import tool

    @tool(name=TOOL["name"], description=TOOL["description"], inputSchema=TOOL["inputSchema"])
    async def search(query: str) -> str:
        return result

    return search


def agent_of(model: Any, tool: Any) -> Any:
    """An agent with the tool."""
    from strands import Agent
    from strands.agent import NullConversationManager

    manager = NullConversationManager()  # the default one cuts the history to 40 messages
    return Agent(model=model, tools=[tool], system_prompt=SYSTEM, callback_handler=None, conversation_manager=manager)


def least_model(url: str | None, session: Any, tokenizer: Any, room: int) -> Any:
    """The least that a provider can do; without an address, the server's script, and no tokens.

    It knows this template, this tool and replies of this form, and takes every history for one that grows.
    """
    from strands.models import Model

    encoder, turns = tokenizer.backend_tokenizer, room - MOST_NEW_TOKENS
    opening = f"<|im_start|>system\n{SYSTEM}\n\n# Tools\n\n<tools>\n{json.dumps(TOOL)}\n</tools><|im_end|>\n"
    params = {"max_new_tokens": room, "skip_special_tokens": False}
    fields = orjson.dumps({"sampling_params": params, "return_logprob": True, "logprob_start_len": -1})[:-1]
    script = [encoder.decode(reply_ids(encoder, text), skip_special_tokens=False) for text in (CALL, LAST)]

    class LeastModel(Model):
        def __init__(self) -> None:
            self.token_manager: list[int] = []
            self.logprobs: list[float | None] = []
            self.prompt, self.calls = b"", 0

        def update_config(self, **config: Any) -> None:
            raise NotImplementedError

        def get_config(self) -> Any:
            return {}

        def structured_output(self, *args: Any, **options: Any) -> Any:
            raise NotImplementedError

        async def count_tokens(self, *args: Any, **options: Any) -> int:
            return 0

        def keep(self, ids: list[int], logprobs: list[float | None]) -> None:
            self.token_manager += ids
            self.logprobs += logprobs
            self.prompt += b",%b" % orjson.dumps(ids)[1:-1]

        async def answer(self, messages: Any) -> str:
            texts = [] if self.token_manager else [opening]
            for block in messages[-1]["content"]:
                if "text" in block:
                    texts.append(f"<|im_start|>user\n{block['text']}<|im_end|>\n")
                else:
                    shown = "".join(part["text"] for part in block["toolResult"]["content"])
                    texts.append(f"\n<|im_start|>user\n<tool_response>\n{shown}\n</tool_response><|im_end|>\n")
            text = "".join(texts) + "<|im_start|>assistant\n"
            new = encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
            self.keep(new, [None] * len(new))
            body = b'%b,"input_ids":[%b]}' % (fields, self.prompt[1:])
            async with session.post(f"{url}/generate", data=body, headers=JSON_HEADERS) as response:
                answered = orjson.loads(await response.read())
            ids, meta = answered["output_ids"], answered["meta_info"]
            self.keep(ids, [entry[0] for entry in meta["output_token_logprobs"]])
            return str(encoder.decode(ids[:-1], skip_special_tokens=False))

        async def stream(self, messages: Any, *args: Any, **options: Any) -> Any:
            self.calls += 1
            text = script[self.calls == turns] if url is None else await self.answer(messages)
            shown, opened, call = text.partition("<tool_call>")
            yield {"messageStart": {"role": "assistant"}}
            if shown := shown.strip():
                yield {"contentBlockDelta": {"delta": {"text": shown}}}
                yield {"contentBlockStop": {}}
            if opened:
                made = json.loads(call.partition("</tool_call>")[0])
                use = {"toolUseId": f"call{self.calls:05d}", "name": made["name"]}
                yield {"contentBlockStart": {"start": {"toolUse": use}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(made["arguments"])}}}}
                yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use" if opened else "end_turn"}}
            usage = {"inputTokens": len(self.token_manager), "outputTokens": 0, "totalTokens": len(self.token_manager)}
            yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 0}}}

    return LeastModel()


def library(result: str, at_end: Callable[[], Awaitable[Any]] | None = None) -> type:
    """The class of an environment with the tool; `at_end` is awaited when a conversation is complete."""
    from strands_env.core import Environment

    search = search_tool(result)

    class Library(Environment):
        def get_tools(self) -> list[Any]:
            return [search]

        async def interact(self, agent: Any, action: Any) -> Any:
            answer = await super().interact(agent, action)
            if at_end is not None:
                await at_end()
            return answer

    return Library


async def rollouts(client: Any, tokenizer: Any, agents: int, result: str, room: int, at_end: Any = None) -> list[Any]:
    """Whole rollouts of an environment with the tool."""
    from strands_env.core import Action
    from strands_env.core.models import sglang_model_factory

    params = {"max_new_tokens": room}
    factory = sglang_model_factory(client=client, tokenizer=tokenizer, sampling_params=params)
    env = library(result, at_end)(model_factory=factory, system_prompt=SYSTEM, reward_fn=lambda action, result: 1.0)
    return list(await asyncio.gather(*(env.rollout(Action(message=QUESTION)) for _ in range(agents))))


class Sample(SimpleNamespace):
    """The fields of slime's sample that a rollout reads or fills."""

    Status = Enum("Status", ["PENDING", "COMPLETED", "TRUNCATED", "ABORTED", "FAILED"])

    def __init__(self, index: int) -> None:
        super().__init__(
            group_index=0, index=index, rollout_id=None, session_id=None, prompt=QUESTION, label=None, metadata={},
            reward=None, status=self.Status.PENDING, multimodal_inputs=None,
        )  # fmt: skip


def make_library(*, model_factory: Any, args: Any) -> Any:
    """The factory that slime's arguments name."""
    return args.library(model_factory=model_factory, system_prompt=SYSTEM, reward_fn=lambda action, result: 1.0)


async def slime_rollouts(url: str, folder: str, agents: int, result: str, tokens: int, turns: int) -> list[Any]:
    """The same, as slime runs them."""
    from strands_env.training import slime

    host, _, port = url.removeprefix("http://").partition(":")
    args = SimpleNamespace(
        sglang_router_ip=host,
        sglang_router_port=int(port),
        hf_checkpoint=folder,
        partial_rollout=False,
        library=library(result),
        strands_env_factory="benchmarks.rollouts.make_library",
        strands_env_model_options={"request_fields": {"priority": turns}},  # tells the server when to end
    )
    params = {"max_new_tokens": 2 * tokens, "temperature": 1.0, "top_p": 1.0, "stop": None}  # of the whole response
    return list(await asyncio.gather(*(slime.generate(args, Sample(n), dict(params)) for n in range(agents))))


def replies(messages: list[Any]) -> int:
    """Replies of the model in a history."""
    return sum(message["role"] == "assistant" for message in messages)


async def run_size(arm: str, order: dict[str, Any], tokenizer: Any) -> float:
    """One pass of an arm: CPU milliseconds per turn."""
    from strands_sglang import SGLangClient, SGLangModel

    tokens, turns, agents = order["tokens"], order["turns"], order["agents"]
    url, room = order["url"], MOST_NEW_TOKENS + turns
    result = result_of(tokens, turns)
    client, exits = SGLangClient(base_url=url), AsyncExitStack()
    exits.push_async_callback(client.close)
    started = time.process_time()
    if arm == "slime":
        samples = await slime_rollouts(url, order["folder"], agents, result, tokens, turns)
        spent = time.process_time() - started
        assert all(each.status is Sample.Status.COMPLETED for each in samples), samples[0].metadata
        taken = [each.metadata["strands_env"]["metrics"]["model_calls"] for each in samples]
        length = len(samples[0].tokens)
    elif arm == "environment":
        results = await rollouts(client, tokenizer, agents, result, room)
        spent = time.process_time() - started
        assert all(each.error is None and each.reward.reward == 1.0 for each in results), results[0].error
        taken = [replies(each.observation.messages) for each in results]
        length = len(results[0].observation.tokens.token_ids)
    else:
        params = {"max_new_tokens": room}
        if arm in ("sdk", "floor"):
            session = await exits.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
            models = [least_model(url if arm == "floor" else None, session, tokenizer, room) for _ in range(agents)]
        else:
            models = [SGLangModel(client=client, tokenizer=tokenizer, sampling_params=params) for _ in range(agents)]
        made = [agent_of(each, search_tool(result)) for each in models]
        await asyncio.gather(*(each.invoke_async(QUESTION) for each in made))
        spent = time.process_time() - started
        taken = [replies(each.messages) for each in made]
        length = len(getattr(models[0], "rollout", None) or models[0].token_manager)
    await exits.aclose()
    assert taken == [turns] * agents, f"{arm}: turns {sorted(set(taken))}, expected {turns}"
    assert arm == "sdk" or abs(length - tokens) < 0.1 * tokens, f"{arm}: {length} tokens, expected {tokens}"
    return 1000 * spent / (turns * agents)


async def run_held(arm: str, order: dict[str, Any], tokenizer: Any) -> float:
    """Kilobytes that a rollout holds whose conversation is complete, of so many that are alive in this process."""
    from strands_sglang import SGLangClient, SGLangModel

    agents, room, result = order["agents"], MOST_NEW_TOKENS + order["turns"], result_of(order["tokens"], order["turns"])
    params = {"max_new_tokens": room}
    client, before = SGLangClient(base_url=order["url"]), resident_kb()
    if arm == "environment":
        ends = asyncio.Barrier(agents + 1)
        running = asyncio.create_task(rollouts(client, tokenizer, agents, result, room, ends.wait))
        while ends.n_waiting < agents:
            assert not running.done(), running.result()
            await asyncio.sleep(0.01)
        held = resident_kb() - before
        await ends.wait()
        await running
    else:
        made = [
            agent_of(SGLangModel(client=client, tokenizer=tokenizer, sampling_params=params), search_tool(result))
            for _ in range(agents)
        ]
        await asyncio.gather(*(each.invoke_async(QUESTION) for each in made))
        held = resident_kb() - before
        assert {replies(each.messages) for each in made} == {order["turns"]}
    await client.close()
    return held / agents


def resident_kb() -> float:
    """Memory of this process, without what it has freed; Linux only, as psutil is not in upstream's environment."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e3


def work(arm: str, folder: str) -> None:
    """Run passes as they are ordered on standard input, one JSON line each."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    for line in sys.stdin:
        order = {**json.loads(line), "folder": folder}
        run = run_held if order.get("held") else run_size
        print(json.dumps(asyncio.run(run(arm, order, tokenizer))), flush=True)


# ---- the scripted server ---------------------------------------------------------------------------------------------


def serve(folder: str) -> None:
    """Answer `POST /generate` with a tool call, or in the last turn the last reply.

    `POST /{ms}/generate` is answered after half to one and a half times so many milliseconds.
    """
    from tokenizers import Tokenizer

    gc.disable()  # its pauses would be taken for those of its clients
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    choose = random.Random(SEED)

    def reply(text: str) -> bytes:
        """The answer of a turn, without what differs from request to request."""
        ids = reply_ids(tokenizer, text)
        entries = [[-choose.expovariate(2.0), token, None] for token in ids]
        meta = {
            "finish_reason": {"type": "stop", "matched": ids[-1]},
            "weight_version": "default",
            "weight_versions": [{"version": "default", "start": 0, "end": len(ids)}],
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "input_token_logprobs": [],
            "output_token_logprobs": entries,
            "output_token_logprobs_length": len(ids),
        }
        answer = {"text": tokenizer.decode(ids), "output_ids": ids, "meta_info": meta}
        return json.dumps(answer, separators=(",", ":")).encode()[:-2]

    (mark,) = tokenizer.encode(MARK, add_special_tokens=False).ids
    call, last = reply(CALL + "<|im_end|>"), reply(f"{LAST}<|im_end|>")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                path, length = line.split()[1], 0
                while (header := await reader.readline()) != b"\r\n":
                    name, _, value = header.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                body, began = await reader.readexactly(length), time.perf_counter()
                status, answer = b"404 Not Found", b"{}"
                if path.endswith(b"/generate"):
                    request = json.loads(body)
                    prompt = len(request["input_ids"])
                    turns = request.get("priority") or request["sampling_params"]["max_new_tokens"] - MOST_NEW_TOKENS
                    final = request["input_ids"].count(mark) + 1 >= turns
                    if delay_ms := path[1 : -len(b"/generate")]:
                        await asyncio.sleep(int(delay_ms) / 1000 * choose.uniform(0.5, 1.5))
                    status = b"200 OK"
                    answer = b'%b,"prompt_tokens":%d,"e2e_latency":%.6f,"id":"%b"}}' % (
                        last if final else call,
                        prompt,
                        time.perf_counter() - began,
                        request.get("rid", "none").encode(),
                    )
                elif path.endswith(b"info"):
                    status, answer = b"200 OK", json.dumps({"vocab_size": 151_936, "model_path": "scripted"}).encode()
                writer.write(
                    b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                    % (status, len(answer), answer)
                )
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def listen() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 24, backlog=4096)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(listen())


# ---- the run ---------------------------------------------------------------------------------------------------------


def save_tokenizer(folder: Path) -> None:
    """The Qwen tokenizer with a ChatML template, for all arms."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    from tests.qwen_support import qwen3_tokenizer

    from strands_sglang.backends.engine.templates import HERMES_TEMPLATE

    tokenizer = qwen3_tokenizer()
    tokenizer.chat_template = HERMES_TEMPLATE
    tokenizer.save_pretrained(folder)


def upstream_python() -> tuple[str | None, str]:
    """The interpreter of upstream's environment and its version; None and the reason where there is none."""
    from importlib.metadata import version as installed

    version = UPSTREAM[newer_python() is not None]
    python, reason = environment_of(
        f"strands-sglang=={version}", f"strands-agents=={installed('strands-agents')}", "orjson", "prometheus-client"
    )
    return python, version if python else reason


class Worker:
    """The process of an arm."""

    def __init__(self, python: str, *arguments: str, ours: bool = True, plain: str = "") -> None:
        path = os.pathsep.join([str(ROOT), *([str(ROOT / "src")] if ours else [])])
        settings = {"PYTHONPATH": path, "STRANDS_ROLLOUT_PLAIN": "1" if plain == "all" else plain}
        settings["PYTHONWARNINGS"] = "ignore::RuntimeWarning"  # both packages are in one environment on purpose
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **settings}
        self.process = subprocess.Popen(
            [python, __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, order: dict[str, Any]) -> float:
        """Run one pass: CPU milliseconds per turn."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"an arm ended: {self.process.args!r}")
        return float(json.loads(line))

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


@contextmanager
def scripted_server() -> Iterator[tuple[str, str, Worker]]:
    """The scripted server in a process of its own: the folder of its tokenizer, its address, and the process."""
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(Path(folder))
        server = Worker(sys.executable, "--serve", folder)
        try:
            assert server.process.stdout is not None
            if not (port := server.process.stdout.readline().strip()):
                raise SystemExit("the scripted server did not start")
            yield folder, f"http://127.0.0.1:{port}", server
        finally:
            server.close()


def result_of(tokens: int, turns: int) -> str:
    """The tool result with which a rollout of so many turns gets about so many tokens."""
    # Results fill a turn up; the last turn has none, and the first prompt holds the tools.
    return words(max(1, round((tokens - REPLY_TOKENS * turns - 200) / (turns - 1)) - 25), 1)


def order_of(size: str, url: str) -> dict[str, Any]:
    """The order for an arm."""
    return {**dict(zip(("tokens", "turns", "agents"), SIZES[size], strict=True)), "url": url}


def measure(args: argparse.Namespace, folder: str, url: str) -> dict[str, Any]:
    """Run all passes; medians by size."""
    python, version = upstream_python()
    workers: dict[str, Worker] = {}
    try:
        for arm in (*(arm for arm in ARMS if arm in args.arms), *(f"without {path}" for path in args.without)):
            if arm == "upstream" and python is None:
                print(f"upstream is left out: {version}", file=sys.stderr)
                continue
            kind, _, plain = arm.partition("without ")
            more = ("--work", kind or "environment", folder)
            workers[arm] = Worker(python or sys.executable, *more, ours=arm != "upstream", plain=plain)
        sizes = {}
        for size in args.sizes:
            for worker in workers.values():  # warm up
                worker.ask({**order_of(size, url), "agents": 2})
            passes: list[dict[str, float]] = []
            for number in range(args.passes):
                turn = list(workers)[number % len(workers) :] + list(workers)[: number % len(workers)]
                passes.append({arm: workers[arm].ask(order_of(size, url)) for arm in turn})
            sizes[size] = summary(passes)
    finally:
        for worker in workers.values():
            worker.close()
    return {"upstream": version, "passes": args.passes, "sizes": sizes}


def summary(passes: list[dict[str, float]]) -> dict[str, Any]:
    """Medians of the passes, and of the ratios within each."""
    arms = sorted(passes[0], key=lambda arm: (ARMS.index(arm) if arm in ARMS else len(ARMS), arm))
    figures: dict[str, Any] = {arm: median(each[arm] for each in passes) for arm in arms}
    for name, arm, other, base in RATIOS:
        if {arm, other, base or other} <= set(arms):
            taken = [(each[arm], each[other], 0.0 if base is None else each[base]) for each in passes]
            figures[name] = median((above - less) / (below - less) for above, below, less in taken)
    saved = [arm for arm in arms if arm not in ARMS and "environment" in arms]
    if saved:
        figures["saves"] = {arm: median((1 - each["environment"] / each[arm] for each in passes), 3) for arm in saved}
    return figures


def main() -> None:
    """Print the figures."""
    parser = arguments(__doc__, passes=5)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--without", nargs="+", default=[], metavar="FAST_PATH", help="fast paths, or all")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    if args.work:
        work(*args.work)
        return
    if args.quick:
        args.passes, args.sizes = 1, ["3k"]
    with scripted_server() as (folder, url, _):
        print_figures("rollouts", **measure(args, folder, url))


if __name__ == "__main__":
    main()
