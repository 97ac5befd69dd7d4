"""Trackers: the interface without any package, and each with its own, offline, where that is installed."""

from __future__ import annotations

import json
import sys
import threading
import time
import types
from functools import partial

import pytest

from strands_env.commands.display import TrackedProgress
from strands_env.core.trackers import TRACKERS, BackgroundTracker, TrackerError, make_tracker, numbers_of
from tests.unit.strands_env.commands.test_eval_cli import FAST, HOOKS, evaluate


class Recorder:
    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.summary: dict[str, float] | None = None
        self.tables: list[tuple[str, int, list[dict[str, object]]]] = []

    def log(self, metrics, *, step):
        self.logged.append((step, dict(metrics)))

    def log_table(self, name, rows, *, step):
        self.tables.append((name, step, rows))

    def finish(self, summary):
        assert self.summary is None
        self.summary = dict(summary)


@pytest.mark.parametrize("kind", TRACKERS)
def test_a_missing_package_or_an_unknown_tracker_is_named(kind, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(TrackerError, match=f"pip install {kind}"):
        make_tracker(kind, project="p", name="n", folder=tmp_path)
    with pytest.raises(TrackerError, match=rf"unknown tracker '{kind}x' \(did you mean '{kind}'\?\)"):
        make_tracker(f"{kind}x", project="p", name="n")


def test_a_tracker_that_blocks_or_fails_costs_the_run_nothing(caplog):
    release, inner = threading.Event(), Recorder()

    class Blocking(Recorder):
        def log(self, metrics, *, step):
            release.wait()
            if step == 1:
                raise OSError("no network")
            inner.log(metrics, step=step)

        def finish(self, summary):
            inner.finish(summary)

    tracker = BackgroundTracker(Blocking())
    for step in range(3):
        tracker.log({"x": float(step)}, step=step)
    release.set()
    tracker.finish({"done": 1.0})
    assert [step for step, _ in inner.logged] == [0, 2]
    assert inner.summary == {"done": 1.0}
    assert caplog.text.count("the tracker failed") == 1


def test_an_evaluation_reports_its_progress_once_a_step_and_its_summary(tmp_path, monkeypatch):
    recorder = Recorder()
    started = {}

    def make(kind, **options):
        started.update(options, kind=kind)
        return recorder

    monkeypatch.setattr("strands_env.commands.eval_run.make_tracker", make)
    monkeypatch.setattr("strands_env.commands.eval_run.TrackedProgress", partial(TrackedProgress, seconds=0.0))
    options = [f"{HOOKS}:three_tasks", "--env", f"{HOOKS}:losing_one", "-n", "2", "--max-attempts", "1", *FAST]
    assert evaluate(*options, "-o", str(tmp_path / "first"), "--track", "wandb", "--project", "mine") == 1
    assert (started["kind"], started["project"], started["name"]) == ("wandb", "mine", "first")
    steps = [step for step, _ in recorder.logged]
    assert steps == sorted(set(steps)) and steps[-1] == 6
    assert (recorder.logged[-1][1]["mean_reward"], recorder.logged[-1][1]["failures/connection_error"]) == (0.8, 1.0)
    assert recorder.summary["mean_reward/value"] == pytest.approx(2 / 3)
    [(name, step, rows)] = recorder.tables
    assert (name, step, len(rows)) == ("samples", 6, 6)
    assert list(rows[0]) == ["sample", "prompt", "reply", "reward", "ended", "drift"]
    assert sorted((row["reward"] is None, row["ended"]) for row in rows)[-1] == (True, "connection_error")
    monkeypatch.setattr("strands_env.eval.saved.MAX_ROWS", 5)
    recorder.summary, recorder.tables = None, []
    evaluate(*options, "-o", str(tmp_path / "second"), "--track", "wandb")
    assert recorder.tables == [] and recorder.summary is not None  # too many for a table
    values = {"pass_at": {1: {"value": 0.5, "low": None}}, "n": 3, "ok": True, "name": "x", "nan": float("nan")}
    assert numbers_of(values) == {"pass_at/1/value": 0.5, "n": 3.0}


# ---- the packages themselves, offline -------------------------------------------------------------------------------


ROWS = [
    {"sample": "p/0", "reply": "a reply", "reward": 1.0, "drift": None},
    {"sample": "p/1", "reply": "", "reward": None, "drift": 2},
]


def use(kind: str, folder) -> None:
    tracker = make_tracker(kind, project="project", name="run", config={"model": "m", "n": 4}, folder=folder)
    tracker.log({"reward": 0.25}, step=0)
    tracker.log({"reward": 0.5}, step=1)
    tracker.log_table("samples", ROWS, step=1)
    tracker.finish({"pass@1": 0.75})


@pytest.mark.parametrize(
    ("kind", "files"), [("wandb", "wandb/offline-run-*/run-*.wandb"), ("trackio", "**/*.db")], ids=["wandb", "trackio"]
)
def test_the_package_writes_offline(kind, files, tmp_path, monkeypatch):
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_SILENT", "true"), ("TRACKIO_DIR", str(tmp_path))):
        monkeypatch.setenv(name, value)
    pytest.importorskip(kind)
    use(kind, tmp_path)
    while not any(b"reward" in path.read_bytes() for path in tmp_path.glob(files)):
        time.sleep(0.05)  # W&B's own process writes the file of a run with tables after `finish`
    assert any(b"a reply" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


class Run:
    """A run of a package with W&B's interface."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, float], dict[str, int]]] = []
        self.is_finished = False

    def log(self, values, **step):
        self.logged.append((values, step))

    def finish(self):
        self.is_finished = True

    def define_metric(self, name, **options):
        assert (name, options) == ("strands/*", {"step_metric": "strands/step"})


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_run_that_a_trainer_has_opened_keeps_its_steps_and_stays_open(is_joined, monkeypatch, tmp_path):
    run = Run()
    module = types.SimpleNamespace(run=run if is_joined else None, init=lambda **options: run, Table=dict)
    monkeypatch.setitem(sys.modules, "wandb", module)
    use("wandb", tmp_path)
    steps = [{}, {}] if is_joined else [{"step": 0}, {"step": 1}]
    assert run.logged[:2] == [
        ({"strands/reward": 0.25, "strands/step": 0}, steps[0]),
        ({"strands/reward": 0.5, "strands/step": 1}, steps[1]),
    ]
    table = {"columns": list(ROWS[0]), "data": [["p/0", "a reply", 1.0, None], ["p/1", "", None, 2]]}
    assert run.logged[2] == ({"strands/samples": table, "strands/step": 1}, steps[1])
    assert run.logged[3][0] == {"strands/final/pass@1": 0.75}
    assert run.is_finished is not is_joined


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    use("tensorboard", tmp_path)
    folder = tmp_path / "tensorboard" / "project" / "run"
    events = EventAccumulator(str(folder))
    events.Reload()
    found = [(event.step, event.tensor_proto.float_val[0]) for event in events.Tensors("reward")]
    assert found == [(0, 0.25), (1, 0.5)]
    assert json.loads((folder / "config.json").read_text())["model"] == "m"
