"""Paths in folders stacked above each other, in which an agent may have made any link."""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections.abc import Sequence

RESERVED = ("dev", "logs/verifier", "proc", "solution", "sys", "tests")
"""Never work: the tests, their results, and the kernel's files."""
_MAX_LINKS = 40
"""Links that Linux follows in one path."""
_MAX_STEPS = 2_000_000
"""Names looked up for all links of the work, so that a million do not delay the reward. The rest is cut."""


class Stack:
    """Folders stacked above each other, the highest first: where the paths lead that programs open in them.

    Args:
        hidden: Folders where a search ends: their files are not known.
    """

    def __init__(self, tops: Sequence[str], hidden: Sequence[str] = ()) -> None:
        self._tops, self._hidden, self._steps = tops, hidden, _MAX_STEPS

    def resolve(self, path: str, folder: str = "") -> str | None:
        """A path without links, or the beginning of it that is hidden; None if nobody can open it, or it is too long.

        Args:
            folder: Folder that it starts from, itself without links.
        """
        done, left, links = folder, path.split("/")[::-1], 0
        if path.startswith("/"):
            done = ""
        while left:
            part = left.pop()
            self._steps -= 1
            if self._steps < 0:
                return None
            if part in ("", ".", ".."):
                done = posixpath.dirname(done) if part == ".." else done
                continue
            place = posixpath.join(done, part)
            if any(is_within(place, one) for one in self._hidden):
                return place
            try:
                target = self._read_link(place)
            except OSError:  # nobody knows what is there
                return None
            if target is None:
                done = place
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            done = "" if target.startswith("/") else done
            left += target.split("/")[::-1]
        return done

    def has(self, path: str) -> bool:
        """There is something at a path without links."""
        mode_found = next((mode for top in self._tops if (mode := mode_of(os.path.join(top, path))) is not None), None)
        return mode_found is not None and not stat.S_ISCHR(mode_found)  # a deletion

    def _read_link(self, place: str) -> str | None:
        for top in self._tops:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path = os.path.join(top, place)
                return os.readlink(path) if stat.S_ISLNK(os.lstat(path).st_mode) else None
        return None


def shown_path(path: str) -> str:
    """A path of any bytes as text that can be written down."""
    return "/" + os.fsencode(path).decode(errors="backslashreplace").lstrip("/")


def hidden_folders(root: str) -> tuple[str, ...]:
    """The reserved folders, also by their names in an image that has links in their place."""
    return tuple(dict.fromkeys([*RESERVED, *(Stack([root]).resolve(name) or name for name in RESERVED)]))


def is_within(path: str, folder: str) -> bool:
    """A path is a folder's own, or below it."""
    return path == folder or path.startswith(f"{folder}/")


def list_folder(folder: str) -> list[os.DirEntry[str]]:
    """The entries of a folder; none of one that is missing, unreadable, or too deep for a path."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def mode_of(path: str) -> int | None:
    """Type and permissions of the file at a path, links not followed; None if nothing can be seen there."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return None


def is_real(top: str, folder: str) -> bool:
    """Every part of the path is a folder, none a link."""
    place = top
    for name in filter(None, folder.split("/")):
        place = os.path.join(place, name)
        if not os.path.isdir(place) or os.path.islink(place):
            return False
    return True
