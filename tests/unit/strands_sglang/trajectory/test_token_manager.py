"""`TokenManager` filled by hand: the contract existing users write against."""

from __future__ import annotations

import pickle
import tracemalloc

import pytest

from strands_sglang.exceptions import TrajectoryError
from strands_sglang.trajectory import Token, TokenManager, TrajectoryForest, WeightSpan


def filled() -> TokenManager:
    manager = TokenManager()
    manager.add_prompt([1, 2])
    manager.add_response([3, 4], logprobs=[-0.1, -0.2])
    manager.add_prompt([5])
    manager.add_response([6], logprobs=[-0.3])
    return manager


def test_a_new_manager_is_empty_and_skips_empty_segments() -> None:
    manager = TokenManager()
    manager.add_prompt([])
    manager.add_response([])
    assert (len(manager), manager.token_ids, manager.loss_mask, manager.logprobs, manager.tokens) == (0, [], [], [], [])
    assert (manager.segments, manager.segment_info, manager.initial_prompt) == ([], [], [])
    assert repr(manager) == "TokenManager(segments=0, tokens=0, output_tokens=0)"


def test_ids_mask_logprobs_and_segments_are_aligned_copies() -> None:
    manager = filled()
    manager.token_ids.append(99)
    manager.loss_mask.clear()
    assert manager.token_ids == [1, 2, 3, 4, 5, 6]
    assert manager.loss_mask == [0, 0, 1, 1, 0, 1]
    assert manager.output_mask == [False, False, True, True, False, True]
    assert manager.logprobs == [None, None, -0.1, -0.2, None, -0.3]
    assert manager.segment_info == [(False, 2), (True, 2), (False, 1), (True, 1)]
    assert (Token(5).logprob, Token(5).loss_mask) == (None, True)
    assert manager.segments[1] == [Token(3, -0.1, True), Token(4, -0.2, True)]
    assert [token.token_id for token in manager.initial_prompt] == [1, 2]
    assert (len(manager), manager.initial_prompt_length) == (6, 2)
    assert repr(manager) == "TokenManager(segments=4, tokens=6, output_tokens=3)"


def test_a_response_needs_a_prompt() -> None:
    with pytest.raises(RuntimeError, match="First segment must be a prompt"):
        TokenManager().add_response([1])


@pytest.mark.parametrize("logprobs", [[-0.1], [-0.1, -0.2, -0.3, -0.4]])
def test_logprobs_of_another_length_are_refused_and_nothing_is_recorded(logprobs: list[float]) -> None:
    manager = filled()
    for add in (manager.add_prompt, manager.add_response):
        with pytest.raises(ValueError, match="logprobs length"):
            add([1, 2, 3], logprobs=logprobs)
    assert len(manager) == 6


def test_a_missing_logprob_stays_none_and_zero_stays_zero() -> None:
    manager = TokenManager()
    manager.add_prompt([1], logprobs=[None])
    manager.add_response([2, 3], logprobs=[0.0, None])
    assert manager.logprobs == [None, 0.0, None]


def test_weight_versions_join_touching_spans() -> None:
    manager = TokenManager()
    manager.add_prompt([1, 2])
    manager.add_response([3, 4], weight_version="a")
    manager.add_response([5], weight_version="a")
    manager.add_prompt([6])
    manager.add_response([7], weight_version="b")
    assert manager.weight_versions == (
        WeightSpan(version="a", start=2, end=5),
        WeightSpan(version="b", start=6, end=7),
    )


def test_reset_allows_reuse() -> None:
    manager = filled()
    manager.reset()
    assert len(manager) == 0
    manager.add_prompt([10])
    assert manager.token_ids == [10]


def test_a_manager_filled_by_hand_can_be_sent_to_another_process() -> None:
    sent = pickle.loads(pickle.dumps(filled()))
    assert (sent.token_ids, sent.loss_mask) == ([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1])


def test_tokens_cannot_be_added_to_the_view_of_a_model() -> None:
    manager = TokenManager(TrajectoryForest())
    with pytest.raises(TrajectoryError, match="by hand"):
        manager.add_prompt([1])


def test_a_held_token_takes_at_most_forty_bytes() -> None:
    tokens = 100_000
    tracemalloc.start()
    try:
        manager = TokenManager()
        for _ in range(100):
            manager.add_prompt(range(tokens // 200))
            manager.add_response(range(tokens // 200), logprobs=(-0.5 for _ in range(tokens // 200)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(manager) == tokens
    assert held / tokens <= 40
