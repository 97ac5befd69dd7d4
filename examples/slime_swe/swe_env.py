"""Agent programs on repositories, for slime: a task of Harbor's or a repository with a test, one sample each.

python swe_env.py tasks/ > tasks.jsonl      # rows for --prompt-data from a folder of tasks in Harbor's format
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from strands_env.core import Environment
from strands_env.environments import harness as harnesses
from strands_env.environments.harbor.outcome import REPORT, read_work
from strands_env.eval.benchmarks.harbor import task_folders

LIMITS = {"max_requests": 60, "max_seconds": 1800.0, "max_parallel": 4, "final_answer": True}


def make_env(*, model_factory: Any, sample: Any, options: dict[str, Any]) -> Environment:
    """A fresh environment for one rollout; `config.yaml` names this function as `strands_env_factory`.

    Args:
        model_factory: Makes the model of the rollout.
        sample: slime's sample; its metadata name the task: `task_dir` and perhaps `work`, or `repository` and `test`.
        options: `harness` and `program` (which agent, and where it is), `programs` (the folder it needs), `limits`, and
            arguments of the environment.
    """
    options, task = dict(options), sample.metadata
    recipe = getattr(harnesses, options.pop("harness", "mini_swe_agent"))
    options["harness"] = recipe(options.pop("program"))
    programs, limits = options.pop("programs"), {**LIMITS, **options.pop("limits", {})}
    if "task_dir" in task:
        from strands_env.environments.harbor import HarborEnv

        shown = {"binds": {programs: programs}}
        return HarborEnv(
            model_factory=model_factory,
            task_dir=task["task_dir"],
            work=task.get("work"),
            backend_options=shown,
            session_limits=limits,
            **options,
        )
    repository = {name: task[name] for name in ("repository", "test")}
    return harnesses.RepositoryEnvironment(
        model_factory=model_factory, read_only=[programs], **repository, **limits, **options
    )


def main() -> None:
    """Print a row for every task of a folder, or of the file that `strands-env check -o` wrote."""
    folder = Path(sys.argv[1])
    work = read_work(folder) if (folder / REPORT).is_file() else {}
    for task in task_folders(folder):
        prompt = (task / "instruction.md").read_text(encoding="utf-8")
        metadata = {"task_dir": str(task.resolve()), "work": work.get(task.name)}
        print(json.dumps({"prompt": prompt, "label": "", "metadata": metadata}))


if __name__ == "__main__":
    main()
