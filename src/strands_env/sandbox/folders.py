"""Folders that end with their owner: those of a killed process are found by their locks, and removed by its heir.

An owned folder has a file `lock` that its process keeps locked. The kernel gives the lock back however the process
ends, and it holds between containers that share the folder, where process ids mean nothing.

The kernel ends a sandbox with its process, but not the mounts, loop devices, control groups and folders around it. On
an ordinary end the process removes these itself; after `kill -9` its heir does, a small program that waits for its end,
or, if that is killed too, the next process with a sandbox.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from .bubblewrap.cgroup import remove_groups
from .bubblewrap.guest.system import remove_tree
from .disk import unmount_disk

logger = logging.getLogger(__name__)

_HEIR = (
    "import os, select, sys; poll = select.poll(); poll.register(int(sys.argv[1]), select.POLLIN); poll.poll(); "
    "os.execv(sys.executable, [sys.executable, '-c', *sys.argv[2:]])"
)
_CLEAN = "import sys; from strands_env.sandbox.folders import remove_left; remove_left(int(sys.argv[1]), sys.argv[2])"
_heirs: set[tuple[int, str]] = set()
"""Processes and places that have an heir; a fork does not inherit one."""
_heirs_lock = threading.Lock()
_held: dict[str, tuple[int, int]] = {}
"""By owned folder, the process that owns it (a fork does not) and the descriptor of its lock."""


def announce(place: str = "") -> None:
    """Have the remains of this process removed: its control groups, and folders whose path begins like this.

    The first time, the control groups of processes that are gone are removed.
    """
    process = os.getpid()
    with _heirs_lock:
        if (process, place) in _heirs or not sys.executable or (not place and any(pid == process for pid, _ in _heirs)):
            return
        _heirs.add((process, place))
        remove_groups()
        handle = -1
        with contextlib.suppress(OSError):  # an old kernel, or no shell: the next process cleans up
            handle = os.pidfd_open(process)
            os.set_inheritable(handle, True)
            null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
            variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PATH": os.defpath}
            heir = [sys.executable, "-I", "-S", "-c", _HEIR, str(handle), _CLEAN, str(process), place]
            # By a shell that ends at once: nobody who waits for all children of this process waits for the heir.
            shell = ["sh", "-c", '"$@" &', "sh", *heir]
            os.waitpid(os.posix_spawn("/bin/sh", shell, variables, file_actions=null, setsid=True), 0)
        if handle >= 0:
            os.close(handle)


def make_owned_folder(parent: str | os.PathLike[str], prefix: str) -> str:
    """A new folder that no other user can enter; folders of killed processes under this prefix are removed first."""
    Path(parent).mkdir(parents=True, exist_ok=True)
    remove_orphans(parent, prefix)
    announce(os.path.join(os.path.abspath(parent), prefix))
    new_folder = tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent)
    Path(new_folder, "lock").touch(0o600)
    descriptor = lock(new_folder)
    assert descriptor is not None, "nobody else knows the folder yet"
    folder = f"{new_folder}.held"  # only now do others look for its lock
    os.rename(new_folder, folder)
    atexit.unregister(_remove_held)
    atexit.register(_remove_held)
    _held[folder] = os.getpid(), descriptor
    return folder


def remove_owned_folder(folder: str) -> None:
    """Remove a folder of `make_owned_folder`, however deep code has made it."""
    _, descriptor = _held.pop(folder, (0, -1))
    _discard_owned(folder)
    if descriptor >= 0:
        os.close(descriptor)


def remove_orphans(parent: str | os.PathLike[str], prefix: str) -> None:
    """Remove the folders under this prefix whose processes are gone."""
    for folder in Path(parent).glob(f"{prefix}*.held"):
        with contextlib.suppress(OSError):  # it is another user's, or another process was faster
            try:
                descriptor = lock(folder)
            except FileNotFoundError:  # its removal has begun, and may have been cut short
                _discard_owned(str(folder))
                continue
            if descriptor is not None:
                logger.warning("folder=<%s> | removed what a killed process left", folder)
                _discard_owned(str(folder))
                os.close(descriptor)


def remove_left(process: int, place: str, seconds: float = 10.0) -> None:
    """Remove the control groups of a process that has just ended, and its folders, by the beginning of their paths."""
    deadline, (parent, prefix) = time.monotonic() + seconds, os.path.split(f"{place}{process}-")
    while True:  # its sandboxes are ending, too
        if place:
            remove_orphans(parent, prefix)
        is_something_left = remove_groups(process) or (place and any(Path(parent).glob(f"{prefix}*.held")))
        if not is_something_left or time.monotonic() > deadline:
            return
        time.sleep(0.05)


def lock(folder: str | os.PathLike[str], *, shared: bool = False) -> int | None:
    """Lock a folder by its file `lock`, until the descriptor is closed; None where another has it locked.

    Raises:
        FileNotFoundError: It has none. A removal takes that file first, so nobody locks a folder that is going.
    """
    descriptor = os.open(Path(folder, "lock"), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


def discard(folder: str) -> None:
    """Remove a folder of foreign code; files that cannot be removed stay."""
    try:
        remove_tree(folder)
    except OSError as error:
        logger.warning("folder=<%s>, error=<%s> | a sandbox's folder could not be removed", folder, error)


def _discard_owned(folder: str) -> None:
    with contextlib.suppress(OSError):
        unmount_disk(folder)
    discard(folder)


def _remove_held() -> None:
    """Remove the folders that were never closed when this process ends."""
    for folder in [folder for folder, (owner, _) in _held.items() if owner == os.getpid()]:
        remove_owned_folder(folder)
