"""Trackers: the interface without any package, and each with its own, offline, where that is installed."""

from __future__ import annotations

import json
import threading

import pytest

from strands_env.commands.progress import TrackedProgress
from strands_env.eval.run.progress import ProgressState
from strands_env.trackers import TRACKERS, BackgroundTracker, TrackerError, make_tracker, numbers_of
from tests.unit.test_eval_cli import FAST, HOOKS, evaluate


class Recorder:
    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.summary: dict[str, float] | None = None

    def log(self, metrics, *, step):
        self.logged.append((step, dict(metrics)))

    def finish(self, summary):
        self.summary = dict(summary)


def test_numbers_of_nested_values():
    values = {"pass_at": {1: {"value": 0.5, "low": None}}, "n": 3, "ok": True, "name": "x", "nan": float("nan")}
    assert numbers_of(values) == {"pass_at/1/value": 0.5, "n": 3.0}


def test_an_unknown_tracker_offers_the_nearest():
    with pytest.raises(TrackerError, match=r"unknown tracker 'wandbb' \(did you mean 'wandb'\?\)"):
        make_tracker("wandbb", project="p", name="n")


@pytest.mark.parametrize("kind", TRACKERS)
def test_a_missing_package_is_named(kind, monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, kind, None)
    with pytest.raises(TrackerError, match=f"pip install {kind}"):
        make_tracker(kind, project="p", name="n", folder=tmp_path)


def test_a_tracker_that_blocks_or_fails_costs_the_run_nothing(caplog):
    release, inner = threading.Event(), Recorder()

    class Blocking(Recorder):
        def log(self, metrics, *, step):
            release.wait(10)
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


def test_trackers_are_told_how_a_run_goes_once_a_step():
    recorder = Recorder()
    progress = TrackedProgress(None, [recorder], seconds=0.0)
    state = ProgressState(name="b", total=4)
    progress.start(state)
    progress.update(state)
    state.done, state.scored, state.reward_sum = 2, 2, 1.0
    state.failures["timeout"] = 1
    progress.update(state)
    progress.finish(state)
    assert [step for step, _ in recorder.logged] == [0, 2]
    assert recorder.logged[-1][1]["mean_reward"] == 0.5
    assert recorder.logged[-1][1]["failures/timeout"] == 1.0


def test_an_evaluation_reports_its_progress_and_its_summary(tmp_path, monkeypatch):
    from strands_env.commands import eval as command

    recorder = Recorder()
    started = {}

    def make(kind, **options):
        started.update(options, kind=kind)
        return recorder

    monkeypatch.setattr(command, "make_tracker", make)
    options = [f"{HOOKS}:three_tasks", "--env", HOOKS, *FAST, "-o", str(tmp_path / "first")]
    assert evaluate(*options, "--track", "wandb", "--project", "mine") == 0
    assert (started["kind"], started["project"], started["name"]) == ("wandb", "mine", "first")
    assert recorder.logged[-1][0] == 3
    assert recorder.summary["mean_reward/value"] == 1.0


def test_a_wrong_name_on_the_command_line(capsys):
    with pytest.raises(SystemExit):
        evaluate("arithmetic", "--track", "wandbb")
    assert "did you mean 'wandb'?" in capsys.readouterr().err


# ---- the packages themselves, offline -------------------------------------------------------------------------------


def use(kind: str, folder) -> None:
    tracker = make_tracker(kind, project="project", name="run", config={"model": "m", "n": 4}, folder=folder)
    tracker.log({"reward": 0.25}, step=0)
    tracker.log({"reward": 0.5}, step=1)
    tracker.finish({"pass@1": 0.75})


def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    use("wandb", tmp_path)
    [written] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"strands/reward" in written.read_bytes()


def test_mlflow_in_a_file(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    use("mlflow", tmp_path)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    [run] = client.search_runs([client.get_experiment_by_name("project").experiment_id])
    assert run.data.metrics == {"reward": 0.5, "final/pass_at_1": 0.75}
    assert [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "reward")] == [
        (0, 0.25),
        (1, 0.5),
    ]


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


def test_trackio(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    pytest.importorskip("trackio")
    use("trackio", tmp_path)
    assert [path for path in tmp_path.rglob("*.db") if b"reward" in path.read_bytes()]
