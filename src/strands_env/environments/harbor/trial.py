"""One trial of Harbor, driven from outside: its agent's turns are ours, everything else is Harbor's.

Harbor starts the container, checks its health, prepares steps, runs the verifier and parses rewards. Its agent is
`OutsideAgent`, which hands each instruction to whoever drives the trial and waits until that part is finished. Before
a verifier runs, `guard` takes from the agent what could forge a reward.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import math
import tempfile
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.environments.factory import EnvironmentFactory
from harbor.models.agent.context import AgentContext
from harbor.models.environment_type import EnvironmentType
from harbor.models.task.config import VerifierEnvironmentMode
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.hooks import TrialEvent
from harbor.trial.trial import Trial

from strands_sglang.exceptions import did_you_mean

from .guard import guard, running_processes
from .results import NotMeasuredError, Part, TaskFailedError, TaskReward

logger = logging.getLogger(__name__)

_OURS = {"bubblewrap": "BubblewrapEnvironment", "docker": "Docker", "podman": "Podman"}
BACKENDS = {name: f"strands_env.environments.harbor.backend:{kind}" for name, kind in _OURS.items()}
"""Backends with a class of ours, by name; all others are Harbor's alone."""
logging.getLogger("harbor.utils.logger").setLevel(logging.WARNING)  # Harbor logs every step of a trial as debugging


class OutsideAgent(BaseAgent):
    """An agent that works elsewhere: it hands over its instructions and waits."""

    trials: ClassVar[dict[str, TaskTrial]] = {}

    def __init__(self, *args: Any, trial: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._trial = self.trials[trial]

    @staticmethod
    def name() -> str:
        """Name in results."""
        return "strands-rollout"

    def version(self) -> str | None:
        """None."""
        return None

    async def setup(self, environment: BaseEnvironment) -> None:
        """Nothing: it works elsewhere."""

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """Hand over the instruction and wait until the part is finished; at the time-out, until the agent rests."""
        part = Part(
            instruction=instruction,
            environment=environment,
            context=context,
            finished=asyncio.get_running_loop().create_future(),
        )
        await self._trial.parts.put(part)
        try:
            await part.finished
        except asyncio.CancelledError:
            part.expired.set()
            await part.stopped.wait()
            raise


class TaskTrial:
    """A running trial of one task.

    Args:
        task: Folder of the task.
        backend: Name of the backend: `bubblewrap`, or one of Harbor's.
        backend_options: Further fields of Harbor's `EnvironmentConfig`, or arguments of a backend of ours.
        agent: An agent of Harbor's own (`oracle`, `nop`); None for one that is driven from outside.
        separate: Grade in a container of its own, with the declared artifacts alone, whatever the task says.
        keep_processes: Let the agent's processes live on while the tests run.
        restore_programs: Put back the programs that run tests, where the agent has changed them.
        folder: Folder for Harbor's record of the trial; a temporary one if None.
    """

    def __init__(
        self,
        task: str | Path,
        *,
        backend: str = "bubblewrap",
        backend_options: Mapping[str, Any] | None = None,
        agent: str | None = None,
        separate: bool = False,
        keep_processes: bool = False,
        restore_programs: bool = True,
        folder: str | Path | None = None,
    ) -> None:
        self.task_folder = Path(task)
        self.backend, self.backend_options = backend, dict(backend_options or {})
        self.agent, self.separate = agent, separate
        self.keep_processes, self.restore_programs = keep_processes, restore_programs
        self.parts: asyncio.Queue[Part | None] = asyncio.Queue()
        self.steps = 1
        self.restored: list[str] = []
        """Programs that run tests and were not the image's own after the agent."""
        self._own_folder = folder is None
        self._folder = None if folder is None else Path(folder)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._spared: frozenset[str] = frozenset()
        self._trial: Trial | None = None
        self._running: asyncio.Task[Any] | None = None
        self._begun = asyncio.Event()
        self._ready = asyncio.Event()

    async def start(self) -> None:
        """Start the container, up to the moment where the agent's time begins.

        Raises:
            TaskFailedError: The task cannot be read, or its container did not start.
        """
        name = f"t{uuid.uuid4().hex[:12]}"
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="strands-harbor-")
            self._folder = Path(self._temporary.name)
        await asyncio.to_thread(check_backend, self.backend)
        OutsideAgent.trials[name] = self
        try:
            self._trial = await Trial.create(self._config(name))
        except Exception as error:
            raise TaskFailedError(f"the task {self.task_folder.name!r} cannot be run: {error}") from error
        finally:
            OutsideAgent.trials.pop(name, None)
        config = self._trial.task.config
        self.steps = len(config.steps or [None])
        if self.separate:
            config.verifier.environment_mode = VerifierEnvironmentMode.SEPARATE
            for step in config.steps or []:
                step.verifier.environment_mode = VerifierEnvironmentMode.SEPARATE
        self._trial.add_hook(TrialEvent.AGENT_START, self._agent_starts)
        self._trial.add_hook(TrialEvent.VERIFICATION_START, self._verification_starts)
        self._running = asyncio.create_task(self._run())
        if self.agent is None:
            await self._ready.wait()
            if self._running.done():
                self._raise_failure()

    async def _run(self) -> Any:
        assert self._trial is not None
        try:
            return await self._trial.run()
        finally:
            self._ready.set()
            self.parts.put_nowait(None)

    async def _agent_starts(self, _: Any) -> None:
        assert self._trial is not None
        if not self.keep_processes:
            self._spared = await running_processes(self._trial.agent_environment)
        self._ready.set()
        if self.agent is None:
            await self._begun.wait()

    async def _verification_starts(self, _: Any) -> None:
        assert self._trial is not None
        if not self._trial._is_agent_environment_stopped:
            self.restored += await guard(
                self._trial.agent_environment,
                spared=None if self.keep_processes else self._spared,
                restore_programs=self.restore_programs,
                user=self._trial.task.config.verifier.user,
            )

    async def each_part(self) -> AsyncIterator[Part]:
        """The agent's parts, one for each step of the task. The agent's time begins with the first."""
        self._begun.set()
        for _ in range(self.steps):
            part = await self.parts.get()
            if part is None:
                return
            try:
                yield part
            finally:
                part.finish()

    async def reward(self) -> TaskReward:
        """Wait for the end of the trial, verifier included.

        Raises:
            NotMeasuredError: The verifier gave no reward: it is broken, timed out, or there is nothing it says.
            TaskFailedError: The trial failed before its verifier.
        """
        self._begun.set()
        assert self._running is not None and self._trial is not None
        await asyncio.shield(self._running)
        return read_reward(self._trial)

    def _raise_failure(self) -> None:
        assert self._running is not None and self._trial is not None
        if (error := self._running.exception()) is not None:
            raise TaskFailedError(f"the trial failed: {type(error).__name__}: {error}") from error
        info = self._trial.result.exception_info
        raise TaskFailedError(
            "the container did not start"
            if info is None
            else f"the container did not start: {info.exception_type}: {info.exception_message}"
        )

    async def close(self) -> None:
        """End the trial, its container and its record. May be called twice."""
        running, self._running = self._running, None
        if running is not None and not running.done():
            running.cancel()
        if running is not None:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await running
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    @property
    def folder(self) -> Path | None:
        """Harbor's record of the trial."""
        return None if self._trial is None else self._trial.paths.trial_dir

    def _config(self, name: str) -> TrialConfig:
        options = dict(self.backend_options)
        if self.backend == "bubblewrap":
            options = {"kwargs": options}
        elif self.backend in BACKENDS and "network" in options:
            options["kwargs"] = {"network": options.pop("network"), **options.get("kwargs", {})}
        if self.backend == "podman":  # podman-compose removes the task's own image with its container
            options.setdefault("delete", False)
        path = BACKENDS.get(self.backend)
        environment = EnvironmentConfig(type=None if path else self.backend, import_path=path, **options)
        if self.agent is None:
            agent = AgentConfig(import_path=f"{__name__}:OutsideAgent", kwargs={"trial": name})
        else:
            agent = AgentConfig(name=self.agent)
        return TrialConfig(
            task=TaskConfig(path=self.task_folder),
            trials_dir=self._folder,
            trial_name=name,
            agent=agent,
            environment=environment,
        )


