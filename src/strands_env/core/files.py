"""Digests of folders, and the modules that write Parquet."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import stat
from pathlib import Path
from typing import Any

from strands_sglang.hints import install_command


def digest_folder(folder: Path, without: str | None = None) -> str:
    """32 hexadecimal digits of everything in a folder, wherever it lies; files that cannot be read raise `OSError`.

    Names, contents, permissions to execute, and links count; times, owners, `__pycache__`, `.DS_Store` and the entry
    `without` of the folder itself do not.
    """
    entries = []
    for place, names, files in os.walk(folder, onerror=_raise):
        ignored = {"__pycache__", ".DS_Store", without if place == os.fspath(folder) else None}
        names[:] = [name for name in names if name not in ignored]
        for path in (os.path.join(place, name) for name in (*names, *files) if name not in ignored):
            status = os.lstat(path)
            identity = (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            entries.append((os.path.relpath(path, folder), *identity))
    return _digest_entries(str(folder.resolve()), tuple(sorted(entries)))


def _raise(error: OSError) -> None:
    raise error


@functools.lru_cache(maxsize=4096)
def _digest_entries(folder: str, entries: tuple[tuple[Any, ...], ...]) -> str:
    content_hash = hashlib.blake2b(digest_size=16)
    for name, mode, *_ in entries:
        path, content = os.path.join(folder, name), b""
        if stat.S_ISLNK(mode):
            content = os.fsencode(os.readlink(path))
        elif stat.S_ISREG(mode):
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "blake2b").digest()
        for part in (os.fsencode(name), f"{stat.S_IFMT(mode)} {mode & 0o100}".encode(), content):
            content_hash.update(len(part).to_bytes(8, "little") + part)
    return content_hash.hexdigest()


def arrow(extra: str = "train") -> tuple[Any, Any]:
    """The modules `pyarrow` and `pyarrow.parquet`; without them an ImportError that names the extra with them."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError(f"Parquet files need pyarrow: {install_command(extra)}") from error
