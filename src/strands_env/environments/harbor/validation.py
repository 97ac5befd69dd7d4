"""Is a task sound? Its solution has to give 1, doing nothing 0, cheating 0, and each the same every time."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from strands_env.rewards.proof import TaskVerdict
from strands_env.sandbox.images.programs import NamesInTests

from .container import HarborSandbox
from .outcome import Part, TaskFailedError, choose_reward
from .trial import TaskTrial, test_folders

CHEAT_SECONDS = 120.0

CHEATS: Mapping[str, str] = {
    file.stem: file.read_text(encoding="utf-8") for file in sorted(Path(__file__).with_name("cheats").glob("*.sh"))
}
"""Ways to a reward that have nothing to do with the task, as scripts of an agent.

`TEST_NAMES` has the names of the task's tests and of their folders, of which an agent may guess each.
"""


@dataclass(slots=True, kw_only=True)
class TaskReport:
    """The trials of one task: rewards by kind of trial, None where nothing was measured.

    Attributes:
        rewards: Under `oracle`, `nop`, and the name of each cheat.
        errors: Why trials were not measured, or a solution may have failed.
        work: Patterns of the paths that count as work beside the work directory: the solution's changes, and the
            default ones; None where it was given or declared, or the solution was not graded.
    """

    task: str
    work: list[str] | None = None
    rewards: dict[str, list[float | None]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    @property
    def cheats(self) -> list[str]:
        """The cheats that gave a reward."""
        by_cheat = {kind: rewards for kind, rewards in self.rewards.items() if kind not in ("oracle", "nop")}
        return [kind for kind, rewards in by_cheat.items() if any((reward or 0.0) > 0.0 for reward in rewards)]

    @property
    def verdict(self) -> TaskVerdict:
        """The first complaint, from the top; a cheat that was not measured is not one."""
        honest = [reward for kind in ("oracle", "nop") for reward in self.rewards.get(kind, [])]
        oracle, nop = self.rewards.get("oracle", []), self.rewards.get("nop", [])
        if not honest or None in honest:
            return TaskVerdict.BROKEN
        if len(set(oracle)) > 1 or len(set(nop)) > 1:
            return TaskVerdict.FLAKY
        if any((reward or 0.0) < 1.0 for reward in oracle):
            return TaskVerdict.UNSOLVED
        if any((reward or 0.0) > 0.0 for reward in nop):
            return TaskVerdict.FREE
        return TaskVerdict.HACKABLE if self.cheats else TaskVerdict.SOUND

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "verdict": self.verdict.value, "cheats": self.cheats}


async def validate_tasks(
    folders: Sequence[Path],
    *,
    repeats: int = 2,
    cheats: bool = False,
    concurrency: int = 4,
    reward_key: str | None = None,
    done: Callable[[TaskReport], Awaitable[None] | None] | None = None,
    **options: Any,
) -> list[TaskReport]:
    """Try tasks.

    Args:
        repeats: Trials of each kind.
        cheats: Try our own cheats too, beside those that a task ships as `cheat.sh` or `cheats/NAME.sh`.
        concurrency: Trials at the same time.
        done: Called with each report.
        **options: Of `TaskTrial`: `backend`, `backend_options`, `verifier`, `keep_processes`, `work`.
    """
    slots = asyncio.Semaphore(concurrency)

    async def one(folder: Path) -> TaskReport:
        report = TaskReport(task=folder.name)
        shipped = [*folder.glob("cheat.sh"), *folder.glob("solution/cheat.sh"), *sorted(folder.glob("cheats/*.sh"))]
        scripts = {f"shipped:{file.stem}": file.read_text(encoding="utf-8") for file in shipped}
        scripts |= CHEATS if cheats else {}
        tests = NamesInTests.read(test_folders(folder))
        names = sorted(name for name in tests.stems | tests.folders if name.isidentifier())
        graded: dict[
            str, dict[str, float]
        ] = {}  # by the work: most cheats leave none, and are graded like doing nothing
        is_plain = not (folder / "steps").exists()

        async def attempt(kind: str, learns: bool = False, **more: Any) -> tuple[str, float | None, str | None]:
            known: dict[str, Any] = {} if report.work is None else {"work": report.work}
            agent = None if kind in scripts else kind

            async def cheat(part: Part) -> None:
                script = f"export TEST_NAMES={shlex.quote(' '.join(names))}\n{scripts[kind]}"
                await HarborSandbox(part.environment).exec(script, timeout=CHEAT_SECONDS)

            if is_plain and kind in ("nop", *CHEATS):
                known["graded"] = graded if kind in CHEATS else {}
            trial = TaskTrial(folder, agent=agent, learns=learns, **{**options, **known, **more})
            async with slots:
                try:
                    await trial.start()
                    if kind in scripts:
                        await trial.run_parts(cheat)
                    rewards = await trial.reward()
                    reward = choose_reward(rewards, reward_key)
                    if "graded" in known:
                        graded[trial.layers.digest] = rewards
                    # A solution that cannot be graded is the task's mistake, and a cheat's that it cannot is none.
                    return kind, reward, (trial.grading_failure or None) if kind == "oracle" else None
                except TaskFailedError as error:
                    return kind, None, str(error)  # what was not measured is not 0
                finally:
                    await trial.close()
                    if learns:
                        report.work = trial.layers.learned_patterns

        # The first solution says what counts as work; all others, its own repetition too, are graded by that.
        first = await attempt("oracle", learns=options.get("work") is None)
        if (learned := report.work) is not None and first[1] is not None and first[1] < 1.0:
            report.work = None  # perhaps its tests are among the few that need a cache
            again = await attempt("oracle", learns=True, by_products=True)
            first, report.work = (again, report.work) if (again[1] or 0.0) >= 1.0 else (first, learned)
        kinds_by_error: dict[str, dict[str, None]] = {}
        honest = await asyncio.gather(*map(attempt, [*("nop",) * repeats, *("oracle",) * (repeats - 1)]))
        for kind, reward, error in [first, *honest, *await asyncio.gather(*map(attempt, [*scripts] * repeats))]:
            report.rewards.setdefault(kind, []).append(reward)
            if error is not None:
                kinds_by_error.setdefault(error, {})[kind] = None
        report.errors += [f"{', '.join(tried)}: {error}" for error, tried in kinds_by_error.items()]
        if report.verdict is TaskVerdict.UNSOLVED and options.get("verifier", "task") == "task":
            _, reward, _ = await attempt("oracle", keep_processes=True)
            if reward is not None and reward >= 1.0:
                report.errors.append(
                    "oracle: it gives 1 in its own container with its processes, so the tests need more than its work: "
                    "try --verifier in-place or --keep-processes, which are forgeable"
                )
        if done is not None and (pending := done(report)) is not None:
            await pending
        return report

    return list(await asyncio.gather(*map(one, folders)))
