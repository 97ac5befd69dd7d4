"""One running sandbox seen from this process: start it, talk to its supervisor, end it and everything in it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from strands_env.core.threads import default_threads

from ..contract import Isolation, SandboxError, SandboxLimits, SandboxUnavailableError
from . import command as _bubblewrap
from .cgroup import ControlGroup, make_control_group
from .command import Mode, PythonHome
from .seccomp import seccomp_program

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = 128 << 20
END_SECONDS = 10.0
ABANDONED_SECONDS = 2.0
"""How long a finalizer waits for the processes of a sandbox that was never closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """Everything a sandbox is started from."""

    limits: SandboxLimits
    isolation: Isolation
    python: PythonHome
    read_only: tuple[str, ...]
    environment: Mapping[str, str]
    mode: Mode | None
    bwrap: str | None

    def environment_for(self, work: str) -> dict[str, str]:
        """The environment variables of foreign code; nothing of this process' own ones."""
        return {
            "PATH": f"{os.path.dirname(self.python.executable)}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": work,
            "TMPDIR": "/tmp" if self.isolation is Isolation.BUBBLEWRAP else work,
            "USER": "sandbox",
            "LOGNAME": "sandbox",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "OMP_NUM_THREADS": "1",  # threads count as processes
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.environment,
        }


@dataclass(slots=True, kw_only=True)
class _Handles:
    """What a start has opened so far; all of it is closed whatever happens."""

    parent: socket.socket
    child: socket.socket
    descriptors: list[int] = field(default_factory=list)

    def pipe(self) -> tuple[int, int]:
        read_end, write_end = os.pipe()
        self.descriptors += [read_end, write_end]
        return read_end, write_end

    def close(self, *, parent: bool) -> None:
        self.child.close()
        if parent:
            self.parent.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()


@dataclass(slots=True)
class _Belongings:
    """What a running sandbox has on this machine, so that it can be cleared away without it."""

    process: subprocess.Popen[bytes]
    work_directory: str | None
    first_pidfd: int = -1
    group: ControlGroup | None = None
    when_abandoned: Callable[[], None] | None = None

    def kill(self) -> None:
        """Kill everything: the kernel ends all processes with the first, which is gone only after them."""
        if self.first_pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.first_pidfd, signal.SIGKILL)
            os.close(self.first_pidfd)
            self.first_pidfd = -1

    def abandon(self) -> None:
        """Clear away a sandbox that was never closed and is unreachable. Blocks for some milliseconds."""
        logger.warning("pid=<%d> | a sandbox was never closed; use 'async with' or close()", self.process.pid)
        isolated = self.first_pidfd >= 0
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            if not isolated:
                self.process.kill()
            self.process.wait(ABANDONED_SECONDS)
        for _ in range(50):
            if self.group is None or self.group.is_removed():
                break
            time.sleep(0.02)
        if self.work_directory is not None:
            _remove_tree(self.work_directory)
        if self.when_abandoned is not None:
            self.when_abandoned()


