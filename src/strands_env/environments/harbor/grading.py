"""Between the agent and the tests: a fresh container of the image, with the agent's work laid over it.

An agent that is root can turn any program of its container against the tests, and no list of such programs is complete.
So on the backend `bubblewrap` the tests run in another container, and see of the agent's only its work: see
`strands_env.sandbox.images.work`. On Harbor's backends, and with `verifier="in-place"`, they run in the agent's own:
there only its processes are ended and `/tests` and `/logs/verifier` made anew, and its files can forge the reward.
"""

from __future__ import annotations

import functools
import logging
import os
import posixpath
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harbor.models.task.config import TaskConfig

from strands_env.core.threads import default_threads
from strands_env.sandbox import SandboxError, SandboxSlots
from strands_env.sandbox.folders import remove_owned_folder
from strands_env.sandbox.images import ImageSandbox
from strands_env.sandbox.images.layers import copy_upper, make_folder
from strands_env.sandbox.images.paths import shown_path
from strands_env.sandbox.images.work import DEFAULT_WORK, AgentFiles, LaidWork, check_work, pattern_of_directory

from .backend import BubblewrapEnvironment
from .outcome import TaskFailedError

logger = logging.getLogger(__name__)

_ALWAYS = ("/logs/agent", "/logs/artifacts")
"""Files that the agent left for people who look at the trial; Harbor shows them to the tests too."""
_BEFORE = "before"
"""Folder, also in that of a snapshot, with the files written before the agent began."""
_EMPTY = ("/tests", "/logs/verifier")
_slots = SandboxSlots()
"""Of containers for tests: one that waited for an agent's slot could wait for that of its own agent."""
_EACH_PROCESS = """for place in /proc/[0-9]*; do
  fields=$(<"$place/stat") || continue
  set -- ${fields##*) }
  %s
done 2> /dev/null
"""
"""Bash: `%s` runs with the number of a process at the end of `$place` and its start, in clock ticks, in `${20}`."""


