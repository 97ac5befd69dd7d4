"""Closing ends every call, whatever it waits for, on every loop, and never in another process."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from aiohttp import web
from provider_support import tokenizer

from strands_sglang import SGLangModel
from strands_sglang.backends.sglang.client import SGLangClient
from strands_sglang.exceptions import SGLangConnectionError
from strands_sglang.testing import Reply
from tests.servers import FaultyServer, faults
from tests.unit.client_support import make, stalled_body


async def ended(*calls: asyncio.Future[Any]) -> list[Any]:
    """Results and errors of the calls."""
    return await asyncio.gather(*calls, return_exceptions=True)


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., FaultyServer]]:
    """Starts servers on a loop of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    servers: list[FaultyServer] = []

    def start(server: FaultyServer) -> FaultyServer:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result()
        servers.append(server)
        return server

    yield start
    for server in servers:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def test_close_ends_calls_wherever_their_answer_is_and_their_tasks_go_on() -> None:
    script = [stalled_body(), stalled_body(chunked=True), stalled_body(500), faults.hang()]
    async with FaultyServer(script) as server:
        client = make(server.url, timeout=None)

        async def work() -> int:
            with pytest.raises(SGLangConnectionError, match="closed"):
                await client.generate([1])
            await client.generate([2])  # on a new connection
            task = asyncio.current_task()
            return task.cancelling() if task else -1

        calls = [asyncio.create_task(work()) for _ in script]
        await server.wait_for_requests(4)
        await asyncio.sleep(0.05)
        aborted = set(server.rids)
        await client.close()
        assert await ended(*calls) == [0] * 4
        assert set(server.aborted_rids) == aborted
        assert len(server.requests) == 8
        await client.close()
        assert client.closings == 2


# ------------------------------------------------------------------------------- probes


class SlowControl(FaultyServer):
    """Its control routes never answer."""

    async def _other(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(f"{request.method} {request.path}")
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("moments", [range(1, 9), [None]], ids=["at first", "on the server"])
async def test_close_at_any_moment_of_a_probe_ends_it_and_none_begins_anew(moments: Iterable[int | None]) -> None:
    async with SlowControl() as server:
        for steps in moments:
            client = make(server.url)
            probes = (client.get_model_info(), client.max_model_len(), client.vocab_size())
            calls = [asyncio.create_task(probe) for probe in probes]
            told = asyncio.create_task(client.abort("x" * 32))
            healthy = asyncio.create_task(client.health())
            while steps is None and len(server.paths) < 4:
                await asyncio.sleep(0.005)
            for _ in range(steps or 0):
                await asyncio.sleep(0)
            await client.close()
            for result in await ended(*calls):
                assert isinstance(result, SGLangConnectionError)
            assert await ended(told, healthy) == [False, False]
            assert client._transports == {}  # no probe opened another one
            assert steps or len(server.paths) == 4


async def test_a_call_that_is_resumed_again_and_again_ends_with_the_client() -> None:
    async with FaultyServer(lambda call: faults.aborted()) as server:
        client = make(server.url)
        model = SGLangModel(tokenizer=tokenizer(), client=client)

        async def run() -> None:
            async for _ in model.stream([{"role": "user", "content": [{"text": "go"}]}]):
                pass

        call = asyncio.create_task(run())
        await server.wait_for_requests(2)
        await client.close()
        (result,) = await ended(call)
        assert isinstance(result, SGLangConnectionError)
        assert client._transports == {}
        assert model.trajectories == []


# ------------------------------------------------------------- several loops, processes


def test_one_client_serves_several_loops_and_leaks_nothing(elsewhere: Any, recwarn: pytest.WarningsRecorder) -> None:
    def use(client: SGLangClient) -> None:
        results: list[Any] = []

        async def calls() -> None:
            results.extend(await asyncio.gather(*(client.generate([1, i]) for i in range(5))))

        threads = [threading.Thread(target=lambda: asyncio.run(calls())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        dead = asyncio.new_event_loop()  # ends without a farewell
        dead.run_until_complete(calls())
        dead.close()
        asyncio.run(calls())
        assert len(results) == 25

    server = elsewhere(FaultyServer())
    use(make(server.url))
    gc.collect()
    while server.open_connections:
        time.sleep(0.01)
    assert [str(w.message) for w in recwarn if issubclass(w.category, ResourceWarning)] == []


def test_close_ends_a_call_on_another_loop_that_ends_with_it(elsewhere: Callable[..., FaultyServer]) -> None:
    server = elsewhere(FaultyServer(lambda call: stalled_body()))
    client = make(server.url)
    results: list[Any] = []

    async def call() -> None:
        results.extend(await asyncio.gather(client.generate([1]), return_exceptions=True))

    async def close() -> None:
        own = asyncio.create_task(client.generate([2]))
        await server.wait_for_requests(2)
        await asyncio.sleep(0.05)
        await client.close()
        results.extend(await ended(own))

    other = threading.Thread(target=lambda: asyncio.run(call()))
    other.start()
    asyncio.run(close())
    other.join()
    assert [type(result) for result in results] == [SGLangConnectionError] * 2
    assert set(server.aborted_rids) == set(server.rids)


def test_close_waits_for_a_loop_that_ends_without_answering(elsewhere: Callable[..., FaultyServer]) -> None:
    server = elsewhere(FaultyServer())
    client = make(server.url)
    called, go = threading.Event(), threading.Event()

    async def call() -> None:
        await client.generate([1])
        called.set()
        go.wait()  # blocks its loop, which then ends before it has closed anything

    async def close() -> None:
        await client.generate([1])
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0.05)
        go.set()
        assert await ended(closing) == [None]

    other = threading.Thread(target=lambda: asyncio.run(call()))
    other.start()
    assert called.wait()
    asyncio.run(close())
    other.join()
    assert client._transports == {}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("closes", [True, False])
def test_a_forked_child_leaves_the_connections_of_its_parent_alone(elsewhere: Any, closes: bool) -> None:
    def choose(call: faults.ServerCall) -> faults.Fault:
        return faults.answer(Reply(ids=[1], delay=1.5) if call.body["input_ids"] == [4] else None)

    server = elsewhere(FaultyServer(choose))

    async def parent() -> int:
        async with make(server.url) as client:
            in_flight = asyncio.create_task(client.generate([4]))
            while not server.requests:
                await asyncio.sleep(0.005)
            await client.generate([1])
            opened = server.open_connections
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    asyncio.events._set_running_loop(None)
                    asyncio.run(in_child(client))
                    code = 0
                finally:
                    os._exit(code)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            await client.generate([3])  # on the idle connection
            assert (await in_flight)["output_ids"]
            assert server.open_connections == opened == 2
            return os.waitstatus_to_exitcode(status)

    async def in_child(client: SGLangClient) -> None:
        await client.generate([2])
        gc.collect()
        if closes:
            await client.close()

    assert asyncio.run(parent()) == 0
    assert [request.body["input_ids"][0] for request in server.requests] == [4, 1, 2, 3]
    assert not server.aborts
