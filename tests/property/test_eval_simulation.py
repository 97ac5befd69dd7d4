"""Hundreds of schedules of an evaluation on a simulated disk, clock and event loop; a failing seed replays exactly.

SIMULATION_SEEDS=20000 pytest tests/property/test_eval_simulation.py      # more schedules
SIMULATION_FIRST=1234 SIMULATION_SEEDS=1 pytest ...                       # one of them again
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strands_env.core import Action, TerminationReason
from strands_env.eval import Evaluator, RetryPolicy, StoreCorruptError, read_results, verify, verify_run
from strands_env.eval.store import ResultLog, config, results
from strands_sglang import lines
from tests.unit.eval_support import FakeEnv, outcome, task, with_tokens
from tests.unit.simulation import CrashError, SimulatedDisk, simulate

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "400"))
FIRST = int(os.environ.get("SIMULATION_FIRST", "0"))
PART = 100
OUTPUT = Path("/simulated/run/results.jsonl")


@pytest.fixture(autouse=True)
def _no_system(monkeypatch):
    monkeypatch.setattr(results, "lock", lambda fd: None)
    monkeypatch.setattr(config, "versions", lambda: {"python": "3"})
    monkeypatch.setattr("strands_env.eval.run.sampling.time", SimpleNamespace(perf_counter=lambda: 0.0))
    monkeypatch.setattr("strands_env.eval.run.sampling.logger.disabled", True)
    monkeypatch.setattr("strands_env.eval.run.run.logger.disabled", True)


@dataclass
class Scenario:
    """The choices of a seed."""

    seed: int
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = rng = random.Random(self.seed)
        self.tasks = [task(f"t{number}") for number in range(rng.randint(1, 5))]
        self.samples = rng.randint(1, 2)
        self.concurrency = rng.randint(1, 6)
        self.keep_tokens = rng.random() < 0.5
        self.fsync_interval = rng.choice([0.0, 0.0, 3600.0, None])
        self.trouble = rng.choice([0.0, 0.3])
        self.runs: Counter[str] = Counter()

    def answer(self, name: str) -> Any:
        """The environment's result for a sample, the same each time."""
        rng = random.Random(f"{self.seed} {name}")
        result = outcome(round(rng.random(), 3), text=f"{name} {'x' * rng.choice([0, 300, 2000])}")
        return with_tokens(result) if self.keep_tokens else result

    def environment(self) -> FakeEnv:
        def answer(action: Action) -> Any:
            name = action.task_context.id
            self.runs[name] += 1
            if self.rng.random() < self.trouble:
                return ConnectionError("down")
            return self.answer(name)

        return FakeEnv(answer, delay=self.rng.random())

    def evaluator(self, progress: Any = None) -> Evaluator:
        return Evaluator(
            self.environment,
            n_samples_per_prompt=self.samples,
            max_concurrency=self.concurrency,
            keep_tokens=self.keep_tokens,
            output_path=OUTPUT,
            retry=RetryPolicy(max_attempts=2, delay=0.1, jitter=0.0),
            fsync_interval=self.fsync_interval,
            progress=progress,
        )


class Saved:
    """Counts the samples that a run reported as saved."""

    count = 0

    def start(self, state: Any) -> None: ...

    def update(self, state: Any) -> None:
        self.count = state.resumed + state.done

    def finish(self, state: Any) -> None: ...


@contextmanager
def running_on(disk: SimulatedDisk) -> Iterator[None]:
    for module in (config, results, lines, verify):
        module.os = disk  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in (config, results, lines, verify):
            module.os = os  # type: ignore[attr-defined]


def on(disk: SimulatedDisk, seed: int, scenario: Scenario, progress: Saved, stop_at: float | None = None) -> Any:
    async def main() -> Any:
        evaluator = scenario.evaluator(progress)
        if stop_at is not None:
            asyncio.get_running_loop().call_later(stop_at, evaluator.stop)
        return await evaluator.run(scenario.tasks)

    with running_on(disk):
        return simulate(seed, main)


