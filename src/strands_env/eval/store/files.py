"""File operations of the store. Every system call is here, so that a simulated disk can take its place.

For POSIX and, without the lock, for Windows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from strands_env.eval.errors import StoreError, StoreLockedError


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


@contextmanager
def naming_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn system errors into `StoreError`s that name the file; a missing file to read stays a `FileNotFoundError`."""
    try:
        yield
    except OSError as error:
        if doing == "read" and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
        raise StoreError(f"cannot {doing} {str(path)!r}: {error.strerror or error}") from error


def open_for_append(path: Path) -> tuple[int, bool]:
    """A descriptor for reading and writing, and whether the file was there before."""
    os.makedirs(path.parent, exist_ok=True)
    existed = os.path.exists(path)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644), existed


def read_at(fd: int, offset: int, length: int) -> bytes:
    """`length` bytes from an offset, fewer at the end of the file."""
    parts: list[bytes] = []
    while length > 0 and (part := os.pread(fd, length, offset)):
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_whole(path: Path) -> bytes:
    """All bytes of a file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_at(fd, 0, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def size_of(path: Path) -> int:
    """Bytes of a file, 0 where there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def is_at(fd: int, path: Path) -> bool:
    """True while a path names an open file, which may have been removed or replaced."""
    try:
        ours, named = os.fstat(fd), os.stat(path)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)


def write_all_at(fd: int, data: bytes, offset: int) -> None:
    """Write all bytes at an offset, however many calls it takes."""
    os.lseek(fd, offset, os.SEEK_SET)
    write_all(fd, data)


def cut(fd: int, length: int) -> None:
    """Shorten a file."""
    os.ftruncate(fd, length)


def sync(fd: int) -> None:
    """Force what was written to the device."""
    os.fsync(fd)


def open_to_read(path: Path) -> int:
    """A descriptor for reading."""
    return os.open(path, os.O_RDONLY)


def close(fd: int) -> None:
    """Close a descriptor."""
    os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes, however many calls it takes."""
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


def sync_folder(folder: Path) -> None:
    """Make names of new files in a folder durable, where the system can."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file so that it is always either the old or the new one; `StoreError` where the system refuses."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with naming_errors("write", path):
        os.makedirs(path.parent, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            try:
                write_all(fd, data)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    sync_folder(path.parent)
