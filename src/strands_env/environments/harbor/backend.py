"""Harbor environments: `ImageSandbox` behind Harbor's contract, which needs no daemon; docker and podman.

    harbor run --environment-import-path strands_env.environments.harbor.backend:BubblewrapEnvironment ...

The image is the task's `docker_image`. Where a task has a Dockerfile alone, it is the one that
`strands-env images build` has made of it as it is now. A verifier with its own image runs in that.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.environments.docker.docker import DockerEnvironment
from harbor.environments.podman import PodmanEnvironment
from harbor.models.task.config import NetworkPolicy

from strands_env.core.threads import default_threads
from strands_env.sandbox import ExecResult as SandboxResult
from strands_env.sandbox import Network, Outcome, SandboxError, SandboxLostError
from strands_env.sandbox.bubblewrap.supervised import MACHINE_ERRORS
from strands_env.sandbox.contract import ExecLimits
from strands_env.sandbox.folders import remove_owned_folder
from strands_env.sandbox.images import DEFAULT_IMAGE_LIMITS, Image, ImageSandbox, ImageStore, Snapshot
from strands_env.sandbox.images.sources import built_name
from strands_env.sandbox.images.store import UnknownImageError
from strands_sglang.exceptions import check_choice

MIB = 1 << 20
_NO_NETWORK = Path(__file__).with_name("no-network.yaml")
_OUTPUT_BYTES = 4 * MIB
"""Kept of each stream of a command: Harbor hands them on whole."""
_REWARD_BYTES = MIB


class _Closable(BaseEnvironment):
    """A backend with the option `network`: "task" follows the task; "none" always means no network."""

    def __init__(self, *args: Any, network: str = "task", **kwargs: Any) -> None:
        check_choice(("task", "none"), network=network)
        self._closed = network == "none"
        super().__init__(*args, **kwargs)

    def validate_network_policy_support(self, network_policy: NetworkPolicy | None = None) -> None:
        """Refuse a policy that the backend cannot keep; without a network it keeps every one."""
        if self._closed:
            return
        try:
            super().validate_network_policy_support(network_policy)
        except ValueError as error:
            mode = (network_policy or self.network_policy).network_mode.value
            raise ValueError(
                f"it asks for network_mode={mode!r}, which the backend {str(self.type())!r} cannot keep here: try "
                "another backend, or backend_options={'network': 'none'}, which gives it no network at all"
            ) from error

    async def set_network_policy(self, network_policy: NetworkPolicy) -> None:
        """Change the network from one phase to the next."""
        if self._closed:
            self._network_policy = network_policy
        else:
            await super().set_network_policy(network_policy)


class BubblewrapEnvironment(_Closable):
    """The container of a task as an `ImageSandbox`.

    Args:
        image: Image in place of the task's: a name in the store, or a folder with an unpacked root.
        binds: Folders of this machine to show, read-only, by their path inside.
        network: "task" follows the task; "none" always means no network.
        snapshot: Folder of a snapshot to start from.
    """

    def __init__(
        self,
        *args: Any,
        image: str | None = None,
        binds: Mapping[str, str] | None = None,
        snapshot: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._image, self._binds, self.snapshot_folder = image, dict(binds or {}), snapshot
        self.container: ImageSandbox | None = None
        """The sandbox that commands run in; tests have another."""
        self._stopping = asyncio.Lock()
        self._lost: list[str] = []  # folders of lost containers, whose files it goes on with
        self.machine_failure: OSError | None = None
        """Why something could not be copied out of it, where that was not the doing of code inside."""
        self.hook_failure = ""
        """Why collect hooks of the task failed: then no artifact is copied out of it."""
        super().__init__(*args, **kwargs)
        self.grades = "__verifier__" in self.session_id
        """Tests run in it, perhaps over an artifact in the place of the work directory: then they start in `/`."""
        if self.grades:  # a container for tests alone: the agent's files are not its own
            self.snapshot_folder = None
        self.uploaded: list[str] = []
        """Where files of this machine went since it started, until the tests: the artifacts of a separate verifier."""

    @staticmethod
    def type() -> str:
        """Name of the backend."""
        return "bubblewrap"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """Tasks without a network; no list of allowed hosts."""
        return EnvironmentCapabilities(disable_internet=True, dynamic_network_policy=self._closed)

    def _validate_definition(self) -> None:
        check_single(Path(self.environment_dir), *self.extra_docker_compose_paths)

    @property
    def sandbox(self) -> ImageSandbox:
        """The running sandbox."""
        if self.container is None:
            raise SandboxError(f"the container of {self.environment_name!r} is not running")
        return self.container

    @property
    def agent_user(self) -> str | int | None:
        """User of the phase that runs; None for the image's."""
        user: str | int | None = self._resolve_user(None)
        return user

    async def start(self, force_build: bool) -> None:
        """Start it; folders that Harbor expects are there afterwards."""
        folder, name = Path(self.environment_dir), self.task_env_config.docker_image
        if self._image is not None and folder.name == "environment":  # a verifier's own image is not the agent's
            name = self._image
        image = await default_threads.run(find_image, folder, name)
        config, limits = self.task_env_config, DEFAULT_IMAGE_LIMITS
        if memory := self._effective_memory_mb:
            limits = replace(limits, memory_bytes=memory * MIB)
        if storage := self._effective_storage_mb:
            limits = replace(limits, disk_bytes=storage * MIB, file_bytes=storage * MIB)
        # A sandbox has no network of its own to reach others from: it shares this machine's, or has none.
        shares = self._network_is_public and not self._closed
        self.container = ImageSandbox(
            image,
            limits=limits,
            cpus=self._effective_cpus,
            network=Network.LOOPBACK if shares else Network.NONE,
            workdir=config.workdir,
            binds=self._binds,
            snapshot=None if self.snapshot_folder is None else Snapshot.load(self.snapshot_folder),
        )
        await self.container.start()
        # Harbor would mount these; here they are folders inside, and are downloaded in the end.
        await self.ensure_dirs(self._mount_targets(writable_only=True))
        if self.snapshot_folder is None:  # which has them, as the episode left them
            await self._upload_environment_dir_after_start()
        self.uploaded.clear()

    async def stop(self, delete: bool) -> None:
        """End it, with everything in it; another call that does so is waited for."""
        async with self._stopping:
            sandbox, self.container = self.container, None
            if sandbox is not None:
                await sandbox.close()
            while self._lost:
                await default_threads.run(remove_owned_folder, self._lost.pop())

    async def revive(self) -> None:
        """Start it again with the files that it has, and none of its processes; for a lost container."""
        lost = self.sandbox
        folder = await lost.release_layer()
        self._lost.append(os.path.dirname(folder))
        self.container = lost.sibling(layers=(*lost.layers, os.path.join(folder, "upper")))
        await self.container.start()

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
        return ExecResult(stdout=done.stdout, stderr=done.noted_stderr, return_code=done.shell_status)

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        limits: ExecLimits | None = None,
        **options: Any,
    ) -> SandboxResult:
        """Run a command as Harbor's `exec` does, with the options and the result of a `Sandbox`."""
        if cwd is None and self.grades and not await self.sandbox.is_folder(self.sandbox.workdir):
            cwd = "/"
        return await self.sandbox.exec(
            command,
            cwd=cwd or self.task_env_config.workdir,
            env=self._merge_env(dict(env or {})),
            user=self._resolve_user(user),
            limits=limits or ExecLimits(output_bytes=_OUTPUT_BYTES),
            **options,
        )

    async def service_exec(self, command: str, **options: Any) -> ExecResult:
        """Run a collect hook. Harbor takes the files there if it fails, which an agent could bring about, and forge."""
        failure = "could not be run"
        try:
            done = await super().service_exec(command, **options)
            failure = f"exited with {done.return_code}" if done.return_code else ""
            return done
        finally:
            if failure:
                self.hook_failure = f"the collect hook {command!r} {failure}, so no artifact was copied"

    async def service_is_dir(self, path: str, **options: Any) -> bool:
        """An artifact is a folder, and is to be copied."""
        return not self.hook_failure and await super().service_is_dir(path, **options)

    async def service_download_file(self, source_path: str, target_path: Path | str, **options: Any) -> None:
        """Copy a file that is an artifact; after a failed collect hook none is there."""
        if self.hook_failure:
            raise FileNotFoundError(errno.ENOENT, self.hook_failure, source_path)
        await super().service_download_file(source_path, target_path, **options)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file of this machine into the sandbox, as root."""
        self.uploaded.append(target_path)
        await self.sandbox.store_file(source_path, target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a folder of this machine into the sandbox, as root."""
        self.uploaded.append(target_dir)
        await self.sandbox.write_folder(source_dir, target_dir)

    async def empty_dirs(self, dirs: Sequence[Any], *, chmod: bool = True) -> None:
        """Make folders anew, also in the place of files, which the image may have where an artifact goes."""
        await self.sandbox.reset_folders([str(path) for path in dirs], mode=0o777 if chmod else 0o755)

    async def is_dir(self, path: str, user: str | int | None = None) -> bool:
        """A path leads to a folder. Harbor would ask the agent's own shell, which may lie."""
        return await self.sandbox.is_folder(path)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file of the sandbox to this machine, whole or not at all."""
        with self._noting_failures():
            await self.sandbox.copy_file(source_path, target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a folder of the sandbox to this machine."""
        await self.download_dir_with_exclusions(source_dir=source_dir, target_dir=target_dir, exclude=[])
        for name in ("reward.json", "reward.txt"):  # which Harbor reads whole
            place = Path(target_dir, name)
            if place.is_file() and place.stat().st_size > _REWARD_BYTES:
                raise OSError(errno.EFBIG, f"a reward of more than {_REWARD_BYTES} bytes", f"{source_dir}/{name}")

    async def download_dir_with_exclusions(
        self, *, source_dir: str, target_dir: Path | str, exclude: list[str]
    ) -> None:
        """Copy a folder of the sandbox, without some of it, to this machine; Harbor has the agent's own `tar` do it."""
        compiled = [] if self.grades else ["__pycache__"]  # taken in place of their sources, without comparing
        with self._noting_failures():
            try:
                await self.sandbox.read_folder(source_dir, target_dir, exclude=[*exclude, *compiled])
            except BaseException:
                with contextlib.suppress(OSError):  # Harbor made it first: what was not copied must not look empty
                    os.rmdir(target_dir)
                raise

    @contextlib.contextmanager
    def _noting_failures(self) -> Iterator[None]:
        """Note this machine's faults: Harbor takes an artifact that cannot be copied for one that is missing."""
        try:
            yield
        except OSError as error:
            if error.errno in MACHINE_ERRORS:
                self.machine_failure = error
            raise


