"""What keeps long episodes affordable: two copies and two serialisations of the whole history per turn, made cheap.

The SDK copies the history deeply twice before every model call, and encodes it twice for trace events that nobody
records when no exporter is set up. Both grow with the square of the number of turns, and are nine tenths of the time of
an episode of 200 turns.
"""

from __future__ import annotations

from typing import Any

from strands.telemetry.tracer import get_tracer


class History(list[Any]):
    """A message list whose deep copy is deep where the SDK writes, and shares the rest.

    The SDK's normalisation of the copy changes lists of blocks, blocks, and names of tool uses; arguments and results
    inside them are read only, and large.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> History:
        return History(_copy_message(message) for message in self)


def _copy_message(message: Any) -> Any:
    content = message.get("content")
    return {**message, "content": [_copy_block(block) for block in content]} if isinstance(content, list) else message


def _copy_block(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    return {**block, "toolUse": dict(block["toolUse"])} if "toolUse" in block else dict(block)


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
