"""Small durable-file operations, for POSIX and, without the lock, for Windows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from strands_env.eval.errors import StoreError, StoreLockedError


@contextmanager
def told(doing: str, path: Path) -> Iterator[None]:
    """Errors of the system as `StoreError`s that name the file; a missing file stays a `FileNotFoundError` to readers.

    Args:
        doing: What is tried, such as `read`.
        path: The file.

    Raises:
        StoreError: The system refused.
    """
    try:
        yield
    except OSError as error:
        if doing == "read" and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
        raise StoreError(f"cannot {doing} {str(path)!r}: {error.strerror or error}") from error


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes, however many calls it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def lock(fd: int, path: Path) -> None:
    """Take the writer's lock of a file; it ends with the process, however that ends.

    Raises:
        StoreLockedError: Another process has it.
    """
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
    """Replace a file so that it is always either the old or the new one.

    Raises:
        StoreError: The system refused; the old file is as it was.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with told("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
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
                temporary.unlink()
            raise
    sync_folder(path.parent)
