"""The programs of an image, and files that lead them astray: changes to these can forge a reward."""

from __future__ import annotations

import functools
import os
import posixpath
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from .paths import Stack, is_real, list_folder

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
PYTHON_LIBRARY = re.compile(r"(.*/)?lib(64)?/python3[^/]*/.*", re.DOTALL)
_NEVER = r"(?!)"
MODULE = re.compile(r"([^.]+)(\.pyc?|(\..*)?\.so)", re.DOTALL)
RUNNERS = {"_pytest", "attr", "attrs", "colorama", "exceptiongroup", "execnet", "iniconfig", "packaging", "pluggy"}
RUNNERS |= {"py", "pygments", "pytest", "tomli", "typing_extensions", "xdist"}
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
_MAX_SETTINGS = 1 << 16
"""Bytes of a file of settings that are read; a longer one counts as one that leads astray."""
MAX_WALKED = 200_000
"""Entries that a search looks at, so that a million files do not delay the reward."""
_MAX_TEST_BYTES = 1 << 20
"""Bytes of each file of the tests in which words are looked for."""
_WORD = re.compile(r"[a-z_][\w.+-]*")
_COMMAND = re.compile(r"(?:^|[;&|(`{]|\b(?:then|do|else|exec|sudo|time|env))[ \t]*([a-z_][\w.+-]*)", re.MULTILINE)
_INSTALLS = re.compile(r"^.*(?:\binstall\b|\buvx\b|--with\b).*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesInTests:
    """Names in a task's tests that files of the work could stand in for, in lower case.

    Tests are copied into the work, or look for modules there: then a file of one of these names is found in place of
    theirs, and a setting of a program that they start is read.

    Attributes:
        files: Full names of their files. The script that Harbor runs, by its path, is not among them.
        stems: Names of their files up to the first dot, which an import of them looks for.
        folders: Names of their folders.
        words: Words of their texts, such as folders in which they run, and modules.
        programs: Words in the place of a command, and those that are names of programs of the image.
        installs: Packages that they install themselves, spelt as modules.
    """

    files: frozenset[str] = frozenset()
    stems: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    programs: frozenset[str] = frozenset()
    installs: frozenset[str] = frozenset()

    @classmethod
    def read(cls, folders: Iterable[str], programs: Iterable[str] = ()) -> Self:
        """Read the tests in these folders; one that is missing has none. `programs`: names of the image's."""
        names: set[str] = set()
        inner: set[str] = set()
        words: set[str] = set()
        commands: set[str] = set()
        installs: set[str] = set()
        for top in folders:
            inner.add(posixpath.basename(top).lower())
            for place, below, files in os.walk(top):
                inner.update(name.lower() for name in below)
                names.update(name.lower() for name in files if (place, name) != (top, "test.sh"))
                for name in files:
                    text = (_read_beginning(os.path.join(place, name), _MAX_TEST_BYTES) or b"").decode(errors="replace")
                    words.update(_WORD.findall(text := text.lower()))
                    if not name.endswith((".py", ".js", ".ts")):  # those start programs by name, which the image has
                        commands.update(_COMMAND.findall(text))
                    for line in _INSTALLS.findall(text):
                        installs.update(word.partition("=")[0].replace("-", "_") for word in _WORD.findall(line))
        return cls(
            files=frozenset(names - {"__init__.py"}),
            stems=frozenset(stem for name in names if (stem := name.partition(".")[0]) not in ("", "__init__")),
            folders=frozenset(inner),
            words=frozenset(words),
            programs=frozenset(commands | (words & {name.lower() for name in programs})),
            installs=frozenset(installs),
        )

    def are_found_at(self, path: str) -> bool:
        """A file of the work is found in place of one of the tests, or is a setting of a program that they start."""
        *folders, name = path.lower().split("/")
        parent = folders[-1] if folders else ""
        stem = name.partition(".")[0]
        if name in self.files or stem in self.stems or not self.stems.isdisjoint(folders):
            return True
        if stem == "__init__" and parent in self.folders:  # run where tests that are copied beside it are collected
            return True
        # `make` reads a GNUmakefile before a Makefile.
        if "." not in name and any(len(one) > 3 and name.endswith(one) for one in self.files if "." not in one):
            return True
        settings = _settings_of(self.programs)
        return settings.fullmatch(name) is not None or (parent != ".git" and settings.fullmatch(parent) is not None)


@functools.lru_cache(maxsize=64)
def _settings_of(programs: frozenset[str]) -> re.Pattern[str]:
    """The usual spellings of a program's settings: `.proverc`, `.cargo/`, `jest.config.js`, `Rakefile`."""
    any_of = "|".join(map(re.escape, sorted(programs, key=len, reverse=True))) or _NEVER
    hidden = rf"\.(?:{any_of})(?:rc|init|env|conf(?:ig)?|profile)?(?:[^a-z].*)?"
    shown = rf"[a-z]*(?:{any_of})(?:file|lists|[._-]?(?:rc|conf(?:ig)?|cfg|ini|toml|json|ya?ml|xml))(?:[^a-z].*)?"
    return re.compile(f"{hidden}|{shown}", re.DOTALL)


@functools.lru_cache(maxsize=64)
def known_modules(root: str, prefixes: Sequence[str]) -> frozenset[str]:
    """The modules that Python and test runners import, and those which are installed in an image."""
    modules = {*sys.stdlib_module_names, *RUNNERS, *_PLUGIN_MODULES.split()}
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
            elif entry.name in PROGRAM_FOLDERS or PYTHON_LIBRARY.fullmatch(f"{below}/"):
                # What is beside it is likely its own.
                programs.add(posixpath.dirname(folder) if folder != path else path)
                break
            else:
                inner.append(below)
        else:
            pending += inner
    if pending and walked >= MAX_WALKED:
        programs.add(f"{path}/...")  # not known: each part of it is looked at for itself
    return frozenset(programs)


def is_setting(path: str, place: str, stack: Stack) -> bool:
    """A file is a setting of interpreters, shells, test runners or git, by its path in the stack, or its content."""
    if _STEERING.fullmatch(path):
        return True
    if _REPOSITORY.fullmatch(path):
        folder = posixpath.dirname(path)
        top = posixpath.dirname(folder) if posixpath.basename(folder) in ("hooks", "info") else folder
        if stack.has(posixpath.join(top, "HEAD")):
            return True
    if not _PLUGINS.fullmatch(path):
        return False
    begins = _read_beginning(place, _MAX_SETTINGS + 1)
    return begins is None or b"pytest11" in begins or len(begins) > _MAX_SETTINGS


def _leads_to_program(root: str, path: str) -> bool:
    """A file of the image is a program, or a link to one."""
    target = Stack([root]).resolve(path)
    return target is not None and is_program(os.path.join(root, target), target)


def is_program(place: str, path: str) -> bool:
    """A file of the image is a program, a library of machine code, or part of a Python's library."""
    if PYTHON_LIBRARY.fullmatch(path) or posixpath.basename(posixpath.dirname(path)) in PROGRAM_FOLDERS:
        return True
    return _read_beginning(place, 4) == b"\x7fELF"


def _read_beginning(place: str, size: int) -> bytes | None:
    """The first bytes of a file; None if it cannot be read, such as a link."""
    try:
        with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(size)
    except OSError:
        return None
