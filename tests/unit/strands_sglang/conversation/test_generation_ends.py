"""Ends of a call: an abort that meets the model's own end, `min_new_tokens`, and ends this package does not know."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from provider_support import GO, add, after, assert_prefix_law, call, completion, make, tokenizer

from strands_sglang import SGLangModel
from strands_sglang.testing import Reply
from strands_sglang.tokenizer import TokenizerAdapter
from strands_sglang.trajectory import FinishType

EOS = tokenizer().eos_token_id


def ids_of(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False))


async def run(model: SGLangModel, messages: list[Any] | None = None, **more: Any) -> tuple[str, str]:
    """Stop reason and text of one call."""
    events = [event async for event in model.stream(messages or GO, **more)]
    text = "".join(event.get("contentBlockDelta", {}).get("delta", {}).get("text", "") for event in events)
    return next(event["messageStop"]["stopReason"] for event in events if "messageStop" in event), text


def aborted(ids: list[int], **more: Any) -> Reply:
    return Reply(ids=ids, finish="abort", **more)


# ---- the server looks for aborts before it looks for stops -----------------------------------------------------------


@pytest.mark.parametrize("policy", ["resume", "surface"])
async def test_an_abort_after_the_stop_token_is_the_end_of_the_turn(policy: str) -> None:
    model, client = make([aborted([*ids_of("done"), EOS]), "GARBAGE"], abort_policy=policy)
    assert await run(model) == ("end_turn", "done")
    (turn,) = model.forest.turns
    assert (turn.completion.finish.type, turn.completion.finish.matched) == (FinishType.STOP, EOS)
    assert list(turn.completion.output_ids) == [*ids_of("done"), EOS]
    client._script.clear()
    client.then("next")
    await run(model, after("done"))
    assert len(client.prompts) == 2
    assert_prefix_law(client, model)


@pytest.mark.parametrize(
    ("params", "ids", "matched"),
    [
        ({"stop_token_ids": [9]}, [5, 9], 9),
        ({"stop": "END"}, ids_of("the END"), "END"),
        ({"stop": ["nothing", "END"]}, ids_of("the END"), "END"),
        ({"stop_regex": "E.D"}, ids_of("the END"), "E.D"),
        ({"stop": "END", "ignore_eos": True}, ids_of("the END"), "END"),
        ({"min_new_tokens": 2}, [5, EOS], EOS),
        ({"max_new_tokens": 2}, [5, EOS], EOS),
    ],
)
async def test_every_kind_of_stop_ends_an_aborted_turn(params: dict[str, Any], ids: list[int], matched: Any) -> None:
    model, client = make([aborted([*ids, 7, 8][: params.get("max_new_tokens")]), "GARBAGE"], sampling_params=params)
    assert (await run(model))[0] == "end_turn"
    finish = model.trajectories[0].finish
    assert model.forest.turns[0].completion.output_ids.tolist() == ids
    assert (finish.type, finish.matched, len(client.prompts)) == (FinishType.STOP, matched, 1)


async def test_a_text_that_only_begins_a_stop_string_is_resumed() -> None:
    ids = ids_of("the EN")
    model, client = make([aborted(ids), "rest"], sampling_params={"stop": "END"})
    await run(model)
    assert client.prompts[1][-len(ids) :] == ids


@pytest.mark.parametrize("params", [{"stop": "the END"}, {"stop_regex": "the E.D"}])
@pytest.mark.parametrize("pieces", [["the EN", "D"], ["the EN", "D and more"], ["th", "e EN", "D and more"]])
async def test_a_stop_that_an_abort_split_ends_the_turn(params: dict[str, Any], pieces: list[str]) -> None:
    """The server looks for stops in what one request sampled, so it does not see one that began before."""
    *first, last = pieces
    model, client = make([*(aborted(ids_of(piece)) for piece in first), last], sampling_params=params)
    assert (await run(model))[0] == "end_turn"
    done = model.forest.turns[0].completion
    assert tokenizer().decode(done.output_ids) == "the END"
    assert (done.finish.type, done.finish.matched) == (FinishType.STOP, next(iter(params.values())))
    assert len(done.output_logprobs or ()) == len(done.output_ids)
    assert len(client.prompts) == len(pieces)


async def test_tokens_decoded_in_one_step_with_the_stop_token_are_cut() -> None:
    """Speculative decoding samples several tokens a step; an aborted request shows those after the stop."""
    ids = [5, 6, EOS, 7, 8]

    def answer(prompt: list[int], fields: dict[str, Any]) -> Reply:
        rows = np.arange((len(prompt) + len(ids) - 1) * 2, dtype="<i4")
        meta = {
            "routed_experts": base64.b64encode(rows.tobytes()).decode(),
            "output_token_sampling_mask": [[token, token + 1] for token in ids],
        }
        spans = [{"version": "a", "start": 0, "end": 2}, {"version": "b", "start": 2, "end": 5}]
        return aborted(ids, meta=meta | {"weight_versions": spans})

    model, client = make([answer], return_routed_experts=True, return_sampling_mask=True)
    assert (await run(model))[0] == "end_turn"
    done, prompt = model.forest.turns[0].completion, len(client.prompts[0])
    assert list(done.output_ids) == ids[:3]
    assert done.output_logprobs is not None and len(done.output_logprobs) == 3
    assert [(span.version, span.start, span.end) for span in done.weight_spans] == [("a", 0, 2), ("b", 2, 3)]
    assert (len(done.sampling_mask.ids), list(done.sampling_mask.offsets)) == (6, [0, 2, 4, 6])
    assert np.frombuffer(done.routed_experts or b"", dtype="<i4").tolist() == list(range((prompt + 2) * 2))


async def test_an_aborted_answer_over_the_budget_ends_at_the_budget() -> None:
    model, client = make([], sampling_params={"max_new_tokens": 2})
    entries = [[-0.5, token, None] for token in (5, 6, 7)]
    meta = {"id": "x", "finish_reason": {"type": "abort", "message": "Aborted"}, "output_token_logprobs": entries}
    client.then({"output_ids": [5, 6, 7], "meta_info": meta})
    assert (await run(model))[0] == "max_tokens"
    assert model.token_manager.token_ids[-2:] == [5, 6]


def test_stop_ids_are_those_of_the_tokenizer_the_configurations_and_the_caller(tmp_path: Path) -> None:
    class Tokenizer:
        name_or_path = str(tmp_path)
        eos_token_id = 7

        def encode(self, text: str, **_: Any) -> list[int]:
            return [5] if text == "<|call|>" else [1, 2]

    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert TokenizerAdapter(Tokenizer(), ["<|call|>", "two tokens"]).stop_ids == {5, 7, 8, 9}
    (tmp_path / "config.json").unlink()  # a model of each rollout is made from what the first one read
    assert TokenizerAdapter(Tokenizer()).stop_ids == {7, 8, 9}


async def test_a_control_token_that_ended_a_turn_before_is_a_stop() -> None:
    """The engine may know a stop token that the tokenizer does not name."""
    other = next(token for token in tokenizer().all_special_ids if token != EOS)
    model, client = make([Reply(ids=[5, other], matched=other), aborted([6, other]), "GARBAGE"])
    _, text = await run(model)
    await run(model, after(text))
    assert len(client.prompts) == 2
    assert model.trajectories[0].finish.matched == other


# ---- min_new_tokens --------------------------------------------------------------------------------------------------


async def test_min_new_tokens_gives_way_to_the_end_of_a_budget() -> None:
    params = {"max_new_tokens": 4, "min_new_tokens": 4}
    model, client = make([[5, 6, 7, 8], [5, 6]], max_sampled_tokens=6, sampling_params=params)
    await run(model)
    assert (await run(model, [{"role": "user", "content": [{"text": "other"}]}]))[0] == "end_turn"
    sent = client.requests[1].fields["sampling_params"]
    assert (sent["max_new_tokens"], sent["min_new_tokens"]) == (2, 2)


# ---- ends that are none ----------------------------------------------------------------------------------------------


def with_finish(reason: Any) -> dict[str, Any]:
    ids = list(completion(call(1, 2), stop=False).ids or ())
    entries = [[-0.5, token, None] for token in ids]
    return {"output_ids": ids, "meta_info": {"id": "x", "finish_reason": reason, "output_token_logprobs": entries}}


async def test_an_unknown_end_makes_no_calls_and_is_surfaced_as_unfinished() -> None:
    model, _ = make([with_finish({"type": "weird"})])
    stop, text = await run(model, tool_specs=[add.tool_spec])
    assert (stop, text) == ("unfinished", call(1, 2))
    finish = model.trajectories[0].finish
    assert (finish.type, finish.message) == (FinishType.UNKNOWN, "weird")
