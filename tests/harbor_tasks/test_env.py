"""Episodes of `HarborEnv` on small tasks, over bubblewrap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strands_env.core import Action, TaskContext, TerminationReason
from strands_env.environments.harbor import HarborEnv, TaskTrial
from strands_env.testing import ScriptedModel, call
from tests.container_support import make_task, require_images


def env_of(task: Path, *script: Any, **options: Any) -> HarborEnv:
    require_images()
    return HarborEnv(model_factory=lambda: ScriptedModel(list(script)), task_dir=task, **options)


ACTION = Action(message="", task_context=TaskContext(id="t"))


async def test_an_agent_solves_a_task(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    env = env_of(task, call("execute_command", command="echo 42 > answer.txt; pwd"), "Done.")
    result = await env.rollout(ACTION)
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, result.error
    assert result.reward is not None and result.reward.reward == 1.0
    assert result.observation.messages[0]["content"][0]["text"] == "Write 42 into /app/answer.txt."
    assert "/app" in str(result.observation.messages[2])


async def test_the_oracle_gets_one(tmp_path: Path) -> None:
    trial = TaskTrial(make_task(tmp_path), agent="oracle")
    await trial.start()
    try:
        assert (await trial.reward()).rewards == {"reward": 1.0}
    finally:
        await trial.close()