class SandboxProcess:
    """A started sandbox. Made by `start`, ended by `end`; one that is dropped instead is ended by a finalizer."""

    def __init__(self, process: subprocess.Popen[bytes], work_directory: str | None) -> None:
        self._own = _Belongings(process, work_directory)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._requests = 0
        self._finalizer = weakref.finalize(self, self._own.abandon)

    def when_abandoned(self, call: Callable[[], None]) -> None:
        """If the sandbox is dropped without `end`, call this in the current event loop."""
        loop = asyncio.get_running_loop()

        def in_loop() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(call)

        self._own.when_abandoned = in_loop

    @classmethod
    async def start(cls, blueprint: Blueprint) -> SandboxProcess:
        """Start a sandbox.

        Raises:
            SandboxUnavailableError: It does not start, with what bubblewrap said.
        """
        parent, child = socket.socketpair()
        handles = _Handles(parent=parent, child=child)
        isolated = blueprint.isolation is Isolation.BUBBLEWRAP
        work_directory = None if isolated else tempfile.mkdtemp(prefix=f"strands-env-sandbox-{os.getpid()}-")
        started: SandboxProcess | None = None
        try:
            error_read, error_write = handles.pipe()
            info_read, info_write = handles.pipe()
            life_read, life_write = handles.pipe()
            os.set_blocking(error_read, False)
            os.set_blocking(info_read, False)
            process = _launch(blueprint, handles, info_write, error_write, (life_read, life_write))
            handles.child.close()
            for descriptor in (error_write, info_write, life_read, life_write):
                os.close(descriptor)
                handles.descriptors.remove(descriptor)
            started = cls(process, work_directory)
            try:
                async with asyncio.timeout(blueprint.limits.start_seconds):
                    await started._connect(handles.parent, blueprint, life_read if isolated else None)
            except (TimeoutError, OSError, EOFError, ValueError, SandboxError) as error:
                said = _read_available(error_read)
                raise SandboxUnavailableError(_start_failure(blueprint, said, error)) from error
            if isolated:
                started._confine(json.loads(_read_available(info_read))["child-pid"], blueprint.limits)
        except BaseException:
            handles.close(parent=started is None or started._writer is None)
            if started is not None:
                await started.end()
            elif work_directory is not None:
                shutil.rmtree(work_directory, ignore_errors=True)
            raise
        handles.close(parent=False)
        return started

    async def _connect(self, channel: socket.socket, blueprint: Blueprint, life: int | None) -> None:
        channel.setblocking(False)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=channel, limit=1 << 17)
        isolated = blueprint.isolation is Isolation.BUBBLEWRAP
        work = self._own.work_directory or _bubblewrap.WORK
        worker = f"{_bubblewrap.programs(isolated=isolated)}/inside/worker.py"
        token = secrets.token_hex(16)
        await self._send(
            {
                "token": token,
                "isolated": isolated,
                "life": life,
                "user": _bubblewrap.fresh_user() if blueprint.mode is Mode.OWN_USER else None,
                "work": work,
                "file_systems": [work, "/tmp", "/dev/shm"] if isolated else [],
                "limits": asdict(blueprint.limits),
                "env": blueprint.environment_for(work),
                "shell": ["/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh", "-c"],
                "worker": [blueprint.python.executable, "-B", "-s", worker],
            }
        )
        answer = await self._receive()
        if answer.get("ready") != token:
            raise SandboxError("the supervisor did not answer as itself")

    def _confine(self, first_pid: int, limits: SandboxLimits) -> None:
        """Take a handle on process 1 of the sandbox and put it into a control group, before any foreign code runs."""
        self._own.first_pidfd = os.pidfd_open(first_pid)
        # Files are in memory, too, and the supervisor is in the group.
        memory = limits.memory_bytes + 2 * limits.disk_bytes + (48 << 20)
        self._own.group = make_control_group(memory, limits.processes + 8)
        if self._own.group is not None:
            try:
                self._own.group.add(first_pid)
            except OSError as error:
                logger.debug("error=<%s> | no control group", error)

    @property
    def is_alive(self) -> bool:
        """Whether it can take a request."""
        return self._own.process.poll() is None and self._reader is not None and not self._reader.at_eof()

    @property
    def oom_kills(self) -> int:
        """Processes that the kernel has killed so far for lack of memory."""
        return 0 if self._own.group is None else self._own.group.oom_kills()

    async def request(
        self, kind: str, code: str, *, wall: float, cpu: float, output_bytes: int, stdin: str = ""
    ) -> dict[str, Any]:
        """Run code and wait for its answer.

        Raises:
            EOFError: The sandbox is gone.
            TimeoutError: It does not answer in time.
            SandboxError: It answers something else.
        """
        self._requests += 1
        nonce = secrets.token_hex(16)
        message = {"id": self._requests, "nonce": nonce, "kind": kind, "code": code, "stdin": stdin}
        message |= {"wall": wall, "cpu": cpu, "output_bytes": output_bytes}
        async with asyncio.timeout(wall + END_SECONDS + 5.0):  # the supervisor keeps the limit; this is for its death
            await self._send(message)
            answer = await self._receive()
        if answer.get("id") != self._requests or answer.get("nonce") != nonce:
            raise SandboxError("the sandbox answered another request")
        return answer

    async def end(self) -> None:
        """End every process of the sandbox and wait until they are gone; remove what it had outside."""
        self._own.kill()
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
            self._reader = self._writer = None
        await self._wait(END_SECONDS)
        if self._own.group is not None:
            await self._own.group.remove()
            self._own.group = None
        if self._own.work_directory is not None:
            await default_threads.run(_remove_tree, self._own.work_directory)
            self._own.work_directory = None
        self._finalizer.detach()

    async def _wait(self, seconds: float) -> None:
        delay, waited = 0.002, 0.0
        while self._own.process.poll() is None:
            if waited > seconds:
                self._own.process.kill()
            await asyncio.sleep(delay)
            waited += delay
            delay = min(2 * delay, 0.05)

    async def _send(self, value: Mapping[str, Any]) -> None:
        assert self._writer is not None
        body = json.dumps(value).encode()
        self._writer.write(struct.pack(">I", len(body)) + body)
        await self._writer.drain()

    async def _receive(self) -> dict[str, Any]:
        assert self._reader is not None
        (size,) = struct.unpack(">I", await self._reader.readexactly(4))
        if size > MAX_FRAME_BYTES:
            raise SandboxError(f"the sandbox sent a frame of {size} bytes")
        answer: dict[str, Any] = json.loads(await self._reader.readexactly(size))
        return answer


