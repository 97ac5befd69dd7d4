"""Shared by the tests of whole rollouts: agents that take as many turns as wanted, whatever the model samples."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import pytest
from provider_support import call, make_agent, tokenizer
from strands.types.exceptions import EventLoopException

from strands_sglang import SGLangModel
from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.tool_parsers import get_tool_parser


class CallEveryTime(type(get_tool_parser("hermes"))):  # type: ignore[misc]
    """Takes every reply for a call of `add` whose arguments depend on the reply, so that nonsense makes many turns."""

    def parse_all(self, text: str, **options: Any) -> Any:
        read = super().parse_all(text, **options)
        if read.calls and not any(call.is_error for call in read.calls):
            return read
        seed = zlib.crc32(text.encode("utf-8", "surrogatepass"))
        return super().parse_all(call(seed % 1000, seed % 89), **{**options, "in_reasoning": False})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """All that a trainer reads of a trajectory."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float | None]
    turns: int


def make_model(client: Any, served: Any = None, **options: Any) -> SGLangModel:
    """A model of that client; `served` is the tokenizer, the tests' own by default."""
    settings: dict[str, Any] = {"sampling_params": {"temperature": 1.0, "max_new_tokens": 128}, "vocab_size": 1024}
    if served is not None:
        del settings["vocab_size"]
    return SGLangModel(
        client=client,
        tokenizer=served or tokenizer(),
        tool_parser=CallEveryTime(),
        chat_template=HERMES_TEMPLATE,
        **{**settings, **options},
    )


async def rollout(model: SGLangModel, turns: int, prompt: str = "What is 1 + 2?") -> Tokens:
    """Run an episode of that many turns; its only trajectory."""
    result = await make_agent(model).invoke_async(prompt, limits={"turns": turns})
    assert result.stop_reason == "limit_turns"
    return only_trajectory(model)


def only_trajectory(model: SGLangModel) -> Tokens:
    """The tokens of the only trajectory of a model."""
    (trajectory,) = model.trajectories
    return Tokens(
        ids=list(trajectory.token_ids),
        mask=list(trajectory.loss_mask),
        logprobs=list(trajectory.logprobs),
        turns=len(trajectory.turns),
    )


async def failure(model: SGLangModel, turns: int, prompt: str = "What is 1 + 2?") -> Exception:
    """The error of an episode that cannot go on; the SDK wraps most errors it does not know."""
    with pytest.raises(Exception) as caught:
        await make_agent(model).invoke_async(prompt, limits={"turns": turns})
    return caught.value.original_exception if isinstance(caught.value, EventLoopException) else caught.value
