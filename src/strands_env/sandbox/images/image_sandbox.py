"""`ImageSandbox`: the files of a container image, a throw-away layer above them, and no daemon."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import glob
import io
import os
import posixpath
import shutil
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from strands_env.core.threads import default_threads
from strands_sglang.exceptions import check_positive
from strands_sglang.lines import replacing

from ..bubblewrap import command
from ..bubblewrap.command import PROGRAMS, Mode
from ..bubblewrap.process import SandboxProcess
from ..bubblewrap.seccomp import seccomp_program
from ..bubblewrap.supervised import FILE_SECONDS, MAX_ARGUMENT_BYTES, SandboxSlots, SupervisedSandbox
from ..contract import (
    MIB,
    Network,
    Outcome,
    SandboxCapabilities,
    SandboxLimits,
    SandboxLostError,
    SandboxUnavailableError,
)
from ..disk import FILES, RESERVE, make_disk
from ..folders import remove_owned_folder
from .layers import Snapshot, copy_upper, hide_obstacles, make_folder
from .store import Image, ImageStore, hold_image, release_image

MAX_FOLDER_BYTES = 1 << 30
"""Most bytes of a folder, or of a file, that is copied out."""
DEFAULT_IMAGE_LIMITS = SandboxLimits(
    wall_seconds=24 * 3600.0,
    cpu_seconds=7 * 24 * 3600.0,
    memory_bytes=2 << 30,
    disk_bytes=10 << 30,
    file_bytes=10 << 30,
    files=10_000_000,
    processes=4096,
    open_files=65_536,
    output_bytes=256 * 1024,
    flood_bytes=256 * MIB,
    code_bytes=MAX_ARGUMENT_BYTES,
)
"""The default limits of a sandbox on an image: those of a small container."""
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


class ImageSandbox(SupervisedSandbox):
    """A sandbox on an unpacked container image: a whole Linux system, in which an agent may be root.

    It starts with its first call, or with `start`, and lives until `close`: background processes of a command live on
    for the next one. All its files go into one layer, which ends with it, unless `snapshot` has copied it.

    One command runs at a time; parallel ones wait in order. One that is cancelled or takes too long is ended with all
    it started in its session; the sandbox goes on. If the sandbox itself ends, such as for lack of memory, that call
    and all others raise `SandboxLostError`, until `close`; `release_layer` still has its files.

    Args:
        image: An image, its name in the store, or a folder with an unpacked root.
        limits: Memory and processes are kept by a control group, where this process may make one; without one, memory
            is watched while a command runs. Root gives it a file system of `disk_bytes`; elsewhere its supervisor
            measures all that was written, every second, and ends every process in it where that is more: the command,
            or the next one, has the outcome `TOO_MANY_FILES`, and files stay. `files` is not enforced.
        cpus: Processors it may use; kept by a control group, and not at all without one.
        network: Its reach: nothing, or that of this machine, with its loopback addresses.
        workdir: Folder where commands start, in place of the image's.
        user: User commands run as, in place of the image's.
        environment: Environment variables beside those of the image. None of this process' own are passed on.
        binds: Folders and files of this machine to show, read-only, by their absolute path inside.
        snapshot: Start with these files instead of the image's own.
        layers: Folders to lay over these files, the lowest first; nothing writes to them.
        slots: Bound on running sandboxes; that of the process if None.

    Attributes:
        layers: Folders between the image and its own layer, the lowest first.

    Raises:
        SandboxUnavailableError: Isolation is unavailable on this machine, or the image is not here.
        ValueError: An argument is out of range.
    """

    starts_again = False

    def __init__(
        self,
        image: Image | str | os.PathLike[str],
        *,
        limits: SandboxLimits | None = None,
        cpus: float | None = None,
        network: Network = Network.NONE,
        workdir: str | None = None,
        user: str | int | None = None,
        environment: Mapping[str, str] | None = None,
        binds: Mapping[str, str] | None = None,
        snapshot: Snapshot | None = None,
        layers: Sequence[str] = (),
        slots: SandboxSlots | None = None,
    ) -> None:
        super().__init__(limits or DEFAULT_IMAGE_LIMITS, slots)
        self.image = image if isinstance(image, Image) else ImageStore().find(os.fspath(image))
        check_positive("processors", optional=True, cpus=cpus)
        if snapshot is not None and snapshot.image != self.image.name:
            raise ValueError(f"the snapshot stands on the image {snapshot.image!r}, got {self.image.name!r}")
        self.binds = dict(binds or {})
        for inside, outside in self.binds.items():
            if not inside.startswith("/") or not os.path.exists(outside):
                raise ValueError(f"binds show existing paths under absolute ones, got {inside!r}: {outside!r}")
        image_mode()
        self.cpus, self.network = cpus, network
        self.layers = (*(() if snapshot is None else snapshot.layers), *layers)
        self.workdir = posixpath.join("/", workdir or self.image.workdir)
        self.user = str(self.image.user or "0") if user is None else str(user)
        self.environment = {**self.image.environment, **(environment or {})}
        self._folder: str | None = None
        self._held: int | None = None  # the lock on its image

    def sibling(self, **options: Any) -> Self:
        """Another sandbox on the same image, without the files of this one; `options` are used over its own."""
        names = ("limits", "cpus", "network", "workdir", "user", "environment", "binds", "layers")
        own: dict[str, Any] = {name: getattr(self, name) for name in names}
        return type(self)(self.image, **{**own, **options})

    @property
    def capabilities(self) -> SandboxCapabilities:
        """Background processes live on; sockets inside can be listened on from here."""
        ends = frozenset((Outcome.TIMEOUT, Outcome.CPU_LIMIT, Outcome.OUT_OF_MEMORY, Outcome.OUTPUT_FLOOD))
        return SandboxCapabilities(
            work=self.workdir, background=True, network=self.network, listens=True, streams=True, limits=ends
        )

    @property
    def layer(self) -> str:
        """Folder with the files it has written so far, also where it has ended unexpectedly.

        Raises:
            SandboxLostError: It never started, or was closed.
        """
        if self._folder is None:
            raise SandboxLostError("the sandbox does not run, and nothing that it had written is left")
        return self._upper

    @property
    def _upper(self) -> str:
        return f"{self._folder}/{FILES}/upper"

    # ---- calls -------------------------------------------------------------------------------------------------------

    async def kill_all(self) -> None:
        """End every process in it; files stay."""
        if self._process is not None:
            await self._request({"kind": "kill"})

    def release_reserve(self) -> None:
        """Give up some room that code could not take, for the grading of its work."""
        if self._folder is not None:
            shutil.rmtree(f"{self._folder}/{FILES}/{RESERVE}", ignore_errors=True)

    async def reset_folders(self, paths: Sequence[str], *, mode: int = 0o755) -> None:
        """Make folders anew, empty and real, also where code has put other files there or on the way to them."""
        await self._request({"kind": "reset", "paths": list(paths), "mode": mode})

    async def write_folder(self, source: str | os.PathLike[str], target: str) -> None:
        """Copy a folder of this machine into a folder of the sandbox, as root."""
        with tempfile.TemporaryFile() as archive:
            await default_threads.run(_pack, str(source), archive)
            await self._request({"kind": "unpack", "path": target}, archive)

    async def read_folder(self, source: str, target: str | os.PathLike[str], *, exclude: Sequence[str] = ()) -> None:
        """Copy a folder of the sandbox into a folder of this machine; links out of it, and devices, are left out.

        Args:
            exclude: Patterns of paths to leave out, as GNU tar reads `--exclude`.

        Raises:
            OSError: It is missing, no folder, or longer than `MAX_FOLDER_BYTES`.
        """
        with tempfile.TemporaryFile() as archive:
            request = {"kind": "pack", "path": source, "max_bytes": MAX_FOLDER_BYTES, "exclude": list(exclude)}
            await self._request(request, archive)
            archive.seek(0)
            await default_threads.run(_unpack, archive, str(target))

    async def copy_file(self, source: str, target: str | os.PathLike[str]) -> None:
        """Copy a file of the sandbox, as root sees it, into a file of this machine, which is made last and whole.

        Raises:
            OSError: It is missing, no regular file, or longer than `MAX_FOLDER_BYTES`.
        """
        with replacing(Path(target)) as part, part.open("wb") as file:
            request = {"kind": "read", "path": source, "max_bytes": MAX_FOLDER_BYTES, "user": "0"}
            await self._request(request, file)

    async def store_file(self, source: str | os.PathLike[str], target: str) -> None:
        """Copy a file of this machine, with its permissions, into a file of the sandbox, as root."""
        with open(source, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            await self._request({"kind": "write", "path": target, "mode": mode, "user": "0"}, file)

    async def is_folder(self, path: str) -> bool:
        """A path leads to a folder, as root sees it; no program of the sandbox is asked."""
        try:
            await self.read_file(path, max_bytes=0, user="0")
        except OSError as error:
            return error.errno == errno.EISDIR
        return False

    async def snapshot(self, folder: str | os.PathLike[str]) -> Snapshot:
        """Copy the files it has written so far into a new folder, while its processes rest.

        Raises:
            SandboxError: The copy failed.
        """
        path = Path(folder).resolve()
        async with self._lock:
            await self._request_locked({"kind": "freeze"})
            try:
                assert self._folder is not None
                await default_threads.run(copy_upper, self._upper, str(path / "upper"))
            finally:
                await self._request_locked({"kind": "thaw"})
        snapshot = Snapshot(path=str(path), image=self.image.name, layers=(*self.layers, str(path / "upper")))
        snapshot.save()
        return snapshot

    # ---- life --------------------------------------------------------------------------------------------------------

    async def _start_process(self) -> SandboxProcess:
        watched: int | None = None
        try:
            self._held = await default_threads.run(hold_image, self.image)
            self._folder = await default_threads.run(make_folder)
            if not await default_threads.run(make_disk, self._folder, self.limits.disk_bytes):
                # Inside, the supervisor reaches this folder by its descriptor alone.
                watched = os.open(self._upper, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            # The supervisor's own folder is hidden whole: to remove a million files there would take too long.
            shown = {PROGRAMS: "", **self._shown()}
            await default_threads.run(hide_obstacles, self._upper, self.layers, self.image.root, shown)
            return await self._make_process(watched).start()
        except BaseException:
            await self._clear()
            raise
        finally:
            if watched is not None:
                os.close(watched)

    def _shown(self) -> dict[str, str]:
        """Files of this machine by their paths inside, those that the supervisor needs among them."""
        processors = {_PROCESSORS: _PROCESSORS} if os.path.isdir(_PROCESSORS) else {}
        needed = {f"{PROGRAMS}{path}": path for path in ("/usr", *_LIBRARIES, *command.python_home().folders)}
        return {**processors, **self.binds, **needed, f"{PROGRAMS}/guest": command.guest_folder()}

    def _make_process(self, watched: int | None) -> SandboxProcess:
        """Bubblewrap over the stack of folders, with the supervisor hidden in it.

        Args:
            watched: Descriptor of `upper`, where the supervisor has to measure it; None for a file system of a size.
        """
        mode, python, shares = image_mode(), command.python_home(), self.network is not Network.NONE
        # Raw sockets would reach the machine's own traffic.
        capabilities = {name: number for name, number in _CAPABILITIES.items() if not (shares and number == _NET_RAW)}
        # To see what processes of other users have open, where this process has that capability to give.
        can_look = watched is not None and (mode is Mode.USER_NAMESPACE or _SYS_PTRACE in command.held_capabilities())
        # Root of a shared network has to be the machine's own to listen on its low ports.
        can_own = mode is Mode.OWN_USER and _SETFCAP in command.held_capabilities() and command.has_fresh_users()
        owner = command.fresh_user() if can_own and not shares else None
        bwrap = [*command.isolating_arguments(overlays=True), *([] if shares else ["--unshare-net"])]
        if mode is Mode.USER_NAMESPACE:
            bwrap += ["--unshare-user", "--uid", "0", "--gid", "0"]
        # The first are given up once the interpreter is hidden and the others are dropped.
        given_up = ["CAP_SYS_ADMIN", "CAP_SETPCAP", *([] if owner is None else ["CAP_SETFCAP"])]
        for name in (*given_up, *capabilities, *(["CAP_SYS_PTRACE"] if can_look else [])):
            bwrap += ["--cap-add", name]
        for layer in (self.image.root, *self.layers):
            bwrap += ["--overlay-src", layer]
        bwrap += ["--overlay", self._upper, f"{self._folder}/{FILES}/work", "/"]
        bwrap += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"]
        bwrap += command.showing_arguments(self._shown())
        bwrap += ["--setenv", "PYTHONHOME", f"{PROGRAMS}{os.path.dirname(os.path.dirname(python.executable))}"]
        loader, libraries = _loader(python)
        program = [loader, "--library-path", libraries, f"{PROGRAMS}{python.executable}", "-S", "-s", "-P", "-B"]
        image = {
            "user": self.user,
            "env": self.environment,
            "is_root": mode is Mode.OWN_USER,
            "owner": owner,
            "hostname": command.HOSTNAME,
            "hidden": sorted((path for path in self._shown() if path.startswith(f"{PROGRAMS}/")), reverse=True),
            "programs": PROGRAMS,
            "capabilities": sorted(capabilities.values()),
            "watching": [_SYS_PTRACE] if can_look else [],
            "resolv_conf": Path("/etc/resolv.conf").read_text() if shares else "",
        }
        return SandboxProcess(
            limits=self.limits,
            bwrap=bwrap,
            program=[*program, "-c", command.supervisor_code(PROGRAMS)],
            config={"work": self.workdir, "file_systems": [], "image": image},
            memory_bytes=self.limits.memory_bytes,  # files are on disk
            seccomp=seccomp_program(container=True),
            cpus=self.cpus,
            watched=watched,
        )

    async def _end(self) -> None:
        try:
            await super()._end()
        finally:
            if not self._is_lost:
                await self._clear()

    async def release_layer(self) -> str:
        """End it, and hand over the folder with its files, in `upper`; the owned folder is the one above it."""
        async with self._lock:
            folder = os.path.dirname(self.layer)
            self.release_reserve()
            self._folder = None  # or its end would remove it
            await self._end()
        return folder

    async def _clear(self) -> None:
        folder, self._folder = self._folder, None
        held, self._held = self._held, None

        def clear() -> None:
            if folder is not None:
                remove_owned_folder(folder)
            release_image(self.image, held)

        clearing = asyncio.ensure_future(default_threads.run(clear))
        try:
            await asyncio.shield(clearing)
        except asyncio.CancelledError:
            await clearing  # or files would be left when the canceller goes on
            raise


def image_mode() -> Mode:
    """The way that fits the current user.

    Raises:
        SandboxUnavailableError: Root may not mount here.
    """
    mode = command.choose_mode()
    if mode is Mode.DROPPED:
        raise SandboxUnavailableError(
            "root without CAP_SYS_ADMIN cannot stack the folders of an image: run as an ordinary user, or start the "
            "container with CAP_SYS_ADMIN"
        )
    return mode


def _loader(python: command.PythonHome) -> tuple[str, str]:
    """The dynamic loader of this machine, and the folders of its libraries, as the supervisor finds them."""
    places = ("/lib64/ld-linux*.so.*", "/lib/ld-linux*.so.*", "/lib/ld-musl*.so.*", "/usr/lib/ld-linux*.so.*")
    loaders = [os.path.realpath(path) for place in places for path in glob.glob(place)]
    if not loaders:
        raise SandboxUnavailableError("found no dynamic loader in /lib64 or /lib, which the supervisor needs")
    prefix = os.path.dirname(os.path.dirname(python.executable))
    system = [f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"]
    folders = [f"{prefix}/lib", os.path.dirname(loaders[0]), *system]
    return f"{PROGRAMS}{loaders[0]}", ":".join(f"{PROGRAMS}{folder}" for folder in dict.fromkeys(folders))


def _pack(source: str, archive: Any) -> None:
    if not os.path.isdir(source):
        raise NotADirectoryError(errno.ENOTDIR, "not a folder", source)

    def owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        return None if member.isdev() else member

    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(source, arcname=".", filter=owned_by_root)
    archive.flush()
    archive.seek(0)


def _unpack(archive: io.BufferedIOBase, target: str) -> None:
    """Extract an archive of foreign files, parents first, into a folder that no other process writes to."""
    deadline, links = time.monotonic() + FILE_SECONDS, []
    os.makedirs(target, exist_ok=True)
    with tarfile.open(fileobj=archive, mode="r:") as tar:
        for member in tar:
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, f"could not be copied within {FILE_SECONDS:g} s", target)
            place, parts = os.path.join(target, member.name), member.name.split("/")
            if member.name.startswith("/") or not {"", ".", ".."}.isdisjoint(parts):
                continue
            if member.isdir():
                os.makedirs(place, exist_ok=True)
            elif member.issym():
                links.append((member.linkname, place, len(parts) - 1))
            elif member.isreg() and (source := tar.extractfile(member)) is not None:
                with open(place, "wb") as file:
                    shutil.copyfileobj(source, file, MIB)
                os.chmod(place, member.mode & 0o755 | 0o600)
    # Links come last, so that nothing is written through one. They may lead upwards only at their beginning, and not
    # above the folder: what a further `..` leads to depends on other links.
    for link, place, depth in links:
        steps = link.split("/")
        up = next((index for index, step in enumerate(steps) if step != ".."), len(steps))
        if not link.startswith("/") and up <= depth and ".." not in steps[up:]:
            with contextlib.suppress(FileExistsError):
                os.symlink(link, place)
