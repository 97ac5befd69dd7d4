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
        timeout=150,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert '"violations": []' in result.stdout


def _lose(one: Any) -> None:
    one.digests[1] = None


def _differ(one: Any) -> None:
    one.digests[1] = b"other"


def _repeat(one: Any) -> None:
    one.request_ids.append("r1")


def _invent(one: Any) -> None:
    one.request_ids.append("never answered")


def _reuse(one: Any) -> None:
    one.stats["rids"].append("r1")


def _leak(one: Any) -> None:
    one.left["tasks"] = 1


def _grow(one: Any) -> None:
    one.rss_mb = 200.0


def _stay_calm(one: Any) -> None:
    one.stats["injected"].clear()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (None, None),
        (_lose, "1 rollouts lost"),
        (_differ, "1 trajectories differ"),
        (_repeat, "1 requests recorded twice"),
        (_invent, "never answered"),
        (_reuse, "1 request ids sent twice"),
        (_leak, "1 tasks left over"),
        (_grow, "memory grew by 100 MB"),
        (_stay_calm, "no busy was injected"),
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
    if spoil is not None:
        spoil(rounds[1])
    found = chaos.violations(a_round("calm"), rounds, options)
    assert len(found) == (spoil is not None)
    assert words is None or words in found[0]
