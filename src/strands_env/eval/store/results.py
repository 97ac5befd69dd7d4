"""The results file of a run: append-only, one line a sample, readable after a cut at any byte."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Self, overload

from strands_env.core import Phase, Trajectory
from strands_env.core.deadline import run_shielded
from strands_env.eval.errors import StoreCorruptError, StoreError, StoreLockedError, naming_errors
from strands_env.eval.sample import EvalSample
from strands_env.eval.store.config import StorePaths, expected_samples, load_run, sync_folder
from strands_env.eval.store.line import Entry, Line, read_entry, read_sample, write_sample
from strands_sglang.lines import append_lines, lock, read_lines

logger = logging.getLogger(__name__)

MAX_PENDING = 4096  # samples that may wait for the device before `append` waits too
GROUP_SECONDS = 0.01  # from the start of a batch to that of the next, at least, while samples keep coming
# Lines that are made at once, for which the processor has the code at hand; those of more would keep samples waiting.
MADE_TOGETHER = 8
# A batch that takes so long may wait for the interpreter: the event loop makes way for the thread, so often, so long.
LONG_BATCH, MAKES_WAY_EVERY, MAKES_WAY_SECONDS = 0.012, 0.003, 0.0002


def scan(fd: int, path: Path, damages: list[str] | None = None) -> Iterator[Entry]:
    """The entries of an open results file, those that were superseded too; the remains of a crash are left out.

    Before the last whole line only a power cut leaves such remains, among lines that were not yet synced: a warning
    names them as long as samples of the run are missing. An empty line is none.

    Args:
        damages: Gets a sentence for each damaged line and each such remain, in place of errors and warnings.

    Raises:
        StoreError: A line is damaged, or of something else.
    """
    torn: list[int] = []
    holes: list[int] = []
    ids: set[bytes] = set()
    for number, (offset, line) in enumerate(read_lines(fd), 1):
        try:
            entry = read_entry(line, offset)
        except StoreError as error:
            damage = f"line {number} of {str(path)!r}: {error}"
            if damages is None:
                raise type(error)(damage) from error
            damages.append(damage)
            continue
        if entry is None:
            torn += [number] if line.strip() else []
            continue
        holes += torn
        torn = []
        ids.add(entry.id)
        yield entry
    if holes:
        document = None
        with suppress(StoreError):  # who reads the configuration says so
            document = load_run(StorePaths.of(path).run)
        if len(ids) >= expected_samples(document):  # what stood there has run again
            return
        if damages is not None:
            zeros = "zeros in place of a sample; a resume runs it again"
            damages += [f"line {number} of {str(path)!r}: {zeros}" for number in holes]
            return
        lines = ", ".join(map(str, holes[:5])) + (", ..." if len(holes) > 5 else "")
        logger.warning("path=<%s>, lines=<%s> | zeros in place of samples, which a resume runs again", path, lines)


# ---- reading ---------------------------------------------------------------------------------------------------------


class ResultReader:
    """Reads the samples of a run, finished or not, without locking or changing its file.

    Args:
        output_path: The `.jsonl` file or its folder.

    Raises:
        FileNotFoundError: There are no results.
        StoreError: They cannot be opened.
    """

    def __init__(self, output_path: str | Path) -> None:
        self.paths = StorePaths.of(output_path)
        with naming_errors("read", self.paths.results):
            self.fd = os.open(self.paths.results, os.O_RDONLY)
        # Once, at the latest with the reader itself: `LazySamples` share one that nobody else holds.
        self.close = weakref.finalize(self, os.close, self.fd)

    @cached_property
    def entries(self) -> list[Entry]:
        """Every sample in the order in which they were finished; of one that was tried again the last.

        Raises:
            StoreCorruptError: A line is damaged, or the file holds something else.
        """
        entries: dict[bytes, Entry] = {}
        with naming_errors("read", self.paths.results):
            for entry in scan(self.fd, self.paths.results):
                entries.pop(entry.id, None)  # so that it counts where it was tried last
                entries[entry.id] = entry
        return list(entries.values())

    def in_task_order(self) -> list[Entry]:
        """The entries by the place of their task in the data, then by index."""
        return in_task_order(self.entries)

    def read(self, entry: Entry, *, with_tokens: bool = False) -> EvalSample:
        """The sample of an entry; `StoreCorruptError` where the file was changed meanwhile, or its tokens are wrong."""
        with naming_errors("read", self.paths.results):
            line = os.pread(self.fd, entry.length, entry.offset)
        try:
            return read_sample(line, with_tokens=with_tokens)
        except StoreCorruptError as error:
            where = f"sample {entry.prompt_id}/{entry.index} of {str(self.paths.results)!r}"
            raise StoreCorruptError(f"{where} cannot be read, or was changed meanwhile: {error}") from error

    def trajectories(self, limit: int | None = None) -> Iterator[tuple[str, Trajectory]]:
        """The recorded trajectories of all samples, or of the first, each with the name of its sample."""
        for entry in self.entries[:limit]:
            for item in self.read(entry, with_tokens=True).step_result.recorded_trajectories:
                yield f"{entry.prompt_id}/{entry.index}", item

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def in_task_order(entries: Sequence[Entry]) -> list[Entry]:
    """Entries by the place of their task in the data, then by index.

    Tasks whose place is not known come last, in the order in which their first samples finished.
    """
    first: dict[str, int] = {}
    for entry in entries:
        first.setdefault(entry.prompt_id, len(first))
    return sorted(entries, key=lambda it: (it.place is None, it.place or 0, first[it.prompt_id], it.index))


def read_results(output_path: str | Path, *, with_tokens: bool = False) -> Iterator[EvalSample]:
    """All samples of a run, in the order they were finished.

    Args:
        output_path: The `.jsonl` file or its folder.

    Raises:
        FileNotFoundError: There are no results.
        StoreError: They cannot be read, or are damaged.
    """
    with ResultReader(output_path) as reader:
        for entry in reader.entries:
            yield reader.read(entry, with_tokens=with_tokens)


class LazySamples(Sequence[EvalSample]):
    """Samples of a prompt, those of an earlier run read from the file whenever they are asked for.

    So a run of any size can be continued.
    """

    __slots__ = ("_items", "_reader", "_with_tokens")  # there is one for each prompt

    def __init__(self, items: Sequence[EvalSample | Entry], reader: ResultReader, *, with_tokens: bool) -> None:
        self._items, self._reader, self._with_tokens = items, reader, with_tokens

    @overload
    def __getitem__(self, place: int) -> EvalSample: ...
    @overload
    def __getitem__(self, place: slice) -> list[EvalSample]: ...
    def __getitem__(self, place: int | slice) -> EvalSample | list[EvalSample]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        item = self._items[place]
        return item if isinstance(item, EvalSample) else self._reader.read(item, with_tokens=self._with_tokens)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(samples={len(self)})"


# ---- writing ---------------------------------------------------------------------------------------------------------


class ResultLog:
    """Appends samples, each exactly once, and finds them again.

    A line counts when it is whole. Opening changes nothing; the first `append` cuts off what an interrupted write left
    behind the last whole line. Threads and processes write through one log: a second one is refused.

    Args:
        fsync_interval: Seconds between forced writes to the device: 0 after every batch, None never (the data then
            survives the death of the process, though not of the machine).

    Raises:
        StoreLockedError: Another process writes there.
        StoreCorruptError: A line is damaged, or the file holds something else.
        StoreError: The file cannot be opened.
    """

    def __init__(self, paths: StorePaths, *, fsync_interval: float | None = 0.0) -> None:
        self.paths = paths
        self.tasks: dict[str, str] = {}
        """Digest of the task of every prompt id in the file."""
        self._entries: dict[bytes, Entry] = {}  # of a sample that was tried again, the last
        self._fsync_interval = fsync_interval
        self._synced = time.monotonic()
        self._length = 0  # of all whole lines
        self._is_cut = False  # at their end
        with naming_errors("write to", paths.results):
            os.makedirs(paths.results.parent, exist_ok=True)
            self._fd: int | None = os.open(paths.results, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._inode = os.fstat(self._fd).st_ino
            with naming_errors("continue", paths.results):
                try:
                    lock(self._fd)
                except BlockingIOError:
                    where = repr(str(paths.results))
                    raise StoreLockedError(
                        f"another run is writing {where}: wait, or give another output path"
                    ) from None
                for entry in scan(self._fd, paths.results):
                    self._note(entry)
        except BaseException:
            os.close(self._fd)
            raise
        sync_folder(paths.results.parent)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, sample_id: str) -> Entry | None:
        """The entry of a sample, None where it is not in the file."""
        return self._entries.get(bytes.fromhex(sample_id))

    def place_of(self, prompt_id: str) -> int:
        """Position of a prompt in the data of the saved run; -1 where it has no samples or none was recorded."""
        places = (entry.place for entry in self._entries.values() if entry.prompt_id == prompt_id)
        place = next(places, None)
        return -1 if place is None else place

    def append(self, samples: Sequence[EvalSample]) -> None:
        """Append samples; when it returns they are written, and synced by the policy. Blocks.

        Raises:
            StoreError: The device refused, and nothing of the batch is in the file; or somebody removed the file.
        """
        self.write([write_sample(sample) for sample in samples])

    def write(self, lines: Sequence[Line]) -> None:
        """Do the same with samples whose lines are made."""
        path, fd, interval = self.paths.results, self._fd, self._fsync_interval
        assert fd is not None, "the log is closed"
        try:
            # What is torn is cut off here, and not when it is opened: looking at a run must not change it.
            append_lines(fd, b"".join([line.text for line in lines]), self._length, cut=not self._is_cut)
            self._is_cut = True
            if interval is not None and time.monotonic() - self._synced >= interval:
                os.fsync(fd)
                self._synced = time.monotonic()
        except OSError as error:
            self._is_cut = False
            os.ftruncate(fd, self._length)  # a sync that failed, too
            raise StoreError(f"cannot write to {str(path)!r}: {error}") from error
        try:
            is_there = os.stat(path).st_ino == self._inode
        except FileNotFoundError:
            is_there = False
        if not is_there:
            # What is written since is lost with the process.
            raise StoreError(
                f"{str(path)!r} was removed or replaced while this run was writing to it, and its results with it: "
                "bring it back, or give another output path"
            )
        for _, entry in lines:
            self._note(Entry(*entry[:-2], self._length, entry.length))

    def close(self) -> None:
        """Sync and close; a second call does nothing."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            with naming_errors("write to", self.paths.results):
                if self._fsync_interval is not None:
                    os.fsync(fd)
        finally:
            os.close(fd)

    def _note(self, entry: Entry) -> None:
        """Index a line, which is the last whole one."""
        self.tasks[entry.prompt_id] = entry.task
        self._entries[entry.id] = entry
        self._length = entry.offset + entry.length


