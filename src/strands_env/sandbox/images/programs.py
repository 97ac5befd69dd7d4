"""The programs that run tests, as the image has them: what an agent changed among them, and how it is undone.

An agent that is root may replace the shell that reads the tests, shadow an interpreter, or have one load its code at
every start. All of it lies in the layer above the image, and is found there, by one rule: tests that work at all work
on the image, so what runs them can be the image's again. Code that it left beside its own work, such as a module named
like one of the tests' imports, and packages of the tests' other than pytest, cannot be told from work: a verifier in a
container of its own is the cure.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import stat
import tarfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

_NAMES = (
    "sh", "bash", "dash", "ash", "busybox", "env", "python", "python[23]*", "pytest", "py.test", "pip*", "uv", "uvx",
    "node", "perl", "ruby", "cat", "echo", "printf", "test", "[[]", "cp", "mv", "rm", "ls", "mkdir", "chmod", "chown",
    "touch", "tee", "head", "tail", "grep", "sed", "awk", "gawk", "mawk", "cut", "sort", "uniq", "wc", "tr", "diff",
    "cmp", "find", "xargs", "true", "false", "expr", "seq", "date", "stat", "sha256sum", "md5sum", "timeout", "sleep",
    "jq", "curl", "wget", "id", "which*", "dirname", "basename", "readlink", "realpath", "pwd", "tar", "sudo", "su",
    "apt", "apt-*", "dpkg*", "apk", "activate", "conda", "bc", "ln", "ps", "pgrep", "od", "xxd", "file", "comm",
    "nproc", "mktemp", "whoami", "hostname", "uname", "base64", "sha1sum", "sha512sum", "cksum", "gzip", "nc",
)  # fmt: skip
"""Programs that run tests, or that tests read results with."""
_FOLDERS = ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin")
_FETCHED = frozenset({"pytest", "py.test", "uv", "uvx", "curl", "wget"})
"""Programs that tests install for themselves, and find in `/usr/local` first."""
_HOME = r"(root|home/[^/]+)"
_TOP = re.compile(r"conftest\.py|\.?pytest\.(ini|toml)|pyproject\.toml|tox\.ini|setup\.cfg")
"""Files at the top that steer pytest, wherever its tests lie."""
_FILES = re.compile(
    r"etc/(ld\.so\.(preload|conf)|ld-musl-.*\.path|nsswitch\.conf|ssl/openssl\.cnf|apt/.*|dpkg/.*|pip\.conf|uv/.*)"
    rf"|{_HOME}/\.local/bin/(env|uvx?)"
    r"|(.*/)?etc/(profile\.d/conda\.sh|conda/(de)?activate\.d/.*)"
    rf"|{_HOME}/(\.(config|cache)/(pip|uv)(/.*)?|\.pip(/.*)?|\.(curl|wget|sqlite)rc|\.jq|\.pydistutils\.cfg)"
    r"|(.*/)?lib(64)?/python3\d+\.zip(/.*)?"
    r"|(.*/)?(site|user)customize(\..*|/.*)?"
)
"""Files that steer every program, every Python or installer, and where the tests' own installers look first."""
_CORE = "ld-linux|ld-musl|lib(c|m|dl|pthread|tinfo)"
_LIBRARIES = re.compile(
    r"(usr/)?(local/)?lib(32|64)?/([^/]+-linux-[^/]+/)?"
    rf"({_CORE}|lib(selinux|acl|attr|pcre2-8|z|expat|nss_[a-z]+|python3.*))[.-][^/]*"
)
"""Libraries of the shell, of Python and of nearly every other program."""
_PREFERRED = re.compile(
    rf"(usr/local/lib.*|(usr/)?lib.*/(glibc-hwcaps|tls|haswell|x86_64|i686|aarch64)/.*)/({_CORE})\.so\.[^/]*"
)
"""Places where the loader looks for them first."""
_CORE_NAME = re.compile(rf"({_CORE})\.so\..*")
_PYTHON = re.compile(r"(?P<top>(?:.*/)?lib(?:64)?/python3[^/]*)(?P<site>/(?:site|dist)-packages)?(?:/(?P<rest>.*))?")
_PYTHONS = ("lib", "usr/lib", "usr/lib64", "usr/local/lib")
_HOME_FOLDER = re.compile(rf"{_HOME}/\.(config|cache|local(/lib(/python3[^/]*)?)?)")
_ENVIRONMENT = re.compile(r"python[^/]*|pip[^/]*|pytest|py\.test|activate[^/]*")
"""Programs in the `bin` of an environment of Python's."""
_RUNNERS = re.compile(r"(_?pytest|py|pluggy|iniconfig)(\..*|-[^/]*)?(/.*)?")
"""Pytest and its own dependencies, in a folder of packages."""
_SHARED = re.compile(r"(?P<name>packaging|pygments|exceptiongroup|tomli|attrs?)(\..*|-[^/]*)?(/.*)?", re.IGNORECASE)
"""What else it stands on; others do too, so that these are guarded only where the image has them and pytest."""
_LISTED_BYTES = 1 << 20


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
                tar.add(os.path.join(root, path), arcname=path)
        archive.flush()
        archive.seek(0)


