"""An agent's work among everything it wrote: selected from its layers, to be laid over the image when tests run.

Tests run in a fresh container of the image, and see of the agent's container only these paths. All other files are the
image's own, so nothing there has to be recognised as dangerous. An agent that is root can put anything into its layer:
links, deletions, folders deeper than a path may be long. Its layer is therefore walked name by name without following
its links, and what is selected is moved or copied whole.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import os
import posixpath
import re
import stat
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..bubblewrap.guest.system import each_folder
from ..folders import discard
from .layers import copy_upper, restore_folders
from .paths import RESERVED, Stack, hidden_folders, is_real, is_within, list_folder, mode_of, shown_path
from .programs import (
    MAX_WALKED,
    MODULE,
    PROGRAM_FOLDERS,
    RUNNERS,
    NamesInTests,
    is_program,
    is_setting,
    known_modules,
    programs_in,
)

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
"""Work directories that do not tell the work from other files."""
_LITERAL = {"[*]": "*", "[[]!.]*": _VISIBLE}
"""The spelling in a pattern of names that would stand for others."""
_COMPILED = re.compile(r"(.*/)?__pycache__")
_BY_PRODUCTS = re.compile(r"(.*/)?\.cache|var/cache|etc/ld\.so\.cache")
"""Changed by nearly every solution, needed by the tests of few, and a way to lead programs astray."""
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
_MAX_NAMES = 2000
"""Folders inside each other that a path can lead through. Links deeper than that are cut."""
_MAX_LISTED = 50
"""Entries of each list of findings."""
_LOGS = "logs"
_MAX_DIGESTED = 64 << 20
"""Bytes of work that are compared with other work."""


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
    """The pattern for a work directory; None for one that does not tell the work from other files, such as `/`."""
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
    """All files an agent wrote or was given. No process of it may run.

    Attributes:
        root: Folder of the image.
        before: Folder with the files written before the agent began.
        layers: Folders of its layers, the lowest first; the last is the running container's.
        path_variable: The image's `PATH`.
        directory: The work directory.
        shown: Paths where the container shows folders of this machine.
        tests: Folders of this machine with the task's tests.
    """

    root: str
    before: str
    layers: Sequence[str]
    path_variable: str
    directory: str
    shown: Sequence[str] = ()
    tests: Sequence[str] = ()

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
            restore_folders(new_folders)
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

    def names_in_tests(self) -> NamesInTests:
        """Names in the task's tests, which an image may have of its own too."""
        programs = (entry.name for folder in self.on_path for entry in list_folder(os.path.join(self.root, folder)))
        return NamesInTests.read([*self.tests, os.path.join(self.root, "tests")], programs)

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


