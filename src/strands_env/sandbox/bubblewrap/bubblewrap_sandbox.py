"""`BubblewrapSandbox`: Python and shell code of unknown origin on this machine, with state that lasts an episode."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from strands_sglang.exceptions import check_choice

from ..contract import ExecLimits, ExecResult, Network, Outcome, PythonSandbox, SandboxCapabilities, SandboxLimits
from . import command
from .command import PROGRAMS, WORK, Isolation, Mode
from .process import SandboxProcess
from .seccomp import seccomp_program
from .supervised import SandboxSlots, SupervisedSandbox, refusal

logger = logging.getLogger(__name__)

MAX_SIBLINGS = 64
"""Siblings that run at the same time in one event loop, on top of the other sandboxes."""
_sibling_slots = SandboxSlots(MAX_SIBLINGS)  # a sibling that waited for a slot could wait for the one it was made for

_ENFORCED = frozenset(
    (Outcome.TIMEOUT, Outcome.CPU_LIMIT, Outcome.OUT_OF_MEMORY, Outcome.OUTPUT_FLOOD, Outcome.TOO_MANY_FILES)
)
_SHARED_MEMORY_BYTES = 16 << 20
_SYSTEM_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/mime.types")


class BubblewrapSandbox(SupervisedSandbox, PythonSandbox):
    """A `PythonSandbox` on this machine.

    One call runs at a time; parallel ones wait in order. The work directory `/workspace` and the Python interpreter's
    variables last until `close`; a shell is fresh for every call. Processes that a call leaves running end with it. A
    call that breaks a limit gives a result that says so. When the interpreter had to be ended its variables are lost,
    and the result says that too.

    Args:
        isolation: The barrier between code and this machine. `none-i-accept-the-risk` removes it.
        python: Interpreter for the code, also one of a virtual environment. None takes the one that runs this process,
            with the standard library and the packages beside it, but without packages of a virtual environment.
        packages: Folders of further Python packages, shown read-only and put on the path.
        read_only: Further files and folders of this machine to show, read-only, under their own paths.
        environment: Environment variables of the code. None of this process' own are passed on.
        slots: Bound on running sandboxes; that of the process if None.

    Attributes:
        is_waiting: Its call waits for one of the slots, or was cancelled while it did.

    Raises:
        SandboxUnavailableError: Isolation is unavailable on this machine; the message says how to get it.
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        *,
        limits: SandboxLimits | None = None,
        isolation: Isolation | str = Isolation.BUBBLEWRAP,
        python: str | None = None,
        packages: Sequence[str | os.PathLike[str]] = (),
        read_only: Sequence[str | os.PathLike[str]] = (),
        environment: Mapping[str, str] | None = None,
        slots: SandboxSlots | None = None,
    ) -> None:
        super().__init__(limits or SandboxLimits(), slots)
        self._options: dict[str, Any] = {"limits": limits, "isolation": isolation, "python": python}
        self._options |= {"packages": packages, "read_only": read_only, "environment": environment}
        check_choice(Isolation, isolation=isolation)
        self.isolation = Isolation(isolation)
        self._shown = [os.path.abspath(os.fspath(folder)) for folder in (*read_only, *packages)]
        for folder in self._shown:
            if not os.path.exists(folder):
                raise ValueError(f"the sandbox is to show {folder!r}, which does not exist")
        self._variables = dict(environment or {})
        if packages:
            self._variables["PYTHONPATH"] = os.pathsep.join(self._shown[len(read_only) :])
        self._python = command.python_home(python)
        self._mode: Mode | None = None
        self._bwrap: list[str] = []
        if self.isolation is Isolation.BUBBLEWRAP:
            self._mode = command.choose_mode()
            self._bwrap = self._bubblewrap_arguments(self._mode)
        else:
            logger.warning("isolation=<none> | code will run as the current user, with its files and network")

    def sibling(self) -> Self:
        """Another sandbox of the same make and limits, with another slot."""
        return type(self)(**self._options, slots=_sibling_slots)

    @property
    def capabilities(self) -> SandboxCapabilities:
        """An interpreter that lasts, no network, and limits on everything."""
        return SandboxCapabilities(
            work=WORK if self._bwrap else (self._process.work if self._process else "."),
            python=self._python.executable,
            network=Network.NONE if self._bwrap else Network.LOOPBACK,
            listens=bool(self._bwrap),
            streams=True,
            limits=_ENFORCED,
        )

    async def run_python(
        self, code: str, *, timeout: float | None = None, limits: ExecLimits | None = None
    ) -> ExecResult:
        """Run Python code; see `PythonSandbox`.

        Earlier code may have changed the interpreter to claim anything: for hidden tests use `judge`.

        Raises:
            SandboxUnavailableError: The sandbox does not start. Code itself raises nothing.
        """
        refused = refusal(code, "code", self.limits.code_bytes)
        request = {"kind": "python", "code": code}
        return await self._run(request, timeout, limits, refused)

    async def _start_process(self) -> SandboxProcess:
        isolated, python = bool(self._bwrap), self._python.executable
        work = WORK if isolated else tempfile.mkdtemp(prefix=f"strands-env-sandbox-{os.getpid()}-")
        programs = PROGRAMS if isolated else str(Path(__file__).resolve().parent)
        variables = {  # nothing of this process' own ones
            "PATH": f"{os.path.dirname(python)}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": work,
            "TMPDIR": "/tmp" if isolated else work,
            "USER": "sandbox",
            "LOGNAME": "sandbox",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "OMP_NUM_THREADS": "1",  # threads count as processes
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **self._variables,
        }
        config = {
            "user": command.fresh_user() if self._mode is Mode.OWN_USER else None,
            "work": work,
            "file_systems": [work, "/tmp", "/dev/shm"] if isolated else [],
            "env": variables,
            "shell": ["/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh", "-c"],
            "worker": [python, "-B", "-s", f"{programs}/guest/worker.py"],
        }
        settings = [word for name, value in variables.items() for word in ("--setenv", name, value)]
        process = SandboxProcess(
            limits=self.limits,
            bwrap=[*self._bwrap, *settings] if isolated else [],
            program=[python, "-I", "-S", "-B", "-c", command.supervisor_code(programs)],
            config=config,
            # `/workspace` and `/tmp` are file systems in memory, which the group counts.
            memory_bytes=self.limits.memory_bytes + 2 * self.limits.disk_bytes,
            user=command.fresh_user() if self._mode is Mode.DROPPED else None,
            seccomp=seccomp_program(),
            work_directory=None if isolated else work,
        )
        return await process.start()

    def _bubblewrap_arguments(self, mode: Mode) -> list[str]:
        arguments = [*command.isolating_arguments(), "--unshare-net"]
        if mode is Mode.OWN_USER:
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
        shown = {path: path for path in (*self._python.folders, *self._shown)}
        arguments += command.showing_arguments({**shown, f"{PROGRAMS}/guest": command.guest_folder()})
        return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
