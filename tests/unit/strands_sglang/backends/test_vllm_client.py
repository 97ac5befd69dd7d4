"""The client of vLLM over a real socket, against a scripted server of its protocol."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from email.message import Message
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.error import HTTPError

import numpy as np
import orjson
import pytest

from strands_env.core.backends import BACKENDS, model_factory_from_args
from strands_sglang import SGLangClient, TokenModel, get_client, get_tokenizer
from strands_sglang.backends import GenerateRequest, LogprobKind, client_class, token_array
from strands_sglang.backends.http import served
from strands_sglang.backends.http.call import GenerateCall, write_prompt
from strands_sglang.backends.vllm import VLLMClient
from strands_sglang.backends.vllm import client as vllm_client
from strands_sglang.backends.vllm.answer import read_answer
from strands_sglang.backends.vllm.request import wire_fields
from strands_sglang.command_line import SERVERS
from strands_sglang.exceptions import (
    BackendAnswerError,
    BackendConnectionError,
    BackendContextLengthError,
    BackendHTTPError,
    BackendRequestError,
)
from strands_sglang.testing import HTTPResponse, MockTransport
from strands_sglang.trajectory import FinishType
from tests.servers import FaultyServer, faults

PROMPT = [1, 2, 3]
WARM = {"temperature": 0.7}


def request(**fields: Any) -> GenerateRequest:
    params = {"max_new_tokens": 200, **fields.pop("sampling_params", {})}
    return GenerateRequest(prompt=token_array(fields.pop("prompt", PROMPT)), sampling_params=params, **fields)


@asynccontextmanager
async def serving(*script: Any, **options: Any) -> AsyncIterator[tuple[FaultyServer, VLLMClient]]:
    client_options = options.pop("client", {})
    async with (
        FaultyServer(script, protocol="vllm", **options) as server,
        VLLMClient(server.url, retry_delay=0.01, **client_options) as client,
    ):
        yield server, client


async def test_a_call_is_what_vllm_reads_and_its_answer_what_vllm_sampled() -> None:
    async with serving() as (server, client):
        answer = await client.ask(request(routing_key="episode", sampling_params={"stop_token_ids": [5]}))
        (served,) = server.requests
    assert answer.finish.type is FinishType.STOP and answer.output_ids and answer.output_logprobs
    assert answer.latency is not None and answer.latency > 0
    assert served.headers["x-session-id"] == "episode"
    assert served.body["input_ids"] == PROMPT
    assert served.body["sampling_params"] == {
        "max_new_tokens": 200, "stop_token_ids": [5], "logprobs": 0, "detokenize": False
    }  # fmt: skip


async def test_stop_strings_need_the_text_special_tokens_included() -> None:
    async with serving() as (server, client):
        await client.ask(
            request(sampling_params={"stop": ["END"], "json_schema": '{"type": "object"}'}, logprobs=False)
        )
        params = server.requests[0].body["sampling_params"]
    assert params["skip_special_tokens"] is False and "detokenize" not in params
    assert params["structured_outputs"] == {"json": {"type": "object"}}


# ---- log-probabilities -----------------------------------------------------------------------------------------------


async def test_the_mode_of_logprobs_is_asked_for_once_and_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (server, client):
        assert client.capabilities.logprobs is LogprobKind.SAMPLED
        for requests in (3, 4):
            await client.ask(request(sampling_params=WARM))
            assert len(server.requests) == requests
        monkeypatch.setattr(vllm_client, "KEEPALIVE_S", 0.0)
        await client.ask(request(sampling_params=WARM))
        probes = [each for each in server.requests if each.body["sampling_params"].get("logprobs") == 3]
    assert (len(probes), len(server.requests)) == (4, 7)


async def test_raw_logprobs_are_right_where_they_are_those_of_the_sampling_or_not_wanted() -> None:
    async with serving(raw_logprobs=True) as (_, client):
        for params in ({}, {"temperature": 1.0, "top_p": 1.0, "top_k": -1}):
            assert (await client.ask(request(sampling_params=params))).output_logprobs
        await client.ask(request(sampling_params=WARM, logprobs=False))


@pytest.mark.parametrize(
    "params",
    [WARM, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"presence_penalty": 0.5}, {"repetition_penalty": 1.1},
     {"logit_bias": {"5": 1.0}}, {"regex": "[0-9]+"}, {"min_new_tokens": 3}],
)  # fmt: skip
async def test_raw_logprobs_are_refused_where_the_distribution_is_changed(params: dict[str, Any]) -> None:
    async with serving(raw_logprobs=True) as (server, client):
        with pytest.raises(BackendRequestError, match="--logprobs-mode processed_logprobs"):
            await client.ask(request(sampling_params=params))
        assert client.capabilities.logprobs is LogprobKind.RAW
        assert len(server.requests) == 2  # the probes alone


# ---- what is refused before it is sent -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"max_tokens": 5}, "max_tokens"),
        ({"stop_regex": "a"}, "stop_regex"),
        ({"temperature": 2.5}, "less than or equal to 2"),
    ],
)
async def test_parameters_that_vllm_would_ignore_or_refuse_are_not_sent(params: dict[str, Any], words: str) -> None:
    client = VLLMClient("http://localhost:1")
    with pytest.raises(BackendRequestError, match=words):
        client.check_sampling_params(params)


def test_fields_and_parameters_are_known_by_name_and_those_of_newer_servers_let_through() -> None:
    client = VLLMClient("http://localhost:1", extra_sampling_keys=["thinking_token_budget"])
    assert client.check_sampling_params({"thinking_token_budget": 5, "top_k": None}) == {"thinking_token_budget": 5}
    assert client.check_fields({"cache_salt": "v1"}) == {"cache_salt": "v1"}
    with pytest.raises(BackendRequestError, match="request_fields"):
        client.check_fields({"lora_path": "x"})


async def test_more_tokens_than_the_context_has_are_refused_because_vllm_would_cut_them() -> None:
    async with serving(max_model_len=64) as (server, client):
        with pytest.raises(BackendContextLengthError, match="context of 64"):
            await client.ask(request(sampling_params={"max_new_tokens": 62}))
        assert not server.requests
        await client.ask(request(sampling_params={"max_new_tokens": 61}))


async def test_images_are_sent_beside_the_ids_with_their_placeholders() -> None:
    more = {"show_prompt": True, "constrain_answer_only": True, "experts_from": 2}
    asked = request(images=("data:image/png;base64,AA==",), growth=19, **more)
    body = orjson.loads(
        GenerateCall(asked, wire_fields(asked), VLLMClient.server.wire_names).body("r", write_prompt(asked))
    )
    assert body["content_parts"] == [{"type": "image_url", "url": "data:image/png;base64,AA=="}]
    assert (body["request_id"], body["token_ids"], body["return_token_ids"]) == ("r", PROMPT, True)
    assert (body["reasoning_ended"], body["sampling_params"]["routed_experts_prompt_start"]) == (False, 2)


def scoring_answer(prompt_logprobs: Any) -> dict[str, Any]:
    choice = {"token_ids": [5], "finish_reason": "length", "logprobs": {"content": [{"token_id": 5, "logprob": -1.0}]}}
    return {"choices": [choice], "prompt_logprobs": prompt_logprobs}


def test_a_scored_prompt_begins_where_asked_and_is_checked() -> None:
    asked = GenerateRequest(prompt=token_array([7, 8, 9]), sampling_params={"max_new_tokens": 1}, score_from=0)
    assert wire_fields(asked)["sampling_params"]["prompt_logprobs"] == 0
    entries = [None, {"8": {"logprob": -0.5}}, {"9": {"logprob": -9999.0}}]

    def read(entries: Any, start: int) -> Any:
        return read_answer(scoring_answer(entries), replace(asked, score_from=start), rid=None)

    scored = read(entries, 0).scored_prompt
    assert scored.ids.tolist() == [7, 8, 9]
    assert np.array_equal(scored.logprobs, [math.nan, -0.5, math.nan], equal_nan=True)
    assert read(entries, 2).scored_prompt.ids.tolist() == [9]
    for wrong in (entries[:2], [None, {"7": {"logprob": -1.0}}, {"9": {"logprob": -1.0}}]):
        with pytest.raises(BackendAnswerError):
            read(wrong, 0)


def test_the_most_likely_tokens_come_by_rank_without_the_one_that_is_only_there_as_the_prompts() -> None:
    asked = GenerateRequest(
        prompt=token_array([7, 8, 9]), sampling_params={"max_new_tokens": 1}, score_from=0, score_top_k=2
    )
    assert wire_fields(asked)["sampling_params"]["prompt_logprobs"] == 2
    first = {"8": {"logprob": -3.0, "rank": 5}, "4": {"logprob": -0.2, "rank": 1}, "5": {"logprob": -2.0, "rank": 2}}
    entries = [None, first, {"9": {"logprob": -0.1, "rank": 1}, "4": {"logprob": -9999.0, "rank": 2}}]
    scored = read_answer(scoring_answer(entries), asked, rid=None).scored_prompt
    assert scored is not None and scored.top_ids is not None
    assert (scored.logprobs.tolist()[1:], scored.top_ids.tolist()) == ([-3.0, -0.1], [-1, -1, 4, 5, 9, 4])
    assert np.array_equal(scored.top_logprobs, [math.nan] * 2 + [-0.2, -2.0, -0.1, math.nan], equal_nan=True)
    del first["5"]
    with pytest.raises(BackendAnswerError, match="one length"):
        read_answer(scoring_answer([None, {"8": first["8"]}, entries[2]]), asked, rid=None)


# ---- faults ----------------------------------------------------------------------------------------------------------


async def test_a_cancelled_call_is_aborted_under_the_id_that_vllm_knows() -> None:
    async with serving(faults.hang()) as (server, client):
        call = asyncio.create_task(client.ask(request()))
        await server.wait_for_requests(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await client.close()
        assert server.aborted_rids == server.rids


async def test_the_two_servers_are_told_apart() -> None:
    async with FaultyServer() as server, VLLMClient(server.url) as client:
        with pytest.raises(BackendRequestError, match="SGLangClient"):
            await client.info()
    async with FaultyServer(protocol="vllm") as server:
        kind, address = client_class(server.url)
        async with kind(address) as client:
            with pytest.raises(BackendHTTPError, match="--backend vllm"):
                await client.ask(request())


def test_an_address_says_which_server_it_is() -> None:
    kind, address = client_class("vllm+https://host:8000")
    assert kind is VLLMClient and address == "https://host:8000"
    assert client_class("http://host")[0].__name__ == "SGLangClient"
    with pytest.raises(ValueError, match=r"vllm\+http"):
        client_class("ollama+http://host")
    model = TokenModel(tokenizer=get_tokenizer("tiny"), base_url="vllm+http://localhost:1")
    assert isinstance(model.conversation.client, VLLMClient)
    assert isinstance(get_client("vllm+http://localhost:1"), VLLMClient)
    kinds = {client_class(f"{kind}+http://host")[0].server.name for kind in SERVERS}
    assert kinds == set(SERVERS)
    assert kinds <= BACKENDS.keys()


# ---- where a backend is named ----------------------------------------------------------------------------------------


async def test_the_command_line_makes_a_model_over_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_env.core.models.only_from_cache", lambda name: pytest.fail(f"{name!r} is ours"))
    async with FaultyServer(protocol="vllm") as server:
        made = await asyncio.to_thread(model_factory_from_args, "vllm", sglang_base_url=server.url, tokenizer="tiny")
    model = made()
    assert isinstance(model, TokenModel)
    assert isinstance(model.conversation.client, VLLMClient)
    assert model.conversation.client.base_url == server.url


@pytest.mark.parametrize(("backend", "protocol", "other"), [("vllm", "sglang", "sglang"), ("sglang", "vllm", "vllm")])
async def test_the_command_line_says_which_backend_was_meant(backend: str, protocol: Any, other: str) -> None:
    async with FaultyServer(protocol=protocol) as server:
        with pytest.raises(BackendConnectionError, match=f"--backend {other}"):
            await asyncio.to_thread(model_factory_from_args, backend, sglang_base_url=server.url)


def test_sampling_parameters_are_those_of_the_backend() -> None:
    BACKENDS["sglang"].check({"stop_regex": "a"})
    with pytest.raises(BackendRequestError, match="stop_regex"):
        BACKENDS["vllm"].check({"stop_regex": "a"})


# ---- a start with wrong settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [VLLMClient, SGLangClient])
def test_the_address_for_openai_clients_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="leave out /v1"):
        kind("http://localhost:8000/v1/")


async def test_a_key_comes_from_the_environment_and_a_wrong_one_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "SECRET-KEY-123")
    async with serving(faults.status(401, {"error": "Unauthorized"})) as (server, client):
        with pytest.raises(BackendHTTPError, match="VLLM_API_KEY"):
            await client.ask(request())
        assert server.requests[0].headers["authorization"] == "Bearer SECRET-KEY-123"
        with pytest.raises(BackendConnectionError, match=r"HTTP 401.*VLLM_API_KEY"):
            await asyncio.to_thread(refused_everywhere, client)


def refused_everywhere(client: VLLMClient) -> None:
    """Ask a server that refuses every question."""
    with patch.object(served, "_ask", side_effect=HTTPError("u", 401, "Unauthorized", Message(), None)):
        client.served_tokenizer()


def test_a_tokenizer_that_is_not_the_servers_or_that_it_does_not_name() -> None:
    client, tokenizer = VLLMClient("http://localhost:1"), get_tokenizer("tiny")
    with patch.object(served, "_ask", side_effect=lambda *_: {"tokens": tokenizer.encode(served.PROBE)}):
        client.check_tokenizer(tokenizer, "tiny")
    with (
        patch.object(served, "_ask", side_effect=lambda *_: {"tokens": [1, 2]}),
        pytest.raises(ValueError, match=r"'tiny' is not that of the model.*--tokenizer"),
    ):
        client.check_tokenizer(tokenizer, "tiny")
    for answer, words in (
        (ValueError("no JSON"), "not a server of vLLM.*--backend sglang"),
        ({}, "names no tokenizer"),
    ):
        with patch.object(served, "_ask", side_effect=[answer, answer]):
            assert client.served_tokenizer(is_optional=True) is None
            with pytest.raises(BackendConnectionError, match=words):
                client.served_tokenizer()


async def test_a_server_restarted_in_another_mode_is_noticed_between_calls_and_during_one() -> None:
    async with serving() as (server, client):
        await client.ask(request(sampling_params=WARM))
        await server.stop()
        server.raw_logprobs = True
        await server.start()
        with pytest.raises(BackendRequestError, match="--logprobs-mode processed_logprobs"):
            await client.ask(request(sampling_params=WARM))
        await server.stop()
        call = asyncio.create_task(client.ask(request(sampling_params=WARM)))
        await asyncio.sleep(0.1)
        server.raw_logprobs, server.max_model_len = False, 2048
        await server.start()
        assert (await call).output_logprobs
        assert (await client.info()).context_length == 2048


async def test_calls_on_many_new_connections_share_the_question_for_the_mode() -> None:
    async with serving() as (server, client):
        calls = [client.ask(request(sampling_params=WARM)) for _ in range(16)]
        await asyncio.gather(*calls)
        probes = [each for each in server.requests if each.body["sampling_params"].get("logprobs") == 3]
    assert 2 <= len(probes) <= 8  # before the first call, and at most a few times as the others open connections


async def test_the_vocabulary_is_that_of_the_servers_model_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 50}', encoding="utf-8")
    body = {"data": [{"id": "m", "owned_by": "vllm", "root": str(tmp_path), "max_model_len": 4096}]}
    client = VLLMClient("http://localhost:1", transport=MockTransport(lambda _: HTTPResponse.from_json(body)))
    async with client:
        assert (await client.info()).vocab_size == 50
        with pytest.raises(BackendRequestError, match="50"):
            await client.ask(request(prompt=[49, 50]))
