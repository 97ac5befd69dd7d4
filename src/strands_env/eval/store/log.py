"""The append-only results file with its side file: recovery, appending, reading. Synchronous; one writer."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from strands_env.eval.errors import StoreCorruptError, StoreError
from strands_env.eval.sample import EvalSample
from strands_env.eval.store.files import lock, sync_folder, told, write_all
from strands_env.eval.store.records import Head, decode, encode, head_of, may_be_torn, to_sample
from strands_env.eval.store.tokens import FrameReader, FrameWriter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePaths:
    """The files of one run, beside each other: `x.jsonl`, `x.tokens` and `x.run.json`."""

    results: Path

    @classmethod
    def of(cls, output_path: str | Path) -> Self:
        """The files for an output path: a `.jsonl` file, or a folder that gets `results.jsonl`."""
        path = Path(output_path)
        return cls(results=path if path.suffix == ".jsonl" else path / "results.jsonl")

    @property
    def tokens(self) -> Path:
        """Side file of tokens."""
        return self.results.with_suffix(".tokens")

    @property
    def run(self) -> Path:
        """Configuration, versions and seeds of the run."""
        return self.results.with_suffix(".run.json")


class ResultLog:
    """Appends samples, each exactly once, and finds them again.

    A line counts when it is whole. What an interrupted write left behind the last whole line is cut off at opening,
    and so are tokens that no record points at; tokens are written before the record that points at them.

    Args:
        paths: Where.
        fsync_interval: Seconds between forced writes to the device: 0 after every batch, None never (the data then
            survives the death of the process, though not of the machine).

    Raises:
        StoreLockedError: Another process writes there.
        StoreCorruptError: A line before the last is damaged, or the file holds something else.
        StoreError: The files cannot be opened.
    """

    def __init__(self, paths: StorePaths, *, fsync_interval: float | None = 0.0) -> None:
        self._fsync_interval = fsync_interval
        self._synced = time.monotonic()
        self._unsynced = False
        self._length = 0
        self._tokens_length = 0
        self.paths = paths
        with told("write to", paths.results):
            paths.results.parent.mkdir(parents=True, exist_ok=True)
            existed = paths.results.exists()
            self._fd: int | None = os.open(paths.results, os.O_RDWR | os.O_CREAT, 0o644)
        self._tokens_fd: int | None = None
        try:
            lock(self._fd, paths.results)
            self._index: dict[bytes, int] = {}
            self._tasks: dict[str, str] = {}
            self._aborted: set[bytes] = set()
            with told("continue", paths.results):
                self._recover_tokens(self._recover())
        except BaseException:
            self._close_files()
            raise
        if not existed:
            sync_folder(paths.results.parent)
        self._frames = FrameReader(paths.tokens)

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, sample_id: str) -> bool:
        return bytes.fromhex(sample_id) in self._index

    def is_final(self, sample_id: str) -> bool:
        """Whether a sample is finished; one that was aborted is tried again."""
        key = bytes.fromhex(sample_id)
        return key in self._index and key not in self._aborted

    @property
    def tasks(self) -> Mapping[str, str]:
        """Digest of the task of every prompt id in the file."""
        return self._tasks

    def append(self, samples: Sequence[EvalSample]) -> None:
        """Append samples; when it returns they are written, and synced by the policy. Blocks.

        Raises:
            StoreError: The device refused; nothing of the batch is in the file.
        """
        if self._fd is None:
            raise StoreError(f"{str(self.paths.results)!r} is closed")
        frames = FrameWriter(self._tokens_length)
        lines = [encode(sample, frames.add_result(sample.step_result)) for sample in samples]
        try:
            if data := frames.data:
                self._write_tokens(data)
            write_all(self._fd, b"".join(lines))
            self._unsynced = True
            self._sync_if_due()
        except OSError as error:
            os.ftruncate(self._fd, self._length)
            os.lseek(self._fd, self._length, os.SEEK_SET)
            raise StoreError(f"cannot write to {str(self.paths.results)!r}: {error}") from error
        offset = self._length
        for sample, line in zip(samples, lines, strict=True):
            self._note(
                Head(
                    id=sample.id,
                    prompt_id=sample.prompt_id,
                    index=sample.index,
                    task=sample.task_digest,
                    aborted=sample.aborted,
                ),
                offset,
            )
            offset += len(line)
        self._length = offset
        self._tokens_length += len(data)

    def samples(self, *, with_tokens: bool = False) -> Iterator[EvalSample]:
        """All samples in the order they were finished; of one that was tried again the last.

        Args:
            with_tokens: Read the tokens too.
        """
        offset = 0
        with self.paths.results.open("rb") as file:
            for line in file:
                if offset >= self._length:
                    return
                record = decode(line)
                if record is not None and self._index.get(bytes.fromhex(record["id"])) == offset:
                    yield self._sample(record, with_tokens)
                offset += len(line)

    def read(self, sample_id: str, *, with_tokens: bool = False) -> EvalSample:
        """One sample.

        Raises:
            KeyError: It is not in the file.
        """
        with self.paths.results.open("rb") as file:
            file.seek(self._index[bytes.fromhex(sample_id)])
            record = decode(file.readline())
        if record is None:
            raise StoreCorruptError(f"{str(self.paths.results)!r} was changed while it was open")
        return self._sample(record, with_tokens)

    def sync(self) -> None:
        """Force everything to the device."""
        if self._fd is not None and self._unsynced and self._fsync_interval is not None:
            if self._tokens_fd is not None:
                os.fsync(self._tokens_fd)
            os.fsync(self._fd)
            self._unsynced = False
        self._synced = time.monotonic()

    def close(self) -> None:
        """Sync and close; a second call does nothing.

        Raises:
            StoreError: The device refused.
        """
        try:
            with told("write to", self.paths.results):
                self.sync()
        finally:
            self._frames.close()
            self._close_files()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _sample(self, record: dict[str, Any], with_tokens: bool) -> EvalSample:
        sample = to_sample(record)
        if with_tokens and record.get("tokens"):
            self._frames.fill(sample.step_result, record["tokens"])
        return sample

    def _note(self, head: Head, offset: int) -> None:
        key = bytes.fromhex(head.id)
        self._index[key] = offset
        self._tasks[head.prompt_id] = head.task
        (self._aborted.add if head.aborted else self._aborted.discard)(key)

    def _recover(self) -> int:
        """Index whole lines, cut off what follows them; returns the length of the side file they need."""
        assert self._fd is not None
        path = self.paths.tokens
        offset, tokens_end, damaged = 0, 0, None
        foreign: int | None = None
        tokens_size = path.stat().st_size if path.exists() else 0
        with open(self._fd, "rb", closefd=False) as file:
            for number, line in enumerate(file, 1):
                record = decode(line)
                head = None if record is None else head_of(record, f"line {number} of {str(self.paths.results)!r}")
                if head is None or not line.endswith(b"\n"):
                    damaged = damaged or (number, offset)
                    if head is None and foreign is None and not may_be_torn(line):
                        foreign = number
                elif damaged is not None:
                    raise StoreCorruptError(
                        f"line {damaged[0]} of {str(self.paths.results)!r} is damaged though whole lines follow it: "
                        "remove that line to continue; its sample will be run again"
                    )
                else:
                    self._note(head, offset)
                    tokens_end = max(tokens_end, head.tokens_end)
                    if tokens_end > tokens_size:
                        raise StoreCorruptError(
                            f"{str(path)!r} has {tokens_size} bytes, but line {number} of {str(self.paths.results)!r} "
                            f"points at byte {tokens_end}: bring the whole file back; or remove that line and all "
                            "after it, and their samples will be run again; or give another output path"
                        )
                offset += len(line)
        if foreign is not None:
            raise StoreCorruptError(
                f"line {foreign} of {str(self.paths.results)!r} is no evaluated sample, nor what an interrupted write "
                "leaves behind: give another output path, or remove the line if it does not belong there"
            )
        self._length = offset if damaged is None else damaged[1]
        if self._length < offset:
            logger.warning(
                "path=<%s>, bytes=<%d> | cut off the end of an interrupted write",
                self.paths.results,
                offset - self._length,
            )
            os.ftruncate(self._fd, self._length)
        os.lseek(self._fd, self._length, os.SEEK_SET)
        return tokens_end

    def _recover_tokens(self, needed: int) -> None:
        path = self.paths.tokens
        if path.exists() and path.stat().st_size > needed:
            os.truncate(path, needed)
        self._tokens_length = needed

    def _write_tokens(self, data: bytes) -> None:
        if self._tokens_fd is None:
            self._tokens_fd = os.open(self.paths.tokens, os.O_WRONLY | os.O_CREAT, 0o644)
        os.lseek(self._tokens_fd, self._tokens_length, os.SEEK_SET)
        write_all(self._tokens_fd, data)
        if self._fsync_interval is not None:
            os.fsync(self._tokens_fd)  # before the records that point at it

    def _sync_if_due(self) -> None:
        interval = self._fsync_interval
        if interval is not None and time.monotonic() - self._synced >= interval:
            self.sync()

    def _close_files(self) -> None:
        for name in ("_tokens_fd", "_fd"):
            fd = getattr(self, name)
            setattr(self, name, None)
            if fd is not None:
                os.close(fd)
