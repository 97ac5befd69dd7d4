"""The results file of a run: append-only, one line a sample, readable after a cut at any byte."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar, overload

from strands_env.core import Phase
from strands_env.core.deadline import to_the_end
from strands_env.eval.errors import StoreCorruptError, StoreError, StoreLockedError
from strands_env.eval.sample import EvalSample
from strands_env.eval.store.config import StorePaths, checksum_of, load_run, sync_folder, write_at
from strands_env.eval.store.line import Entry, LineError, naming_errors, read_entry, read_sample, write_sample

logger = logging.getLogger(__name__)

MAX_PENDING = 4096  # samples that may wait for the device before `append` waits too
_BLOCK = 1 << 20

T = TypeVar("T")


def read_lines(fd: int) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of every line of an open file; the last one may have no newline."""
    # By position, and not through a file object: a log reads and writes the same descriptor.
    number = offset = position = 0
    rest = bytearray()
    while block := os.pread(fd, _BLOCK, position):
        position += len(block)
        *whole, last = block.split(b"\n")
        for text in whole:
            line = bytes(rest) + text + b"\n"
            number += 1
            yield number, offset, line
            offset += len(line)
            rest.clear()
        rest += last
    if rest:
        yield number + 1, offset, bytes(rest)


def scan(fd: int, path: Path) -> Iterator[Entry]:
    """The entries of an open results file, those that were superseded too; the remains of a crash are left out.

    Raises:
        StoreError: A line is damaged, or of something else.
    """
    for number, offset, line in read_lines(fd):
        try:
            yield read_entry(line, offset)
        except LineError as error:
            if error.kind != "residue":
                raise error.at(path, number) from error
            if line.strip():
                logger.info("path=<%s>, line=<%d> | end of an interrupted write left out", path, number)


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
        found: dict[bytes, Entry] = {}
        with naming_errors("read", self.paths.results):
            for entry in scan(self.fd, self.paths.results):
                found.pop(entry.id, None)  # so that it counts where it was tried last
                found[entry.id] = entry
        return list(found.values())

    def in_task_order(self) -> list[Entry]:
        """The entries by the place of their task in the data, then by index.

        Tasks whose place is not known come last, in the order in which their first samples finished.
        """
        first = {entry.prompt_id: number for number, entry in reversed(list(enumerate(self.entries)))}
        last = float("inf")

        def key(entry: Entry) -> tuple[float, int, int]:
            return last if entry.place is None else entry.place, first[entry.prompt_id], entry.index

        return sorted(self.entries, key=key)

    def read(self, entry: Entry, *, with_tokens: bool = False) -> EvalSample:
        """The sample of an entry; `StoreCorruptError` where the file was changed meanwhile, or its tokens are wrong."""
        with naming_errors("read", self.paths.results):
            line = os.pread(self.fd, entry.length, entry.offset)
        try:
            return read_sample(line, with_tokens=with_tokens)
        except LineError as error:
            raise StoreCorruptError(f"{str(self.paths.results)!r} was changed while it was read: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


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


# ---- verifying -------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Verification:
    """The findings of `verify_run`.

    Attributes:
        samples: Samples that can be read, each once.
        superseded: Lines of samples that were tried again since.
        with_tokens: Lines that hold tokens.
        torn_bytes: Bytes behind the last whole line, and lines a power cut left: the next resume takes care of both.
        damages: A sentence for each place that differs from what was written: the file, the line, how to repair it.
    """

    path: str
    samples: int = 0
    superseded: int = 0
    with_tokens: int = 0
    torn_bytes: int = 0
    damages: list[str] = field(default_factory=list)

    @property
    def is_intact(self) -> bool:
        """True without damages."""
        return not self.damages

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "is_intact": self.is_intact}


