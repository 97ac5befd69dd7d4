"""An agent's work among everything it wrote: selected from its layers, to be laid over the image when tests run.

Tests run in a fresh container of the image, and see of the agent's container only these paths. Everything else is the
image's own, so nothing there has to be recognised as dangerous. An agent that is root can put anything into its layer:
links, deletions, folders deeper than a path may be long. Its layer is therefore walked name by name without following
its links, and what is selected is moved or copied whole.
"""

from __future__ import annotations

import contextlib
import filecmp
import functools
import os
import posixpath
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..bubblewrap.guest.system import each_folder
from ..bubblewrap.process import discard
from .layers import copy_upper

DEFAULT_WORK = ("/root/*", "/home/*/*", "/srv/*", "/opt/*", "/var/www/*")
"""Work beside the work directory where nothing better is known.

A `*` stands for one visible name: hidden files of homes are settings of shells and tools. At the end of a pattern it
leaves out the image's programs, however deep: whole prefixes, such as that of an interpreter in `/opt`, as a setting
beside a program leads it astray as well; and a home's `bin`.
"""
_VISIBLE = "[!.]*"
"""Every visible name, also of what holds programs."""
_RESERVED = ("dev", "logs/verifier", "proc", "solution", "sys", "tests")
"""Never work: the tests, their results, and what the kernel shows."""
_HIDDEN = re.compile(r"(tests|logs/verifier|solution)(/.*)?|proc/(.*/)?(cwd|fd|root|\.\.)(/.*)?|dev/[^/]+/.*")
"""Links of the work that lead there are not laid: an answer that is a link to the expected one would be right."""
_SYSTEM = frozenset({"", "boot", "etc", "home", "opt", "run", "usr", "usr/local", "var", "var/lib"}) | {
    f"{top}{name}"
    for top in ("", "usr/", "usr/local/")
    for name in ("bin", "include", "lib", "lib32", "lib64", "libexec", "sbin", "share")
}
"""Work directories that say nothing about what the work is."""
_BY_PRODUCTS = re.compile(r"(.*/)?(__pycache__|\.cache)|var/cache|etc/ld\.so\.cache")
"""Changed by nearly every solution, needed by none of its tests, and a way to lead programs astray."""
_STEERING = re.compile(
    r"(.*/)?(conftest\.py|\.?pytest\.(ini|toml)|tox\.ini|setup\.cfg|pyproject\.toml|pyvenv\.cfg|[^/]*\.pth"
    r"|(site|user)customize\.py|\.bash(rc|_profile)|\.profile|\.gitconfig|\.git/(config|hooks/.*))"
    r"|etc/(passwd|profile|environment|ld\.so\..*|nsswitch\.conf)"
)
"""Settings of interpreters, shells and test runners. Reported, so an incomplete list costs a report, not a reward."""
_PYTHON_LIBRARY = re.compile(r"(.*/)?lib(64)?/python3[^/]*/.*")
_MODULE = re.compile(r"([^/.]+)(/__init__)?(\.pyc?|(\.[^/]*)?\.so)")
_TESTED_FIRST = sys.stdlib_module_names | {"pytest", "_pytest", "pluggy"}
"""Modules that a test run from the work directory would find there first."""
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
_PROGRAM_FOLDERS = ("bin", "sbin")
_MAX_NAMES = 2000
"""Folders inside each other that a path can lead through."""
_MAX_WALKED = 200_000
"""Entries that a report looks at, so that a million files do not delay the reward."""


def check_work(paths: Iterable[str]) -> tuple[str, ...]:
    """Patterns of paths in one spelling.

    Raises:
        ValueError: One is not absolute, is the whole disk, or would bring the tests or their results along.
    """
    found = []
    for path in paths:
        clean = posixpath.normpath(path) if isinstance(path, str) else ""
        inner = clean.lstrip("/")
        if not clean.startswith("/") or not inner or "\0" in inner:
            raise ValueError(f"work must be absolute paths inside the container, and not the whole disk, got {path!r}")
        if _touches_reserved(inner):
            raise ValueError(f"work must not contain the tests, their results or the kernel's files, got {path!r}")
        found.append(f"/{inner}")
    return tuple(dict.fromkeys(found))


