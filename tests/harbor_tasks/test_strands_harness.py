"""The agent of strands-harness on a task: it works from this process, through the contract of a sandbox alone."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from strands_env.commands.cli import main
from strands_env.core import StepResult, TerminationReason
from strands_env.environments.harbor import HarborEnv, TaskTrial
from strands_env.environments.harbor.container import HarborSandbox
from strands_env.sandbox import Sandbox, SandboxUnsupportedError
from strands_env.testing import ScriptedModel, call
from strands_env.testing.sandboxes import AgentSandboxContract
from tests.conftest import ROOT
from tests.container_support import make_task
from tests.harbor_tasks.test_env import ACTION, STEP_FILES, STEPS, nothing_is_left

__all__ = ["nothing_is_left"]  # a fixture of every test here


class TaskSandbox(HarborSandbox):
    """The container of a task, from its start to its end."""

    def __init__(self, task: Path) -> None:
        super().__init__(None)
        self.trial = TaskTrial(task)

    async def start(self) -> None:
        await self.trial.start()
        assert self.trial._trial is not None
        self.bind(self.trial._trial.agent_environment)

    async def close(self) -> None:
        await self.trial.close()


class TestTaskContainer(AgentSandboxContract):
    @pytest.fixture(autouse=True)
    def _task(self, tmp_path: Path) -> None:
        self.task = make_task(tmp_path)

    def make_sandbox(self) -> Sandbox:
        return TaskSandbox(self.task)


async def test_a_container_whose_output_only_comes_in_the_end_says_so() -> None:
    class Docker:
        async def exec(self, line: str, **_: Any) -> Any:
            return SimpleNamespace(return_code=3, stdout=line, stderr=None)

    sandbox = HarborSandbox(Docker())
    assert (await sandbox.execute("true")).exit_code == (await sandbox.execute_code("1", "sh")).exit_code == 3
    with pytest.raises(SandboxUnsupportedError, match=r"HarborSandbox cannot stream output: use execute\(\)"):
        await anext(sandbox.execute_streaming("true"))


async def episode(task: Path, script: Any, **options: Any) -> StepResult:
    pytest.importorskip("strands_harness")
    options = {"agent": "strands-harness", "task_dir": task, **options}
    return await HarborEnv(model_factory=lambda: ScriptedModel(script), **options).rollout(ACTION)


def reward_of(result: StepResult) -> float | None:
    return None if result.reward is None else result.reward.reward


SOLVED, REMOVED = call("shell", command="echo 42 > answer.txt"), call("shell", command="rm answer.txt")


async def test_its_tools_solve_the_task_and_the_verifier_scores(tmp_path: Path) -> None:
    script = [
        call("shell", command="pwd; which python3 curl node"),
        call("write", path="/app/answer.txt", content="41\n"),
        call("edit", path="/app/answer.txt", old_str="41", new_str="42"),
        call("read", path="/app/answer.txt"),
        "Done.",
    ]
    result = await episode(make_task(tmp_path), script)
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, result.error
    assert reward_of(result) == 1.0
    seen = result.observation
    assert seen.messages[0]["content"][0]["text"] == "Write 42 into /app/answer.txt."
    (place,) = seen.messages[2]["content"]
    told = json.loads(place["toolResult"]["content"][0]["text"])
    assert (told["output"], told["exit_code"]) == ("/app\n", 1)  # none of the programs is there
    assert "gateway" not in seen.metrics and "execute_command" not in (seen.tools or "")
    assert "container" not in (seen.system_prompt or "") and len(seen.system_prompt or "") > 500


async def test_subagents_work_in_the_container_over_all_steps(tmp_path: Path) -> None:
    task = make_task(tmp_path, more=STEPS, files=STEP_FILES)
    main = iter([call("subagent", task="the subtask"), "Waiting.", "First done.", REMOVED, "Second done."])
    helper = iter([SOLVED, "It is there."])
    options = {"harness": {"builtin_plugins": []}}
    result = await episode(
        task, lambda messages: next(helper if "subtask" in str(messages[0]) else main), agent_options=options
    )
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, result.error
    assert reward_of(result) == 1.0
    assert "todo_write" not in (result.observation.tools or "")


async def test_what_a_limit_or_the_tasks_time_ends_is_graded(tmp_path: Path) -> None:
    limited = await episode(make_task(tmp_path), lambda _: SOLVED, max_tool_iters=2)
    assert limited.termination_reason is TerminationReason.MAX_TOOL_ITERATIONS_REACHED
    main = iter([call("subagent", task="the subtask"), "Waiting."])
    helper = iter([SOLVED, call("shell", command="sleep 60; rm answer.txt")])
    late = await episode(
        make_task(tmp_path / "late", agent_seconds=2.0),
        lambda messages: next(helper if "subtask" in str(messages[0]) else main),
    )
    assert late.termination_reason is TerminationReason.TASK_TIME_LIMIT_REACHED
    assert reward_of(limited) == reward_of(late) == 1.0


def test_options_that_the_environment_has_itself_are_refused() -> None:
    pytest.importorskip("strands_harness")
    with pytest.raises(TypeError, match="agent_options got an unexpected keyword argument 'max_tool_iters'"):
        HarborEnv(model_factory=ScriptedModel, agent="strands-harness", agent_options={"max_tool_iters": 3})


async def test_a_container_that_is_lost_is_not_measured(tmp_path: Path) -> None:
    script = iter([SOLVED, None, SOLVED, "Done."])
    task = make_task(tmp_path)
    pytest.importorskip("strands_harness")
    env: HarborEnv

    def reply(messages: Any) -> Any:
        if (one := next(script)) is not None:
            return one
        assert env.trial is not None and env.trial._trial is not None
        (first,) = psutil.Process(env.trial._trial.agent_environment.sandbox._process._process.pid).children()
        first.kill()
        return SOLVED

    env = HarborEnv(model_factory=lambda: ScriptedModel(reply), task_dir=task, agent="strands-harness")
    result = await env.rollout(ACTION)
    assert result.reward is None and result.termination_reason is TerminationReason.TOOL_ERROR
    assert result.error is not None and result.error.type.endswith("SandboxLostError"), result.error


async def test_the_example_for_slime_makes_it(tmp_path: Path) -> None:
    pytest.importorskip("strands_harness")
    make_env = runpy.run_path(str(ROOT / "examples" / "strands_harness" / "harness_env.py"))["make_env"]
    sample = SimpleNamespace(metadata={"task_dir": str(make_task(tmp_path)), "work": None})
    prompts: list[str] = []

    def reply(messages: Any) -> Any:
        prompts.append(str(messages))
        return SOLVED if len(prompts) == 1 else "Done."

    options = {"harness": {"builtin_tools": ["shell"]}, "today": "2026-01-31", "max_tool_iters": 9}
    env = make_env(model_factory=lambda: ScriptedModel(reply), sample=sample, options=options)
    result = await env.rollout(ACTION)
    assert reward_of(result) == 1.0, result.error
    assert '"edit"' not in (result.observation.tools or "") and "Date: 2026-01-31" in prompts[0]


def test_the_command_line_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("strands_harness")
    script = json.dumps([{"tool": "shell", "input": {"command": "echo 42 > answer.txt"}}, "Done."])
    words = ["eval", "harbor", "--data", str(make_task(tmp_path)), "--backend", "scripted", "--script", script]
    config = ["--env-config", '{"agent": "strands-harness"}', "-o", str(tmp_path / "run"), "--json"]
    assert main([*words, *config]) == 0
    assert json.loads(capsys.readouterr().out)["mean_reward"]["value"] == 1.0
