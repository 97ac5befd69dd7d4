"""MCP-Atlas against a container that is played here."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from strands_env import Action, TaskContext, TerminationReason
from strands_env.eval.benchmarks.mcp_atlas import ClaimsReward, MCPAtlasEnv, MCPAtlasEvaluator
from strands_env.testing import ScriptedModel, call

ROW = {
    "TASK": "t1",
    "PROMPT": "Who?",
    "ENABLED_TOOLS": json.dumps(["wikipedia_search", {"name": "weather_now"}]),
    "GTFA_CLAIMS": "['Ada\nLovelace.', 'In 1815.']",
}


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async def list_tools(request: web.Request) -> web.Response:
        names = ("wikipedia_search", "weather_now", "git_log")
        return web.json_response([{"name": name, "inputSchema": {"type": "object"}} for name in names])

    async def call_tool(request: web.Request) -> web.Response:
        body = await request.json()
        if body["tool_name"] == "weather_now":
            return web.Response(status=500, text="no weather")
        return web.json_response([{"type": "text", "text": f"found {body['tool_args']['q']}"}])

    app = web.Application()
    app.add_routes([web.post("/list-tools", list_tools), web.post("/call-tool", call_tool)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def judged(*verdicts: str) -> ClaimsReward:
    replies = iter(verdicts)
    return ClaimsReward(lambda: ScriptedModel([next(replies)]))


def task(tmp_path: Path) -> Action:
    path = tmp_path / "atlas.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    (action,) = MCPAtlasEvaluator(lambda: None, output_path=None, data_path=path).load_dataset()
    return action


async def test_an_episode_has_the_tools_of_its_task_and_is_scored_by_claims(tmp_path: Path, url: str) -> None:
    script = [[call("wikipedia_search", q="Ada"), call("weather_now"), call("git_log")], "Ada Lovelace."]
    calls: list[Any] = [*script[0], script[1]]
    for verdicts, reward in ((("A", "B"), 1.0), (("A", "C"), 0.0), (("A", "well"), None)):
        env = MCPAtlasEnv(model_factory=lambda: ScriptedModel(list(calls)), url=url, reward_fn=judged(*verdicts))
        result = await env.rollout(task(tmp_path))
        assert result.reward is not None
        assert result.reward.reward == reward
        if reward is None:
            continue
        assert list(result.reward.info["claims"]) == ["Ada\nLovelace.", "In 1815."]
        shown = [b["toolResult"] for m in result.observation.messages for b in m["content"] if "toolResult" in b]
        assert [one["status"] for one in shown] == ["success", "error", "error"]
        assert [one["content"][0]["text"] for one in shown][:2] == ["found Ada", "no weather"]


async def test_a_container_without_the_tools_or_without_an_answer_is_not_the_models_failure(url: str) -> None:
    wanted = Action(message="?", task_context=TaskContext(ground_truth=["x"], enabled_tools=["slack_post"]))
    for address, message in ((url, r"has no tools \['slack_post'\]"), ("http://127.0.0.1:9", "gave no answer")):
        env = MCPAtlasEnv(model_factory=lambda: ScriptedModel(["done"]), url=address, reward_fn=judged("A"))
        result = await env.rollout(wanted)
        assert result.termination_reason in (TerminationReason.TOOL_ERROR, TerminationReason.CONNECTION_ERROR)
        assert result.reward is None
        assert re.search(message, result.error.message)


async def test_a_container_that_dies_ends_the_episode_without_a_reward(tmp_path: Path, url: str) -> None:
    env = MCPAtlasEnv(
        model_factory=lambda: ScriptedModel([call("wikipedia_search", q="Ada"), "Ada Lovelace."]),
        url=url,
        call_timeout=0.2,
        reward_fn=judged("A", "A"),
    )
    action = task(tmp_path)
    await env.reset(action)
    env._url = "http://127.0.0.1:9"
    result = await env.step(action)
    assert result.termination_reason in (TerminationReason.TOOL_ERROR, TerminationReason.CONNECTION_ERROR)
    assert result.reward is None
