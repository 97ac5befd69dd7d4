"""The programs that run tests, as the image has them: what an agent changed among them, and how it is undone.

An agent that is root may replace the shell that reads the tests, shadow an interpreter, or have one load its code at
every start. All of it lies in the layer above the image, and is found there. Code that it left beside its own work,
such as a module named like one of the tests' imports, cannot be told from work: a verifier in a container of its own is
the cure.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import stat
import tarfile
from dataclasses import dataclass
from typing import IO

_NAMES = (
    "sh", "bash", "dash", "ash", "busybox", "env", "python", "python[23]*", "pytest", "py.test", "pip*", "uv", "uvx",
    "node", "perl", "ruby", "cat", "echo", "printf", "test", "[[]", "cp", "mv", "rm", "ls", "mkdir", "chmod", "chown",
    "touch", "tee", "head", "tail", "grep", "sed", "awk", "gawk", "mawk", "cut", "sort", "uniq", "wc", "tr", "diff",
    "cmp", "find", "xargs", "true", "false", "expr", "seq", "date", "stat", "sha256sum", "md5sum", "timeout", "sleep",
    "jq", "curl", "id", "which", "dirname", "basename", "readlink", "realpath", "pwd", "tar", "sudo", "su",
)  # fmt: skip
"""Programs that run tests, or that tests read results with."""
_FOLDERS = ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin")
_LOADED = ("sitecustomize.py", "usercustomize.py")
"""Files that every Python loads at its start."""
_SETTINGS = ("conftest.py", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg", "etc/ld.so.preload")
"""Files at the top that steer the tests, or every program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tampering:
    """Paths to take from the image again, and paths to remove; all are relative to the root."""

    restored: tuple[str, ...]
    removed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.restored or self.removed)

    def pack(self, root: str, archive: IO[bytes]) -> None:
        """Write the image's copies into an archive."""
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for path in self.restored:
                tar.add(os.path.join(root, path), arcname=path, recursive=False)
        archive.flush()
        archive.seek(0)


def find_tampering(root: str, upper: str, *, path_variable: str, work: str) -> Tampering:
    """Compare a sandbox's layer with its image.

    Args:
        root: Folder of the image.
        upper: Folder of the layer.
        path_variable: The image's `PATH`.
        work: The work directory: settings of tests in it are work.
    """
    on_path = [part.strip("/") for part in path_variable.split(":") if part.startswith("/")]
    folders = dict.fromkeys([*on_path, *_FOLDERS])
    restored, removed = [], []
    for folder in folders:
        if (changed := _changed_parent(root, upper, folder)) is not None:
            restored.append(changed)
    present: set[str] = set()
    for folder in folders:
        names = {name for name in _listed(os.path.join(root, folder)) if _is_guarded(name)}
        present |= names
        restored += [
            f"{folder}/{name}"
            for name in sorted(names)
            if _real(root, folder) and _real(upper, folder) and os.path.lexists(os.path.join(upper, folder, name))
        ]
    for folder in folders:
        if _real(upper, folder):
            removed += [
                f"{folder}/{name}"
                for name in _listed(os.path.join(upper, folder))
                if name in present and not os.path.lexists(os.path.join(root, folder, name))
            ]
    settings = _SETTINGS if work.strip("/") else _SETTINGS[-1:]
    removed += [name for name in settings if _is_new(root, upper, name)]
    for folder, _, files in os.walk(upper):
        inside = os.path.relpath(folder, upper)
        removed += [
            posixpath.normpath(f"{inside}/{name}")
            for name in _LOADED
            if name in files and not os.path.lexists(os.path.join(root, inside, name))
        ]
    for name in _SETTINGS[-1:]:
        if os.path.lexists(os.path.join(root, name)) and os.path.lexists(os.path.join(upper, name)):
            restored.append(name)
    return Tampering(restored=tuple(dict.fromkeys(restored)), removed=tuple(dict.fromkeys(removed)))


def _is_guarded(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _NAMES)


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _changed_parent(root: str, upper: str, folder: str) -> str | None:
    """The part of a folder's path that is a link or missing in the layer, and was not in the image."""
    place = ""
    for name in folder.split("/"):
        place = posixpath.join(place, name)
        try:
            above = os.lstat(os.path.join(upper, place))
            below = os.lstat(os.path.join(root, place))
        except OSError:
            return None
        if stat.S_IFMT(above.st_mode) != stat.S_IFMT(below.st_mode) or stat.S_ISLNK(below.st_mode):
            return place
    return None


def _real(top: str, folder: str) -> bool:
    """Every part of the path is a folder, none a link."""
    place = top
    for name in folder.split("/"):
        place = os.path.join(place, name)
        if not os.path.isdir(place) or os.path.islink(place):
            return False
    return True


def _is_new(root: str, upper: str, path: str) -> bool:
    folder = posixpath.dirname(path)
    return (
        (not folder or _real(upper, folder))
        and os.path.lexists(os.path.join(upper, path))
        and not os.path.lexists(os.path.join(root, path))
    )