def pattern_of_directory(folder: str) -> str | None:
    """The pattern for a work directory; None for one that says nothing about what the work is, such as `/`."""
    inner = posixpath.normpath(f"/{folder}").lstrip("/")
    if inner in _SYSTEM:
        return None
    parts = inner.split("/")
    is_home = parts == ["root"] or (parts[0] == "home" and len(parts) == 2)
    return f"/{inner}/{_VISIBLE}" if is_home else f"/{inner}"  # hidden files are settings there, and not work


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFiles:
    """Everything an agent wrote, and what it was given. No process of it may run.

    Attributes:
        root: Folder of the image.
        before: Folder with what was written before the agent began.
        layers: Folders of its layers, the lowest first; the last is the running container's.
        path_variable: The image's `PATH`.
    """

    root: str
    before: str
    layers: Sequence[str]
    path_variable: str

    def lay(self, work: Sequence[str], folder: str, *, move: bool) -> tuple[str, ...]:
        """Select the work into new folders, to be stacked above the image and `before`, the lowest first.

        Args:
            work: Patterns of paths; see `DEFAULT_WORK`.
            folder: Folder for them, on the same file system; it is made.
            move: Take the work out of the last layer instead of copying it.
        """
        paths, laid = self.select(work), []
        os.makedirs(folder)
        for index, layer in enumerate(self.layers):
            target = os.path.join(folder, str(index))
            os.mkdir(target, 0o755)
            made: dict[str, os.stat_result] = {}
            for path in paths:
                self._lay_path(layer, path, target, made, move=move and index == len(self.layers) - 1)
            for place, status in reversed(made.items()):  # last: their permissions may forbid to write in them
                with contextlib.suppress(PermissionError):  # an ordinary user owns everything anyway
                    os.chown(place, status.st_uid, status.st_gid)
                os.chmod(place, stat.S_IMODE(status.st_mode))
            laid.append(target)
        for target in laid:
            self._cut_links(target, [*reversed(laid), self.before, self.root])
        for path in paths:  # what the agent removed of it must not be there again
            if _is_real(self.before, posixpath.dirname(path)):
                discard(os.path.join(self.before, path))
        return tuple(laid)

    def select(self, work: Sequence[str]) -> list[str]:
        """The paths of patterns, relative to the root: none below another, and none through a link of the image."""
        found: set[str] = set()
        for pattern in work:
            for path in self._match(pattern.strip("/").split("/")):
                folder, name = posixpath.split(path)
                place = posixpath.join(_resolve([self.root], folder), name)
                # Where the image has a link in its place, either end of it may be where the agent worked.
                found |= {place, _resolve([self.root], place)}
        kept: list[str] = []
        for path in sorted(found, key=lambda one: one.split("/")):  # a folder right before what is in it
            if path and not _touches_reserved(path) and not (kept and _is_within(path, kept[-1])):
                kept.append(path)
        return kept

    def changes(self, work: Sequence[str], *, most: int = 2000) -> list[str]:
        """The agent's changes outside its work: folders that it made, and single files in folders of the image."""
        skipped = {*self.select(work), *_RESERVED}
        found: dict[str, None] = {}
        walked, pending = 0, [(layer, "") for layer in self.layers]
        while pending and len(found) < most and walked < _MAX_WALKED:
            layer, folder = pending.pop()
            for entry in _list(os.path.join(layer, folder)):
                walked += 1
                path = posixpath.join(folder, entry.name)
                if path in skipped or "*" in path or _BY_PRODUCTS.fullmatch(path):
                    continue
                is_folder = entry.is_dir(follow_symlinks=False)
                merges = is_folder and not _opaque_mark(entry.path)
                merges = merges and (_is_real(self.root, path) or _is_real(self.before, path))
                if merges or (is_folder and any(_is_within(one, path) for one in skipped)):
                    pending.append((layer, path))  # the folder is the image's, or work is in it
                elif not _is_same(entry.path, os.path.join(self.before, path)):
                    found[f"/{path}"] = None
        return sorted(found)[:most]

    def changed_programs(self, laid: Sequence[str], *, directory: str, most: int = 50) -> list[str]:
        """Programs, libraries and settings of interpreters in the work that the image has otherwise, or not at all.

        Args:
            laid: Folders of `lay`.
            directory: The work directory.
        """
        found: dict[str, None] = {}
        for layer in laid:
            for path, place, given in self._walk(layer):
                if self._can_forge(path, place, given, directory.strip("/") or ".") and not _is_equal(place, given):
                    found[f"/{path}"] = None
        return sorted(found)[:most]

    def _can_forge(self, path: str, place: str, given: str | None, directory: str) -> bool:
        """Programs that tests use may be this file, or be led astray by it."""
        folder, name = posixpath.split(path)
        module = _MODULE.fullmatch(posixpath.relpath(path, directory))
        if (module and module[1] in _TESTED_FIRST) or _STEERING.fullmatch(path) or folder in self._on_path:
            return True
        if _PYTHON_LIBRARY.fullmatch(path):
            above, last = posixpath.split(folder)
            if last == "__pycache__" and _is_real(self.root, above):
                return True  # Python takes it in place of the source
            if name == "entry_points.txt" and b"pytest11" in _read_beginning(place, 1 << 16):
                return True
        if given and os.path.isdir(given) and not os.path.islink(given):
            return bool(_programs(self.root, path))  # something else than the folder is there, or nothing
        return bool(given) and _is_program(str(given), path)

    @property
    def _on_path(self) -> set[str]:
        return {part.strip("/") for part in self.path_variable.split(":")}

    # ---- one path ----------------------------------------------------------------------------------------------------

    def _lay_path(self, layer: str, path: str, target: str, made: dict[str, os.stat_result], *, move: bool) -> None:
        parts = path.split("/")
        parents = ["/".join(parts[:size]) for size in range(1, len(parts))]
        is_gone, hides = False, ""
        for parent in parents:
            mode = _mode(os.path.join(layer, parent))
            if mode is None:
                return  # nothing of the path is in this layer
            if not stat.S_ISDIR(mode):
                is_gone = True  # the agent removed a folder on the way, or put something else in its place
                break
            hides = hides or _opaque_mark(os.path.join(layer, parent))
        source = os.path.join(layer, path)
        is_gone = is_gone or (bool(hides) and _mode(source) is None)
        if not is_gone and _mode(source) is None:
            return
        for parent in parents:
            place = os.path.join(target, parent)
            if place not in made:
                # Not work itself: owner and permissions are the image's, where it has the folder.
                given = [below for below in (self.before, self.root, layer) if _is_real(below, parent)]
                if not given:
                    return  # neither the image nor the agent has the folder, so there is nothing to delete in it
                os.mkdir(place)
                made[place] = os.lstat(os.path.join(given[0], parent))
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
        found = [""]
        for index, part in enumerate(parts):
            if part not in ("*", _VISIBLE):
                found = [posixpath.join(path, part) for path in found]
                continue
            listed = [child for path in found for child in self._children(path)]
            found = [path for path in listed if not posixpath.basename(path).startswith(".")]
            if part == "*" and index == len(parts) - 1:
                found = [inner for path in found for inner in self._without_programs(path)]
        return found

    def _without_programs(self, path: str) -> list[str]:
        """The parts of a path in which the image finds no programs, and keeps none of its own."""
        if posixpath.basename(path) in _PROGRAM_FOLDERS or any(_is_within(one, path) for one in self._on_path):
            return []
        target = _resolve([self.root], path)
        programs = _programs(self.root, target)
        if target in _SYSTEM or target in programs or (programs and target != path):
            return []
        if not programs:
            return [path]
        return [inner for child in self._children(path) for inner in self._without_programs(child)]

    def _children(self, path: str) -> list[str]:
        """The agent's entries of a folder, made by it or given to it."""
        tops = [top for top in (self.before, *self.layers) if _is_real(top, path)]
        listed = (entry.name for top in tops for entry in _list(os.path.join(top, path)))
        return [posixpath.join(path, name) for name in dict.fromkeys(listed)]

    def _cut_links(self, laid: str, tops: Sequence[str]) -> None:
        """Delete links that lead to what the work must not see; `tops` are looked up for where a link leads."""
        modes: list[int] = []

        def leave(name: str, parent: int) -> None:
            if (mode := modes.pop()) & 0o700 != 0o700:
                os.chmod(name, mode, dir_fd=parent)

        # Folders that an ordinary user may not enter are no barrier to its container's root, who runs the tests.
        for folder in each_folder(laid, opens=os.geteuid() != 0, leave=leave):
            if folder.names:
                modes.append(folder.mode)
            for entry in folder.entries:
                if not entry.is_symlink() or len(folder.names) > _MAX_NAMES:
                    continue
                if _HIDDEN.fullmatch(_resolve(tops, posixpath.join(*folder.names, entry.name))):
                    os.unlink(entry.name, dir_fd=folder.descriptor)
                    os.mknod(entry.name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=folder.descriptor)

    def _walk(self, layer: str) -> Iterator[tuple[str, str, str | None]]:
        """Everything in a folder but folders: path, place, and the image's place for it, None if it has nothing."""
        walked, pending = 0, [("", True)]
        while pending and walked < _MAX_WALKED:
            folder, in_image = pending.pop()
            for entry in _list(os.path.join(layer, folder)):
                walked += 1
                path = posixpath.join(folder, entry.name)
                given = os.path.join(self.root, path)
                mode = _mode(given) if in_image else None
                if entry.is_dir(follow_symlinks=False):
                    # A link of the image is not followed: it could lead out of the image.
                    pending.append((path, mode is not None and stat.S_ISDIR(mode)))
                else:
                    yield path, entry.path, None if mode is None else given


