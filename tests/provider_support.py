"""Shared by the provider tests: a tokenizer, and a client that replays scripted completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from strands import tool

from strands_sglang.engine.tiny import _tokenizer

Scripted = str | dict[str, Any] | BaseException | Callable[[list[int], dict[str, Any]], Any]


@lru_cache(maxsize=1)
def tokenizer() -> Any:
    """A real byte-level BPE tokenizer with a ChatML and Hermes template; made in about a second."""
    from strands_sglang.engine.templates import HERMES_TEMPLATE

    made = _tokenizer(1024, 4096)
    made.chat_template = HERMES_TEMPLATE
    return made


def completion(
    text: str, *, stop: bool = True, split: bool = False, version: str | None = None, cached: int = 0
) -> dict[str, Any]:
    """A server's answer that samples `text`.

    Args:
        text: What the model says.
        stop: End with the stop token; otherwise by length.
        split: Sample one token a character, as a model may and a tokenizer never would.
        version: Weight version.
        cached: Cached prompt tokens.
    """
    tok = tokenizer()
    pieces = list(text) if split else [text]
    ids = [i for piece in pieces for i in tok.encode(piece, add_special_tokens=False)]
    reason: dict[str, Any] = {"type": "length", "length": len(ids)}
    if stop:
        ids.append(tok.eos_token_id)
        reason = {"type": "stop", "matched": tok.eos_token_id}
    return {
        "text": text,
        "output_ids": ids,
        "meta_info": {
            "finish_reason": reason,
            "completion_tokens": len(ids),
            "cached_tokens": cached,
            "weight_version": version,
            "output_token_logprobs": [[-(n + 1) / 128, i, None] for n, i in enumerate(ids)],
            "e2e_latency": 0.25,
        },
    }


class Replay:
    """Speaks the generate contract from a script; keeps every request.

    A script entry is the text of a completion, a whole answer, an exception to raise, or a function of the request.
    """

    def __init__(self, script: Sequence[Scripted], *, cycle: bool = False) -> None:
        self.script = list(script)
        self.cycle = cycle
        self.prompts: list[list[int]] = []
        self.requests: list[dict[str, Any]] = []

    async def generate(self, input_ids: list[int], **fields: Any) -> dict[str, Any]:
        """The next entry of the script."""
        self.prompts.append(list(input_ids))
        self.requests.append(fields)
        entry = self.script.pop(0)
        if self.cycle:
            self.script.append(entry)
        if callable(entry):
            entry = entry(input_ids, fields)
            if asyncio.iscoroutine(entry):
                entry = await entry
        if isinstance(entry, BaseException):
            raise entry
        answer = completion(entry) if isinstance(entry, str) else entry
        meta = {"id": f"r{len(self.prompts):04d}", "prompt_tokens": len(input_ids), **answer["meta_info"]}
        return {**answer, "meta_info": meta}


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: First number.
        b: Second number.
    """
    return str(a + b)


def call(a: int, b: int, name: str = "add") -> str:
    """Markup of a call of `add`."""
    return f'<tool_call>{{"name": "{name}", "arguments": {{"a": {a}, "b": {b}}}}}</tool_call>'


def assert_prefix_law(client: Replay, model: Any) -> None:
    """Every request of a single linear episode is the ids of the one before, what it sampled, and something new."""
    ids = model.token_manager.token_ids
    for prompt in client.prompts:
        assert ids[: len(prompt)] == prompt
    for shorter, longer in zip(client.prompts, client.prompts[1:], strict=False):
        assert len(longer) > len(shorter) or longer == shorter
