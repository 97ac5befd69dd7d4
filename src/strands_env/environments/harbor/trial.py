"""One trial of Harbor, driven from outside: its agent's turns are ours, all the rest is Harbor's.

Harbor starts the container, checks its health, prepares steps, runs the verifier and parses rewards. Its agent is
`OutsideAgent`, which has each part done by the driver of the trial. Tests run where `grading` puts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import json
import logging
import math
import re
import tempfile
import uuid
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.environments.factory import EnvironmentFactory
from harbor.models.agent.context import AgentContext
from harbor.models.environment_type import EnvironmentType
from harbor.models.task.config import VerifierEnvironmentMode
from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import (
    resolve_step_verifier_mode,
    resolve_task_verifier_mode,
    resolve_verifier_environment_definition,
    task_has_any_shared_verifier,
)
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig, VerifierConfig
from harbor.models.verifier.result import VerifierResult
from harbor.trial.hooks import TrialEvent
from harbor.trial.trial import Trial
from harbor.verifier.verifier import RewardFileEmptyError, RewardFileNotFoundError, Verifier, VerifierOutputParseError

from strands_env.core.threads import default_threads
from strands_env.sandbox import SandboxError
from strands_env.sandbox.folders import make_owned_folder, remove_owned_folder
from strands_env.sandbox.images.work import check_artifact
from strands_sglang.exceptions import check_choice, did_you_mean

from .backend import BubblewrapEnvironment, check_single, find_image
from .grading import WorkLayers, prepare_in_place, running_processes
from .outcome import NotMeasuredError, Part, TaskFailedError

logger = logging.getLogger(__name__)

_OURS = {"bubblewrap": "BubblewrapEnvironment", "docker": "Docker", "podman": "Podman"}
BACKENDS = {name: f"strands_env.environments.harbor.backend:{kind}" for name, kind in _OURS.items()}
"""Backends with a class of ours, by name; all others are Harbor's alone."""
VERIFIERS = ("task", "separate", "in-place")
"""Where tests run, by name."""
logging.getLogger("harbor.utils.logger").setLevel(logging.WARNING)  # Harbor logs every step of a trial as debugging
_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
trials: weakref.WeakValueDictionary[str, TaskTrial] = weakref.WeakValueDictionary()
"""By name: Harbor makes agent and verifier by import path, with arguments that it also writes into its record."""


class OwnAgent(BaseAgent):
    """An agent of ours, as Harbor names it in its results."""

    @staticmethod
    def name() -> str:
        """Name in results."""
        return "strands-rollout"

    def version(self) -> str | None:
        """None."""
        return None


