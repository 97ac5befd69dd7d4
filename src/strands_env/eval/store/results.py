"""The results file of a run: append-only, one line a sample, readable after a cut at any byte."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar, overload

from strands_env.eval.errors import StoreCorruptError, StoreError, StoreLockedError
from strands_env.eval.sample import EvalSample, Score
from strands_env.eval.store.config import StorePaths, checksum_of, load_run, sync_folder, write_at
from strands_env.eval.store.line import (
    Entry,
    LineError,
    decode,
    encode,
    naming_errors,
    read_entry,
    to_sample,
    to_score,
)

logger = logging.getLogger(__name__)

MAX_PENDING = 4096
"""Samples that may wait for the device before `append` waits too."""
_BLOCK = 1 << 20
_NO_REWARD = float("nan")

T = TypeVar("T")


def read_at(fd: int, offset: int, length: int) -> bytes:
    """`length` bytes from an offset, fewer at the end of the file."""
    parts: list[bytes] = []
    while length > 0 and (part := os.pread(fd, length, offset)):
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return b"".join(parts)


def read_lines(fd: int) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of every line of an open file; the last one may have no newline."""
    # By position, and not through a file object: a log reads and writes the same descriptor.
    number = offset = position = 0
    rest: list[bytes] = []
    while block := read_at(fd, position, _BLOCK):
        position += len(block)
        first, *others = block.split(b"\n")
        rest.append(first)
        for text in others:
            data = b"".join(rest) + b"\n"
            number += 1
            yield number, offset, data
            offset += len(data)
            rest = [text]
    if tail := b"".join(rest):
        yield number + 1, offset, tail


def scan(fd: int, path: Path) -> Iterator[Entry]:
    """The entries of an open results file, those that were superseded too; the remains of a crash are left out.

    Raises:
        StoreError: A line is damaged, or of something else.
    """
    for number, offset, line in read_lines(fd):
        try:
            yield read_entry(line, offset)
        except LineError as error:
            if not error.is_residue:
                raise error.at(path, number) from error
            if line.strip():
                size = len(line)
                logger.info(
                    "path=<%s>, line=<%d>, bytes=<%d> | end of an interrupted write left out", path, number, size
                )


# ---- reading ---------------------------------------------------------------------------------------------------------


class ResultReader:
    """Reads the samples of a run, finished or not, without locking or changing its file, opened when it is needed.

    Args:
        output_path: The `.jsonl` file or its folder.
    """

    def __init__(self, output_path: str | Path) -> None:
        self.paths = StorePaths.of(output_path)
        self._fd: int | None = None

    @property
    def fd(self) -> int:
        """The open file; `FileNotFoundError` without results, `StoreError` where they cannot be opened."""
        if self._fd is None:
            with naming_errors("read", self.paths.results):
                self._fd = os.open(self.paths.results, os.O_RDONLY)
        return self._fd

    @cached_property
    def entries(self) -> list[Entry]:
        """Every sample in the order in which they were finished; of one that was tried again the last.

        Raises:
            FileNotFoundError: There are no results.
            StoreCorruptError: A line is damaged, or the file holds something else.
        """
        found: dict[bytes, Entry] = {}
        with naming_errors("read", self.paths.results):
            for entry in scan(self.fd, self.paths.results):
                found.pop(entry.id, None)  # so that it counts where it was tried last
                found[entry.id] = entry._replace(prompt_id=sys.intern(entry.prompt_id), task=sys.intern(entry.task))
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
        return self.read_line(entry.offset, entry.length, with_tokens=with_tokens)

    def read_line(self, offset: int, length: int, *, with_tokens: bool = False) -> EvalSample:
        """The sample in these bytes; raises as `read` does."""
        return to_sample(self._record(offset, length), with_tokens=with_tokens)

    def score_line(self, offset: int, length: int) -> Score:
        """The score of the sample in these bytes, several times faster than reading it."""
        return to_score(self._record(offset, length))

    def scores(self) -> Iterator[Score]:
        """The score of every sample, in the order of `entries`."""
        for entry in self.entries:
            yield self.score_line(entry.offset, entry.length)

    def _record(self, offset: int, length: int) -> dict[str, Any]:
        with naming_errors("read", self.paths.results):
            line = read_at(self.fd, offset, length)
        try:
            return decode(line)
        except LineError as error:
            raise StoreCorruptError(f"{str(self.paths.results)!r} was changed while it was read: {error}") from error

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:  # `LazySamples` share a reader that nobody else holds
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

    So a run of any size can be continued: an item is a sample, or offset and length of a line.
    """

    __slots__ = ("_items", "_reader", "_with_tokens")  # there is one for each prompt

    def __init__(
        self, items: Sequence[EvalSample | tuple[int, int]], reader: ResultReader, *, with_tokens: bool
    ) -> None:
        self._items, self._reader, self._with_tokens = items, reader, with_tokens

    @overload
    def __getitem__(self, place: int) -> EvalSample: ...
    @overload
    def __getitem__(self, place: slice) -> list[EvalSample]: ...
    def __getitem__(self, place: int | slice) -> EvalSample | list[EvalSample]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        item = self._items[place]
        return self._reader.read_line(*item, with_tokens=self._with_tokens) if isinstance(item, tuple) else item

    def __len__(self) -> int:
        return len(self._items)

    def scores(self) -> Iterator[Score]:
        """The score of every sample, several times faster than reading the samples."""
        for item in self._items:
            yield self._reader.score_line(*item) if isinstance(item, tuple) else item.score()


# ---- verifying -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A place that differs from what was written.

    Attributes:
        line: Its line, from 1; None for a file as a whole.
        offset: Where the line begins, in bytes.
        what: The damage, and how to repair it.
    """

    path: str
    line: int | None
    offset: int | None
    what: str


