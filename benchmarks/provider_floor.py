"""Costs of the provider beside the least that any exact provider has to do.

    python -m benchmarks.provider_floor [--passes 5] [--sizes 3k 36k 90k] [--arms null floor ours] [--tuned]
    python -m benchmarks.provider_floor --arms environment --without all pieces flat_loop   # what each fast path saves

Agents of the Strands SDK run against a scripted server in a process of its own. Each arm is a process, too, and has
loaded the tokenizer with transformers, as training and evaluation do: the garbage collector walks what was imported.

- `null`: the SDK's loop over a model that does nothing;
- `floor`: encode the new text with the Rust tokenizer, post the ids with aiohttp as bytes that grow, parse the answer
  with orjson, keep ids and log-probabilities, decode once;
- `ours`: `SGLangModel`;
- `vllm`: the same over vLLM's protocol, with answers in the shape of a genuine vLLM 0.32;
- `environment`: a whole rollout of an `Environment` with `SGLangModel`, token observation and trajectories included;
- `slime`: the same rollouts through `strands_env.training.slime.generate`, filled samples included;
- `upstream`: strands-sglang in a virtual environment of its own, made on the first run under `.cache`;
- `--without NAME`: `environment` with one fast path turned off, or all of them; what it saves is `1 - with / without`
  of a pass.

Every pass runs all arms of a size one after the other; the order changes from pass to pass, so that a slow minute hits
all of them. Figures are CPU milliseconds of the arm's process per turn, medians of the passes. A cost is what a
provider inside the SDK's loop takes beyond `null` in the same pass; arms that run that loop in another way have none,
and whole rollouts are compared instead. With `--tuned` every arm collects garbage as `docs/performance.md` tells users
to set it in a process that only runs rollouts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from benchmarks.shape import arguments, environment_of, median, newer_python, print_figures

ROOT = Path(__file__).resolve().parents[1]
SEED = 7
REPLY_TOKENS = 100
MOST_NEW_TOKENS = 4096  # `max_new_tokens` is this and the number of turns, by which the server knows the last one
SIZES = {"3k": (3_000, 10, 50), "36k": (36_000, 40, 10), "90k": (90_000, 100, 4)}
"""Tokens of a trajectory, turns, agents at a time."""
PROVIDERS = ("floor", "ours", "vllm", "upstream")  # inside the SDK's own loop
ARMS = ("null", *PROVIDERS, "environment", "slime")
RATIOS = (
    ("environment_over_upstream", "environment", "upstream"),
    ("slime_over_environment", "slime", "environment"),
)
"""Name of a ratio, its arm and the arm below."""
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
SYSTEM, QUESTION = "You are a librarian. Use the search tool.", "Which of the lakes is the deepest?"


def words(count: int, seed: int) -> str:
    """About `count` tokens of text."""
    choose = random.Random(seed)
    return " ".join(choose.choices(WORDS.split(), k=count))


# ---- arms ------------------------------------------------------------------------------------------------------------


def reply_events(text: str, call: bool, number: int) -> list[Any]:
    """The SDK's stream events of a reply."""
    events: list[Any] = [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockStart": {"start": {}}},
        {"contentBlockDelta": {"delta": {"text": text}}},
        {"contentBlockStop": {}},
    ]
    if call:
        events += [
            {"contentBlockStart": {"start": {"toolUse": {"toolUseId": f"call{number:05d}", "name": "search"}}}},
            {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps({"query": QUERY})}}}},
            {"contentBlockStop": {}},
        ]
    events.append({"messageStop": {"stopReason": "tool_use" if call else "end_turn"}})
    usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
    events.append({"metadata": {"usage": usage, "metrics": {"latencyMs": 0}}})
    return events


