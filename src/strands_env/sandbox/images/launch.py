"""The command that starts a sandbox on an image: bubblewrap, the stack of folders, and the supervisor hidden in it."""

from __future__ import annotations

import base64
import compileall
import functools
import glob
import hashlib
import os
import py_compile
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strands_sglang.cache import cache_folder

from ..bubblewrap.command import (
    SUPERVISOR_BYTES,
    Launch,
    Mode,
    PythonHome,
    choose_mode,
    find_bubblewrap_with_overlays,
    held_capabilities,
    python_home,
    supervisor_arguments,
)
from ..bubblewrap.seccomp import seccomp_program
from ..contract import Network, SandboxLimits, SandboxUnavailableError

_GUEST = str(Path(__file__).parents[1] / "bubblewrap" / "guest")
PROGRAMS = "/.sandbox"
"""Folder of the supervisor's interpreter; it is gone before any foreign code runs."""
_PROCESSORS = "/sys/devices/system/cpu"  # programs count processors there
_NET_RAW, _SYS_PTRACE = 13, 19
_CAPABILITIES = {
    "CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4, "CAP_KILL": 5, "CAP_SETGID": 6,
    "CAP_SETUID": 7, "CAP_NET_BIND_SERVICE": 10, "CAP_NET_RAW": _NET_RAW, "CAP_SYS_CHROOT": 18,
}  # fmt: skip
"""The capabilities of root in a container: docker's, without those over devices, the audit log and other processes'
capabilities, and without the one to give a file capabilities, which would hold outside the container too."""