def verify_run(output_path: str | Path) -> Verification:
    """Read every line with its tokens, and the configuration of a run, and compare the checksums.

    Changes nothing, and may be used while the run goes on.

    Args:
        output_path: The `.jsonl` file or its folder.

    Raises:
        FileNotFoundError: There are no results.
        StoreError: They cannot be read at all.
    """
    paths = StorePaths.of(output_path)
    found = Verification(path=str(paths.results))
    seen: set[str] = set()
    with ResultReader(paths.results) as reader, naming_errors("read", paths.results):
        for number, offset, line in read_lines(reader.fd):
            try:
                read_entry(line, offset)
                sample = read_sample(line, with_tokens=True)
            except LineError as error:
                if error.kind == "residue":
                    found.torn_bytes += len(line)
                else:
                    found.damages.append(str(error.at(paths.results, number)))
            except StoreError as error:
                found.damages.append(f"line {number} of {str(paths.results)!r}: {error}")
            else:
                found.superseded += sample.id in seen
                seen.add(sample.id)
                result = sample.step_result
                found.with_tokens += result.observation.tokens is not None or bool(result.trajectories)
    found.samples = len(seen)
    try:
        document = load_run(paths.run)
    except StoreError as error:
        found.damages.append(str(error))
    else:
        if document is None:
            found.damages.append(f"{str(paths.run)!r} is missing, so the run cannot be continued")
        elif document.get("crc") not in (None, checksum_of(document)):
            found.damages.append(f"{str(paths.run)!r} was changed after it was written: its checksum does not fit")
    return found


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
        self._is_synced = True
        self._is_recovered = False
        self._length = 0
        with naming_errors("write to", paths.results):
            os.makedirs(paths.results.parent, exist_ok=True)
            existed = os.path.exists(paths.results)
            self._fd: int | None = os.open(paths.results, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            lock(self._fd, paths.results)
            with naming_errors("continue", paths.results):
                for entry in scan(self._fd, paths.results):
                    self._note(entry)
        except BaseException:
            os.close(self._fd)
            raise
        if not existed:
            sync_folder(paths.results.parent)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, sample_id: str) -> Entry | None:
        """The entry of a sample, None where it is not in the file."""
        return self._entries.get(bytes.fromhex(sample_id))

    def append(self, samples: Sequence[EvalSample]) -> None:
        """Append samples; when it returns they are written, and synced by the policy. Blocks.

        Raises:
            StoreError: The device refused, and nothing of the batch is in the file; or somebody removed the file.
        """
        path, fd = self.paths.results, self._fd
        if fd is None:
            raise StoreError(f"{str(path)!r} is closed")
        try:
            if not self._is_recovered:  # not when it is opened: looking at a run must not change it
                os.ftruncate(fd, self._length)
                self._is_recovered = True
            lines = [write_sample(sample) for sample in samples]
            # At our own length, not the file's: a batch that failed half-way is written over.
            write_at(fd, b"".join(lines), self._length)
            interval = self._fsync_interval
            self._is_synced = interval is None
            if interval is not None and time.monotonic() - self._synced >= interval:
                os.fsync(fd)
                self._synced, self._is_synced = time.monotonic(), True
        except OSError as error:
            os.ftruncate(fd, self._length)
            raise StoreError(f"cannot write to {str(path)!r}: {error}") from error
        if not _is_at(fd, path):  # what is written since is lost with the process
            raise StoreError(
                f"{str(path)!r} was removed or replaced while this run was writing to it, and its results with it: "
                "bring it back, or give another output path"
            )
        for line in lines:  # read as a resume will read it
            self._note(read_entry(line, self._length))

    def close(self) -> None:
        """Sync and close; a second call does nothing."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            with naming_errors("write to", self.paths.results):
                if not self._is_synced:
                    os.fsync(fd)
        finally:
            os.close(fd)

    def _note(self, entry: Entry) -> None:
        """Index a line, which is the last whole one."""
        self.tasks[entry.prompt_id] = entry.task
        self._entries[entry.id] = entry
        self._length = entry.offset + entry.length


def _is_at(fd: int, path: Path) -> bool:
    """True while a path names an open file, which may have been removed or replaced."""
    try:
        ours, named = os.fstat(fd), os.stat(path)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)


def lock(fd: int, path: Path) -> None:
    """Take the writer's lock of a file; it ends with the process, however that ends."""
    import fcntl  # which Windows lacks

    try:
        # The kernel drops it with the process: a kill leaves no lock that somebody has to remove.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreLockedError(
            f"{str(path)!r} is being written by another run: wait for it, or give another output path"
        ) from None


class ResultWriter:
    """Appends samples without blocking the event loop. Whatever comes while a batch is written is the next batch.

    Args:
        log: The open results file, closed by `close`.
        on_saved: Called on the event loop with the samples of every batch that is in the file. What it raises is logged
            once, and ends nothing: the samples are saved.
    """

    def __init__(self, log: ResultLog, on_saved: Callable[[list[EvalSample]], None] | None = None) -> None:
        self.log = log
        self._on_saved = on_saved
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="strands-eval-store")
        self._pending: list[EvalSample] = []
        self._flush: asyncio.Task[None] | None = None

    async def append(self, sample: EvalSample) -> None:
        """Give a sample to the writer, or raise why an earlier one was not written; waits only when far behind."""
        if self._flush is not None and self._flush.done():
            self._flush.result()
        self._pending.append(sample)
        # One task writes at a time; samples that come meanwhile are its next batch, so that a sync serves many.
        if self._flush is None or self._flush.done():
            self._flush = asyncio.create_task(self._write())
        if len(self._pending) >= MAX_PENDING:
            await asyncio.shield(self._flush)

    async def run(self, function: Callable[[], T]) -> T:
        """Run something on the writer's thread, in order with the batches."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def flush(self) -> None:
        """Wait until everything given so far is in the file, or raise why it is not."""
        if self._flush is not None:
            await asyncio.shield(self._flush)

    async def close(self) -> None:
        """Write what is pending, sync and close, even when the caller is cancelled meanwhile."""
        await to_the_end(self._close(), None, Phase.CLEANUP)

    async def _close(self) -> None:
        try:
            await self.flush()
        finally:
            await self.run(self.log.close)
            self._thread.shutdown(wait=False)

    async def _write(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, []
            await self.run(lambda batch=batch: self.log.append(batch))  # type: ignore[misc]
            try:
                if self._on_saved is not None:
                    self._on_saved(batch)
            except Exception:
                logger.exception("samples=<%d> | callback for saved samples raised", len(batch))
                self._on_saved = None
