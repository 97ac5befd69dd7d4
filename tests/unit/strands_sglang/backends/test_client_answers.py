"""Answers that contradict themselves or the request are failures; errors inside a 200 are errors."""

from __future__ import annotations

import asyncio
import logging
import math
import traceback
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from strands_sglang.backends.http.client_options import Secrets
from strands_sglang.backends.sglang.client import SGLangClient
from strands_sglang.exceptions import (
    SGLangAnswerLimitError,
    SGLangContextLengthError,
    SGLangDecodingError,
    SGLangHTTPError,
    SGLangThrottledError,
)
from strands_sglang.testing import Reply
from tests.servers import FaultyServer, faults
from tests.unit.client_support import client, make, server

__all__ = ["client", "server"]  # fixtures


def saying(**meta: Any) -> faults.Fault:
    """A good answer with other words in its `meta_info`; None removes one."""

    async def fault(call: faults.ServerCall) -> web.StreamResponse:
        answer = call.answer(Reply(ids=[1, 2]))
        answer["meta_info"] |= meta
        answer["meta_info"] = {key: value for key, value in answer["meta_info"].items() if value != "gone"}
        return web.json_response(answer)

    return fault


@pytest.mark.parametrize(
    "fault",
    [
        saying(prompt_tokens=2),
        saying(completion_tokens=3),
        saying(finish_reason="gone"),
        faults.answer(Reply(ids=[100])),
    ],
    ids=["prompt cut", "tokens missing", "no finish", "outside the vocabulary"],
)
async def test_a_contradiction_is_repeated_and_then_a_decoding_error(fault: faults.Fault) -> None:
    async with FaultyServer(lambda call: fault) as server, make(server.url, vocab_size=100) as client:
        with pytest.raises(SGLangDecodingError):
            await client.generate([1, 2, 3])
        assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("meta", "fields"),
    [
        ({"prompt_tokens": "gone", "completion_tokens": None, "id": "gone"}, {}),
        ({"prompt_tokens": 900}, {"image_data": ["aGVsbG8="]}),  # images lengthen the prompt
        ({"finish_reason": {"type": "abort", "message": "Aborted"}, "completion_tokens": 9}, {}),  # it may lose some
    ],
)
async def test_what_does_not_contradict_is_taken(server: FaultyServer, client: SGLangClient, meta: Any, fields: Any):
    server.script = [saying(**meta)]
    assert (await client.generate([1], **fields))["output_ids"] == [1, 2]
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("vocab_size", "named", "kept"),
    [
        (100, [0, 0, 7], True), (None, [0, 0, 7], True), (100, [0, 0, 0], False), (100, [99, 0, 0], False),
        (101, [0, 0, 7], False), (None, [0, 1, 7], False),
    ],
)  # fmt: skip
async def test_only_the_last_id_of_the_vocabulary_may_be_named_0_and_has_no_value(vocab_size, named, kept):
    entries = [[None, 5, None], *([-0.1 * place, token, None] for place, token in enumerate(named, 1))]
    async with (
        FaultyServer([saying(input_token_logprobs=entries)]) as server,
        make(server.url, vocab_size=vocab_size) as client,
    ):
        if not kept:
            with pytest.raises(SGLangDecodingError, match="does not score the 3 tokens"):
                await client.score([5, 99, 0, 7], start=1)
            return
        found = await client.score([5, 99, 0, 7], start=1)
    assert found.ids.tolist() == [99, 0, 7]
    assert np.allclose(found.logprobs, [math.nan, -0.2, -0.3], equal_nan=True)


# ------------------------------------------------------------------- bounds


async def test_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.backends.http.connections._LONGEST_CONTROL_ANSWER", 10)
    async with FaultyServer() as server, make(server.url, max_answer_bytes=10) as client:
        for ask in (client.generate([1]), client.get_model_info()):
            with pytest.raises(SGLangAnswerLimitError, match="more than 10"):
                await ask
        assert len(server.requests) == 1


async def test_a_huge_answer_is_read_like_a_small_one(server, client, monkeypatch):
    monkeypatch.setattr("strands_sglang.backends.http.server_client._READ_IN_THREAD", 1)
    server.script = [faults.answer(Reply(ids=[7])), saying(completion_tokens=3), faults.answer(Reply(ids=[8]))]
    assert (await client.generate([1]))["output_ids"] == [7]
    assert (await client.generate([1]))["output_ids"] == [8]


