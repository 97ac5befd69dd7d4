"""Calls to the operating system: limits, privileges, and what the processes of the sandbox use."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import stat
import sys
from collections.abc import Iterable

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
_CAPABILITY_VERSION = 0x20080522
LINUX = sys.platform == "linux"
LIBC = ctypes.CDLL(None, use_errno=True)
PAGE = resource.getpagesize()
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

Processes = dict[int, list[bytes]]
"""By process id, the fields of `/proc/pid/stat` after the name."""


def prctl(option: int, value: int) -> None:
    """The Linux call of that name."""
    if LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def capset(kept: Iterable[int]) -> None:
    """Keep these capabilities below 32 as effective and permitted ones, and no others in any set."""
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    sets[0] = sets[1] = sum(1 << number for number in kept)
    if LIBC.capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def set_limit(name: str, value: int) -> None:
    """Lower a resource limit for good."""
    kind = getattr(resource, name)
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def drop_privileges(user: int | None) -> None:
    """Become an ordinary user without a capability in any set."""
    if user is not None:
        for capability in range(64):
            with contextlib.suppress(OSError):  # the kernel knows fewer
                prctl(PR_CAPBSET_DROP, capability)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        capset(())  # a change of user keeps the inheritable set
    if LINUX:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user clears it
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        prctl(PR_SET_DUMPABLE, 0)


def remove_tree(path: str) -> None:
    """Remove what is at a path, whatever permissions its folders have, and however deep they lie in each other.

    Foreign code can make folders deeper than a recursion may go, and than a path may be long.
    """
    if not os.path.lexists(path):
        return
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    count, pending = 0, [path]
    while pending:
        folder = pending[-1]
        with contextlib.suppress(OSError):  # of another user; then what follows says so
            os.chmod(folder, 0o700)
        with os.scandir(folder) as listed:
            entries = list(listed)
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            place, count = entry.path, count + 1
            if folder != path:
                with contextlib.suppress(OSError):  # a folder of an image below cannot move, and is not that deep
                    os.chmod(place, 0o700)
                    os.rename(place, f"{path}/.{count}.{os.getpid()}")
                    place = f"{path}/.{count}.{os.getpid()}"
            pending.append(place)
        if pending[-1] == folder:
            os.rmdir(pending.pop())


def other_processes(isolated: bool) -> Processes:
    """Every process of the sandbox but this one: its fields of `/proc/pid/stat` after the name."""
    found: Processes = {}
    if not LINUX:
        return found
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                found[int(name)] = file.read().rpartition(b")")[2].split()
    return found if isolated else descendants(found, os.getpid())


def descendants(processes: Processes, root: int) -> Processes:
    """The descendants of one process."""
    children: dict[int, list[int]] = {}
    for pid, fields in processes.items():
        children.setdefault(int(fields[1]), []).append(pid)
    found: Processes = {}
    pending = [root]
    while pending:
        for pid in children.get(pending.pop(), ()):
            found[pid] = processes[pid]
            pending.append(pid)
    return found


def is_stopped(pid: int) -> bool:
    """Every thread of the process is stopped."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] not in (b"T", b"t"):
                    return False
    except OSError:
        return False
    return True


def cpu_seconds(others: Processes) -> float:
    """CPU time of all processes of the sandbox so far, ended ones included."""
    times = os.times()
    ticks = sum(int(value) for fields in others.values() for value in fields[11:15])
    return times.children_user + times.children_system + ticks / TICKS_PER_SECOND


def memory_bytes(others: Processes, limit: int) -> int:
    """Memory of all processes. Shared pages are counted once where the cheap count is over the limit."""
    resident = {pid: int(fields[21]) * PAGE for pid, fields in others.items()}
    if sum(resident.values()) <= limit:
        return sum(resident.values())
    total = 0
    for pid, size in resident.items():
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                total += next(int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss:"))
        except (OSError, StopIteration):
            total += size
    return total


def file_count(paths: list[str]) -> int:
    """Files and folders on the sandbox's own file systems."""
    count = 0
    for path in paths:
        with contextlib.suppress(OSError):
            status = os.statvfs(path)
            count += status.f_files - status.f_ffree
    return count
