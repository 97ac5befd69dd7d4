"""A look at an agent's work before tests see it: links out of it are cut, and what could forge a reward is named."""

from __future__ import annotations

import filecmp
import functools
import os
import posixpath
import re
import stat
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..bubblewrap.guest.system import each_folder
from .paths import Stack, hidden_folders, is_real, is_within, list_folder, mode_of, shown_path

if TYPE_CHECKING:
    from .work import AgentFiles

_STEERING = re.compile(
    r"(.*/)?(conftest\.py|\.?pytest\.(ini|toml)|tox\.ini|setup\.cfg|pyproject\.toml|\.coveragerc|uv\.toml"
    r"|pyvenv\.cfg|[^/]*\.pth|(site|user)customize\.py"
    r"|\.(bash(rc|_profile|_login|_logout|_aliases|_completion)|profile|z(shenv|shrc|profile|login|logout)|inputrc"
    r"|shrc|m?kshrc|yashrc|yash_profile|t?cshrc|cshdirs|login|logout|config/(fish|git|bash|zsh)/.*)"
    r"|\.git(config|attributes|modules)|\.git|\.git/(.*/)?(config(\.worktree)?|commondir|hooks(/.*)?|info/[^/]*))"
    r"|etc/(passwd|profile(\.d/.*)?|bash(\.bashrc|rc|_completion\.d/.*)|z(shenv|shrc|profile|login|sh/.*)|fish/.*|inputrc"
    r"|csh\..*|environment|ld\.so\..*|nsswitch\.conf|git(config|attributes))",
    re.DOTALL,
)
"""Settings of interpreters, shells and test runners. Reported, so an incomplete list costs a report, not a reward."""
_REPOSITORY = re.compile(r"(.*/)?(config(\.worktree)?|commondir|(hooks|info)(/[^/]*)?)", re.DOTALL)
"""Settings of git where the folder has a `HEAD`: git takes every such folder for a repository, whatever its name."""
_PLUGINS = re.compile(r"(.*/)?([^/]*\.)?(dist|egg)-info(/entry_points\.txt)?", re.IGNORECASE | re.DOTALL)
_PYTHON_LIBRARY = re.compile(r"(.*/)?lib(64)?/python3[^/]*/.*", re.DOTALL)
_MODULE = re.compile(r"([^.]+)(\.pyc?|(\..*)?\.so)", re.DOTALL)
_RUNNERS = {"_pytest", "attr", "attrs", "colorama", "exceptiongroup", "execnet", "iniconfig", "packaging", "pluggy"}
_RUNNERS |= {"py", "pygments", "pytest", "tomli", "typing_extensions", "xdist"}
"""Modules of test runners, which tests may install themselves."""
_PLUGIN_MODULES = """
_hypothesis_ftz_detector _hypothesis_globals _hypothesis_pytestplugin aiohttp allure allure_commons allure_pytest
ansi2html anyio atomicwrites beartype certifi charset_normalizer coverage cpuinfo dateutil django dotenv faker
filelock flask freezegun funcsigs gherkin greenlet h11 httpcore httpx hypothesis icdiff idna importlib_metadata
importlib_resources inline_snapshot jaxtyping jinja2 jsonschema markupsafe mock model_bakery more_itertools mypy
nbformat nose numpy pandas parameterized parse_type pathlib2 playwright pprintpp psutil pyfakefs requests
requests_mock respx rich ruamel scandir schemathesis selenium setproctitle simplejson six snapshottest sniffio
sortedcontainers sqlalchemy syrupy tabulate tblib teamcity tenacity termcolor testinfra testscenarios testtools
time_machine toml tomlkit tomllib trio twisted typeguard unittest2 urllib3 vcr wcwidth werkzeug wrapt yaml yarl zipp
zope
"""
"""Modules that the usual plug-ins of pytest import: tests may install those, too, and find others in the work."""
PROGRAM_FOLDERS = ("bin", "sbin")
_MAX_NAMES = 2000
"""Folders inside each other that a path can lead through. Links deeper than that are cut."""
_MAX_SETTINGS = 1 << 16
"""Bytes of a file of settings that are read; a longer one counts as one that leads astray."""
_LOGS = "logs"
MAX_WALKED = 200_000
"""Entries that a search looks at, so that a million files do not delay the reward."""