_LIBRARIES = tuple(path for path in ("/lib", "/lib64") if os.path.isdir(path) and not os.path.islink(path))
"""Folders of libraries on machines where they are not in `/usr`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLaunch(Launch):
    """A sandbox on an image.

    Attributes:
        layers: Folders of its files, the lowest first.
        folder: Folder with `upper` and `work` of this sandbox.
        watched: Descriptor of `upper`, where the supervisor has to measure it; None for a file system of a size.
        binds: Folders and files of this machine to show, by their path inside; read-only.
        environment: Environment variables of the image.
    """

    shares_descriptors = True
    limits: SandboxLimits
    layers: tuple[str, ...]
    folder: str
    watched: int | None = None
    work: str
    code_user: str
    environment: Mapping[str, str]
    network: Network
    cpus: float | None = None
    binds: Mapping[str, str] = field(default_factory=dict)
    hostname: str = "sandbox"

    @property
    def memory_bytes(self) -> int:
        """Memory of the code and of the supervisor; files are on disk."""
        return self.limits.memory_bytes + SUPERVISOR_BYTES

    def arguments(self, info_fd: int, seccomp_fd: int | None) -> list[str]:
        """The command line of bubblewrap."""
        mode, python = image_mode(), python_home()
        arguments = [find_bubblewrap_with_overlays(), "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        arguments += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
        arguments += ["--hostname", self.hostname, "--info-fd", str(info_fd), "--cap-drop", "ALL"]
        if self.network is Network.NONE:
            arguments += ["--unshare-net"]
        if mode is Mode.USER_NAMESPACE:
            arguments += ["--unshare-user", "--uid", "0", "--gid", "0"]
        # The first two are given up once the interpreter is hidden and the others are dropped.
        for name in ("CAP_SYS_ADMIN", "CAP_SETPCAP", *self._capabilities()):
            arguments += ["--cap-add", name]
        if self._watching():
            arguments += ["--cap-add", "CAP_SYS_PTRACE"]
        for layer in self.layers:
            arguments += ["--overlay-src", layer]
        arguments += ["--overlay", f"{self.folder}/upper", f"{self.folder}/work", "/"]
        arguments += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"]
        shown = {_PROCESSORS: _PROCESSORS} if os.path.isdir(_PROCESSORS) else {}
        shown |= {**self.binds, **_supervisor_files(python)}
        parents = {str(parent) for path in shown for parent in Path(path).parents} - {"/"}
        for parent in sorted(parents):  # bubblewrap's own would be closed to other users
            arguments += ["--perms", "0755", "--dir", parent]
        for inside, source in shown.items():
            arguments += ["--ro-bind", source, inside]
        loader, libraries = _loader(python)
        arguments += ["--setenv", "PYTHONHOME", f"{PROGRAMS}{os.path.dirname(os.path.dirname(python.executable))}"]
        arguments += ["--", loader, "--library-path", libraries, f"{PROGRAMS}{python.executable}"]
        return [*arguments, "-S", "-s", "-P", "-B", *supervisor_arguments(PROGRAMS)[-2:]]

    def supervisor_config(self, work: str) -> dict[str, Any]:
        """The image's part of the supervisor's configuration."""
        program = seccomp_program(container=True)
        shared = self.network is not Network.NONE
        return {
            "user": None,
            "work": self.work,
            "file_systems": [],
            "env": {},
            "shell": [],
            "worker": [],
            "watched": self.watched,
            "image": {
                "user": self.code_user,
                "env": dict(self.environment),
                "is_root": image_mode() is Mode.OWN_USER,
                "hostname": self.hostname,
                "hidden": sorted(_supervisor_files(python_home()), reverse=True),
                "programs": PROGRAMS,
                "capabilities": sorted(self._capabilities().values()),
                "watching": self._watching(),
                "seccomp": "" if program is None else base64.b64encode(program).decode(),
                "resolv_conf": Path("/etc/resolv.conf").read_text() if shared else "",
            },
        }

    def _watching(self) -> list[int]:
        """The capability to see what processes of other users have open, where this process has it to give."""
        given = image_mode() is Mode.USER_NAMESPACE or _SYS_PTRACE in held_capabilities()
        return [_SYS_PTRACE] if self.watched is not None and given else []

    def _capabilities(self) -> dict[str, int]:
        shared = self.network is not Network.NONE  # raw sockets would reach the machine's own traffic
        return {name: number for name, number in _CAPABILITIES.items() if not (shared and number == _NET_RAW)}


def image_mode() -> Mode:
    """The way that fits the current user.

    Raises:
        SandboxUnavailableError: Root may not mount here.
    """
    mode = choose_mode()
    if mode is Mode.DROPPED:
        raise SandboxUnavailableError(
            "root without CAP_SYS_ADMIN cannot stack the folders of an image: run as an ordinary user, or start the "
            "container with CAP_SYS_ADMIN"
        )
    return mode


@functools.cache
def _compiled_guest() -> str:
    """Folder with the supervisor's modules, compiled: otherwise it compiles them at every start.

    It lies in the cache, because an installed package may be read-only, or Python told not to write beside it.
    """
    sources = sorted(Path(_GUEST).glob("*.py"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sources) + sys.version.encode()).hexdigest()
    place = cache_folder() / "supervisor" / digest[:16]
    if not place.is_dir():
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=place.parent) as made:
                shutil.copytree(_GUEST, f"{made}/guest", ignore=shutil.ignore_patterns("__pycache__"))
                compileall.compile_dir(
                    f"{made}/guest", quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
                )
                os.rename(f"{made}/guest", place)
        except OSError:  # it cannot be written, or another process was faster
            return str(place) if place.is_dir() else _GUEST
    return str(place)


def _supervisor_files(python: PythonHome) -> dict[str, str]:
    """Files of this machine that the supervisor needs, by their paths inside."""
    shown = {f"{PROGRAMS}{path}": path for path in ("/usr", *_LIBRARIES, *python.folders)}
    return {**shown, f"{PROGRAMS}/guest": _compiled_guest()}


def _loader(python: PythonHome) -> tuple[str, str]:
    """The dynamic loader of this machine, and the folders of its libraries, as the supervisor finds them."""
    places = ("/lib64/ld-linux*.so.*", "/lib/ld-linux*.so.*", "/lib/ld-musl*.so.*", "/usr/lib/ld-linux*.so.*")
    loaders = [os.path.realpath(found) for place in places for found in glob.glob(place)]
    if not loaders:
        raise SandboxUnavailableError("found no dynamic loader in /lib64 or /lib, which the supervisor needs")
    prefix = os.path.dirname(os.path.dirname(python.executable))
    system = [f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"]
    folders = [f"{prefix}/lib", os.path.dirname(loaders[0]), *system]
    return f"{PROGRAMS}{loaders[0]}", ":".join(f"{PROGRAMS}{folder}" for folder in dict.fromkeys(folders))
