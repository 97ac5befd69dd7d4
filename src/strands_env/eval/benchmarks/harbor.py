"""Tasks in Harbor's format (Terminal-Bench 2, SWE-style sets): a folder for each, with its own container and tests.

The loader reads the folders and needs nothing but Python. To run a task one needs an environment that starts its
container and runs its tests; Harbor does that with Docker and Python 3.12, and is not bundled. Name such an environment
with `--env module:function`: its factory is given the action, whose context has `task_dir` and `timeout_s`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strands_env.core import Action, TaskContext
from strands_env.eval.errors import DatasetError
from strands_env.eval.run.benchmark import Benchmark, Row
from strands_env.eval.sample import EvalSample


class HarborEvaluator(Benchmark):
    """Folders of tasks in Harbor's format (Terminal-Bench 2, SWE-style); needs --data FOLDER and --env."""

    benchmark_name = "harbor"
    has_local_rows = True

    def rows(self) -> Iterator[Row]:
        """One row a task folder: a folder with `task.toml` and `instruction.md`, here or in `tasks/`.

        Raises:
            DatasetError: There is no such folder, or a task in it is incomplete.
        """
        if self.data_path is None:
            raise DatasetError("harbor needs the folder with its tasks: give data_path (--data FOLDER)")
        root = Path(self.data_path)
        root = root / "tasks" if (root / "tasks").is_dir() else root
        if not root.is_dir():
            raise DatasetError(f"harbor needs a folder of tasks, found none at {str(root)!r}")
        folders = sorted(path.parent for path in root.glob("*/task.toml"))
        if not folders:
            raise DatasetError(f"{str(root)!r} has no task in Harbor's format (NAME/task.toml and NAME/instruction.md)")
        for folder in folders:
            yield _row(folder)

    def action(self, row: Row, index: int) -> Action:
        """The instruction; its context has `task_dir` (text), `timeout_s` and `difficulty`."""
        settings = {key: row[key] for key in ("task_dir", "timeout_s", "difficulty")}
        context = TaskContext(id=row["name"], **settings)
        return Action(message=row["instruction"], task_context=context)

    def validate_sample(self, sample: EvalSample) -> bool:
        """A task whose tests did not run was not measured: it is tried again by a resume."""
        return sample.reward is not None


def _row(folder: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
        return {
            "name": folder.name,
            "task_dir": str(folder.resolve()),
            "instruction": (folder / "instruction.md").read_text(encoding="utf-8").strip(),
            "timeout_s": settings.get("agent", {}).get("timeout_sec"),
            "difficulty": settings.get("metadata", {}).get("difficulty"),
        }
    except (OSError, ValueError, AttributeError) as error:
        raise DatasetError(f"the task in {str(folder)!r} cannot be read: {error}") from error
