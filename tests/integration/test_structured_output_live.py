"""Structured output on a live server: constrained, validated, recorded; cut answers are errors."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from rollout_support import make_model

from strands_sglang.exceptions import StructuredOutputError

GO = [{"role": "user", "content": [{"text": "Describe a city."}]}]
Digit = Annotated[int, Field(ge=0, le=9)]


class City(BaseModel):
    """Bounded everywhere: a model of random weights would write strings and numbers for ever."""

    name: Annotated[str, Field(pattern="^[a-z]{1,8}$")]
    size: Digit
    kind: Literal["town", "capital"]
    marks: Annotated[list[Digit], Field(min_length=1, max_length=3)]
    twin: Annotated[str, Field(pattern="^[a-z]{1,4}$")] | None = None


@pytest.fixture(scope="module")
def params(sglang_tokenizer: Any) -> dict[str, Any]:
    """Without white space, which the grammar allows between any two tokens: a random model would never stop with it."""
    texts = ((n, sglang_tokenizer.decode([n])) for n in range(len(sglang_tokenizer)))
    blank = {str(n): -100.0 for n, text in texts if any(char.isspace() for char in text)}
    return {"max_new_tokens": 400, "logit_bias": blank}


async def structured(model: Any, kind: type[BaseModel] = City) -> Any:
    return [event async for event in model.structured_output(kind, GO, "You know cities.")][-1]["output"]


async def test_the_answer_is_an_instance_and_a_trajectory_of_its_own(client, sglang_tokenizer, params):
    model = make_model(client, sglang_tokenizer, sampling_params=params)
    async for _ in model.stream(GO):
        pass
    city = await structured(model)
    assert isinstance(city, City)
    assert len(model.trajectories) == 2
    sampled = model.trajectories[-1].turns[0].completion
    text = sglang_tokenizer.decode(list(sampled.output_ids), skip_special_tokens=True)
    assert City.model_validate(json.loads(text)) == city
    assert sampled.output_logprobs is not None
    assert len(sampled.output_logprobs) == len(sampled.output_ids)


async def test_a_cut_answer_is_a_typed_error_and_its_tokens_are_kept(client, sglang_tokenizer, params):
    model = make_model(client, sglang_tokenizer, sampling_params={**params, "max_new_tokens": 3})
    with pytest.raises(StructuredOutputError, match="max_new_tokens"):
        await structured(model)
    (trajectory,) = model.trajectories
    assert sum(trajectory.loss_mask) == 3


async def test_many_answers_at_once_all_validate(client, sglang_tokenizer, params):

    models = [make_model(client, sglang_tokenizer, sampling_params=params) for _ in range(6)]
    cities = await asyncio.gather(*(structured(model) for model in models))
    assert all(isinstance(city, City) for city in cities)