@pytest.mark.parametrize("status", [200, 400])
async def test_a_key_that_the_server_repeats_is_not_shown(status: int) -> None:
    async def fault(call: faults.ServerCall) -> web.StreamResponse:
        key = call.request.headers["Authorization"]
        return web.json_response(
            {"error": {"message": f"bad key {key} {call.request.headers['X-Api-Key']}"}}, status=status
        )

    async with FaultyServer(lambda call: fault) as server:
        options = {"api_key": 'sk-"secret"', "headers": {"X-Api-Key": "hidden"}, "max_retries": 0}
        async with make(server.url, **options) as client:
            with pytest.raises(SGLangHTTPError) as caught:
                await client.generate([1])
    shown = f"{caught.value} {caught.value.body} {caught.value.args!r}"
    assert "bad key Bearer ***" in shown
    assert "secret" not in shown
    assert "hidden" not in shown


@pytest.mark.parametrize(
    "echo",
    [
        b"SSH-2.0 " + b"x" * 180 + b"%b\r\n\r\n",  # behind what is shown
        b"HTTP/1.1 200 OK\r\n%b: x\r\nContent-Length: z\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b" " * 30 + b"%b",
    ],
    ids=["cut", "header", "body"],
)
async def test_a_key_that_a_broken_server_repeats_is_not_shown(echo: bytes) -> None:
    key = "sk-q\u00fc\"ote'd-and-secret"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        words = echo if head.startswith(b"POST /generate") else b"HTTP/1.1 200 OK\r\nX: %b\r\nContent-Length: 0\r\n\r\n"
        writer.write(words % head.partition(b"Authorization: ")[2].partition(b"\r\n")[0])
        writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with (
        listening,
        make(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", api_key=key, max_retries=0) as client,
    ):
        with pytest.raises(SGLangDecodingError) as caught:
            await client.generate([1])
    attributes = vars(caught.value.__cause__ or caught.value)
    assert caught.value.__context__ is None  # aiohttp's error has the request and its headers
    shown = f"{''.join(traceback.format_exception(caught.value))} {caught.value!r} {attributes}"
    for part in ("sk-q", "and-secret"):
        assert part not in shown


# ------------------------------------------------------------------- errors inside a 200


@pytest.mark.parametrize(
    ("payload", "status", "error", "attempts"),
    [
        ({"object": "error", "message": "the words", "type": "503", "param": None, "code": 503}, 503,
         SGLangThrottledError, 3),
        ({"detail": "the words"}, 200, SGLangHTTPError, 3),
        ({"error": {"message": "the words", "code": "504"}}, 504, SGLangHTTPError, 3),
        ({"error": {"message": "the words", "code": "no_worker"}}, 200, SGLangHTTPError, 3),
    ],
    ids=["full", "detail", "inner code as text", "code is a word"],
)  # fmt: skip
async def test_any_error_object_in_a_200_is_an_error_with_the_servers_words(payload, status, error, attempts):
    async with FaultyServer(lambda call: faults.raw_answer(payload)) as server:
        async with make(server.url, max_retries=2) as client:
            with pytest.raises(error, match="the words") as caught:
                await client.generate([1])
        assert (caught.value.status, type(caught.value)) == (status, error)
        assert len(server.requests) == attempts


async def test_an_abort_with_an_error_status_is_that_error(server: FaultyServer, client: SGLangClient) -> None:
    full = {"type": "abort", "message": "Request queue is full", "status_code": 503, "err_type": "x"}
    server.script = [saying(finish_reason=full)]
    await client.generate([1])
    assert len(server.requests) == 2
    server.script = [saying(finish_reason={**full, "status_code": 400, "message": "Prompt is too long: 9 > 8"})]
    with pytest.raises(SGLangContextLengthError, match="9 > 8"):
        await client.generate([1])
    assert len(server.requests) == 3


async def test_a_huge_error_page_is_not_a_huge_message(server: FaultyServer) -> None:
    page = "<html>" + "x" * 1_000_000
    server.script = [faults.status(503, page)]
    async with make(server.url, max_retries=0) as client:
        with pytest.raises(SGLangThrottledError) as caught:
            await client.generate([1])
    assert len(str(caught.value)) < 3000
    assert "1000006 characters" in str(caught.value)
    assert caught.value.body == page


async def test_a_foreign_id_is_reported_only(server, client, caplog):
    server.script = [saying(id="renamed")]
    with caplog.at_level(logging.WARNING):
        await client.generate([1], sampling_params={"logit_bias": {"5": 1.0}})
    assert len(server.requests) == 1
    assert ["field=<rid>" in record.getMessage() for record in caplog.records] == [True]  # no router, nothing dropped


@pytest.mark.parametrize("header", ["Authorization", "Ocp-Apim-Subscription-Key", "X-Session-Tokens", "X-Auth"])
def test_a_key_is_hidden_in_capitals_too(header: str) -> None:
    secrets = Secrets({header: "Bearer sk-supersecret0123"})
    assert secrets.hide("the key SK-SUPERSECRET0123 is wrong") == "the key *** is wrong"
