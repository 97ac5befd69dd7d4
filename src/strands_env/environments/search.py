"""`SearchEnv`: an agent that searches and reads pages, over any provider."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import aiohttp
from strands import tool
from strands.types.exceptions import ToolProviderException

from strands_env.core import Environment
from strands_env.core.attempts import RetryPolicy, run_attempts
from strands_env.core.episode import fail_step
from strands_env.tools.results import error_result, text_result
from strands_sglang.exceptions import check_choice, check_positive


class SearchError(ToolProviderException):
    """A failure of the provider itself, never of a query. Ends an episode as `TOOL_ERROR`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A result of a search."""

    title: str
    url: str
    snippet: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page as text."""

    title: str
    url: str
    text: str


class SearchProvider(Protocol):
    """A search engine. One object serves all episodes, many at a time."""

    async def search(self, query: str, max_results: int) -> list[SearchHit]:
        """The best results, best first; possibly none.

        Raises:
            SearchError: The service failed. The episode is then not scored.
        """

    async def open(self, url: str) -> Page | None:
        """A page; None if it does not exist, which the model sees. A service that fails is a `SearchError`."""


DEFAULT_MAX_RESULTS = 10
"""Results of one search."""
DEFAULT_PAGE_CHARS = 20_000
"""Characters of a page that one call shows."""


class SearchEnv(Environment):
    """Two tools: `search`, and `open_page`, which shows a long page in parts.

    A page that does not exist is a tool result. When the provider itself fails, the step ends as `TOOL_ERROR` without
    a reward: it is not the model's fault.

    Args:
        provider: The search engine, shared by all episodes: a `WebSearch`, or your own.
        max_results: Results of one search.
        page_chars: Characters of a page that one call shows.
        **options: Further arguments of `Environment`.

    Raises:
        ValueError: A number is not positive.
    """

    default_system_prompt_path = Path(__file__).with_name("prompts") / "search.md"

    def __init__(
        self,
        *,
        provider: SearchProvider,
        max_results: int = DEFAULT_MAX_RESULTS,
        page_chars: int = DEFAULT_PAGE_CHARS,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_positive(whole=True, max_results=max_results, page_chars=page_chars)
        self.provider = provider
        self.max_results = max_results
        self.page_chars = page_chars

    def get_tools(self) -> list[Any]:
        """`search` and `open_page`."""
        return [self.search, self.open_page]

    @tool
    async def search(self, query: str) -> dict[str, Any]:
        """Search for pages.

        Args:
            query: A few words.
        """
        try:
            hits = await self.provider.search(query, self.max_results)
        except (SearchError, OSError) as error:
            return _unavailable("search is", error)
        listed = [f"{number}. {hit.title}\n{hit.url}\n{hit.snippet}" for number, hit in enumerate(hits, 1)]
        return text_result("\n\n".join(listed) or "No results.")

    @tool
    async def open_page(self, url: str, part: int = 1) -> dict[str, Any]:
        """Read a page as text.

        Args:
            url: Its address, as a search gave it.
            part: Which part of a long page, from 1.
        """
        try:
            page = await self.provider.open(url)
        except (SearchError, OSError) as error:
            return _unavailable("pages are", error)
        if page is None:
            return error_result(f"no page at {url}.")
        parts = max(1, -(-len(page.text) // self.page_chars))
        if not 1 <= part <= parts:
            return error_result(f"the page has {parts} parts; part {part} does not exist.")
        text = page.text[(part - 1) * self.page_chars : part * self.page_chars]
        return text_result(f"{page.title}\n{page.url}\nPart {part} of {parts}\n\n{text}")


def _unavailable(what: str, error: SearchError | OSError) -> dict[str, Any]:
    fail_step(error if isinstance(error, SearchError) else SearchError(f"{type(error).__name__}: {error}"))
    return error_result(f"{what} not available.")


# ---- the web as a provider -------------------------------------------------------------------------------------------


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
        backoff: Seconds before the second try, as `delay` of a `RetryPolicy`.
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
        check_choice(_KEYS, engine=engine)
        if missing := [name for name in _KEYS[engine] if not os.environ.get(name)]:
            raise ValueError(f"searching by {engine!r} needs {' and '.join(missing)} in the environment")
        self.engine = engine
        self.blocked_domains = tuple(domain.lower().strip(".") for domain in blocked_domains)
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._retry = RetryPolicy(max_attempts=attempts, delay=backoff)
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
        host = str(urlsplit(url).hostname)

        async def ask() -> tuple[int, Any]:
            try:
                # A session a request: episodes run on several event loops, and a search is rare beside a model call.
                async with (
                    aiohttp.ClientSession(timeout=self._timeout) as session,
                    session.request(method, url, **request) as response,
                ):
                    status = response.status
                    return status, await response.json(content_type=None) if status < 400 else f"HTTP {status}"
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                return 503, type(error).__name__

        def find_loss(result: tuple[int, Any]) -> str | None:
            status, reason = result
            return reason if status == 429 or status >= 500 else None

        status, answer = await run_attempts(ask, find_loss, self._retry, host)
        if status >= 400 and status not in absent:
            raise SearchError(f"{host} failed: {answer}")
        return None if status >= 400 else answer
