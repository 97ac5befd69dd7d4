"""A path as HTML for notebooks: its tokens, coloured. What it holds stays text, and nothing outside is loaded."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from .tokens import TokenSequence

MOST = 2000
"""Tokens that are shown, the newest."""
_SMALL = "font-size:.85em;opacity:.75"
_KEY = (
    f'<div style="{_SMALL}">sampled tokens are green to red by their log-probability (blue without one), '
    "underlined where they carry loss; the others were read</div>"
)


def tokens_html(tokens: TokenSequence, tokenizer: Any, facts: Iterable[object]) -> str:
    """The tokens of a path under its facts: texts if the tokenizer is known, otherwise ids."""
    ids = tokens.token_ids_array
    prompt = min(tokens.prompt_length, len(ids))
    first = max(prompt, len(ids) - MOST)
    title = f'<div style="margin:.3em 0"><b>{" · ".join(map(html.escape, map(str, facts)))}</b></div>'
    body = _tokens(tokens, tokenizer, first, len(ids))
    if first > prompt:
        body = f'<span style="{_SMALL}">({first - prompt:,} tokens before) </span>{body}'
    shown = _decode(tokenizer, ids[max(0, prompt - MOST) : prompt])
    folded = f'<details><summary style="{_SMALL}">first prompt, {prompt:,} tokens</summary><pre>{shown}</pre></details>'
    style = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;line-height:1.7"
    return f'<div>{title}{folded if prompt else ""}<div style="{style}">{body}</div>{_KEY}</div>'


def _tokens(tokens: TokenSequence, tokenizer: Any, start: int, end: int) -> str:
    ids, sampled = tokens.token_ids_array, np.asarray(tokens.output_mask)
    loss, logprobs = tokens.loss_mask_array, tokens.logprobs_array
    parts = []
    for place in range(start, end):
        token, value = int(ids[place]), float(logprobs[place])
        text = _decode(tokenizer, ids[place : place + 1])
        style, note = "opacity:.65", f"id {token}"
        if sampled[place]:
            # The root tells 0 from -0.5, where most tokens are; transparent, so that it fits light and dark pages.
            surprise = math.sqrt(min(1.0, max(0.0, -value / 6))) if not math.isnan(value) else None
            hue, alpha = (215, 0.2) if surprise is None else (round(120 - 120 * surprise), 0.12 + 0.4 * surprise)
            style = f"background:hsla({hue},75%,50%,{alpha:.2f});border-radius:3px"
            note += "" if surprise is None else f", log-probability {value:.3f}"
        if loss[place]:
            style += ";border-bottom:1px solid"
        parts.append(f'<span style="{style}" title="{note}">{text}</span>')
    return "".join(parts)


def _decode(tokenizer: Any, ids: Any) -> str:
    """The text of ids, escaped; the ids themselves where they have none."""
    try:
        text = "" if tokenizer is None else str(tokenizer.decode(ids.tolist(), skip_special_tokens=False))
    except Exception:  # ids of another tokenizer
        text = ""
    return html.escape(text or " ".join(map(str, ids.tolist())) + " ")
