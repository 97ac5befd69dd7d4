"""Requests of inspect_ai as turns of a conversation, and turns as its outputs: exact, or refused with one sentence.

inspect is a client like those of the gateway, whose canonical form of histories, ids of calls and receipts it shares.
A reply carries a receipt in its message's metadata, so its turn is known by proof wherever a copy of it comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    Content,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    Logprob,
    Logprobs,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.tool import ToolCall, ToolChoice, ToolFunction, ToolInfo

from strands_sglang.conversation import SampledTurn
from strands_sglang.gateway.canonical import Read, Readings
from strands_sglang.gateway.dialects import CHAT_COMPLETIONS, reading
from strands_sglang.gateway.dialects.wire import Refused, WireReply, WireRequest
from strands_sglang.trajectory import Call, Message

RECEIPT = "strands_rollout"
"""Key of a reply's receipt in the metadata of its message."""

_SAMPLING = {"temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed"}
_UNSUPPORTED = {
    "num_choices": "a call samples one reply; call again for another",
    "best_of": "a call samples one reply",
    "logit_bias": "it would change what is sampled; leave it out",
    "top_logprobs": "only sampled tokens have log-probabilities; ask for logprobs alone",
    "prompt_logprobs": "only sampled tokens have log-probabilities",
    "modalities": "replies are text",
    "fallback_models": "only the policy answers",
    "extra_headers": "give the client what it is to send",
    "parallel_tool_calls": "a reply has as many calls as the model writes; leave it out",
    **dict.fromkeys(
        ("reasoning_effort", "reasoning_mode", "reasoning_tokens", "reasoning_summary", "effort", "verbosity"),
        "reasoning is up to the chat template: give the model chat_template_kwargs",
    ),
}
"""Options of a call that cannot be obeyed, each with the remedy."""
_NEUTRAL = {"num_choices": 1, "best_of": 1, "top_logprobs": 0, "parallel_tool_calls": True, "reasoning_summary": "none"}


def read_request(
    messages: Sequence[ChatMessage],
    tools: Sequence[ToolInfo],
    tool_choice: ToolChoice,
    config: GenerateConfig,
    readings: Readings,
) -> WireRequest:
    """The request of one call of a model.

    Raises:
        Refused: An option cannot be obeyed, or a part of a message cannot be shown.
    """
    for name, words in _UNSUPPORTED.items():
        if (value := getattr(config, name)) not in (None, [], {}, _NEUTRAL.get(name)):
            raise Refused(f"{name}={reading.quote(value)} is not supported: {words}", param=name)
    fields = {"role", "content", "tool_calls", "tool_call_id", "error", "metadata"}
    read = readings.read([message.model_dump(include=fields) for message in messages], _Reader(readings))
    schema = config.response_schema
    form = (
        None if schema is None else {"type": "json_schema", "schema": schema.json_schema.model_dump(exclude_none=True)}
    )
    return WireRequest(
        model="",
        system="\n".join(filter(None, read.system)),
        history=read.history,
        tools=[_tool_spec(tool) for tool in tools],
        tool_choice=tool_choice.name if isinstance(tool_choice, ToolFunction) else _CHOICES[tool_choice],
        max_tokens=reading.want_count(config.max_tokens, "max_tokens"),
        stop=reading.want_stops(config.stop_seqs, "stop_seqs"),
        sampling={
            reading.SAMPLING_NAMES[name]: value
            for name in sorted(_SAMPLING)
            if (value := getattr(config, name)) is not None
        },
        constraints=reading.json_format(form, "response_schema"),
        logprobs=bool(config.logprobs),
    )


_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def _tool_spec(tool: ToolInfo) -> dict[str, Any]:
    schema = tool.parameters.model_dump(exclude_none=True)
    return reading.tool_spec(tool.name, tool.description, schema, f"the tool {tool.name!r}")


class _Reader:
    """Reads messages, as `Readings.read` asks for them."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def __call__(self, item: Mapping[str, Any], index: int, before: Sequence[Read]) -> Message:
        where, role = f"messages[{index}]", item["role"]
        of_tools = reading.is_of_tools(role, before)
        pieces = reading.read_content(item["content"], f"{where}.content", _read_part, of_tools=of_tools)
        if role == "tool":
            if (error := item.get("error")) is not None:
                pieces = [error["message"]]
            result = reading.result_of(item.get("tool_call_id"), pieces, where, failed=error is not None)
            return reading.message_of("user", [result], where)
        for call in item.get("tool_calls") or ():
            pieces.append(Call(call["id"], call["function"], call["arguments"]))
        receipt = self._readings.turn_of((item.get("metadata") or {}).get(RECEIPT))
        return reading.message_of(role, pieces, where, receipt=receipt, of_tools=of_tools)


def _read_part(part: Mapping[str, Any], where: str) -> reading.Piece:
    match part["type"]:
        case "text":
            return str(part["text"])
        case "image":
            return reading.image_of_url(part["image"], where)
        case "reasoning" if not part["redacted"]:
            return reading.Thought(part["reasoning"])
        case "reasoning":
            raise Refused(f"{where}: redacted reasoning says nothing to another model; leave it out", param=where)
    raise reading.unexpected_part(part["type"], where)


def output_of(model: str, reply: WireReply, sampled: SampledTurn) -> ModelOutput:
    """The output of a turn: malformed calls carry their error, which the agent's loop answers."""
    errors = [
        next((call.error for call in sampled.turn.calls if call.id == own.id), None) for own in sampled.reply.calls
    ]
    calls = [
        ToolCall(
            id=f"{CHAT_COMPLETIONS.call_prefix}{call.id}",
            function=call.name,
            arguments=dict(call.input),
            parse_error=error,
        )
        for call, error in zip(reply.calls, errors, strict=True)
    ]
    content: str | list[Content] = reply.text
    if reply.reasoning:
        content = [ContentReasoning(reasoning=reply.reasoning), *([ContentText(text=reply.text)] if reply.text else [])]
    message = ChatMessageAssistant(
        content=content,
        tool_calls=calls or None,
        model=model,
        source="generate",
        metadata={RECEIPT: reply.receipt},
    )
    stop = {"length": "max_tokens", "tool_calls": "tool_calls"}.get(reply.finish, "stop")
    logprobs = None
    if reply.logprobs is not None:
        if any(value is None for _, value in reply.logprobs):
            raise Refused("the backend returned no log-probabilities: leave logprobs out", param="logprobs")
        logprobs = Logprobs(
            content=[
                Logprob(token=text, logprob=value, bytes=list(text.encode()))
                for text, value in reply.logprobs
                if value is not None
            ]
        )
    usage = ModelUsage(
        input_tokens=reply.prompt_tokens - reply.cached_tokens,
        input_tokens_cache_read=reply.cached_tokens,
        output_tokens=reply.output_tokens,
        total_tokens=reply.prompt_tokens + reply.output_tokens,
        reasoning_tokens=reply.reasoning_tokens,
    )
    choice = ChatCompletionChoice(message=message, stop_reason=stop, logprobs=logprobs)
    return ModelOutput(model=model, choices=[choice], usage=usage)
