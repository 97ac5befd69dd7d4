"""The chaos benchmark, small: it holds what it promises, and its verdict is not always good."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import Any

import pytest
from benchmarks import chaos

from tests.conftest import ROOT


def test_rollouts_through_faults_equal_the_fault_free_run_and_leave_nothing_behind() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.chaos", "--quick"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert '"violations": []' in result.stdout


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda one: None, None),
        (lambda one: one.digests.__setitem__(1, None), "1 rollouts lost"),
        (lambda one: one.digests.__setitem__(1, b"other"), "1 trajectories differ"),
        (lambda one: one.request_ids.append("r1"), "1 requests recorded twice"),
        (lambda one: one.request_ids.append("never answered"), "never answered"),
        (lambda one: one.stats["rids"].append("r1"), "1 request ids sent twice"),
        (lambda one: one.left.update(tasks=1), "1 tasks left over"),
        (lambda one: setattr(one, "rss_mb", 200.0), "memory grew by 100 MB"),
        (lambda one: one.stats["injected"].clear(), "no busy was injected"),
    ],
)
def test_the_verdict_finds_what_is_wrong(spoil, words, monkeypatch):
    options = argparse.Namespace(rollouts=20, turns=10)  # only 503s are frequent enough to be expected
    monkeypatch.setattr(chaos, "FAULTS", {**dict.fromkeys(chaos.FAULTS, 0.0), "busy": 0.06})

    def a_round(name: str) -> Any:
        return chaos.Round(
            name=name,
            digests=[b"a", b"b"],
            request_ids=["r1", "r2"],
            stats={"rids": ["r1", "r2", "r3"], "answered": ["r1", "r2"], "injected": {"busy": 1}, "restarts": 1},
            left={"requests": 0, "connections": 0, "tasks": 0, "files": 0},
            rss_mb=100.0,
        )

    rounds = [a_round("chaos 1"), a_round("chaos 2")]
    spoil(rounds[1])
    found = chaos.violations(a_round("calm"), rounds, options)
    assert len(found) == (words is not None)
    assert words is None or words in found[0]
