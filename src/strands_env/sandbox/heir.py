"""What a killed process leaves, removed at once: a small program waits for the end of the process and cleans up.

The kernel ends a sandbox with its process, but not the mounts, loop devices, control groups and folders around it. On
an ordinary end the process removes these itself; after `kill -9` its heir does, or, if that is killed too, the next
process with a sandbox.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading

_CLEAN = "import sys; from strands_env.sandbox.folders import remove_left; remove_left(int(sys.argv[1]), sys.argv[2])"
_lock = threading.Lock()
_known: set[tuple[int, str]] = set()
"""What has an heir: places of processes, since a fork has none of its own."""


def announce(place: str = "") -> None:
    """Have what this process leaves removed: its control groups, and folders whose path begins like this."""
    process = os.getpid()
    with _lock:
        if (process, place) not in _known and sys.executable and (place or all(pid != process for pid, _ in _known)):
            _known.add((process, place))
            _start(process, place)


def _start(process: int, place: str) -> None:
    handle = -1
    with contextlib.suppress(OSError):  # a kernel without such descriptors, or no shell: the next process cleans up
        handle = os.pidfd_open(process)
        os.set_inheritable(handle, True)
        null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PATH": os.defpath}
        # By a shell that ends at once: nobody who waits for all children of this process waits for the heir.
        heir = [sys.executable, "-I", "-S", __file__, str(handle), str(process), place]
        shell = ["sh", "-c", '"$@" &', "sh", *heir]
        os.waitpid(os.posix_spawn("/bin/sh", shell, variables, file_actions=null, setsid=True), 0)
    if handle >= 0:
        os.close(handle)


if __name__ == "__main__":
    poll = select.poll()
    poll.register(int(sys.argv[1]), select.POLLIN)
    poll.poll()
    os.execv(sys.executable, [sys.executable, "-c", _CLEAN, *sys.argv[2:]])
