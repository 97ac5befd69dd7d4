"""`WebSearch`: the web as a search provider: searches by Serper or Google, pages by Jina's reader.

Answers as documented at serper.dev, developers.google.com/custom-search/v1 and jina.ai/reader.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp

from .search import Page, SearchError, SearchHit

_SEARCH = {
    "serper": "https://google.serper.dev/search",
    "google": "https://www.googleapis.com/customsearch/v1",
}
_KEYS = {"serper": ("SERPER_API_KEY",), "google": ("GOOGLE_API_KEY", "GOOGLE_CSE_ID")}
_READER = "https://r.jina.ai/"
_MOST_RESULTS = {"serper": 100, "google": 10}
_NO_PAGE = frozenset({400, 404, 410, 422, 451})
"""Statuses by which the reader says that there is no such page, or none that may be read."""


class WebSearch:
    """A `SearchProvider` over services of the web, for `SearchEnv` and the benchmarks that take `search=`.

    Keys come from the environment: `SERPER_API_KEY`, or `GOOGLE_API_KEY` and `GOOGLE_CSE_ID`; `JINA_API_KEY`, if any.

    Args:
        engine: The search engine.
        blocked_domains: Domains, with those below them, that are neither found nor opened, such as one that has the
            answers of a benchmark.
        timeout: Seconds of one request.
        attempts: Tries of a request that fails by its connection, or by a status 429 or 5xx.
        backoff: Seconds before the second try; twice as many before each later one.
        search_url, reader_url: Addresses of the services, where a proxy stands in for them.

    Raises:
        ValueError: `engine` is unknown, or its key is not in the environment.

    Example:
        SearchEnv(model_factory=factory, provider=WebSearch("serper", blocked_domains=["huggingface.co"]))
    """

    def __init__(
        self,
        engine: Literal["serper", "google"] = "serper",
        *,
        blocked_domains: Iterable[str] = (),
        timeout: float = 30.0,
        attempts: int = 3,
        backoff: float = 1.0,
        search_url: str | None = None,
        reader_url: str = _READER,
    ) -> None:
        if engine not in _KEYS:
            raise ValueError(f"engine must be 'serper' or 'google', got {engine!r}")
        if missing := [name for name in _KEYS[engine] if not os.environ.get(name)]:
            raise ValueError(f"searching by {engine!r} needs {' and '.join(missing)} in the environment")
        self.engine = engine
        self.blocked_domains = tuple(domain.lower().strip(".") for domain in blocked_domains)
        self._timeout, self._attempts, self._backoff = aiohttp.ClientTimeout(total=timeout), attempts, backoff
        self._search_url, self._reader_url = search_url or _SEARCH[engine], reader_url

    async def search(self, query: str, max_results: int) -> list[SearchHit]:
        """The engine's results, best first; those of blocked domains are left out."""
        # Asked of the engine so that blocked results take no places; checked below, for engines may ignore it.
        words = " ".join([query, *(f"-site:{domain}" for domain in self.blocked_domains)])
        number = min(max_results, _MOST_RESULTS[self.engine])
        if self.engine == "serper":
            key = {"X-API-KEY": os.environ["SERPER_API_KEY"]}
            answer = await self._json("POST", self._search_url, json={"q": words, "num": number}, headers=key)
        else:
            named = {"key": os.environ["GOOGLE_API_KEY"], "cx": os.environ["GOOGLE_CSE_ID"]}
            answer = await self._json("GET", self._search_url, params={**named, "q": words, "num": str(number)})
        results = (answer or {}).get("organic" if self.engine == "serper" else "items") or []
        hits = [
            SearchHit(title=str(hit.get("title", "")), url=str(hit["link"]), snippet=str(hit.get("snippet", "")))
            for hit in results
            if hit.get("link") and not self._is_blocked(hit["link"])
        ]
        return hits[:max_results]

    async def open(self, url: str) -> Page | None:
        """The page as Markdown; None if it does not exist or is blocked."""
        address = url.strip()
        if urlsplit(address).scheme not in ("http", "https") or self._is_blocked(address):
            return None
        headers = {"Accept": "application/json"}
        if key := os.environ.get("JINA_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        answer = await self._json("GET", self._reader_url + address, headers=headers, absent=_NO_PAGE)
        if answer is None:
            return None
        page: Mapping[str, Any] = answer.get("data") or {}
        return Page(title=str(page.get("title") or ""), url=address, text=str(page.get("content") or ""))

    def _is_blocked(self, url: str) -> bool:
        host = (urlsplit(url).hostname or "").lower()
        return any(host == domain or host.endswith(f".{domain}") for domain in self.blocked_domains)

    async def _json(
        self, method: str, url: str, *, absent: frozenset[int] = frozenset(), **request: Any
    ) -> dict[str, Any] | None:
        """The JSON of an answer; None for a status of `absent`. A `SearchError` names the host, and no key."""
        host = urlsplit(url).hostname
        for attempt in range(1, self._attempts + 1):
            if attempt > 1:
                await asyncio.sleep(self._backoff * 2 ** (attempt - 2))
            try:
                # A session a request: episodes run on several event loops, and a search is rare beside a model call.
                async with (
                    aiohttp.ClientSession(timeout=self._timeout) as session,
                    session.request(method, url, **request) as response,
                ):
                    status = response.status
                    if status in absent:
                        return None
                    if status < 400:
                        answer: dict[str, Any] = await response.json(content_type=None)
                        return answer
                    failure = f"HTTP {status}"
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                status, failure = 503, type(error).__name__
            if status != 429 and status < 500:
                break
        raise SearchError(f"{host} failed: {failure}")