class Docker(_Closable, DockerEnvironment):
    """Harbor's backend `docker`, whose commands have no terminal: one would end the processes they leave running.

    With the option `network="none"` it needs neither a sidecar, which a hub would have to send, nor a bridge.
    """

    # From 0.26 on Harbor refuses options that its own do not name; the releases before have no such attribute.
    if hasattr(DockerEnvironment, "options_model"):

        class options_model(DockerEnvironment.options_model):
            """Harbor's own, and `network`."""

            network: Literal["task", "none"] = "task"

    def _requires_egress_control(self, **policies: Any) -> bool:
        return not self._closed and super()._requires_egress_control(**policies)

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """As Harbor's; without a network the policy may change, which changes nothing."""
        return super().capabilities.model_copy(update={"dynamic_network_policy": True} if self._closed else {})

    @property
    def _docker_compose_paths(self) -> list[Path]:
        return [*super()._docker_compose_paths, *([_NO_NETWORK] if self._closed else [])]

    async def _run_docker_compose_command(self, command: list[str], *args: Any, **kwargs: Any) -> ExecResult:
        if command[0] == "exec" and "-T" not in command:
            command = ["exec", "-T", *command[1:]]
        return await super()._run_docker_compose_command(command, *args, **kwargs)


class Podman(Docker, PodmanEnvironment):
    """Harbor's backend `podman`, likewise."""


def check_single(folder: Path, *more: Path) -> None:
    """Refuse a definition of several containers."""
    if more or (folder / "docker-compose.yaml").exists():
        raise ValueError(
            f"the folder {folder.name!r} of the task describes several containers (docker-compose.yaml), and the "
            "backend 'bubblewrap' runs one: use the backend 'docker' or 'podman'"
        )


def find_image(folder: Path, name: str | None) -> Image:
    """The image of this name, or the one that was built from the Dockerfile of a folder of a task.

    Raises:
        UnknownImageError: It is not here; the message says how to get it.
    """
    if name is not None:
        return ImageStore().find(name)
    if not (folder / "Dockerfile").is_file():
        raise UnknownImageError("it names no docker_image in task.toml, and has no Dockerfile")
    try:
        return ImageStore().find(built_name(folder))
    except UnknownImageError:
        task = folder.parents[2 if folder.parent.parent.name == "steps" else 0]
        raise UnknownImageError(
            f"its image has to be built from {folder.relative_to(task)}/Dockerfile, as that is now: 'strands-env "
            f"images build {task}', which needs podman or docker"
        ) from None
