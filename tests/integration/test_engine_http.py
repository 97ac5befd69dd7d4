"""The embedded engine behind SGLang's routes: the client meets a real model over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from strands_sglang import SGLangClient
from strands_sglang.backends.engine import EmbeddedEngine, TinyModel, make_tiny_model
from strands_sglang.exceptions import SGLangContextLengthError, SGLangHTTPError
from tests.servers.engine_server import generate, serve

PROMPT = [20, 21, 22, 23]


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


async def idle(engine: EmbeddedEngine, running: int) -> None:
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


async def test_a_client_that_goes_away_aborts_its_request(url: str, engine: EmbeddedEngine) -> None:
    async with SGLangClient(url) as client:
        sampling = {"temperature": 0, "max_new_tokens": 3000, "ignore_eos": True}
        task = asyncio.create_task(client.generate(PROMPT, sampling_params=sampling))
        await idle(engine, 1)
        task.cancel()
        await idle(engine, 0)
