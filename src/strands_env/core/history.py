"""What keeps long episodes affordable: two copies and two serialisations of the whole history per turn, made cheap.

The SDK copies the history deeply twice before every model call: for the context of model middleware, and to normalise
it. It encodes it twice for trace events that nobody records when no exporter is set up. All of that grows with the
square of the number of turns, and is nine tenths of the time of an episode of 200 turns.

`STRANDS_ENV_SHARE_HISTORY=0` gives agents a plain list instead.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from types import CodeType
from typing import Any, Final

import strands.event_loop.event_loop as sdk
import strands.event_loop.streaming as sdk_streaming
from strands.middleware import InvokeModelStage
from strands.telemetry.tracer import get_tracer

_MODEL_EXECUTION: Final[CodeType | None] = getattr(getattr(sdk, "_handle_model_execution", None), "__code__", None)
"""The one place where the SDK copies the history for the context of model middleware."""

_NORMALIZATION: Final[CodeType | None] = getattr(getattr(sdk_streaming, "_normalize_messages", None), "__code__", None)
"""Where the SDK copies the history to replace blank texts and invalid names of tools."""


def history_of(messages: list[Any]) -> list[Any]:
    """The messages of an agent: a `History` unless that is switched off."""
    return messages if os.environ.get("STRANDS_ENV_SHARE_HISTORY") == "0" else History(messages)


class History(list[Any]):
    """A message list whose deep copy is deep where the SDK writes, and shares the rest.

    The SDK's normalisation of the copy changes lists of blocks, blocks, and names of tool uses; arguments and results
    inside them are read only, and large.

    The copy for the context of model middleware is left out where an agent has no such middleware. Nobody else is given
    that context before the SDK copies its messages again to normalise them. That copy shares the messages in which
    nothing is to be normalised, where the model promises to read only. Any other deep copy is made.

    Attributes:
        is_only_read: The model never changes the messages it is given.
    """

    is_only_read = False

    def __deepcopy__(self, memo: dict[int, Any]) -> History:
        if is_for_middleware_that_is_absent():
            return self
        is_to_normalize = sys._getframe(2).f_code is _NORMALIZATION  # behind this method and `copy.deepcopy`
        if self.is_only_read and is_to_normalize and _normalization_is_known():
            return _PartlyCopied(self)
        return History(map(_copy_message, self))


class _PartlyCopied(History):
    """The messages of a history, of which only those are copies that the SDK's normalisation would change.

    The normalisation is shown no others.
    """

    def __init__(self, messages: History) -> None:
        super().__init__(messages)
        self._copies = []
        for index, message in enumerate(messages):
            if message.get("role", "assistant") == "assistant" and not _is_normal(message):
                self[index] = copied = _copy_message(message)
                self._copies.append(copied)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._copies) if sys._getframe(1).f_code is _NORMALIZATION else super().__iter__()


@cache
def _normalization_is_known() -> bool:
    """Whether the SDK's normalisation, of whatever version, does with a `_PartlyCopied` what it does with a copy."""
    texts = ("good", " ", None)
    messages: list[Any] = [{"role": "assistant", "content": [{"text": text}]} for text in texts]
    messages += [{"role": "user", "content": [{"text": ""}]}, {"role": "assistant", "content": []}]
    messages += [{"role": "assistant", "content": [{"toolUse": {"name": name, "input": {}}}]} for name in ("a", "a b")]
    normalize: Any = getattr(sdk_streaming, "_normalize_messages", None)
    try:
        return list(normalize(_Probe(messages))) == list(normalize(messages))
    except Exception:  # an SDK that is unknown here may do anything
        return False


class _Probe(list[Any]):
    def __deepcopy__(self, memo: dict[int, Any]) -> _PartlyCopied:
        return _PartlyCopied(History(self))


def is_for_middleware_that_is_absent() -> bool:
    """Whether the `__deepcopy__` that asks makes a copy for model middleware, and the agent has none."""
    caller = sys._getframe(3)  # behind this function, `__deepcopy__` and `copy.deepcopy`
    if _MODEL_EXECUTION is None or caller.f_code is not _MODEL_EXECUTION:
        return False
    registry = getattr(caller.f_locals.get("agent"), "_middleware_registry", None)
    handlers = getattr(registry, "_handlers", None)
    return isinstance(handlers, dict) and not handlers.get(InvokeModelStage)


def _is_normal(message: Any) -> bool:
    """Whether the SDK's normalisation would leave a message of the assistant as it is."""
    content = message.get("content")
    if type(content) is not list or not content:
        return False
    for block in content:
        if type(block) is not dict:
            return False
        if "text" in block and not (type(block["text"]) is str and block["text"].strip()):
            return False
        if "toolUse" in block:
            use = block["toolUse"]
            if type(use) is not dict or type(use.get("name")) is not str or not _is_valid_name(use["name"]):
                return False
    return True


@lru_cache(maxsize=4096)
def _is_valid_name(name: str) -> bool:
    return re.fullmatch(r"[a-zA-Z0-9_\-]{1,64}", name) is not None


def _copy_message(message: Any) -> Any:
    content = message.get("content")
    if type(content) is not list:
        return message
    copied = message.copy()
    copied["content"] = [_copy_block(content[0])] if len(content) == 1 else list(map(_copy_block, content))
    return copied


def _copy_block(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    copied = block.copy()
    if "toolUse" in copied:
        copied["toolUse"] = dict(copied["toolUse"])
    return copied


def skip_unrecorded_messages() -> None:
    """Make the SDK's tracer encode messages only for spans that record them. Nothing recorded changes."""
    tracer = get_tracer()
    original = getattr(type(tracer), "_add_event_messages", None)
    if original is None or "_add_event_messages" in vars(tracer):
        return

    def add_event_messages(span: Any, messages: Any) -> None:
        if span.is_recording():
            original(tracer, span, messages)

    tracer._add_event_messages = add_event_messages  # type: ignore[method-assign]
