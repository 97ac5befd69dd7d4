"""Cancellation, time-outs and closing reach the server: every request in flight is aborted there."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from functools import partial
from typing import Any

import pytest

from strands_sglang.backends.http.retry import RequestRetryPolicy
from strands_sglang.backends.sglang.client import SGLangClient
from strands_sglang.exceptions import BackendRequestError, SGLangConnectionError, SGLangHTTPError
from tests.servers import FaultyServer, faults, settle
from tests.unit.client_support import ControlledServer, make


def hanging(**options: Any) -> FaultyServer:
    return FaultyServer(lambda call: faults.hang(), **options)


async def cancel_in_flight(client: SGLangClient, server: Any, *, requests: int = 1, known: bool = False) -> None:
    """Cancel a call once the server has so many requests of it, and wait for the aborts.

    Args:
        known: The request is old enough for the server to know it, so that it is told once.
    """
    call = asyncio.create_task(client.generate([1]))
    await server.wait_for_requests(requests)
    if known:
        client._transport().in_flight[server.rids[0]].started -= 60
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await settle(client)


async def test_a_cancelled_call_is_aborted_and_again_since_the_server_may_not_know_it_yet() -> None:
    before = asyncio.all_tasks()
    async with hanging() as server:
        client = make(server.url)
        call = asyncio.create_task(client.generate([1]))
        await server.wait_for_requests(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await settle(client)
        assert [rid for rid, _ in server.aborts] == server.rids * 2
        assert server.running == []
        await client.close()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


async def test_aborts_pass_when_every_connection_hangs() -> None:
    async with hanging() as server, make(server.url, max_connections=100) as client:
        calls = [asyncio.create_task(client.generate([1])) for _ in range(200)]
        await server.wait_for_requests(100)
        calls[0].cancel()
        await asyncio.wait(calls[:1])
        while not server.aborts:
            await asyncio.sleep(0.005)
        for call in reversed(calls):
            call.cancel()
        await asyncio.wait(calls)
        await settle(client)
        assert set(server.aborted_rids) == set(server.rids)


async def interrupted(client: SGLangClient, server: FaultyServer) -> None:
    calls = [asyncio.create_task(client.generate([1])) for _ in range(3)]
    await server.wait_for_requests(len(calls))
    raise RuntimeError("interrupted")


async def cancelled_just_before(client: SGLangClient, server: FaultyServer, steps: int) -> None:
    """The run ends, and cancels the aborts themselves, so many steps after a cancellation."""
    call = asyncio.create_task(client.generate([1]))
    await server.wait_for_requests(1)
    call.cancel()
    for _ in range(steps):
        await asyncio.sleep(0)
    if steps == 9:
        await asyncio.wait([call])


async def timed_out(client: SGLangClient, server: FaultyServer) -> None:
    client.timeout, client.retry_policy = 0.3, RequestRetryPolicy(max_retries=0)
    await client.generate([1])


@pytest.mark.parametrize("run", [interrupted, timed_out, *(partial(cancelled_just_before, steps=n) for n in range(10))])
async def test_a_run_that_ends_aborts_what_it_left_on_the_server(run: Any) -> None:
    # The run has a loop of its own, in a thread, which the server outlives.
    async with hanging() as server:
        with contextlib.suppress(RuntimeError, SGLangConnectionError):
            await asyncio.to_thread(asyncio.run, run(make(server.url), server))
        assert server.rids and set(server.aborted_rids) == set(server.rids)


async def test_ctrl_c_aborts_what_the_server_is_sampling() -> None:
    code = (
        "import asyncio, signal, sys\n"
        "from strands_sglang import SGLangClient\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in what a shell runs in the background
        "async def main():\n"
        "    client = SGLangClient(sys.argv[1])\n"
        "    await asyncio.gather(*(client.generate([1]) for _ in range(3)))\n"
        "asyncio.run(main())\n"
    )
    async with hanging() as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, server.url, stderr=asyncio.subprocess.PIPE
        )
        await server.wait_for_requests(3)
        process.send_signal(signal.SIGINT)
        _, shown = await process.communicate()
        assert set(server.aborted_rids) == set(server.rids)
        assert shown.endswith(b"KeyboardInterrupt\n") and b"never" not in shown and b"Unclosed" not in shown


async def test_through_a_router_every_worker_is_told() -> None:
    async with (
        FaultyServer() as one,
        FaultyServer() as two,
        hanging(workers=[one.url, two.url]) as router,
        make(router.url) as client,
    ):
        await cancel_in_flight(client, router)
        assert one.aborted_rids == two.aborted_rids == router.rids
        # Once known, the router is not asked to abort again.
        assert router.paths.count("POST /abort_request") == 1


async def test_given_workers_are_told_without_asking_the_router_and_dead_ones_hinder_nobody() -> None:
    async with FaultyServer() as worker, hanging(workers=[]) as router:
        async with make(router.url, worker_urls=["http://127.0.0.1:9", worker.url]) as client:
            assert await client.abort("r1") is True
        assert worker.aborted_rids == ["r1"]
        assert router.paths == []


@pytest.mark.parametrize("rid", ["", "\ud800", None])
async def test_an_id_that_cannot_be_one_is_not_aborted(rid: Any) -> None:
    async with FaultyServer() as server, make(server.url) as client:
        with pytest.raises(BackendRequestError, match="rid"):
            await client.abort(rid)
    assert server.aborts == []


async def test_an_abort_by_the_user_ends_the_request_with_an_answer() -> None:
    async with hanging() as server, make(server.url) as client:
        call = asyncio.create_task(client.generate([1], rid="mine"))
        await server.wait_for_requests(1)
        await client.abort("mine")
        answer = await call
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(server.requests) == 1


async def test_only_abort_calls_use_the_admin_key() -> None:
    # A server with both keys takes the admin key for its admin routes and the other one for everything else.
    async with ControlledServer(control={}, model_info={"vocab_size": 100}) as server:
        async with make(server.url, api_key="user", admin_api_key="admin") as client:
            await client.abort("r")
            await client.generate([1])
            await client.max_model_len()
            await client.health()
            assert await client.vocab_size() == 100
        keys = {path: headers.get("authorization") for path, headers in server.seen}
        assert keys.pop("/abort_request") == "Bearer admin"
        assert set(keys.values()) == {"Bearer user"}
        assert {"/health", "/v1/models", "/model_info"} <= set(keys)
        assert server.requests[0].headers["authorization"] == "Bearer user"
        async with make(server.url, api_key="user") as client:  # without an admin key, aborts use the other one
            await client.abort("r")
        assert server.seen[-1][1]["authorization"] == "Bearer user"


@pytest.mark.parametrize(("answers", "calls"), [([503], 2), ([429], 2), (["reset"], 2), ([403] * 9, 1)])
async def test_an_abort_call_that_fails_is_repeated_unless_it_is_refused(answers: list[Any], calls: int) -> None:
    async with (
        ControlledServer(lambda call: faults.hang(), control={"/abort_request": answers}) as server,
        make(server.url) as client,
    ):
        await cancel_in_flight(client, server, known=True)
        assert server.paths.count("POST /abort_request") == calls
        assert [rid for rid, _ in server.aborts] == server.rids[: calls - 1]


async def test_close_repeats_an_abort_call_that_fails() -> None:
    async with ControlledServer(lambda call: faults.hang(), control={"/abort_request": [503]}) as server:
        client = make(server.url)
        call = asyncio.create_task(client.generate([1]))
        await server.wait_for_requests(1)
        await client.close()
        await asyncio.gather(call, return_exceptions=True)
        assert server.aborted_rids == server.rids


@pytest.mark.parametrize("answer", [302, 404, 503, "reset"])
async def test_however_a_router_refuses_an_abort_its_workers_are_told(answer: Any) -> None:
    async with (
        FaultyServer() as worker,
        ControlledServer(
            control={"/abort_request": [answer], "/workers": [{"workers": [{"url": worker.url}]}]}
        ) as router,
    ):
        async with make(router.url) as client:
            assert await client.abort("r1") is True
        assert worker.aborted_rids == ["r1"]


async def test_an_abort_is_not_lost_when_a_router_fails_to_name_its_workers_once() -> None:
    async with FaultyServer() as worker:
        listing = {"workers": [{"url": worker.url}]}
        control = {"/abort_request": [404] * 9, "/workers": [listing, 503, *[listing] * 9]}
        async with ControlledServer(lambda call: faults.hang(), control=control) as router, make(router.url) as client:
            assert await client.abort("r1") is True
            client._transport()._workers_seen = (0.0, ())  # a second later
            await cancel_in_flight(client, router, known=True)
            assert worker.aborted_rids == ["r1", *router.rids]


async def test_control_calls_follow_no_redirect() -> None:
    async with ControlledServer(control={"/abort_request": [302], "/health": [302], "/model_info": [307]}) as server:
        async with make(server.url, api_key="secret") as client:
            assert await client.abort("r1") is False
            assert await client.health() is False
            with pytest.raises(SGLangHTTPError) as caught:
                await client.get_model_info()
        assert caught.value.status == 307
        assert "/elsewhere" not in [path for path, _ in server.seen]


async def test_a_worker_list_may_hold_anything() -> None:
    listing = {"workers": [{"url": "http://a..b:1"}, {"url": "http://u:p@h"}, {"url": 5}, {"url": "grpc://h:1"}, None]}
    async with (
        ControlledServer(control={"/abort_request": [404], "/workers": [listing]}) as server,
        make(server.url) as client,
    ):
        assert await client.abort("r1") is False
