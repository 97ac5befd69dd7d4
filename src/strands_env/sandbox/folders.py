"""Folders that end with their owner: what a killed process leaves is found by its lock, and removed by its heir.

An owned folder has a file `lock` that its process keeps locked. The kernel gives the lock back however the process
ends, and it holds between containers that share the folder, where process ids mean nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import os
import tempfile
import time
from pathlib import Path

from .bubblewrap.cgroup import remove_groups
from .bubblewrap.process import discard
from .disk import unmount_disk
from .heir import announce

logger = logging.getLogger(__name__)

_held: dict[str, tuple[int, int]] = {}
"""By owned folder, the process that owns it (a fork does not) and the descriptor of its lock."""


def make_owned_folder(parent: str | os.PathLike[str], prefix: str) -> str:
    """A new folder that no other user can enter; what killed processes left under this prefix is removed first."""
    Path(parent).mkdir(parents=True, exist_ok=True)
    remove_orphans(parent, prefix)
    announce(os.path.join(os.path.abspath(parent), prefix))
    made = tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent)
    Path(made, "lock").touch(0o600)
    descriptor = lock(made)
    assert descriptor is not None, "nobody else knows the folder yet"
    folder = f"{made}.held"  # only now do others look for its lock
    os.rename(made, folder)
    atexit.unregister(_remove_held)
    atexit.register(_remove_held)
    _held[folder] = os.getpid(), descriptor
    return folder


def remove_owned_folder(folder: str) -> None:
    """Remove a folder of `make_owned_folder`, however deep code has made it."""
    _, descriptor = _held.pop(folder, (0, -1))
    _discard(folder)
    if descriptor >= 0:
        os.close(descriptor)


def remove_orphans(parent: str | os.PathLike[str], prefix: str) -> None:
    """Remove the folders under this prefix whose processes are gone."""
    for folder in Path(parent).glob(f"{prefix}*.held"):
        with contextlib.suppress(OSError):  # it is another user's, or another process was faster
            try:
                descriptor = lock(folder)
            except FileNotFoundError:  # its removal has begun, and may have been cut short
                _discard(str(folder))
                continue
            if descriptor is not None:
                logger.warning("folder=<%s> | removed what a killed process left", folder)
                _discard(str(folder))
                os.close(descriptor)


def remove_left(process: int, place: str, seconds: float = 10.0) -> None:
    """Remove the control groups of a process that has just ended, and its folders, by the beginning of their paths."""
    deadline, (parent, prefix) = time.monotonic() + seconds, os.path.split(f"{place}{process}-")
    while True:  # its sandboxes are ending, too
        if place:
            remove_orphans(parent, prefix)
        left = remove_groups(process) or (place and any(Path(parent).glob(f"{prefix}*.held")))
        if not left or time.monotonic() > deadline:
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


def _discard(folder: str) -> None:
    with contextlib.suppress(OSError):
        unmount_disk(folder)
    discard(folder)


def _remove_held() -> None:
    """Leave nothing of what was never closed when this process ends."""
    for folder in [folder for folder, (owner, _) in _held.items() if owner == os.getpid()]:
        remove_owned_folder(folder)
