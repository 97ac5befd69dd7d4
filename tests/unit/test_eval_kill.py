"""kill -9 at random moments, then resume: nothing is lost, nothing is done twice, nothing differs."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from strands_env.eval import read_results
from tests.conftest import ROOT
from tests.unit import killed_run

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def start(folder: Path, kind: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.unit.killed_run", str(folder), kind]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def contents(folder: Path) -> dict[str, Any]:
    """Everything of the samples but their times, by identity."""
    found: dict[str, Any] = {}
    for sample in read_results(folder, with_tokens=True):
        assert sample.id not in found
        sample.duration_s = 0.0
        sample.attempts = 1
        found[sample.id] = sample
    return found


def size(folder: Path) -> int:
    path = folder / "results.jsonl"
    return path.stat().st_size if path.exists() else 0


def run_and_kill(folder: Path, kind: str, rng: random.Random) -> bool:
    """Run until the results have grown by a random number of bytes, then kill -9; whether it was killed in time."""
    target = size(folder) + rng.randint(0, 40_000)
    process = start(folder, kind)
    with process.stdout, process.stderr:
        assert process.stdout.readline() == "started\n"
        while process.poll() is None and size(folder) < target:
            time.sleep(0.001)
        process.kill()
        return process.wait() == -9


def resumed(folder: Path, kind: str) -> dict[str, Any]:
    """Let the run end, see that every sample was written once, and return them."""
    process = start(folder, kind)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    found = contents(folder)
    assert (folder / "results.jsonl").read_bytes().count(b"\n") == len(found)
    return found


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole")
    asyncio.run(killed_run.evaluate(str(folder), "inline"))
    results = contents(folder)
    assert len(results) == killed_run.TASKS * killed_run.SAMPLES
    return results


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills"), [("inline", 4), ("processes", 2)])
def test_killed_again_and_again_the_results_are_those_of_one_run(kind, kills, uninterrupted, tmp_path):
    """Here at a few moments; `tests/property/test_eval_simulation.py` crashes at every one."""
    rng = random.Random(0)
    assert any([run_and_kill(tmp_path, kind, rng) for _ in range(kills)])
    kept = set(contents(tmp_path)) if size(tmp_path) else set()
    assert resumed(tmp_path, kind) == uninterrupted
    assert kept <= set(uninterrupted)
