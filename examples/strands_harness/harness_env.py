"""The agent of strands-harness, for slime: a task of Harbor's in its container, or a question in a sandbox."""

from __future__ import annotations

from typing import Any

from strands_env.core import Environment
from strands_env.environments import StrandsHarnessEnv
from strands_env.rewards import ExactMatchReward


def make_env(*, model_factory: Any, sample: Any, options: dict[str, Any]) -> Environment:
    """A fresh environment for one rollout; `config.yaml` names this function as `strands_env_factory`.

    Args:
        model_factory: Makes the model of the rollout.
        sample: slime's sample. With `task_dir` in its metadata, and perhaps `work`, it is a task of Harbor's, scored by
            its tests; otherwise a prompt with a label, which the final answer has to be.
        options: `harness` (arguments of `create_harness`), `today`, and arguments of the environment.
    """
    task = sample.metadata
    if "task_dir" not in task:
        return StrandsHarnessEnv(model_factory=model_factory, reward_fn=ExactMatchReward(ignore_case=True), **options)
    from strands_env.environments.harbor import HarborEnv

    own = {name: value for name, value in options.items() if name in ("harness", "today")}
    return HarborEnv(
        model_factory=model_factory,
        task_dir=task["task_dir"],
        work=task.get("work"),
        agent="strands-harness",
        agent_options=own,
        **{name: value for name, value in options.items() if name not in own},
    )
