"""Tasks in Harbor's format: a folder for each, with its own container and tests. Terminal-Bench and SWE-bench have it.

The loader reads the folders and needs nothing but Python. Running a task needs the package `harbor` and Python 3.12;
see `docs/containers.md`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from strands_env.core import Action, Environment, ModelFactory, TaskContext
from strands_env.core.files import digest_folder
from strands_env.environments.harbor.outcome import REPORT, read_work
from strands_env.eval.errors import DatasetError, EvalError
from strands_env.eval.run.benchmark import Benchmark, Row
from strands_env.eval.sample import EvalSample
from strands_sglang.cache import cache_folder
from strands_sglang.exceptions import install_command


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRepository:
    """Tasks in a repository.

    Attributes:
        folder: The part of it with the tasks.
    """

    url: str
    folder: str = ""

    def fetch(self, name: str) -> Path:
        """The folder with the tasks, in the cache of this package; fetched with git where it is not there yet."""

        def clone(target: Path) -> None:
            # Repositories of tasks are large, and only the newest files of one folder are needed.
            self._git("clone", "--quiet", "--depth", "1", "--filter=blob:none", "--sparse", self.url, str(target))
            self._git("-C", str(target), "sparse-checkout", "set", self.folder or "/*")

        return _fetched(name, clone) / self.folder

    def _git(self, *arguments: str) -> None:
        try:
            process = subprocess.run(["git", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        except OSError as error:
            raise DatasetError(f"the tasks of {self.url} are fetched with git, which cannot be run: {error}") from error
        if process.returncode != 0:
            raise DatasetError(
                f"the tasks cannot be fetched from {self.url}: {process.stderr.strip()[-300:]}; give a folder with "
                "them as data_path (--data)"
            )


def _fetched(name: str, fetch: Callable[[Path], None]) -> Path:
    """A folder of tasks in the cache of this package; `fetch` fills one that is not there yet, whole or not at all."""
    place = cache_folder() / "tasks" / name
    if not place.exists():
        unfinished = place.with_name(f"{place.name}.part")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        fetch(unfinished)
        unfinished.rename(place)  # last, so that a fetch cut short is never taken for a whole one
    return place


class HarborEvaluator(Benchmark):
    """Folders of container tasks in Harbor's format; needs --data FOLDER, of tasks or of `check -o`."""

    benchmark_name = "harbor"
    has_local_rows = True
    repository: ClassVar[TaskRepository | None] = None
    """Repository of the tasks, if no folder is given."""

    @classmethod
    def environment(cls, model_factory: ModelFactory, **options: Any) -> Callable[..., Environment]:
        """`HarborEnv` for each task."""
        from strands_env.environments.harbor import create_env_factory

        try:
            factory: Callable[..., Environment] = create_env_factory(model_factory, **options)
        except ImportError as error:
            raise EvalError(str(error)) from error
        return factory

    def rows(self) -> Iterator[Row]:
        """A row per task folder: a folder with `task.toml`, here or in `tasks/`, or the given folder itself."""
        if self.data_path is not None:
            root = Path(self.data_path)
        elif self.repository is not None:
            root = self.repository.fetch(self.benchmark_name)
        else:
            raise DatasetError("harbor needs the folder with its tasks: give data_path (--data FOLDER)")
        work = read_work(root) if (root / REPORT).is_file() else {}
        for folder in task_folders(root):
            yield {**_row(folder), "work": work.get(folder.name)}

    def action(self, row: Row, index: int) -> Action:
        """The instruction; its context has `task_dir` (text), `task_content`, `timeout_s`, `difficulty` and `work`.

        `task_content` is a digest of the whole folder, tests included: with the name it is the identity of the task.
        """
        settings = {key: row[key] for key in ("task_dir", "task_content", "timeout_s", "difficulty", "work")}
        context = TaskContext(id=row["name"], **settings)
        return Action(message=row["instruction"], task_context=context)

    def validate_sample(self, sample: EvalSample) -> bool:
        """A task whose tests did not run was not measured: it is tried again by a resume."""
        return sample.reward is not None


