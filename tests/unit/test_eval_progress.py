"""A display that breaks ends no run."""

from __future__ import annotations

import pytest

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
