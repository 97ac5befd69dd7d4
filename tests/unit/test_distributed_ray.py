from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys

import pytest

from strands_env.core.termination import WorkCancelledError
from strands_env.distributed import RayExecutor, WorkerSetupError
from strands_env.eval import ConfigMismatchError, Evaluator, RetryPolicy
from tests.conftest import ROOT
from tests.unit.eval_support import task, tasks

HERE = "tests.unit.distributed_support"
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra 'ray')")
PATHS = {"runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}}}


@pytest.fixture(scope="module")
def cluster():
    """A Ray of its own that the executors join and must not stop."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20, **PATHS)
    yield ray
    ray.shutdown()


def test_without_ray_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install .*\[ray\]"):
        RayExecutor(f"{HERE}:plain")


@needs_ray
@pytest.mark.slow
async def test_rollouts_run_in_actors_and_come_back_whole(cluster):
    async with RayExecutor(f"{HERE}:plain", n_workers=2) as executor:
        results = await asyncio.gather(*(executor.rollout(task(f"t{i}")) for i in range(6)))
    assert len({result.observation.metrics["pid"] for result in results}) == 2
    assert [result.observation.final_response for result in results] == [f"answer t{i}" for i in range(6)]
    assert cluster.is_initialized()


@needs_ray
@pytest.mark.slow
async def test_a_dead_actor_costs_no_rollout(cluster, tmp_path):
    async with RayExecutor(f"{HERE}:deadly", {"folder": str(tmp_path)}, n_workers=2) as executor:
        evaluator = Evaluator(executor=executor, max_concurrency=4, retry=RetryPolicy(max_attempts=1), output_path=None)
        results = await evaluator.run(tasks(6))
    assert [samples[0].reward for samples in results.values()] == [1.0] * 6


@needs_ray
@pytest.mark.slow
async def test_a_task_that_ends_its_actors_is_found_and_takes_no_other_along(cluster):
    async with RayExecutor(f"{HERE}:poisoned", n_workers=2) as executor:
        evaluator = Evaluator(executor=executor, max_concurrency=6, retry=RetryPolicy(max_attempts=1), output_path=None)
        results = await evaluator.run(tasks(6))
    assert [samples[0].reward for name, samples in results.items() if name != "p1"] == [1.0] * 5
    assert "'p1_0' ended 2 workers" in results["p1"][0].step_result.error.message


@needs_ray
@pytest.mark.slow
async def test_a_task_that_holds_the_interpreter_is_found_and_takes_no_other_along(cluster):
    async with RayExecutor(f"{HERE}:holding", n_workers=1, stuck_after=3.0) as executor:
        evaluator = Evaluator(executor=executor, output_path=None, retry=RetryPolicy(max_attempts=1))
        results = await asyncio.wait_for(evaluator.run([task("stuck"), *tasks(3)]), 120)
    assert [results[f"p{number}"][0].reward for number in range(3)] == [1.0] * 3
    assert results["stuck"][0].aborted
    assert "did not respond for 3.0 s" in results["stuck"][0].step_result.error.message


@needs_ray
@pytest.mark.slow
async def test_a_factory_that_cannot_be_made_says_so(cluster):
    async with RayExecutor(f"{HERE}:broken", n_workers=1) as executor:
        with pytest.raises(WorkerSetupError, match="no such sandbox"):
            await executor.rollout(task("t0"))


@needs_ray
@pytest.mark.slow
async def test_an_actor_that_dies_at_its_start_is_started_again(cluster, tmp_path):
    async with RayExecutor(f"{HERE}:dies_at_start", {"folder": str(tmp_path)}, n_workers=1) as executor:
        results = await Evaluator(executor=executor, retry=RetryPolicy(delay=0.0), output_path=None).run(tasks(2))
    assert [samples[0].reward for samples in results.values()] == [1.0, 1.0]


@needs_ray
@pytest.mark.slow
async def test_what_one_rollout_does_costs_its_neighbours_nothing(cluster):
    async with RayExecutor(f"{HERE}:faulty", n_workers=1) as executor:
        neighbour = asyncio.create_task(executor.rollout(task("good")))
        with pytest.raises(WorkCancelledError):
            await executor.rollout(task("cancel"))
        with pytest.raises(ValueError, match=r"^bad task$"):
            await executor.rollout(task("value"))
        with pytest.raises(RuntimeError, match="OddError: a 2"):
            await executor.rollout(task("odd"))
        with pytest.raises(RuntimeError, match=r"sys.exit\(3\)"):
            await executor.rollout(task("exit"))
        assert (await neighbour).reward.reward == 1.0


@needs_ray
@pytest.mark.slow
async def test_another_environment_in_the_actors_is_refused(cluster, tmp_path):
    async def run(prompt: str, count: int) -> None:
        async with RayExecutor(f"{HERE}:prompted", {"prompt": prompt}, n_workers=1) as executor:
            await Evaluator(executor=executor, output_path=tmp_path, config={"env_factory": "mine"}).run(tasks(count))

    await run("one", 1)
    with pytest.raises(ConfigMismatchError, match=r"environment.system_prompt: 'one' in the file, now 'two'"):
        await run("two", 2)


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
from strands_env.distributed import RayExecutor
from tests.unit.eval_support import task

async def main():
    async with RayExecutor({HERE + ":plain"!r}, n_workers=3) as executor:
        results = await asyncio.gather(*(executor.rollout(task(f"t{{i}}")) for i in range(3)))
        assert len(results) == 3 and ray.is_initialized()
    assert not ray.is_initialized()

asyncio.run(main())
"""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
