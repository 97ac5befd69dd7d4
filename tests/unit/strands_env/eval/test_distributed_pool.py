"""Which task ends workers: found by running each alone, whatever runs beside it."""

from __future__ import annotations

import asyncio
import random

import pytest

from strands_env.core import Action, StepResult
from strands_env.eval.executors import QuarantinedTaskError, WorkerLostError
from strands_env.eval.executors.pool import MAX_STARTS, Link, WorkerPool
from tests.unit.eval_support import outcome, task


class FakeWorker:
    """Ends with all its rollouts when it runs a poisonous one, or as often as it is told to."""

    made: list[FakeWorker]
    poison: set[str]
    bad_starts = 0

    def __init__(self, number: int) -> None:
        self.number = number
        self.load = 0
        self.most = 0
        self.closed = False
        self._waiting: list[asyncio.Future[StepResult]] = []
        FakeWorker.made.append(self)

    async def rollout(self, action: Action, timeout: float | None) -> StepResult:
        self.load += 1
        self.most = max(self.most, self.load)
        try:
            if FakeWorker.bad_starts:
                FakeWorker.bad_starts -= 1
                raise WorkerLostError(f"worker {self.number}", "it ended at its start")
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            asyncio.get_running_loop().call_soon(self._answer, future, action.task_context.id.split("_")[0])
            return await future
        finally:
            self.load -= 1

    def _answer(self, future: asyncio.Future[StepResult], name: str) -> None:
        if name in self.poison:
            waiting, self._waiting = self._waiting, []
            for lost in waiting:
                lost.set_exception(WorkerLostError(f"worker {self.number}", "killed", len(waiting)))
        elif not future.done():
            self._waiting.remove(future)
            future.set_result(outcome())

    async def close(self) -> None:
        self.closed = True


class FakePool(WorkerPool):
    def __init__(self, n_workers: int) -> None:
        super().__init__(dict, n_workers=n_workers, stuck_after=None)

    def _worker(self, number: int) -> FakeWorker:
        return FakeWorker(number)

    async def open_link(self) -> Link:
        raise AssertionError("workers are fakes")


@pytest.fixture(autouse=True)
def _workers():
    FakeWorker.made, FakeWorker.poison, FakeWorker.bad_starts = [], set(), 0


@pytest.mark.parametrize("seed", range(20))
async def test_innocent_rollouts_are_never_lost_and_poison_always_found(seed):
    rng = random.Random(seed)
    names = [f"t{number}" for number in range(rng.randint(1, 40))]
    FakeWorker.poison = set(rng.sample(names, rng.randint(0, min(5, len(names)))))
    pool = FakePool(rng.randint(1, 4))
    rollouts = [pool.rollout(task(f"{name}_{index}"), None) for name in names for index in range(2)]
    rng.shuffle(rollouts)
    results = await asyncio.gather(*rollouts, return_exceptions=True)
    quarantined = [result for result in results if isinstance(result, QuarantinedTaskError)]
    assert {error.task.split("_")[0] for error in quarantined} == FakeWorker.poison
    assert len(quarantined) == 2 * len(FakeWorker.poison)
    assert sum(isinstance(result, StepResult) for result in results) == len(results) - len(quarantined)
    shared = len(pool.workers)
    assert all(worker.closed and worker.most == 1 for worker in FakeWorker.made[shared:])


async def test_a_quarantined_task_ends_no_further_worker():
    FakeWorker.poison = {"t"}
    pool = FakePool(1)
    with pytest.raises(QuarantinedTaskError, match=r"'t_0' ended 2 workers .* killed"):
        await pool.rollout(task("t_0"), None)
    made = len(FakeWorker.made)
    same = Action(message="question t_0", task_context=task("t_1").task_context)
    with pytest.raises(QuarantinedTaskError, match="quarantined before"):
        await pool.rollout(same, None)
    assert len(FakeWorker.made) == made


async def test_a_worker_that_ends_at_its_start_says_nothing_of_the_task():
    pool = FakePool(1)
    FakeWorker.bad_starts = MAX_STARTS - 1
    assert isinstance(await pool.rollout(task("t"), None), StepResult)
    FakeWorker.bad_starts = MAX_STARTS
    with pytest.raises(WorkerLostError, match="at its start"):
        await pool.rollout(task("t"), None)
    assert isinstance(await pool.rollout(task("t"), None), StepResult)
