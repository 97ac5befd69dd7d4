"""`TokenObservation`: slices, segments, turns, and its JSON and binary forms."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest

from strands_env.core.types import TokenObservation, WeightVersionSpan
from strands_sglang.trajectory import TokenManager
from strands_sglang.trajectory.tokens import Segment


def manager() -> TokenManager:
    held = TokenManager()
    held.add_prompt([1, 2, 3])
    held.add_response([4, 5], [-0.1, -0.2], weight_version="7")
    held.add_prompt([6])
    held.add_response([7], weight_version="8")
    return held


def test_everything_of_a_token_manager_is_kept() -> None:
    assert TokenObservation.from_token_manager(TokenManager()) is None
    held = manager()
    tokens = TokenObservation.from_token_manager(held)
    held.add_prompt([99])  # nobody follows it
    assert tokens.token_ids == [1, 2, 3, 4, 5, 6, 7]
    assert tokens.prompt_length == 3
    assert (tokens.initial_prompt_token_ids, tokens.rollout_token_ids) == ([1, 2, 3], [4, 5, 6, 7])
    assert tokens.loss_mask == [0, 0, 0, 1, 1, 0, 1] == [0, 0, 0, *tokens.rollout_loss_mask]
    assert tokens.logprobs == [None, None, None, -0.1, -0.2, None, None]
    assert tokens.rollout_logprobs == [-0.1, -0.2, None, None]
    assert tokens.segment_info == [(False, 3), (True, 2), (False, 1), (True, 1)]
    assert tokens.turn_index == [0, 0, 0, 0, 0, 1, 1]
    assert tokens.turn_spans == {0: [(3, 5)], 1: [(6, 7)]}
    assert tokens.weight_versions == (
        WeightVersionSpan(version="7", start=3, end=5),
        WeightVersionSpan(version="8", start=6, end=7),
    )
    assert tokens.segments[1] == Segment(is_output=True, start=3, end=5, turn=0)
    assert pickle.loads(pickle.dumps(tokens)) == tokens


def test_sampled_but_untrained_tokens_are_output_without_loss() -> None:
    info = [(False, 1), (True, 2)]
    tokens = TokenObservation(token_ids=[1, 2, 3], prompt_length=1, loss_mask=[0, 0, 0], segment_info=info)
    assert tokens.output_mask == [False, True, True]
    assert tokens.loss_mask == [0, 0, 0]


def test_segments_without_information_follow_mask_and_prompt() -> None:
    tokens = TokenObservation(token_ids=[1, 2, 3, 4, 5], prompt_length=2, loss_mask=[0, 0, 0, 1, 0])
    assert tokens.segment_info == [(False, 2), (False, 1), (True, 1), (False, 1)]
    assert tokens.logprobs == [None] * 5 and TokenObservation(token_ids=[1, 2], prompt_length=1).loss_mask == [0, 0]
    assert tokens.turn_index == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token_ids": [1], "loss_mask": [1, 0]}, "loss_mask has 2 values for 1 tokens"),
        ({"token_ids": [1], "loss_mask": [2]}, "0 and 1 only"),
        ({"token_ids": [1], "logprobs": [0.0, 0.0]}, "logprobs has 2 values for 1 tokens"),
        ({"token_ids": [1], "prompt_length": 2}, "prompt_length must be between 0 and 1"),
        ({"token_ids": [1.5]}, "must be integers"),
        ({"token_ids": [2**31]}, "fit 32 bits"),
        ({"token_ids": [1, 2], "segment_info": [(False, 1)]}, "covers 1 tokens of 2"),
        ({"token_ids": [1], "segment_info": [(False, 1)], "segment_turns": [0, 1]}, "2 values for 1 segments"),
        ({"token_ids": [1], "segment_info": [(False, 3), (True, -2)]}, "a segment of -2 tokens"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenObservation(**fields)


def test_arrays_cannot_be_written_and_are_separate_from_their_source() -> None:
    ids = np.array([1, 2], dtype=np.int32)
    tokens = TokenObservation(token_ids=ids)
    ids[0] = 9
    assert tokens.token_ids == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        tokens.token_ids_array[0] = 9


def test_unknown_key_of_a_dict_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown keys \['ids'\]"):
        TokenObservation.from_dict({"ids": [1]})


def test_a_hundred_thousand_tokens_hold_no_python_objects() -> None:
    ids = list(range(100_000))
    mask = [i % 2 for i in ids]
    logprobs = [-0.5] * len(ids)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tokens = TokenObservation(token_ids=ids, loss_mask=mask, logprobs=logprobs, segment_info=[(True, len(ids))])
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert held < 20 * len(ids)  # 13 bytes a token; Python objects would need above 60
    assert len(tokens.to_bytes()) < 14 * len(ids)