def _launch(
    blueprint: Blueprint, handles: _Handles, info_write: int, error_write: int, life: tuple[int, int]
) -> subprocess.Popen[bytes]:
    """Start the first program. In the calling thread: Linux ends the sandbox when that thread ends."""
    passed: list[int] = []
    user: int | None = None
    if blueprint.isolation is Isolation.BUBBLEWRAP:
        assert blueprint.bwrap is not None and blueprint.mode is not None
        program = seccomp_program()
        seccomp_read: int | None = None
        if program is not None:
            seccomp_read, seccomp_write = handles.pipe()
            os.write(seccomp_write, program)  # shorter than a pipe's buffer
            os.close(seccomp_write)
            handles.descriptors.remove(seccomp_write)
            passed.append(seccomp_read)
        passed += [info_write, life[0]]
        if blueprint.mode is Mode.DROPPED:
            user = _bubblewrap.fresh_user()
        arguments = _bubblewrap.command(
            bwrap=blueprint.bwrap,
            mode=blueprint.mode,
            limits=blueprint.limits,
            python=blueprint.python,
            read_only=blueprint.read_only,
            environment=blueprint.environment_for(_bubblewrap.WORK),
            info_fd=info_write,
            seccomp_fd=seccomp_read,
        )
    else:
        folder = _bubblewrap.programs(isolated=False)
        arguments = [blueprint.python.executable, *_bubblewrap.supervisor_arguments(folder)]
    try:
        return subprocess.Popen(
            arguments,
            stdin=handles.child.fileno(),
            stdout=life[1] if passed else subprocess.DEVNULL,
            stderr=error_write,
            pass_fds=passed,
            env={},
            cwd="/",
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
    except OSError as error:
        raise SandboxUnavailableError(f"{arguments[0]!r} cannot be run: {error}") from error


_HINTS = (
    (
        ("Can't mount proc",),
        "Parts of /proc are masked in this container: start it with --security-opt systempaths=unconfined "
        "(Kubernetes: procMount: Unmasked), or with CAP_SYS_ADMIN",
    ),
    (
        ("ENOSPC", "max_"),
        "User namespaces are used up or forbidden here: raise sysctl user.max_user_namespaces",
    ),
    (
        ("ermission denied", "not permitted"),
        "Namespaces are denied here: allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
        "kernel.apparmor_restrict_unprivileged_userns=0), in a container also by its seccomp profile "
        "(--security-opt seccomp=unconfined), or start the container with CAP_SYS_ADMIN; "
        "if it names a path, that path must be readable for everyone",
    ),
)
"""What is missing, by the words of the failure."""


def _start_failure(blueprint: Blueprint, said: str, error: BaseException) -> str:
    said = " ".join(said.split()) or f"{type(error).__name__} {error}".strip()
    if isinstance(error, TimeoutError):
        said = f"not ready within {blueprint.limits.start_seconds:g} s. {said}"
    text = f"the sandbox could not be started: {said[-1000:]}"
    hint = next((hint for words, hint in _HINTS if any(word in said for word in words)), None)
    return text if hint is None else f"{text}. {hint}"


def _read_available(descriptor: int) -> str:
    data = b""
    with contextlib.suppress(BlockingIOError):
        while len(data) < 65536 and (part := os.read(descriptor, 65536)):
            data += part
    return data.decode(errors="replace")


def _remove_tree(path: str) -> None:
    """Remove a folder in which foreign code has changed the permissions as it liked."""

    def allow(function: Any, failed: str, _: Any) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(failed), 0o700)
            if os.path.isdir(failed) and not os.path.islink(failed):
                os.chmod(failed, 0o700)
                shutil.rmtree(failed, ignore_errors=True)
            else:
                function(failed)

    if sys.version_info >= (3, 12):
        shutil.rmtree(path, onexc=allow)
    else:
        shutil.rmtree(path, onerror=allow)


def isolation_from(value: Isolation | str) -> Isolation:
    """The kind of isolation of that name.

    Raises:
        ValueError: It does not exist.
    """
    try:
        return Isolation(value)
    except ValueError:
        raise ValueError(f"isolation must be one of {[kind.value for kind in Isolation]}, got {value!r}") from None


def make_blueprint(
    *,
    limits: SandboxLimits,
    isolation: Isolation,
    python: str | None,
    read_only: Sequence[str | os.PathLike[str]],
    packages: Sequence[str | os.PathLike[str]],
    environment: Mapping[str, str],
) -> Blueprint:
    """Check what a sandbox is to be made from.

    Raises:
        SandboxUnavailableError: Isolation is unavailable on this machine.
        ValueError: A folder does not exist.
    """
    folders = [os.path.abspath(os.fspath(folder)) for folder in (*read_only, *packages)]
    for folder in folders:
        if not os.path.exists(folder):
            raise ValueError(f"the sandbox is to show {folder!r}, which does not exist")
    bubblewrap = isolation is Isolation.BUBBLEWRAP
    variables = dict(environment)
    if packages:
        variables["PYTHONPATH"] = os.pathsep.join(folders[len(read_only) :])
    return Blueprint(
        limits=limits,
        isolation=isolation,
        python=_bubblewrap.python_home(python),
        read_only=tuple(folders),
        environment=variables,
        mode=_bubblewrap.choose_mode() if bubblewrap else None,
        bwrap=_bubblewrap.find_bubblewrap() if bubblewrap else None,
    )
