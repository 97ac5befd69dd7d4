"""The text of one structured call, as the template prints it: what tool parsers are tried on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strands_sglang.exceptions import TemplateError
from strands_sglang.template._boundary import Plant, common_prefix
from strands_sglang.template._messages import Message
from strands_sglang.template._step import CALL_ID, SENTINEL, Path, StepRenderer

_USER: Message = {"role": "user", "content": "Hello."}


def printed_call(step: StepRenderer, name: str, arguments: Mapping[str, Any], call_id: str | None = None) -> str | None:
    """Text between the header of an assistant turn with this one call and the end of the turn; None if not printed."""
    call_id = call_id or CALL_ID % 1
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
    answer: Message = {"role": "tool", "tool_call_id": call_id, "name": name, "content": "Done."}
    turn: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
    try:
        suffix = step.suffix([_USER, turn], [answer], Path.COMPACT)
        boundary = suffix.boundary
        if boundary.plant is Plant.CONTENT:
            return None
        turn = {**turn, "content": None if boundary.plant is Plant.ARGUMENTS_NULL else ""}
        whole = step.render([_USER, turn, answer], generate=True)
    except TemplateError:
        return None
    except Exception:  # the template prints the planted call, but not this one
        return None
    end = boundary.closer + suffix.text
    if not whole.endswith(end):
        return None
    whole = whole[: len(whole) - len(end)]
    return whole[_start(step, whole) :]


def _start(step: StepRenderer, whole: str) -> int:
    """Where the call starts: behind the generation prompt, or where a turn with text differs."""
    starts = [0]
    try:
        prompt = step.render([_USER], generate=True)
        if whole.startswith(prompt):
            starts.append(len(prompt))
    except Exception:  # not every template renders a lone user message
        pass
    try:
        turn: Message = {"role": "assistant", "content": SENTINEL}
        starts.append(common_prefix(whole, step.render([_USER, turn, _USER], generate=True)))
    except Exception:  # nor this
        pass
    return max(starts)