class TerminalBench2Evaluator(HarborEvaluator):
    """Terminal-Bench 2.0: work in a terminal, 89 tasks."""

    benchmark_name = "terminal-bench-2"
    has_local_rows = False
    repository = TaskRepository(url="https://github.com/laude-institute/terminal-bench-2")


class TerminalBench21Evaluator(HarborEvaluator):
    """Terminal-Bench 2.1: work in a terminal, 89 tasks."""

    benchmark_name = "terminal-bench-2.1"
    has_local_rows = False
    repository = TaskRepository(url="https://github.com/harbor-framework/terminal-bench-2-1", folder="tasks")


class SWEBenchVerifiedEvaluator(HarborEvaluator):
    """SWE-bench Verified: 500 issues of open-source projects."""

    benchmark_name = "swebench-verified"
    has_local_rows = False
    repository = TaskRepository(
        url="https://github.com/laude-institute/harbor-datasets", folder="datasets/swebench-verified"
    )


class HarborRegistryEvaluator(HarborEvaluator):
    """Tasks of a Harbor registry by name, as `harbor download` takes it: `harbor:ORG/NAME@REF`."""

    has_local_rows = False

    def known_tasks(self) -> Sequence[Action]:
        """None: fetching them may take long."""
        self._program()
        return ()

    def rows(self) -> Iterator[Row]:
        """A row per task, from the cache of this package; fetched with `harbor download` where they are not there yet.

        Only a whole data set appears under its name there. Remove its folder to fetch it again.
        """
        name = self.benchmark_name.partition(":")[2]

        def download(target: Path) -> None:
            target.mkdir()
            command = [self._program(), "download", name, "--output-dir", str(target)]
            process = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if process.returncode != 0:
                said = process.stderr.strip() or process.stdout.strip()
                told = " ".join(said.rpartition("Error: ")[2][-300:].split())
                raise DatasetError(f"'harbor download {name}' failed: {told}; is that its name in the registry?")

        place = _fetched("registry/" + re.sub(r"[^\w.@-]+", "+", name), download)
        found = sorted(path.parent for path in place.rglob("task.toml"))
        for folder in (each for each in found if not any(other in each.parents for other in found)):
            yield {**_row(folder), "work": None}

    def _program(self) -> str:
        if self.data_path is not None:
            raise DatasetError(f"{self.benchmark_name} brings its own tasks: leave out data_path (--data)")
        beside = Path(sys.executable).with_name("harbor")
        program = str(beside) if beside.exists() else shutil.which("harbor")
        if program is None:
            raise DatasetError(f"tasks of a registry are fetched with the program harbor: {install_command('harbor')}")
        return program


def task_folders(root: Path) -> list[Path]:
    """The folders of tasks in a folder: those with `task.toml`, here or in `tasks/`, or the folder itself.

    A folder that `strands-env check -o` wrote stands for the sound tasks of its report.
    """
    if (root / "task.toml").is_file():
        return [root]
    if (root / REPORT).is_file() and (root / "tasks.txt").is_file():
        return [Path(line) for line in (root / "tasks.txt").read_text(encoding="utf-8").splitlines()]
    folder = root / "tasks" if (root / "tasks").is_dir() else root
    if not folder.is_dir():
        raise DatasetError(f"harbor needs a folder of tasks, found none at {str(folder)!r}")
    folders = sorted(path.parent for path in folder.glob("*/task.toml"))
    if not folders:
        raise DatasetError(f"{str(folder)!r} has no task in Harbor's format (NAME/task.toml and NAME/instruction.md)")
    return folders


def _row(folder: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
        steps = settings.get("steps") or []
        place = folder / "steps" / steps[0]["name"] if steps else folder
        return {
            "name": folder.name,
            "task_dir": str(folder.resolve()),
            "task_content": digest_folder(folder, without=".git"),
            "instruction": (place / "instruction.md").read_text(encoding="utf-8").strip(),
            "timeout_s": settings.get("agent", {}).get("timeout_sec"),
            "difficulty": settings.get("metadata", {}).get("difficulty"),
        }
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise DatasetError(f"the task in {str(folder)!r} cannot be read: {error}") from error
