"""The hosted sandbox, over a fake of the service's client."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from strands_env.core import Action, TerminationReason
from strands_env.environments import CodeSandboxEnv
from strands_env.sandbox import Outcome, SandboxError, SandboxUnavailableError
from strands_env.sandbox.agentcore import AgentCoreSandbox, make_code_interpreter_client
from strands_env.testing import ScriptedModel, call
from strands_env.tools import CodeInterpreterQuotas, CodeInterpreterToolkit


def answer(stdout: str = "", stderr: str = "", exit_code: int = 0) -> list[dict[str, Any]]:
    """Events as the service sends them for a run."""
    structured = {"stdout": stdout, "stderr": stderr, "exitCode": exit_code, "executionTime": 0.1}
    content = [{"type": "text", "text": stdout or stderr}]
    return [{"result": {"content": content, "structuredContent": structured, "isError": exit_code != 0}}]


class FakeClient:
    """The three calls of the service, answered from a script; `during` is called with "start" or "call" in each."""

    def __init__(self, *streams: Any, during: Callable[[str], None] = lambda now: None) -> None:
        self.streams = list(streams)
        self.during = during
        self.running: set[str] = set()
        self.started = 0
        self.threads: set[int] = set()

    def start_code_interpreter_session(self, **request: Any) -> dict[str, Any]:
        self.threads.add(threading.get_ident())
        self.started += 1
        self.running.add(f"session-{self.started}")
        self.during("start")
        return {"sessionId": f"session-{self.started}"}

    def invoke_code_interpreter(self, **request: Any) -> dict[str, Any]:
        assert request["sessionId"] in self.running
        self.threads.add(threading.get_ident())
        self.during("call")
        stream = self.streams.pop(0)
        if isinstance(stream, Exception):
            raise stream
        return {"stream": stream() if callable(stream) else iter(stream)}

    def stop_code_interpreter_session(self, **request: Any) -> dict[str, Any]:
        self.running.discard(request["sessionId"])
        return {}


@pytest.mark.parametrize("moment", ["start", "call"])
async def test_cancelled_call_leaves_no_session_behind(moment: str) -> None:
    reached, release = threading.Event(), threading.Event()

    def wait(now: str) -> None:
        if now == moment:
            reached.set()
            release.wait(60)

    client, quotas = FakeClient(answer("late"), during=wait), CodeInterpreterQuotas(session_concurrency=1)
    sandbox = AgentCoreSandbox(client, quotas=quotas)
    task = asyncio.create_task(sandbox.run_python("1"))
    await asyncio.to_thread(reached.wait, 60)
    task.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.started == 1
    assert not client.running
    assert not quotas.session_semaphore.locked()


@pytest.mark.parametrize(
    ("event", "outcome", "stdout", "exit_code"),
    [
        ({"result": {"content": [{"type": "text", "text": "hello"}], "isError": True}}, Outcome.ERROR, "hello", 1),
        ({"validationException": {"message": "too long"}}, Outcome.REFUSED, "", None),
    ],
    ids=["without structure", "refused"],
)
async def test_any_answer_about_the_code_is_a_result(
    event: dict[str, Any], outcome: Outcome, stdout: str, exit_code: int | None
) -> None:
    result = await AgentCoreSandbox(FakeClient([event])).run_python("x")
    assert (result.outcome, result.stdout, result.exit_code) == (outcome, stdout, exit_code)


@pytest.mark.parametrize(
    "stream",
    [
        [{"throttlingException": {"message": "Rate exceeded"}}],
        [{"internalServerException": {"message": "Rate exceeded"}}],
        [],
        RuntimeError("Rate exceeded"),
    ],
)
async def test_failure_of_the_service_is_no_fault_of_the_code(stream: Any) -> None:
    with pytest.raises(SandboxError, match=r"Rate exceeded|No result"):
        await AgentCoreSandbox(FakeClient(stream)).run_python("x")


async def test_call_that_hangs_ends_with_its_session() -> None:
    release = threading.Event()
    client = FakeClient(lambda: (release.wait(), iter(answer()))[1], answer("fresh"))
    sandbox = AgentCoreSandbox(client, call_seconds=0.1)
    result = await sandbox.run_python("while True: pass")
    assert result.outcome is Outcome.TIMEOUT
    assert not client.running
    release.set()
    assert (await sandbox.run_python("1")).stdout == "fresh"
    assert client.started == 2
    await sandbox.close()


async def test_sessions_are_bounded_and_a_failed_start_gives_its_place_back() -> None:
    quotas = CodeInterpreterQuotas(session_concurrency=1)
    failing = CodeInterpreterToolkit(FakeClient(during=Mock(side_effect=RuntimeError("AWS error"))), quotas=quotas)
    with pytest.raises(RuntimeError, match="AWS error"):
        await failing.start_session()
    first, second = (CodeInterpreterToolkit(client=FakeClient(), quotas=quotas) for _ in range(2))
    await first.start_session()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(second.start_session(), 0.05)
    await first.cleanup()
    await second.start_session()
    assert second.session_id == "session-1"
    await second.cleanup()


async def test_calls_a_second_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    now = [100.0]
    monkeypatch.setattr("strands_env.sandbox.agentcore.time.monotonic", lambda: now[0])
    monkeypatch.setattr("strands_env.sandbox.agentcore.asyncio.sleep", sleep)
    quotas = CodeInterpreterQuotas(invoke_tps=10)
    for _ in range(13):
        await quotas.invoke_turn()
    assert slept[:10] == [0.0] * 10
    assert slept[10:] == pytest.approx([0.1, 0.2, 0.3])


async def test_toolkit_answers_in_text() -> None:
    toolkit = CodeInterpreterToolkit(
        client=FakeClient(answer("hello"), [{"throttlingException": {"message": "Rate exceeded"}}], [])
    )
    arguments = {"code": "print('hello')", "language": "python"}
    assert await toolkit.invoke("executeCode", arguments) == "hello"
    assert await toolkit.invoke("executeCode", arguments) == "throttlingException: Rate exceeded"
    assert await toolkit.invoke("executeCode", arguments) == "No result returned."
    await toolkit.cleanup()
    assert toolkit.session_id is None


async def test_environment_runs_hosted() -> None:
    client = FakeClient(answer("1024\n"))
    env = CodeSandboxEnv(
        model_factory=lambda: ScriptedModel([call("execute_code", code="print(2**10)"), "1024"]), client=client
    )
    result = await env.rollout(Action(message="What is 2^10?"))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    assert result.observation.messages[2]["content"][0]["toolResult"]["content"] == [{"text": "1024"}]
    assert not client.running and threading.get_ident() not in client.threads


async def test_environment_without_service_has_no_reward() -> None:
    env = CodeSandboxEnv(
        model_factory=lambda: ScriptedModel([call("execute_code", code="1"), "done"]),
        client=FakeClient(during=Mock(side_effect=RuntimeError("no capacity"))),
        reward_fn=lambda action, result: 1.0,
    )
    result = await env.rollout(Action(message="go"))
    assert (result.termination_reason, result.reward) == (TerminationReason.TOOL_ERROR, None)


def test_missing_boto3_and_credentials_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "boto3", None)
        with pytest.raises(SandboxUnavailableError, match="needs boto3"):
            make_code_interpreter_client()
    pytest.importorskip("boto3")
    session = SimpleNamespace(region_name="us-east-1", get_credentials=lambda: None)
    with pytest.raises(SandboxUnavailableError, match="needs AWS credentials"):
        make_code_interpreter_client(session=session)


@pytest.mark.parametrize("options", [{"session_concurrency": 0}, {"invoke_tps": 0}])
def test_quotas_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        CodeInterpreterQuotas(**options)
