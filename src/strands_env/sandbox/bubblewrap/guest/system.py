"""Calls to the operating system: limits, privileges, and the resources that processes of the sandbox use."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
_CAPABILITY_VERSION = 0x20080522
LIBC = ctypes.CDLL(None, use_errno=True)
PAGE = resource.getpagesize()
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

Processes = dict[int, list[bytes]]
"""By process id, the fields of `/proc/pid/stat` after the name."""


def check(result: int, what: str, path: str | None = None) -> None:
    """Raise the error of a call to the C library that failed."""
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}", path)


def prctl(option: int, value: int) -> None:
    """The Linux call of that name."""
    check(LIBC.prctl(option, value, 0, 0, 0), f"prctl({option}, {value})")


def capset(kept: Iterable[int]) -> None:
    """Keep these capabilities below 32 as effective and permitted ones, and no others in any set."""
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    sets[0] = sets[1] = sum(1 << number for number in kept)
    check(LIBC.capset(header, sets), "capset")


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
    close_off()


def close_off() -> None:
    """End with the parent, gain no privileges, and let nobody look inside; after a change of user, which clears it."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_DUMPABLE, 0)


class _Program(ctypes.Structure):
    """The kernel's `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def filter_calls(program: str) -> None:
    """Put a filter of system calls on this process, and all that it starts; none where the program is empty.

    Args:
        program: Of classic BPF, in hexadecimal.
    """
    if program:
        code = ctypes.create_string_buffer(bytes.fromhex(program), len(program) // 2)
        structure = _Program(len(program) // 16, ctypes.cast(code, ctypes.c_void_p))
        check(LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(structure), 0, 0), "seccomp")


_REMOVALS = 100
"""Walks of a removal that another process disturbs."""


def remove_tree(path: str) -> None:
    """Remove a file or folder, regardless of the permissions and the depth of its folders."""

    def leave(name: str, parent: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=parent)

    # Another process may remove it as well; what it took from under this walk is not there in the next.
    for _ in range(_REMOVALS):
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                os.unlink(path)
                return
            os.chmod(path, 0o700)
            for folder in each_folder(path, opens=True, leave=leave):
                for entry in folder.entries:
                    if not entry.is_dir(follow_symlinks=False):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(entry.name, dir_fd=folder.descriptor)
            os.rmdir(path)
        if not os.path.lexists(path):
            return
    raise OSError(errno.EBUSY, "others keep changing the folder", path)


class Folder(NamedTuple):
    """A step of a walk; open and true until the next."""

    descriptor: int
    names: list[str]
    """Of the folders on the way from the root, its own last; empty for the root."""
    entries: list[os.DirEntry[str]]
    mode: int
    """Its permissions, before it was opened."""


def each_folder(
    root: str | int, *, opens: bool = False, leave: Callable[[str, int], None] | None = None
) -> Iterator[Folder]:
    """Every folder of a tree, parents first.

    Foreign code makes folders deeper than a recursion may go and a path may be long, so one descriptor is open at a
    time: down by name, up by `..`. The cost is linear. Folders that vanish meanwhile are left out.

    Args:
        root: Its path, or an open descriptor, which stays open.
        opens: Permit the owner everything in each folder, which could not be entered otherwise.
        leave: Called for each folder below the root after all in it: with its name, and its parent's descriptor.

    Raises:
        OSError: The root cannot be read, or a folder was moved while it was walked.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    current = os.open(".", flags, dir_fd=root) if isinstance(root, int) else os.open(root, flags)
    names: list[str] = []
    mode = stat.S_IMODE(os.fstat(current).st_mode)
    parents: list[tuple[int, int]] = []  # by device and inode
    unseen: list[list[str]] = []  # by level, folders that are still to be walked
    try:
        while True:
            with os.scandir(current) as listed:
                entries = list(listed)
            yield Folder(current, names, entries, mode)
            unseen.append([entry.name for entry in entries if entry.is_dir(follow_symlinks=False)])
            below = -1
            while below < 0:
                while not unseen[-1]:
                    unseen.pop()
                    if not unseen:
                        return
                    parent = os.open("..", flags, dir_fd=current)
                    os.close(current)
                    current, status = parent, os.fstat(parent)
                    if (status.st_dev, status.st_ino) != parents.pop():
                        raise OSError(errno.EAGAIN, "a folder was moved while it was walked")
                    name = names.pop()
                    if leave is not None:
                        leave(name, current)
                name = unseen[-1].pop()
                with contextlib.suppress(OSError):
                    mode = stat.S_IMODE(os.lstat(name, dir_fd=current).st_mode)
                    if opens:
                        os.chmod(name, mode | 0o700, dir_fd=current)
                    below = os.open(name, flags, dir_fd=current)
            status = os.fstat(current)
            parents.append((status.st_dev, status.st_ino))
            names.append(name)
            os.close(current)
            current = below
    finally:
        os.close(current)


def other_processes(isolated: bool) -> Processes:
    """Every process of the sandbox but this one: its fields of `/proc/pid/stat` after the name."""
    processes: Processes = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                processes[int(name)] = file.read().rpartition(b")")[2].split()
    return processes if isolated else descendants(processes, [os.getpid()])


def descendants(processes: Processes, ancestors: Iterable[int]) -> Processes:
    """All descendants of these processes."""
    children: dict[int, list[int]] = {}
    for pid, fields in processes.items():
        children.setdefault(int(fields[1]), []).append(pid)
    below: Processes = {}
    pending = [*ancestors]
    while pending:
        for pid in children.pop(pending.pop(), ()):
            below[pid] = processes[pid]
            pending.append(pid)
    return below


def signal_all(number: int) -> None:
    """Send a signal to every other process, at one stroke."""
    assert os.getpid() == 1, "outside a process namespace it would reach everything of the user"
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, number)


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
