"""`MathRewardFunction`: what counts as equal, and that nothing an answer says can hang or leak."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import Any

import psutil
import pytest

pytest.importorskip("math_verify", reason="needs the extra `math`")

from strands_env.core import Action, TaskContext
from strands_env.rewards import MathRewardFunction, close_math_workers, math_reward
from strands_env.rewards.math_reward import _WORKERS, VerifierPool, WorkerDiedError
from strands_env.rewards.math_worker import find_boxes
from strands_env.testing import answered


def action(ground_truth: object) -> Action:
    return Action(message="?", task_context=TaskContext(ground_truth=ground_truth))


def worker_processes() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and "math_worker" in " ".join(child.cmdline())
    ]


@pytest.mark.parametrize(
    ("truth", "answer", "reward"),
    [
        ("4", r"The answer is $\boxed{4}$.", 1.0),
        ("0.5", r"$\boxed{\frac{1}{2}}$", 1.0),
        (r"$\frac{\sqrt{3}}{3}$", r"$\boxed{\frac{1}{\sqrt{3}}}$", 1.0),
        (r"2\pi", r"\boxed{2}", 0.0),
        ("1,234", r"\boxed{1234}", 1.0),
        (3, "3", 1.0),
        ("4", "The answer is 4.", 1.0),
        ("x^2+1", r"\boxed{1 + x^2}", 1.0),
        (1e-05, r"\boxed{0.00001}", 1.0),
        (1.23e20, r"\boxed{123000000000000000000}", 1.0),
        ("1e-05", r"\boxed{1e-5}", 1.0),
        ("10 dollars", r"\boxed{10}", 1.0),
        ("10 miles per hour", r"\boxed{10}", 1.0),
        ("10 dollars", r"\boxed{11}", 0.0),
        ("4", r"\boxed{4} (see \boxed{})", 1.0),
        # The last box counts, so many guesses gain nothing.
        ("42", r"First $\boxed{99}$, correction $\boxed{42}$.", 1.0),
        ("42", r"$\boxed{1}$ and $\boxed{2}$", 0.0),
        ("42", r"$\boxed{42}$, no, $\boxed{2}$", 0.0),
        ("42", " ".join(rf"\boxed{{{guess}}}" for guess in range(40, 60)), 0.0),
        (r"\{1, 2\}", r"\boxed{1} and \boxed{2}", 1.0),
    ],
)
async def test_equality_is_mathematical(truth: object, answer: str, reward: float) -> None:
    result = await MathRewardFunction().compute(action(truth), answered(answer))
    assert result.reward == reward
    assert result.info["matched"] is bool(reward)
    assert result.info["ground_truth"] == truth
    assert result.info["gold_parsed"]
    assert result.info["answer_parsed"]


@pytest.mark.parametrize(
    ("truth", "answer", "reason"),
    [
        (None, r"\boxed{4}", "invalid_ground_truth"),
        ("", r"\boxed{4}", "invalid_ground_truth"),
        (float("nan"), "4", "invalid_ground_truth"),
        ("4", None, "no_final_response"),
        ("not a math expression at all!", r"\boxed{4}", "gold_parse_failed"),
        ("4", "I don't know the answer.", "answer_parse_failed"),
        ("4", r"\boxed{4", "answer_parse_failed"),
    ],
)
@pytest.mark.parametrize("bad_ground_truth", [0.0, None])
async def test_nothing_to_compare_says_why_and_a_bad_ground_truth_may_abstain(truth, answer, reason, bad_ground_truth):
    result = await MathRewardFunction(bad_ground_truth=bad_ground_truth).compute(action(truth), answered(answer))
    is_bad = reason in ("invalid_ground_truth", "gold_parse_failed")
    assert (result.reward, result.info["reason"]) == (bad_ground_truth if is_bad else 0.0, reason)


async def test_answers_that_explode_are_wrong_in_time_and_the_next_is_right() -> None:
    reward = MathRewardFunction(timeout=1.0)
    bombs = [r"\boxed{9^{9^{9^9}}}", r"\boxed{100000000!}", r"\boxed{" + "(" * 5000 + "4" + ")" * 5000 + "}"]
    results = await asyncio.gather(*(reward.compute(action("3"), answered(bomb)) for bomb in bombs))
    assert [result.reward for result in results] == [0.0] * 3
    assert {result.info.get("reason") for result in results[:2]} <= {"timeout", "verifier_error"}
    assert (await reward.compute(action("3"), answered(r"\boxed{3}"))).reward == 1.0


async def test_a_worker_killed_from_outside_costs_nothing() -> None:
    reward = MathRewardFunction()
    await reward.compute(action("4"), answered("4"))
    for process in worker_processes():
        process.kill()
    assert (await reward.compute(action("4"), answered("4"))).reward == 1.0


async def test_workers_are_few_and_closing_leaves_no_process_and_no_thread() -> None:
    reward = MathRewardFunction()
    await asyncio.gather(*(reward.compute(action("4"), answered(str(i))) for i in range(50)))
    assert 0 < len(worker_processes()) <= _WORKERS._size
    await asyncio.to_thread(close_math_workers)
    assert worker_processes() == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("strands-env-math_worker")]
    assert (await reward.compute(action("4"), answered("4"))).reward == 1.0


def test_interpreter_ends_at_once_and_takes_its_workers_along() -> None:
    script = (
        "import asyncio, psutil\n"
        "from tests.unit.test_reward_math import action, answered, worker_processes\n"
        "from strands_env.rewards import MathRewardFunction\n"
        "print(asyncio.run(MathRewardFunction().compute(action('4'), answered('4'))).reward)\n"
        "print(*[process.pid for process in worker_processes()])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True, env=dict(os.environ)
    )
    reward, pids = done.stdout.splitlines()
    assert reward == "1.0"
    assert pids
    assert not [pid for pid in pids.split() if psutil.pid_exists(int(pid))]


async def test_where_a_harmless_answer_fails_too_the_reward_abstains() -> None:
    result = await MathRewardFunction(timeout=0.5).compute(action("9^{9^{9^9}}"), answered(r"\boxed{4}"))
    assert (result.reward, result.info["reason"]) == (None, "cannot_verify")
    with pytest.raises(ValueError, match="timeout must be a positive number"):
        MathRewardFunction(timeout=0)


async def test_an_answer_is_not_wrong_because_the_machine_is_busy() -> None:
    """The worker gets no CPU time for longer than its limit, as beside many other processes."""
    reward = MathRewardFunction(timeout=0.5)
    await reward.compute(action("4"), answered("4"))
    for process in worker_processes():
        process.suspend()
    scoring = asyncio.create_task(reward.compute(action("3/7"), answered(r"\boxed{6/14}")))
    await asyncio.sleep(1.5)
    for process in worker_processes():
        process.resume()
    assert (await scoring).reward == 1.0


async def test_requests_in_a_row_are_one_workers() -> None:
    """A worker takes seconds to start: one that is free is asked before another is started."""
    pool = VerifierPool(8)
    try:
        for _ in range(12):
            await pool.request({"gold": "4", "answer": r"\boxed{4}"}, 3.0)
        assert len(pool._workers) == 1
    finally:
        pool.close()


async def test_a_worker_that_gets_no_time_at_all_gives_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_reward, "STALL_SECONDS", 0.2)
    reward = MathRewardFunction(timeout=0.01)
    await reward.compute(action("4"), answered("4"))
    for process in worker_processes():
        process.suspend()
    result = await reward.compute(action("4"), answered("4"))
    assert (result.reward, result.info["reason"]) == (None, "cannot_verify")


async def test_the_first_verification_of_a_worker_is_as_cheap_as_the_next() -> None:
    await asyncio.to_thread(close_math_workers)
    result = await MathRewardFunction(timeout=0.5).compute(action(r"\frac{3}{7}"), answered(r"\boxed{6/14}"))
    assert result.reward == 1.0


@pytest.mark.parametrize(
    ("harmless", "reward", "reason"),
    [
        ({"matched": False}, 0.0, "worker_died"),
        ({"reason": "verifier_error", "error": "KeyError"}, None, "cannot_verify"),
    ],
)
async def test_answer_that_breaks_the_verifier_is_wrong_unless_a_harmless_one_does(
    harmless: Any, reward: float | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(fields: dict[str, str], seconds: float) -> Any:
        if "bomb" in fields["answer"]:
            raise WorkerDiedError("worker died with code -11")
        return harmless

    monkeypatch.setattr(_WORKERS, "request", die)
    result = await MathRewardFunction().compute(action("4"), answered("bomb"))
    assert (result.reward, result.info["reason"]) == (reward, reason)
    assert result.info["error"] == ("worker died with code -11" if reward == 0.0 else "KeyError")


@pytest.mark.parametrize("answer", [r"\boxed{" * 20_000, r"\boxed{" * 20_000 + "}" * 20_000, "{" * 100_000])
def test_finding_boxes_is_linear(answer: str) -> None:
    assert len(find_boxes(answer)) in (0, 20_000)
