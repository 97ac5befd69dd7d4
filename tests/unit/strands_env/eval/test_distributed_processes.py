"""Rollouts in worker processes and in Ray actors, and what only one kind promises."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from strands_env.core import EpisodeTimeoutError, TerminationReason
from strands_env.core.termination import WorkCancelledError
from strands_env.eval import ConfigMismatchError, Evaluator, RetryPolicy, read_results
from strands_env.eval.executors import (
    ProcessExecutor,
    QuarantinedTaskError,
    RayExecutor,
    WorkerLostError,
    WorkerSetupError,
)
from tests.conftest import ROOT
from tests.unit import distributed_support
from tests.unit.eval_support import task, tasks

HERE = "tests.unit.distributed_support"
PATH = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
PATHS = {"runtime_env": {"env_vars": PATH}}
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra 'ray')")
IN_RAY = [needs_ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster():
    """A Ray of its own that the executors join and must not stop."""
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 2**20,
        **PATHS,
    )
    yield ray
    ray.shutdown()


@pytest.fixture(params=["processes", pytest.param("ray", marks=IN_RAY)])
def make_executor(request):
    """The executor: both kinds promise the same."""
    if request.param == "processes":
        return ProcessExecutor
    request.getfixturevalue("cluster")
    return RayExecutor


def evaluator_on(executor, **options) -> Evaluator:
    return Evaluator(executor=executor, retry=RetryPolicy(max_attempts=1), output_path=None, **options)


async def wait_for(path: Path) -> None:
    while not path.exists():
        await asyncio.sleep(0.01)


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def test_rollouts_run_in_every_worker_and_come_back_whole(make_executor):
    async with make_executor(f"{HERE}:plain", {"text": "hi"}, n_workers=2) as executor:
        results = await asyncio.gather(*(executor.rollout(task(f"t{i}")) for i in range(6)))
    assert {result.observation.metrics["pid"] for result in results}.isdisjoint({os.getpid()})
    assert len({result.observation.metrics["pid"] for result in results}) == 2
    assert [result.observation.final_response for result in results] == [f"hi t{i}" for i in range(6)]
    assert results[0].observation.tokens.loss_mask == [0, 0, 1, 1]


async def test_an_exception_that_does_not_pickle_stays_the_failure_it_is():
    async with ProcessExecutor(f"{HERE}:faulty", n_workers=1) as executor:
        evaluator = Evaluator(executor=executor, retry=RetryPolicy(max_attempts=2, delay=0.0), output_path=None)
        sample = (await evaluator.run([task("lost")]))["lost"][0]
    assert sample.step_result.termination_reason is TerminationReason.CONNECTION_ERROR
    assert (sample.attempts, sample.aborted) == (2, True)
    assert "LostConnectionError: a 2" in sample.step_result.error.message


async def test_a_factory_that_cannot_be_made_ends_the_evaluation(make_executor, tmp_path, capfd):
    async with make_executor(f"{HERE}:broken", n_workers=1) as executor:
        with pytest.raises(WorkerSetupError, match="no such sandbox") as caught:
            await Evaluator(executor=executor, output_path=tmp_path).run(tasks(3))
    assert "\n" not in str(caught.value)
    assert "in broken" in caught.value.__notes__[0]  # where it was raised
    assert list(read_results(tmp_path)) == []
    assert make_executor is RayExecutor or "no sandbox here" in capfd.readouterr().err  # a warning


async def test_a_worker_logs_at_the_level_of_its_parent(capfd):
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        async with ProcessExecutor(f"{HERE}:broken", n_workers=1) as executor:
            with pytest.raises(WorkerSetupError):
                await executor.rollout(task("t"))
    finally:
        root.setLevel(before)
    assert "no sandbox here" not in capfd.readouterr().err


async def test_a_task_that_ends_its_workers_is_found_and_takes_no_other_along(make_executor):
    async with make_executor(f"{HERE}:poisoned", n_workers=2) as executor:
        results = await evaluator_on(executor, max_concurrency=12).run(tasks(12))
        assert make_executor is RayExecutor or len(executor.pids) <= 2
    assert {name: samples[0].reward for name, samples in results.items() if name != "p1"} == {
        f"p{number}": 1.0 for number in range(12) if number != 1
    }
    lost = results["p1"][0]
    assert lost.aborted
    assert lost.step_result.error.type.endswith("QuarantinedTaskError")
    assert "'p1_0' ended 2 workers" in lost.step_result.error.message
    assert make_executor is RayExecutor or "status 7" in lost.step_result.error.message


async def test_a_worker_that_dies_before_a_child_of_it_is_lost_at_once(tmp_path):
    async with ProcessExecutor(f"{HERE}:forking", {"folder": str(tmp_path)}, n_workers=1) as executor:
        with pytest.raises(QuarantinedTaskError, match="signal 9"):
            await executor.rollout(task("t"))
    for child in (tmp_path / "child").read_text().split():
        while not is_gone(int(child)):  # killed with the group
            await asyncio.sleep(0.01)


async def test_a_task_that_holds_the_interpreter_is_found_and_takes_no_other_along(make_executor):
    async with make_executor(f"{HERE}:holding", n_workers=1, stuck_after=3.0) as executor:
        results = await evaluator_on(executor).run([task("stuck"), *tasks(3)])
    assert [results[f"p{number}"][0].reward for number in range(3)] == [1.0] * 3
    lost = results["stuck"][0]
    assert (lost.aborted, lost.reward) == (True, None)
    assert lost.step_result.error.type.endswith("QuarantinedTaskError")
    assert "did not respond for 3" in lost.step_result.error.message
    if make_executor is ProcessExecutor:
        assert "distributed_support.py" in lost.step_result.error.message  # the line that held it


FAULTS = [
    ("value", ValueError, "^bad task$"),
    ("unpicklable", RuntimeError, "UnpicklableError: held"),
    ("cancel", WorkCancelledError, "cancelled from inside"),
    ("odd", RuntimeError, "OddError: a 2"),
    ("exit", RuntimeError, r"sys.exit\(3\)"),
    ("panic", RuntimeError, "rollout raised Panic: in rust"),
    ("keyboard", RuntimeError, "rollout raised KeyboardInterrupt"),
    ("unreadable", RuntimeError, "cannot be read"),
]


async def test_what_one_rollout_does_costs_its_neighbours_nothing(make_executor):
    async with make_executor(f"{HERE}:faulty", n_workers=1) as executor:
        assert (await executor.rollout(task("good"))).reward.reward == 1.0
        pids = getattr(executor, "pids", None)
        for fault, error, message in FAULTS:
            neighbour = asyncio.create_task(executor.rollout(task("good")))
            with pytest.raises(error, match=message):
                await executor.rollout(task(fault))
            assert (await neighbour).reward.reward == 1.0, fault
        with pytest.raises(ValueError, match="cannot be read"):  # an action that cannot be read there
            await executor.rollout(task("t", held=distributed_support.Unreadable()))
        assert (await executor.rollout(task("good"))).reward.reward == 1.0
        assert getattr(executor, "pids", None) == pids


async def test_a_worker_that_dies_while_it_is_idle_is_started_again_and_no_task_is_blamed():
    async with ProcessExecutor(f"{HERE}:plain", n_workers=1) as executor:
        await executor.rollout(task("t0"))
        (pid,) = executor.pids
        os.kill(pid, signal.SIGKILL)
        while executor.pids:
            await asyncio.sleep(0.01)
        assert (await executor.rollout(task("t1"))).observation.final_response == "answer t1"
        assert (executor.pids != [pid], executor._deaths) == (True, {})


async def test_a_worker_that_dies_at_its_start_is_started_again(make_executor, tmp_path):
    async with make_executor(f"{HERE}:dies_at_start", {"folder": str(tmp_path)}, n_workers=1) as executor:
        results = await Evaluator(executor=executor, retry=RetryPolicy(delay=0.0), output_path=None).run(tasks(2))
    assert [samples[0].reward for samples in results.values()] == [1.0, 1.0]


# The factory of one environment and that of one for each task: in both kinds of workers the same code reads it.
@pytest.mark.parametrize(
    ("make_executor", "for_task"),
    [("processes", False), ("processes", True), pytest.param("ray", True, marks=IN_RAY)],
    indirect=["make_executor"],
)
async def test_another_environment_in_the_workers_is_refused(for_task, make_executor, tmp_path):
    def workers(prompt: str) -> Any:
        return make_executor(f"{HERE}:prompted", {"prompt": prompt, "for_task": for_task}, n_workers=1)

    async def run(executor: Any, count: int) -> None:
        await Evaluator(executor=executor, output_path=tmp_path, config={"env_factory": "mine"}).run(tasks(count))

    async with workers("one") as executor:
        await run(executor, 1)
        await run(executor, 3)
    async with workers("two") as executor:
        for count in (3, 4):  # without a sample that is left to run, and with one
            with pytest.raises(ConfigMismatchError, match=r"system_prompt: 'one' in the file, now 'two'"):
                await run(executor, count)
    assert len(list(read_results(tmp_path))) == 3


async def test_the_deadline_of_a_sample_is_kept_in_the_worker():
    async with ProcessExecutor(f"{HERE}:stuck", n_workers=1) as executor:
        with pytest.raises(EpisodeTimeoutError, match="setup took longer"):
            await executor.rollout(task("t"), timeout=0.05)


async def test_cancelling_a_rollout_and_closing_clean_up_and_leave_no_process(tmp_path):
    executor = ProcessExecutor(f"{HERE}:loud", {"folder": str(tmp_path)}, n_workers=1)
    rollout = asyncio.create_task(executor.rollout(task("t0")))
    await wait_for(tmp_path / "started-t0")
    pids = executor.pids
    rollout.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rollout
    await wait_for(tmp_path / "cleaned")
    (tmp_path / "cleaned").unlink()

    rollout = asyncio.create_task(executor.rollout(task("t1")))
    await wait_for(tmp_path / "started-t1")
    assert executor.pids == pids
    await executor.close()
    assert (tmp_path / "cleaned").exists()
    assert all(map(is_gone, pids))
    with pytest.raises(WorkerLostError):
        await rollout
    with pytest.raises(RuntimeError, match="closed"):
        await executor.rollout(task("t2"))


@pytest.mark.parametrize(
    ("make", "name", "begun", "cleaned"), [("loud", "t", "started-t", True), ("holding", "stuck", "stuck-*", False)]
)
async def test_workers_end_when_the_parent_is_killed(tmp_path, make, name, begun, cleaned):
    """Cleaned up where they can, and whatever holds their interpreter."""
    program = f"""