class LaidWork:
    """Work in separate folders, to be stacked above the image; all of it is inspected.

    Python takes a compiled file in place of its source without comparing them, so `__pycache__` of the agent is
    emptied: the image's own is there again, or Python compiles anew.

    Args:
        files: The files that the work was selected from.
        folders: The lowest first.
        paths: The paths selected as work.
        in_use: A container runs on the folders already, so that nothing may be taken out of them: it is named instead.

    Attributes:
        cut_links: Links that are left out, because they lead out of the work to files hidden from tests: the
            tests themselves, the logs, the kernel's files, and places where nothing was yet.
        changed_programs: Programs, libraries and settings of interpreters that the image has otherwise, or not at all,
            and links to folders outside the work, in which tests may write.
    """

    def __init__(
        self, files: AgentFiles, folders: Sequence[str], paths: Sequence[str], *, in_use: bool = False
    ) -> None:
        self.folders, self._files, self._in_use = tuple(folders), files, in_use
        self.cut_links: list[str] = []
        self.changed_programs: list[str] = []
        self._given = (files.before, files.root)
        self._paths = set(paths)
        self._on_path, self._directory = files.on_path, files.directory.strip("/")
        self._roots = {*paths, *map(posixpath.dirname, paths), self._directory}
        """Places where tests are likely to run Python: modules there are found before all others."""
        self._hidden = hidden_folders(files.root)
        self._stack = Stack([*reversed(folders), *self._given], self._hidden)
        prefixes = {"usr", "usr/local", *map(posixpath.dirname, files.on_path)} - {""}
        self._tests = files.names_in_tests()
        self._modules = known_modules(files.root, tuple(sorted(prefixes))) | self._tests.installs
        for folder in folders:
            self._inspect(folder)

    def digest(self) -> str:
        """The same for work that tests cannot tell apart but by its times; unique where it cannot be read whole."""
        found, left = [], _MAX_DIGESTED
        for index, layer in enumerate(self.folders):
            for folder in each_folder(layer):
                for entry in folder.entries:
                    try:
                        status, content = entry.stat(follow_symlinks=False), b""
                        if stat.S_ISLNK(status.st_mode):
                            content = os.fsencode(os.readlink(entry.name, dir_fd=folder.descriptor))
                        elif stat.S_ISREG(status.st_mode):
                            left -= status.st_size
                            if left < 0:
                                return uuid.uuid4().hex
                            opened = os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder.descriptor)
                            with open(opened, "rb") as file:
                                content = file.read()
                        elif stat.S_ISDIR(status.st_mode):
                            content = _opaque_mark(os.path.join(layer, *folder.names, entry.name)).encode()
                    except OSError:
                        return uuid.uuid4().hex
                    owned = status.st_mode, status.st_uid, status.st_gid, status.st_rdev
                    found.append(repr((index, folder.names, entry.name, owned, hashlib.sha256(content).hexdigest())))
        return hashlib.sha256("\n".join(sorted(found)).encode(errors="surrogateescape")).hexdigest()

    def _inspect(self, layer: str) -> None:
        modes: list[int] = []
        paths: list[str] = []  # of the folder and those above it, and who else has them
        tops: list[list[str]] = []
        is_deep = False

        def leave(name: str, parent: int) -> None:
            if (mode := modes.pop()) & 0o700 != 0o700:
                os.chmod(name, mode, dir_fd=parent)

        # Folders that an ordinary user may not enter are no barrier to its container's root, who runs the tests.
        for folder in each_folder(layer, opens=os.geteuid() != 0, leave=leave):
            depth = len(folder.names)
            if depth:
                modes.append(folder.mode)
            if depth > _MAX_NAMES:
                is_deep = True
                for entry in folder.entries:
                    if entry.is_symlink():
                        self._cut(entry.name, folder.descriptor, f"{paths[-1]}/.../{entry.name}")
                continue
            del paths[depth:], tops[depth:]
            paths.append(posixpath.join(paths[-1], folder.names[-1]) if depth else "")
            above = tops[-1] if depth else self._given
            tops.append([top for top in above if stat.S_ISDIR(mode_of(os.path.join(top, paths[-1])) or 0)])
            is_compiled = posixpath.basename(paths[-1]) == "__pycache__"
            for entry in folder.entries:
                if is_compiled and not self._in_use and not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=folder.descriptor)
                    continue
                path, is_link = posixpath.join(paths[-1], entry.name), entry.is_symlink()
                if self._in_use and not self._is_work(path):
                    continue
                if not is_link and (len(self.changed_programs) > _MAX_LISTED or entry.is_dir(follow_symlinks=False)):
                    continue
                place = os.path.join(layer, path)
                original = next((one for top in tops[-1] if mode_of(one := os.path.join(top, path)) is not None), None)
                if _is_equal(place, original, only_links=True):
                    continue
                leads_astray = is_link and self._leads_astray(paths[-1], entry.name, folder.descriptor)
                if leads_astray and not self._in_use:
                    self._cut(entry.name, folder.descriptor, path)
                can_forge = self._can_forge(path, place, original) or (self._in_use and (is_compiled or leads_astray))
                if can_forge and not _is_equal(place, original):
                    self._name(shown_path(path))
        if is_deep:
            self._name(f"(folders more than {_MAX_NAMES} deep, which were not looked at)")

    def _name(self, what: str) -> None:
        if (listed := len(self.changed_programs)) <= _MAX_LISTED:
            self.changed_programs.append(what if listed < _MAX_LISTED else f"(more than {_MAX_LISTED} such files)")

    def _cut(self, name: str, folder: int, path: str) -> None:
        os.unlink(name, dir_fd=folder)
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=folder)
        if len(self.cut_links) < _MAX_LISTED:
            self.cut_links.append(shown_path(path))

    def _leads_astray(self, folder: str, name: str, descriptor: int) -> bool:
        """A link leads to hidden files, or to where nothing is yet outside the work, or nobody knows where."""
        target = self._stack.resolve(os.readlink(name, dir_fd=descriptor), folder)
        if not target or _touches(target, self._hidden):
            return True
        if is_within(target, _LOGS) and not is_within(folder, _LOGS):
            return True  # though it may be laid as work, tests and harness write there
        return not self._is_work(target) and not self._stack.has(target)  # tests could write there what they expect

    def _is_work(self, path: str) -> bool:
        if any(is_within(path, shown.strip("/")) for shown in self._files.shown):
            return True  # nothing writes there either
        while path and path not in self._paths:
            path = posixpath.dirname(path)
        return bool(path)

    def _can_forge(self, path: str, place: str, original: str | None) -> bool:
        """Programs that tests use may be this file, or be led astray by it."""
        folder = posixpath.dirname(path)
        if folder in self._on_path or is_setting(path, place, self._stack) or self._shadows_module(path, place):
            return True
        if self._tests.are_found_at(path):
            return True
        if os.path.islink(place):
            target = self._stack.resolve(os.readlink(place), folder)
            if target is not None and not self._is_work(target) and self._stack.has(f"{target}/."):
                return True  # whatever tests write into that folder is there too
        if original is not None and stat.S_ISDIR(mode_of(original) or 0):
            return bool(programs_in(self._files.root, path))  # something else than the folder is there, or nothing
        return original is not None and is_program(original, path)

    def _shadows_module(self, path: str, place: str) -> bool:
        """Python may find this module where another of that name is meant."""
        folder, name = posixpath.split(path)
        if (module := MODULE.fullmatch(name)) is not None:
            name = module[1]
            if name == "__init__":
                if folder in self._roots:  # a package of whatever tests are copied beside it
                    return True
                folder, name = posixpath.split(folder)
        elif not os.path.islink(place):  # which may lead to a package
            return False
        if name in RUNNERS or name.startswith("pytest"):
            return True
        # Anywhere where tests may lead Python: into the folders that they name.
        is_root = (
            self._directory == "" or folder in self._roots or posixpath.basename(folder).lower() in self._tests.words
        )
        return name in self._modules and is_root


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
    """The attribute by which it hides the files of layers below; empty if it does not."""
    for name in _OPAQUE:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name, follow_symlinks=False) == b"y":
                return name
    return ""


def _touches(path: str, reserved: Iterable[str]) -> bool:
    return any(is_within(path, name) or is_within(name, path) for name in reserved)


def _is_equal(place: str, original: str | None, *, only_links: bool = False) -> bool:
    """Both are the same link, or files of the same content."""
    if original is None:
        return False
    one, other = mode_of(place), mode_of(original)
    if one is None or other is None or stat.S_IFMT(one) != stat.S_IFMT(other):
        return False
    try:
        if stat.S_ISLNK(one):
            return os.readlink(place) == os.readlink(original)
        return not only_links and stat.S_ISREG(one) and filecmp.cmp(place, original, shallow=False)
    except OSError:
        return False