def check_file(disk: SimulatedDisk, scenario: Scenario, at_least: int) -> set[str]:
    """Whatever happened: what is in the file is right, and what was said to be saved is there."""
    disk.crash_at = None
    with running_on(disk):
        log = ResultLog(scenario.evaluator().paths)
        assert len(log) >= at_least, "a saved sample is lost"
        final = set()
        for sample in read_results(OUTPUT, with_tokens=scenario.keep_tokens):
            name = sample.action.task_context.id
            if sample.aborted:
                assert sample.step_result.termination_reason is TerminationReason.CONNECTION_ERROR
                continue
            assert name not in final, "a sample is there twice"
            final.add(name)
            assert sample.step_result == scenario.answer(name)
        log.close()
        return final


def schedule(seed: int) -> tuple[list[str], bytes]:
    """One schedule: runs that end at any operation on the disk, and one that does not."""
    scenario = Scenario(seed)
    rng = scenario.rng
    disk = SimulatedDisk(seed)
    log: list[str] = []
    final: set[str] = set()
    for _ in range(rng.randint(1, 3)):
        disk.operations, disk.crash_at = 0, rng.randint(0, 40)
        progress = Saved()
        scenario.runs.clear()
        power_cut = rng.random() < 0.5
        try:
            stop_at = rng.random() if rng.random() < 0.3 else None
            on(disk, rng.randrange(2**32), scenario, progress, stop_at)
        except CrashError:
            log += disk.log
            disk = disk.after_power_cut() if power_cut else disk.after_kill()
        else:
            power_cut = False
        assert not final & set(scenario.runs), "a saved sample was run again"
        is_durable = not power_cut or scenario.fsync_interval == 0.0
        try:
            final = check_file(disk, scenario, progress.count if is_durable else 0)
        except StoreCorruptError:
            if is_durable or scenario.fsync_interval is not None:
                raise
            return log, b""  # nothing was ever synced: refused, not misread
    scenario.trouble = 0.0
    scenario.runs.clear()
    found = on(disk, rng.randrange(2**32), scenario, Saved())
    assert not final & set(scenario.runs), "a saved sample was run again"
    assert sum(map(len, found.values())) == len(scenario.tasks) * scenario.samples
    assert len(check_file(disk, scenario, len(scenario.tasks) * scenario.samples)) == (
        len(scenario.tasks) * scenario.samples
    )
    with running_on(disk):
        assert verify_run(OUTPUT).is_intact
        return log + disk.log, disk.pread(disk.open(OUTPUT, disk.O_RDONLY), 10**9, 0)


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, PART))
def test_no_schedule_loses_doubles_or_changes_a_sample(first):
    for seed in range(first, min(first + PART, FIRST + SEEDS)):
        try:
            schedule(seed)
        except BaseException as error:
            error.add_note(f"schedule {seed}: SIMULATION_FIRST={seed} SIMULATION_SEEDS=1")
            raise


@pytest.mark.parametrize("seed", [3, 14, 15])
def test_a_schedule_replays_exactly(seed):
    assert schedule(seed) == schedule(seed)


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_crash_at_every_operation_loses_nothing_that_was_saved(power_cut):
    at, crashed = 0, True
    while crashed:
        scenario = Scenario(8)
        scenario.keep_tokens, scenario.fsync_interval, scenario.trouble = True, 0.0, 0.0
        scenario.tasks, scenario.samples = [task(f"t{number}") for number in range(4)], 1
        disk, progress = SimulatedDisk(at, crash_at=at), Saved()
        try:
            on(disk, 1, scenario, progress)
            crashed = False
        except CrashError:
            disk = disk.after_power_cut() if power_cut else disk.after_kill()
        check_file(disk, scenario, progress.count)
        at += 1
    assert at > 15
