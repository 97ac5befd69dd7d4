"""Turns and messages as JSON values, for the log of a session."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Mapping
from typing import Any

from ..conversation import Conversation
from ..lines import pack, unpack
from ..trajectory import (
    Call,
    Completion,
    Finish,
    FinishType,
    Image,
    LengthLimit,
    Location,
    Message,
    Result,
    Role,
    SamplingMask,
    ToolCall,
    Turn,
    WeightSpan,
)
from ..trajectory.media import Medium
from ..trajectory.message import Parts
from ..trajectory.packed import LOGPROB_TYPECODE, TOKEN_TYPECODE

# ---- messages ------------------------------------------------


def message_to_json(message: Message) -> list[Any]:
    """A message; one that a single call alone is shown more of has no place here."""
    results = [[result.call_id, _parts_to_json(result.parts), result.is_error] for result in message.results]
    parts = _parts_to_json(message.parts)
    return [message.role, parts, message.reasoning, list(map(list, message.calls)), results, message.receipt]


def message_from_json(value: list[Any]) -> Message:
    """The message that `message_to_json` wrote."""
    role, parts, reasoning, calls, results, receipt = value
    return Message(
        role=role,
        parts=_parts_from_json(parts),
        reasoning=reasoning,
        calls=tuple([Call(*call) for call in calls]),
        results=tuple([Result(call_id, _parts_from_json(shown), is_error) for call_id, shown, is_error in results]),
        receipt=receipt,
    )


def _parts_to_json(parts: Parts) -> list[Any]:
    return [
        part if isinstance(part, str) else [base64.b64encode(part.data).decode(), part.kind, part.problem]
        for part in parts
    ]


def _parts_from_json(parts: list[Any]) -> Parts:
    return tuple(
        [part if isinstance(part, str) else Image(base64.b64decode(part[0]), part[1], part[2]) for part in parts]
    )


# ---- turns ------------------------------------------------


def turn_to_json(turn: Turn, context: bytes) -> dict[str, Any]:
    """A turn; `context` is that of its location."""
    completion, finish = turn.completion, turn.completion.finish
    mask = completion.sampling_mask
    return {
        "parent": None if turn.parent is None else turn.parent.index,
        "key": turn.key.hex(),
        "context": context.hex(),
        "agent": [turn.agent, turn.agent_id, turn.attempt, turn.role, turn.parent_agent],
        "is_constrained": turn.is_constrained,
        "is_recalled": turn.is_recalled,
        "prompt_ids": pack(turn.prompt_ids),
        "reply": message_to_json(turn.reply),
        "calls": [[call.id, call.name, call.model_id, call.error, call.is_text] for call in turn.calls],
        "media": [
            [medium.data, medium.digest, pack(medium.span), medium.grid, medium.processor, medium.position]
            for medium in turn.media
        ],
        "output_ids": pack(completion.output_ids),
        "output_logprobs": pack(completion.output_logprobs),
        "prompt_logprobs": pack(completion.prompt_logprobs),
        "finish": [finish.type, finish.matched, finish.message, finish.limited_by],
        "weight_spans": [[span.version, span.start, span.end] for span in completion.weight_spans],
        "cached_tokens": completion.cached_tokens,
        "latency": completion.latency,
        "routed_experts": pack(completion.routed_experts),
        "sampling_mask": None if mask is None else [pack(mask.ids.tobytes()), pack(mask.offsets.tobytes())],
        "request_ids": completion.request_ids,
    }


def restore_turn(conversation: Conversation, value: Mapping[str, Any]) -> Turn:
    """Commit a turn again, which `turn_to_json` wrote."""
    forest = conversation.forest
    kind, matched, words, limited_by = value["finish"]
    mask = value["sampling_mask"]
    agent, agent_id, attempt, role, parent_agent = value["agent"]
    return conversation.commit(
        Location(
            key=bytes.fromhex(value["key"]),
            context=bytes.fromhex(value["context"]),
            parent=None if value["parent"] is None else forest.turns[value["parent"]],
            first_new=0,
            agent=agent,
            agent_id=agent_id,
            attempt=attempt,
            role=Role(role),
            parent_agent=parent_agent,
            epoch=forest.epoch,
        ),
        prompt_ids=_ids(value["prompt_ids"]),
        completion=Completion(
            output_ids=_ids(value["output_ids"]),
            output_logprobs=_values(value["output_logprobs"]),
            prompt_logprobs=_values(value["prompt_logprobs"]),
            finish=Finish(
                type=FinishType(kind),
                matched=matched,
                message=words,
                limited_by=None if limited_by is None else LengthLimit(limited_by),
            ),
            weight_spans=tuple(
                [WeightSpan(version=v, start=start, end=end) for v, start, end in value["weight_spans"]]
            ),
            cached_tokens=value["cached_tokens"],
            latency=value["latency"],
            routed_experts=None if value["routed_experts"] is None else unpack(value["routed_experts"]),
            sampling_mask=None if mask is None else _mask(*mask),
            request_ids=tuple(value["request_ids"]),
        ),
        reply=message_from_json(value["reply"]),
        calls=[
            ToolCall(id=call_id, name=name, model_id=model_id, error=error, is_text=is_text)
            for call_id, name, model_id, error, is_text in value["calls"]
        ],
        media=[
            Medium(
                data=data,
                digest=digest,
                span=_ids(span),
                grid=None if grid is None else tuple(grid),
                processor=processor,
                position=position,
            )
            for data, digest, span, grid, processor, position in value["media"]
        ],
        is_constrained=value["is_constrained"],
        is_recalled=value["is_recalled"],
    )


def _ids(text: str) -> array[int]:
    return array(TOKEN_TYPECODE, unpack(text))


def _values(text: str | None) -> array[float] | None:
    return None if text is None else array(LOGPROB_TYPECODE, unpack(text))


def _mask(ids: str, offsets: str) -> SamplingMask:
    import numpy as np

    return SamplingMask(
        ids=np.frombuffer(unpack(ids), dtype=np.int32), offsets=np.frombuffer(unpack(offsets), dtype=np.int64)
    )