@dataclass(slots=True, kw_only=True)
class Verification:
    """The findings of `verify_run`.

    Attributes:
        samples: Samples that can be read, each once.
        superseded: Lines of samples that were tried again since.
        with_tokens: Lines that hold tokens.
        torn_bytes: Bytes behind the last whole line, and lines a power cut left: the next resume takes care of both.
    """

    path: str
    samples: int = 0
    superseded: int = 0
    with_tokens: int = 0
    torn_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)

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
    seen: set[bytes] = set()
    with ResultReader(paths.results) as reader, naming_errors("read", paths.results):
        for number, offset, line in read_lines(reader.fd):
            try:
                key = read_entry(line, offset).id
                found.superseded += key in seen
                seen.add(key)
                record = decode(line)
                found.with_tokens += "tokens" in record
                to_sample(record, with_tokens=True)
            except LineError as error:
                if error.is_residue:
                    found.torn_bytes += len(line)
                    continue
                what = str(error.at(paths.results, number))
            except StoreError as error:
                what = str(error)
            else:
                continue
            found.damages.append(Damage(path=str(paths.results), line=number, offset=offset, what=what))
    found.samples = len(seen)
    problem = None
    try:
        document = load_run(paths.run)
    except StoreError as error:
        problem = str(error)
    else:
        if document is None:
            problem = "it is missing, so the run cannot be continued"
        elif document.get("crc") not in (None, checksum_of(document)):
            problem = "it was changed after it was written: its checksum does not fit"
    if problem is not None:
        found.damages.append(Damage(path=str(paths.run), line=None, offset=None, what=problem))
    return found


# ---- writing ---------------------------------------------------------------------------------------------------------


