"""Containers in Ray's actors: each actor has its own, and takes them along."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strands_env.sandbox.images import ImagePool, ImageStore
from strands_env.sandbox.images.layers import containers_folder
from tests.conftest import ROOT
from tests.container_support import require_images

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra 'ray')"),
    pytest.mark.slow,
]
PATHS = {"runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}}}


class Keeper:
    """An actor with a pool: it takes a container, has something live on in it, and keeps another one ready."""

    async def take(self, root: str, mark: str) -> tuple[int, str]:
        """Number of this process, and what was in the container before."""
        pool = ImagePool.of_this_loop()
        pool.spare = 1
        self.sandbox = await pool.take(ImageStore().find(root), workdir="/app")
        seen = (await self.sandbox.exec(f"ls; touch {mark}; sleep {mark} > /dev/null 2>&1 &")).stdout
        while not any(pool._ready.values()):
            await asyncio.sleep(0.01)
        return os.getpid(), seen


@pytest.fixture
def ray() -> Iterator[Any]:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20, **PATHS)
    yield ray
    ray.shutdown()


def folders(pid: int) -> list[Path]:
    return list(containers_folder().glob(f"{pid}-*"))


def lives(mark: str) -> bool:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(entry.read_bytes() == f"sleep\0{mark}\0".encode())
        except OSError:
            continue
    return any(found)


def until(check: Any) -> None:
    for _ in range(600):
        if check():
            return
        time.sleep(0.05)
    raise AssertionError("it never came true")


def test_each_actor_has_a_pool_of_its_own_which_ends_with_it(ray: Any) -> None:
    root, actor = require_images(), ray.remote(Keeper)
    first, second = actor.options(num_cpus=0).remote(), actor.options(num_cpus=0).remote()
    (one, seen), (other, also) = ray.get([first.take.remote(root, "31001"), second.take.remote(root, "31002")])
    assert one != other and seen == also == ""
    assert len(folders(one)) == len(folders(other)) == 2 and lives("31001") and lives("31002")
    ray.kill(first)
    until(lambda: not lives("31001"))
    assert lives("31002")
    until(lambda: not Path(f"/proc/{one}").exists())
    assert ray.get(second.take.remote(root, "31003")) == (other, "")  # and finds what the killed one left
    assert not folders(one) and len(folders(other)) == 3
    ray.kill(second)
    until(lambda: not lives("31002") and not lives("31003") and not Path(f"/proc/{other}").exists())
