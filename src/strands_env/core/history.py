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

_VALID_NAME: Final = re.compile(r"[a-zA-Z0-9_\-]{1,64}")


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
        shares = self.is_only_read and is_to_normalize
        return History(map(_copy_to_normalize if shares else _copy_message, self))


def is_for_middleware_that_is_absent() -> bool:
    """Whether the `__deepcopy__` that asks makes a copy for model middleware, and the agent has none."""
    caller = sys._getframe(3)  # behind this function, `__deepcopy__` and `copy.deepcopy`
    if _MODEL_EXECUTION is None or caller.f_code is not _MODEL_EXECUTION:
        return False
    registry = getattr(caller.f_locals.get("agent"), "_middleware_registry", None)
    handlers = getattr(registry, "_handlers", None)
    return isinstance(handlers, dict) and not handlers.get(InvokeModelStage)


def _copy_to_normalize(message: Any) -> Any:
    """The message itself where the SDK's normalisation would leave it as it is."""
    role, content = message.get("role", "assistant"), message.get("content")
    if role != "assistant":
        return message
    if type(content) is not list or not content:
        return _copy_message(message)
    for block in content:
        use = block.get("toolUse", block) if type(block) is dict else None
        if use is None or ("text" in block and not (type(block["text"]) is str and block["text"].strip())):
            return _copy_message(message)
        if use is not block:
            name = use.get("name") if type(use) is dict else None
            if type(name) is not str or not _VALID_NAME.fullmatch(name):
                return _copy_message(message)
    return message


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
