"""`TinkerClient`, with the package's own client, against a server of ours that speaks its protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from strands import Agent

from strands_sglang import SGLangModel
from strands_sglang.backends import BackendInfo, TinkerClient
from strands_sglang.exceptions import BackendError, BackendHTTPError, BackendRequestError
from strands_sglang.testing import Reply
from tests.provider_support import add, call, completion, tokenizer

tinker = pytest.importorskip("tinker", reason="needs the extra trainers")


pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class Server:
    """Answers of `/api/v1`: a promise for each sample, and its protobuf when it is asked for."""

    def __init__(self, *script: Any) -> None:
        self.script, self.requests, self.cancelled = list(script), [], 0

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else {}
        match request.path.rpartition("/")[2]:
            case "config" | "dynamic_config":
                return web.json_response({"use_pyqwest_transport": False, "sample_no_retries": True})
            case "create_session":
                return web.json_response({"type": "create_session", "session_id": "session"})
            case "create_sampling_session":
                return web.json_response({"type": "create_sampling_session", "sampling_session_id": "sampling"})
            case "asample":
                self.requests.append(body)
                if isinstance(self.script[0], int):
                    return web.json_response({"detail": "no"}, status=self.script.pop(0))
                return web.json_response({"request_id": "1", "sample_sequence_ids": ["sequence"]})
            case "retrieve_future":
                reply = self.script.pop(0)
                if isinstance(reply, dict):
                    return web.json_response(reply)
                return web.Response(body=self._encoded(reply), content_type="application/x-protobuf")
        return web.json_response({})

    def _encoded(self, reply: Any) -> bytes:
        from tinker.proto import tinker_public_pb2 as pb

        logprobs = np.array([-(token % 63 + 1) / 64 for token in reply.ids], dtype="<f4").tobytes()
        ids = np.array(reply.ids, dtype="<i4").tobytes()
        sequence = pb.SampledSequence(
            stop_reason=pb.STOP_REASON_LENGTH if reply.finish == "length" else pb.STOP_REASON_STOP,
            tokens=ids,
            logprobs=logprobs,
        )
        answer = pb.SampleResponse(sequences=[sequence], prompt_cache_hit_tokens=2)
        if self.requests[-1].get("prompt_logprobs"):
            length = sum(len(chunk["tokens"]) for chunk in self.requests[-1]["prompt"]["chunks"])
            values = np.full(length, np.nan, dtype="<f4")
            values[-self.requests[-1].get("prompt_logprobs_last_n", length - 1) :] = -0.5
            answer.prompt_logprobs = values.tobytes()
        return bytes(answer.SerializeToString())

    @asynccontextmanager
    async def sampler(self) -> AsyncIterator[Any]:
        app = web.Application()
        app.add_routes([web.route("*", "/{path:.*}", self._answer)])
        async with TestServer(app) as server:
            url = str(server.make_url("")).rstrip("/")

            def make() -> Any:
                return tinker.ServiceClient(base_url=url, api_key="tml-none").create_sampling_client(base_model="m")

            yield await asyncio.to_thread(make)


async def test_an_agent_samples_from_tinker_with_exact_tokens() -> None:
    replies = [completion(call(1, 2)), completion("3.")]
    server = Server(*replies)
    async with server.sampler() as sampler:
        client = TinkerClient(sampler, version=7)
        model = SGLangModel(client=client, tokenizer=tokenizer(), sampling_params={"max_new_tokens": 64})
        result = await Agent(model=model, tools=[add], callback_handler=None).invoke_async("1+2?")
    assert str(result).strip() == "3."
    (path,) = model.trajectories
    sent = [chunk for request in server.requests for chunk in request["prompt"]["chunks"]]
    assert sent[1]["tokens"] == path.tokens.token_ids[: len(sent[1]["tokens"])]
    sampled = [token for token, mask in zip(path.tokens.token_ids, path.tokens.loss_mask, strict=True) if mask]
    assert sampled == [*replies[0].ids, *replies[1].ids]
    assert [span.version for span in path.tokens.weight_versions] == ["7", "7"]
    assert server.requests[0]["sampling_params"]["max_tokens"] <= 64 and server.requests[0]["num_samples"] == 1


async def test_a_prompt_is_scored_from_a_position_on() -> None:
    server = Server(Reply(ids=[9], finish="length"))
    async with server.sampler() as sampler:
        scored = await TinkerClient(sampler).score([5, 6, 7, 8], start=2)
    assert scored.ids.tolist() == [7, 8] and scored.logprobs.tolist() == [-0.5, -0.5]
    assert server.requests[0]["prompt_logprobs_last_n"] == 2


FAILED = {"type": "request_failed", "error": "the model is gone", "category": "server"}


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [(400, BackendHTTPError, "HTTP 400"), (401, BackendHTTPError, "HTTP 401"), (FAILED, BackendError, "gone")],
)
async def test_errors_have_our_names(reply: Any, kind: type[Exception], message: str) -> None:
    server = Server(reply)
    async with server.sampler() as sampler:
        with pytest.raises(kind, match=message):
            await TinkerClient(sampler).score([5, 6, 7], start=1)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"temperature": 0.7}, "temperature 1"),
        ({"top_p": 0.9}, "temperature 1"),
        ({"stop": ["x"]}, "stop_token_ids"),
        ({"json_schema": json.dumps({"type": "object"})}, "Tinker's API does not have it"),
    ],
)
async def test_what_tinker_cannot_do_exactly_is_refused(sampling: dict[str, Any], message: str) -> None:
    class Sampler:
        def sample(self, *arguments: Any, **options: Any) -> Any:
            raise AssertionError("nothing is sent")

    with pytest.raises(BackendRequestError, match=message):
        model = SGLangModel(client=TinkerClient(Sampler()), tokenizer=tokenizer(), sampling_params=sampling)
        await Agent(model=model, callback_handler=None).invoke_async("1+2?")
    assert await TinkerClient(Sampler(), context_length=9).info() == BackendInfo(context_length=9)
    with pytest.raises(TypeError, match="expected a SamplingClient"):
        TinkerClient("http://localhost")
