"""What only Ray actors promise; `test_distributed_processes.py` has what both kinds of workers do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from strands_env.distributed import RayExecutor
from tests.unit.eval_support import task
from tests.unit.test_distributed_processes import HERE, PATH, cluster, needs_ray

__all__ = ["cluster"]


def test_without_ray_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
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
from strands_env.distributed import RayExecutor
from tests.unit.eval_support import task

async def main():
    async with RayExecutor({HERE + ":plain"!r}, n_workers=3) as executor:
        results = await asyncio.gather(*(executor.rollout(task(f"t{{i}}")) for i in range(3)))
        assert len(results) == 3 and ray.is_initialized()
    assert not ray.is_initialized()

asyncio.run(main())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**os.environ, **PATH}, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
