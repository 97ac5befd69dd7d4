"""A live server's answers to wrong requests, and the client's errors for them. Nothing here harms the server."""

from __future__ import annotations

import asyncio
import gc
import os
import uuid
from typing import Any

import aiohttp
import pytest
from rollout_support import failure, make_model
from strands.types.exceptions import ContextWindowOverflowException, MaxTokensReachedException

from strands_sglang import SGLangClient
from strands_sglang.backends.sglang.answer import http_error
from strands_sglang.exceptions import (
    SGLangClientError,
    SGLangConnectionError,
    SGLangContextLengthError,
    SGLangHTTPError,
    SGLangRequestError,
)

ONE = {"max_new_tokens": 1}
NEW = "a_key_of_tomorrow"


async def raw(base_url: str, body: Any) -> tuple[int, str]:
    """A request that the client would not send."""
    options = {"json": body} if not isinstance(body, bytes) else {"data": body}
    headers = {"content-type": "application/json"}
    async with (
        aiohttp.ClientSession(base_url, headers=headers) as session,
        session.post("/generate", **options) as answer,
    ):
        return answer.status, await answer.text()


async def test_the_vocabulary_is_guarded_at_its_very_end(sglang_base_url: str, sglang_vocab_size: int) -> None:
    async with SGLangClient(sglang_base_url, vocab_size=sglang_vocab_size) as client:
        with pytest.raises(SGLangRequestError, match=str(sglang_vocab_size)):
            await client.generate([1, sglang_vocab_size], sampling_params=ONE)
        answer = await client.generate([1, sglang_vocab_size - 1], sampling_params=ONE)
        assert len(answer["output_ids"]) == 1


@pytest.mark.parametrize(
    "params", [{"regex": "(["}, {"ebnf": "root ::= "}, {"json_schema": '{"type": "none such"}'}, {NEW: 1}]
)
async def test_what_the_server_refuses_is_an_error_in_its_words_after_one_attempt(sglang_base_url, params):
    async with SGLangClient(sglang_base_url, extra_sampling_keys=[NEW], retry_delay=0.05) as client:
        try:
            answer = await client.generate([1, 2], sampling_params={**ONE, **params})
        except SGLangHTTPError as error:
            caught = error
        else:
            # A grammar may also be refused as an abort with a status, which the provider makes an error.
            finish = answer["meta_info"]["finish_reason"]
            assert finish["type"] == "abort" and finish["status_code"] == 400, answer
            return
    assert caught.status == 400
    assert not isinstance(caught, SGLangContextLengthError)
    assert not hasattr(caught, "__notes__"), "it was repeated"
    assert NEW not in params or NEW in str(caught)


async def test_a_prompt_beyond_the_context_is_told_apart_from_other_refusals(client, sglang_server):
    length = sglang_server.context_length
    with pytest.raises(SGLangContextLengthError, match=str(length)) as caught:
        await client.generate([1] * (length + 5), sampling_params=ONE)
    assert caught.value.status == 400
    with pytest.raises(SGLangContextLengthError):
        await client.generate([1] * 10, sampling_params={"max_new_tokens": length})
    # The words alone do not make one: here the caller says them.
    status, body = await raw(sglang_server.base_url, {"input_ids": [1], "sampling_params": {"context length": 1}})
    assert status == 400
    assert type(http_error(status, body)) is SGLangHTTPError


async def test_a_history_that_outgrows_the_context_ends_as_the_sdk_knows_it(client, sglang_server, sglang_tokenizer):
    prompt = "overflow " * sglang_server.context_length
    # The client knows the context length, so nothing is sent.
    error = await failure(make_model(client, sglang_tokenizer), 1, prompt)
    assert isinstance(error, ContextWindowOverflowException)
    # Told a wrong one, it hears it from the server.
    wrong = make_model(client, sglang_tokenizer, context_window_limit=100 * sglang_server.context_length)
    error = await failure(wrong, 1, prompt)
    assert isinstance(error, ContextWindowOverflowException)
    assert isinstance(error.__cause__, SGLangContextLengthError)
    assert wrong.trajectories == []