def null_model(turns: int) -> Any:
    """A model that does nothing."""
    from strands.models import Model

    class NullModel(Model):
        calls = 0

        def update_config(self, **model_config: Any) -> None:
            """Nothing to configure."""

        def get_config(self) -> dict[str, Any]:
            return {}

        def structured_output(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

        async def sample(self, messages: Any) -> tuple[str, bool]:
            """The text of the next reply, and whether it calls the tool."""
            return words(40, 0), self.calls < turns

        async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            self.calls += 1
            for event in reply_events(*await self.sample(messages), self.calls):
                yield event

    return NullModel()


def floor_model(turns: int, tokenizer: Any, session: Any, url: str) -> Any:
    """The least that an exact provider has to do."""
    import orjson

    model = null_model(turns)
    ids, logprobs = array("i"), array("d")
    prompt = b""
    headers = {"Content-Type": "application/json"}
    head = (
        b'{"rid":"%032x","sampling_params":{"max_new_tokens":%d,"skip_special_tokens":false},"return_logprob":true,'
        b'"logprob_start_len":-1,"stream":false,"input_ids":['
    )

    async def sample(messages: Any) -> tuple[str, bool]:
        nonlocal prompt
        content = messages[-1]["content"][0]
        text = content["toolResult"]["content"][0]["text"] if "toolResult" in content else SYSTEM + content["text"]
        new = tokenizer.encode(
            f"\n<|im_start|>user\n<tool_response>\n{text}\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
            add_special_tokens=False,
        ).ids
        ids.extend(new)
        prompt += (b"," if prompt else b"") + orjson.dumps(new)[1:-1]
        body = b"%b%b]}" % (head % (random.getrandbits(128), MOST_NEW_TOKENS + turns), prompt)
        async with session.post(url, data=body, headers=headers) as response:
            answer = orjson.loads(await response.read())
        sampled = answer["output_ids"]
        ids.extend(sampled)
        logprobs.extend([entry[0] for entry in answer["meta_info"]["output_token_logprobs"]])
        prompt += b"," + orjson.dumps(sampled)[1:-1]
        decoded = tokenizer.decode(sampled, skip_special_tokens=False)
        return decoded.partition("<tool_call>")[0], "<tool_call>" in decoded

    model.sample = sample
    return model


def agent_of(model: Any, result: str) -> Any:
    """An agent with the tool."""
    from strands import Agent, tool
    from strands.agent import NullConversationManager

    @tool(name=TOOL["name"], description=TOOL["description"], inputSchema=TOOL["inputSchema"])
    async def search(query: str) -> str:
        return result

    manager = NullConversationManager()  # the default one cuts the history to 40 messages
    return Agent(model=model, tools=[search], system_prompt=SYSTEM, callback_handler=None, conversation_manager=manager)


def library(result: str) -> type:
    """The class of an environment with the tool."""
    from strands import tool

    from strands_env.core import Environment

    @tool(name=TOOL["name"], description=TOOL["description"], inputSchema=TOOL["inputSchema"])
    async def search(query: str) -> str:
        return result

    class Library(Environment):
        def get_tools(self) -> list[Any]:
            return [search]

    return Library


async def rollouts(client: Any, tokenizer: Any, agents: int, result: str, room: int) -> list[Any]:
    """Whole rollouts of an environment with the tool."""
    from strands_env.core import Action
    from strands_env.core.models import sglang_model_factory

    params = {"max_new_tokens": room}
    factory = sglang_model_factory(client=client, tokenizer=tokenizer, sampling_params=params)
    env = library(result)(model_factory=factory, system_prompt=SYSTEM, reward_fn=lambda action, result: 1.0)
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
        strands_env_factory="benchmarks.provider_floor.make_library",
        strands_env_model_options={"request_fields": {"priority": turns}},  # tells the server when to end
    )
    params = {"max_new_tokens": 2 * tokens, "temperature": 1.0, "top_p": 1.0, "stop": None}  # of the whole response
    return list(await asyncio.gather(*(slime.generate(args, Sample(n), dict(params)) for n in range(agents))))


class Collections:
    """The time that the garbage collector took; it grows with what a process has imported."""

    def __init__(self) -> None:
        self.seconds = 0.0
        gc.callbacks.append(self._at)

    def _at(self, phase: str, info: dict[str, int]) -> None:
        self.seconds += time.process_time() if phase == "stop" else -time.process_time()


COLLECTIONS = Collections()


def replies(messages: list[Any]) -> int:
    """Replies of the model in a history."""
    return sum(message["role"] == "assistant" for message in messages)


