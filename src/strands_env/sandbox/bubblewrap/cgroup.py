"""A control group for a sandbox, where this process may make one: a limit on memory that the kernel itself keeps.

Without one the supervisor's own watch and the limits of each process hold; see `docs/sandbox.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "strands-env-"
_count = itertools.count()


class ControlGroup:
    """A group of one sandbox; one folder for each controller it needs."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders = folders

    def add(self, pid: int) -> None:
        """Move a process into the group, with all that it starts from now on."""
        for folder in self.folders.values():
            (folder / "cgroup.procs").write_text(str(pid))

    def oom_kills(self) -> int:
        """Processes that the kernel killed for lack of memory."""
        folder = self.folders["memory"]
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                for line in (folder / name).read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0

    async def remove(self) -> None:
        """Remove the folders, once the last process is gone."""
        for _ in range(50):
            for folder in self.folders.values():
                with contextlib.suppress(OSError):  # the kernel keeps those with a process
                    folder.rmdir()
            if not any(folder.exists() for folder in self.folders.values()):
                return
            await asyncio.sleep(0.02)
        logger.warning("group=<%s> | control group could not be removed", list(self.folders.values()))


def make_control_group(memory_bytes: int, processes: int, cpus: float | None = None) -> ControlGroup | None:
    """A new group with these limits, or None where that is not possible.

    Where there is a controller of processors, each group gets its share of them, however many processes it has.
    """
    name, parents = f"{_PREFIX}{os.getpid()}-{next(_count)}", _parents()
    if parents is None:
        return None
    folders = {controller: parent / name for controller, parent in parents.items()}
    memory = folders["memory"]
    try:
        for folder in set(folders.values()):  # version 2 has one for all
            folder.mkdir()
        is_new = (memory / "memory.max").exists()
        (memory / ("memory.max" if is_new else "memory.limit_in_bytes")).write_text(str(memory_bytes))
        (folders["pids"] / "pids.max").write_text(str(processes))
    except OSError as error:
        logger.debug("error=<%s> | no control group", error)
        for folder in folders.values():
            with contextlib.suppress(OSError):
                folder.rmdir()
        return None
    with contextlib.suppress(OSError):  # without swap there is nothing to limit
        swap = ("memory.swap.max", 0) if is_new else ("memory.memsw.limit_in_bytes", memory_bytes)
        (memory / swap[0]).write_text(str(swap[1]))
    if cpus is not None:
        quota = max(1_000, int(cpus * 100_000))
        with contextlib.suppress(OSError, KeyError):  # the group above does not hand the controller on
            if is_new:
                (memory / "cpu.max").write_text(f"{quota} 100000")
            else:
                (folders["cpu"] / "cpu.cfs_quota_us").write_text(f"{quota}")
    return ControlGroup(folders)


def remove_groups(process: int | None = None) -> bool:
    """Remove the groups that a process has left, or all processes that are gone; True if the kernel keeps one yet."""
    is_one_kept = False
    for parent in set((_parents() or {}).values()):
        with contextlib.suppress(OSError):
            for folder in parent.glob(f"{_PREFIX}*"):
                owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
                if owner == str(process) or (
                    process is None and owner.isdigit() and not os.path.exists(f"/proc/{owner}")
                ):
                    try:
                        folder.rmdir()
                    except OSError:
                        is_one_kept = True
    return is_one_kept


def _parents() -> dict[str, Path] | None:
    """Folders that may get a child group, by controller; None if a controller has none."""
    try:
        entries = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    parents: dict[str, Path] = {}
    # Version 1, for these alone: machines in hybrid mode, such as many virtual ones, have them nowhere else.
    for _, controllers, path in entries:
        for controller in ("memory", "pids", "cpu"):
            if controller in controllers.split(","):
                parents[controller] = _ROOT / controller / path.lstrip("/")
    if not parents:
        # Version 2. The own group has processes, so its children get no controllers; a sibling does where the parent
        # hands them on, and the root group's children always may.
        own = next((_ROOT / path.lstrip("/") for number, _, path in entries if number == "0"), None)
        for parent in () if own is None else (own, own.parent):
            with contextlib.suppress(OSError):
                if {"memory", "pids"} <= set((parent / "cgroup.subtree_control").read_text().split()):
                    parents = {"memory": parent, "pids": parent}
                    break
    parents = {controller: folder for controller, folder in parents.items() if os.access(folder, os.W_OK)}
    return parents if {"memory", "pids"} <= parents.keys() else None
