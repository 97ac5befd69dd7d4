"""Whatever a server aborts, and wherever: the turn is the one that would have come without aborts, to the token."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from provider_support import Replay, tokenizer

from strands_sglang import SGLangModel
from strands_sglang.testing import Reply
from strands_sglang.trajectory import FinishType

EOS = tokenizer().eos_token_id
STOP = 9
GO = [{"role": "user", "content": [{"text": "go"}]}]


class AbortingServer:
    """Samples a fixed continuation, and garbage behind its end, as a model does that is asked to go on.

    Like SGLang it looks for an abort before it looks for a stop.

    Args:
        text: The continuation; the first of `stops` in it ends it.
        stops: Stop tokens.
        aborts: For each attempt after how many tokens it is aborted; the attempts after these are not.
        step: Tokens that are decoded at a time; those behind a stop show in aborted answers.
    """

    def __init__(self, text: list[int], stops: set[int], aborts: list[int], step: int) -> None:
        self.text, self.stops, self.aborts, self.step = text, stops, list(aborts), step
        self.prompt: int | None = None

    def __call__(self, ids: list[int], fields: dict[str, Any]) -> Reply:
        self.prompt = len(ids) if self.prompt is None else self.prompt
        most = fields["sampling_params"]["max_new_tokens"]
        rest = [*self.text[len(ids) - self.prompt :], *[7] * (most + self.step)]
        abort_at = self.aborts.pop(0) if self.aborts else None
        sampled: list[int] = []
        while True:
            if abort_at is not None and len(sampled) >= abort_at:
                return Reply(ids=sampled[:most], finish="abort")
            sampled += rest[len(sampled) : len(sampled) + self.step]
            if abort_at is not None and len(sampled) >= abort_at:
                continue
            for length, token in enumerate(sampled[:most], start=1):
                if token in self.stops:
                    return Reply(ids=sampled[:length], matched=token)
            if len(sampled) >= most:
                return Reply(ids=sampled[:most], finish="length")


def turn_of(server: AbortingServer, params: dict[str, Any]) -> Any:
    async def run() -> None:
        async for _ in model.stream(GO):
            pass

    model = SGLangModel(tokenizer=tokenizer(), client=Replay([server], cycle=True), sampling_params=params)
    asyncio.run(run())
    return model.forest.turns[0].completion


@given(
    text=st.lists(st.sampled_from([5, 6, STOP, EOS]), max_size=8),
    aborts=st.lists(st.integers(0, 4), max_size=2),
    step=st.integers(1, 3),
    budget=st.integers(1, 10),
    stop_token_ids=st.sampled_from([[], [STOP]]),
    ignore_eos=st.booleans(),
)
def test_an_aborted_turn_is_the_turn_without_aborts(
    text: list[int], aborts: list[int], step: int, budget: int, stop_token_ids: list[int], ignore_eos: bool
) -> None:
    params = {"max_new_tokens": budget, "stop_token_ids": stop_token_ids, "ignore_eos": ignore_eos}
    stops = set() if ignore_eos else {EOS, *stop_token_ids}
    expected = turn_of(AbortingServer(text, stops, [], 1), params)
    turn = turn_of(AbortingServer(text, stops, aborts, step), params)
    assert list(turn.output_ids) == list(expected.output_ids)
    assert list(turn.output_logprobs) == list(expected.output_logprobs)
    assert (turn.finish.type, turn.finish.matched) == (expected.finish.type, expected.finish.matched)
    assert turn.finish.type in (FinishType.STOP, FinishType.LENGTH)
