"""A disk, a clock and a scheduler decided by a seed: any schedule of an evaluation, and any crash, can be replayed.

`SimulatedDisk` takes the place of `os` in `strands_env.eval.store`: files in memory, each with what the device holds
for certain and with what was written since. A crash keeps the first and any part of the second: of a killed process
everything that was written, of a machine without power any blocks of any of the writes.
`SimulatedLoop` is an event loop whose time jumps to the next timer, that starts at any of the ready callbacks, and
that does the work of threads itself, at some later moment.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

BLOCK = 512


class CrashError(SystemExit):
    """The process or the machine stops here. Such an exit passes through callbacks of the event loop."""


@dataclass
class Inode:
    """A file: its content, what the device holds for certain, and the writes since."""

    number: int
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes]] = field(default_factory=list)  # (offset, data), or (length, None) for a cut


class SimulatedDisk:
    """The functions of `os` that the store uses, and a `crash` at a chosen operation.

    Args:
        seed: Decides what a power cut leaves.
        crash_at: Number of the operation that does not happen; None for no crash.
    """

    O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, SEEK_SET = (
        os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.SEEK_SET
    )  # fmt: skip

    def __init__(self, seed: int = 0, crash_at: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.crash_at = crash_at
        self.operations = 0
        self.log: list[str] = []
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self._open: dict[int, tuple[Inode | str, int]] = {}
        self._inodes = 0
        self._next_fd = 1000
        self.path = SimpleNamespace(exists=lambda path: str(path) in self._names)

    def getpid(self) -> int:
        return 1

    def makedirs(self, path: Any, exist_ok: bool = False) -> None: ...

    def _operation(self, name: str) -> None:
        if self.crash_at is not None and self.operations > self.crash_at:
            raise OSError(errno.EIO, "the machine has stopped")
        self.log.append(name)
        self.operations += 1
        if self.crash_at is not None and self.operations > self.crash_at:
            raise CrashError(name)

    def open(self, path: Any, flags: int, mode: int = 0o644) -> int:
        name = str(path)
        self._next_fd += 1
        if name not in self._names and not flags & self.O_CREAT:
            if any(other.startswith(name + "/") for other in self._names):
                self._open[self._next_fd] = (name, 0)  # a folder
                return self._next_fd
            raise FileNotFoundError(errno.ENOENT, "No such file", name)
        if name not in self._names:
            self._operation(f"create {Path(name).suffix}")
            self._inodes += 1
            self._names[name] = Inode(self._inodes)
        if flags & self.O_TRUNC:
            self._names[name].data.clear()
        self._open[self._next_fd] = (self._names[name], 0)
        return self._next_fd

    def close(self, fd: int) -> None:
        del self._open[fd]

    def _file(self, fd: int) -> Inode:
        inode = self._open[fd][0]
        assert isinstance(inode, Inode)
        return inode

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        return bytes(self._file(fd).data[offset : offset + length])

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        """Writes a part where the data is long, as a system may."""
        inode = self._file(fd)
        part = bytes(data[: 1 + self.rng.randrange(len(data))]) if self.rng.random() < 0.2 else bytes(data)
        try:
            self._operation("write")
        except CrashError:
            part = part[: self.rng.randrange(len(part))]
            self._apply(inode, offset, part)
            raise
        self._apply(inode, offset, part)
        return len(part)

    def _apply(self, inode: Inode, offset: int, part: bytes) -> None:
        inode.data.extend(bytes(max(0, offset + len(part) - len(inode.data))))
        inode.data[offset : offset + len(part)] = part
        inode.pending.append((offset, part))

    def ftruncate(self, fd: int, length: int) -> None:
        inode = self._file(fd)
        if length == len(inode.data):
            return
        self._operation("truncate")
        del inode.data[length:]
        inode.pending.append((length, b""))

    def fsync(self, fd: int) -> None:
        self._operation("fsync")
        held = self._open[fd][0]
        if isinstance(held, str):
            inside = {name: inode for name, inode in self._names.items() if name.startswith(held + "/")}
            self._durable_names = {
                name: inode for name, inode in self._durable_names.items() if not name.startswith(held + "/")
            } | inside
            return
        held.durable, held.pending = bytes(held.data), []

    def fstat(self, fd: int) -> Any:
        inode = self._file(fd)
        return SimpleNamespace(st_dev=1, st_ino=inode.number, st_size=len(inode.data))

    def stat(self, path: Any) -> Any:
        inode = self._names.get(str(path))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        return SimpleNamespace(st_dev=1, st_ino=inode.number, st_size=len(inode.data))

    def replace(self, source: Any, target: Any) -> None:
        self._operation("replace")
        self._names[str(target)] = self._names.pop(str(source))

    def unlink(self, path: Any) -> None:
        self._operation("unlink")
        self._names.pop(str(path), None)

    # ---- after a crash -----------------------------------------------------------------------------------------------

    def after_kill(self) -> SimulatedDisk:
        """The disk after the process was killed: everything that was written is there."""
        return self._restarted({name: bytes(inode.data) for name, inode in self._names.items()})

    def after_power_cut(self) -> SimulatedDisk:
        """The disk after the machine lost power: what was synced, and any blocks of the writes since.

        A name that was not synced is there or not. Blocks that were not written are zeros, or what they were before.
        """
        names = dict(self._durable_names)
        for name, inode in self._names.items():
            if names.get(name) is not inode and self.rng.random() < 0.5:
                names[name] = inode
        return self._restarted({name: self._torn(inode) for name, inode in names.items()})

    def _torn(self, inode: Inode) -> bytes:
        data = bytearray(inode.durable)
        for offset, part in inode.pending[: self.rng.randint(0, len(inode.pending))]:
            if not part:
                del data[offset:]
                continue
            data.extend(bytes(max(0, offset + len(part) - len(data))))
            for start in range(offset - offset % BLOCK, offset + len(part), BLOCK):
                first, last = max(start, offset), min(start + BLOCK, offset + len(part))
                if self.rng.random() < 0.7:
                    data[first:last] = part[first - offset : last - offset]
        return bytes(data)

    def _restarted(self, contents: dict[str, bytes]) -> SimulatedDisk:
        disk = SimulatedDisk(self.rng.randrange(2**32))
        for name, data in contents.items():
            self._inodes += 1
            inode = Inode(self._inodes, bytearray(data), data)
            disk._names[name] = disk._durable_names[name] = inode
        disk._inodes = self._inodes
        return disk


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose order and time a seed decides.

    Args:
        seed: The seed.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        if not ready and scheduled:
            # A cancelled timer must not be jumped to: the loop would drop it and really wait for the next one.
            self._now = max(self._now, min((timer._when for timer in scheduled if not timer._cancelled), default=0.0))
        if len(ready) > 1:
            first = self.rng.randrange(len(ready))
            ready.rotate(-first)
        super()._run_once()  # type: ignore[misc]

    def run_in_executor(self, executor: Any, function: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """The work happens at some later step, as a thread's would."""
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            try:
                value = function(*args)
            except CrashError:
                future.set_exception(OSError("the machine has stopped"))
                raise
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(value)

        self.call_later(self.rng.random() * 0.01, work)
        return future


def simulate(seed: int, main: Callable[[], Any]) -> Any:
    """The result of a coroutine on a `SimulatedLoop`. After a `CrashError` the tasks end without touching the disk."""
    loop = SimulatedLoop(seed)
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main())
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
