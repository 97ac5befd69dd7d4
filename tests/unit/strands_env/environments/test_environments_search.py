"""A search environment over documents in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strands_env import Action, TerminationReason
from strands_env.environments import LocalSearch, Page, SearchEnv, SearchError, SearchHit
from strands_env.testing import EnvironmentContract, ScriptedModel, call
from tests.unit.eval_support import tool_results

PAGES = [
    Page(title="Bern", url="https://example.org/bern", text="Bern is the seat of government of Switzerland."),
    Page(title="Oslo", url="https://example.org/oslo", text="Oslo is the capital of Norway. " * 40),
    Page(title="Fjords", url="https://example.org/fjords", text="Norway has many fjords."),
]


async def used(*calls: Any, provider: Any = None, **options: Any) -> Any:
    script = [*calls, "done"]
    env = SearchEnv(model_factory=lambda: ScriptedModel(script), provider=provider or LocalSearch(PAGES), **options)
    return await env.rollout(Action(message="?"))


class TestSearchEnv(EnvironmentContract):
    def make_env(self, model_factory: Any) -> SearchEnv:
        return SearchEnv(model_factory=model_factory, provider=LocalSearch(PAGES))


async def test_best_page_comes_first() -> None:
    hits = await LocalSearch(PAGES).search("capital NORWAY", 2)
    assert [hit.title for hit in hits] == ["Oslo", "Fjords"]
    assert "capital" in hits[0].snippet
    assert await LocalSearch(PAGES).search("xylophone", 2) == []
    assert await LocalSearch([]).search("anything", 2) == []


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


def test_corpus_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pages.jsonl"
    path.write_text(json.dumps({"title": "t", "url": "u", "text": "x"}) + "\n")
    assert LocalSearch.from_jsonl(path)._pages["u"].title == "t"
    with pytest.raises(ValueError, match="the address 'u'"):
        LocalSearch([Page(title="a", url="u", text=""), Page(title="b", url="u", text="")])
