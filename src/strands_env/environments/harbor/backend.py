"""A Harbor environment without a daemon: `ImageSandbox` behind Harbor's contract.

    harbor run --environment-import-path strands_env.environments.harbor.backend:BubblewrapEnvironment ...

The image is the task's `docker_image`. Where a task has a Dockerfile alone, it is the one that
`strands-env images build` has made of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

from strands_env.core.threads import default_threads
from strands_env.sandbox import ExecResult as SandboxResult
from strands_env.sandbox import Network, Outcome, SandboxError, SandboxLostError, SandboxUnavailableError
from strands_env.sandbox.contract import ExecLimits
from strands_env.sandbox.images import DEFAULT_IMAGE_LIMITS, ImageSandbox, ImageStore, Snapshot
from strands_env.sandbox.images.pool import ImagePool

MIB = 1 << 20
_OUTPUT_BYTES = 4 * MIB
"""Kept of each stream of a command: Harbor hands them on whole."""


class BubblewrapEnvironment(BaseEnvironment):
    """The container of a task as an `ImageSandbox`.

    Args:
        image: Image in place of the task's: a name in the store, or a folder with an unpacked root.
        binds: Folders of this machine to show, read-only, by their path inside.
        network: "task" does as the task says; "none" gives none, whatever it says.
        snapshot: Folder of a snapshot to start from.
    """

    def __init__(
        self,
        *args: Any,
        image: str | None = None,
        binds: Mapping[str, str] | None = None,
        network: str = "task",
        snapshot: str | None = None,
        **kwargs: Any,
    ) -> None:
        if network not in ("task", "none"):
            raise ValueError(f"network must be 'task' or 'none', got {network!r}")
        self._image, self._binds, self._network, self._snapshot = image, dict(binds or {}), network, snapshot
        self._sandbox: ImageSandbox | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        """Name of the backend."""
        return "bubblewrap"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """Tasks without a network; no list of allowed hosts."""
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self) -> None:
        if self.extra_docker_compose_paths or (Path(self.environment_dir) / "docker-compose.yaml").exists():
            raise ValueError(
                f"the task {self.environment_name!r} has several containers (docker-compose.yaml), and the backend "
                "'bubblewrap' runs one: use environment 'docker' or 'podman'"
            )

    @property
    def image(self) -> str:
        """Name of the image, or the folder of its root."""
        return self._image or self.task_env_config.docker_image or built_image(self.environment_name)

    @property
    def sandbox(self) -> ImageSandbox:
        """The running sandbox."""
        if self._sandbox is None:
            raise SandboxError(f"the container of {self.environment_name!r} is not running")
        return self._sandbox

    @property
    def agent_user(self) -> str | int | None:
        """User of the phase that runs; None for the image's."""
        user: str | int | None = self._resolve_user(None)
        return user

    async def start(self, force_build: bool) -> None:
        """Start it; folders that Harbor expects are there afterwards."""
        image = await default_threads.run(ImageStore().find, self.image)
        config, memory = self.task_env_config, self._effective_memory_mb
        limits = DEFAULT_IMAGE_LIMITS if not memory else replace(DEFAULT_IMAGE_LIMITS, memory_bytes=memory * MIB)
        shares = self._network == "task" and self._network_is_public
        self._sandbox = await ImagePool.of_this_loop().take(
            image,
            limits=limits,
            cpus=self._effective_cpus,
            network=Network.LOOPBACK if shares else Network.NONE,
            workdir=config.workdir,
            binds=self._binds,
            snapshot=None if self._snapshot is None else Snapshot.load(self._snapshot),
        )
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        if self._snapshot is None:  # which has them, as the episode left them
            await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """End it, with everything in it."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command; see `BaseEnvironment`.

        Raises:
            SandboxError: The sandbox failed, not the command.
        """
        done = await self.run(command, cwd=cwd, env=env, timeout=timeout_sec, user=user)
        if done.outcome is Outcome.SANDBOX_LOST:
            raise SandboxLostError(done.note)
        return ExecResult(stdout=done.stdout, stderr=_with_note(done), return_code=_return_code(done))

    async def run(
        self,
        command: Any,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes = "",
        timeout: float | None = None,
        user: str | int | None = None,
        limits: ExecLimits | None = None,
    ) -> SandboxResult:
        """Run a command as Harbor's `exec` does, with the result of a `Sandbox`."""
        return await self.sandbox.exec(
            command,
            cwd=cwd or self.task_env_config.workdir,
            env=self._merge_env(dict(env or {})),
            stdin=stdin,
            timeout=timeout,
            user=self._resolve_user(user),
            limits=limits or ExecLimits(output_bytes=_OUTPUT_BYTES),
        )

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file of this machine into the sandbox, as root."""
        data = await default_threads.run(Path(source_path).read_bytes)
        await self.sandbox.write_file(target_path, data, user="0")
        mode = os.stat(source_path).st_mode & 0o777
        await self.sandbox.exec(["chmod", f"{mode:o}", target_path], user="0")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a folder of this machine into the sandbox, as root."""
        await self.sandbox.write_folder(source_dir, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file of the sandbox to this machine."""
        await self.sandbox.copy_file(source_path, target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a folder of the sandbox to this machine."""
        await self.sandbox.read_folder(source_dir, target_dir)


def built_image(task: str) -> str:
    """Name of the image that is built from a task's Dockerfile."""
    return f"harbor.local/{task.lower()}:latest"


def _return_code(done: SandboxResult) -> int:
    if done.outcome is Outcome.TIMEOUT:
        return 124
    if done.outcome is Outcome.OUT_OF_MEMORY:
        return 137
    if done.exit_code is None:
        return 126
    return done.exit_code if done.exit_code >= 0 else 128 - done.exit_code


def _with_note(done: SandboxResult) -> str:
    return f"{done.stderr}\n[{done.note}]".lstrip("\n") if done.note else done.stderr


__all__ = ["BubblewrapEnvironment", "SandboxUnavailableError", "built_image"]