async def run_size(arm: str, order: dict[str, Any], load: Callable[[], Any]) -> dict[str, float]:
    """One pass of an arm: CPU milliseconds per turn."""
    import aiohttp

    tokens, turns, agents = order["tokens"], order["turns"], order["agents"]
    url, room = order["url"], MOST_NEW_TOKENS + turns
    result = words(order["result_words"], 1)
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) if arm == "floor" else None
    client = None
    if arm in ("ours", "environment", "upstream"):
        from strands_sglang import SGLangClient

        client = SGLangClient(base_url=url)
    elif arm == "vllm":
        from strands_sglang.backends.vllm import VLLMClient

        client = VLLMClient(base_url=url)

    def model() -> Any:
        if arm == "null":
            return null_model(turns)
        if arm == "floor":
            return floor_model(turns, load(), session, f"{url}/generate")
        from strands_sglang import SGLangModel

        return SGLangModel(client=client, tokenizer=load(), sampling_params={"max_new_tokens": room})

    if arm == "slime":
        load()
        collecting = COLLECTIONS.seconds
        wall, started = time.perf_counter(), time.process_time()
        samples = await slime_rollouts(url, order["folder"], agents, result, tokens, turns)
        spent, wall = time.process_time() - started, time.perf_counter() - wall
        assert all(each.status is Sample.Status.COMPLETED for each in samples), samples[0].metadata
        taken = [each.metadata["strands_env"]["metrics"]["model_calls"] for each in samples]
        length = len(samples[0].tokens)
    elif arm == "environment":
        tokenizer = load()
        collecting = COLLECTIONS.seconds
        wall, started = time.perf_counter(), time.process_time()
        results = await rollouts(client, tokenizer, agents, result, room)
        spent, wall = time.process_time() - started, time.perf_counter() - wall
        assert all(each.error is None and each.reward.reward == 1.0 for each in results), results[0].error
        taken = [replies(each.observation.messages) for each in results]
        length = len(results[0].observation.tokens.token_ids)
    else:
        models = [model() for _ in range(agents)]
        made = [agent_of(each, result) for each in models]
        collecting = COLLECTIONS.seconds
        wall, started = time.perf_counter(), time.process_time()
        await asyncio.gather(*(each.invoke_async(QUESTION) for each in made))
        spent, wall = time.process_time() - started, time.perf_counter() - wall
        taken = [replies(each.messages) for each in made]
        length = 0 if client is None else len(getattr(models[0], "rollout", None) or models[0].token_manager)
    collecting = COLLECTIONS.seconds - collecting
    assert taken == [turns] * agents, f"{arm}: turns {sorted(set(taken))}, expected {turns}"
    if client is not None or arm == "slime":
        assert abs(length - tokens) < 0.1 * tokens, f"{arm}: {length} tokens, expected {tokens}"
    if client is not None:
        await client.close()
    if session is not None:
        await session.close()
    seconds = {"cpu_ms": spent, "gc_ms": collecting, "wall_ms": wall}
    return {name: 1000 * value / (turns * agents) for name, value in seconds.items()}


