"""Results as HTML for notebooks. Their contents stay text, and no outside resource is loaded."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .jsonable import shown_text

MOST_TEXT = 2000
"""Characters of a block that are shown."""


def table_html(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table under a title; numbers stand to the right."""

    def cell(value: object, tag: str = "td") -> str:
        text, side = value, "left"
        if isinstance(value, int | float):
            text, side = (f"{value:.3f}" if isinstance(value, float) else f"{value:,}"), "right"
        return f'<{tag} style="text-align:{side}">{html.escape("–" if text is None else str(text))}</{tag}>'

    lines = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    names = "".join(cell(name, "th") for name in head)
    return f"<div><b>{html.escape(title)}</b><table><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table></div>"


def episode_html(title: str, error: object, messages: Iterable[Mapping[str, Any]], paths: Iterable[str]) -> str:
    """A title, an error (or None), messages, and the HTML of token paths."""
    parts = [f"<div><b>{html.escape(title)}</b></div>"]
    if error is not None:
        parts.append(f"<pre>{html.escape(str(error)[:MOST_TEXT])}</pre>")
    style = "white-space:pre-wrap;overflow-wrap:anywhere;border-left:3px solid;padding-left:.6em;margin:.4em 0"
    for message in messages:
        blocks = message.get("content") or []
        texts = "\n".join(_block_text(block)[:MOST_TEXT] for block in blocks)
        is_result = bool(blocks) and all("toolResult" in block for block in blocks)
        role = "tool" if is_result else str(message.get("role"))
        parts.append(f'<div style="{style}"><i>{html.escape(role)}</i>\n{html.escape(texts)}</div>')
    return f"<div>{''.join((*parts, *paths))}</div>"


def _block_text(block: Any) -> str:
    match block:
        case {"text": str(text)}:
            return text
        case {"toolUse": {"name": name, **rest}}:
            return f"{name}({shown_text(rest.get('input'))})"
        case {"toolResult": {"content": [*inner]}}:
            return "\n".join(map(_block_text, inner))
        case {"reasoningContent": {"reasoningText": {"text": str(text)}}}:
            return text
    return f"({next(iter(block), 'empty')})" if isinstance(block, dict) else repr(block)
