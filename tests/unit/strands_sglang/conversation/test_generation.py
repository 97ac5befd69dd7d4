"""One model call: what is recorded of aborts, weight versions, experts and sampling sets; what is refused."""

from __future__ import annotations

import base64
import json
import logging
import re
from typing import Any

import numpy as np
import pydantic
import pytest
from provider_support import GO, Replay, after, assert_prefix_law, call, completion, make, tokenizer

from strands_sglang import SGLangModel, decode_routed_experts
from strands_sglang.exceptions import SGLangAbortedError, SGLangDecodingError, StructuredOutputError
from strands_sglang.testing import Reply
from strands_sglang.trajectory import WeightSpan


def entries(ids: list[int], logprobs: list[Any]) -> dict[str, Any]:
    reason = {"type": "stop", "matched": ids[-1]}
    return {"output_ids": ids, "meta_info": {"finish_reason": reason, "output_token_logprobs": logprobs}}


async def run(model: SGLangModel, messages: list[Any] | None = None) -> str:
    """The stop reason of one call."""
    events = [event async for event in model.stream(messages or GO)]
    return next(event["messageStop"]["stopReason"] for event in events if "messageStop" in event)


def partial(ids: list[int], version: str = "v1", **options: Any) -> Reply:
    return Reply(ids=ids, finish="abort", weight_version=version, **options)


# ---- aborts --------------------------------------------------------------------------------------------------------


async def test_an_aborted_call_goes_on_from_its_partial_tokens_within_the_same_budget() -> None:
    model, client = make(
        [partial([5, 6, 7]), partial([]), partial([8], "v2"), Reply(ids=[9, 10], finish="length", weight_version="v2")],
        sampling_params={"max_new_tokens": 6, "min_new_tokens": 4},
    )
    assert await run(model) == "max_tokens"
    sent = [request.fields["sampling_params"] for request in client.requests]
    assert [params["max_new_tokens"] for params in sent] == [6, 3, 3, 2]
    assert [params["min_new_tokens"] for params in sent] == [4, 1, 1, 0]
    prompt = client.prompts[0]
    assert client.prompts[1:] == [[*prompt, 5, 6, 7], [*prompt, 5, 6, 7], [*prompt, 5, 6, 7, 8]]
    manager = model.token_manager
    assert manager.segment_info == [(False, len(prompt)), (True, 6)]
    assert manager.token_ids[-6:] == [5, 6, 7, 8, 9, 10]
    start = len(prompt)
    assert manager.weight_versions == (
        WeightSpan(version="v1", start=start, end=start + 3),
        WeightSpan(version="v2", start=start + 3, end=start + 6),
    )
    assert len(set(model.trajectories[0].request_ids)) == 4


async def test_pauses_between_aborts_grow_also_without_a_time_limit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="strands_sglang")
    model, _ = make([partial([]), partial([]), partial([]), "done"], abort_timeout=None)
    assert await run(model) == "end_turn"
    pauses = re.findall(r"pause=<([0-9.]+)>", caplog.text)
    assert pauses == ["0.05", "0.10", "0.20"]


async def test_an_abort_at_the_end_of_the_budget_is_the_end_by_length() -> None:
    model, client = make([partial([5, 6])], sampling_params={"max_new_tokens": 2})
    assert await run(model) == "max_tokens"
    assert model.trajectories[0].finish_reason == "length"
    assert len(client.prompts) == 1


async def test_a_surfaced_abort_records_the_partial_turn_and_makes_no_calls() -> None:
    ids = list(completion(call(1, 2), stop=False).ids or ())
    model, client = make([partial(ids), "next"], abort_policy="surface")
    assert await run(model) == "aborted"
    (trajectory,) = model.trajectories
    assert (trajectory.finish_reason, trajectory.finish.message) == ("abort", "Aborted")
    assert sum(trajectory.loss_mask) == len(ids)
    text = {"role": "assistant", "content": [{"text": call(1, 2)}]}
    await run(model, [*GO, text, {"role": "user", "content": [{"text": "again"}]}])
    assert_prefix_law(client, model)


async def test_a_server_that_keeps_aborting_fails_the_call_after_the_time_out() -> None:
    client = Replay([partial([])], cycle=True)
    model = SGLangModel(tokenizer=tokenizer(), client=client, abort_timeout=0.2)
    with pytest.raises(SGLangAbortedError, match="kept aborting"):
        await run(model)
    assert model.trajectories == []


# ---- what the answer holds -------------------------------------------------------------------------------------------


async def test_an_unknown_version_is_none() -> None:
    model, _ = make([Reply(ids=[5], weight_version=None, matched=5)])
    await run(model)
    assert [span.version for span in model.token_manager.weight_versions] == [None]


def scored(ids: list[int], fields: dict[str, Any], clipped: int | None = None) -> Reply:
    """An answer with the scores that were asked for; of the last id of a vocabulary SGLang names 0."""
    asked = ids[fields["logprob_start_len"] :]
    entries = [[None if n == 0 else -0.25, 0 if i == clipped else i, None] for n, i in enumerate(asked)]
    return Reply(text="hi", meta={"input_token_logprobs": entries})


async def test_prompt_logprobs_start_one_token_early_and_come_again_after_an_abort_in_the_queue() -> None:
    withheld = partial([], meta={"input_token_logprobs": None})
    model, client = make([withheld, scored, scored], return_prompt_logprobs=True)
    await run(model)
    await run(model, after("hi"))
    first, second = model.forest.turns
    assert [r.fields["logprob_start_len"] for r in client.requests] == [0, 0, second.start - 1]
    logprobs = model.token_manager.logprobs
    assert logprobs[0] is None
    assert logprobs[1 : len(first.prompt_ids)] == [-0.25] * (len(first.prompt_ids) - 1)
    assert logprobs[second.start : second.start + len(second.prompt_ids)] == [-0.25] * len(second.prompt_ids)


