"""A display that breaks ends no run."""

from __future__ import annotations

from functools import partial

import pytest

from strands_env.eval import Evaluator, read_results
from strands_env.eval.run.progress import ProgressState
from tests.unit.eval_support import FakeEnv, tasks


class Broken:
    """Raises in one of its methods; counts its calls."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.calls: list[str] = []

    def start(self, state: ProgressState) -> None:
        self.state = state
        self.note("start")

    def update(self, state: ProgressState) -> None:
        self.note("update")

    def finish(self, state: ProgressState) -> None:
        self.note("finish")

    def note(self, name: str) -> None:
        self.calls.append(name)
        if name == self.where:
            raise BrokenPipeError("the terminal went away")


@pytest.mark.parametrize("where", ["start", "update", "finish"])
async def test_a_display_that_raises_ends_no_run_and_is_told_the_end_to_give_the_terminal_back(where, tmp_path, caplog):
    display = Broken(where)
    env_factory = partial(FakeEnv, delay=0.001)
    await Evaluator(env_factory, output_path=tmp_path, progress=display, max_concurrency=1).run(tasks(5))
    assert len(list(read_results(tmp_path))) == 5
    assert [record.name for record in caplog.records] == ["strands_env.eval.run.progress"]
    assert display.calls.count(where) == 1 == display.calls.count("finish")
    assert display.calls[-1] == "finish" and (where == "finish" or "update" not in display.calls[2:])
    assert display.state.finished == 5 and display.state.busy_s > 0


@pytest.mark.parametrize("said", [None, 9])
async def test_the_number_of_samples_is_known_when_all_tasks_are_read(said):
    class Sized(list):
        def __len__(self):
            return said

    class Totals(Broken):
        def note(self, name: str) -> None:
            totals.append(self.state.total)

        def update(self, state: ProgressState) -> None:
            self.note("update")

    totals: list[int | None] = []
    evaluator = Evaluator(FakeEnv, progress=Totals("nowhere"), n_samples_per_prompt=2, output_path=None)
    await evaluator.run(iter(tasks(3)) if said is None else Sized(tasks(3)))
    assert (totals[0], totals[-1]) == (None if said is None else 18, 6)


def test_the_first_samples_to_finish_tell_how_long_the_rest_takes():
    """Ten at a time, a second each: of a hundred samples 99 are left after one has finished."""
    state = ProgressState(total=100, done=1, finished=1, running=10, busy_s=1.0)
    assert state.eta == pytest.approx(9.9)
    state = ProgressState(total=100, done=99, finished=99, running=10, busy_s=99.0)
    assert state.eta == pytest.approx(1.0)
