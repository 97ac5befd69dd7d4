"""The driver of rollouts: which attempts are repeated, and which failures in a row end a run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from strands_env.core import Outcome, TerminationReason
from strands_env.core.termination import ErrorRecord, Phase
from strands_env.training import samples_from_step
from strands_env.training.driver import FailureStreak, FailureStreakError, Rollout, drive_rollout
from tests.unit.eval_support import outcome, with_tokens


def ended(reason: TerminationReason) -> Rollout:
    result = with_tokens(outcome(reason=reason))
    return Rollout(samples=samples_from_step(result), result=result)


def scripted(*script: Rollout | Exception) -> tuple[Callable[[], Awaitable[Rollout]], list[Any]]:
    """An attempt that goes as the script says, and what is left of it."""
    left = list(script)

    async def attempt() -> Rollout:
        entry = left.pop(0)
        if isinstance(entry, Exception):
            raise entry
        return entry

    return attempt, left


@pytest.mark.parametrize("reason", list(TerminationReason))
async def test_an_attempt_is_repeated_where_the_one_table_says_infrastructure(reason: TerminationReason) -> None:
    first, second = ended(reason), ended(TerminationReason.TASK_COMPLETE)
    attempt, left = scripted(first, second)
    kept = await drive_rollout(attempt, Rollout, retries=1, pause=0.0)
    is_lost = reason.outcome() is Outcome.INFRASTRUCTURE
    assert kept is (second if is_lost else first)
    assert len(left) == (not is_lost)
    assert first.end.outcome is reason.outcome()
    assert (first.end.error is None) == (reason.outcome() is Outcome.POLICY)


async def test_the_last_attempt_is_kept_and_what_it_raised_is_its_failure() -> None:
    attempt, left = scripted(ended(TerminationReason.TIMEOUT), KeyError("no sandbox"))
    kept = await drive_rollout(attempt, Rollout, retries=1, pause=0.0)
    assert kept.end.error is not None and kept.end.error.type == "KeyError"
    assert (kept.end.outcome, left) == (Outcome.INFRASTRUCTURE, [])


async def test_nothing_is_repeated_once_the_trainer_stops_or_the_configuration_is_wrong() -> None:
    attempt, left = scripted(Rollout(), ended(TerminationReason.TASK_COMPLETE))
    assert (await drive_rollout(attempt, Rollout, retries=1, pause=0.0, is_stopping=lambda: True)).samples == ()
    assert len(left) == 1
    attempt, left = scripted(ZeroDivisionError("wrong"), ended(TerminationReason.TASK_COMPLETE))
    with pytest.raises(ZeroDivisionError):
        await drive_rollout(attempt, Rollout, retries=1, pause=0.0, fatal=(ZeroDivisionError,))
    assert len(left) == 1


async def test_a_streak_waits_for_rollouts_that_ran_beside_its_first_failure() -> None:
    streak, may_end = FailureStreak(), asyncio.Event()
    error = ErrorRecord(type="OSError", message="gone", traceback="", where=Phase.MODEL)

    async def run(name: str, *, waits: bool = False) -> None:
        with streak.running(name):
            if waits:
                await may_end.wait()
            streak.add(name, error, limit=2)

    slow = asyncio.create_task(run("slow", waits=True))
    await asyncio.sleep(0)
    for name in "abc":
        await run(name)
    may_end.set()
    with pytest.raises(FailureStreakError, match="4 rollouts in a row failed, the last with OSError in model: 'gone'"):
        await slow