def work(arm: str, folder: str, profile: str | None, is_tuned: bool) -> None:
    """Run passes as they are ordered on standard input, one JSON line each."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    passes = 0

    def load() -> Any:
        return tokenizer.backend_tokenizer if arm == "floor" else tokenizer

    for line in sys.stdin:
        order, passes = {**json.loads(line), "folder": folder}, passes + 1
        if is_tuned and passes == 2:  # behind the warm-up, which imports and loads
            gc.collect()
            gc.freeze()
            gc.set_threshold(1_000, 10_000)
        if profile and order.get("measured"):
            import cProfile

            profiler = cProfile.Profile(time.process_time)
            figures = profiler.runcall(asyncio.run, run_size(arm, order, load))
            profiler.dump_stats(profile)
        else:
            figures = asyncio.run(run_size(arm, order, load))
        print(json.dumps(figures), flush=True)


# ---- the scripted server ---------------------------------------------------------------------------------------------


class Answers(NamedTuple):
    """The answer of a turn in both protocols, without what differs from request to request."""

    sglang: bytes
    vllm: bytes


def serve(folder: str) -> None:
    """Answer `POST /generate` and vLLM's `/inference/v1/generate` with a tool call, or in the last turn the last reply.

    `POST /{ms}/generate` is answered after half to one and a half times so many milliseconds.
    """
    from tokenizers import Tokenizer

    gc.disable()  # its pauses would be taken for those of its clients
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    choose = random.Random(SEED)

    def reply(text: str) -> Answers:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        filler = tokenizer.encode(words(200, 2), add_special_tokens=False).ids
        ids = [*filler[: REPLY_TOKENS - len(ids)], *ids]
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
        content = [
            {**entry, "top_logprobs": [entry]}
            for entry in ({"token_id": token, "logprob": logprob, "rank": 1} for logprob, token, _ in entries)
        ]
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": ids,
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": meta["weight_versions"],
            "logprobs": {"content": content},
        }
        compact = {"separators": (",", ":")}
        return Answers(
            sglang=json.dumps(answer, **compact).encode()[:-2],
            vllm=json.dumps({"output_mode": "tokens", "choices": [choice]}, **compact).encode()[1:],
        )

    (mark,) = tokenizer.encode(MARK, add_special_tokens=False).ids
    call, last = reply(CALL + "<|im_end|>"), reply("That is all.<|im_end|>")

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
                if path == b"/inference/v1/generate":
                    request = json.loads(body)
                    prompt, params = request["token_ids"], request["sampling_params"]
                    final = prompt.count(mark) + 1 >= params["max_tokens"] - MOST_NEW_TOKENS
                    usage = b'"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":0}'
                    status = b"200 OK"
                    answer = b'{"request_id":"generate-tokens-%b","model":"scripted","usage":{%b},%b' % (
                        request["request_id"].encode(),
                        usage % (len(prompt), REPLY_TOKENS),
                        (last if final else call).vllm,
                    )
                elif path.endswith(b"/generate"):
                    request = json.loads(body)
                    prompt = len(request["input_ids"])
                    turns = request.get("priority") or request["sampling_params"]["max_new_tokens"] - MOST_NEW_TOKENS
                    final = request["input_ids"].count(mark) + 1 >= turns
                    if delay_ms := path[1 : -len(b"/generate")]:
                        await asyncio.sleep(int(delay_ms) / 1000 * choose.uniform(0.5, 1.5))
                    status = b"200 OK"
                    answer = b'%b,"prompt_tokens":%d,"e2e_latency":%.6f,"id":"%b"}}' % (
                        (last if final else call).sglang,
                        prompt,
                        time.perf_counter() - began,
                        request.get("rid", "none").encode(),
                    )
                elif path.endswith(b"info"):
                    status, answer = b"200 OK", json.dumps({"vocab_size": 151_936, "model_path": "scripted"}).encode()
                elif path.endswith(b"/v1/models"):
                    listing = {"data": [{"id": "scripted", "max_model_len": 262_144}]}
                    status, answer = b"200 OK", json.dumps(listing).encode()
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
    python, reason = environment_of(f"strands-sglang=={version}", f"strands-agents=={installed('strands-agents')}")
    return python, version if python else reason


class Worker:
    """The process of an arm."""

    def __init__(self, python: str, *arguments: str, ours: bool = True, plain: str = "") -> None:
        path = os.pathsep.join([str(ROOT), *([str(ROOT / "src")] if ours else [])])
        settings = {"PYTHONPATH": path, "STRANDS_ROLLOUT_PLAIN": "1" if plain == "all" else plain}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **settings}
        self.process = subprocess.Popen(
            [python, __file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, order: dict[str, Any]) -> dict[str, float]:
        """Run one pass."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"an arm ended: {self.process.args!r}")
        figures: dict[str, float] = json.loads(line)
        return figures

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


def order_of(size: str, url: str) -> dict[str, Any]:
    """The order for an arm."""
    tokens, turns, agents = SIZES[size]
    return {
        "tokens": tokens,
        "turns": turns,
        "agents": agents,
        # Tool results fill a turn up; the last turn has none, and the first prompt holds the tools.
        "result_words": round((tokens - REPLY_TOKENS * turns - 200) / (turns - 1)) - 25,
        "url": url,
    }


