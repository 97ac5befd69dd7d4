"""`SearchEnv`: an agent that searches and reads pages, over any provider."""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import Any

from strands import Agent, tool
from strands.agent.agent_result import AgentResult

from strands_env.core import Action, Environment

from .provider import SearchError, SearchProvider

DEFAULT_MAX_RESULTS = 10
"""Results of one search."""
DEFAULT_PAGE_CHARS = 20_000
"""Characters of a page that one call shows."""

_failures: ContextVar[list[SearchError]] = ContextVar("failures of the provider in the running step")


class SearchEnv(Environment):
    """Two tools: `search`, and `open_page`, which shows a long page in parts.

    A page that does not exist is a tool result. When the provider itself fails, the step ends as `TOOL_ERROR` without
    a reward: it is not the model's fault.

    Args:
        provider: The search engine, shared by all episodes: a `LocalSearch`, or your own over a service.
        max_results: Results of one search.
        page_chars: Characters of a page that one call shows.
        **options: Further arguments of `Environment`.

    Raises:
        ValueError: A number is not positive.
    """

    default_system_prompt_path = Path(__file__).parent / "system_prompt.md"

    def __init__(
        self,
        *,
        provider: SearchProvider,
        max_results: int = DEFAULT_MAX_RESULTS,
        page_chars: int = DEFAULT_PAGE_CHARS,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        for name, value in (("max_results", max_results), ("page_chars", page_chars)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive number, got {value!r}")
        self.provider = provider
        self.max_results = max_results
        self.page_chars = page_chars

    def get_tools(self) -> list[Any]:
        """`search` and `open_page`."""
        return [self.search, self.open_page]

    async def interact(self, agent: Agent, action: Action) -> AgentResult:
        """Run the agent; an episode whose provider failed is not a valid one."""
        failures: list[SearchError] = []
        _failures.set(failures)
        try:
            result = await super().interact(agent, action)
        except Exception:
            if failures:
                raise failures[0] from None
            raise
        if failures:
            raise failures[0]
        return result

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
        return _answer("\n\n".join(listed) or "No results.")

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
            return _answer(f"Error: no page at {url}.", is_error=True)
        parts = max(1, -(-len(page.text) // self.page_chars))
        if not 1 <= part <= parts:
            return _answer(f"Error: the page has {parts} parts; part {part} does not exist.", is_error=True)
        text = page.text[(part - 1) * self.page_chars : part * self.page_chars]
        return _answer(f"{page.title}\n{page.url}\nPart {part} of {parts}\n\n{text}")


def _unavailable(what: str, error: SearchError | OSError) -> dict[str, Any]:
    """Keep the provider's error for `interact` to raise, and tell the model."""
    _failures.get().append(error if isinstance(error, SearchError) else SearchError(f"{type(error).__name__}: {error}"))
    return _answer(f"Error: {what} not available.", is_error=True)


def _answer(text: str, *, is_error: bool = False) -> dict[str, Any]:
    return {"status": "error" if is_error else "success", "content": [{"text": text}]}
