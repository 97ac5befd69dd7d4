"""CodeSandboxEnv: on this machine, and on a fake of the hosted service."""

from __future__ import annotations

import asyncio
from typing import Any

import psutil
import pytest

from strands_env.core import Action, TerminationReason
from strands_env.environments import CodeMode, CodeSandboxEnv
from strands_env.sandbox import (
    BubblewrapSandbox,
    Isolation,
    SandboxError,
    SandboxSlots,
    SandboxUnavailableError,
)
from strands_env.testing import ScriptedModel, call, reply

from .sandbox_support import LIMITS, FolderSandbox, assert_nothing_left, leftovers, requires_isolation


def results_of(result: Any) -> list[dict[str, Any]]:
    blocks = [block for message in result.observation.messages for block in message["content"]]
    return [block["toolResult"] for block in blocks if "toolResult" in block]


def texts_of(result: Any) -> list[str]:
    return [tool_result["content"][0]["text"] for tool_result in results_of(result)]


def scripted(*items: Any) -> Any:
    return lambda: ScriptedModel([*items, "done"])


@requires_isolation
async def test_state_lasts_an_episode_and_no_longer() -> None:
    before = leftovers()
    env = CodeSandboxEnv(
        model_factory=scripted(
            call("execute_code", code="x = 20"),
            call("execute_command", command="echo hi > f"),
            call("execute_code", code="x * 2, open('f').read()"),
        ),
        mode="code_and_terminal",
        limits=LIMITS,
    )
    first = await env.rollout(Action(message="go"))
    assert texts_of(first) == ["(no output)", "(no output)", "(40, 'hi\\n')"]
    await assert_nothing_left(before)
    env.model_factory = scripted(call("execute_code", code="x"))
    second = await env.rollout(Action(message="go"))
    assert "NameError" in texts_of(second)[0]
    await assert_nothing_left(before)


@requires_isolation
async def test_state_lasts_over_steps() -> None:
    async with CodeSandboxEnv(model_factory=scripted(call("execute_code", code="x = 1")), limits=LIMITS) as env:
        await env.step(Action(message="one"))
        env.model_factory = scripted(call("execute_code", code="x"))
        assert texts_of(await env.step(Action(message="two"))) == ["1"]


@requires_isolation
async def test_hostile_code_is_a_tool_result() -> None:
    env = CodeSandboxEnv(
        model_factory=scripted(
            call("execute_code", code="import os; os._exit(1)"), call("execute_code", code="bytearray(1 << 40)")
        ),
        limits=LIMITS,
    )
    result = await env.rollout(Action(message="go"))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    assert [tool_result["status"] for tool_result in results_of(result)] == ["error", "error"]
    assert "the Python interpreter ended" in texts_of(result)[0]
    assert "MemoryError" in texts_of(result)[1]


@requires_isolation
async def test_parallel_calls_of_one_reply_share_the_sandbox() -> None:
    calls = [call("execute_code", code=f"import os; open('{name}', 'w').close()") for name in "abc"]
    env = CodeSandboxEnv(
        model_factory=scripted(reply("", *calls), call("execute_code", code="sorted(os.listdir())")), limits=LIMITS
    )
    assert texts_of(await env.rollout(Action(message="go")))[-1] == "['a', 'b', 'c']"


@requires_isolation
async def test_cancelled_rollout_leaves_nothing() -> None:
    before = leftovers()
    env = CodeSandboxEnv(
        model_factory=scripted(call("execute_command", command="sleep 1000")), mode=CodeMode.TERMINAL, limits=LIMITS
    )
    task = asyncio.create_task(env.rollout(Action(message="go")))
    while not leftovers()["processes"] - before["processes"]:
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await assert_nothing_left(before)


@requires_isolation
async def test_many_episodes_wait_for_slots() -> None:
    before = leftovers()
    slots = SandboxSlots(3)

    async def episode(index: int) -> str:
        env = CodeSandboxEnv(
            model_factory=scripted(call("execute_code", code=f"{index} * 2")), limits=LIMITS, slots=slots
        )
        return texts_of(await env.rollout(Action(message="go")))[0]

    assert await asyncio.gather(*map(episode, range(12))) == [str(2 * index) for index in range(12)]
    await assert_nothing_left(before)


async def test_no_sandbox_starts_without_a_call() -> None:
    before = leftovers()
    env = CodeSandboxEnv(model_factory=scripted(), isolation=Isolation.NONE)
    await env.reset()
    await env.step(Action(message="go"))
    assert leftovers()["processes"] == before["processes"]
    await env.cleanup()


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("code", ["execute_code"]),
        (CodeMode.TERMINAL, ["execute_command"]),
        ("code_and_terminal", ["execute_code", "execute_command"]),
    ],
)
def test_mode_chooses_the_tools(mode: str, names: list[str]) -> None:
    env = CodeSandboxEnv(model_factory=scripted(), mode=mode, isolation=Isolation.NONE)
    assert [tool.tool_name for tool in env.get_tools()] == names


async def test_any_sandbox_will_do_and_is_closed() -> None:
    sandbox = FolderSandbox()
    commands = [call("execute_command", command=line) for line in ("echo hi > f", "cat f; exit 2")]
    env = CodeSandboxEnv(model_factory=scripted(*commands), mode="terminal", sandbox=sandbox)
    result = await env.rollout(Action(message="go"))
    assert texts_of(result) == ["(no output)", "hi\n[exit code 2]"]
    assert [tool_result["status"] for tool_result in results_of(result)] == ["success", "error"]
    assert sandbox.is_closed