@functools.cache
def check_backend(name: str) -> None:
    """Check that a backend can be used here.

    Raises:
        TaskFailedError: There is none of that name, or its program, service or key is missing.
    """
    known = {kind.value: kind for kind in EnvironmentType}
    if name not in BACKENDS and name not in known:
        names = [*BACKENDS, *known]
        raise TaskFailedError(f"there is no backend {name!r}{did_you_mean(name, names)}: Harbor has {sorted(known)}")
    try:
        EnvironmentFactory.run_preflight(known.get(name), BACKENDS.get(name))
    except (Exception, SystemExit) as error:
        raise TaskFailedError(f"the backend {name!r} cannot be used here: {error}") from error


def read_reward(trial: Trial) -> TaskReward:
    """The verifier's rewards, where it gave any that are numbers.

    Raises:
        NotMeasuredError: It gave none.
        TaskFailedError: The trial ended before it.
    """
    result = trial.result
    info, verified = result.exception_info, result.verifier_result
    for step in result.step_results or []:
        if step.verifier_result is None and step.exception_info is not None:
            raise NotMeasuredError(
                f"step {step.step_name!r} was not measured: {step.exception_info.exception_type}: "
                f"{step.exception_info.exception_message}"
            )
    if verified is None or verified.rewards is None:
        if info is not None and info.exception_type not in ("AgentTimeoutError", "NonZeroAgentExitCodeError"):
            kind = NotMeasuredError if result.verifier is not None else TaskFailedError
            raise kind(f"{info.exception_type}: {info.exception_message}")
        raise NotMeasuredError("the verifier gave no reward")
    _refuse_booleans(trial.paths.reward_json_path)
    rewards = {name: float(value) for name, value in verified.rewards.items()}
    for name, value in rewards.items():
        if not math.isfinite(value):
            raise NotMeasuredError(f"the reward {name!r} is {value!r}, no finite number")
    if not rewards:
        raise NotMeasuredError("the verifier gave an empty set of rewards")
    return TaskReward(rewards=rewards)


def _refuse_booleans(path: Path) -> None:
    """Harbor takes `true` for 1."""
    with contextlib.suppress(OSError, ValueError):
        given = json.loads(path.read_text())
        for name, value in given.items() if isinstance(given, dict) else ():
            if isinstance(value, bool):
                raise NotMeasuredError(f"the reward {name!r} is {value!r}, no number")
