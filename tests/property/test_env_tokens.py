"""Token observations survive JSON and bytes, and their views always agree."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from strands_env.core.types import TokenObservation
from strands_sglang.trajectory import TokenManager

ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6)
logprob = st.none() | st.floats(max_value=0.0, allow_nan=False)


@st.composite
def managers(draw: st.DrawFn) -> TokenManager:
    held = TokenManager()
    held.add_prompt(draw(ids))
    for _ in range(draw(st.integers(0, 5))):
        sampled = draw(ids)
        logprobs = draw(st.none() | st.lists(logprob, min_size=len(sampled), max_size=len(sampled)))
        held.add_response(sampled, logprobs, weight_version=draw(st.none() | st.text(max_size=3)))
        if draw(st.booleans()):
            held.add_prompt(draw(ids))
    return held


@given(managers())
def test_json_and_bytes_are_lossless(manager: TokenManager) -> None:
    tokens = TokenObservation.from_token_manager(manager)
    assert TokenObservation.from_dict(json.loads(json.dumps(tokens.to_dict(), allow_nan=False))) == tokens
    assert TokenObservation.from_bytes(tokens.to_bytes()) == tokens


@given(managers())
def test_prompt_and_rollout_make_the_whole(manager: TokenManager) -> None:
    tokens = TokenObservation.from_token_manager(manager)
    assert tokens.initial_prompt_token_ids + tokens.rollout_token_ids == tokens.token_ids
    assert not any(tokens.loss_mask[: tokens.prompt_length])
    sampled = sum(end - start for spans in tokens.turn_spans.values() for start, end in spans)
    assert sum(tokens.rollout_loss_mask) == sampled


@given(managers(), st.data())
def test_cut_bytes_raise_value_error_only(manager: TokenManager, data: st.DataObject) -> None:
    tokens = TokenObservation.from_token_manager(manager)
    whole = tokens.to_bytes()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        TokenObservation.from_bytes(cut)
    except ValueError:
        return
    raise AssertionError(f"{len(cut)} of {len(whole)} bytes were accepted")
