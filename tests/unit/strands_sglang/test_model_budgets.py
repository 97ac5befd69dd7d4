"""Budgets of tokens: exact with calls in parallel, and every turn they cut says which bound it was."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from provider_support import make, tokenizer, user

from strands_sglang import SGLangModel, TokenBudgetReachedError
from strands_sglang.conversation.budget import Reservation, SharedBudget
from strands_sglang.exceptions import SGLangConnectionError
from strands_sglang.testing import Reply
from strands_sglang.trajectory import LengthLimit

EOS = tokenizer().eos_token_id


async def run(model: SGLangModel, text: str = "go") -> str:
    events = [event async for event in model.stream([user(text)])]
    return next(event["messageStop"]["stopReason"] for event in events if "messageStop" in event)


def everything(_: list[int], fields: dict[str, Any]) -> Reply:
    """As many tokens as may come."""
    return Reply(ids=[5] * fields["sampling_params"]["max_new_tokens"], finish="length", delay=0.01)


# ---- which bound -----------------------------------------------------------------------------------------------------


async def prompt_length() -> int:
    model, client = make([[EOS]])
    await run(model)
    return len(client.prompts[0])


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"sampling_params": {"max_new_tokens": 5}}, LengthLimit.REPLY),
        ({}, LengthLimit.REPLY),
        ({"max_sampled_tokens": 5}, LengthLimit.SAMPLED_BUDGET),
        ({"max_sampled_tokens": 5, "sampling_params": {"max_new_tokens": 5}}, LengthLimit.SAMPLED_BUDGET),
        ({"max_sampled_tokens": 6, "sampling_params": {"max_new_tokens": 5}}, LengthLimit.REPLY),
        ({"max_trajectory_tokens": 5, "max_sampled_tokens": 9}, LengthLimit.TRAJECTORY_BUDGET),
        ({"context_window_limit": 7, "sampling_params": {"max_new_tokens": 20}}, LengthLimit.CONTEXT),
        ({"context_window_limit": 7, "max_sampled_tokens": 5}, LengthLimit.SAMPLED_BUDGET),
    ],
)
async def test_a_cut_turn_says_by_what(options: dict[str, Any], limit: LengthLimit) -> None:
    """Bounds on whole sequences are given from the end of the prompt on."""
    size = await prompt_length()
    given = {name: value + size if name in _WHOLE else value for name, value in options.items()}
    model, _ = make([everything], cycle=True, **given)
    assert await run(model) == "max_tokens"
    assert model.trajectories[0].finish.limited_by is limit
    assert sum(model.token_manager.loss_mask) == (5 if options else 2048)


_WHOLE = ("max_trajectory_tokens", "context_window_limit")


async def test_a_turn_that_ends_by_itself_was_not_limited_and_a_server_may_keep_back_a_token() -> None:
    size = await prompt_length()
    model, _ = make([[5, EOS], Reply(ids=[5, 6], finish="length")], context_window_limit=size + 5)
    assert model.length_limit is None
    await run(model)  # ends by itself
    assert (model.trajectories[0].finish.limited_by, model.length_limit) == (None, None)
    await run(model)
    assert model.length_limit is LengthLimit.CONTEXT


# ---- in parallel -----------------------------------------------------------------------------------------------------


async def in_parallel(model: SGLangModel, calls: int) -> list[Any]:
    return await asyncio.gather(*(run(model, f"q{n}") for n in range(calls)), return_exceptions=True)


@pytest.mark.parametrize("params", [{}, {"max_new_tokens": 15}])
async def test_calls_in_parallel_do_not_overdraw_the_budget(params: dict[str, Any]) -> None:
    model, _ = make([everything], cycle=True, max_sampled_tokens=40, sampling_params=params)
    ends = await in_parallel(model, 4)
    assert model.forest.sampled_tokens == 40
    full = 40 // params.get("max_new_tokens", 40) + (1 if params else 0)
    assert [end == "max_tokens" for end in ends] == [n < full for n in range(4)]
    assert {type(end) for end in ends[full:]} == {TokenBudgetReachedError}


async def test_no_call_is_cut_by_what_others_only_hold() -> None:
    model, client = make(
        [Reply(ids=[5, EOS], delay=0.01)], cycle=True, max_sampled_tokens=40, sampling_params={"max_new_tokens": 30}
    )
    assert await in_parallel(model, 4) == ["end_turn"] * 4
    assert [request.fields["sampling_params"]["max_new_tokens"] for request in client.requests] == [30] * 4


async def test_calls_that_fit_the_budget_run_at_the_same_time() -> None:
    model, client = make([everything], cycle=True, max_sampled_tokens=40, sampling_params={"max_new_tokens": 10})
    await in_parallel(model, 4)
    assert client.max_in_flight == 4


async def test_a_failed_call_gives_its_share_back() -> None:
    model, _ = make([SGLangConnectionError("gone"), [5] * 9], max_sampled_tokens=9)
    first, second = await in_parallel(model, 2)
    assert isinstance(first, SGLangConnectionError)
    assert (second, model.forest.sampled_tokens) == ("end_turn", 9)


async def test_a_cancelled_call_that_waited_for_a_share_is_forgotten() -> None:
    budget = SharedBudget()
    with Reservation(budget) as first, Reservation(budget) as second, Reservation(budget) as third:
        assert await first.reserve(4, lambda: 10) is None
        waiting = asyncio.create_task(second.reserve(8, lambda: 10))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert await third.reserve(6, lambda: 10) is None


async def test_a_share_that_is_given_back_in_another_event_loop_is_noticed() -> None:
    budget = SharedBudget()
    with Reservation(budget) as mine:
        with Reservation(budget) as other:
            await asyncio.to_thread(asyncio.run, other.reserve(None, lambda: 10))
            waiting = asyncio.create_task(mine.reserve(5, lambda: 3))
            await asyncio.sleep(0)
            assert not waiting.done()
        assert await waiting == 3


@pytest.mark.parametrize("held", [6, 10])
async def test_a_call_waits_for_no_event_loop_that_waits_for_it(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.conversation.budget._BLOCKED_SECONDS", 0.05)
    budget = SharedBudget()

    def left(others: int = 0) -> int:
        if others >= 10:
            raise RuntimeError("no tokens are left")
        return 10 - others

    def summarise() -> int | None:  # as context managers do, in a thread, while the agents' event loop stands still
        with Reservation(budget) as mine:
            return asyncio.run(mine.reserve(8, left))

    with Reservation(budget) as other, ThreadPoolExecutor() as pool:
        await other.reserve(held, left)
        summary = pool.submit(summarise)
        if held == 10:
            with pytest.raises(RuntimeError, match="no tokens are left"):
                summary.result(20)
        else:
            assert summary.result(20) == 4
    assert not budget.held and not budget.loops


async def test_a_share_that_a_garbage_collection_gives_back_in_the_middle_of_a_look_is_noticed(monkeypatch):
    budget = SharedBudget()
    abandoned = Reservation(budget)
    await abandoned.__enter__().reserve(None, lambda: 10)

    def collecting() -> Future[None]:  # any allocation may begin a collection, which ends the abandoned call
        abandoned.__exit__(None, None, None)
        return Future()

    monkeypatch.setattr("strands_sglang.conversation.budget.Future", collecting)
    with Reservation(budget) as mine:
        assert await mine.reserve(None, lambda: 10) == 10


async def test_a_reset_frees_what_calls_of_the_old_episode_hold() -> None:
    delay = 30.0
    model, client = make([lambda *_: Reply(ids=[5, EOS], delay=delay)], cycle=True, max_sampled_tokens=9)
    old = asyncio.create_task(run(model))
    while not client.requests:
        await asyncio.sleep(0)
    model.reset()
    delay = 0.0
    assert await run(model) == "end_turn"
    old.cancel()
    await asyncio.wait({old})
