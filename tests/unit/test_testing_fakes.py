"""The fakes shipped to users behave like the servers they stand for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strands_sglang.backends.sglang import SGLangClient
from strands_sglang.exceptions import (
    SGLangAnswerLimitError,
    SGLangConnectionError,
    SGLangRequestError,
    SGLangThrottledError,
)
from strands_sglang.testing import (
    HTTPAnswer,
    HTTPRequest,
    MockTransport,
    Reply,
    ScriptedClient,
    ScriptExhaustedError,
    build_answer,
)
from tests.servers import FaultyServer, faults


class Letters:
    """A tokenizer: one token a letter, code point minus 60; id 0 ends."""

    eos_token_id = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert add_special_tokens is False
        return [ord(letter) - 60 for letter in text]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join("<eos>" if i == 0 else chr(i + 60) for i in ids if i or not skip_special_tokens)


async def test_a_script_of_texts_ids_answers_and_errors() -> None:
    client = ScriptedClient(
        ["ab", [7, 8], {"output_ids": [1], "meta_info": {}}, SGLangThrottledError(503, "full")], tokenizer=Letters()
    )
    assert (await client.generate([1]))["output_ids"] == [37, 38, 0]
    assert (await client.generate([1]))["output_ids"] == [7, 8]
    assert await client.generate([1]) == {"output_ids": [1], "meta_info": {}}
    with pytest.raises(SGLangThrottledError):
        await client.generate([1])
    with pytest.raises(ScriptExhaustedError, match="call 5"):
        await client.generate([1])


async def test_an_answer_is_complete() -> None:
    client = ScriptedClient([Reply(ids=[5, 6], text="x", meta={"cached_tokens": 3, "routed_experts": "AA=="})])
    answer = await client.generate([1, 2, 3, 4], return_logprob=True, rid="r", sampling_params={"max_new_tokens": 9})
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": 6}
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == ("r", 4, 2, 3)
    assert [entry[1:] for entry in meta["output_token_logprobs"]] == [[5, None], [6, None]]
    assert all(entry[0] < 0 for entry in meta["output_token_logprobs"])
    assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": 2}]
    assert meta["routed_experts"] == "AA=="


async def test_logprobs_only_when_asked_for() -> None:
    client = ScriptedClient([[5], Reply(ids=[5], logprobs=[-0.25])])
    assert "output_token_logprobs" not in (await client.generate([1]))["meta_info"]
    answer = await client.generate([1], return_logprob=True)
    assert answer["meta_info"]["output_token_logprobs"] == [[-0.25, 5, None]]


async def test_a_reply_is_cut_at_max_new_tokens() -> None:
    client = ScriptedClient([[5, 6, 7]])
    answer = await client.generate([1], sampling_params={"max_new_tokens": 2})
    assert answer["output_ids"] == [5, 6]
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 2}


def test_text_loses_the_stop_token_as_at_the_server() -> None:
    reply = Reply(text="ab")
    for params, text in (
        ({}, "ab"),
        ({"no_stop_trim": True}, "ab"),
        ({"no_stop_trim": True, "skip_special_tokens": False}, "ab<eos>"),
    ):
        answer = build_answer(reply, [1], {"sampling_params": params}, rid="r", tokenizer=Letters())
        assert answer["text"] == text
        assert answer["output_ids"] == [37, 38, 0]


def test_text_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match="tokenizer"):
        build_answer(Reply(text="ab"), [1], {}, rid="r")


async def test_requests_are_recorded_and_checked() -> None:
    client = ScriptedClient([[1]], vocab_size=10)
    with pytest.raises(SGLangRequestError):
        await client.generate([10])
    with pytest.raises(SGLangRequestError, match="max_new_tokens"):
        await client.generate([1], sampling_params={"max_tokens": 5})
    await client.generate([1, 2], routing_key="k", return_logprob=True)
    assert [request.input_ids for request in client.requests] == [[1, 2]]
    assert client.requests[0].fields == {"routing_key": "k", "return_logprob": True}
    assert client.remaining == 0


async def test_a_function_answers_every_call() -> None:
    async def reply(input_ids: list[int], fields: dict[str, Any]) -> Reply:
        return Reply(ids=[len(input_ids)])

    client = ScriptedClient(reply)
    assert [(await client.generate([0] * n))["output_ids"] for n in (1, 3)] == [[1], [3]]


async def test_a_delayed_reply_can_be_aborted_and_cancelled() -> None:
    client = ScriptedClient([Reply(ids=[1], delay=60), Reply(ids=[1], delay=60), Reply(ids=[4], delay=0.01)])
    first = asyncio.create_task(client.generate([1], rid="a"))
    second = asyncio.create_task(client.generate([1], rid="b"))
    await asyncio.sleep(0)
    await client.abort("a")
    answer = await first
    assert answer["output_ids"] == []
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert (client.aborted, client.cancelled, client.max_in_flight) == (["a"], ["b"], 2)
    assert (await client.generate([1]))["output_ids"] == [4]


# ------------------------------------------------------------------------- FaultyServer


def direct(url: str) -> SGLangClient:
    return SGLangClient(url, max_retries=0, timeout=10.0)


async def test_good_answers_depend_on_the_prompt_alone() -> None:
    async with FaultyServer() as server, direct(server.url) as client:
        first, again, other = [await client.generate(ids) for ids in ([1, 2], [1, 2], [1, 3])]
    assert first["output_ids"] == again["output_ids"] != other["output_ids"]


async def test_a_duplicate_id_in_flight_is_refused() -> None:
    async with FaultyServer([faults.hang()]) as server, direct(server.url) as client:
        call = asyncio.create_task(client.generate([1], rid="same"))
        await server.wait_for_requests(1)
        with pytest.raises(Exception, match="Duplicate request ID"):
            await client.generate([1], rid="same")
        await client.abort("same")
        await call


async def test_aborting_a_live_id_takes_ids_that_begin_with_it_along() -> None:
    async with FaultyServer(lambda call: faults.hang()) as server, direct(server.url) as client:
        calls = [asyncio.create_task(client.generate([1], rid=rid)) for rid in ("traj-1", "traj-10", "traj-2")]
        await server.wait_for_requests(3)
        await client.abort("traj")  # no live id: nothing happens
        await client.abort("traj-1")
        await asyncio.gather(*calls[:2])
        assert server.running == ["traj-2"]
        await client.abort("traj-2")
        await calls[2]


async def test_outcomes_are_recorded() -> None:
    async with FaultyServer([faults.answer(), faults.busy(), faults.reset(), faults.hang()]) as server:
        client = direct(server.url)
        await client.generate([1])
        for error in (SGLangThrottledError, SGLangConnectionError):
            with pytest.raises(error):
                await SGLangClient(server.url, max_retries=0).generate([1])
        call = asyncio.create_task(client.generate([1]))
        await server.wait_for_requests(4)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await client.close()
        async with asyncio.timeout(10):
            while server.running:
                await asyncio.sleep(0.01)
    assert [(r.outcome, r.status) for r in server.requests[:3]] == [
        ("answered", 200),
        ("answered", 503),
        ("disconnected", None),
    ]
    assert server.requests[3].outcome == "disconnected"


async def test_a_server_restarts_at_its_address() -> None:
    async with FaultyServer() as server:
        url = server.url
        await server.stop()
        await server.start()
        assert server.url == url
        async with direct(url) as client:
            assert await client.health()


async def test_a_weight_update_shows_in_the_answers() -> None:
    async with FaultyServer() as server, direct(server.url) as client:
        server.weight_version = "v2"
        assert (await client.generate([1]))["meta_info"]["weight_version"] == "v2"


def answered(request: HTTPRequest) -> HTTPAnswer:
    meta = {"id": request.json()["rid"], "finish_reason": {"type": "stop", "matched": 5}}
    return HTTPAnswer.of_json({"output_ids": [4, 5], "meta_info": meta})


async def test_a_mock_transport_sees_whole_requests_and_its_failures_follow_the_table() -> None:
    failures: list[Any] = [
        HTTPAnswer.of_json({"error": "full"}, status=503, headers={"Retry-After": "0"}),
        ConnectionRefusedError("nobody"),
        TimeoutError(),
        ConnectionResetError("gone"),
        HTTPAnswer(200, {}, b"half"),
    ]

    async def handler(request: HTTPRequest) -> HTTPAnswer:
        if request.url.endswith("/generate") and failures:
            failure = failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return failure
        return answered(request) if request.url.endswith("/generate") else HTTPAnswer(200, {}, b"")

    transport = MockTransport(handler)
    async with SGLangClient("http://server:1", transport=transport, api_key="k", retry_delay=0.0) as client:
        assert (await client.generate([1, 2], routing_key="me"))["output_ids"] == [4, 5]
    sent = [request for request in transport.requests if request.url == "http://server:1/generate"]
    assert len(sent) == 6 and sent[0].json()["input_ids"] == [1, 2]
    assert sent[0].method == "POST" and sent[0].headers["Authorization"] == "Bearer k"
    assert sent[0].headers["X-SMG-Routing-Key"] == "me"
    aborted = [request.json()["rid"] for request in transport.requests if request.url.endswith("/abort_request")]
    assert {each.json()["rid"] for each in sent[2:5]} <= set(aborted)  # a server may still be at work on these


async def test_a_request_of_a_mock_transport_ends_with_its_time_its_limit_and_its_client() -> None:
    async def hang(request: HTTPRequest) -> HTTPAnswer:
        if not request.url.endswith("/generate"):
            return HTTPAnswer(200, {}, b"")
        await asyncio.sleep(60)
        raise AssertionError

    async with SGLangClient("http://s", transport=MockTransport(hang), timeout=0.01, max_retries=0) as client:
        with pytest.raises(SGLangConnectionError, match="within"):
            await client.generate([1])
    async with SGLangClient("http://s", transport=MockTransport(hang)) as client:
        call = asyncio.create_task(client.generate([1]))
        await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(SGLangConnectionError, match="closed"):
            await call
    transport = MockTransport(lambda request: HTTPAnswer(200, {}, b" " * 100))
    async with SGLangClient("http://s", transport=transport, max_answer_bytes=99) as client:
        with pytest.raises(SGLangAnswerLimitError):
            await client.generate([1])
