"""The client against real sockets: what it sends and refuses, probes, options. Faults: `test_client_simulation.py`."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from strands_sglang import SGLangClient, VLLMClient, get_client
from strands_sglang.backends import GenerateRequest, token_array
from strands_sglang.backends.http.retry import RequestRetryPolicy, RetryClass
from strands_sglang.backends.http.transport import Outcome
from strands_sglang.exceptions import SGLangClientError, SGLangConnectionError, SGLangRequestError
from strands_sglang.testing import Reply
from tests.servers import FaultyServer, faults
from tests.unit import client_support as support
from tests.unit.client_support import ControlledServer, client, server

__all__ = ["client", "server"]  # fixtures


def make(url: str, **options: Any) -> SGLangClient:
    return support.make(url, **{"timeout": 5.0, **options})


@pytest.mark.parametrize(
    "fault",
    [faults.status(500), faults.busy(), faults.status(400), faults.hang(), faults.reset(), None],
    ids=["500", "503", "400", "timeout", "reset", "refused"],
)
async def test_a_failed_call_is_freed_with_its_error(fault: Any) -> None:
    async with (
        FaultyServer(lambda call: fault) as server,
        make(server.url if fault else "http://127.0.0.1:9", max_retries=1, timeout=0.05) as client,
    ):
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
    params = {"max_new_tokens": None, "stop": None}  # None is left out except as max_new_tokens
    answer = await client.generate([1, 2, 3], sampling_params=params, return_logprob=True, return_routed_experts=None)
    body = server.requests[0].body
    assert answer["meta_info"]["id"] == body.pop("rid") and len(answer["meta_info"]["id"]) == 32
    assert body == {
        "input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": None}, "stream": False, "return_logprob": True
    }  # fmt: skip
    assert "x-smg-routing-key" not in server.requests[0].headers


async def test_routing_key_goes_to_the_header(server: FaultyServer) -> None:
    async with make(server.url, session_affinity_header="X-Other", api_key="k", headers={"X-A": "b"}) as client:
        await client.generate([1], routing_key="episode-1")
    headers = server.requests[0].headers
    assert (headers["x-other"], headers["authorization"], headers["x-a"]) == ("episode-1", "Bearer k", "b")
    assert "routing_key" not in server.requests[0].body


async def test_the_caller_may_name_the_first_attempt(server: FaultyServer, client: SGLangClient) -> None:
    server.script = [faults.busy()]
    await client.generate([1], rid="mine")
    assert server.rids[0] == "mine" != server.rids[1]


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
        ([1], {"rid": ""}),
        ([1], {"text": "hello"}),
        ([1], {"image_data": object()}),
        ([1], {"routing_key": 5}),
        ([1], {"routing_key": "a\nb"}),
        ([1], {"sampling_params": {"logit_bias": {"100": 1.0}}}),
        ([1], {"token_ids_logprob": [100]}),
        ([1], {"sampling_params": {"stop_token_ids": [100]}}),
    ],
)
async def test_a_bad_request_never_leaves_the_process(server: FaultyServer, ids: Any, fields: dict[str, Any]) -> None:
    async with make(server.url, vocab_size=100) as client:
        with pytest.raises(SGLangRequestError):
            await client.generate(ids, **fields)
    assert server.requests == []


# ------------------------------------------------------------------------ turns


async def test_a_call_can_be_stopped_before_any_of_its_attempts(server: FaultyServer, client: SGLangClient) -> None:
    class StopError(Exception):
        pass

    def check() -> None:
        if len(server.requests) == 2:
            raise StopError

    server.script = [faults.busy(), faults.busy(), faults.busy()]
    with pytest.raises(StopError):
        await client.ask(GenerateRequest(prompt=token_array([1, 2]), before_attempt=check))
    assert len(server.requests) == 2
    await client.generate([1, 2])  # its turn was given back, and the next call is not checked
    assert len(server.requests) == 4


async def test_waiting_for_the_first_turn_does_not_count_for_the_deadline() -> None:
    async with (
        FaultyServer([faults.answer(Reply(ids=[1], delay=0.5)), faults.busy()]) as server,
        make(server.url, retry_deadline=0.3, max_connections=1) as client,
    ):
        await asyncio.gather(client.generate([1]), client.generate([2]))
    assert len(server.requests) == 3


# ----------------------------------------------------------------------------- probes


async def test_probes_are_remembered_unless_they_failed(server: FaultyServer, client: SGLangClient) -> None:
    server.model_info, server.max_model_len = {"vocab_size": 77}, None
    assert await client.health() is True
    assert (await client.get_model_info())["weight_version"] == "default"
    assert await client.vocab_size() == 77
    assert await client.max_model_len() is None
    server.max_model_len = 512
    client._ask_again_at = 0.0
    assert await asyncio.gather(*(client.max_model_len() for _ in range(10))) == [512] * 10
    assert server.paths.count("GET /v1/models") == 2


async def test_a_model_list_may_be_anything() -> None:
    listings = [{"data": 5}, {"data": [None]}, {"data": [{"max_model_len": True}]}, [], "x"]
    async with ControlledServer(control={"/v1/models": listings}) as server:
        for _ in listings:
            async with make(server.url) as client:
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


@pytest.mark.parametrize(("every", "warnings"), [(30.0, 1), (0.0, 6)])
async def test_an_unreachable_server_is_unhealthy_and_reported_now_and_then(
    every: float, warnings: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone who has given the wrong address would otherwise wait for minutes and read nothing."""
    monkeypatch.setattr("strands_sglang.backends.http.server_client.WARN_EVERY_S", every)
    async with make("http://127.0.0.1:9", max_retries=3) as client:
        assert (await client.health(), await client.max_model_len(), await client.vocab_size()) == (False, None, None)
        assert await client.abort("r1") is False
        assert await client._transport().abort("r1") == {Outcome.REFUSED}  # and is not sent again
        for ask in (client.get_model_info(), client.generate([1]), client.generate([1])):
            with pytest.raises(SGLangConnectionError, match="cannot connect to"):
                await ask
    found = [each.getMessage() for each in caplog.records if "no server answers" in each.getMessage()]
    assert len(found) == warnings
    assert "cannot connect to http://127.0.0.1:9/generate" in found[0]
    assert "s more: start one (python -m sglang.launch_server --model-path MODEL --port PORT)" in found[0]