import asyncio, sys
from strands_env.eval.executors import ProcessExecutor
from tests.unit.eval_support import task

async def main():
    executor = ProcessExecutor({f"{HERE}:{make}"!r}, {{"folder": {str(tmp_path)!r}}}, n_workers=1)
    rollout = asyncio.create_task(executor.rollout(task({name!r})))
    while not executor.pids:
        await asyncio.sleep(0.01)
    print(executor.pids[0], flush=True)
    await rollout

asyncio.run(main())
"""
    command = [sys.executable, "-c", program]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **PATH})
    try:
        worker = int(parent.stdout.readline())
        while not list(tmp_path.glob(begun)):
            await asyncio.sleep(0.01)
        parent.send_signal(signal.SIGKILL)
        while not is_gone(worker):
            await asyncio.sleep(0.01)
        assert (tmp_path / "cleaned").exists() is cleaned
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        *((make, {}, ValueError, "module:function") for make in ("module", "module:", ":name")),
        (f"{HERE}:plain", {"n_workers": 0}, ValueError, "n_workers"),
        (f"{HERE}:plain", {"stuck_after": 0}, ValueError, "stuck_after"),
        (3, {}, TypeError, "function"),
    ],
)
def test_what_cannot_be_run_is_refused(make, options, error, message):
    with pytest.raises(error, match=message):
        ProcessExecutor(make, **options)


# ---- Ray alone ------------------------------------------------------------------------------------------------------


def test_without_ray_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install .*\[ray\]"):
        RayExecutor(f"{HERE}:plain")


@needs_ray
@pytest.mark.slow
async def test_closing_touches_only_its_own_actors(cluster):
    others = RayExecutor(f"{HERE}:plain", n_workers=1)
    await others.rollout(task("t0"))
    async with RayExecutor(f"{HERE}:plain", n_workers=1) as executor:
        await executor.rollout(task("t0"))
    assert (await others.rollout(task("t1"))).observation.final_response == "answer t1"
    await others.close()
    assert cluster.is_initialized()


@needs_ray
@pytest.mark.slow
def test_ray_is_started_once_and_stopped_by_who_started_it():
    """In a process of its own: this one has a Ray already."""
    program = f"""
import asyncio, ray
from strands_env.eval.executors import RayExecutor
from tests.unit.eval_support import task

async def main():
    async with RayExecutor({HERE + ":plain"!r}, n_workers=2) as executor:
        results = await asyncio.gather(*(executor.rollout(task(f"t{{i}}")) for i in range(2)))
        assert len(results) == 2 and ray.is_initialized()
    assert not ray.is_initialized()

asyncio.run(main())
"""
    command = [sys.executable, "-c", program]
    own = {"RAY_ADDRESS": "local"}  # not the cluster of a test beside this one
    done = subprocess.run(command, env={**os.environ, **PATH, **own}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
