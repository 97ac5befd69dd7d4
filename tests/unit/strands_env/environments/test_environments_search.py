"""A search environment over pages in memory."""

from __future__ import annotations

from typing import Any

import pytest

from strands_env import Action, TerminationReason
from strands_env.environments import Page, SearchEnv, SearchError, SearchHit
from strands_env.testing import EnvironmentContract, ScriptedModel, call
from tests.unit.eval_support import tool_results


class Corpus:
    pages = (
        Page(title="Oslo", url="https://example.org/oslo", text="Oslo is the capital of Norway. " * 40),
        Page(title="Bern", url="https://example.org/bern", text="Bern is the seat of government of Switzerland."),
    )

    async def search(self, query: str, max_results: int) -> list[SearchHit]:
        return [SearchHit(title=page.title, url=page.url, snippet=page.text[:50]) for page in self.pages][:max_results]

    async def open(self, url: str) -> Page | None:
        return next((page for page in self.pages if page.url == url), None)


async def used(*calls: Any, provider: Any = None, **options: Any) -> Any:
    script = [*calls, "done"]
    env = SearchEnv(model_factory=lambda: ScriptedModel(script), provider=provider or Corpus(), **options)
    return await env.rollout(Action(message="?"))


class TestSearchEnv(EnvironmentContract):
    def make_env(self, model_factory: Any) -> SearchEnv:
        return SearchEnv(model_factory=model_factory, provider=Corpus())


async def test_agent_searches_and_reads() -> None:
    opened = [("oslo", 2), ("none", 1), ("bern", 2)]
    pages = [call("open_page", url=f"https://example.org/{name}", part=part) for name, part in opened]
    result = await used(call("search", query="capital of Norway"), *pages, page_chars=500)
    found, page = (item["content"][0]["text"] for item in tool_results(result)[:2])
    assert found.startswith("1. Oslo\nhttps://example.org/oslo\n")
    assert page.startswith("Oslo\nhttps://example.org/oslo\nPart 2 of 3\n\n")
    assert [item["status"] for item in tool_results(result)] == ["success", "success", "error", "error"]
    assert result.termination_reason is TerminationReason.TASK_COMPLETE


class Broken:
    async def search(self, query: str, max_results: int) -> list[SearchHit]:
        raise SearchError("quota is used up")

    async def open(self, url: str) -> Page | None:
        raise ConnectionResetError("gone")


@pytest.mark.parametrize("step", [call("search", query="x"), call("open_page", url="x")])
async def test_provider_that_fails_costs_the_episode_not_the_model(step: Any) -> None:
    result = await used(step, provider=Broken(), reward_fn=lambda *_: 1.0)
    assert (result.termination_reason, result.reward) == (TerminationReason.TOOL_ERROR, None)
