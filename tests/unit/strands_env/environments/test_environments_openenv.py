"""`OpenEnvEnvironment`: against servers of the protocol, ours here, and the package's own where it is installed."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from strands_env.commands.cli import main
from strands_env.core import Action, RewardResult, StepResult, TaskContext, TerminationReason
from strands_env.core.models import sglang_model_factory
from strands_env.environments.openenv import OpenEnvEnvironment
from tests.provider_support import Replay, completion, tokenizer

GUESS = {"title": "Guess", "type": "object", "properties": {"word": {"type": "string"}, "metadata": {}}}
ADD = {"name": "add", "description": "Add.", "input_schema": {"type": "object", "properties": {"a": {}, "b": {}}}}


class Server:
    """A server whose episodes are functions from the data of a message to an answer, or an exception."""

    def __init__(self, schema: dict[str, Any], **answers: Any) -> None:
        self.schema, self.answers, self.seen, self.open = schema, answers, [], 0

    async def _schema(self, request: web.Request) -> web.Response:
        return web.json_response({"action": self.schema})

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        self.open += 1
        async for message in ws:
            kind, data = (asked := json.loads(message.data))["type"], asked["data"]
            self.seen.append((kind, data))
            answer = self.answers[kind](data)
            if answer is None:
                break
            await ws.send_json(answer)
        self.open -= 1
        return ws

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application()
        app.add_routes([web.get("/schema", self._schema), web.get("/ws", self._socket)])
        async with TestServer(app) as server:
            yield str(server.make_url("")).rstrip("/")


def seen(reward: float | None = None, done: bool = False, **observation: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}


def failed(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message, **more}}


def calls(name: str, *arguments: dict[str, Any]) -> Any:
    return completion(
        "".join(f"<tool_call>{json.dumps({'name': name, 'arguments': a})}</tool_call>" for a in arguments)
    )


async def play(url: str, *script: Any, make: Any = OpenEnvEnvironment, **options: Any) -> StepResult:
    factory = sglang_model_factory(client=Replay(list(script)), tokenizer=tokenizer())
    env = make(url=url, model_factory=factory, **options)
    return await env.rollout(Action(message="Play.", task_context=TaskContext(id="t", reset={"seed": 7})))


def results_of(result: StepResult) -> list[tuple[str, str]]:
    blocks = [block for message in result.observation.messages for block in message["content"]]
    found = [block["toolResult"] for block in blocks if "toolResult" in block]
    return [(each["status"], each["content"][0]["text"]) for each in found]


async def test_one_kind_of_action_is_a_tool_and_the_loop_ends_with_the_episode() -> None:
    words = iter([seen(0.25, echo="cold"), seen(1.0, done=True, echo="right")])
    server = Server(GUESS, reset=lambda data: seen(0.0, board="_____"), step=lambda data: next(words))
    async with server.running() as url:
        result = await play(url, calls("act", {"word": "ä"}), calls("act", {"word": "b"}, {"word": "c"}))
        await asyncio.sleep(0.05)
        assert not server.open
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, result.error
    assert result.reward is not None and result.reward.reward == 1.25
    assert server.seen == [("reset", {"seed": 7}), ("step", {"word": "ä"}), ("step", {"word": "b"})]
    assert result.observation.messages[0]["content"] == [{"text": "Play.\n\n_____"}]
    assert results_of(result) == [("success", "cold"), ("success", "right"), ("error", "Error: the episode is over")]
    assert "metadata" not in str(result.observation.tools)


async def test_tools_of_a_server_are_listed_and_wrong_arguments_are_the_policys_to_mend() -> None:
    def step(data: dict[str, Any]) -> dict[str, Any]:
        if data["type"] == "list_tools":
            return seen(tools=[ADD])
        if "b" not in data["arguments"]:
            return failed("VALIDATION_ERROR", "Invalid message", errors=[{"loc": ["b"], "msg": "Field required"}])
        return seen(tool_name="add", result={"content": [{"type": "text", "text": "3"}]})

    async with Server({"title": "Action"}, reset=lambda data: seen(), step=step).running() as url:
        result = await play(url, calls("add", {"a": 1}), calls("add", {"a": 1, "b": 2}), completion("3"))
    assert results_of(result) == [("error", "Error: Invalid message: b: Field required"), ("success", "3")]
    assert result.reward is not None and result.reward.reward is None
    assert result.reward.info["reason"] == "the server gave no reward for any step"


async def test_tools_are_those_of_the_episode_and_a_reward_may_ask_the_server() -> None:
    """As the worlds of Agent World Model are served: a union of the generic actions, and a verifier that is a tool."""

    class Worlds(OpenEnvEnvironment):
        async def server_reward(self, action: Action, result: StepResult) -> RewardResult:
            assert self.session is not None
            arguments = {"final_answer": result.observation.final_response}
            call = {"type": "call_tool", "tool_name": "verify", "arguments": arguments}
            return RewardResult(reward=(await self.session.send("step", call))["reward"])

    begun: list[Any] = []
    listings = 0

    def step(data: dict[str, Any]) -> dict[str, Any]:
        nonlocal listings
        if data["type"] == "list_tools":
            listings += 1
            return seen(tools=[ADD] if begun else [])
        if data["tool_name"] == "verify":
            return seen(float(data["arguments"] == {"final_answer": "3"}))
        return seen(0.0, tool_name="add", tool_result={"sum": 3})

    def reset(data: dict[str, Any]) -> dict[str, Any]:
        begun.append(data)
        return seen()

    union = {"$defs": {"ListToolsAction": {}, "CallToolAction": {}}, "oneOf": [{"$ref": "#/$defs/ListToolsAction"}]}
    async with Server(union, reset=reset, step=step).running() as url:
        result = await play(url, calls("add", {"a": 1, "b": 2}), completion("3"), make=Worlds)
    assert result.reward is not None and result.reward.reward == 1.0, result.error
    assert listings == 2, "an episode's steps are not spent where tools are there before it"
    assert results_of(result) == [("success", '{"tool_name": "add", "tool_result": {"sum": 3}}')]


BROKEN = [
    ({"reset": lambda data: seen(error="no such world")}, "cannot begin with {'seed': 7}: no such world"),
    ({"reset": lambda data: failed("CAPACITY_REACHED", "full")}, "gives no session: full"),
    ({"reset": lambda data: failed("EXECUTION_ERROR", "no such level")}, "cannot begin with {'seed': 7}: no such"),
    ({"reset": lambda data: seen(), "step": lambda data: None}, "was lost"),
    ({"reset": lambda data: "no object"}, "was lost"),
    ({"reset": lambda data: {"type": "observation", "data": {"observation": None}}}, "was lost"),
    ({"reset": lambda data: seen(error={"code": 3})}, "cannot begin with {'seed': 7}: {'code': 3}"),
]


@pytest.mark.parametrize(("answers", "message"), BROKEN)
async def test_a_server_that_fails_is_infrastructure(answers: dict[str, Any], message: str) -> None:
    async with Server(GUESS, **answers).running() as url:
        result = await play(url, calls("act", {"word": "a"}), completion("Well."))
    assert result.termination_reason.is_failure and result.reward is None
    assert result.error is not None and message in result.error.message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["openenv:localhost:8000"], "write http://HOST:PORT"),
        (["openenv:"], "'openenv:' names nothing: write openenv:NAME"),
        (["openenv:http://127.0.0.1:1", "--data", "x.jsonl"], "brings its own tasks"),
        (["openenv:http://127.0.0.1:1", "--env-config", '{"resets": 3}'], "expected a list of objects"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *arguments, "--backend", "scripted"]) != 0
    err = capsys.readouterr().err
    assert message in err and len(err.splitlines()) == 1


OPENENV = os.environ.get("STRANDS_ROLLOUT_OPENENV", "")


@pytest.mark.skipif(not OPENENV, reason="STRANDS_ROLLOUT_OPENENV names no interpreter that has openenv 0.10")
@pytest.mark.slow
async def test_the_environment_that_the_package_ships(tmp_path: Path) -> None:
    """Its template, an echo; the package needs another version of `mcp` than we do, so it has an interpreter."""
    subprocess.run([OPENENV, "-m", "openenv.cli", "init", "echo_try"], cwd=tmp_path, check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [OPENENV, "-m", "uvicorn", "server.app:app", "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path / "echo_try")
    try:
        async with ClientSession() as http:
            for _ in range(600):
                try:
                    async with http.get(f"http://127.0.0.1:{port}/health"):
                        break
                except OSError:
                    await asyncio.sleep(0.1)
        wrong = {"massage": "x"}
        result = await play(f"http://127.0.0.1:{port}", calls("act", {"message": "héllo"}, wrong), completion("Done."))
    finally:
        process.terminate()
        await process.wait()
    assert result.reward is not None and result.reward.reward == 0.5
    assert [status for status, _ in results_of(result)] == ["success", "error"]