def measure(args: argparse.Namespace, folder: str, url: str) -> dict[str, Any]:
    """Run all passes; medians by size."""
    version = ""
    workers: dict[str, Worker] = {}
    try:
        for arm in (*(arm for arm in ARMS if arm in args.arms), *(f"without {path}" for path in args.without)):
            python: str | None = sys.executable
            if arm == "upstream":
                python, version = upstream_python()
                if python is None:
                    print(f"upstream is left out: {version}", file=sys.stderr)
                    continue
            kind, _, plain = arm.partition("without ")
            extra = ["--profile", args.profile] if args.profile and arm == args.profiled else []
            extra += ["--tuned"] if args.tuned else []
            more = ("--work", kind or "environment", folder, *extra)
            workers[arm] = Worker(python or "", *more, ours=arm != "upstream", plain=plain)
        sizes = {}
        for size in args.sizes:
            for worker in workers.values():  # warm up
                worker.ask({**order_of(size, url), "agents": 2})
            passes: list[dict[str, dict[str, float]]] = []
            for number in range(args.passes):
                turn = list(workers)[number % len(workers) :] + list(workers)[: number % len(workers)]
                order = {**order_of(size, url), "measured": True}
                passes.append({arm: workers[arm].ask(order) for arm in turn})
            sizes[size] = summary(passes)
    finally:
        for worker in workers.values():
            worker.close()
    return {"upstream": version, "passes": args.passes, "tuned": args.tuned, "sizes": sizes}


def summary(passes: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Medians of the passes, and of the costs and ratios within each."""
    arms = sorted(passes[0], key=lambda arm: (ARMS.index(arm) if arm in ARMS else len(ARMS), arm))
    total = [{arm: each[arm]["cpu_ms"] for arm in arms} for each in passes]
    beside = [{arm: each[arm]["cpu_ms"] - each[arm]["gc_ms"] for arm in arms} for each in passes]
    figures: dict[str, Any] = {arm: median(each[arm] for each in total) for arm in arms}
    figures["collecting"] = {arm: median(each[arm]["gc_ms"] for each in passes) for arm in arms}
    for name, arm, other in RATIOS:
        if arm in arms and other in arms:
            figures[name] = median(each[arm] / each[other] for each in total)
    saved = [arm for arm in arms if arm not in ARMS and "environment" in arms]
    if saved:
        figures["saves"] = {arm: median((1 - each["environment"] / each[arm] for each in total), 3) for arm in saved}
    if "null" in arms:
        costs = costs_of(total)
        if "vllm" in arms and "ours" in arms:
            figures["vllm_over_sglang"] = median(each["vllm"] / each["ours"] for each in costs)
        figures["cost"] = {arm: median(each[arm] for each in costs) for arm in costs[0]}
        if "floor" in arms:
            figures["over_floor"] = over_floor(costs)
            figures["over_floor_without_collections"] = over_floor(costs_of(beside))
    return figures


def costs_of(passes: list[dict[str, float]]) -> list[dict[str, float]]:
    """Costs of each provider beyond the null loop."""
    return [{arm: each[arm] - each["null"] for arm in PROVIDERS if arm in each} for each in passes]


def over_floor(costs: list[dict[str, float]]) -> dict[str, float]:
    """Median ratio to the floor's cost in the same pass."""
    return {arm: median(each[arm] / each["floor"] for each in costs) for arm in costs[0]}


def main() -> None:
    """Print the figures."""
    parser = arguments(__doc__, passes=5)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--without", nargs="+", default=[], metavar="FAST_PATH", help="fast paths, or all")
    parser.add_argument(
        "--tuned", action="store_true", help="garbage collection as in a process that only runs rollouts"
    )
    parser.add_argument("--profile", help="write a profile of one arm to this file")
    parser.add_argument("--profiled", choices=ARMS, default="ours", help="that arm")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    if args.work:
        work(*args.work, args.profile, args.tuned)
        return
    if args.quick:
        args.passes, args.sizes = 1, ["3k"]
    with scripted_server() as (folder, url, _):
        print_figures("provider_floor", **measure(args, folder, url))


if __name__ == "__main__":
    main()