@requires_isolation
@pytest.mark.parametrize(
    ("score_lost", "reason", "reward"), [(True, "task_complete", 0.25), (False, "tool_error", None)]
)
async def test_reward_of_an_episode_whose_sandbox_was_lost(score_lost: bool, reason: str, reward: float | None) -> None:
    """Killed from outside, as by the machine: by default the episode is scored as any other."""
    calls = [call("execute_command", command=line) for line in ("echo x > f; sleep 60", "cat f || echo gone")]
    before = set(psutil.Process().children(recursive=True))  # another test's child may still sleep
    env = CodeSandboxEnv(
        model_factory=scripted(*calls),
        mode="terminal",
        limits=LIMITS,
        score_lost=score_lost,
        reward_fn=lambda action, result: 0.25,
    )
    task = asyncio.create_task(env.rollout(Action(message="go")))
    async with asyncio.timeout(30):
        while not any("sleep" in child.name() for child in set(psutil.Process().children(recursive=True)) - before):
            await asyncio.sleep(0.02)
    for child in set(psutil.Process().children()) - before:
        child.kill()
    result = await task
    assert "ended unexpectedly" in texts_of(result)[0] and "gone" in texts_of(result)[1]
    assert result.observation.metrics["sandbox_lost"] == 1
    assert result.termination_reason == reason
    assert (result.reward and result.reward.reward) == reward


@pytest.mark.parametrize(
    "ending",
    [[], [call("execute_command", command="2")] * 2, [reply("I can", stop_reason="max_tokens")]],
    ids=["well", "limit of calls", "limit of tokens"],
)
async def test_failing_sandbox_fails_the_episode_without_a_reward_however_it_ends(ending: list[Any]) -> None:
    env = CodeSandboxEnv(
        model_factory=scripted(call("execute_command", command="1"), *ending),
        mode="terminal",
        sandbox=FolderSandbox(failure=SandboxError("no machine left")),
        max_tool_iters=2,
        reward_fn=lambda action, result: 0.0,
    )
    result = await env.step(Action(message="go"))
    assert (result.termination_reason, result.reward) == (TerminationReason.TOOL_ERROR, None)
    assert "no machine left" in result.error.message
    assert results_of(result)[0]["status"] == "error"
    assert result.observation.tokens is not None


async def test_waiting_for_a_sandbox_in_vain_is_no_fault_of_the_agent() -> None:
    slots = SandboxSlots(1)
    async with BubblewrapSandbox(isolation=Isolation.NONE, slots=slots):
        env = CodeSandboxEnv(
            model_factory=scripted(call("execute_code", code="1")),
            isolation=Isolation.NONE,
            slots=slots,
            tool_timeout=0.1,
            reward_fn=lambda action, result: 0.0,
        )
        result = await env.rollout(Action(message="go"))
    assert (result.termination_reason, result.reward) == (TerminationReason.TOOL_ERROR, None)
    assert "no sandbox became free" in result.error.message


async def test_code_that_outlasts_the_tool_is_the_agents_own() -> None:
    env = CodeSandboxEnv(
        model_factory=scripted(call("execute_code", code="import time; time.sleep(60)")),
        isolation=Isolation.NONE,
        tool_timeout=2.0,
    )
    result = await env.rollout(Action(message="go"))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    assert "did not finish within 2 seconds" in texts_of(result)[0]


async def test_machine_without_descriptors_is_no_fault_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("strands_env.sandbox.bubblewrap.process.socket.socketpair", refused)
    env = CodeSandboxEnv(
        model_factory=scripted(call("execute_code", code="1")),
        isolation=Isolation.NONE,
        reward_fn=lambda action, result: 0.0,
    )
    result = await env.step(Action(message="go"))
    assert (result.termination_reason, result.reward) == (TerminationReason.TOOL_ERROR, None)
    assert "could not be started: OSError" in result.error.message


def test_missing_isolation_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SandboxUnavailableError, match=r"install bubblewrap.*none-i-accept-the-risk"):
        CodeSandboxEnv(model_factory=scripted())


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(SandboxUnavailableError, match="need Linux"):
        CodeSandboxEnv(model_factory=scripted())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "everything"}, "mode must be one of"),
        ({"sandbox": FolderSandbox(), "limits": LIMITS}, "not several"),
        ({"sandbox": FolderSandbox(), "client": object()}, "not several"),
        ({"sandbox": FolderSandbox(), "max_output_chars": 0}, "max_output_chars must be"),
        ({"sandbox": FolderSandbox()}, "FolderSandbox has none: use mode='terminal'"),
    ],
)
def test_contradicting_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CodeSandboxEnv(model_factory=scripted(), **options)


async def test_long_output_is_shortened() -> None:
    env = CodeSandboxEnv(
        model_factory=scripted(call("execute_command", command="printf 'x%.0s' $(seq 1000)")),
        mode="terminal",
        sandbox=FolderSandbox(),
        max_output_chars=100,
    )
    assert "[900 characters left out]" in texts_of(await env.step(Action(message="go")))[0]
