"""`RepositoryEnvironment`: a program changes a repository, and its diff is tried where the program has never been."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from strands_env.core import Action, RewardResult, StepResult
from strands_env.sandbox import ExecResult, Outcome, Sandbox, SandboxError

from .harness_env import DEFAULT_LIMITS, HarnessEnvironment
from .recipes import Harness

logger = logging.getLogger(__name__)

PROTECTED = ("conftest.py", "*/conftest.py", "*.pth", "sitecustomize.py", "*/sitecustomize.py", "pytest.ini", "tox.ini")
"""Files of which a diff is not taken over by default: they run, or choose, the tests."""
REPOSITORY_LIMITS = replace(DEFAULT_LIMITS, disk_bytes=4 << 30, file_bytes=1 << 30, files=1_000_000)
"""The default limits of a sandbox of files of this machine, which lie in memory."""
MAX_DIFF_BYTES = 16 << 20
_GIT = "git -c safe.directory='*' -c core.hooksPath=/dev/null -c user.name=task -c user.email=task@localhost"


class RepositoryEnvironment(HarnessEnvironment):
    """A repository that a program is to change; the reward is 1 where the tests pass with its diff, otherwise 0.

    The program works on a copy. Afterwards its sandbox is closed, with its hooks, caches and leftovers, and its diff is
    applied to another copy in a sandbox of the same make. Files of `protected` stay the repository's. A diff
    that cannot be made or applied is the program's doing and scores 0; a sandbox that fails is no reward.

    The tests run the program's code: code that ends the tests with exit code 0 has won. For tasks where that matters
    let `test` check what the tests report, or take `HarborEnv` with its verifier.

    Args:
        repository: Folder of this machine, read-only for the program's copy; None for a repository that is in the
            sandbox's image already, at `folder`.
        test: Shell command in the repository; exit code 0 passes. None takes `test` of the action's context.
        folder: Place of the repository in the sandbox; below the work directory if relative.
        setup: Shell command in every copy before its first use, such as an installation.
        protected: Patterns of paths, as `git apply --exclude` has them; `*` matches slashes.
        test_seconds: Time limit of the tests.
        **options: Further arguments of `HarnessEnvironment`. With `reward_fn` that function scores instead;
            `await env.diff()` and `await env.try_diff(diff)` are for it.
    """

    def __init__(
        self,
        *,
        harness: Harness | Callable[[Action], Harness],
        repository: str | Path | None = None,
        test: str | None = None,
        folder: str = "repository",
        setup: str | None = None,
        protected: Sequence[str] = PROTECTED,
        test_seconds: float = 600.0,
        **options: Any,
    ) -> None:
        self.repository = None if repository is None else Path(repository).resolve()
        if self.repository is not None and not self.repository.is_dir():
            raise ValueError(f"repository must be a folder, got {str(repository)!r}")
        if self.repository is not None:
            options["read_only"] = [*options.get("read_only", ()), str(self.repository)]
        if options.get("sandbox") is None:
            options.setdefault("limits", REPOSITORY_LIMITS)
        self.test, self.folder, self.setup = test, folder, setup
        self.protected, self.test_seconds = tuple(protected), test_seconds
        self._base = ""

        def start(action: Action) -> Harness:
            inner = harness(action) if callable(harness) else harness
            # The folder is `$0`, so no word of the command has to be quoted.
            return replace(inner, command=("sh", "-c", 'cd "$0" && exec "$@"', self.folder, *inner.command))

        super().__init__(harness=start, **{"reward_fn": self.passes_tests, **options})

    async def prepare(self, action: Action) -> None:
        """Make the program's copy, with a commit that its diff is taken against."""
        self._base = await self._lay_out(self.sandbox)

    async def _lay_out(self, sandbox: Sandbox) -> str:
        """Make a copy of the repository; the id of its first commit for us."""
        source = "" if self.repository is None else f"{shlex.quote(str(self.repository))}/."
        lines = [
            "set -e",
            f"mkdir -p {self._at}; cp -a {source} {self._at}" if source else "",
            f"cd {self._at}",
            self.setup or "",
            f"[ -e .git ] || {_GIT} init -q",
            f"{_GIT} add -A",
            f"{_GIT} commit -q --allow-empty --no-verify -m task",
            f"{_GIT} rev-parse HEAD",
        ]
        done = await sandbox.exec("\n".join(lines))
        if done.outcome is not Outcome.OK:
            raise SandboxError(f"the repository could not be laid out: {done.to_text(2000)}")
        return done.stdout.split()[-1]

    @property
    def _at(self) -> str:
        return shlex.quote(self.folder)

    async def diff(self) -> bytes | None:
        """The program's changes, committed or not; None where it has made that impossible to say."""
        name = ".change.diff"
        take = f"{_GIT} add -A && {_GIT} diff --cached --binary --no-color --no-ext-diff --no-textconv {self._base}"
        # The program may have left a link of this name, through which the diff would be written.
        done = await self.sandbox.exec(f"rm -rf {name}; (cd {self._at} && {take}) > {name}")
        if done.outcome is not Outcome.OK:
            logger.info("outcome=<%s> | no diff could be taken", done.outcome)
            return None
        try:
            return await self.sandbox.read_file(name, max_bytes=MAX_DIFF_BYTES)
        except OSError:
            return None

    async def try_diff(self, diff: bytes, test: str) -> ExecResult:
        """The end of the tests in a fresh sandbox with this diff."""
        async with self.sandbox.sibling() as clean:
            await self._lay_out(clean)
            if diff.strip():
                await clean.write_file("change.diff", diff)
                change = f"{shlex.quote((await clean.exec('pwd')).stdout.strip())}/change.diff"
                excluded = " ".join(f"--exclude={shlex.quote(pattern)}" for pattern in self.protected)
                applied = await clean.exec(f"cd {self._at} && {_GIT} apply --whitespace=nowarn {excluded} {change}")
                if applied.outcome is not Outcome.OK:
                    return applied
            return await clean.exec(f"cd {self._at} && {test}", timeout=self.test_seconds)

    async def passes_tests(self, action: Action, result: StepResult) -> RewardResult:
        """1 where the tests pass with the diff, otherwise 0; `info` has the diff and the end of the tests."""
        test = self.test or getattr(action.task_context, "test", None)
        if not test:
            raise ValueError("a repository needs a test: give test=, or an action whose context has it")
        diff = await self.diff()
        await self.sandbox.close()  # a process that the program left behind must not outlive it
        if diff is None:
            return RewardResult(reward=0.0, info={"diff": None})
        done = await self.try_diff(diff, test)
        shown = {"diff": diff.decode("utf-8", "replace")[:20_000], "test": done.to_text(4000)}
        return RewardResult(reward=float(done.outcome is Outcome.OK), info=shown)