def find_tampering(
    root: str, layers: Sequence[str], *, path_variable: str, work: str, mounts: Collection[str] = (), user: str = "root"
) -> Tampering:
    """Compare a sandbox's layers with its image.

    Args:
        root: Folder of the image.
        layers: Folders of the layers, the lowest first: those of a snapshot, and the sandbox's own.
        path_variable: The image's `PATH`.
        work: The work directory: settings of tests in it are work.
        user: Name or number of the user that tests run as, beside root.
        mounts: Paths where something of this machine is shown; the layer holds empty places for them.
    """
    shown = {path.strip("/") for path in mounts}
    restored: dict[str, None] = {}
    removed: dict[str, None] = {}
    for upper in layers:
        guard = _Guard(root, upper, path_variable, top_is_work=not work.strip("/"), users=("root", "0", user))
        for change in guard.changes():
            if change.path in shown:
                continue
            if change.replaces_folder:
                restored[change.path] = None
            elif not change.is_folder and guard.covers(change):
                (removed if change.is_new else restored)[change.path] = None
    return Tampering(restored=tuple(restored), removed=tuple(removed))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A file or folder of the layer.

    Attributes:
        is_new: The image has nothing there.
        replaces_folder: It hides a guarded folder of the image, or leads it elsewhere.
    """

    path: str
    is_new: bool
    is_folder: bool
    replaces_folder: bool = False


class _Guard:
    """Guarded paths in a layer above an image."""

    def __init__(self, root: str, upper: str, path_variable: str, *, top_is_work: bool, users: Collection[str]) -> None:
        self.root, self.upper, self.top_is_work, self.users = root, upper, top_is_work, users
        on_path = [part.strip("/") for part in path_variable.split(":") if part.startswith("/")]
        self.on_path = frozenset([*on_path, *_FOLDERS])
        self.above = {"/".join(parts[:size]) for parts in _parts(self.on_path) for size in range(1, len(parts) + 1)}
        self.above |= {"root", "home", "etc", "lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib"}
        listed = [name for folder in self.on_path if _is_real(root, folder) for name in os.listdir(f"{root}/{folder}")]
        self.pythons = {
            name
            for folder in _PYTHONS
            if _is_real(root, folder)
            for name in os.listdir(f"{root}/{folder}")
            if name.startswith("python3")
        }
        self.programs = {name for name in listed if any(fnmatch.fnmatchcase(name, pattern) for pattern in _NAMES)}
        places = [f"{folder}/{name}" for folder in self.on_path for name in self.programs]
        self.targets = {step for place in places for step in _followed(root, place)}

    def changes(self) -> Iterator[_Change]:
        """Everything in the layer, folders before what is in them; not below one that is restored whole."""
        pending = [("", True)]
        while pending:
            folder, in_image = pending.pop()
            for entry in sorted(os.scandir(os.path.join(self.upper, folder)), key=lambda one: one.name):
                path = posixpath.join(folder, entry.name)
                below = _mode(os.path.join(self.root, path)) if in_image else None
                is_folder = entry.is_dir(follow_symlinks=False)
                both = is_folder and below is not None and stat.S_ISDIR(below)
                hides = not both or _is_opaque(entry.path)
                was_folder = below is not None and (stat.S_ISDIR(below) or stat.S_ISLNK(below))
                replaces = was_folder and hides and self._is_guarded_folder(path)
                yield _Change(path=path, is_new=below is None, is_folder=is_folder, replaces_folder=replaces)
                if is_folder and (both or not replaces):
                    pending.append((path, both))

    def _is_guarded_folder(self, path: str) -> bool:
        if path in self.above or _HOME_FOLDER.fullmatch(path):
            return True
        found = _PYTHON.fullmatch(path)
        return (
            found is not None
            and (not found["rest"] or self._is_of_pytest(found))
            and self._is_of_the_image(found["top"])
        )

    def covers(self, change: _Change) -> bool:
        """This file runs tests, or steers what does."""
        path, (folder, name) = change.path, posixpath.split(change.path)
        if folder in self.on_path and (
            name in self.programs or (change.is_new and name in _FETCHED and folder.startswith("usr/local/"))
        ):
            return True
        if not change.is_new and (path in self.targets or _LIBRARIES.fullmatch(path)):
            return True
        if _FILES.fullmatch(path) or (change.is_new and _PREFERRED.fullmatch(path)):
            return True
        if path == "etc/passwd":
            return self._moves_a_home()
        if path == "etc/ld.so.cache" or path.startswith("etc/ld.so.conf.d/"):
            return self._leads_to_a_library(path)
        if name == "pyvenv.cfg" and (not change.is_new or {folder, f"{folder}/bin".strip("/")} & self.on_path):
            return True
        if folder.endswith("/bin") and _ENVIRONMENT.fullmatch(name) and self._has_python(posixpath.dirname(folder)):
            return True
        if change.is_new and self._is_guarded_folder(path):  # a link, or a file
            return True
        if not self.top_is_work and change.is_new and _TOP.fullmatch(path):
            return True
        found = _PYTHON.fullmatch(path)
        if found is None or not found["rest"] or not self._is_of_the_image(found["top"]):
            return False
        if not found["site"]:
            return True
        return self._is_of_pytest(found) or self._is_loaded_unasked(path)

    def _is_of_pytest(self, found: re.Match[str]) -> bool:
        """It is pytest's, or of a package that it stands on; a match of `_PYTHON`."""
        if _RUNNERS.fullmatch(found["rest"]):
            return True
        shared = _SHARED.fullmatch(found["rest"])
        return shared is not None and all(self._has_package(name, found["top"]) for name in ("pytest", shared["name"]))

    def _has_package(self, name: str, top: str) -> bool:
        """The image has a package, in this library of Python or in a usual one."""
        tops = {top, *(f"{library}/{python}" for library in _PYTHONS for python in self.pythons)}
        names = (name.lower(), f"{name.lower()}.py")
        return any(
            _mode(f"{self.root}/{one}/{kind}-packages/{entry}") is not None
            for one in tops
            for kind in ("site", "dist")
            for entry in names
        )

    def _has_python(self, prefix: str) -> bool:
        library = f"{prefix}/lib"
        return _is_real(self.root, library) and any(
            name.startswith("python3") for name in os.listdir(f"{self.root}/{library}")
        )

    def _moves_a_home(self) -> bool:
        """A user that tests run as has another home, where programs find other settings."""
        text = self._read("etc/passwd")
        if text is None:
            return True
        try:
            with open(f"{self.root}/etc/passwd", errors="replace") as file:
                before = file.read(_LISTED_BYTES)
        except OSError:
            before = "root:x:0:0::/root:"

        def home(users: str, given: str) -> str | None:
            lines = [line.split(":") for line in users.splitlines()]
            return next((line[5] for line in lines if len(line) == 7 and given in (line[0], line[2])), None)

        return any(home(text, given) != home(before, given) for given in self.users)

    def _leads_to_a_library(self, path: str) -> bool:
        """The loader would find another C library, or one of its kind, by this file."""
        text = self._read(path)
        if text is None:
            return True
        if path == "etc/ld.so.cache":
            listed = [name[1:] for name in text.split("\0") if name.startswith("/")]
            core = [name for name in listed if _CORE_NAME.fullmatch(posixpath.basename(name))]
            return any(_mode(os.path.join(self.root, _followed(self.root, name)[-1])) is None for name in core)
        places = [line.strip().lstrip("/") for line in text.splitlines()]
        made = [place for place in places if place and _mode(os.path.join(self.upper, place)) is not None]
        return any(
            not _is_real(self.upper, place) or any(map(_CORE_NAME.fullmatch, os.listdir(f"{self.upper}/{place}")))
            for place in made
        )

    def _is_of_the_image(self, library: str) -> bool:
        """The library of a Python that the image has, or of packages for it elsewhere; not of one that was made new."""
        name = posixpath.basename(library)
        if name == "python3":  # Debian's packages for every Python
            return bool(self.pythons)
        is_for_all = library.startswith("usr/") or _HOME_FOLDER.fullmatch(library) is not None
        return _is_real(self.root, library) or (is_for_all and name in self.pythons)

    def _is_loaded_unasked(self, path: str) -> bool:
        """A line of it is run at every start of Python, or pytest loads what it names, or names a way to."""
        if path.endswith("/entry_points.txt"):
            return self._read(path) is None or "pytest11" in str(self._read(path))
        if not path.endswith(".pth"):
            return False
        text = self._read(path)
        if text is None:
            return True
        lines = text.removeprefix("\ufeff").splitlines()
        return any(line.startswith(("import ", "import\t")) or self._leads_to_a_plugin(path, line) for line in lines)

    def _leads_to_a_plugin(self, path: str, line: str) -> bool:
        """A folder that was made new, and in it something that pytest loads by itself."""
        place = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), line.strip()))[1:]
        if not place or line.startswith("#") or _mode(os.path.join(self.upper, place)) is None:
            return False
        if not _is_real(self.upper, place):
            return True
        inner = [name for name in os.listdir(os.path.join(self.upper, place)) if name.endswith("-info")]
        return any(self._is_loaded_unasked(f"{place}/{name}/entry_points.txt") for name in inner)

    def _read(self, path: str) -> str | None:
        """A small file of the layer; None for anything but a small file, empty if the path does not exist."""
        place = os.path.join(self.upper, path)
        mode = _mode(place)
        if mode is None or not stat.S_ISREG(mode) or not _is_real(self.upper, posixpath.dirname(path)):
            return "" if mode is None else None
        with open(place, "rb") as file:
            text = file.read(_LISTED_BYTES + 1)
        return None if len(text) > _LISTED_BYTES else text.decode(errors="replace")


