"""An agent's work among everything it wrote: selected from its layers, to be laid over the image when tests run.

Tests run in a fresh container of the image, and see of the agent's container only these paths. Everything else is the
image's own, so nothing there has to be recognised as dangerous. An agent that is root can put anything into its layer:
links, deletions, folders deeper than a path may be long. Its layer is therefore walked name by name without following
its links, and what is selected is moved or copied whole.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..folders import discard
from .inspection import MAX_WALKED, PROGRAM_FOLDERS, LaidWork, programs_in
from .layers import copy_upper
from .paths import RESERVED, Stack, hidden_folders, is_real, is_within, list_folder, mode_of

DEFAULT_WORK = ("/root/*", "/home/*/*", "/srv/*", "/opt/*", "/var/www/*")
"""Work beside the work directory where nothing better is known.

A `*` stands for one visible name: hidden files of homes are settings of shells and tools. At the end of a pattern it
leaves out the image's programs, however deep: whole prefixes, such as that of an interpreter in `/opt`, as a setting
beside a program leads it astray as well; and a home's `bin`.
"""
_VISIBLE = "[!.]*"
"""Every visible name, also of what holds programs."""
_SYSTEM_NAMES = ("bin", "include", "lib", "lib32", "lib64", "libexec", "sbin", "share")
_PROGRAMS = frozenset({"", "etc", "usr", "usr/local"}) | {
    f"{top}{name}" for top in ("", "usr/", "usr/local/") for name in _SYSTEM_NAMES
}
_SYSTEM = _PROGRAMS | {"boot", "home", "opt", "run", "var", "var/lib"}
"""Work directories that say nothing about what the work is."""
_LITERAL = {"[*]": "*", "[[]!.]*": _VISIBLE}
"""The spelling in a pattern of names that would stand for others."""
_COMPILED = re.compile(r"(.*/)?__pycache__")
_BY_PRODUCTS = re.compile(r"(.*/)?\.cache|var/cache|etc/ld\.so\.cache")
"""Changed by nearly every solution, needed by the tests of few, and a way to lead programs astray."""
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


def check_work(paths: Iterable[str]) -> tuple[str, ...]:
    """Patterns of paths in one spelling.

    Raises:
        ValueError: One is not absolute, is the whole disk, or would bring the tests or their results along.
    """
    patterns = []
    for path in paths:
        clean = posixpath.normpath(path) if isinstance(path, str) else ""
        inner = clean.lstrip("/")
        if not clean.startswith("/") or not inner or "\0" in inner:
            raise ValueError(f"work must be absolute paths inside the container, and not the whole disk, got {path!r}")
        if _touches(inner, RESERVED):
            raise ValueError(f"work must not contain the tests, their results or the kernel's files, got {path!r}")
        patterns.append(f"/{inner}")
    return tuple(dict.fromkeys(patterns))


def check_artifact(path: str, directory: str) -> None:
    """Check that an artifact can be laid over the files of a container for tests.

    Args:
        directory: The work directory, where a relative path begins.

    Raises:
        ValueError: It would take the place of the tests, their results, or the programs that run them.
    """
    inner = posixpath.normpath(posixpath.join("/", directory, path)).lstrip("/")
    runs_tests = any(is_within(inner, f"{top}{name}") for top in ("", "usr/") for name in ("bin", "sbin"))
    if inner in _PROGRAMS or runs_tests or _touches(inner, RESERVED):
        raise ValueError(
            f"artifacts of a separate verifier must not take the place of its tests, their results, its system's "
            f"programs or the kernel's files, got {path!r}: declare the files that the agent is to make"
        )


def pattern_of_directory(folder: str) -> str | None:
    """The pattern for a work directory; None for one that says nothing about what the work is, such as `/`."""
    inner = posixpath.normpath(f"/{folder}").lstrip("/")
    if inner in _SYSTEM:
        return None
    parts = inner.split("/")
    is_home = parts == ["root"] or (parts[0] == "home" and len(parts) == 2)
    return f"/{inner}/{_VISIBLE}" if is_home else f"/{inner}"  # hidden files are settings there, and not work


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes outside the work; `is_complete` is false where there are more than were looked for."""

    paths: list[str]
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFiles:
    """Everything an agent wrote, and what it was given. No process of it may run.

    Attributes:
        root: Folder of the image.
        before: Folder with what was written before the agent began.
        layers: Folders of its layers, the lowest first; the last is the running container's.
        path_variable: The image's `PATH`.
        directory: The work directory.
        shown: Paths where the container shows folders of this machine.
    """

    root: str
    before: str
    layers: Sequence[str]
    path_variable: str
    directory: str
    shown: Sequence[str] = ()

    def lay_work(self, work: Sequence[str], folder: str, *, move: bool) -> LaidWork:
        """Select the work into new folders, to be stacked above the image and `before`, the lowest first.

        Args:
            work: Patterns of paths; see `DEFAULT_WORK`.
            folder: Folder for them, on the same file system; it is made.
            move: Take the work out of the last layer instead of copying it.
        """
        paths, folders = self.select(work), []
        os.makedirs(folder)
        for index, layer in enumerate(self.layers):
            target = os.path.join(folder, str(index))
            os.mkdir(target, 0o755)
            new_folders: dict[str, os.stat_result] = {}
            for path in paths:
                self._lay_path(layer, path, target, new_folders, move=move and index == len(self.layers) - 1)
            for place, status in reversed(new_folders.items()):  # last: their permissions may forbid to write in them
                with contextlib.suppress(PermissionError):  # an ordinary user owns everything anyway
                    os.chown(place, status.st_uid, status.st_gid)
                os.chmod(place, stat.S_IMODE(status.st_mode))
            folders.append(target)
        laid = LaidWork(self, folders, paths)
        for path in paths:  # what the agent removed of it must not be there again
            if is_real(self.before, posixpath.dirname(path)):
                discard(os.path.join(self.before, path))
        return laid

    def select(self, work: Sequence[str]) -> list[str]:
        """The paths of patterns, relative to the root: none below another, and none through a link of the image."""
        places: set[str] = set()
        for pattern in work:
            for path in self._match(pattern.strip("/").split("/")):
                folder, name = posixpath.split(path)
                if (real := Stack([self.root]).resolve(folder)) is None:
                    continue  # the image's link leads nowhere
                place = posixpath.join(real, name)
                # Where the image has a link in its place, either end of it may be where the agent worked.
                places |= {place, Stack([self.root]).resolve(place) or place}
        outermost: list[str] = []
        hidden = hidden_folders(self.root)
        for path in sorted(places, key=lambda one: one.split("/")):  # a folder right before what is in it
            if path and not _touches(path, hidden) and not (outermost and is_within(path, outermost[-1])):
                outermost.append(path)
        return outermost

    def changes(self, work: Sequence[str], *, by_products: bool = False, most: int = 2000) -> Changes:
        """The agent's changes outside its work: folders that it made, and single files in folders of the image.

        Args:
            by_products: Caches too, also that of the loader of libraries.
        """
        skipped = {*self.select(work), *RESERVED}
        changed: dict[str, None] = {}
        spelt = {name: pattern for pattern, name in _LITERAL.items()}
        walked, pending = 0, [(layer, "") for layer in self.layers]
        while pending and len(changed) < most and walked < MAX_WALKED:
            layer, folder = pending.pop()
            for entry in list_folder(os.path.join(layer, folder)):
                walked += 1
                path = posixpath.join(folder, entry.name)
                if path in skipped or _COMPILED.fullmatch(path):
                    continue
                if not by_products and _BY_PRODUCTS.fullmatch(path):
                    continue
                is_folder = entry.is_dir(follow_symlinks=False)
                merges = is_folder and not _opaque_mark(entry.path)
                merges = merges and (is_real(self.root, path) or is_real(self.before, path))
                if merges or (is_folder and any(is_within(one, path) for one in skipped)):
                    pending.append((layer, path))  # the folder is the image's, or work is in it
                elif not _is_same(entry.path, os.path.join(self.before, path)):
                    changed["".join(f"/{spelt.get(part, part)}" for part in path.split("/"))] = None
        return Changes(paths=sorted(changed)[:most], is_complete=not pending and len(changed) <= most)

    @property
    def on_path(self) -> set[str]:
        """Folders of the image's `PATH`."""
        return {part.strip("/") for part in self.path_variable.split(":")}

    # ---- one path ----------------------------------------------------------------------------------------------------

    def _lay_path(
        self, layer: str, path: str, target: str, new_folders: dict[str, os.stat_result], *, move: bool
    ) -> None:
        parts = path.split("/")
        parents = ["/".join(parts[:size]) for size in range(1, len(parts))]
        is_gone, hides = False, ""
        for parent in parents:
            mode = mode_of(os.path.join(layer, parent))
            if mode is None:
                return  # nothing of the path is in this layer
            if not stat.S_ISDIR(mode):
                is_gone = True  # the agent removed a folder on the way, or put something else in its place
                break
            hides = hides or _opaque_mark(os.path.join(layer, parent))
        source = os.path.join(layer, path)
        is_gone = is_gone or (bool(hides) and mode_of(source) is None)
        if not is_gone and mode_of(source) is None:
            return
        for parent in parents:
            place = os.path.join(target, parent)
            if place not in new_folders:
                # Not work itself: owner and permissions are the image's, where it has the folder.
                originals = [below for below in (self.before, self.root, layer) if is_real(below, parent)]
                if not originals:
                    return  # neither the image nor the agent has the folder, so there is nothing to delete in it
                os.mkdir(place)
                new_folders[place] = os.lstat(os.path.join(originals[0], parent))
        place = os.path.join(target, path)
        if is_gone:
            os.mknod(place, stat.S_IFCHR, os.makedev(0, 0))  # a deletion, as overlays record it
            return
        _transfer(source, place, move=move)
        if hides and os.path.isdir(place) and not os.path.islink(place):
            # The folder that hid the image's is not laid, so the work itself has to hide what the agent had removed.
            os.setxattr(place, hides, b"y")

    def _match(self, parts: Sequence[str]) -> list[str]:
        """The paths of a pattern that the agent has, or was given."""
        paths = [""]
        for index, part in enumerate(parts):
            if part not in ("*", _VISIBLE):
                paths = [posixpath.join(path, _LITERAL.get(part, part)) for path in paths]
                continue
            listed = [child for path in paths for child in self._children(path)]
            paths = [path for path in listed if not posixpath.basename(path).startswith(".")]
            if part == "*" and index == len(parts) - 1:
                paths = [inner for path in paths for inner in self._without_programs(path)]
        return paths

    def _without_programs(self, path: str) -> list[str]:
        """The parts of a path in which the image finds no programs, and keeps none of its own."""
        if posixpath.basename(path) in PROGRAM_FOLDERS or any(is_within(one, path) for one in self.on_path):
            return []
        target = Stack([self.root]).resolve(path) or path
        programs = programs_in(self.root, target)
        if target in _SYSTEM or target in programs or (programs and target != path):
            return []
        if not programs:
            return [path]
        return [inner for child in self._children(path) for inner in self._without_programs(child)]

    def _children(self, path: str) -> list[str]:
        """The agent's entries of a folder, made by it or given to it."""
        tops = [top for top in (self.before, *self.layers) if is_real(top, path)]
        listed = (entry.name for top in tops for entry in list_folder(os.path.join(top, path)))
        return [posixpath.join(path, name) for name in dict.fromkeys(listed)]


def _transfer(source: str, target: str, *, move: bool) -> None:
    if not move:
        copy_upper(source, target)
        return
    try:
        os.rename(source, target)
    except PermissionError:  # an ordinary user cannot move a folder that it may not write in
        mode = stat.S_IMODE(os.lstat(source).st_mode)
        os.chmod(source, 0o700)
        os.rename(source, target)
        os.chmod(target, mode)


def _is_same(place: str, before: str) -> bool:
    """The file has not been written since it was copied to `before`."""
    try:
        one, other = os.lstat(place), os.lstat(before)
    except OSError:
        return False
    return (one.st_mode, one.st_size, one.st_mtime_ns) == (other.st_mode, other.st_size, other.st_mtime_ns)


def _opaque_mark(folder: str) -> str:
    """The attribute by which it hides what the layers below have in it; empty if it does not."""
    for name in _OPAQUE:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name, follow_symlinks=False) == b"y":
                return name
    return ""


def _touches(path: str, reserved: Iterable[str]) -> bool:
    return any(is_within(path, name) or is_within(name, path) for name in reserved)
