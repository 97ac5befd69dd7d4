"""A container of Harbor's as a `Sandbox`: the tools and programs of ours need no more."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from strands.sandbox import StreamChunk

from strands_env.sandbox import ExecOptions, ExecResult, Network, Outcome, Sandbox, SandboxCapabilities, SandboxError
from strands_env.sandbox.contract import MAX_FILE_BYTES, wall_seconds
from strands_sglang.exceptions import refuse_unknown

from .backend import BubblewrapEnvironment

WALL_SECONDS = 24 * 3600.0


class HarborSandbox(Sandbox):
    """A running container of Harbor's behind the contract of a `Sandbox`. Harbor starts and ends it.

    Args:
        environment: Harbor's environment, started.
        gateway_host: Name under which a program in the container reaches this machine; None if it cannot.
    """

    def __init__(self, environment: Any, *, gateway_host: str | None = None) -> None:
        self.gateway_host = gateway_host
        self.bind(environment)

    def bind(self, environment: Any) -> None:
        """Stand for this container from now on; None for one that is not known yet."""
        self.environment = environment
        self._own = environment if isinstance(environment, BubblewrapEnvironment) else None

    @property
    def capabilities(self) -> SandboxCapabilities:
        """Background processes live on."""
        if self._own is not None:
            return self._own.sandbox.capabilities
        network = Network.LOOPBACK if self.gateway_host else Network.NONE
        work = None if self.environment is None else self.environment.task_env_config.workdir
        return SandboxCapabilities(work=work or "/", background=True, network=network)

    async def exec(self, command: str | Sequence[str], **options: Unpack[ExecOptions]) -> ExecResult:
        """Run a command as the task's user for the agent."""
        if self._own is not None:
            return await self._own.run(command, **options)
        refuse_unknown("exec", options, ExecOptions.__annotations__)
        if options.get("stdin"):
            raise ValueError(f"{self.environment.type()} takes no standard input: write a file")
        # Harbor counts whole seconds, and knows no limit but this one.
        wall = wall_seconds(options.get("timeout"), options.get("limits"), WALL_SECONDS)
        cwd, env = options.get("cwd"), dict(options.get("env") or {})
        line = command if isinstance(command, str) else shlex.join(command)
        try:
            done = await self.environment.exec(line, cwd=cwd, env=env, timeout_sec=max(1, round(wall)))
        except (TimeoutError, RuntimeError) as error:
            if "timed out" in str(error) or isinstance(error, TimeoutError):  # backends raise either
                return ExecResult(outcome=Outcome.TIMEOUT, note=f"stopped after the time limit of {wall:g} s")
            raise SandboxError(f"the container failed: {error}") from error
        outcome = Outcome.OK if done.return_code == 0 else Outcome.ERROR
        return ExecResult(
            outcome=outcome, exit_code=done.return_code, stdout=done.stdout or "", stderr=done.stderr or ""
        )

    async def exec_streaming(
        self, command: str | Sequence[str], on_output: Callable[[StreamChunk], None], **options: Unpack[ExecOptions]
    ) -> ExecResult:
        """`exec`, with its output as it comes, on the backend `bubblewrap`; Harbor's others wait for the end."""
        if self._own is None:
            return await super().exec_streaming(command, on_output, **options)
        return await self._own.run(command, on_output=on_output, **options)

    async def listen(self, port: int, host: str = "127.0.0.1") -> Any:
        """A listening socket inside; see `ImageSandbox`."""
        if self._own is None:
            return await super().listen(port, host)
        return await self._own.sandbox.listen(port, host)

    async def read_file(self, path: str, *, max_bytes: int = MAX_FILE_BYTES, **kwargs: Any) -> bytes:
        """Contents of a file."""
        if self._own is not None:
            user = self._own.agent_user
            return await self._own.sandbox.read_file(path, max_bytes=max_bytes, user=user)
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder, "file")
            try:
                await self.environment.download_file(path, target)
            except Exception as error:
                raise FileNotFoundError(2, str(error), path) from error
            if target.stat().st_size > max_bytes:
                raise OSError(27, f"the file has more than {max_bytes} bytes", path)
            return target.read_bytes()

    async def write_file(self, path: str, content: str | bytes, **kwargs: Any) -> None:
        """Make a file, or replace it."""
        if self._own is not None:
            await self._own.sandbox.write_file(path, content, user=self._own.agent_user)
            return
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "file")
            source.write_bytes(content.encode() if isinstance(content, str) else content)
            await self.environment.exec(f"mkdir -p {shlex.quote(os.path.dirname(path) or '.')}")
            await self.environment.upload_file(source, path)

    async def close(self) -> None:
        """Nothing: Harbor ends it."""

    def sibling(self) -> Sandbox:
        """Not supported: the container has no sibling."""
        raise SandboxError("a container of a task has no sibling")