async def test_scores_that_the_server_withholds_take_no_place() -> None:
    model, _ = make([Reply(text="hi", meta={"input_token_logprobs": None})], return_prompt_logprobs=True)
    await run(model)
    (turn,) = model.forest.turns
    assert turn.completion.prompt_logprobs is None
    assert {*model.token_manager.logprobs[: len(turn.prompt_ids)]} == {None}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"output_ids": [1]}, "no meta_info"),
        ({"output_ids": [1], "meta_info": {}}, "no finish_reason"),
        ({"meta_info": {"finish_reason": {"type": "stop"}}}, "no output_ids"),
        (entries([1, 2], [[-0.1, 1, None]]), "do not belong"),
        (entries([1], [[-0.1, 2, None]]), "do not belong"),
        (entries([1], [[0.5, 1, None]]), "log-probability 0.5"),
        (entries([1, 2], [[None, 1, None], [2, 2, None]]), "log-probability 2.0"),
        (entries([1], [["0.5", 1, None]]), "expected numbers or null"),
        (entries([1], [[True, 1, None]]), "expected numbers or null"),
    ],
)
async def test_an_answer_that_contradicts_itself_is_refused(answer: dict[str, Any], problem: str) -> None:
    model, _ = make([answer])
    with pytest.raises(SGLangDecodingError, match=problem):
        await run(model)
    assert model.trajectories == []


async def test_a_rounding_error_above_zero_is_kept_as_it_came() -> None:
    model, _ = make([entries([5, 6], [[1.1920928955078125e-07, 5, None], [None, 6, None]])])
    await run(model)
    assert model.token_manager.logprobs[-2:] == [1.1920928955078125e-07, None]


# ---- routed experts and sampling sets -------------------------------------------------------------------------------


async def test_a_surfaced_abort_without_its_experts_has_none() -> None:
    model, _ = make([partial([5, 6])], return_routed_experts=True, abort_policy="surface")
    assert await run(model) == "aborted"
    assert model.token_manager.token_ids[-2:] == [5, 6]
    assert model.routed_experts is None


@pytest.mark.parametrize("is_last_id", [True, False])
async def test_a_prompt_token_that_sglang_names_0_has_no_logprob_if_it_is_the_last_id(is_last_id: bool) -> None:
    clipped = max if is_last_id else min
    model, client = make([lambda ids, fields: scored(ids, fields, clipped(ids))], return_prompt_logprobs=True)
    if not is_last_id:
        with pytest.raises(SGLangDecodingError, match="does not score the"):
            await run(model)
        return
    await run(model)
    prompt = client.prompts[0]
    expected = [None if n == 0 or token == max(prompt) else -0.25 for n, token in enumerate(prompt)]
    assert expected.count(None) > 1
    assert model.token_manager.logprobs[: len(prompt)] == expected


def test_experts_of_a_wrong_size_are_refused_with_what_to_check() -> None:
    data = base64.b64encode(np.zeros(12, dtype="<i4").tobytes()).decode()
    with pytest.raises(ValueError, match="num_layers"):
        decode_routed_experts(data, 3, 4, 2)
    with pytest.raises(ValueError, match="base64"):
        decode_routed_experts("%%%", 3, 1, 1)
    assert decode_routed_experts(data, 4, 2, 2).dtype == np.int32


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"return_routed_experts": True, "require_routed_experts": True}, "enable-return-routed-experts"),
        ({"return_sampling_mask": True}, r"0\.5\.18"),
    ],
)
async def test_what_is_missing_names_what_the_server_needs(options: dict[str, Any], cure: str) -> None:
    model, _ = make(["hi"], **options)
    with pytest.raises(SGLangDecodingError, match=cure):
        await run(model)
    assert model.trajectories == []


async def test_sampling_sets_are_kept_per_output_token() -> None:
    sets = {5: [5, 9], 6: [6], 7: [7]}
    script = [
        Reply(ids=ids, matched=ids[-1], meta={"output_token_sampling_mask": [sets[token] for token in ids]})
        for ids in ([5, 6], [7])
    ]
    model, client = make(script, return_sampling_mask=True)
    await run(model)
    await run(model, after(tokenizer().decode([5, 6])))
    assert client.requests[0].fields["return_sampling_mask"] is True
    first, second = model.forest.turns
    mask = model.trajectories[0].sampling_mask
    assert mask.ids.tolist() == [5, 9, 6, 7]
    before, between = ([0] * (len(turn.prompt_ids) + 1) for turn in (first, second))
    assert mask.offsets.tolist() == [*before, 2, *(3 for _ in between), 4]
    start = len(first.prompt_ids)
    assert mask.part(start, start + 2).offsets.tolist() == [0, 2, 3]


# ---- structured output


class City(pydantic.BaseModel):
    name: str
    size: int


async def structured(model: SGLangModel) -> Any:
    return [event async for event in model.structured_output(City, GO, "sys")][-1]["output"]


async def test_structured_output_is_constrained_validated_and_a_trajectory_of_its_own() -> None:
    model, client = make(["hello", json.dumps({"name": "Zürich", "size": 4})])
    await run(model)
    assert await structured(model) == City(name="Zürich", size=4)
    assert json.loads(client.requests[1].fields["sampling_params"]["json_schema"]) == City.model_json_schema()
    assert len(model.trajectories) == 2
    client.then(Reply(ids=[5, 6], finish="length"), Reply(text='{"name": "x"}'))
    for problem in ("was cut", "does not validate"):
        with pytest.raises(StructuredOutputError, match=problem):
            await structured(model)
    assert len(model.trajectories) == 4  # their tokens are kept
