"""A display that breaks ends no run."""

from __future__ import annotations

import asyncio
import time

import pytest

from strands_env.commands.display import describe
from strands_env.eval import Evaluator, read_results
from strands_env.eval.run.progress import ProgressState
from tests.unit.eval_support import FakeEnv, display, tasks


@pytest.mark.parametrize("where", ["start", "update", "finish"])
async def test_a_display_that_raises_ends_no_run_and_is_told_the_end_to_give_the_terminal_back(where, tmp_path, caplog):
    calls: list[tuple[str, ProgressState]] = []

    def note(name: str, state: ProgressState) -> None:
        calls.append((name, state))
        if name == where:
            raise BrokenPipeError("the terminal went away")

    options = {"output_path": tmp_path, "progress": display(note), "max_concurrency": 1}
    await Evaluator(lambda: FakeEnv(delay=0.001), **options).run(tasks(5))
    assert len(list(read_results(tmp_path))) == 5
    assert [record.name for record in caplog.records] == ["strands_env.eval.run.progress"]
    names, state = [name for name, _ in calls], calls[-1][1]
    assert names.count(where) == 1 == names.count("finish")
    assert names[-1] == "finish" and (where == "finish" or "update" not in names[2:])
    assert state.finished == 5 and state.busy_s > 0


@pytest.mark.parametrize("said", [None, 9])
async def test_the_number_of_samples_is_known_when_all_tasks_are_read(said):
    class Sized(list):
        def __len__(self):
            return said

    totals: list[int | None] = []
    progress = display(lambda name, state: totals.append(state.total))
    evaluator = Evaluator(FakeEnv, progress=progress, n_samples_per_prompt=2, output_path=None)
    await evaluator.run(iter(tasks(3)) if said is None else Sized(tasks(3)))
    assert (totals[0], totals[-1]) == (None if said is None else 18, 6)


def test_the_first_samples_to_finish_tell_how_long_the_rest_takes():
    """Ten at a time, a second each: of a hundred samples 99 are left after one has finished."""
    state = ProgressState(total=100, done=1, finished=1, running=10, busy_s=1.0)
    assert state.eta == pytest.approx(9.9)
    state = ProgressState(total=100, done=99, finished=99, running=10, busy_s=99.0)
    assert state.eta == pytest.approx(1.0)


@pytest.mark.parametrize("total", [100, None])
def test_one_rate_tells_how_long_the_rest_takes(total):
    state = ProgressState(total=total, done=1, finished=1, running=10, busy_s=88.0, started=time.monotonic() - 88)
    assert state.rate == pytest.approx(10 / 88)
    assert total is None or state.eta * state.rate == pytest.approx(99)
    assert describe(state).endswith(f"eta {'14:31' if total else '-'}, 0.11/s")
    state.running, state.busy_s = 1, 88.0
    assert "0.68/min" in describe(state)


async def test_a_display_hears_of_a_run_before_its_first_sample_ends():
    said = []
    heard = asyncio.Event()

    def note(name, state):
        if name == "update" and not state.finished:
            said.append(describe(state))
            heard.set()

    class Waiting(FakeEnv):
        async def step(self, action):
            await heard.wait()
            return await super().step(action)

    results = await Evaluator(Waiting, output_path=None, max_concurrency=2, progress=display(note)).run(tasks(3))
    assert said[0] == "0/3 samples, 2 under way, mean reward -"
    assert [sample.reward for samples in results.values() for sample in samples] == [1.0] * 3