@dataclass(slots=True, kw_only=True)
class WorkLayers:
    """The layers that tests of one trial see above the image, step by step.

    Attributes:
        work: Patterns of paths beside the work directory; None for those that the task declares, or the default ones.
        learns: Take everything that the agent changes for work.
        by_products: Where `learns`: caches too.
        graded: Rewards of other trials by the digest of their work; None makes no digest.
        by_step: Folders to stack above the image, by the number of the step; given ones are used as they are.
        learned_patterns: Where `learns`: the default paths, and those it changed beside them and the work directory.
        outside: Paths it changed outside its work, which the tests did not see.
        changed_programs: Programs and settings of interpreters in its work that the image has otherwise.
        cut_links: Links of its work that the tests did not see, as they lead out of it to files the agent must not use.
        digest: Of the work that the last tests see; the same for the same work.
    """

    work: Sequence[str] | None = None
    learns: bool = False
    by_products: bool = False
    graded: Mapping[str, Mapping[str, float]] | None = None
    by_step: dict[int, tuple[str, ...]] = field(default_factory=dict)
    learned_patterns: list[str] | None = None
    outside: list[str] = field(default_factory=list)
    changed_programs: list[str] = field(default_factory=list)
    cut_links: list[str] = field(default_factory=list)
    digest: str = ""
    _folder: str = ""
    _released: str = ""
    _agent: ImageSandbox | None = None

    async def keep_start(self, environment: BubblewrapEnvironment) -> None:
        """Remember the files written before the agent began: the tests find them too."""
        if self.by_step:
            return
        self._folder = await default_threads.run(make_folder)
        place, snapshot = os.path.join(self._folder, _BEFORE), environment.snapshot_folder
        if snapshot is None:
            await environment.sandbox.snapshot(place)
        else:
            await default_threads.run(copy_upper, os.path.join(snapshot, _BEFORE), os.path.join(place, "upper"))

    async def snapshot(self, environment: BubblewrapEnvironment, folder: str) -> None:
        """Copy the files written so far into a new folder, for an episode that goes on from there."""
        await environment.sandbox.snapshot(folder)
        if self._folder:  # otherwise nothing is graded by it
            await default_threads.run(copy_upper, self._before, os.path.join(folder, _BEFORE))

    @property
    def _before(self) -> str:
        return os.path.join(self._folder, _BEFORE, "upper")

    def patterns(self, task: TaskConfig, directory: str) -> tuple[str, ...]:
        """The patterns of paths that count as work.

        Args:
            directory: The work directory.

        Raises:
            TaskFailedError: Nobody knows: the work directory says nothing, and neither the task nor its user does.
        """
        try:
            declared = task.metadata.get("work")
            if declared is not None and not isinstance(declared, list):
                raise ValueError(f"work must be a list of paths, got {declared!r}")
            work = declared if self.work is None else self.work
            work = None if work is None else check_work(work)
        except ValueError as error:
            where = "in [metadata] of task.toml: " if self.work is None else ""
            raise TaskFailedError(f"{where}{error}") from error
        sources = [one if isinstance(one, str) else one.source for one in task.artifacts]
        artifacts = [posixpath.normpath(source) for source in sources if source.startswith("/")]
        own = pattern_of_directory(directory)
        if own is None and work is None and not artifacts and not self.learns:
            raise TaskFailedError(
                f"the work directory {directory!r} says nothing about what the agent's work is: run 'strands-env "
                "validate -o FOLDER', whose report says what the solution changes, and give it as work=FOLDER; or "
                'declare work = ["/path"] in [metadata] of task.toml; or use verifier="in-place", which is forgeable'
            )
        if declared is not None:
            self.learns = False  # the task knows better
        elif work is None and own is not None:
            work = DEFAULT_WORK
            if not self.learns:
                _say_default()
        return (*([] if own is None else [own]), *(work or ()), *artifacts, *_ALWAYS)

    async def grade_in_fresh(
        self, environment: BubblewrapEnvironment, task: TaskConfig, *, step: int, last: bool, tests: Sequence[str]
    ) -> None:
        """Replace the agent's container by one for the tests; `last` ends it, otherwise `resume_agent` brings it back.

        Args:
            tests: Folders with the task's tests.
        """
        agent, folder = environment.sandbox, ""
        if step in self.by_step:
            if last:
                await agent.close()
        else:
            patterns = self.patterns(task, agent.workdir)
            if last:  # its work is moved, which takes no time and no room; otherwise the agent goes on with it
                folder = await agent.release_layer()
                self._released = os.path.dirname(folder)
                environment.container = None
                layer = os.path.join(folder, "upper")
            else:
                await _end_processes(environment)
                agent = environment.sandbox
                layer = agent.layer
            # From here on no process of the agent runs: its files can be walked without a race.
            files = self._files(agent, (*agent.layers, layer), tests)
            place = os.path.join(folder or self._folder, f"step-{step}")  # moved, it stays on its file system
            self.by_step[step] = await default_threads.run(self._select, files, patterns, place, last)
            if last and self.known_rewards is not None:
                return
        if not last:  # kept, with all that its next step may need
            self._agent = agent
        # Without the agent's own layers: they are among these, as far as they are work.
        fresh = agent.sibling(layers=self.by_step[step], slots=_slots)
        environment.container = fresh
        await fresh.start()

    @property
    def known_rewards(self) -> Mapping[str, float] | None:
        """Rewards of the last step's work where other tests saw the same, so that no container is needed."""
        return (self.graded or {}).get(self.digest)

    async def inspect_artifacts(
        self, environment: BubblewrapEnvironment, paths: Sequence[str], tests: Sequence[str]
    ) -> None:
        """Name the programs among artifacts that lie in a container for tests, before those run."""
        sandbox = environment.sandbox
        files, folders = self._files(sandbox, [sandbox.layer], tests), [sandbox.layer]
        work = [posixpath.normpath(path).lstrip("/") for path in paths]
        laid = await default_threads.run(functools.partial(LaidWork, files, folders, work, in_use=True))
        self.changed_programs = sorted({*self.changed_programs, *laid.changed_programs})

    def _files(self, sandbox: ImageSandbox, layers: Sequence[str], tests: Sequence[str]) -> AgentFiles:
        return AgentFiles(
            root=sandbox.image.root,
            before=self._before,
            layers=layers,
            path_variable=sandbox.environment.get("PATH", ""),
            directory=sandbox.workdir,
            shown=tuple(sandbox.binds),
            tests=tests,
        )

    def _select(self, files: AgentFiles, patterns: Sequence[str], place: str, move: bool) -> tuple[str, ...]:
        changed = files.changes(patterns, by_products=self.learns and self.by_products)  # before its work is moved away
        if self.learns:
            defaults = [one for one in DEFAULT_WORK if one in patterns]
            self.learned_patterns = list(dict.fromkeys([*defaults, *(self.learned_patterns or ()), *changed.paths]))
            patterns = (*patterns, *changed.paths)
        else:
            more = [] if changed.is_complete and len(changed.paths) <= 50 else ["(and more, which is not listed)"]
            self.outside = sorted({*self.outside, *map(shown_path, changed.paths[:50]), *more})
        laid = files.lay_work(patterns, place, move=move)
        if self.graded is not None:
            self.digest = laid.digest()
        self.changed_programs = sorted({*self.changed_programs, *laid.changed_programs})
        self.cut_links = sorted({*self.cut_links, *laid.cut_links})
        return (self._before, *laid.folders)

    async def resume_agent(self, environment: BubblewrapEnvironment) -> None:
        """End the tests' container where the agent has another step to do, and bring its own back."""
        if self._agent is not None:
            tests, environment.container, self._agent = environment.sandbox, self._agent, None
            await tests.close()

    async def close(self) -> None:
        """Remove the layers."""
        if self._agent is not None:
            await self._agent.close()
        for folder in filter(None, (self._folder, self._released)):
            await default_threads.run(remove_owned_folder, folder)
        self._folder = self._released = ""