class LaidWork:
    """Work in folders of its own, to be stacked above the image; none of it is left out of the inspection.

    Args:
        files: What the work was selected from.
        folders: The lowest first.
        paths: What was selected as work.
        most: Entries of each list.

    Attributes:
        cut_links: Links that are left out, because they lead out of the work to what tests must not find there: the
            tests themselves, the logs, what the kernel shows, and what was not there yet.
        changed_programs: Programs, libraries and settings of interpreters that the image has otherwise, or not at all,
            and links to folders outside the work, in which tests may write.
    """

    def __init__(self, files: AgentFiles, folders: Sequence[str], paths: Sequence[str], *, most: int = 50) -> None:
        self.folders, self._files, self._most = tuple(folders), files, most
        self.cut_links: list[str] = []
        self.changed_programs: list[str] = []
        self._given = (files.before, files.root)
        self._paths = set(paths)
        self._on_path, self._directory = files.on_path, files.directory.strip("/")
        self._roots = {*paths, *map(posixpath.dirname, paths), self._directory}
        """Where tests are likely to run Python: what is there is found before anything else."""
        self._hidden = hidden_folders(files.root)
        self._stack = Stack([*reversed(folders), *self._given], self._hidden)
        prefixes = {"usr", "usr/local", *map(posixpath.dirname, files.on_path)} - {""}
        self._modules = _modules(files.root, tuple(sorted(prefixes)))
        for folder in folders:
            self._inspect(folder)

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
            for entry in folder.entries:
                path, is_link = posixpath.join(paths[-1], entry.name), entry.is_symlink()
                if not is_link and (len(self.changed_programs) > self._most or entry.is_dir(follow_symlinks=False)):
                    continue
                place = os.path.join(layer, path)
                original = next((one for top in tops[-1] if mode_of(one := os.path.join(top, path)) is not None), None)
                if _is_equal(place, original, only_links=True):
                    continue
                if is_link and self._leads_astray(paths[-1], entry.name, folder.descriptor):
                    self._cut(entry.name, folder.descriptor, path)
                if self._can_forge(path, place, original) and not _is_equal(place, original):
                    self._name(shown_path(path))
        if is_deep:
            self._name(f"(folders more than {_MAX_NAMES} deep, which were not looked at)")

    def _name(self, what: str) -> None:
        if len(self.changed_programs) <= self._most:
            is_last = len(self.changed_programs) == self._most
            self.changed_programs.append(f"(more than {self._most} such files)" if is_last else what)

    def _cut(self, name: str, folder: int, path: str) -> None:
        os.unlink(name, dir_fd=folder)
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=folder)
        if len(self.cut_links) < self._most:
            self.cut_links.append(shown_path(path))

    def _leads_astray(self, folder: str, name: str, descriptor: int) -> bool:
        """A link leads to what is hidden, or to where nothing is yet outside the work, or nobody knows where."""
        target = self._stack.resolve(os.readlink(name, dir_fd=descriptor), folder)
        if not target or any(is_within(target, one) or is_within(one, target) for one in self._hidden):
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
        if _STEERING.fullmatch(path) or folder in self._on_path or self._shadows_module(path, place):
            return True
        if _REPOSITORY.fullmatch(path):
            top = posixpath.dirname(folder) if posixpath.basename(folder) in ("hooks", "info") else folder
            if self._stack.has(posixpath.join(top, "HEAD")):
                return True
        if _PLUGINS.fullmatch(path):
            begins = _read_beginning(place, _MAX_SETTINGS + 1)
            if begins is None or b"pytest11" in begins or len(begins) > _MAX_SETTINGS:
                return True
        if _PYTHON_LIBRARY.fullmatch(path):
            above, last = posixpath.split(folder)
            if last == "__pycache__" and is_real(self._files.root, above):
                return True  # Python takes it in place of the source
        if os.path.islink(place):
            target = self._stack.resolve(os.readlink(place), folder)
            if target is not None and not self._is_work(target) and self._stack.has(f"{target}/."):
                return True  # whatever tests write into that folder is there too
        if original and os.path.isdir(original) and not os.path.islink(original):
            return bool(programs_in(self._files.root, path))  # something else than the folder is there, or nothing
        return bool(original) and _is_program(str(original), path)

    def _shadows_module(self, path: str, place: str) -> bool:
        """Python may find this module where another of that name is meant."""
        folder, name = posixpath.split(path)
        if (module := _MODULE.fullmatch(name)) is not None:
            name = module[1]
            if name == "__init__":
                folder, name = posixpath.split(folder)
        elif not os.path.islink(place):  # which may lead to a package
            return False
        if name in _RUNNERS or name.startswith("pytest"):
            return True
        return name in self._modules and (self._directory == "" or folder in self._roots)


