"""Writing results: the append-only file with its side file and their recovery, and the thread that appends batches."""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from strands_env.eval.errors import StoreCorruptError, StoreError
from strands_env.eval.sample import EvalSample
from strands_env.eval.store import files
from strands_env.eval.store.files import StorePaths
from strands_env.eval.store.records import LineError, encode, lines_of
from strands_env.eval.store.tokens import FrameWriter, may_be_ours

logger = logging.getLogger(__name__)

MAX_PENDING = 4096
"""Samples that may wait for the device before `append` waits too."""
_NO_REWARD = float("nan")

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
        self._fsync_interval = fsync_interval
        self._synced = time.monotonic()
        self._unsynced = False
        self.paths = paths
        with files.naming_errors("write to", paths.results):
            self._fd, existed = files.open_for_append(paths.results)
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
            files.lock(self._fd, paths.results)
            with files.naming_errors("continue", paths.results):
                self._scan()
                self._check_tokens(existed)
        except BaseException:
            self._close_files()
            raise
        if not existed:
            files.sync_folder(paths.results.parent)

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
                self._write_tokens(data)
            files.write_all_at(self._fd, b"".join(lines), self._length)
            self._unsynced = True
            self._sync_if_due()
        except OSError as error:
            files.cut(self._fd, self._length)
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
            files.sync(self._fd)
            self._unsynced = False
        self._synced = time.monotonic()

    def close(self) -> None:
        """Sync and close; a second call does nothing."""
        try:
            with files.naming_errors("write to", self.paths.results):
                self.sync()
        finally:
            self._close_files()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _note(
        self, sample_id: str, prompt_id: str, task: str, aborted: bool, reward: float | None, offset: int
    ) -> None:
        self._tasks[prompt_id] = task
        row = self._rows.setdefault(bytes.fromhex(sample_id), len(self._offsets))
        if row == len(self._offsets):
            self._offsets.append(offset)
            self._rewards.append(_NO_REWARD if reward is None else reward)
            self._aborted.append(aborted)
        else:
            self._offsets[row] = offset
            self._rewards[row] = _NO_REWARD if reward is None else reward
            self._aborted[row] = aborted

    def _scan(self) -> None:
        tokens_size = files.size_of(self.paths.tokens)
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
        size = files.size_of(self.paths.tokens)
        if self._tokens_length > 0 or size == 0:
            return
        fd = files.open_to_read(self.paths.tokens)
        try:
            start = files.read_at(fd, 0, 8)
        finally:
            files.close(fd)
        if not results_existed or not may_be_ours(start[:4]):
            raise StoreCorruptError(
                f"{str(self.paths.tokens)!r} has {size} bytes that no result points at: it would be overwritten; move "
                "it away, or give another output path"
            )

    def _recover(self) -> None:
        """Cut off what an interrupted write left behind, once."""
        if self._is_recovered:
            return
        files.cut(self._fd, self._length)
        if files.size_of(self.paths.tokens) > self._tokens_length:
            self._open_tokens()
            assert self._tokens_fd is not None
            files.cut(self._tokens_fd, self._tokens_length)
        self._is_recovered = True

    def _open_tokens(self) -> None:
        if self._tokens_fd is None:
            self._tokens_fd, existed = files.open_for_append(self.paths.tokens)
            if not existed and self._fsync_interval is not None:
                files.sync_folder(self.paths.tokens.parent)

    def _write_tokens(self, data: bytes) -> None:
        self._open_tokens()
        assert self._tokens_fd is not None
        files.write_all_at(self._tokens_fd, data, self._tokens_length)
        if self._fsync_interval is not None:
            files.sync(self._tokens_fd)  # before the records that point at it

    def _check_names(self) -> None:
        """Notice that somebody removed or replaced a file: what is written to it since is lost with the process."""
        for fd, path in ((self._fd, self.paths.results), (self._tokens_fd, self.paths.tokens)):
            if fd is not None and not files.is_at(fd, path):
                raise StoreError(
                    f"{str(path)!r} was removed or replaced while this run was writing to it, and its results with it: "
                    "bring it back, or give another output path"
                )

    def _sync_if_due(self) -> None:
        interval = self._fsync_interval
        if interval is not None and time.monotonic() - self._synced >= interval:
            self.sync()

    def _close_files(self) -> None:
        if self._is_open:
            self._is_open = False
            if self._tokens_fd is not None:
                files.close(self._tokens_fd)
            files.close(self._fd)


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
                self._report(batch)
        except BaseException as error:
            self._failure = error
        finally:
            self._flush = None

    def _report(self, batch: list[EvalSample]) -> None:
        try:
            if self._on_saved is not None:
                self._on_saved(batch)
        except Exception:
            logger.exception("samples=<%d> | callback for saved samples raised", len(batch))
            self._on_saved = None
