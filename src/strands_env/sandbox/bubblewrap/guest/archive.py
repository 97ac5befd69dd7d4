"""Folders of a sandbox as archives, in the open file at descriptor 0."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import re
import stat
import tarfile
import warnings

from .system import each_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LATE = (warnings,)
"""Modules that the standard library imports when it first needs them, which is too late in here."""
_PATH_BYTES = 3500
"""Longest path that another machine can be expected to open."""


def unpack(request: dict[str, Any]) -> None:
    """Extract the archive at descriptor 0 into a folder."""
    os.makedirs(request["path"], exist_ok=True)
    with os.fdopen(0, "rb", closefd=False) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        tar.extraction_filter = staticmethod(lambda member, path: member)
        tar.extractall(request["path"], numeric_owner=True)


def pack(request: dict[str, Any]) -> None:
    """Write a folder into the open file at descriptor 0.

    Devices, pipes and sockets are left out, and what lies deeper than a path can be long.
    """
    path = request["path"]
    with os.fdopen(0, "wb", closefd=False) as file, tarfile.open(fileobj=file, mode="w") as tar:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder")
        _pack_folder(tar, path, request["max_bytes"], request["exclude"])


def _pack_folder(tar: tarfile.TarFile, root: str, bytes_left: int, exclude: list[str]) -> None:
    # As GNU tar reads `--exclude`: from any part of a path on, and `*` stands for slashes too. What lies in a folder
    # that is left out is left out by the pattern's second form.
    patterns = [re.compile(fnmatch.translate(f"{pattern}{inner}")) for pattern in exclude for inner in ("", "/*")]
    for folder in each_folder(root):
        if len(folder.names) > _PATH_BYTES // 2:
            continue  # no path leads there; joining the names would cost the square of the depth
        for entry in sorted(folder.entries, key=lambda entry: entry.name):
            path = "/".join((*folder.names, entry.name))
            if len(os.fsencode(path)) > _PATH_BYTES:
                continue
            if patterns and _is_excluded(path, patterns):
                continue
            with contextlib.suppress(FileNotFoundError):  # its owner was faster
                bytes_left -= _pack_entry(tar, path, entry, folder.descriptor, bytes_left)


def _is_excluded(path: str, patterns: list[re.Pattern[str]]) -> bool:
    names = [".", *path.split("/")]
    tails = ["/".join(names[start:]) for start in range(len(names))]
    return any(pattern.match(tail) for pattern in patterns for tail in tails)


def _pack_entry(tar: tarfile.TarFile, path: str, entry: os.DirEntry[str], folder: int, bytes_left: int) -> int:
    """Add a file, folder or link, and return the bytes that it took of those that are left."""
    # Not by `gettarinfo`: it asks for the names of owners, for which the C library loads libraries of the image.
    member, status = tarfile.TarInfo(path), entry.stat(follow_symlinks=False)
    member.mode, member.mtime = stat.S_IMODE(status.st_mode), status.st_mtime
    member.uid, member.gid = status.st_uid, status.st_gid
    if stat.S_ISREG(status.st_mode):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(entry.name, flags, dir_fd=folder), "rb") as file:
            member.size = os.fstat(file.fileno()).st_size
            if member.size > bytes_left:
                raise OSError(errno.EFBIG, "too large")
            tar.addfile(member, file)
        return max(member.size, 512)
    if stat.S_ISDIR(status.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(entry.name, dir_fd=folder)
    else:
        return 0
    if bytes_left < 512:
        raise OSError(errno.EFBIG, "too large")
    tar.addfile(member)
    return 512
