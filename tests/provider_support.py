"""Shared by the provider tests: a tokenizer, and a client that replays scripted completions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from strands import Agent, tool

from strands_sglang import SGLangModel
from strands_sglang.backends.engine.tiny import make_tiny_tokenizer
from strands_sglang.testing import Reply, ScriptedClient

# One module under the names that tests in this process and programs they start know it by: one tokenizer for both.
for name in ("provider_support", "tests.provider_support"):
    sys.modules.setdefault(name, sys.modules[__name__])


@lru_cache(maxsize=1)
def tokenizer() -> Any:
    """A real byte-level BPE tokenizer with a ChatML and Hermes template; made in about a second."""
    from strands_sglang.backends.engine.templates import HERMES_TEMPLATE

    made = make_tiny_tokenizer(1024, 4096)
    made.chat_template = HERMES_TEMPLATE
    return made


def completion(
    text: str,
    *,
    stop: bool = True,
    split: bool = False,
    version: str | None = None,
    cached: int = 0,
    latency: float = 0.0,
) -> Reply:
    """A completion that samples `text`.

    Args:
        text: What the model says.
        stop: End with the stop token; otherwise by length.
        split: Sample one token a character, as a model may and a tokenizer never would.
        version: Weight version.
        cached: Cached prompt tokens.
        latency: Seconds the server says it took.
    """
    tok = tokenizer()
    ids = [i for piece in (list(text) if split else [text]) for i in tok.encode(piece, add_special_tokens=False)]
    if stop:
        ids.append(tok.eos_token_id)
    return Reply(
        ids=ids,
        finish="stop" if stop else "length",
        weight_version=version,
        cached_tokens=cached,
        meta={"e2e_latency": latency},
    )


class Replay(ScriptedClient):
    """The scripted client with this tokenizer.

    Args:
        script: Its replies.
        cycle: Give the only reply again and again.
    """

    def __init__(self, script: Sequence[Any], *, cycle: bool = False) -> None:
        if cycle:
            (only,) = script
            super().__init__(only if callable(only) else lambda *_: only, tokenizer=tokenizer())
        else:
            super().__init__(script, tokenizer=tokenizer())

    def then(self, *entries: Any) -> None:
        """Continue the script."""
        self._script.extend(entries)

    @property
    def prompts(self) -> list[list[int]]:
        """The ids of every request."""
        return [request.input_ids for request in self.requests]


def make(script: Sequence[Any], *, cycle: bool = False, **options: Any) -> tuple[SGLangModel, Replay]:
    """A model over a script, and its client."""
    client = Replay(script, cycle=cycle)
    return SGLangModel(tokenizer=tokenizer(), client=client, **options), client


def user(text: str) -> dict[str, Any]:
    """A message of the user."""
    return {"role": "user", "content": [{"text": text}]}


GO = [user("go")]


def after(text: str) -> list[Any]:
    """The history after `GO`, a reply and another message."""
    return [*GO, {"role": "assistant", "content": [{"text": text}]}, user("more")]


@tool
async def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: First number.
        b: Second number.
    """
    return str(a + b)


def make_agent(model: SGLangModel, *, tools: Sequence[Any] = (add,), **options: Any) -> Agent:
    """An agent that prints nothing and leaves retries to the client."""
    settings: dict[str, Any] = {"callback_handler": None, "context_manager": False, "retry_strategy": None}
    return Agent(model=model, tools=list(tools), **{**settings, **options})


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
