"""The embedded engine as a backend: what it refuses, and what an answer holds."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from strands_sglang.backends import Backend, GenerateRequest, as_backend, token_array
from strands_sglang.backends.engine import EmbeddedEngine, make_tiny_model
from strands_sglang.exceptions import BackendContextLengthError, BackendRequestError
from strands_sglang.trajectory import FinishType, WeightSpan

PROMPT = list(range(20, 60))


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    tiny = make_tiny_model()
    engine = EmbeddedEngine(tiny.model, tokenizer=tiny.tokenizer, threads=1, context_length=256)
    yield engine
    asyncio.run(engine.close())


def request(ids: list[int] = PROMPT, **params: Any) -> GenerateRequest:
    return GenerateRequest(prompt=token_array(ids), sampling_params={"temperature": 0, "ignore_eos": True, **params})


async def test_it_is_a_backend_without_an_adapter_and_its_answer_typed(engine: EmbeddedEngine) -> None:
    assert isinstance(engine, Backend) and as_backend(engine) is engine
    info = await engine.info()
    assert (info.context_length, info.vocab_size) == (256, engine.vocab_size)
    answer = await engine.ask(request(max_new_tokens=5))
    assert answer.finish.type is FinishType.LENGTH
    assert len(answer.output_ids) == len(answer.output_logprobs) == 5
    assert answer.weight_spans == (WeightSpan(version="default", start=0, end=5),)
    assert (answer.prompt_tokens, answer.scored_prompt) == (len(PROMPT), None)


async def test_without_a_limit_it_samples_to_the_end_of_the_context(engine: EmbeddedEngine) -> None:
    assert len((await engine.ask(request())).output_ids) == 256 - len(PROMPT)


@pytest.mark.parametrize(
    ("ids", "params"), [([5] * 256, {}), ([5] * 300, {"max_new_tokens": 1}), ([5] * 250, {"max_new_tokens": 7})]
)
async def test_what_does_not_fit_the_context_is_refused(engine: EmbeddedEngine, ids: list[int], params: Any) -> None:
    with pytest.raises(BackendContextLengthError, match="the context takes 256"):
        await engine.ask(request(ids, **params))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -1}, "greater than or equal to 0"),
        ({"stop_regex": "a+"}, "'stop_regex'. must be left out: the embedded engine does not have it"),
        ({"structural_tag": "{}"}, "'structural_tag'. must be left out: the embedded engine does not have it"),
        ({"stop_token_ids": [10**6]}, "below the vocabulary size"),
        ({"n": 2}, "has no 'n'"),
    ],
)
async def test_wrong_parameters_are_refused(engine: EmbeddedEngine, params: Any, message: str) -> None:
    with pytest.raises(BackendRequestError, match=message):
        await engine.ask(request(**params))


async def test_ids_outside_the_vocabulary_and_images_never_reach_the_model(engine: EmbeddedEngine) -> None:
    with pytest.raises(BackendRequestError, match="outside the vocabulary"):
        await engine.ask(request([1, engine.vocab_size]))
    with pytest.raises(BackendRequestError, match="takes no images"):
        await engine.ask(GenerateRequest(prompt=token_array([1]), images=("data:image/png;base64,",)))


@pytest.mark.parametrize("start", [0, 1, 7, len(PROMPT) - 1])
async def test_it_scores_from_any_position(engine: EmbeddedEngine, start: int) -> None:
    whole = await engine.score(PROMPT)
    scored = await engine.score(PROMPT, start=start, top_k=3)
    assert scored.ids.tolist() == PROMPT[start:]
    assert [math.isnan(value) for value in whole.logprobs] == [True] + [False] * (len(PROMPT) - 1)
    assert scored.logprobs.tolist()[1:] == pytest.approx(whole.logprobs.tolist()[start + 1 :], abs=1e-5)
    best = scored.top_logprobs.tolist()[-3:]
    assert best == sorted(best, reverse=True) and best[0] >= scored.logprobs[-1]


async def test_every_attempt_is_announced(engine: EmbeddedEngine) -> None:
    def refuse() -> None:
        raise RuntimeError("not now")

    with pytest.raises(RuntimeError, match="not now"):
        await engine.ask(GenerateRequest(prompt=token_array([1]), before_attempt=refuse))