@functools.cache
def _say_default() -> None:
    logger.warning(
        "work=<%s> | tests see the work directory and these paths of what the agent wrote: 'strands-env check' "
        "learns from each task's solution what else they need",
        " ".join(DEFAULT_WORK),
    )


# ---- in the agent's own container ------------------------------------------------------------------------------------


async def running_processes(environment: Any) -> frozenset[str]:
    """The processes of a container, each as its number and start; empty on `bubblewrap`, whose own are out of reach."""
    if isinstance(environment, BubblewrapEnvironment):
        return frozenset()
    listed = await environment.exec(_EACH_PROCESS % 'echo "${place#/proc/}-${20}"', user="root")
    return frozenset((listed.stdout or "").split())


async def _end_processes(environment: BubblewrapEnvironment) -> None:
    """End every process of the agent, with its container where they do not end in there."""
    try:
        await environment.sandbox.kill_all()
    except (SandboxError, OSError) as error:
        logger.info("error=<%s> | the agent's container starts again with its files", error)
        await environment.revive()


async def prepare_in_place(environment: Any, *, spared: Collection[str] | None) -> None:
    """Prepare the agent's container for the tests.

    Args:
        spared: Processes that were there before the agent, of `running_processes`; None ends none at all.
    """
    if isinstance(environment, BubblewrapEnvironment):
        if spared is not None:
            await _end_processes(environment)
        environment.sandbox.release_reserve()
        await environment.sandbox.reset_folders(_EMPTY, mode=0o777)
        return
    folders = " ".join(map(shlex.quote, _EMPTY))
    # A link is removed as such: what it leads to is not the agent's to empty.
    real = "; ".join(f"[ -L {path} ] && rm -f {path}" for path in ("/logs", *_EMPTY))
    command = f"{real}; rm -rf {folders}; mkdir -p {folders}; chmod 777 {folders}"
    if spared is not None:  # stopped first, all at once, so that none can start another; the caller itself is spared
        others = "|".join(sorted(spared)) or "none"
        kill = f'case "${{place#/proc/}}-${{20}}" in {others}|1-*|$$-*) ;; *) kill -9 "${{place#/proc/}}" ;; esac'
        await environment.exec(f"kill -STOP -1\n{_EACH_PROCESS % kill}kill -CONT -1; true", user="root")
    await environment.exec(command, user="root")
