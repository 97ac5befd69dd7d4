"""One running sandbox seen from this process: start it, talk to its supervisor, end it and everything in it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import re
import secrets
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import IO, Any

from strands_env.core.threads import default_threads

from ..contract import SandboxError, SandboxUnavailableError
from ..folders import announce, discard
from .cgroup import ControlGroup, make_control_group
from .command import WORK, Launch
from .guest.protocol import frame

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = 128 << 20
END_SECONDS = 10.0


class SandboxProcess:
    """A started sandbox. Made by `start`, ended by `end`."""

    def __init__(self, process: subprocess.Popen[bytes], launch: Launch, shared: socket.socket) -> None:
        self._process = process
        self._work_directory = launch.work_directory
        self._shared = shared
        self._first_pidfd = -1
        self._group: ControlGroup | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._token = secrets.token_hex(16)
        self._exchange: asyncio.Future[dict[str, Any]] | None = None

    @classmethod
    async def start(cls, launch: Launch) -> SandboxProcess:
        """Start a sandbox; `SandboxUnavailableError` quotes bubblewrap where it does not start."""
        with contextlib.ExitStack() as kept, contextlib.ExitStack() as read, contextlib.ExitStack() as passed:
            parent, child = socket.socketpair()
            kept.callback(parent.close)
            passed.callback(child.close)
            # Packets: a stream could merge two messages and their descriptors.
            shared, passed_on = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            kept.callback(shared.close)
            passed.callback(passed_on.close)
            if launch.work_directory is not None:
                kept.callback(discard, launch.work_directory)
            error_read, error_write = _pipe(read, passed)
            info_read, info_write = _pipe(read, passed)
            life = _pipe(passed, passed)
            os.set_blocking(error_read, False)
            inherited = [passed_on.fileno(), *([] if launch.watched is None else [launch.watched])]
            arguments = [*launch.bwrap]
            if launch.bwrap:
                inherited += [info_write, life[0]]
                arguments += ["--info-fd", str(info_write), "--"]
            arguments += launch.program
            try:  # in the calling thread: Linux ends the sandbox when that thread ends
                process = subprocess.Popen(
                    arguments,
                    stdin=child.fileno(),
                    stdout=life[1] if launch.bwrap else subprocess.DEVNULL,
                    stderr=error_write,
                    pass_fds=inherited,
                    env={},
                    cwd="/",
                    start_new_session=True,
                    user=launch.user,
                    group=launch.user,
                    extra_groups=None if launch.user is None else [],
                )
            except OSError as error:
                raise SandboxUnavailableError(f"{arguments[0]!r} cannot be run: {error}") from error
            passed.close()  # the end of a pipe is seen once nobody else holds its other side
            started = cls(process, launch, shared)
            config: dict[str, Any] = {"descriptors": inherited[0], "life": life[0] if launch.bwrap else None}
            try:
                async with asyncio.timeout(launch.limits.start_seconds):
                    await started._configure(launch, parent, config, info_read)
            except (TimeoutError, OSError, EOFError, ValueError, SandboxError) as error:
                output = b""
                with contextlib.suppress(BlockingIOError):
                    output = os.read(error_read, 65536)
                await started.end()
                raise SandboxUnavailableError(_start_failure(launch, output.decode(errors="replace"), error)) from error
            except BaseException:
                await started.end()
                raise
            kept.pop_all()
            return started

    async def _configure(self, launch: Launch, channel: socket.socket, config: dict[str, Any], info: int) -> None:
        """Send the supervisor its configuration, and wait until it is ready for foreign code."""
        channel.setblocking(False)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=channel, limit=1 << 17)
        config |= {"token": self._token, "isolated": bool(launch.bwrap), "limits": asdict(launch.limits)}
        config["seccomp"] = (launch.seccomp or b"").hex()
        await self._send({**config, "nice": os.getpriority(os.PRIO_PROCESS, 0), **launch.config})
        if launch.bwrap:  # while the supervisor starts
            # Bubblewrap names process 1 of the sandbox first.
            names = re.search(rb'"child-pid": (\d+)', await default_threads.run(os.read, info, 65536))
            if names is None:
                raise EOFError("bubblewrap started nothing")
            await self._confine(int(names[1]), launch)
        answer = await self._receive()
        if answer.get("ready") != self._token:
            raise SandboxError("the supervisor did not answer as itself")

    async def _confine(self, first_pid: int, launch: Launch) -> None:
        """Take a handle on process 1 of the sandbox and put it into a control group, before any foreign code runs."""
        self._first_pidfd = os.pidfd_open(first_pid)  # a number would be used again for another process
        with contextlib.suppress(PermissionError):  # it has to come before any number of processes that it watches
            os.setpriority(os.PRIO_PROCESS, first_pid, -20)
        announce()
        self._group = make_control_group(launch.memory_bytes, launch.limits.processes + 8, launch.cpus)
        if self._group is not None:
            try:  # the kernel takes some 10 ms for it
                await default_threads.run(self._group.add, first_pid)
            except OSError as error:
                logger.debug("error=<%s> | no control group", error)

    @property
    def work(self) -> str:
        """The work directory, as the sandbox sees it."""
        return self._work_directory or WORK

    @property
    def pid(self) -> int:
        """The process that started it here; all of its own descend from this one."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """It can take a request."""
        return self._process.poll() is None and self._reader is not None and not self._reader.at_eof()

    @property
    def oom_kills(self) -> int:
        """Processes that the kernel has killed so far for lack of memory."""
        return 0 if self._group is None else self._group.oom_kills()

    async def request(
        self,
        request: Mapping[str, Any],
        file: IO[bytes] | None = None,
        on_output: Callable[[str, bytes], None] | None = None,
    ) -> dict[str, Any]:
        """Send a request, with an open file to work on, and wait for its answer.

        Args:
            on_output: Gets the output as it comes: the stream's name, and bytes.

        Raises:
            EOFError: The sandbox is gone.
            TimeoutError: It does not answer in time.
            SandboxError: It answers something else.
        """
        nonce = secrets.token_hex(16)
        if file is not None:
            socket.send_fds(self._shared, [nonce.encode()], [file.fileno()])
        sent = {**request, "nonce": nonce, "sends_file": file is not None, "streams": on_output is not None}
        self._exchange = asyncio.ensure_future(self._exchange_frames(sent, on_output))
        return await asyncio.shield(self._exchange)  # cancelled here, it goes on: `take_back` reads its answer

    async def take_back(self) -> None:
        """End the call whose request was cancelled, and it alone; raises as `request` does."""
        if self._exchange is not None and not self._exchange.done():
            await self._send({"kind": "cancelled"})
            async with asyncio.timeout(END_SECONDS):
                await self._exchange

    def received_descriptor(self) -> int:
        """The open file that an answered request has handed out."""
        _, descriptors, _, _ = socket.recv_fds(self._shared, 64, 1, socket.MSG_DONTWAIT)
        return int(descriptors[0])

    async def _exchange_frames(
        self, request: Mapping[str, Any], on_output: Callable[[str, bytes], None] | None
    ) -> dict[str, Any]:
        # The supervisor keeps the limit; this one is for its death.
        async with asyncio.timeout(request["wall_seconds"] + END_SECONDS + 5.0):
            await self._send(request)
            while True:
                answer = await self._receive()
                if answer.get("nonce") != request["nonce"]:  # an answer to an earlier request, or a forged one
                    raise SandboxError("the sandbox answered another request")
                if on_output is None or "output" not in answer:
                    return answer
                on_output(answer["output"], base64.b64decode(answer["data"]))

    async def end(self) -> None:
        """End every process of the sandbox and wait until they are gone; remove what it had outside."""
        if self._exchange is not None and not self._exchange.done():
            self._exchange.cancel()
            await asyncio.gather(self._exchange, return_exceptions=True)
        if self._first_pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):  # the kernel ends all others with it, and it after them
                signal.pidfd_send_signal(self._first_pidfd, signal.SIGKILL)
            os.close(self._first_pidfd)
            self._first_pidfd = -1
        self._shared.close()
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
            self._reader = self._writer = None
        delay, waited = 0.002, 0.0
        while self._process.poll() is None:
            if waited > END_SECONDS:
                self._process.kill()
            await asyncio.sleep(delay)
            waited += delay
            delay = min(2 * delay, 0.05)
        if self._group is not None:
            await self._group.remove()
            self._group = None
        if self._work_directory is not None:
            await default_threads.run(discard, self._work_directory)
            self._work_directory = None

    async def _send(self, value: Mapping[str, Any]) -> None:
        assert self._writer is not None
        self._writer.write(frame(value))
        await self._writer.drain()

    async def _receive(self) -> dict[str, Any]:
        assert self._reader is not None
        (size,) = struct.unpack(">I", await self._reader.readexactly(4))
        if size > MAX_FRAME_BYTES:
            raise SandboxError(f"the sandbox sent a frame of {size} bytes")
        answer: dict[str, Any] = json.loads(await self._reader.readexactly(size))
        return answer


def _pipe(read: contextlib.ExitStack, write: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe, whose ends are closed with these."""
    ends = os.pipe()
    read.callback(os.close, ends[0])
    write.callback(os.close, ends[1])
    return ends


_HINTS = (
    # Bubblewrap has one exit code for all of these.
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
"""Advice, by the words of the failure."""


def _start_failure(launch: Launch, output: str, error: BaseException) -> str:
    cause = " ".join(output.split()) or f"{type(error).__name__} {error}".strip()
    if isinstance(error, TimeoutError):
        cause = f"not ready within {launch.limits.start_seconds:g} s. {cause}"
    text = f"the sandbox could not be started: {cause[-1000:]}"
    hint = next((hint for words, hint in _HINTS if any(word in cause for word in words)), None)
    return text if hint is None else f"{text}. {hint}"
