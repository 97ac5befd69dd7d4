"""The client against real sockets: every retry class, time-outs, answers, several loops."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import warnings
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from strands_sglang.backends import GenerateRequest, PromptIds
from strands_sglang.backends.http.retry import RequestRetryPolicy, RetryClass
from strands_sglang.backends.sglang import SGLangClient
from strands_sglang.exceptions import (
    SGLangClientError,
    SGLangConnectionError,
    SGLangHTTPError,
    SGLangRequestError,
    SGLangThrottledError,
)
from strands_sglang.testing import Reply
from tests.servers import FaultyServer, faults
from tests.unit import client_support as support
from tests.unit.client_support import ControlledServer

STOP = {"finish_reason": {"type": "stop", "matched": 1}}


def make(url: str, **options: Any) -> SGLangClient:
    return support.make(url, **{"timeout": 5.0, **options})


@pytest.fixture
async def server() -> AsyncIterator[FaultyServer]:
    async with FaultyServer() as running:
        yield running


@pytest.fixture
async def client(server: FaultyServer) -> AsyncIterator[SGLangClient]:
    async with make(server.url) as made:
        yield made


@pytest.mark.parametrize(
    "script",
    [
        lambda call: faults.status(500),
        lambda call: faults.status(503),
        lambda call: faults.status(400),
        lambda call: faults.hang(),
        lambda call: faults.reset(),
        None,
    ],
    ids=["500", "503", "400", "timeout", "reset", "refused"],
)
async def test_a_failed_call_is_freed_with_its_error(script: Any) -> None:
    async with FaultyServer(script or ()) as server:
        url = server.url if script else "http://127.0.0.1:9"
        async with make(url, max_retries=1, timeout=0.05) as client:
            await refused(client)
            gc.collect()
            gc.disable()
            try:
                error = weakref.ref(await refused(client))
                await asyncio.sleep(0)  # for the callbacks of its tasks
                assert error() is None
            finally:
                gc.enable()


async def refused(client: SGLangClient) -> SGLangClientError:
    try:
        await client.generate([1])
    except SGLangClientError as error:
        return error
    raise AssertionError("it was answered")


# --------------------------------------------------------------------- a good request


async def test_the_request_is_the_ids_the_fields_and_a_random_id(server: FaultyServer, client: SGLangClient) -> None:
    answer = await client.generate([1, 2, 3], sampling_params={"max_new_tokens": 4}, return_logprob=True)
    body = server.requests[0].body
    assert body["input_ids"] == [1, 2, 3]
    assert body["sampling_params"] == {"max_new_tokens": 4}
    assert body["stream"] is False
    assert answer["meta_info"]["id"] == body["rid"]
    assert len(body["rid"]) == 32
    assert [entry[1] for entry in answer["meta_info"]["output_token_logprobs"]] == answer["output_ids"]


async def test_none_is_left_out_except_as_max_new_tokens(server: FaultyServer, client: SGLangClient) -> None:
    await client.generate([1], return_routed_experts=None, sampling_params={"max_new_tokens": None, "stop": None})
    body = server.requests[0].body
    assert "return_routed_experts" not in body
    assert body["sampling_params"] == {"max_new_tokens": None}


async def test_routing_key_goes_to_the_header(server: FaultyServer) -> None:
    async with make(server.url, session_affinity_header="X-Other", api_key="k", headers={"X-A": "b"}) as client:
        await client.generate([1], routing_key="episode-1")
    headers = server.requests[0].headers
    assert headers["x-other"] == "episode-1"
    assert headers["authorization"] == "Bearer k"
    assert headers["x-a"] == "b"
    assert "routing_key" not in server.requests[0].body


async def test_the_default_affinity_header_is_the_routers(server: FaultyServer, client: SGLangClient) -> None:
    await client.generate([1], routing_key="e")
    await client.generate([1])
    assert server.requests[0].headers["x-smg-routing-key"] == "e"
    assert "x-smg-routing-key" not in server.requests[1].headers


async def test_the_caller_may_name_the_first_attempt(server: FaultyServer, client: SGLangClient) -> None:
    server.script = [faults.busy()]
    await client.generate([1], rid="mine")
    assert server.rids[0] == "mine"
    assert server.rids[1] != "mine"


@pytest.mark.parametrize(
    ("ids", "fields"),
    [
        ([], {}),
        ([1, -1], {}),
        ([1, 100], {}),
        ([1, True], {}),
        ([1, "2"], {}),
        ([1.0], {}),
        ([1], {"stream": True}),
        ([1], {"sampling_params": {"max_tokens": 4}}),
        ([1], {"sampling_params": {"n": 2}}),
        ([1], {"sampling_params": {"temperature": float("nan")}}),
        ([1], {"rid": ""}),
        ([1], {"text": "hello"}),
        ([1], {"image_data": object()}),
        ([1], {"routing_key": 5}),
        ([1], {"routing_key": "a\nb"}),
        ([1], {"sampling_params": {"logit_bias": {"100": 1.0}}}),
        ([1], {"token_ids_logprob": [100]}),
        ([1], {"sampling_params": {"stop_token_ids": [100]}}),
        ([1], {"sampling_params": {"stop_regex": "("}}),
    ],
)
async def test_a_bad_request_never_leaves_the_process(server: FaultyServer, ids: Any, fields: dict[str, Any]) -> None:
    async with make(server.url, vocab_size=100) as client:
        with pytest.raises(SGLangRequestError):
            await client.generate(ids, **fields)
    assert server.requests == []


async def test_an_aborted_answer_is_returned_not_raised(server: FaultyServer, client: SGLangClient) -> None:
    server.script = [faults.aborted((7, 8))]
    answer = await client.generate([1], return_logprob=True)
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert answer["output_ids"] == [7, 8]


# ------------------------------------------------------------------------ retry classes


async def test_a_call_can_be_stopped_before_any_of_its_attempts(server: FaultyServer, client: SGLangClient) -> None:
    class StopError(Exception):
        pass

    def check() -> None:
        if len(server.requests) == 2:
            raise StopError

    server.script = [faults.busy(), faults.busy(), faults.busy()]
    with pytest.raises(StopError):
        await client.ask(GenerateRequest(prompt=PromptIds.of([1, 2]), before_attempt=check))
    assert len(server.requests) == 2
    await client.generate([1, 2])  # its turn was given back, and the next call is not checked
    assert len(server.requests) == 4


async def test_retry_after_is_obeyed(server: FaultyServer, client: SGLangClient) -> None:
    server.script = [faults.busy(retry_after=0.3)]
    await client.generate([1])
    first, second = server.requests
    assert second.at - first.at >= 0.3


async def test_a_retry_after_beyond_the_deadline_gives_up_at_once(server: FaultyServer) -> None:
    server.script = [faults.busy(retry_after=3600)]
    async with make(server.url, retry_deadline=10.0) as client:
        with pytest.raises(SGLangThrottledError):
            await client.generate([1])
    assert len(server.requests) == 1


async def test_a_pool_of_stale_connections_costs_one_retry_a_call() -> None:
    restarted = False

    def choose(call: faults.ServerCall) -> faults.Fault:
        if not restarted:
            return faults.answer(Reply(ids=[1], delay=0.05))
        return faults.reset_if_reused()

    async with FaultyServer(choose) as server, make(server.url, max_retries=0) as client:
        await asyncio.gather(*(client.generate([1]) for _ in range(12)))
        assert server.open_connections == 12
        restarted = True
        for _ in range(6):
            await client.generate([1])
    assert len(server.requests) == 12 + 2 * 6


async def test_no_attempt_starts_after_the_deadline_however_long_it_waits_for_its_turn() -> None:
    second: list[asyncio.Task[Any]] = []

    async def busy_and_one_in_line(call: faults.ServerCall) -> Any:
        second.append(asyncio.create_task(client.generate([2])))
        await asyncio.sleep(0.01)
        return await faults.busy()(call)

    script = [busy_and_one_in_line, faults.answer(Reply(ids=[1], delay=0.5))]
    async with (
        FaultyServer(script) as server,
        make(server.url, retry_deadline=0.2, max_connections=1) as client,
    ):
        with pytest.raises(SGLangThrottledError):
            await client.generate([1])
        await second[0]
    assert [request.body["input_ids"] for request in server.requests] == [[1], [2]]


async def test_waiting_for_the_first_turn_does_not_count_for_the_deadline() -> None:
    async with (
        FaultyServer([faults.answer(Reply(ids=[1], delay=0.5)), faults.busy()]) as server,
        make(server.url, retry_deadline=0.3, max_connections=1) as client,
    ):
        await asyncio.gather(client.generate([1]), client.generate([2]))
    assert len(server.requests) == 3


async def test_connections_closed_while_idle_are_not_used_again() -> None:
    async with FaultyServer(keepalive_timeout=0.02) as server, make(server.url, max_retries=0) as client:
        for _ in range(5):
            await client.generate([1])
            await asyncio.sleep(0.03)
    assert len(server.requests) >= 5


async def test_waiting_for_a_slot_does_not_count_as_time_of_the_attempt() -> None:
    script = [faults.answer(Reply(ids=[1], delay=0.3)) for _ in range(6)]
    async with FaultyServer(script) as server, make(server.url, timeout=1.5, max_connections=1) as client:
        await asyncio.gather(*(client.generate([i]) for i in range(1, 7)))
    assert len(server.requests) == 6


@pytest.mark.parametrize("bug", [TypeError("bug"), AttributeError("bug"), KeyError("bug"), RuntimeError("bug")])
async def test_programming_errors_propagate_at_once(client, monkeypatch, bug):
    calls = 0

    async def broken(*_: Any, **__: Any) -> Any:
        nonlocal calls
        calls += 1
        raise bug

    monkeypatch.setattr(client, "_attempt", broken)
    with pytest.raises(type(bug)):
        await client.generate([1])
    assert calls == 1


async def test_the_policy_may_be_given_whole(server: FaultyServer) -> None:
    policy = RequestRetryPolicy(max_retries=9, retry_delay=0.001, limits={RetryClass.SERVER_ERROR: 0})
    server.script = [faults.status(500, "x")]
    async with SGLangClient(server.url, retry_policy=policy) as client:
        with pytest.raises(SGLangHTTPError):
            await client.generate([1])
        assert client.max_retries == 9


async def test_a_server_that_speaks_no_tls_is_not_asked_again(server: FaultyServer) -> None:
    attempts = 0
    async with make(server.url.replace("http:", "https:"), max_retries=5) as client:
        original = client._attempt

        async def counted(*args: Any) -> Any:
            nonlocal attempts
            attempts += 1
            return await original(*args)

        client._attempt = counted  # type: ignore[method-assign]
        with pytest.raises(SGLangConnectionError, match="cannot connect"):
            await client.generate([1])
    assert attempts == 1
    assert server.requests == []


# ----------------------------------------------------------------------------- probes


async def test_probes(server: FaultyServer, client: SGLangClient) -> None:
    server.model_info = {"vocab_size": 77}
    assert await client.health() is True
    assert (await client.get_model_info())["weight_version"] == "default"
    assert await client.max_model_len() == 4096
    assert await client.vocab_size() == 77


async def test_the_context_length_is_asked_for_once(server: FaultyServer, client: SGLangClient) -> None:
    await asyncio.gather(*(client.max_model_len() for _ in range(10)))
    assert server.paths == ["GET /v1/models"]


async def test_a_failed_probe_is_not_remembered(server: FaultyServer, client: SGLangClient) -> None:
    server.max_model_len = None
    assert await client.max_model_len() is None
    server.max_model_len = 512
    client._length_again_at = 0.0
    assert await client.max_model_len() == 512


@pytest.mark.parametrize("listing", [{"data": 5}, {"data": [None]}, {"data": [{"max_model_len": True}]}, [], "x"])
async def test_a_model_list_may_be_anything(listing: Any) -> None:
    async with ControlledServer(control={"/v1/models": [listing]}) as server, make(server.url) as client:
        assert await client.max_model_len() is None


@pytest.mark.parametrize(
    ("info", "config", "size"),
    [
        ({"vocab_size": True}, "", None), ({"model_path": 5}, "", None), ({"model_path": "\0"}, "", None),
        ({"model_config": [1]}, "", None), ({"vocab_size": -1}, "", None), ({}, "[1]", None),
        ({}, '{"text_config": {"vocab_size": 1024}}', 1024),
    ],
)  # fmt: skip
async def test_model_info_and_its_folder_may_hold_anything(info: Any, config: str, size: Any, tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text(config)
    info = {"model_path": str(tmp_path), **info}
    async with (
        ControlledServer(control={"/model_info": [info], "/server_info": [info]}) as server,
        make(server.url) as client,
    ):
        assert await client.vocab_size() == size


async def test_an_unreachable_server_is_unhealthy_and_a_connection_error() -> None:
    async with make("http://127.0.0.1:9", max_retries=0) as client:
        assert (await client.health(), await client.max_model_len(), await client.vocab_size()) == (False, None, None)
        for ask in (client.get_model_info(), client.generate([1])):
            with pytest.raises(SGLangConnectionError, match="cannot connect to"):
                await ask


async def test_waiting_for_an_unreachable_server_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """Someone who has given the wrong address would otherwise wait for minutes and read nothing."""
    async with make("http://127.0.0.1:9", max_retries=3) as client:
        for _ in range(2):
            with pytest.raises(SGLangConnectionError):
                await client.generate([1])
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "cannot connect to http://127.0.0.1:9/generate" in warning and warning.endswith("| retrying request")


async def test_behind_a_router_workers_say_the_context_length() -> None:
    async with (
        FaultyServer(max_model_len=512) as one,
        FaultyServer(max_model_len=256) as two,
        FaultyServer(workers=[one.url, two.url]) as router,
        make(router.url) as client,
    ):
        assert await client.max_model_len() == 256
        assert (await client.get_model_info())["model_path"] == "fake"


# ---------------------------------------------------------------- dropped fields, reports


async def test_sampling_keys_that_routers_drop_are_reported(server, client, caplog):
    await client.generate([1], sampling_params={"logit_bias": {"5": 1.0}})
    assert caplog.records == []
    server.script = [faults.answer(headers={"x-smg-routed-worker-id": "w"})]
    await client.generate([1], sampling_params={"logit_bias": {"5": 1.0}})
    assert any("sampling_params.logit_bias" in record.getMessage() for record in caplog.records)


# ------------------------------------------------------------------- loops, load, leaks


def test_one_client_serves_several_loops_and_threads() -> None:
    results: list[Any] = []

    async def serve(stop: threading.Event, ready: threading.Event, address: list[str]) -> None:
        async with FaultyServer() as server:
            address.append(server.url)
            ready.set()
            while not stop.is_set():
                await asyncio.sleep(0.01)

    stop, ready, address = threading.Event(), threading.Event(), []
    host = threading.Thread(target=lambda: asyncio.run(serve(stop, ready, address)))
    host.start()
    assert ready.wait(10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client = make(address[0])

        async def calls() -> None:
            results.extend(await asyncio.gather(*(client.generate([1, i]) for i in range(5))))

        threads = [threading.Thread(target=lambda: asyncio.run(calls())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        asyncio.run(calls())
        asyncio.run(client.close())
        gc.collect()
    stop.set()
    host.join(20)
    assert len(results) == 20


def test_a_client_that_is_never_closed_leaks_nothing(recwarn: pytest.WarningsRecorder) -> None:
    async def run() -> None:
        async with FaultyServer() as server:
            client = make(server.url)
            await client.generate([1])

    for _ in range(3):
        asyncio.run(run())
        gc.collect()
    assert [str(w.message) for w in recwarn if issubclass(w.category, ResourceWarning)] == []


def test_a_loop_that_dies_without_farewell_leaks_no_socket(recwarn: pytest.WarningsRecorder) -> None:
    server_loop = asyncio.new_event_loop()
    server = FaultyServer()
    thread = threading.Thread(target=server_loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), server_loop).result(10)
    client = make(server.url)
    dead = asyncio.new_event_loop()
    dead.run_until_complete(client.generate([1]))
    dead.close()
    asyncio.run(client.generate([1]))  # type: ignore[arg-type]
    gc.collect()
    asyncio.run_coroutine_threadsafe(server.stop(), server_loop).result(10)
    server_loop.call_soon_threadsafe(server_loop.stop)
    thread.join(10)
    server_loop.close()
    assert [str(w.message) for w in recwarn if issubclass(w.category, ResourceWarning)] == []
    assert len(server.requests) == 2


async def test_a_thousand_requests_through_a_hundred_connections() -> None:
    most = 0

    def watch(call: faults.ServerCall) -> faults.Fault:
        nonlocal most
        most = max(most, len(server.running))
        return faults.answer(Reply(ids=[call.body["input_ids"][1]], delay=0.01))

    async with FaultyServer(watch) as server:
        async with make(server.url, max_connections=100, timeout=30.0) as client:
            answers = await asyncio.gather(*(client.generate([1, i]) for i in range(1000)))
            assert server.open_connections <= 100
        assert [answer["output_ids"] for answer in answers] == [[i] for i in range(1000)]
        assert 50 < most <= 100
        async with asyncio.timeout(10):
            while server.open_connections:
                await asyncio.sleep(0.01)
    assert [task for task in asyncio.all_tasks() if "sglang" in task.get_name()] == []


async def test_a_closed_client_opens_new_connections_when_used_again(server, client):
    await client.generate([1])
    await client.close()
    await client.generate([1])
    assert len(server.requests) == 2


# -------------------------------------------------------------------------- construction


def test_attributes_that_existing_users_read() -> None:
    client = SGLangClient(base_url="http://localhost:30000/", max_connections=5, max_retries=3, retry_delay=0.5)
    assert client.base_url == "http://localhost:30000"
    assert (client.max_retries, client.retry_delay, client.max_connections) == (3, 0.5, 5)
    assert SGLangClient("http://h").max_retries == 60


@pytest.mark.parametrize(
    "options",
    [
        {"base_url": "localhost:30000"},
        {"base_url": ""},
        {"base_url": None},
        {"max_connections": 0},
        {"max_connections": 2.5},
        {"timeout": 0},
        {"timeout": "9"},
        {"connect_timeout": -1},
        {"max_retries": -1},
        {"retry_delay": -0.1},
        {"retry_deadline": float("nan")},
        {"worker_urls": "http://w"},
        {"worker_urls": ["w"]},
        {"worker_urls": ["http://user:secret@w"]},
        {"base_url": "http://a..b:1"},
        {"base_url": f"http://{'a' * 70}.com"},
        {"base_url": "http://h:99999"},
        {"base_url": "http://a\r\nb:1"},
        {"base_url": "http://h\x00:1"},
        {"worker_urls": ["http://a\tb:1"]},
        {"headers": {"Content-Length": "5"}},
        {"headers": {"transfer-encoding": "chunked"}},
        {"session_affinity_header": "Content-Length"},
        {"base_url": "http://[::1"},
        {"base_url": "http://h:1/?a=1"},
        {"base_url": "http://h:1/#f"},
        {"base_url": "http://user:secret@h:1"},
        {"base_url": "ftp://user:secret@h:1"},
        {"api_key": "secret\n"},
        {"admin_api_key": "secret\n"},
        {"headers": {"X-A": 5}},
        {"headers": {"X A": "b"}},
        {"session_affinity_header": "X:A"},
        {"vocab_size": 0},
        {"headers": {"X-Name": "\ud800"}},
        {"headers": {"Expect": "100-continue"}},
        {"base_url": "http://h /x:1"},
    ],
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must") as caught:
        SGLangClient(**{"base_url": "http://localhost:1", **options})
    assert "secret" not in str(caught.value)


async def test_infinite_times_are_no_limit(server: FaultyServer) -> None:
    async with SGLangClient(server.url, timeout=float("inf"), connect_timeout=float("inf")) as client:
        assert client.timeout is None
        await client.generate([1])


def test_unknown_options_raise() -> None:
    with pytest.raises(TypeError, match="max_retrys"):
        SGLangClient("http://localhost:1", max_retrys=3)  # type: ignore[call-arg]


def test_more_calls_than_descriptors_are_all_answered() -> None:
    """In a process of its own, whose limit on descriptors is half of the default number of connections."""
    code = (
        "import asyncio, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))\n"
        "from strands_sglang import SGLangClient\n"
        "async def main():\n"
        "    async with SGLangClient(sys.argv[1], retry_delay=0.05) as client:\n"
        "        calls = (client.generate([1, 2, number % 900]) for number in range(2000))\n"
        "        print(len(await asyncio.gather(*calls)))\n"
        "asyncio.run(main())\n"
    )

    async def run() -> tuple[int | None, bytes]:
        async with FaultyServer() as server:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", code, server.url, stdout=asyncio.subprocess.PIPE
            )
            output, _ = await asyncio.wait_for(process.communicate(), 120)
            return process.returncode, output

    assert asyncio.run(run()) == (0, b"2000\n")
