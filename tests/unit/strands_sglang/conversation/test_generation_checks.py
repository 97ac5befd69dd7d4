"""Checks of an answer before it is recorded: ids of the vocabulary, no more than asked, experts of the right tokens."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from provider_support import GO, Replay, after, make, tokenizer

from strands_sglang import SGLangModel, decode_routed_experts
from strands_sglang.exceptions import SGLangDecodingError
from strands_sglang.testing import Reply

EOS = tokenizer().eos_token_id
LAYERS, TOP_K = 3, 2


async def run(model: SGLangModel, messages: list[Any] | None = None) -> None:
    async for _ in model.stream(messages or GO):
        pass


def answer_of(ids: list[int], finish: str = "stop", **meta: Any) -> dict[str, Any]:
    entries = [[-0.5, token, None] for token in ids]
    reason = {"type": finish, **({"matched": ids[-1]} if finish == "stop" else {})}
    return {"output_ids": ids, "meta_info": {"finish_reason": reason, "output_token_logprobs": entries, **meta}}


# ---- ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finish", ["stop", "abort"])
@pytest.mark.parametrize("bad", [2000, -1])
async def test_sampled_ids_outside_the_vocabulary_are_refused_and_never_sent(finish: str, bad: int) -> None:
    model, client = make([answer_of([bad, EOS], finish), "next"], vocab_size=1024)
    with pytest.raises(SGLangDecodingError, match=f"output_ids has {bad}[,:] expected (token )?ids from 0"):
        await run(model)
    assert model.trajectories == []
    assert len(client.prompts) == 1


async def test_the_vocabulary_is_asked_of_the_client() -> None:
    client = Replay([answer_of([2000, EOS])])
    client._vocab_size = 1024
    with pytest.raises(SGLangDecodingError, match="output_ids has 2000"):
        await run(SGLangModel(tokenizer=tokenizer(), client=client))


async def test_the_last_id_of_the_vocabulary_is_taken() -> None:
    model, _ = make([answer_of([1023, EOS])], vocab_size=1024)
    await run(model)
    assert model.token_manager.token_ids[-2:] == [1023, EOS]


@pytest.mark.parametrize("first", [[], [answer_of([5, 6], "abort")]])
async def test_more_tokens_than_asked_for_are_refused(first: list[Any]) -> None:
    left = 3 - 2 * len(first)
    model, _ = make([*first, answer_of([5] * (left + 1), "length")], sampling_params={"max_new_tokens": 3})
    with pytest.raises(SGLangDecodingError, match=f"holds {left + 1} tokens, but max_new_tokens was {left}"):
        await run(model)
    assert model.trajectories == []


# ---- routed experts --------------------------------------------------------------------------------------------------


def experts(first: int, end: int) -> str:
    """Rows of the positions `first` to `end`, each its own."""
    cells = LAYERS * TOP_K
    return base64.b64encode(np.arange(first * cells, end * cells, dtype="<i4").tobytes()).decode()


def routed(reply: Reply) -> Callable[[list[int], dict[str, Any]], Reply]:
    """The reply with the rows from the start that was sent."""

    def answer(prompt: list[int], fields: dict[str, Any]) -> Reply:
        rows = experts(fields["routed_experts_start_len"], len(prompt) + len(reply.ids or ()) - 1)
        return replace(reply, meta={"routed_experts": rows})

    return answer


def partial(*ids: int) -> Reply:
    return Reply(ids=list(ids), finish="abort")


def expert_model(*rows: Callable[[int, int], Any]) -> tuple[SGLangModel, Replay]:
    """A model whose server answers "ok" with the rows that each function gives for `(start that was sent, end)`."""
    ids = [*tokenizer().encode("ok", add_special_tokens=False), EOS]
    script = []
    for made in rows:

        def answer(prompt: list[int], fields: dict[str, Any], made: Callable[[int, int], Any] = made) -> Reply:
            return Reply(
                ids=ids,
                meta={"routed_experts": made(fields["routed_experts_start_len"], len(prompt) + len(ids) - 1)},
            )

        script.append(answer)
    return make(script, return_routed_experts=True)


def assert_rows(model: SGLangModel) -> None:
    size = len(model.token_manager)
    decoded = decode_routed_experts(model.routed_experts or "", size, LAYERS, TOP_K)
    assert decoded.reshape(-1).tolist() == list(range((size - 1) * LAYERS * TOP_K))


async def test_experts_are_stitched_over_turns_and_resumed_aborts_without_gap_or_overlap() -> None:
    replies = [Reply(ids=[5, EOS]), partial(6, 7), partial(8), Reply(ids=[9, EOS])]
    model, client = make(list(map(routed, replies)), return_routed_experts=True)
    await run(model)
    await run(model, after(tokenizer().decode([5])))
    assert_rows(model)
    starts = [request.fields["routed_experts_start_len"] for request in client.requests]
    assert starts[:2] == [0, model.forest.turns[0].end - 1]


async def test_experts_that_an_abort_in_the_queue_withholds_come_with_the_next_attempt() -> None:
    script = [routed(partial(5, 6)), partial(7, 8), partial(), routed(Reply(ids=[9, EOS]))]
    model, _ = make(script, return_routed_experts=True)
    await run(model)
    assert model.token_manager.token_ids[-6:] == [5, 6, 7, 8, 9, EOS]
    assert_rows(model)


@pytest.mark.parametrize("second", [experts, lambda start, end: experts(0, end)], ids=["suffix", "whole sequence"])
async def test_a_server_may_send_the_rows_that_are_new_or_all_of_them(second: Callable[[int, int], str]) -> None:
    """`routed_experts_start_len` is ignored before SGLang 0.5.12."""
    model, _ = expert_model(experts, second)
    await run(model)
    await run(model, after("ok"))
    assert_rows(model)


@pytest.mark.parametrize(
    "rows",
    [
        lambda start, end: "",
        lambda start, end: experts(start, end)[:8],
        lambda start, end: base64.b64encode(b"x" * (4 * LAYERS * TOP_K * (end - start) + 2)).decode(),
        lambda start, end: "%%%",
        lambda start, end: [1, 2],
    ],
    ids=["empty", "6 bytes", "no whole rows", "no base64", "a list"],
)
async def test_experts_that_do_not_fit_the_first_answer_are_refused(rows: Callable[[int, int], Any]) -> None:
    model, _ = expert_model(rows)
    with pytest.raises(SGLangDecodingError, match="routed_experts"):
        await run(model)
    assert model.trajectories == []


@pytest.mark.parametrize(
    "rows",
    [
        lambda start, end: experts(start, end - 1),
        lambda start, end: experts(start - 1, end),
        lambda start, end: base64.b64encode(b"\0" * (4 * (end - start))).decode(),
    ],
    ids=["a row short", "a row long", "another width"],
)
async def test_rows_of_a_later_turn_must_fit_those_before(rows: Callable[[int, int], str]) -> None:
    model, _ = expert_model(experts, rows)
    await run(model)
    with pytest.raises(SGLangDecodingError, match="would belong to other tokens"):
        await run(model, after("ok"))
    assert len(model.forest.turns) == 1


async def test_a_resumed_answer_may_be_whole_too() -> None:
    def partial(prompt: list[int], fields: dict[str, Any]) -> Reply:
        return Reply(ids=[5], finish="abort", meta={"routed_experts": experts(0, len(prompt))})

    def rest(prompt: list[int], fields: dict[str, Any]) -> Reply:
        return Reply(ids=[6, EOS], meta={"routed_experts": experts(0, len(prompt) + 1)})

    model, _ = make([partial, rest], return_routed_experts=True)
    await run(model)
    assert_rows(model)
