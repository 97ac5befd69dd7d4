"""Writing a run: its configuration, the append-only results with their side file, and the thread that appends batches.

For POSIX and, without the lock, for Windows.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import platform
import sys
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import orjson

from strands_env.core.jsonable import canonical, differences, digest
from strands_env.eval.errors import ConfigMismatchError, StoreCorruptError, StoreError, StoreLockedError
from strands_env.eval.sample import EvalSample
from strands_env.eval.store.reader import checksum_of, load_run
from strands_env.eval.store.record import (
    FrameWriter,
    LineError,
    StorePaths,
    encode,
    lines_of,
    may_be_ours,
    naming_errors,
    read_at,
)

logger = logging.getLogger(__name__)

MAX_PENDING = 4096
"""Samples that may wait for the device before `append` waits too."""
_NO_REWARD = float("nan")
_PACKAGES = ("strands-rollout", "strands-agents", "torch", "transformers", "datasets", "ray", "numpy", "pydantic")

T = TypeVar("T")


class Stored(NamedTuple):
    """The place of a sample in the file, and its outcome."""

    offset: int
    aborted: bool
    reward: float | None


class ResultLog:
    """Appends samples, each exactly once, and finds them again.

    A line counts when it is whole. Opening changes nothing; the first `append` cuts off what an interrupted write left
    behind the last whole line, and tokens that no record points at. Tokens are durable before the record that points
    at them is written.

    Args:
        fsync_interval: Seconds between forced writes to the device: 0 after every batch, None never (the data then
            survives the death of the process, though not of the machine).

    Raises:
        StoreLockedError: Another process writes there.
        StoreCorruptError: A line is damaged, or a file holds something else.
        StoreError: The files cannot be opened.
    """

    def __init__(self, paths: StorePaths, *, fsync_interval: float | None = 0.0) -> None:
        self.paths = paths
        self._fsync_interval = fsync_interval
        self._synced = time.monotonic()
        self._unsynced = False
        with naming_errors("write to", paths.results):
            self._fd, existed = _open_for_append(paths.results)
        self._tokens_fd: int | None = None
        self._is_open = True
        self._length = 0
        self._tokens_length = 0
        self._is_recovered = False
        # One row a sample: a million of them must fit.
        self._rows: dict[bytes, int] = {}
        self._offsets = array("q")
        self._rewards = array("d")
        self._aborted = bytearray()
        self._tasks: dict[str, str] = {}
        self._tools: dict[bytes, list[int]] = {}
        try:
            lock(self._fd, paths.results)
            with naming_errors("continue", paths.results):
                self._scan()
                self._check_tokens(existed)
        except BaseException:
            self._close_files()
            raise
        if not existed:
            _sync_folder(paths.results.parent)

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, sample_id: str) -> Stored | None:
        """The place of a sample, None where it is not in the file."""
        row = self._rows.get(bytes.fromhex(sample_id))
        if row is None:
            return None
        reward = self._rewards[row]
        return Stored(self._offsets[row], bool(self._aborted[row]), None if reward != reward else reward)

    @property
    def tasks(self) -> Mapping[str, str]:
        """Digest of the task of every prompt id in the file."""
        return self._tasks

    def append(self, samples: Sequence[EvalSample]) -> None:
        """Append samples; when it returns they are written, and synced by the policy. Blocks.

        Raises:
            StoreError: The device refused, and nothing of the batch is in the file; or somebody removed the file.
        """
        if not self._is_open:
            raise StoreError(f"{str(self.paths.results)!r} is closed")
        try:
            self._recover()
            frames = FrameWriter(self._tokens_length, self._tools)
            lines = [encode(sample, frames.add_result(sample.step_result)) for sample in samples]
            if data := frames.data:
                write_at(self._tokens_file(), data, self._tokens_length)
                if self._fsync_interval is not None:
                    os.fsync(self._tokens_file())  # before the records that point at it
            write_at(self._fd, b"".join(lines), self._length)
            self._unsynced = True
            interval = self._fsync_interval
            if interval is not None and time.monotonic() - self._synced >= interval:
                self.sync()
        except OSError as error:
            os.ftruncate(self._fd, self._length)
            raise StoreError(f"cannot write to {str(self.paths.results)!r}: {error}") from error
        self._check_names()
        for sample, line in zip(samples, lines, strict=True):
            self._note(sample.id, sample.prompt_id, sample.task_digest, sample.aborted, sample.reward, self._length)
            self._length += len(line)
        self._tokens_length += len(data)
        self._tools = frames.tools

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
            self._close_files()

    def _note(
        self, sample_id: str, prompt_id: str, task: str, aborted: bool, reward: float | None, offset: int
    ) -> None:
        self._tasks[prompt_id] = task
        self._rows[bytes.fromhex(sample_id)] = len(self._offsets)  # of one that was tried again, the last
        self._offsets.append(offset)
        self._rewards.append(_NO_REWARD if reward is None else reward)
        self._aborted.append(aborted)

    def _scan(self) -> None:
        tokens_size = _size_of(self.paths.tokens)
        for line in lines_of(self._fd):
            try:
                head = line.head()
            except LineError as error:
                if not error.is_residue:
                    raise line.damaged(self.paths.results, error) from error
                if line.data.strip():
                    logger.warning(
                        "path=<%s>, line=<%d>, bytes=<%d> | passing over the end of an interrupted write",
                        self.paths.results,
                        line.number,
                        len(line.data),
                    )
                continue
            if head.tokens_end > tokens_size:
                raise StoreCorruptError(
                    f"{str(self.paths.tokens)!r} has {tokens_size} bytes, but line {line.number} of "
                    f"{str(self.paths.results)!r} points at byte {head.tokens_end}: bring the whole file back; or "
                    "remove that line and all after it, and their samples will be run again; or give another output "
                    "path"
                )
            self._length = line.offset + len(line.data)
            self._tokens_length = max(self._tokens_length, head.tokens_end)
            self._note(head.id, head.prompt_id, head.task, head.aborted, head.reward, line.offset)

    def _check_tokens(self, results_existed: bool) -> None:
        """Refuse a side file that is not ours: without a record it would be written over."""
        size = _size_of(self.paths.tokens)
        if self._tokens_length > 0 or size == 0:
            return
        fd = os.open(self.paths.tokens, os.O_RDONLY)
        try:
            start = read_at(fd, 0, 8)
        finally:
            os.close(fd)
        if not results_existed or not may_be_ours(start[:4]):
            raise StoreCorruptError(
                f"{str(self.paths.tokens)!r} has {size} bytes that no result points at: it would be overwritten; move "
                "it away, or give another output path"
            )

    def _recover(self) -> None:
        """Cut off what an interrupted write left behind, once."""
        if self._is_recovered:
            return
        os.ftruncate(self._fd, self._length)
        if _size_of(self.paths.tokens) > self._tokens_length:
            os.ftruncate(self._tokens_file(), self._tokens_length)
        self._is_recovered = True

    def _tokens_file(self) -> int:
        if self._tokens_fd is None:
            self._tokens_fd, existed = _open_for_append(self.paths.tokens)
            if not existed and self._fsync_interval is not None:
                _sync_folder(self.paths.tokens.parent)
        return self._tokens_fd

    def _check_names(self) -> None:
        """Notice that somebody removed or replaced a file: what is written to it since is lost with the process."""
        for fd, path in ((self._fd, self.paths.results), (self._tokens_fd, self.paths.tokens)):
            if fd is not None and not _is_at(fd, path):
                raise StoreError(
                    f"{str(path)!r} was removed or replaced while this run was writing to it, and its results with it: "
                    "bring it back, or give another output path"
                )

    def _close_files(self) -> None:
        if self._is_open:
            self._is_open = False
            if self._tokens_fd is not None:
                os.close(self._tokens_fd)
            os.close(self._fd)


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


class RunConfig:
    """The configuration of a run, kept in `x.run.json`.

    Args:
        config: Fields that must match to resume: benchmark, environment, model, sampling. JSON values.
        about: Metadata: seeds, the command line. A later run may differ in it.

    Raises:
        TypeError: The configuration is not JSON.
    """

    def __init__(self, path: Path | None, config: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> None:
        try:
            # Through JSON once, so that it equals what is read back (tuples are lists, keys are strings).
            self.config: dict[str, Any] = orjson.loads(canonical(dict(config)))
        except TypeError as error:
            raise TypeError(f"config must be JSON values to be saved and compared, got {config!r}: {error}") from error
        self.path = path
        self.about = dict(about or {})
        self.environment: dict[str, Any] | None = None
        self._spent_before = 0.0

    @property
    def digest(self) -> str:
        """Hash of the configuration."""
        return digest(canonical(self.config))

    def check(self, *, has_results: bool) -> None:
        """Compare with the saved configuration, or save this one. Blocks.

        Raises:
            ConfigMismatchError: The saved one is another.
            StoreCorruptError: There are results without a configuration.
        """
        saved = None if self.path is None else load_run(self.path)
        if not has_results or self.path is None:
            self._save()
            return
        if saved is None:
            raise StoreCorruptError(
                f"there are results, but no configuration at {str(self.path)!r} to compare with: "
                "bring the file back, or give another output path"
            )
        self.compare(saved)
        self.environment = saved["environment"]
        before = saved["about"]
        self._spent_before = float(before.get("wall_s") or 0.0)
        self.about |= {"started": before.get("started"), "wall_s": self._spent_before}
        earlier = [*before.get("earlier_versions", []), before.get("versions")]
        if before.get("versions") != versions():
            self.about |= {"earlier_versions": earlier}
        elif len(earlier) > 1:
            self.about |= {"earlier_versions": earlier[:-1]}
        self._save()  # what samples and prompts it asks for, and which of them count, is the latest run's say

    def compare(self, saved: Mapping[str, Any] | None = None) -> None:
        """Compare with the saved configuration (`saved`, where it was read already), if there is one. Blocks."""
        if saved is None and self.path is not None:
            saved = load_run(self.path)
        if saved is not None and (lines := differences(saved["config"], self.config)):
            raise ConfigMismatchError(str(self.path), lines)

    def check_environment(self, description: Mapping[str, Any]) -> None:
        """Compare the first environment of this run with the one of the saved results, or save it. Blocks."""
        found: dict[str, Any] = orjson.loads(canonical(dict(description)))
        if self.environment is not None:
            if lines := differences(self.environment, found, "environment."):
                raise ConfigMismatchError(str(self.path), lines)
            return
        self.environment = found
        self._save()

    def spend(self, seconds: float) -> None:
        """Save the wall time of the run: all earlier parts and the seconds of this one so far. Blocks."""
        self.about["wall_s"] = round(self._spent_before + seconds, 3)
        self._save()

    def _save(self) -> None:
        if self.path is None:
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        document = {
            "digest": self.digest,
            "config": self.config,
            "environment": self.environment,
            "about": {"started": now, "versions": versions(), **self.about},
        }
        document = orjson.loads(orjson.dumps(document, default=str))
        document["crc"] = checksum_of(document)
        _write_atomically(self.path, orjson.dumps(document, option=orjson.OPT_INDENT_2))


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter for a result."""
    found = {"python": platform.python_version(), "platform": sys.platform}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _open_for_append(path: Path) -> tuple[int, bool]:
    """A descriptor for reading and writing, and whether the file was there before."""
    os.makedirs(path.parent, exist_ok=True)
    existed = os.path.exists(path)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644), existed


def _size_of(path: Path) -> int:
    """Bytes of a file, 0 where there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _is_at(fd: int, path: Path) -> bool:
    """True while a path names an open file, which may have been removed or replaced."""
    try:
        ours, named = os.fstat(fd), os.stat(path)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all bytes at an offset, however many calls it takes."""
    os.lseek(fd, offset, os.SEEK_SET)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


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


def _sync_folder(folder: Path) -> None:
    """Make names of new files in a folder durable, where the system can."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _write_atomically(path: Path, data: bytes) -> None:
    """Replace a file so that it is always either the old or the new one; `StoreError` where the system refuses."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with naming_errors("write", path):
        os.makedirs(path.parent, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            try:
                write_at(fd, data, 0)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    _sync_folder(path.parent)