@functools.lru_cache(maxsize=256)
def _programs(root: str, path: str) -> frozenset[str]:
    """The image's programs at a path and below: the folders of whole prefixes, where a `bin` is in one, and files."""
    if not _is_real(root, path):
        return frozenset([path] if _leads_to_program(root, path) else [])
    found: set[str] = set()
    walked, pending = 0, [path]
    while pending and walked < _MAX_WALKED:
        folder, inner = pending.pop(), []
        for entry in _list(os.path.join(root, folder)):
            walked += 1
            below = posixpath.join(folder, entry.name)
            if not entry.is_dir(follow_symlinks=False):
                # Most files are neither, and need not be opened.
                if (".so" in entry.name or os.access(entry.path, os.X_OK)) and _leads_to_program(root, below):
                    found.add(below)
            elif entry.name in _PROGRAM_FOLDERS or _PYTHON_LIBRARY.fullmatch(f"{below}/"):
                found.add(posixpath.dirname(folder) if folder != path else path)  # what is beside it is likely its own
                break
            else:
                inner.append(below)
        else:
            pending += inner
    return frozenset(found)


def _leads_to_program(root: str, path: str) -> bool:
    """A file of the image is a program, or a link to one."""
    led = _resolve([root], path)
    return _is_program(os.path.join(root, led), led)