@functools.lru_cache(maxsize=64)
def _modules(root: str, prefixes: Sequence[str]) -> frozenset[str]:
    """The modules that Python and test runners import, and those which are installed in an image."""
    modules = {*sys.stdlib_module_names, *_RUNNERS, *_PLUGIN_MODULES.split()}
    for library in [f"{prefix}/{name}" for prefix in prefixes for name in ("lib", "lib64")]:
        for python in list_folder(os.path.join(root, library)) if is_real(root, library) else ():
            for packages in ("site-packages", "dist-packages") if python.name.startswith("python3") else ():
                if is_real(root, f"{library}/{python.name}/{packages}"):
                    modules |= {entry.name.partition(".")[0] for entry in list_folder(f"{python.path}/{packages}")}
    return frozenset(modules)


@functools.lru_cache(maxsize=256)
def programs_in(root: str, path: str) -> frozenset[str]:
    """The image's programs at a path and below: the folders of whole prefixes, where a `bin` is in one, and files."""
    if not is_real(root, path):
        return frozenset([path] if _leads_to_program(root, path) else [])
    programs: set[str] = set()
    walked, pending = 0, [path]
    while pending and walked < MAX_WALKED:
        folder, inner = pending.pop(), []
        for entry in list_folder(os.path.join(root, folder)):
            walked += 1
            below = posixpath.join(folder, entry.name)
            if not entry.is_dir(follow_symlinks=False):
                # Most files are neither, and need not be opened.
                if (".so" in entry.name or os.access(entry.path, os.X_OK)) and _leads_to_program(root, below):
                    programs.add(below)
            elif entry.name in PROGRAM_FOLDERS or _PYTHON_LIBRARY.fullmatch(f"{below}/"):
                programs.add(
                    posixpath.dirname(folder) if folder != path else path
                )  # what is beside it is likely its own
                break
            else:
                inner.append(below)
        else:
            pending += inner
    if pending and walked >= MAX_WALKED:
        programs.add(f"{path}/...")  # not known: each part of it is looked at for itself
    return frozenset(programs)


def _leads_to_program(root: str, path: str) -> bool:
    """A file of the image is a program, or a link to one."""
    target = Stack([root]).resolve(path)
    return target is not None and _is_program(os.path.join(root, target), target)


def _is_program(place: str, path: str) -> bool:
    """A file of the image is a program, a library of machine code, or part of a Python's library."""
    if _PYTHON_LIBRARY.fullmatch(path) or posixpath.basename(posixpath.dirname(path)) in PROGRAM_FOLDERS:
        return True
    return _read_beginning(place, 4) == b"\x7fELF"


def _read_beginning(place: str, size: int) -> bytes | None:
    """The first bytes of a file; None of what cannot be read, such as a link."""
    try:
        with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(size)
    except OSError:
        return None


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
