"""The embedded engine behind SGLang's routes: the client meets a real model over a real socket."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from strands_sglang import SGLangClient
from strands_sglang.backends.engine import EmbeddedEngine, TinyModel, make_tiny_model
from strands_sglang.exceptions import SGLangContextLengthError, SGLangHTTPError
from tests.conftest import ROOT
from tests.servers.engine_server import generate, serve

PROMPT = [20, 21, 22, 23]
LONG = {"temperature": 0, "max_new_tokens": 3000, "ignore_eos": True}


@pytest.fixture(scope="module")
def tiny() -> TinyModel:
    return make_tiny_model()


@pytest.fixture
async def engine(tiny: TinyModel) -> AsyncIterator[EmbeddedEngine]:
    async with EmbeddedEngine(tiny.model, tokenizer=tiny.tokenizer, threads=1, seed=0) as engine:
        yield engine


@pytest.fixture
async def url(engine: EmbeddedEngine) -> AsyncIterator[str]:
    async with serve(engine) as url:
        yield url


async def call(url: str, path: str, body: Any = None, method: str = "POST") -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.request(method, url + path, json=body) as response:
        text = await response.text()
        return response.status, json.loads(text) if response.content_type == "application/json" else text


async def idle(engine: EmbeddedEngine, running: int) -> None:
    async with asyncio.timeout(20):
        while len(engine._scheduler.running) != running:
            await asyncio.sleep(0.005)


async def test_the_client_gets_the_answer_of_the_engine(url: str, engine: EmbeddedEngine) -> None:
    fields: dict[str, Any] = {"sampling_params": {"temperature": 0, "max_new_tokens": 12}, "return_logprob": True}
    expected = await generate(engine, PROMPT, **fields)
    async with SGLangClient(url) as client:
        answer = await client.generate(PROMPT, **fields)
        assert await client.health()
        assert await client.vocab_size() == engine.vocab_size
        assert await client.max_model_len() == engine.context_length
        assert (await client.get_model_info())["weight_version"] == "default"
        scored, own = await client.score(PROMPT, start=1, top_k=2), await engine.score(PROMPT, start=1, top_k=2)
    assert answer["output_ids"] == expected["output_ids"]
    assert answer["meta_info"]["output_token_logprobs"] == expected["meta_info"]["output_token_logprobs"]
    assert (scored.ids, scored.top_ids) == (own.ids, own.top_ids)
    assert scored.logprobs.tolist() == pytest.approx(own.logprobs.tolist(), abs=1e-5)


async def test_the_client_meets_the_errors_it_knows(url: str) -> None:
    async with SGLangClient(url, max_retries=0) as client:
        with pytest.raises(SGLangContextLengthError):
            await client.generate([5] * 5000)
        with pytest.raises(SGLangHTTPError, match="cannot be compiled"):
            await client.generate(PROMPT, sampling_params={"regex": "((("})


async def test_an_abort_over_http_returns_partial_output(url: str, engine: EmbeddedEngine) -> None:
    task = asyncio.create_task(call(url, "/generate", {"rid": "a", "input_ids": PROMPT, "sampling_params": LONG}))
    await idle(engine, 1)
    assert await call(url, "/abort_request", {"rid": "a"}) == (200, "")
    status, answer = await task
    assert status == 200 and answer["meta_info"]["finish_reason"]["type"] == "abort"


async def test_a_client_that_goes_away_aborts_its_request(url: str, engine: EmbeddedEngine) -> None:
    task = asyncio.create_task(call(url, "/generate", {"input_ids": PROMPT, "sampling_params": LONG}))
    await idle(engine, 1)
    task.cancel()
    await idle(engine, 0)


async def test_weights_come_from_disk(url: str, engine: EmbeddedEngine, tmp_path: Any) -> None:
    make_tiny_model(tmp_path, seed=1)
    status, answer = await call(url, "/update_weights_from_disk", {"model_path": str(tmp_path), "weight_version": "v2"})
    assert status == 200 and answer["success"]
    assert (await call(url, "/model_info", method="GET"))[1]["weight_version"] == "v2"


def test_the_module_serves_prints_its_address_and_ends_on_a_signal() -> None:
    command = [sys.executable, "-m", "tests.servers.engine_server", "--model", "tiny", "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            line = process.stdout.readline()
            address = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+) model tiny\n", line)
            assert address is not None, line
            status, _ = asyncio.run(call(address[1], "/health", method="GET"))
        finally:
            process.send_signal(signal.SIGTERM)
        assert status == 200 and process.wait(timeout=30) == 0