async def test_behind_a_router_workers_say_the_context_length() -> None:
    async with (
        FaultyServer(max_model_len=512) as one,
        FaultyServer(max_model_len=256) as two,
        FaultyServer(workers=[one.url, two.url]) as router,
        make(router.url) as client,
    ):
        assert await client.max_model_len() == 256
        assert (await client.get_model_info())["model_path"] == "fake"


async def test_a_thousand_requests_through_a_hundred_connections() -> None:
    most = 0

    def watch(call: faults.ServerCall) -> faults.Fault:
        nonlocal most
        most = max(most, len(server.running))
        return faults.answer(Reply(ids=[call.body["input_ids"][1]], delay=0.01))

    async with FaultyServer(watch) as server, make(server.url, max_connections=100, timeout=30.0) as client:
        answers = await asyncio.gather(*(client.generate([1, i]) for i in range(1000)))
        assert server.open_connections <= 100
        assert [answer["output_ids"] for answer in answers] == [[i] for i in range(1000)]
        assert 50 < most <= 100


# -------------------------------------------------------------------------- construction


def test_attributes_that_existing_users_read() -> None:
    client = SGLangClient(base_url="http://localhost:30000/", max_connections=5, max_retries=3, retry_delay=0.5)
    assert client.base_url == "http://localhost:30000"
    assert (client.max_retries, client.retry_delay, client.max_connections) == (3, 0.5, 5)
    assert SGLangClient("http://h").max_retries == 60
    policy = RequestRetryPolicy(max_retries=9, limits={RetryClass.SERVER_ERROR: 0})
    assert SGLangClient("http://h", retry_policy=policy).retry_policy is policy
    endless = SGLangClient("http://h", timeout=float("inf"), connect_timeout=float("inf"))
    assert (endless.timeout, endless.connect_timeout) == (None, None)
    for make in (SGLangClient, get_client):
        with pytest.raises(TypeError, match="max_conections"):
            make("http://h", max_conections=5)


REFUSED: dict[str, list[Any]] = {
    "base_url": [
        None, "", "localhost:30000", "http://a..b:1", f"http://{'a' * 70}.com", "http://h:99999", "http://a\r\nb:1",
        "http://h /x:1", "http://[::1", "http://h:1/?a=1", "http://h:1/#f", "ftp://user:secret@h:1",
    ],
    "worker_urls": ["http://w", ["w"], ["http://user:secret@w"]],
    "max_connections": [0, 2.5],
    "timeout": [0, "9"],
    "connect_timeout": [-1],
    "max_retries": [-1],
    "retry_delay": [-0.1],
    "retry_deadline": [float("nan")],
    "vocab_size": [0],
    "headers": [{"Content-Length": "5"}, {"X-A": 5}, {"X A": "b"}, {"X-Name": "\ud800"}],
    "session_affinity_header": ["X:A"],
    "api_key": ["secret\n"],
    "admin_api_key": ["secret\n"],
}  # fmt: skip


@pytest.mark.parametrize(("option", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_options_are_checked(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"must") as caught:
        SGLangClient(**{"base_url": "http://localhost:1", option: value})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", [SGLangClient, VLLMClient])
def test_an_unknown_option_is_named_with_the_nearest_one(kind: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\(\) got an .* 'time_out' .*did you mean 'timeout'"):
        kind("http://localhost:1", time_out=1)
