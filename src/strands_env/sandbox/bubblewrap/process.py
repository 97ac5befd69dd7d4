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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Any, Self

from strands_env.core.threads import default_threads

from ..contract import SandboxError, SandboxLimits, SandboxUnavailableError
from ..folders import announce, discard
from .cgroup import ControlGroup, make_control_group
from .command import WORK
from .guest.protocol import frame

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = 128 << 20
END_SECONDS = 10.0
SUPERVISOR_BYTES = 48 << 20
"""Memory the supervisor may take, beside that of the code."""
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


@dataclass(eq=False, kw_only=True)
class SandboxProcess:
    """A sandbox of this process: `start` starts it, and `end` ends it and everything in it.

    Attributes:
        bwrap: Bubblewrap and its arguments; nothing where code runs without isolation.
        program: Command of the supervisor.
        config: The part of the supervisor's configuration that depends on the kind of sandbox.
        memory_bytes: Memory of the control group, beside the supervisor's: of the code, and of its files in memory.
        user: User bubblewrap itself runs as; None for that of this process.
        seccomp: Filter of system calls; None where none is known.
        cpus: Processors of the control group; None for all.
        watched: Descriptor of a folder that the supervisor measures.
        work_directory: Folder of this machine that goes with the sandbox.
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
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _channel: socket.socket = field(init=False)
    _shared: socket.socket = field(init=False)
    _kept: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)
    _first_pidfd: int = field(default=-1, init=False)
    _group: ControlGroup | None = field(default=None, init=False)
    _reader: asyncio.StreamReader | None = field(default=None, init=False)
    _writer: asyncio.StreamWriter | None = field(default=None, init=False)
    _token: str = field(default_factory=lambda: secrets.token_hex(16), init=False)
    _exchange: asyncio.Future[dict[str, Any]] | None = field(default=None, init=False)

    async def start(self) -> Self:
        """Start it; `SandboxUnavailableError` quotes bubblewrap where it does not start."""
        try:
            with contextlib.ExitStack() as read, contextlib.ExitStack() as passed:
                self._channel, child = socket.socketpair()
                self._kept.enter_context(self._channel)
                passed.callback(child.close)
                # Packets: a stream could merge two messages and their descriptors.
                self._shared, passed_on = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self._kept.enter_context(self._shared)
                passed.callback(passed_on.close)
                error_read, error_write = _pipe(read, passed)
                info_read, info_write = _pipe(read, passed)
                life = _pipe(passed, passed)
                os.set_blocking(error_read, False)
                inherited = [passed_on.fileno(), *([] if self.watched is None else [self.watched])]
                arguments = [*self.bwrap]
                if self.bwrap:
                    inherited += [info_write, life[0]]
                    arguments += ["--info-fd", str(info_write), "--"]
                arguments += self.program
                try:  # in the calling thread: Linux ends the sandbox when that thread ends
                    self._process = subprocess.Popen(
                        arguments,
                        stdin=child.fileno(),
                        stdout=life[1] if self.bwrap else subprocess.DEVNULL,
                        stderr=error_write,
                        pass_fds=inherited,
                        env={},
                        cwd="/",
                        start_new_session=True,
                        user=self.user,
                        group=self.user,
                        extra_groups=None if self.user is None else [],
                    )
                except OSError as error:
                    raise SandboxUnavailableError(f"{arguments[0]!r} cannot be run: {error}") from error
                passed.close()  # the end of a pipe is seen once nobody else holds its other side
                config: dict[str, Any] = {"descriptors": inherited[0], "life": life[0] if self.bwrap else None}
                try:
                    async with asyncio.timeout(self.limits.start_seconds):
                        await self._configure(config, info_read)
                except (TimeoutError, OSError, EOFError, ValueError, SandboxError) as error:
                    output = b""
                    with contextlib.suppress(BlockingIOError):
                        output = os.read(error_read, 65536)
                    raise SandboxUnavailableError(self._explain(output.decode(errors="replace"), error)) from error
        except BaseException:
            await self.end()
            raise
        return self

    async def _configure(self, config: dict[str, Any], info: int) -> None:
        """Send the supervisor its configuration, and wait until it is ready for foreign code."""
        self._channel.setblocking(False)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._channel, limit=1 << 17)
        config |= {"token": self._token, "isolated": bool(self.bwrap), "limits": asdict(self.limits)}
        config |= {"seccomp": (self.seccomp or b"").hex(), "watched": self.watched}
        await self._send({**config, "nice": os.getpriority(os.PRIO_PROCESS, 0), **self.config})
        if self.bwrap:  # while the supervisor starts
            # Bubblewrap names process 1 of the sandbox first.
            names = re.search(rb'"child-pid": (\d+)', await default_threads.run(os.read, info, 65536))
            if names is None:
                raise EOFError("bubblewrap started nothing")
            await self._confine(int(names[1]))
        answer = await self._receive()
        if answer.get("ready") != self._token:
            raise SandboxError("the supervisor did not answer as itself")

    def _explain(self, output: str, error: BaseException) -> str:
        """The failure of a start, with advice."""
        cause = " ".join(output.split()) or f"{type(error).__name__} {error}".strip()
        if isinstance(error, TimeoutError):
            cause = f"not ready within {self.limits.start_seconds:g} s. {cause}"
        hint = next((hint for words, hint in _HINTS if any(word in cause for word in words)), None)
        text = f"the sandbox could not be started: {cause[-1000:]}"
        return text if hint is None else f"{text}. {hint}"

    async def _confine(self, first_pid: int) -> None:
        """Take a handle on process 1 of the sandbox and put it into a control group, before any foreign code runs."""
        self._first_pidfd = os.pidfd_open(first_pid)  # a number would be used again for another process
        with contextlib.suppress(PermissionError):  # it has to come before any number of processes that it watches
            os.setpriority(os.PRIO_PROCESS, first_pid, -20)
        announce()
        self._group = make_control_group(self.memory_bytes + SUPERVISOR_BYTES, self.limits.processes + 8, self.cpus)
        if self._group is not None:
            try:  # the kernel takes some 10 ms for it
                await default_threads.run(self._group.add, first_pid)
            except OSError as error:
                logger.debug("error=<%s> | no control group", error)

    @property
    def work(self) -> str:
        """The work directory, as the sandbox sees it."""
        return self.work_directory or WORK

    @property
    def is_alive(self) -> bool:
        """True if it can take a request."""
        has_ended = self._process is None or self._process.poll() is not None
        return not has_ended and self._reader is not None and not self._reader.at_eof()

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
            SandboxError: It gives another answer.
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
        """End every process of the sandbox and wait until they are gone; remove its files and groups outside."""
        if self._exchange is not None and not self._exchange.done():
            self._exchange.cancel()
            await asyncio.gather(self._exchange, return_exceptions=True)
        if self._first_pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):  # the kernel ends all others with it, and it after them
                signal.pidfd_send_signal(self._first_pidfd, signal.SIGKILL)
            os.close(self._first_pidfd)
            self._first_pidfd = -1
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
            self._reader = self._writer = None
        self._kept.close()
        delay, waited = 0.002, 0.0
        while self._process is not None and self._process.poll() is None:
            if waited > END_SECONDS:
                self._process.kill()
            await asyncio.sleep(delay)
            waited += delay
            delay = min(2 * delay, 0.05)
        if self._group is not None:
            await self._group.remove()
            self._group = None
        if self.work_directory is not None:
            await default_threads.run(discard, self.work_directory)
            self.work_directory = None

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
