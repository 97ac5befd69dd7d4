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


async def test_answers_are_constrained_and_recorded_and_a_cut_one_is_an_error(client, sglang_tokenizer, params):
    async def structured(model: Any) -> Any:
        return [event async for event in model.structured_output(City, GO, "You know cities.")][-1]["output"]

    models = [make_model(client, sglang_tokenizer, sampling_params=params) for _ in range(6)]
    cities = await asyncio.gather(*map(structured, models))
    for model, city in zip(models, cities, strict=True):
        (trajectory,) = model.trajectories
        sampled = trajectory.turns[0].completion
        text = sglang_tokenizer.decode(list(sampled.output_ids), skip_special_tokens=True)
        assert City.model_validate(json.loads(text)) == city
        assert len(sampled.output_logprobs) == len(sampled.output_ids)

    model = make_model(client, sglang_tokenizer, sampling_params={**params, "max_new_tokens": 3})
    with pytest.raises(StructuredOutputError, match="max_new_tokens"):
        await structured(model)
    (trajectory,) = model.trajectories
    assert sum(trajectory.loss_mask) == 3
