"""Where a search environment gets its results from: the interface, and a provider over documents in memory."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from strands.types.exceptions import ToolProviderException

_WORD = re.compile(r"\w+")
_SATURATION, _LENGTH_WEIGHT = 1.5, 0.75
"""`k1` and `b` of BM25 (Robertson and Zaragoza 2009)."""
_SNIPPET_CHARS = 300


class SearchError(ToolProviderException):
    """A failure of the provider itself, never of a query. Ends an episode as `TOOL_ERROR`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """One result of a search."""

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
        """A page, or None if it does not exist; the model gets that as a tool result.

        Raises:
            SearchError: The service failed.
        """


class LocalSearch:
    """Search in documents in memory, ranked by BM25: for tests, and for benchmarks with a corpus of their own.

    Args:
        pages: The documents; their addresses must differ.

    Raises:
        ValueError: Two pages have the same address.
    """

    def __init__(self, pages: Iterable[Page]) -> None:
        self._pages: dict[str, Page] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._postings: dict[str, list[str]] = {}
        for page in pages:
            if page.url in self._pages:
                raise ValueError(f"two pages have the address {page.url!r}")
            counts = Counter(_words(f"{page.title} {page.text}"))
            self._pages[page.url], self._counts[page.url] = page, counts
            for word in counts:
                self._postings.setdefault(word, []).append(page.url)
        self._lengths = {url: counts.total() for url, counts in self._counts.items()}
        self._mean_length = sum(self._lengths.values()) / max(1, len(self._lengths)) or 1.0

    @classmethod
    def from_jsonl(cls, path: str | os.PathLike[str]) -> Self:
        """Documents of a file of JSON lines with `title`, `url` and `text`."""
        with Path(path).open(encoding="utf-8") as lines:
            rows: list[Mapping[str, str]] = [json.loads(line) for line in lines if line.strip()]
        return cls(Page(title=row["title"], url=row["url"], text=row["text"]) for row in rows)

    async def search(self, query: str, max_results: int) -> list[SearchHit]:
        """The documents that fit the words of the query best; equal ones in the order of their addresses."""
        scores: Counter[str] = Counter()
        words = set(_words(query))
        for word in words:
            found = self._postings.get(word, ())
            rarity = math.log(1 + (len(self._pages) - len(found) + 0.5) / (len(found) + 0.5))
            for url in found:
                count, length = self._counts[url][word], self._lengths[url] / self._mean_length
                weight = count + _SATURATION * (1 - _LENGTH_WEIGHT + _LENGTH_WEIGHT * length)
                scores[url] += rarity * count * (_SATURATION + 1) / weight  # type: ignore[assignment]
        best = sorted(scores, key=lambda url: (-scores[url], url))[:max_results]
        return [
            SearchHit(title=self._pages[url].title, url=url, snippet=_snippet(self._pages[url].text, words))
            for url in best
        ]

    async def open(self, url: str) -> Page | None:
        """The document of that address."""
        return self._pages.get(url.strip())


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _snippet(text: str, words: set[str]) -> str:
    """The part of a text around its first word that was searched for."""
    first = next((match.start() for match in _WORD.finditer(text) if match[0].lower() in words), 0)
    start = max(0, first - _SNIPPET_CHARS // 3)
    part = " ".join(text[start : start + _SNIPPET_CHARS].split())
    return f"{'... ' if start else ''}{part}{' ...' if start + _SNIPPET_CHARS < len(text) else ''}"