class Stored(NamedTuple):
    """The bytes of a sample in the file, and its outcome."""

    offset: int
    length: int
    aborted: bool
    reward: float | None


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
        self._fsync_interval = fsync_interval
        self._synced = time.monotonic()
        self._unsynced = False
        with naming_errors("write to", paths.results):
            os.makedirs(paths.results.parent, exist_ok=True)
            existed = os.path.exists(paths.results)
            self._fd = os.open(paths.results, os.O_RDWR | os.O_CREAT, 0o644)
        self._is_open = True
        self._is_recovered = False
        self._length = 0
        self.tasks: dict[str, str] = {}
        """Digest of the task of every prompt id in the file."""
        # Columns with a row for each line: a million of them must fit.
        self._rows: dict[bytes, int] = {}
        self._offsets, self._lengths, self._rewards, self._aborted = array("q"), array("q"), array("d"), bytearray()
        try:
            lock(self._fd, paths.results)
            with naming_errors("continue", paths.results):
                for entry in scan(self._fd, paths.results):
                    self._note(entry)
        except BaseException:
            self._close_file()
            raise
        if not existed:
            sync_folder(paths.results.parent)

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, sample_id: str) -> Stored | None:
        """The place of a sample, None where it is not in the file."""
        row = self._rows.get(bytes.fromhex(sample_id))
        if row is None:
            return None
        reward = self._rewards[row]
        is_scored = reward == reward
        return Stored(self._offsets[row], self._lengths[row], bool(self._aborted[row]), reward if is_scored else None)

    def append(self, samples: Sequence[EvalSample]) -> None:
        """Append samples; when it returns they are written, and synced by the policy. Blocks.

        Raises:
            StoreError: The device refused, and nothing of the batch is in the file; or somebody removed the file.
        """
        path = self.paths.results
        if not self._is_open:
            raise StoreError(f"{str(path)!r} is closed")
        try:
            if not self._is_recovered:  # not when it is opened: looking at a run must not change it
                os.ftruncate(self._fd, self._length)
                self._is_recovered = True
            lines = [encode(sample) for sample in samples]
            # At our own length, not the file's: a batch that failed half-way is written over.
            write_at(self._fd, b"".join(lines), self._length)
            self._unsynced = True
            if self._fsync_interval is not None and time.monotonic() - self._synced >= self._fsync_interval:
                self.sync()
        except OSError as error:
            os.ftruncate(self._fd, self._length)
            raise StoreError(f"cannot write to {str(path)!r}: {error}") from error
        if not _is_at(self._fd, path):  # what is written since is lost with the process
            raise StoreError(
                f"{str(path)!r} was removed or replaced while this run was writing to it, and its results with it: "
                "bring it back, or give another output path"
            )
        for line in lines:  # read as a resume will read it
            self._note(read_entry(line, self._length))

    def sync(self) -> None:
        """Force everything to the device."""
        if self._is_open and self._unsynced and self._fsync_interval is not None:
            os.fsync(self._fd)
            self._unsynced = False
        self._synced = time.monotonic()

    def close(self) -> None:
        """Sync and close; a second call does nothing."""
        try:
            with naming_errors("write to", self.paths.results):
                self.sync()
        finally:
            self._close_file()

    def _note(self, entry: Entry) -> None:
        """Index a line, which is the last whole one."""
        self.tasks[entry.prompt_id] = entry.task
        self._rows[entry.id] = len(self._offsets)  # of one that was tried again, the last
        self._offsets.append(entry.offset)
        self._lengths.append(entry.length)
        self._rewards.append(_NO_REWARD if entry.reward is None else entry.reward)
        self._aborted.append(entry.aborted)
        self._length = entry.offset + entry.length

    def _close_file(self) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self._fd)


def _is_at(fd: int, path: Path) -> bool:
    """True while a path names an open file, which may have been removed or replaced."""
    try:
        ours, named = os.fstat(fd), os.stat(path)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)


def lock(fd: int, path: Path) -> None:
    """Take the writer's lock of a file; it ends with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
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
        self._failure: BaseException | None = None

    async def append(self, sample: EvalSample) -> None:
        """Give a sample to the writer, or raise why an earlier one was not written; waits only when far behind."""
        if self._failure is not None:
            raise self._failure
        self._pending.append(sample)
        # One task writes at a time; samples that come meanwhile are its next batch, so that a sync serves many.
        if self._flush is None:
            self._flush = asyncio.create_task(self._write())
        if len(self._pending) >= MAX_PENDING:
            await asyncio.shield(self._flush)

    async def run(self, function: Callable[[], T]) -> T:
        """Run something on the writer's thread, in order with the batches."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def flush(self) -> None:
        """Wait until everything given so far is in the file, or raise why it is not."""
        while self._flush is not None:
            await asyncio.shield(self._flush)
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Write what is pending, sync and close, even when the caller is cancelled meanwhile."""
        task = asyncio.ensure_future(self._close())
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            if not task.cancelled():
                task.exception()
            raise cancelled
        task.result()

    async def _close(self) -> None:
        try:
            await self.flush()
        finally:
            await self.run(self.log.close)
            self._thread.shutdown(wait=False)

    async def _write(self) -> None:
        try:
            while self._pending and self._failure is None:
                batch, self._pending = self._pending, []
                await self.run(lambda batch=batch: self.log.append(batch))  # type: ignore[misc]
                try:
                    if self._on_saved is not None:
                        self._on_saved(batch)
                except Exception:
                    logger.exception("samples=<%d> | callback for saved samples raised", len(batch))
                    self._on_saved = None
        except BaseException as error:
            self._failure = error
        finally:
            self._flush = None
