"""The command that starts a sandbox on an image: bubblewrap, the stack of folders, and the supervisor hidden in it."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..bubblewrap.command import (
    HOSTNAME,
    PROGRAMS,
    SUPERVISOR_BYTES,
    Launch,
    Mode,
    PythonHome,
    choose_mode,
    find_bubblewrap,
    fresh_user,
    guest_folder,
    has_fresh_users,
    held_capabilities,
    isolating_arguments,
    python_home,
    showing_arguments,
    supervisor_arguments,
)
from ..bubblewrap.seccomp import seccomp_program
from ..contract import Network, SandboxUnavailableError

if TYPE_CHECKING:
    from .sandbox import ImageSandbox

_PROCESSORS = "/sys/devices/system/cpu"  # programs count processors there
_NET_RAW, _SYS_PTRACE, _SETFCAP = 13, 19, 31
_CAPABILITIES = {
    "CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4, "CAP_KILL": 5, "CAP_SETGID": 6,
    "CAP_SETUID": 7, "CAP_NET_BIND_SERVICE": 10, "CAP_NET_RAW": _NET_RAW, "CAP_SYS_CHROOT": 18,
}  # fmt: skip
"""The capabilities of root in a container: docker's, without those over devices, the audit log and other processes'
capabilities, and without the one to give a file capabilities, which would hold outside the container too."""

_LIBRARIES = tuple(path for path in ("/lib", "/lib64") if os.path.isdir(path) and not os.path.islink(path))
"""Folders of libraries on machines where they are not in `/usr`."""


def image_launch(sandbox: ImageSandbox, *, layers: Sequence[str], folder: str, watched: int | None) -> Launch:
    """The start of a sandbox on an image.

    Args:
        layers: Folders of its files, the lowest first.
        folder: Folder with `upper` and `work` of this sandbox.
        watched: Descriptor of `upper`, where the supervisor has to measure it; None for a file system of a size.
    """
    mode, python, shares = image_mode(), python_home(), sandbox.network is not Network.NONE
    # Raw sockets would reach the machine's own traffic.
    capabilities = {name: number for name, number in _CAPABILITIES.items() if not (shares and number == _NET_RAW)}
    # To see what processes of other users have open, where this process has that capability to give.
    can_look = watched is not None and (mode is Mode.USER_NAMESPACE or _SYS_PTRACE in held_capabilities())
    # Root of a shared network has to be the machine's own to listen on its low ports.
    can_own = mode is Mode.OWN_USER and _SETFCAP in held_capabilities() and has_fresh_users()
    owner = fresh_user() if can_own and not shares else None
    bwrap = [*isolating_arguments(find_bubblewrap(overlays=True)), *([] if shares else ["--unshare-net"])]
    if mode is Mode.USER_NAMESPACE:
        bwrap += ["--unshare-user", "--uid", "0", "--gid", "0"]
    # The first are given up once the interpreter is hidden and the others are dropped.
    given_up = ["CAP_SYS_ADMIN", "CAP_SETPCAP", *([] if owner is None else ["CAP_SETFCAP"])]
    for name in (*given_up, *capabilities, *(["CAP_SYS_PTRACE"] if can_look else [])):
        bwrap += ["--cap-add", name]
    for layer in layers:
        bwrap += ["--overlay-src", layer]
    bwrap += ["--overlay", f"{folder}/upper", f"{folder}/work", "/"]
    bwrap += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"]
    shown = {_PROCESSORS: _PROCESSORS} if os.path.isdir(_PROCESSORS) else {}
    shown |= {**sandbox.binds, **_supervisor_files(python)}
    bwrap += showing_arguments(shown)
    bwrap += ["--setenv", "PYTHONHOME", f"{PROGRAMS}{os.path.dirname(os.path.dirname(python.executable))}"]
    loader, libraries = _loader(python)
    program = [loader, "--library-path", libraries, f"{PROGRAMS}{python.executable}", "-S", "-s", "-P", "-B"]
    image = {
        "user": sandbox.user,
        "env": sandbox.environment,
        "is_root": mode is Mode.OWN_USER,
        "owner": owner,
        "hostname": HOSTNAME,
        "hidden": sorted(_supervisor_files(python), reverse=True),
        "programs": PROGRAMS,
        "capabilities": sorted(capabilities.values()),
        "watching": [_SYS_PTRACE] if can_look else [],
        "resolv_conf": Path("/etc/resolv.conf").read_text() if shares else "",
    }
    return Launch(
        limits=sandbox.limits,
        bwrap=bwrap,
        program=[*program, *supervisor_arguments(PROGRAMS)[-2:]],
        config={"work": sandbox.workdir, "watched": watched, "file_systems": [], "image": image},
        memory_bytes=sandbox.limits.memory_bytes + SUPERVISOR_BYTES,  # files are on disk
        seccomp=seccomp_program(container=True),
        cpus=sandbox.cpus,
        watched=watched,
    )


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


def _supervisor_files(python: PythonHome) -> dict[str, str]:
    """Files of this machine that the supervisor needs, by their paths inside."""
    shown = {f"{PROGRAMS}{path}": path for path in ("/usr", *_LIBRARIES, *python.folders)}
    return {**shown, f"{PROGRAMS}/guest": guest_folder()}


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
