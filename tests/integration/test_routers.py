"""sglang-router and smg in front of two workers: affinity, aborts, worker deaths, fields that get lost.

The routers are genuine (`scripts/routers install`), the workers are fakes whose model is a hash of the prompt, so what
a rollout must record is known. Every test has a router of its own, because failures open its circuit breaker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from provider_support import make_agent
from rollout_support import Tokens, failure, make_model, only_trajectory, rollout

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.exceptions import SGLangClientError, SGLangHTTPError
from tests.conftest import ROOT
from tests.servers import Fault, FaultyServer, ServerCall, faults, settle

TURNS = 4
ROUTERS = ("sglang-router", "smg")
SCRIPT = ROOT / "scripts" / "routers"


def _script(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


INSTALLED = shutil.which("bash") is not None and _script("installed").returncode == 0
pytestmark = pytest.mark.skipif(not INSTALLED, reason="the routers are not installed: scripts/routers install")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@asynccontextmanager
async def running_router(kind: str, workers: list[str], *options: str) -> AsyncIterator[str]:
    """A router process in front of these workers; its address."""
    port = free_port()
    command = [
        *_script("command", kind).stdout.split(),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())),
        *("--worker-startup-check-interval", "1", "--worker-startup-timeout-secs", "30"),
        *("--worker-urls", *workers, *options),
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    url = f"http://127.0.0.1:{port}"
    try:
        await ready(url, process, len(workers))
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def ready(url: str, process: subprocess.Popen[bytes], workers: int) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            assert process.poll() is None, f"the router ended with status {process.returncode}"
            try:
                async with session.get(f"{url}/workers") as answer:
                    listed = (await answer.json())["workers"]
                    if sum(worker.get("is_healthy", False) for worker in listed) == workers:
                        return
            except (aiohttp.ClientError, ValueError, KeyError):
                pass
            await asyncio.sleep(0.05)


Start = Callable[..., Awaitable[tuple[SGLangClient, list[FaultyServer]]]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """`start(kind, script, policy, *options)`: a client of a router in front of two workers, and the workers."""
    async with AsyncExitStack() as stack:

        async def make(
            kind: str, script: Any = (), policy: str = "manual", *options: str, **client: Any
        ) -> tuple[SGLangClient, list[FaultyServer]]:
            workers = [await stack.enter_async_context(FaultyServer(script, max_model_len=4096)) for _ in range(2)]
            urls = [worker.url for worker in workers]
            url = await stack.enter_async_context(running_router(kind, urls, "--policy", policy, *options))
            settings: dict[str, Any] = {"retry_delay": 0.05, "max_retry_delay": 0.5, "timeout": 30.0}
            made = SGLangClient(url, **{**settings, **client})
            stack.push_async_callback(made.close)
            return made, workers

        yield make


@pytest.fixture(scope="module")
def fault_free() -> Tokens:
    async def run() -> Tokens:
        async with FaultyServer() as server, SGLangClient(server.url) as client:
            return await rollout(make_model(client), TURNS)

    return asyncio.run(run())


def served(workers: list[FaultyServer]) -> list[tuple[int, dict[str, Any], dict[str, str]]]:
    """`(worker, body, headers)` of every request."""
    return [(n, request.body, request.headers) for n, worker in enumerate(workers) for request in worker.requests]


@pytest.mark.parametrize(
    ("kind", "policy"), [("sglang-router", "manual"), ("smg", "manual"), ("smg", "consistent_hashing")]
)
async def test_all_turns_of_an_episode_go_to_one_worker(start: Start, kind: str, policy: str) -> None:
    client, workers = await start(kind, (), policy)
    models = [make_model(client) for _ in range(7)]
    await asyncio.gather(*(rollout(model, TURNS, f"episode {n}") for n, model in enumerate(models)))
    at: dict[str, set[int]] = {}
    for worker, _, headers in served(workers):
        at.setdefault(headers["x-smg-routing-key"], set()).add(worker)
    assert len(served(workers)) == 7 * TURNS
    assert len(at) == 7
    assert all(len(used) == 1 for used in at.values())


async def busy_with(workers: list[FaultyServer], requests: int) -> FaultyServer:
    """The worker of the only episode, once it has so many of its requests."""
    while not any(len(worker.rids) == requests for worker in workers):
        await asyncio.sleep(0.01)
    (busy,) = [worker for worker in workers if worker.rids]
    return busy


@pytest.mark.parametrize("kind", ROUTERS)
async def test_a_cancelled_agent_stops_its_worker_and_keeps_the_complete_turns(start, kind, fault_free):
    client, workers = await start(kind, lambda call: faults.hang() if len(call.server.requests) == 3 else None)
    model = make_model(client)
    agent = make_agent(model)
    task = asyncio.create_task(agent.invoke_async("What is 1 + 2?"))
    busy = await busy_with(workers, 3)
    agent.cancel()
    assert (await task).stop_reason == "cancelled"
    await settle(client)
    assert busy.running == []
    # Which worker has it is not known, so every one is told.
    assert all(worker.aborted_rids == [busy.rids[2]] for worker in workers)
    kept = only_trajectory(model)
    assert kept.turns == 2
    assert kept.ids == fault_free.ids[: len(kept.ids)]


@pytest.mark.parametrize(
    ("kind", "policy"), [("sglang-router", "manual"), ("smg", "manual"), ("smg", "consistent_hashing")]
)
async def test_a_worker_killed_in_mid_rollout_costs_a_retry_and_not_a_token(start, kind, policy, fault_free):
    killed: list[FaultyServer] = []

    def choose(call: ServerCall) -> Fault | None:
        # The worker hangs in the third turn of the episode, and is killed there.
        return faults.hang() if not killed and len(call.server.requests) == 3 else None

    client, workers = await start(kind, choose, policy)
    model = make_model(client)
    running = asyncio.create_task(rollout(model, TURNS))
    busy = await busy_with(workers, 3)
    killed.append(busy)
    await busy.stop()
    assert await running == fault_free
    (other,) = [worker for worker in workers if worker is not busy]
    (trajectory,) = model.trajectories
    assert trajectory.request_ids == [*busy.rids[:2], *other.rids[-2:]]


@pytest.mark.parametrize("kind", ROUTERS)
async def test_no_worker_left_is_a_typed_error_and_the_tokens_so_far_are_kept(start, kind, fault_free):
    client, workers = await start(
        kind, lambda call: faults.hang() if len(call.server.requests) == 2 else None, max_retries=3
    )
    model = make_model(client)
    running = asyncio.create_task(failure(model, TURNS))
    await busy_with(workers, 2)
    await asyncio.gather(*(worker.stop() for worker in workers))
    error = await running
    assert isinstance(error, SGLangHTTPError)
    assert error.status >= 500
    kept = only_trajectory(model)
    assert kept.turns == 1
    assert kept.ids == fault_free.ids[: len(kept.ids)]


@pytest.mark.parametrize("kind", ROUTERS)
async def test_faults_of_the_workers_leave_no_trace_behind_a_router(start, kind, fault_free):
    broken = [
        *(faults.busy(), faults.half_written(), faults.half_written(framed=False), faults.reset()),
        *(faults.status(500, "Internal Server Error"), faults.aborted_partway(), faults.raw_answer([1])),
    ]
    # One fault in two, so that no class of failure is met too often in one call.
    script = [step for fault in broken for step in (fault, faults.answer())]
    client, workers = await start(kind, script, "manual", "--disable-circuit-breaker")
    model = make_model(client)
    assert await rollout(model, TURNS) == fault_free
    assert sum(len(worker.requests) for worker in workers) > TURNS
    (trajectory,) = model.trajectories
    assert len(set(trajectory.request_ids)) == len(trajectory.request_ids)


@pytest.mark.parametrize("kind", ROUTERS)
async def test_facts_come_through_a_router_and_what_it_drops_is_reported_once(start, kind, caplog) -> None:
    client, workers = await start(kind)
    assert await client.max_model_len() == 4096
    params = {"max_new_tokens": 8, "logit_bias": {"5": 1.0}, "spaces_between_special_tokens": False}
    for _ in range(3):
        await client.generate([1, 2], sampling_params=params, return_prompt_token_ids=True)
    received = [body for _, body, _ in served(workers)]
    assert len(received) == 3
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    for name in ("logit_bias", "spaces_between_special_tokens"):
        assert not any(name in body["sampling_params"] for body in received)
        assert sum(f"field=<sampling_params.{name}>" in text for text in warned) == 1
    # The fake worker ignores it, the older router does not even pass it on: both are the same to the caller.
    assert sum("field=<return_prompt_token_ids>" in text for text in warned) == 1
    assert any("return_prompt_token_ids" in body for body in received) is (kind == "smg")


@pytest.mark.parametrize("kind", ROUTERS)
async def test_experts_that_get_lost_fail_the_call_and_name_the_cause(start: Start, kind: str) -> None:
    client, workers = await start(kind)
    model: SGLangModel = make_model(client, return_routed_experts=True, require_routed_experts=True)
    error = await failure(model, 2)
    assert isinstance(error, SGLangClientError)
    assert "routers drop" in str(error)
    assert len(served(workers)) == 1
    assert model.trajectories == []


@pytest.mark.slow
@pytest.mark.timeout(420)
async def test_a_genuine_worker_that_dies_in_mid_rollout_costs_no_token(start_sglang_cpu: Callable[..., str]) -> None:
    """Both workers have the same weights, so whoever sampled a token, the survivor must score it alike."""
    transformers = pytest.importorskip("transformers", reason="the extra 'hf' or 'local' is not installed")
    starts = [asyncio.to_thread(start_sglang_cpu, "--context-length", "4096") for _ in range(2)]
    urls = await asyncio.gather(*starts)
    async with SGLangClient(urls[0]) as direct:
        tokenizer = transformers.AutoTokenizer.from_pretrained((await direct.get_model_info())["tokenizer_path"])
    stops = list(range(0, len(tokenizer), 4))
    params = {"max_new_tokens": 200, "stop_token_ids": stops}
    async with (
        running_router("sglang-router", urls, "--policy", "manual") as url,
        SGLangClient(url, retry_delay=0.2, max_retry_delay=2.0) as client,
    ):
        models = [make_model(client, tokenizer, sampling_params=params) for _ in range(9)]
        running = asyncio.gather(*(rollout(model, 12, f"episode {n}") for n, model in enumerate(models)))
        while min(len(model.forest.turns) for model in models) < 2:
            await asyncio.sleep(0.05)
        # An id outside the vocabulary is what kills a genuine server; the client itself would never send it.
        async with aiohttp.ClientSession() as session:
            with contextlib.suppress(aiohttp.ClientError):
                await session.post(f"{urls[0]}/generate", json={"input_ids": [1, 10**6]})
        tokens = await running
        assert all(made.turns == 12 for made in tokens)
    async with SGLangClient(urls[1]) as survivor:
        for made in tokens:
            scored = await survivor.generate(
                made.ids, sampling_params={"max_new_tokens": 0}, return_logprob=True, logprob_start_len=0
            )
            values = [entry[0] for entry in scored["meta_info"]["input_token_logprobs"]]
            sampled = [n for n, loss in enumerate(made.mask) if loss]
            assert max(abs(float(values[n]) - float(made.logprobs[n] or 0)) for n in sampled) < 1e-4
    async with SGLangClient(urls[0]) as dead:
        assert not await dead.health(timeout=5)
