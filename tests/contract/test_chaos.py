"""The chaos benchmark, small: it holds what it promises, and its verdict is not always good."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import ROOT


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "chaos.py"), "--timeout", "3", *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )


def test_rollouts_through_faults_equal_the_fault_free_run_and_leave_nothing_behind() -> None:
    result = chaos("--rollouts", "60", "--turns", "5")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "every trajectory equal" in result.stdout


def test_without_retries_rollouts_are_lost_and_the_verdict_says_so() -> None:
    result = chaos("--rollouts", "30", "--turns", "3", "--rounds", "1", "--max-retries", "0")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "rollouts lost" in result.stdout
    assert "verdict: violated" in result.stdout
