"""Searching the web by its services, which are played here with answers of the form they document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from strands_env import Action, TerminationReason
from strands_env.environments import Page, SearchEnv, SearchError, SearchHit, WebSearch
from strands_env.testing import ScriptedModel, call

SERPER = {
    "organic": [
        {"title": "Oslo", "link": "https://example.org/oslo", "snippet": "Capital of Norway.", "position": 1},
        {"title": "Answers", "link": "https://data.leak.example/a", "snippet": "The answer key.", "position": 2},
        {"title": "Norway", "link": "https://example.org/norway", "position": 3},
    ],
    "credits": 1,
}
GOOGLE = {"items": [{"title": "Oslo", "link": "https://example.org/oslo", "snippet": "Capital of Norway."}]}
READER = {"code": 200, "data": {"title": "Oslo", "url": "https://example.org/oslo", "content": "# Oslo"}}


class Services:
    """The services: what they were asked, and the statuses that they answer first."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.statuses: list[int] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json() if request.method == "POST" else dict(request.query)
        self.asked.append((request.path, {**body, "headers": request.headers}))
        if self.statuses and (status := self.statuses.pop(0)) != 200:
            return web.Response(status=status, text="no")
        answers = {"/serper": SERPER, "/google": GOOGLE}
        return web.json_response(answers.get(request.path, READER))

    def search(self, engine: Any = "serper", **options: Any) -> WebSearch:
        addresses = {"search_url": f"{self.url}/{engine}", "reader_url": f"{self.url}/read/"}
        return WebSearch(engine, backoff=0.0, **{**addresses, **options})


@pytest.fixture
async def services(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Services]:
    for name in ("SERPER_API_KEY", "GOOGLE_API_KEY", "GOOGLE_CSE_ID", "JINA_API_KEY"):
        monkeypatch.setenv(name, f"the {name}")
    played = Services()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", played.answer)
    async with TestServer(app) as server:
        played.url = str(server.make_url("")).rstrip("/")
        yield played


async def test_serper_finds_pages_but_not_those_of_blocked_domains(services: Services) -> None:
    hits = await services.search(blocked_domains=["leak.example"]).search("capital of norway", 3)
    assert hits[0] == SearchHit(title="Oslo", url="https://example.org/oslo", snippet="Capital of Norway.")
    assert [hit.title for hit in hits] == ["Oslo", "Norway"]
    ((_, asked),) = services.asked
    assert (asked["q"], asked["num"]) == ("capital of norway -site:leak.example", 3)
    assert asked["headers"]["X-API-KEY"] == "the SERPER_API_KEY"


async def test_google_finds_pages(services: Services) -> None:
    assert [hit.url for hit in await services.search("google").search("norway", 25)] == ["https://example.org/oslo"]
    ((_, asked),) = services.asked
    assert (asked["key"], asked["cx"], asked["num"]) == ("the GOOGLE_API_KEY", "the GOOGLE_CSE_ID", "10")


async def test_a_page_is_read_unless_it_does_not_exist_or_is_blocked(services: Services) -> None:
    services.statuses = [200, 404]
    provider = services.search(blocked_domains=["leak.example"])
    page = await provider.open("https://example.org/oslo?a=b")
    assert page == Page(title="Oslo", url="https://example.org/oslo?a=b", text="# Oslo")
    path, asked = services.asked[0]
    assert (path, asked["a"]) == ("/read/https://example.org/oslo", "b")
    assert asked["headers"]["Authorization"] == "Bearer the JINA_API_KEY"
    for url in ("https://example.org/none", "https://data.leak.example/a", "file:///etc/passwd"):
        assert await provider.open(url) is None
    assert len(services.asked) == 2


async def test_a_busy_service_is_asked_again(services: Services) -> None:
    services.statuses = [429, 503]
    assert await services.search().search("norway", 3)
    assert len(services.asked) == 3


async def test_a_refused_key_ends_the_episode_and_is_not_shown(services: Services) -> None:
    services.statuses = [403]
    with pytest.raises(SearchError, match=r"127\.0\.0\.1 failed: HTTP 403$"):
        await services.search("google").search("norway", 3)
    assert len(services.asked) == 1
    services.statuses = [403]
    script = [call("search", query="norway"), "done"]
    env = SearchEnv(model_factory=lambda: ScriptedModel(script), provider=services.search())
    result = await env.rollout(Action(message="?"))
    assert result.termination_reason == TerminationReason.TOOL_ERROR
    assert result.reward is None


def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_CSE_ID", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "x")
    with pytest.raises(ValueError, match=r"'google' needs GOOGLE_CSE_ID in the environment"):
        WebSearch("google")
    with pytest.raises(ValueError, match="engine must be one of serper, google, got 'bing'"):
        WebSearch("bing")  # type: ignore[arg-type]