async def test_max_new_tokens_is_bounded_by_what_the_context_leaves(client, sglang_server, sglang_tokenizer):
    model = make_model(client, sglang_tokenizer, sampling_params={"max_new_tokens": 10**6, "ignore_eos": True})
    # Leave little room, or it takes long.
    room = 40
    fill = sglang_server.context_length - room
    text = sglang_tokenizer.decode([1000 % len(sglang_tokenizer)]) * fill
    while len(sglang_tokenizer.encode(text)) > fill - 60:
        text = text[: int(len(text) * 0.98)]
    stop = None
    async for event in model.stream([{"role": "user", "content": [{"text": text}]}]):
        stop = event.get("messageStop", {}).get("stopReason", stop)
    assert stop == "max_tokens"
    assert sglang_server.context_length - 2 <= len(model.token_manager) <= sglang_server.context_length


async def test_a_duplicate_id_is_healed_by_a_fresh_one(client: SGLangClient) -> None:
    rid = uuid.uuid4().hex
    params = {"max_new_tokens": 200, "ignore_eos": True}
    answers = await asyncio.gather(*(client.generate([1, 2], rid=rid, sampling_params=params) for _ in range(3)))
    ids = [answer["meta_info"]["id"] for answer in answers]
    assert len(set(ids)) == 3
    assert rid in ids


@pytest.mark.parametrize(
    "body", [b"{", b"[]", {"input_ids": "x"}, {"input_ids": [1], "sampling_params": 5}, {"input_ids": []}, {}], ids=str
)
async def test_every_refusal_of_a_live_server_is_read(sglang_base_url: str, body: Any) -> None:
    status, text = await raw(sglang_base_url, body)
    error = http_error(status, text)
    assert 400 <= status < 600
    assert type(error) is SGLangHTTPError
    assert len(str(error)) > len(f"HTTP {status}: ")
    assert "{" not in str(error)[:12], "the message was found, the body is not quoted whole"


async def test_closing_with_requests_in_flight_leaves_no_task_no_socket_and_no_request(sglang_server):
    await asyncio.sleep(0)
    gc.collect()
    tasks = set(asyncio.all_tasks())
    files = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    client = SGLangClient(sglang_server.base_url, max_retries=5)
    params = {"max_new_tokens": 3000, "ignore_eos": True}
    rids = [uuid.uuid4().hex for _ in range(8)]
    calls = [asyncio.create_task(client.generate([1, 2, n], rid=rids[n], sampling_params=params)) for n in range(8)]
    while len(client._transport().in_flight) < 8 or not await sglang_server.running():
        await asyncio.sleep(0.02)
    await client.close()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [SGLangConnectionError] * 8
    gc.collect()
    # Gone from the server: their ids are free again.
    async with SGLangClient(sglang_server.base_url, max_retries=0) as other:
        for rid in rids:
            while True:
                try:
                    await other.generate([1], rid=rid, sampling_params=ONE)
                    break
                except SGLangClientError:
                    await asyncio.sleep(0.05)
    while set(asyncio.all_tasks()) - tasks or (files and len(os.listdir("/proc/self/fd")) > len(files)):
        await asyncio.sleep(0.02)


async def test_budgets_are_exact(client: SGLangClient, sglang_tokenizer: Any) -> None:
    stops = list(range(0, len(sglang_tokenizer), 4))  # turns of a few tokens
    params = {"max_new_tokens": 400, "stop_token_ids": stops}
    model = make_model(client, sglang_tokenizer, max_sampled_tokens=33, sampling_params=params)
    assert isinstance(await failure(model, 50), MaxTokensReachedException)
    assert sum(model.token_manager.loss_mask) == 33
    (trajectory,) = model.trajectories
    limit = len(trajectory.turns[0].prompt_ids) + 9
    model = make_model(client, sglang_tokenizer, max_trajectory_tokens=limit, sampling_params={"ignore_eos": True})
    assert isinstance(await failure(model, 50), MaxTokensReachedException)
    assert len(model.token_manager) == limit