def _resolve(tops: Sequence[str], path: str) -> str:
    """A path as programs find it in folders stacked above each other, the highest first; links never leave them."""
    done, left = "", [part for part in reversed(path.split("/")) if part]
    for _ in range(1000):  # links may lead in a circle
        if not left:
            break
        part = left.pop()
        if part in (".", "..") and not done.startswith(("dev/", "proc/")):  # the kernel's links there lead anywhere
            done = posixpath.dirname(done) if part == ".." else done
            continue
        place = posixpath.join(done, part)
        top = next((top for top in tops if _mode(os.path.join(top, place)) is not None), "")
        if not top or not os.path.islink(os.path.join(top, place)):
            done = place
            continue
        led = os.readlink(os.path.join(top, place))
        done = "" if led.startswith("/") else done
        left += [name for name in reversed(led.split("/")) if name]
    return done


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


def _is_program(place: str, path: str) -> bool:
    """A file of the image is a program, a library of machine code, or part of a Python's library."""
    if _PYTHON_LIBRARY.fullmatch(path) or posixpath.basename(posixpath.dirname(path)) in _PROGRAM_FOLDERS:
        return True
    return _read_beginning(place, 4) == b"\x7fELF"


def _read_beginning(place: str, size: int) -> bytes:
    """The first bytes of a file; none of what cannot be read."""
    try:
        with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(size)
    except OSError:
        return b""


def _is_equal(place: str, given: str | None) -> bool:
    """Both are the same link, or files of the same content."""
    if given is None:
        return False
    one, other = _mode(place), _mode(given)
    if one is None or other is None or stat.S_IFMT(one) != stat.S_IFMT(other):
        return False
    try:
        if stat.S_ISLNK(one):
            return os.readlink(place) == os.readlink(given)
        return stat.S_ISREG(one) and filecmp.cmp(place, given, shallow=False)
    except OSError:
        return False


def _is_same(place: str, before: str) -> bool:
    """The file has not been written since it was copied to `before`."""
    try:
        one, other = os.lstat(place), os.lstat(before)
    except OSError:
        return False
    return (one.st_mode, one.st_size, one.st_mtime_ns) == (other.st_mode, other.st_size, other.st_mtime_ns)


def _touches_reserved(path: str) -> bool:
    return any(_is_within(path, name) or _is_within(name, path) for name in _RESERVED)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _list(folder: str) -> list[os.DirEntry[str]]:
    """The entries of a folder; none of one that is missing, unreadable, or too deep for a path."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def _mode(path: str) -> int | None:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return None


def _opaque_mark(folder: str) -> str:
    """The attribute by which it hides what the layers below have in it; empty if it does not."""
    for name in _OPAQUE:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name, follow_symlinks=False) == b"y":
                return name
    return ""


def _is_real(top: str, folder: str) -> bool:
    """Every part of the path is a folder, none a link."""
    place = top
    for name in filter(None, folder.split("/")):
        place = os.path.join(place, name)
        if not os.path.isdir(place) or os.path.islink(place):
            return False
    return True
