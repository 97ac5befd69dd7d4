"""CodeSandboxEnv: on this machine, and on a fake of the hosted service."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from strands_env.core import Action, TerminationReason
from strands_env.environments import CodeMode, CodeSandboxEnv
from strands_env.sandbox import BubblewrapSandbox, Isolation, SandboxError, SandboxSlots, SandboxUnavailableError
from strands_env.testing import ScriptedModel, call, reply
from tests.unit.eval_support import tool_results
from tests.unit.sandbox_support import LIMITS, FolderSandbox, assert_nothing_left, leftovers, requires_isolation


def texts_of(result: Any) -> list[str]:
    return [tool_result["content"][0]["text"] for tool_result in tool_results(result)]


def scripted(*items: Any) -> Any:
    return lambda: ScriptedModel([*items, "done"])


@requires_isolation
async def test_state_lasts_an_episode_and_no_longer() -> None:
    before = leftovers()
    parallel = [call("execute_code", code=f"x += {number}; open('{number}', 'w').close()") for number in (1, 2)]
    env = CodeSandboxEnv(
        model_factory=scripted(
            call("execute_code", code="import os; x = 20"),
            reply("", *parallel),
            call("execute_command", command="echo hi > f"),
            call("execute_code", code="x, open('f').read(), sorted(os.listdir())"),
            call("execute_code", code="os._exit(1)"),
            call("execute_code", code="bytearray(1 << 40)"),
        ),
        mode="code_and_terminal",
        limits=LIMITS,
    )
    first = await env.rollout(Action(message="go"))
    assert first.termination_reason is TerminationReason.TASK_COMPLETE
    *quiet, seen, died, full = texts_of(first)
    assert (quiet, seen) == (["(no output)"] * 4, "(23, 'hi\\n', ['1', '2', 'f'])")
    assert "the Python interpreter ended" in died and "MemoryError" in full
    assert [tool_result["status"] for tool_result in tool_results(first)] == ["success"] * 5 + ["error"] * 2
    await assert_nothing_left(before)
    env.model_factory = scripted(call("execute_code", code="x"))
    assert "NameError" in texts_of(await env.rollout(Action(message="go")))[0]
    await assert_nothing_left(before)


@requires_isolation
async def test_state_lasts_over_steps() -> None:
    async with CodeSandboxEnv(model_factory=scripted(call("execute_code", code="x = 1")), limits=LIMITS) as env:
        await env.step(Action(message="one"))
        env.model_factory = scripted(call("execute_code", code="x"))
        assert texts_of(await env.step(Action(message="two"))) == ["1"]


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
    lines = ("echo hi > f", "cat f; exit 2", "printf 'x%.0s' $(seq 1000)")
    commands = [call("execute_command", command=line) for line in lines]
    env = CodeSandboxEnv(model_factory=scripted(*commands), mode="terminal", sandbox=sandbox, max_output_chars=100)
    result = await env.rollout(Action(message="go"))
    *short, long = texts_of(result)
    assert short == ["(no output)", "hi\n[exit code 2]"] and "[900 characters left out]" in long
    assert [tool_result["status"] for tool_result in tool_results(result)] == ["success", "error", "success"]
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
    assert tool_results(result)[0]["status"] == "error"
    assert result.observation.tokens is not None


@pytest.mark.parametrize("missing", ["slots", "descriptors"])
async def test_a_sandbox_that_cannot_start_is_no_fault_of_the_agent(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = SandboxSlots(1)
    async with contextlib.AsyncExitStack() as held:
        if missing == "slots":
            await held.enter_async_context(BubblewrapSandbox(isolation=Isolation.NONE, slots=slots))
        else:
            socket = "strands_env.sandbox.bubblewrap.process.socket.socketpair"
            monkeypatch.setattr(socket, Mock(side_effect=OSError(24, "Too many open files")))
        env = CodeSandboxEnv(
            model_factory=scripted(call("execute_code", code="1")),
            isolation=Isolation.NONE,
            slots=slots,
            tool_timeout=1.0,
            reward_fn=lambda action, result: 0.0,
        )
        result = await env.step(Action(message="go"))
    assert (result.termination_reason, result.reward) == (TerminationReason.TOOL_ERROR, None)
    why = {"slots": "no sandbox became free", "descriptors": "could not be started: OSError"}[missing]
    assert why in result.error.message


async def test_code_that_outlasts_the_tool_is_the_agents_own() -> None:
    env = CodeSandboxEnv(
        model_factory=scripted(call("execute_code", code="import time; time.sleep(60)")),
        isolation=Isolation.NONE,
        tool_timeout=2.0,
    )
    result = await env.rollout(Action(message="go"))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    assert "did not finish within 2 seconds" in texts_of(result)[0]


@pytest.mark.parametrize(
    ("platform", "why"), [("linux", r"install bubblewrap.*none-i-accept-the-risk"), ("darwin", "need Linux")]
)
def test_missing_isolation_is_refused_with_a_way_out(platform: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sys.platform", platform)
    with pytest.raises(SandboxUnavailableError, match=why):
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