def _parts(folders: frozenset[str]) -> list[list[str]]:
    return [folder.split("/") for folder in folders if folder]


def _followed(root: str, path: str) -> list[str]:
    """A path in an image, and where its links lead, step by step; the last is no link, or leads in a circle."""
    steps = [path]
    for _ in range(20):
        parts = steps[-1].split("/")
        prefixes = ["/".join(parts[: size + 1]) for size in range(len(parts))]
        link = next((one for one in prefixes if os.path.islink(f"{root}/{one}")), None)
        if link is None:
            break
        rest = steps[-1][len(link) + 1 :]
        led = posixpath.join("/", posixpath.dirname(link), os.readlink(f"{root}/{link}"), rest)
        steps.append(posixpath.normpath(led).strip("/"))
    return steps


def _mode(path: str) -> int | None:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return None


def _is_opaque(folder: str) -> bool:
    """It hides what the image has in it."""
    for name in ("trusted.overlay.opaque", "user.overlay.opaque"):
        try:
            if os.getxattr(folder, name, follow_symlinks=False) == b"y":
                return True
        except OSError:
            continue
    return False


def _is_real(top: str, folder: str) -> bool:
    """Every part of the path is a folder, none a link."""
    place = top
    for name in folder.split("/"):
        place = os.path.join(place, name)
        if not os.path.isdir(place) or os.path.islink(place):
            return False
    return True