class OutsideAgent(OwnAgent):
    """An agent that works elsewhere."""

    def __init__(self, *args: Any, trial: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._trial = trials[trial]

    async def setup(self, environment: BaseEnvironment) -> None:
        """Nothing: it works elsewhere."""

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """Have the part done; at the time-out, wait until the agent rests."""
        try:
            await self._trial.do_part(Part(instruction, environment, context))
        except asyncio.CancelledError:
            await self._keep_work(environment)
            raise
        await self._keep_work(environment)

    async def _keep_work(self, environment: BaseEnvironment) -> None:
        """A container that is lost at the agent's end, as by its fork bomb, still has the files to be graded."""
        if isinstance(environment, BubblewrapEnvironment) and environment.sandbox.is_lost:
            await environment.revive()


class TaskVerifier(Verifier):
    """Harbor's verifier, which brings the agent's container back in the end, and takes only plain numbers.

    Args:
        trial: Name of the trial in `trials`.
    """

    def __init__(self, *args: Any, trial: str, task: Task, environment: BaseEnvironment, **options: Any) -> None:
        # An image of the verifier's own has its tests in it. Harbor says so only to a verifier without an import path.
        has_tests = Path(environment.environment_dir) != task.paths.environment_dir
        super().__init__(*args, task=task, environment=environment, skip_tests_upload=has_tests, **options)
        self._trial = trials[trial]

    async def verify(self) -> VerifierResult:
        """Run the tests and read their rewards."""
        own = self.environment if isinstance(self.environment, BubblewrapEnvironment) else None
        is_separate = own is not None and own.grades
        try:
            if own is not None:
                own.grades = True
                if is_separate:
                    tests = test_folders(self._trial.task_folder)
                    await self._trial.layers.inspect_artifacts(own, own.uploaded, tests)
            if self._trial.grades_in_fresh and (known := self._trial.layers.known_rewards) is not None:
                return VerifierResult(rewards=dict(known))
            result = await super().verify()
            self._refuse_odd_numbers()
            return result
        except VerifierOutputParseError:
            raise  # a mistake of the tests' author
        except BaseException as error:
            # A cancelled one ran out of time. In the agent's own container everything else may be the machine's fault;
            # in a fresh one it is tried again.
            ends = (RewardFileNotFoundError, RewardFileEmptyError, asyncio.CancelledError)
            if self._trial.grades_in_fresh or isinstance(error, ends):
                self._trial.failed_steps.append(self.step_name)
            raise
        finally:
            if own is not None:
                own.grades = is_separate
                await self._trial.layers.resume_agent(own)

    def _refuse_odd_numbers(self) -> None:
        """Refuse texts that Python takes for numbers and no author of tests means: `true`, `1_0`, Arabic digits."""
        path = self.trial_paths.reward_json_path
        if path.exists():
            rewards = json.loads(path.read_text())
            for name, value in rewards.items() if isinstance(rewards, dict) else ():
                if isinstance(value, bool):
                    raise VerifierOutputParseError(f"the reward {name!r} must be a number, got {value!r}")
        elif not _NUMBER.fullmatch(text := self.trial_paths.reward_text_path.read_text()):
            raise VerifierOutputParseError(f"the reward must be a plain number, got {text[:100]!r}")


@dataclass(eq=False, repr=False)
class TaskTrial:
    """A running trial of one task.

    Args:
        task: Folder of the task.
        backend: Name of the backend: `bubblewrap`, or one of Harbor's.
        backend_options: Further fields of Harbor's `EnvironmentConfig`, or arguments of a backend of ours.
        agent: An agent of Harbor's own (`oracle`, `nop`); None for one that is driven from outside.
        verifier: Where tests run: "task", in a fresh container of the image with the agent's work laid over it, unless
            the task asks for "separate", another container with the declared artifacts alone; "in-place" is the
            agent's container, in which it can forge the reward, and the only way on Harbor's backends.
        keep_processes: Let the agent's processes live on while the tests run, which is only possible in place.
        work: Patterns of the paths that count as work beside the work directory; None for those the task declares, or
            the default ones.
        learns: Take everything that the agent changes for work; `layers.learned_patterns` has them afterwards.
        by_products: Where `learns`: caches too.
        given_layers: Work of another trial to grade again.
        is_control: It shows whether the same tests come to a reward without the agent.
        graded: Rewards of other trials by the digest of their work, in a task of one step: the tests do not run again
            on the same work.
    """

    task: str | Path
    _: KW_ONLY
    backend: str = "bubblewrap"
    backend_options: Mapping[str, Any] | None = None
    agent: str | None = None
    verifier: str = "task"
    keep_processes: bool = False
    work: Sequence[str] | None = None
    learns: bool = False
    by_products: bool = False
    given_layers: WorkLayers | None = None
    is_control: bool = False
    graded: Mapping[str, Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        check_choice(VERIFIERS, verifier=self.verifier)
        if self.keep_processes and self.verifier == "task":
            self.verifier = "in-place"
        self.task_folder = Path(self.task)
        self.layers = self.given_layers or WorkLayers(
            work=self.work, learns=self.learns, by_products=self.by_products, graded=self.graded
        )
        self.steps = 1
        self.grades_in_fresh = self.grades_in_place = False
        """Where the last tests ran, and whether any ran in the agent's container."""
        self.failed_steps: list[str | None] = []
        """Steps, None for a task without steps, whose tests did not come to a reward."""
        self.grading_failure = ""
        """Why the agent's work, or its artifacts, could not be graded, as far as that is its own doing."""
        self._graded, self._grades_artifacts = 0, False
        self._records = ""
        self._spared: frozenset[str] = frozenset()
        self._trial: Any = None  # Harbor's, from the start on
        self._running: asyncio.Task[Any] | None = None
        self._ready, self._begun, self._acted = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._act: Callable[[Part], Coroutine[Any, Any, None]] | None = None
        self._context: contextvars.Context | None = None
        self._doing: asyncio.Task[None] | None = None
        self._parts_done = 0

    async def start(self) -> None:
        """Start the container, up to the moment where the agent's time begins.

        Raises:
            TaskFailedError: The task cannot be read, or its container did not start.
        """
        name = f"t{uuid.uuid4().hex[:12]}"
        self._records = await default_threads.run(make_owned_folder, tempfile.gettempdir(), "strands-harbor-")
        await asyncio.to_thread(check_backend, self.backend)
        trials[name] = self
        try:
            self._trial = await Trial.create(self._config(name))
            config, paths = self._trial.task.config, self._trial.task.paths
            if self.verifier == "separate":
                for one in (config, *(config.steps or [])):
                    one.verifier.environment_mode = VerifierEnvironmentMode.SEPARATE
            # Before the agent's hours, not after them.
            for step in config.steps or [None]:
                mode = resolve_task_verifier_mode(config) if step is None else resolve_step_verifier_mode(config, step)
                if mode is VerifierEnvironmentMode.SEPARATE:
                    for artifact in (*config.artifacts, *(() if step is None else step.artifacts)):
                        path = artifact if isinstance(artifact, str) else artifact.source
                        check_artifact(path, config.environment.workdir or "/app")
                if self.backend != "bubblewrap":
                    continue
                definition = resolve_verifier_environment_definition(config, paths, step)
                if definition is not None and definition.directory != paths.environment_dir:
                    check_single(definition.directory)
                    await default_threads.run(find_image, definition.directory, definition.config.docker_image)
        except Exception as error:
            # A failing sandbox would pass for a failing tool.
            cause = None if isinstance(error, SandboxError) else error
            raise TaskFailedError(f"the task {self.task_folder.name!r} cannot be run: {error}") from cause
        self.steps = len(config.steps or [None])
        if config.steps and self.given_layers is not None:  # the agent came no further
            config.steps = config.steps[: len(self.layers.by_step)]
        elif config.steps and self.is_control:
            for step in config.steps:
                step.min_reward = None  # each is to be graded
        self._trial.agent.logger.addFilter(_say_once)
        self._trial.add_hook(TrialEvent.AGENT_START, self._agent_starts)
        self._trial.add_hook(TrialEvent.VERIFICATION_START, self._verification_starts)
        self._running = asyncio.create_task(self._trial.run())

        def release(_: Any) -> None:  # whoever waits for a start or a part must not wait for ever
            self._ready.set()
            self._acted.set()

        self._running.add_done_callback(release)
        if self.agent is None:  # Harbor's own agents begin at once
            await self._ready.wait()
            if self._running.done():  # it ended before the agent's time began
                self._raise_failure()

    async def _agent_starts(self, _: Any) -> None:
        environment = self._trial.agent_environment
        if isinstance(environment, BubblewrapEnvironment):
            environment.hook_failure = ""  # of the step before
        if not self.keep_processes:
            self._spared = await running_processes(environment)
        config = self._trial.task.config
        if isinstance(environment, BubblewrapEnvironment) and self.verifier != "in-place" and not self._graded:
            if self.verifier == "task" and task_has_any_shared_verifier(config):
                self.layers.patterns(config, environment.sandbox.workdir)  # or nothing can be graded
            await self.layers.keep_start(environment)
        self._ready.set()
        if self.agent is None:
            # Harbor's clock for the agent starts after this hook: the time until its first turn does not count.
            await self._begun.wait()

    async def _verification_starts(self, _: Any) -> None:
        config, environment = self._trial.task.config, self._trial.agent_environment
        step, self._graded = self._graded, self._graded + 1
        steps = config.steps or []
        mode = resolve_step_verifier_mode(config, steps[step]) if steps else resolve_task_verifier_mode(config)
        is_shared = mode is VerifierEnvironmentMode.SHARED
        self._grades_artifacts |= not is_shared
        if not is_shared and isinstance(environment, BubblewrapEnvironment):
            self.grading_failure = environment.hook_failure or self.grading_failure
        self.grades_in_fresh = is_shared and self.verifier == "task" and isinstance(environment, BubblewrapEnvironment)
        if self.grades_in_fresh:
            last, tests = step + 1 >= len(steps), test_folders(self.task_folder)
            await self.layers.grade_in_fresh(environment, config, step=step, last=last, tests=tests)
        elif is_shared:
            self.grades_in_place = True
            await prepare_in_place(environment, spared=None if self.keep_processes else self._spared)

    async def run_parts(self, act: Callable[[Part], Coroutine[Any, Any, None]]) -> None:
        """Have the agent's parts done by `act`, one for each step of the task. The agent's time begins now.

        A part that runs out of time is cancelled. One that raises is the last, and is not graded.
        """
        self._act, self._context = act, contextvars.copy_context()
        self._begun.set()
        try:
            await self._acted.wait()
        finally:
            self._act = None  # the parts that are left go by without the agent
            if self._doing is not None:
                self._doing.cancel()
                await asyncio.wait({self._doing})  # no call of a tool may run on into the grading

    async def do_part(self, part: Part) -> None:
        """Have a part done, in the context of the trial's driver.

        Raises:
            TaskFailedError: The agent failed for no fault of its own: then the part is not graded.
        """
        error: BaseException | None = None
        try:
            if self._act is not None:
                self._doing = asyncio.get_running_loop().create_task(self._act(part), context=self._context)
                try:
                    await asyncio.wait({self._doing})
                finally:  # cancelled where the task's time for the agent is over
                    self._doing.cancel()
                    await asyncio.wait({self._doing})
                    error = None if self._doing.cancelled() else self._doing.exception()
        finally:
            self._parts_done += 1
            if error is not None or self._parts_done >= self.steps:
                self._acted.set()
        if error is not None:
            raise TaskFailedError(f"{type(error).__name__}: {error}")

    async def reward(self) -> dict[str, float]:
        """The verifier's rewards, by name, at the end of the trial; all are finite.

        Raises:
            NotMeasuredError: The verifier gave no reward: it is broken, timed out, or there is nothing it says.
            TaskFailedError: The trial failed before its verifier.
        """
        self._begun.set()
        assert self._running is not None
        await asyncio.shield(self._running)  # a caller that is cancelled still has to close the trial in order
        failure = getattr(self._trial.agent_environment, "machine_failure", None)
        if failure is not None and self._grades_artifacts:
            raise NotMeasuredError(f"the artifacts could not be copied: {failure}")
        try:
            return read_rewards(self._trial)
        except NotMeasuredError as error:
            if not self.failed_steps or self.is_control:
                raise
            return await self._grade_again(error)

    async def _grade_again(self, error: NotMeasuredError) -> dict[str, float]:
        """Score 0 where the agent made its own grading fail, which is so if it fails again, and on the image does not.

        Raises:
            NotMeasuredError: The same tests do not come to a reward on the image either.
        """
        try:
            if (control := await self._try_without_agent(None)) is None:
                raise error
            # In place there are no layers to try again: what the image alone does not fail is the agent's doing.
            again = await self._try_without_agent(self.layers) if self.layers.by_step else None
        except TaskFailedError:
            raise error from None
        if again is not None:
            if len(self.layers.by_step) < self.steps:
                raise error  # it was not the agent's fault, and the agent never had its other steps
            return again
        logger.info("task=<%s>, error=<%s> | the agent's work cannot be graded: 0", self.task_folder.name, error)
        self.grading_failure = str(error)
        # Other steps keep what they earned: the task's own rule makes one reward of all.
        zeros, result = VerifierResult(rewards=dict.fromkeys(control, 0.0)), self._trial.result
        for step in result.step_results or []:
            if step.step_name in self.failed_steps:
                step.verifier_result = zeros
        result.verifier_result = self._trial._select_multi_step_reward() if result.step_results else zeros
        return read_rewards(self._trial)

    async def _try_without_agent(self, layers: WorkLayers | None) -> dict[str, float] | None:
        """The reward of these layers, or of the image alone; None if the tests come to none.

        Raises:
            TaskFailedError: It failed before its tests.
        """
        options = {key: value for key, value in (self.backend_options or {}).items() if key != "snapshot"}
        trial = replace(self, backend_options=options, agent="nop", given_layers=layers, is_control=True)
        try:
            await trial.start()
            return await trial.reward()
        except TaskFailedError:
            if not trial.failed_steps:
                raise
            return None
        finally:
            await trial.close()

    async def snapshot(self, folder: str) -> None:
        """Copy the files written in the container so far into a new folder."""
        await self.layers.snapshot(self._trial.agent_environment, folder)

    def reward_info(self, rewards: Mapping[str, float]) -> dict[str, Any]:
        """Information about rewards beside their numbers, without empty entries."""
        notes = {
            "forgeable": self.grades_in_place,
            "changed_programs": self.layers.changed_programs,
            "cut_links": self.layers.cut_links,
            "outside_work": self.layers.outside,
            "grading_failure": self.grading_failure,
        }
        return {"rewards": dict(rewards), **{name: value for name, value in notes.items() if value}}

    def _raise_failure(self) -> None:
        assert self._running is not None
        if (error := self._running.exception()) is not None:
            why = f"the trial failed: {type(error).__name__}: {error}"
        elif (info := self._trial.result.exception_info) is None:
            why = "the container did not start"
        elif info.exception_type == TaskFailedError.__name__:
            why = info.exception_message
        else:
            why = f"the container did not start: {info.exception_type}: {info.exception_message}"
        raise TaskFailedError(why) from error

    async def close(self) -> None:
        """End the trial, its container and its record. May be called twice."""
        running, self._running = self._running, None
        if running is not None and not running.done():
            running.cancel()
        if running is not None:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await running
        if self._trial is not None and isinstance(self._trial.agent_environment, BubblewrapEnvironment):
            await self._trial.agent_environment.stop(delete=True)  # Harbor's own may go on without being waited for
        if self._records:
            await default_threads.run(remove_owned_folder, self._records)
            self._records = ""
        if self.given_layers is None:
            await self.layers.close()

    def _config(self, name: str) -> TrialConfig:
        options = dict(self.backend_options or {})
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
            trials_dir=Path(self._records),
            trial_name=name,
            agent=agent,
            environment=environment,
            verifier=VerifierConfig(
                import_path=f"{TaskVerifier.__module__}:{TaskVerifier.__name__}", kwargs={"trial": name}
            ),
        )


_said: set[str] = set()


def _say_once(record: logging.LogRecord) -> bool:
    """Let each message of Harbor's agents through once in a process: a run has thousands of trials."""
    message = record.getMessage()
    is_new = message not in _said
    _said.add(message)
    return is_new


def test_folders(task: Path) -> list[str]:
    """Folders with a task's tests, those of its steps too."""
    return [str(task / "tests"), *map(str, sorted(task.glob("steps/*/tests")))]


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


def read_rewards(trial: Trial) -> dict[str, float]:
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
    rewards: dict[str, float] = {}
    for name, value in verified.rewards.items():
        with contextlib.suppress(OverflowError):  # a whole number of hundreds of digits
            rewards[name] = float(value)
        if not math.isfinite(rewards.get(name, math.inf)):
            raise NotMeasuredError(f"the reward {name!r} must be a finite number, got {str(value)[:50]}")
    if not rewards:
        raise NotMeasuredError("the verifier gave an empty set of rewards")
    return rewards
