"""StrandsHarnessEnv: agents of the package strands-harness in a sandbox, within an environment's limits."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from strands import tool
from strands.hooks import AfterModelCallEvent

from strands_env.commands.recipe.factories import make_env_factory
from strands_env.core import Action, TerminationReason
from strands_env.eval.errors import EvalError
from strands_env.eval.options import EvalOptions
from strands_env.sandbox import SandboxUnavailableError
from strands_env.sandbox.images import ImageSandbox
from strands_env.testing import ScriptedModel, call
from strands_sglang import SGLangModel
from strands_sglang.exceptions import BackendConnectionError
from strands_sglang.testing import Reply, ScriptedClient
from tests.container_support import require_images
from tests.unit.eval_support import tool_results
from tests.unit.sandbox_support import FolderSandbox, requires_isolation

requires_harness = pytest.mark.skipif(
    find_spec("strands_harness") is None, reason="the package strands-harness is not installed"
)
SUBTASK = "the subtask"


def make_env(script: Any, **options: Any) -> Any:
    from strands_env.environments import StrandsHarnessEnv

    return StrandsHarnessEnv(model_factory=lambda: ScriptedModel(script), **options)


def is_subagent(messages: list[dict[str, Any]]) -> bool:
    return SUBTASK in json.dumps(messages[0])


def text_of(tool_result: dict[str, Any]) -> str:
    return "".join(block.get("text", "") for block in tool_result["content"])


@requires_harness
@requires_isolation
async def test_tools_work_in_the_sandbox_and_nothing_is_written_or_printed_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    env = make_env(
        [
            call("shell", command="pwd > here; cat here"),
            call("write", path="/workspace/a", content="old"),
            call("edit", path="/workspace/a", old_str="old", new_str="new"),
            call("read", path="/workspace/a"),
            call("shell", command="cat /etc/passwd; ls /home"),
            "Done.",
        ]
    )
    result = await env.rollout(Action(message="Go."))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    here, written, edited, read, outside = tool_results(result)
    assert "/workspace" in text_of(here)
    assert [each["status"] for each in (written, edited)] == ["success"] * 2
    assert "new" in text_of(read) and "No such file" in text_of(outside)
    names = {each["function"]["name"] for each in json.loads(result.observation.tools or "[]")}
    assert {"shell", "subagent", "todo_write"} <= names and not names & {"web_fetch", "web_search", "search_memory"}
    assert not os.listdir(tmp_path) and capfd.readouterr() == ("", "")
    env.model_factory = lambda: ScriptedModel([call("shell", command="ls /workspace"), "Done."])
    assert "here" not in text_of(tool_results(await env.rollout(Action(message="Go.")))[0])


@requires_harness
async def test_a_whole_image_can_be_its_sandbox() -> None:
    image = ImageSandbox(require_images(), workdir="/app")
    env = make_env([call("shell", command="id -un; busybox seq 2; pwd"), "Done."], sandbox=image)
    (seen,) = tool_results(await env.rollout(Action(message="Go.")))
    assert json.loads(text_of(seen))["output"] == "root\n1\n2\n/app\n"


@requires_harness
async def test_the_limits_of_the_environment_hold() -> None:
    env = make_env(
        lambda _: call("shell", command="sleep 60"), sandbox=FolderSandbox(), max_tool_iters=2, tool_timeout=0.5
    )
    result = await env.rollout(Action(message="Go."))
    assert result.termination_reason is TerminationReason.MAX_TOOL_ITERATIONS_REACHED
    assert ["did not finish within 0.5 seconds" in text_of(each) for each in tool_results(result)] == [True, True]
    assert env.sandbox.is_closed


@requires_harness
async def test_a_subagent_has_the_limits_too_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    lengths: list[int] = []

    def endless(messages: list[dict[str, Any]]) -> Any:
        lengths.append(len(json.dumps(messages)))
        return call("shell", command="seq 10000")

    main = iter([call("subagent", task=SUBTASK), "Waiting.", "Done."])
    env = make_env(
        lambda messages: endless(messages) if is_subagent(messages) else next(main),
        sandbox=FolderSandbox(),
        max_tool_iters=3,
        max_tool_output_chars=50,
    )
    result = await env.rollout(Action(message="Go."))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    *_, answer = tool_results(result)
    assert "Subagent stopped before finishing" in text_of(answer)
    assert len(lengths) == 3 and max(lengths) < 2_000
    assert capfd.readouterr() == ("", "")


@requires_harness
async def test_the_paths_of_a_subagent_have_its_name() -> None:
    pytest.importorskip("transformers")
    from strands_env.environments import StrandsHarnessEnv
    from strands_sglang.backends.engine.tiny import make_tiny_tokenizer

    tokenizer = make_tiny_tokenizer(context_length=200_000)
    delegation = json.dumps({"name": "subagent", "arguments": {"task": SUBTASK}})
    first = iter([f"<tool_call>\n{delegation}\n</tool_call>", "Waiting.", "Done."])

    def script(input_ids: Any, _: Any) -> str:
        is_main = "Go." in tokenizer.decode(list(input_ids))
        return next(first) if is_main else "The answer."

    client = ScriptedClient(script, tokenizer=tokenizer)
    env = StrandsHarnessEnv(
        model_factory=lambda: SGLangModel(client=client, tokenizer=tokenizer),
        sandbox=FolderSandbox(),
        harness={"builtin_plugins": []},
    )
    result = await env.rollout(Action(message="Go."))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    paths = {path.agent_name: tokenizer.decode(list(path.tokens.token_ids)) for path in result.trajectories}
    assert paths.keys() == {"agent", "subagent"}
    assert {(path.agent_name, str(path.role), path.agent_id, path.parent) for path in result.trajectories} == {
        ("agent", "main", "agent-0", None), ("subagent", "subagent", "agent-1", "agent-0"),
    }  # fmt: skip
    assert "The answer." in paths["subagent"] and "Go." not in paths["subagent"]


@requires_harness
async def test_the_date_of_prompts_is_that_of_the_environment_for_subagents_too() -> None:
    shown: list[str] = []
    main = iter([call("subagent", task=SUBTASK), "Waiting.", "Done."])

    def script(messages: list[dict[str, Any]]) -> Any:
        shown.extend(re.findall(r"Date: (\S+)", json.dumps(messages).replace("\\n", " ")))
        return "Answer." if is_subagent(messages) else next(main)

    env = make_env(script, sandbox=FolderSandbox(), today="2001-02-03")
    await env.rollout(Action(message="Go."))
    assert shown == ["2001-02-03"] * 2
    with pytest.raises(ValueError, match="today='soon': expected a day, as in '2026-01-31'"):
        make_env(script, sandbox=FolderSandbox(), today="soon")


@requires_harness
async def test_user_turns_of_a_subclass_have_the_date_too_and_leave_nothing_running() -> None:
    from strands_env.environments import StrandsHarnessEnv

    class Turns(StrandsHarnessEnv):
        async def interact(self, agent: Any, action: Action) -> Any:
            await self.invoke(agent, "One.")
            assert running  # a background task may go on over user turns
            return await self.invoke(agent, "Two.")

    running: list[str] = []
    shown: list[str] = []

    @tool
    async def wait() -> str:
        """Wait."""
        running.append("wait")
        try:
            await asyncio.Event().wait()
        finally:
            running.clear()
        return ""

    def script(messages: list[dict[str, Any]]) -> Any:
        shown.extend(re.findall(r"Date: (\S+)", json.dumps(messages).replace("\\n", " ")))
        return call("wait") if len(messages) == 1 else "Done."

    harness = {"tools": [wait], "background_tasks": {"always": ["wait"], "wait_for_completion": False}}
    env = Turns(
        model_factory=lambda: ScriptedModel(script), sandbox=FolderSandbox(), harness=harness, today="2001-02-03"
    )
    result = await env.rollout(Action(message="Go."))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, result.error
    assert set(shown) == {"2001-02-03"} and not running


@requires_harness
@pytest.mark.parametrize("limits", [{}, {"max_messages": 9}], ids=["to-its-end", "to-a-limit"])
async def test_memory_asks_for_facts_within_the_step(tmp_path: Path, limits: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    from strands_env.environments import StrandsHarnessEnv
    from strands_sglang.backends.engine.tiny import make_tiny_tokenizer

    class Turns(StrandsHarnessEnv):
        async def interact(self, agent: Any, action: Action) -> Any:
            return [await self.invoke(agent, f"Question {number}?") for number in range(5)][-1]

    tokenizer = make_tiny_tokenizer(context_length=200_000)
    script = ["Answer."] * 5 + [Reply(text="facts", delay=0.05)]  # memory asks with every fifth turn
    client = ScriptedClient(script, tokenizer=tokenizer)
    env = Turns(
        model_factory=lambda: SGLangModel(client=client, tokenizer=tokenizer),
        sandbox=FolderSandbox(),
        harness={"builtin_plugins": [], "memory": {"dir": str(tmp_path / "memory")}},
        **limits,
    )
    before = asyncio.all_tasks()
    result = await env.rollout(Action(message="Go."))
    assert asyncio.all_tasks() == before
    paths = [(str(path.role), path.trainable) for path in result.trajectories]
    assert paths == [("main", True)] + [("summary", False)] * (not limits), result.error


@requires_harness
async def test_a_step_that_its_deadline_ends_leaves_nothing_running() -> None:
    running: list[str] = []

    class Blocking(ScriptedModel):
        async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            task = json.dumps(messages[0])
            if "deeper" in task:
                running.append(task)
                try:
                    await asyncio.Event().wait()
                finally:
                    running.remove(task)
            async for event in super().stream(messages, *args, **kwargs):
                yield event

    def script(messages: list[dict[str, Any]]) -> Any:
        if len(messages) > 1:
            return "Waiting."
        return call("subagent", task="deeper" if is_subagent(messages) else SUBTASK)

    env = make_env(None, sandbox=FolderSandbox(), step_timeout=3.0)
    env.model_factory = lambda: Blocking(script)
    before = asyncio.all_tasks()
    result = await env.rollout(Action(message="Go."))
    assert result.termination_reason is TerminationReason.TIMEOUT
    for _ in range(20):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before and not running


@requires_harness
async def test_failures_of_sandbox_and_of_a_subagents_model_are_not_the_agents() -> None:
    failure = SandboxUnavailableError("no room")
    broken = make_env([call("shell", command="ls"), "Done."], sandbox=FolderSandbox(failure=failure))
    result = await broken.rollout(Action(message="Go."))
    assert result.termination_reason is TerminationReason.TOOL_ERROR and result.error.message == "no room"

    main = iter([call("subagent", task=SUBTASK), "Waiting.", "Done."])
    lost = BackendConnectionError("the server is gone")
    env = make_env(lambda messages: lost if is_subagent(messages) else next(main), sandbox=FolderSandbox())
    result = await env.rollout(Action(message="Go."))
    assert result.termination_reason is TerminationReason.CONNECTION_ERROR
    assert "the server is gone" in result.error.message

    def retry(event: AfterModelCallEvent) -> None:
        event.retry = event.exception is not None

    main, subagent = iter([call("subagent", task=SUBTASK), "Waiting.", "Done."]), iter([lost, "The answer."])
    env = make_env(
        lambda messages: next(subagent if is_subagent(messages) else main),
        sandbox=FolderSandbox(),
        harness={"hooks": [retry]},
    )
    result = await env.rollout(Action(message="Go."))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE


@requires_harness
async def test_options_reach_the_harness_and_wrong_ones_are_refused() -> None:
    harness = {"builtin_tools": ["shell", "web_fetch"], "builtin_plugins": [], "instructions": "Be brief."}
    env = make_env(["Done."], sandbox=FolderSandbox(), harness=harness)
    seen = (await env.rollout(Action(message="Go."))).observation
    names = {each["function"]["name"] for each in json.loads(seen.tools or "[]")}
    assert names == {"shell", "web_fetch", "strands_manage_background_task"}
    assert (seen.system_prompt or "").endswith("Be brief.")
    managed = make_env(["Done."], sandbox=FolderSandbox(), harness={"context_manager": "auto"})
    with warnings.catch_warnings(record=True, action="always") as warned:
        await managed.rollout(Action(message="Go."))
    assert not [warning for warning in warned if "conversation_manager" in str(warning.message)]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'builtin_tool' .*builtin_tools"):
        make_env(["Done."], harness={"builtin_tool": []})
    with pytest.raises(TypeError, match=r"harness has 'model', which the environment makes from model_factory"):
        make_env(["Done."], harness={"model": "x"})
    with pytest.raises(TypeError, match="harness=3: expected arguments of create_harness by name"):
        make_env(["Done."], harness=3)
    with pytest.raises(TypeError, match=r"sandbox='docker': expected a Sandbox of strands_env\.sandbox"):
        make_env(["Done."], sandbox="docker")


@requires_harness
@requires_isolation
async def test_the_environment_has_a_name_for_commands() -> None:
    script = json.dumps([{"tool": "shell", "input": {"command": "echo 4 > a; cat a"}}, "4"])
    env = make_env_factory(EvalOptions(env="strands-harness", backend="scripted", script=script))()
    result = await env.rollout(Action(message="2 + 2?", task_context={"ground_truth": "4"}))
    assert result.reward is not None and result.reward.reward == 1.0


def test_without_its_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "strands_harness", None)
    monkeypatch.delitem(sys.modules, "strands_env.environments.strands_harness", raising=False)
    monkeypatch.delitem(
        vars(sys.modules["strands_env.environments"]), "StrandsHarnessEnv", raising=False
    )  # kept once it was read
    with pytest.raises(ModuleNotFoundError, match=r"strands-rollout\[strands-harness\]"):
        from strands_env.environments import StrandsHarnessEnv  # noqa: F401
    with pytest.raises(EvalError, match=r"strands-rollout\[strands-harness\]"):
        make_env_factory(EvalOptions(env="strands-harness", backend="scripted"))
