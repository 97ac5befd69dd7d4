"""Shared by the sandbox tests: small limits, and the proof that nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from strands_env.core.threads import default_threads
from strands_env.sandbox import (
    BubblewrapSandbox,
    ExecResult,
    Sandbox,
    SandboxCapabilities,
    SandboxError,
    SandboxLimits,
    SandboxUnavailableError,
)
from strands_env.sandbox.bubblewrap import cgroup
from strands_env.sandbox.bubblewrap import command as bubblewrap

MIB = 1 << 20
LIMITS = SandboxLimits(
    wall_seconds=10.0,
    cpu_seconds=10.0,
    memory_bytes=192 * MIB,
    disk_bytes=32 * MIB,
    file_bytes=16 * MIB,
    files=2_000,
    processes=32,
    output_bytes=4096,
    flood_bytes=2 * MIB,
)
NO_ISOLATION = "none-i-accept-the-risk"


def unavailable() -> str | None:
    """Why there is no isolation here, or None."""
    try:
        BubblewrapSandbox()
    except SandboxUnavailableError as error:
        return str(error)
    return None


requires_isolation = pytest.mark.skipif(unavailable() is not None, reason=f"no isolation here: {unavailable()}")


async def assert_nothing_left(before: dict[str, set[str]]) -> None:
    """Returns once nothing exists that did not before."""
    while any(found - before[kind] for kind, found in leftovers().items()):
        await asyncio.sleep(0.02)


def leftovers() -> dict[str, set[str]]:
    """Everything a sandbox could leave behind on this machine."""
    children = {f"{child.pid} {child.name()}" for child in psutil.Process().children(recursive=True)}
    home = f"{tempfile.gettempdir()}/strands-env-sandbox-{os.getpid()}-"
    for process in psutil.process_iter(["environ"]):  # orphans, too
        if ((process.info["environ"] or {}).get("HOME") or "").startswith(home):
            children.add(f"{process.pid} {process.name()}")
    groups = {
        str(folder)
        for parent in (cgroup._parents() or {}).values()
        for folder in parent.glob(f"strands-env-{os.getpid()}-*")
    }
    return {
        "processes": children,
        "descriptors": _descriptors(),
        "folders": {str(path) for path in Path(tempfile.gettempdir()).glob(f"strands-env-sandbox-{os.getpid()}-*")},
        "groups": groups,
        "threads": {str(thread.ident) for thread in threading.enumerate() if thread.name != "strands-env"},
        "calls": {f"call {number}" for number in range(default_threads.running)},  # their threads serve the next ones
    }


def _descriptors() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor is gone
            found.add(f"{number}: {os.readlink(f'/proc/self/fd/{number}')}")
    return found


def system_python() -> str | None:
    """An interpreter every user can run, for sandboxes that cannot read this one's folder."""
    path = "/usr/bin/python3"
    try:
        bubblewrap.python_home(path)
    except SandboxUnavailableError:
        return None
    return path


class FolderSandbox(Sandbox):
    """A sandbox without an interpreter that lasts: no more than `Sandbox` asks for.

    `failure` is raised by every call, as by a sandbox that cannot start.
    """

    def __init__(self, *, failure: SandboxError | None = None, **limits: Any) -> None:
        self._inner = BubblewrapSandbox(limits=SandboxLimits(**limits), isolation=NO_ISOLATION)
        self._failure = failure
        self.is_closed = False

    @property
    def capabilities(self) -> SandboxCapabilities:
        return self._inner.capabilities

    def sibling(self) -> FolderSandbox:
        return FolderSandbox()

    async def exec(self, command: str | Sequence[str], **options: Any) -> ExecResult:
        if self._failure is not None:
            raise self._failure
        return await self._inner.exec(command, **options)

    async def read_file(self, path: str, **options: Any) -> bytes:
        return await self._inner.read_file(path, **options)

    async def write_file(self, path: str, content: str | bytes, **options: Any) -> None:
        await self._inner.write_file(path, content)

    async def close(self) -> None:
        self.is_closed = True
        await self._inner.close()