class ResultWriter:
    """Appends samples without blocking the event loop: one thread writes all that is finished, and syncs once for it.

    Where samples come fast, lines of those without token data are made on the event loop: the thread has little to do
    but calls of the system, each of which costs it a turn of the interpreter. Token data is compressed on the thread.

    Args:
        log: The open results file, closed by `close`.
        on_saved: Called on the event loop with the number of samples of every batch that is in the file.
    """

    def __init__(self, log: ResultLog, on_saved: Callable[[int], None] = lambda _: None) -> None:
        self.log = log
        self._on_saved = on_saved
        self._loop = asyncio.get_running_loop()
        self._writer, self._others = (ThreadPoolExecutor(1, f"strands-eval-{name}") for name in ("store", "run"))
        self._lock = Lock()  # of the four below
        self._pending: list[EvalSample | Line] = []
        self._plain = 0  # samples without token data at the end of it
        self._is_writing = False
        self._makes_way_at = 0.0
        self._failure: BaseException | None = None
        self._written: asyncio.Future[None] | None = None

    async def append(self, sample: EvalSample) -> None:
        """Give a sample to the writer, or raise why an earlier one was not written; waits only when far behind."""
        result = sample.step_result
        has_tokens = result.trajectories or result.observation.tokens is not None
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._pending.append(sample)
            self._plain = 0 if has_tokens else self._plain + 1
            if self._plain == MADE_TOGETHER:
                self._pending[-MADE_TOGETHER:] = _make_lines(self._pending[-MADE_TOGETHER:])
                self._plain = 0
            is_writing, self._is_writing = self._is_writing, True
        if is_writing and (now := time.monotonic()) >= self._makes_way_at:
            # The thread asks for the interpreter only where it was not free for a millisecond. A loop of short turns
            # frees it more often, and takes it again before the thread has woken up.
            self._makes_way_at = now + MAKES_WAY_EVERY
            time.sleep(MAKES_WAY_SECONDS)
        if not is_writing:
            self._written = self._loop.run_in_executor(self._writer, self._write)
        if len(self._pending) >= MAX_PENDING and self._written is not None:
            await asyncio.shield(self._written)

    async def run(self, function: Callable[[], object]) -> None:
        """Run something on another thread, one call after the other."""
        await self._loop.run_in_executor(self._others, function)

    async def close(self) -> None:
        """Write what is pending, sync and close, even when the caller is cancelled meanwhile."""
        await run_shielded(self._close(), None, Phase.CLEANUP)

    async def _close(self) -> None:
        try:
            if self._written is not None:
                await self._written
        finally:
            await self.run(self.log.close)
            self._writer.shutdown(wait=False)
            self._others.shutdown(wait=False)

    def _write(self) -> None:
        """Write until nothing is pending; on the writer's thread."""
        try:
            while True:
                with self._lock:
                    batch, self._pending, self._plain = self._pending, [], 0
                    if not batch:
                        self._is_writing = False  # under the lock: who appends next starts the thread again
                        return
                started = time.monotonic()
                self._makes_way_at = started + LONG_BATCH
                self.log.write(_make_lines(batch))
                self._loop.call_soon_threadsafe(self._on_saved, len(batch))
                if self._pending and (left := started + GROUP_SECONDS - time.monotonic()) > 0:
                    time.sleep(left)
        except BaseException as error:
            self._failure = error
            raise


def _make_lines(items: Sequence[EvalSample | Line]) -> list[Line]:
    return [item if isinstance(item, Line) else write_sample(item) for item in items]
