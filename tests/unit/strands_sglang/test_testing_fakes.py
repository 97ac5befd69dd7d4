"""The fakes shipped to users behave like the servers they stand for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strands_sglang.backends.sglang.client import SGLangClient
from strands_sglang.exceptions import (
    SGLangAnswerLimitError,
    SGLangConnectionError,
    SGLangRequestError,
    SGLangThrottledError,
)
from strands_sglang.testing import (
    HTTPRequest,
    HTTPResponse,
    MockTransport,
    Reply,
    ScriptedClient,
    ScriptExhaustedError,
    build_answer,
)


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
    client = ScriptedClient([Reply(ids=[5, 6], text="x", meta={"cached_tokens": 3, "routed_experts": "AA=="}), [5, 6]])
    answer = await client.generate([1, 2, 3, 4], return_logprob=True, rid="r", sampling_params={"max_new_tokens": 9})
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": 6}
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == ("r", 4, 2, 3)
    assert [entry[1:] for entry in meta["output_token_logprobs"]] == [[5, None], [6, None]]
    assert all(entry[0] < 0 for entry in meta["output_token_logprobs"])
    assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": 2}]
    assert meta["routed_experts"] == "AA=="
    cut = await client.generate([1], sampling_params={"max_new_tokens": 1})
    assert (cut["output_ids"], cut["meta_info"]["finish_reason"]) == ([5], {"type": "length", "length": 1})


async def test_logprobs_only_when_asked_for() -> None:
    client = ScriptedClient([[5], Reply(ids=[5], logprobs=[-0.25])])
    assert "output_token_logprobs" not in (await client.generate([1]))["meta_info"]
    answer = await client.generate([1], return_logprob=True)
    assert answer["meta_info"]["output_token_logprobs"] == [[-0.25, 5, None]]


def test_text_loses_the_stop_token_as_at_the_server() -> None:
    reply = Reply(text="ab")
    for params, text in (
        ({}, "ab"),
        ({"no_stop_trim": True}, "ab"),
        ({"skip_special_tokens": False}, "ab"),
        ({"no_stop_trim": True, "skip_special_tokens": False}, "ab<eos>"),
    ):
        answer = build_answer(reply, [1], {"sampling_params": params}, rid="r", tokenizer=Letters())
        assert answer["text"] == text
        assert answer["output_ids"] == [37, 38, 0]
    aborted = build_answer(Reply(text="ab", finish="abort"), [1], {}, rid="r", tokenizer=Letters())
    assert aborted["output_ids"] == [37, 38]
    assert build_answer(Reply(text=""), [1], {}, rid="r", tokenizer=Letters())["output_ids"] == [0]


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


def answered(request: HTTPRequest) -> HTTPResponse:
    meta = {"id": request.json()["rid"], "finish_reason": {"type": "stop", "matched": 5}}
    return HTTPResponse.from_json({"output_ids": [4, 5], "meta_info": meta})


async def test_a_mock_transport_sees_whole_requests_and_its_failures_follow_the_table() -> None:
    failures: list[Any] = [
        HTTPResponse.from_json({"error": "full"}, status=503, headers={"Retry-After": "0"}),
        ConnectionRefusedError("nobody"),
        TimeoutError(),
        ConnectionResetError("gone"),
        HTTPResponse(200, {}, b"half"),
    ]

    async def handler(request: HTTPRequest) -> HTTPResponse:
        if request.url.endswith("/generate") and failures:
            failure = failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return failure
        return answered(request) if request.url.endswith("/generate") else HTTPResponse(200, {}, b"")

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
    async def hang(request: HTTPRequest) -> HTTPResponse:
        if not request.url.endswith("/generate"):
            return HTTPResponse(200, {}, b"")
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
    transport = MockTransport(lambda request: HTTPResponse(200, {}, b" " * 100))
    async with SGLangClient("http://s", transport=transport, max_answer_bytes=99) as client:
        with pytest.raises(SGLangAnswerLimitError):
            await client.generate([1])
