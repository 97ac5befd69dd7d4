"""`TokenModel`, known as `SGLangModel` too: the Strands model provider that keeps exact token trajectories.

It has a `Conversation`, which the SDK can call through it: the SDK's history goes in, the SDK's stream events come out.
What is the SDK's own stays here: who calls, its events, its cancel signal, and the hook that answers malformed calls.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections.abc import AsyncGenerator
from typing import Any, NoReturn, TypeVar, Unpack, cast

import pydantic
from strands.models import Model
from strands.types.content import Messages, SystemContentBlock
from strands.types.streaming import StreamEvent
from strands.types.tools import ToolChoice, ToolSpec

from .backends import Backend, GenerateClient
from .callers import Callers, NamedOptions
from .conversation import Conversation, SampledTurn, TurnRequest
from .conversation.cancellation import CallCancelled
from .conversation.messages import (
    format_content_block,
    format_messages,
    format_tool_specs,
    sort_tool_results,
    system_text,
)
from .conversation.model_options import MalformedCalls, ModelOptions, SGLangConfig
from .conversation.reply import read_constrained
from .hints import explain_arguments, same_arguments
from .spans import note_turn
from .tokenizer import Tokenizer
from .trajectory import LengthLimit, TokenManager, Trajectory, join_routed_experts

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=pydantic.BaseModel)

_to_json = json.JSONEncoder(ensure_ascii=False).encode


class TokenModel(Model):
    """A Strands model over any backend that samples token by token: SGLang, vLLM, the embedded engine.

    The ids of every call are the ids of a path already held, followed by a delta rendered by the model's own chat
    template and encoded in one piece. Sampled ids are never encoded again. History that is not an extension (trimmed,
    summarised, edited, another agent) starts a new path, so any agent feature works and every trajectory stays exact.

    Args:
        tokenizer: Hugging Face style tokenizer of the served model.
        client: The generation backend: `SGLangClient`, `VLLMClient`, the embedded engine, a scripted fake.
        base_url: URL of a server (`vllm+http://...` for vLLM), instead of `client`; the model then makes a client of
            its own.
        tool_parser: Reads the model's tool calls: a parser or its name, such as `"hermes"`. None chooses the registered
            one that reads back what the chat template prints, and refuses tools when none does.
        chat_template: Jinja text to use instead of the tokenizer's.
        stop_tokens: Stop tokens the engine knows beyond the tokenizer's eos and its `generation_config.json`.
        vocab_size: Number of ids the model takes; larger ids are refused before they are sent. None asks the client.
        processor: For a model that sees: its folder or hub id, or its `AutoProcessor`. The embedded engine brings its
            own.
        tool_call_parser: The name of `tool_parser` in strands-sglang 0.1.
        **options: Sampling parameters, returned fields, budgets and policies: see `SGLangConfig`; `update_config`
            changes them.

    Attributes:
        conversation: The episode: its forest, prompts, budgets and call ids.
        forest: All turns of the episode.
        rollout: The linear view of the current trajectory.

    Raises:
        TypeError: An unknown option, neither or both of `client` and `base_url`, or a `tool_parser` of another type.
        ValueError: An option has a wrong value, or no parser has the name.
    """

    @explain_arguments
    @same_arguments(Conversation)
    def __init__(self, **arguments: Any) -> None:
        self.conversation = Conversation(**arguments)
        self.forest = self.conversation.forest
        self.rollout = TokenManager(self.forest, on_reset=self.reset)
        self._callers = Callers(self, self.forest)

    def __reduce__(self) -> NoReturn:
        self.conversation.__reduce__()

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that was given."""
        return self.conversation.tokenizer

    @property
    def client(self) -> Backend | GenerateClient:
        """The generation backend. Another one may take its place between calls."""
        return self.conversation.client

    @client.setter
    def client(self, client: Backend | GenerateClient) -> None:
        self.conversation.client = client

    @property
    def trajectories(self) -> list[Trajectory]:
        """Every path of the episode; each sampled token carries loss in exactly one of them."""
        return self.conversation.trajectories

    @property
    def tool_parse_errors(self) -> dict[str, int]:
        """Number of malformed calls per tool name in this episode."""
        return self.conversation.tool_parse_errors

    @property
    def token_manager(self) -> TokenManager:
        """The same as `rollout`."""
        return self.rollout

    @property
    def length_limit(self) -> LengthLimit | None:
        """The bound that cut the last turn, or None where it ended otherwise."""
        current = self.forest.current
        return None if current is None else current.completion.finish.limited_by

    @property
    def routed_experts(self) -> str | None:
        """Routed experts of the current path: base64 of int32 rows for all tokens but the last, or None.

        `decode_routed_experts` makes the array of it.
        """
        current = self.forest.current
        data = join_routed_experts(current.path()) if current is not None else None
        return None if data is None else base64.b64encode(data).decode("ascii")

    def reset(self) -> None:
        """Start a new episode: trajectories, call ids and budgets start over; calls in flight are dropped."""
        self.conversation.reset()
        self._callers.reset()

    def watch_agent(self, agent: Any) -> None:
        """Know an agent before its first call: needed where its tools run before it, after a restored history."""
        self._callers.watch(agent)

    @property
    def config(self) -> SGLangConfig:
        """The options in force."""
        return cast("SGLangConfig", NamedOptions(self.conversation.config))

    def get_config(self) -> SGLangConfig:
        """The options in force."""
        return self.conversation.config

    def update_config(self, **changes: Unpack[ModelOptions]) -> None:  # type: ignore[override]  # they have types
        """Change options, with the errors of the constructor. A changed template argument starts a new path."""
        self.conversation.update_config(**changes)

    format_content_block = staticmethod(format_content_block)
    format_messages = staticmethod(format_messages)
    format_request_messages = staticmethod(format_messages)
    format_tool_specs = staticmethod(format_tool_specs)
    sort_tool_results = staticmethod(sort_tool_results)

    # ---- the model call ------------------------------------------------

    async def stream(
        self,
        messages: Messages,
        tool_specs: list[ToolSpec] | None = None,
        system_prompt: str | None = None,
        *,
        tool_choice: ToolChoice | None = None,
        system_prompt_content: list[SystemContentBlock] | None = None,
        invocation_state: dict[str, Any] | None = None,
        cancel_signal: threading.Event | None = None,
        dynamic_trailing_blocks: int = 0,
        **kwargs: Any,
    ) -> AsyncGenerator[StreamEvent, None]:
        """A model call.

        Args:
            tool_choice: A forced choice becomes a grammar where the backend, and the model's format of calls, take one;
                otherwise it is ignored with a warning, once a process.
            system_prompt_content: System prompt as blocks; takes precedence over the text.
            cancel_signal: Ends the call when set; nothing is recorded then.
            dynamic_trailing_blocks: Number of blocks at the end of the last message that later histories will lack; the
                option `injected_context` decides their fate.

        Yields:
            The SDK's stream events: one block each for reasoning, text and every call, then stop reason and usage.

        Raises the errors of `Conversation.turn`, except for a cancellation, which ends the stream.
        """
        forced: list[str] = []
        if tool_choice and "auto" not in tool_choice:
            chosen = cast("dict[str, Any]", tool_choice).get("tool")
            forced = [spec["name"] for spec in tool_specs or ()] if chosen is None else [chosen["name"]]
        caller = self._callers.identify(invocation_state, cancel_signal)
        malformed_calls = MalformedCalls.KEEP if caller.is_hooked else MalformedCalls.RENAME
        request = TurnRequest(
            messages=messages,
            ephemeral_blocks=dynamic_trailing_blocks,
            system=system_text(system_prompt if system_prompt_content is None else system_prompt_content),
            tools=tool_specs or (),
            forced_tools=forced,
            malformed_calls=malformed_calls,
            **caller.origin,
        )
        try:
            sampled = await self.conversation.turn(request, cancel_signal=cancel_signal)
        except CallCancelled:
            return  # a stream without messageStop: the SDK reports the cancellation
        note_turn(sampled.turn)
        self._callers.note_sampled(caller, sampled.turn)
        with self.forest.delivering(sampled.turn):
            for event in _events(sampled):
                yield event

    # The messages of a call are never changed, and nothing of them that could change is kept: they need no copy.
    stream.only_reads_messages = True  # type: ignore[attr-defined]

    async def structured_output(
        self, output_model: type[T], prompt: Messages, system_prompt: str | None = None, **kwargs: Any
    ) -> AsyncGenerator[dict[str, T | Any], None]:
        """Sample an answer constrained to a model's JSON schema; it is recorded as a separate trajectory.

        Yields:
            `{"output": instance}`.

        Raises:
            StructuredOutputError: The answer was cut, or does not validate.
        """
        caller = self._callers.identify_structured()
        request = TurnRequest(
            messages=prompt,
            system=system_prompt,
            constraints={"json_schema": json.dumps(output_model.model_json_schema())},
            as_root=True,
            **caller.origin,
        )
        prepared = await self.conversation.prepare_aside(request)
        sampled = await self.conversation.sample(prepared)
        self._callers.note_sampled(caller, sampled.turn)
        completion = sampled.turn.completion
        text = self.conversation.decode(completion)
        yield {"output": read_constrained(output_model, completion, text, open=prepared.prompt.open)}

    async def count_tokens(
        self,
        messages: Messages,
        tool_specs: list[ToolSpec] | None = None,
        system_prompt: str | None = None,
        system_prompt_content: list[SystemContentBlock] | None = None,
    ) -> int:
        """Number of tokens of a history: exact for its held part, guessed by length for the rest, without encoding."""
        system = system_prompt if system_prompt_content is None else system_prompt_content
        return self.conversation.estimate_tokens(messages, tool_specs or (), system)


def _events(sampled: SampledTurn) -> list[StreamEvent]:
    """The SDK's events of a reply: one delta a block, every block closed, then stop reason, token counts and latency.

    `inputTokens` is the whole prompt, cached tokens included. The latency is in milliseconds.
    """
    reply, completion = sampled.reply, sampled.turn.completion
    events: list[Any] = [{"messageStart": {"role": "assistant"}}]
    if reply.reasoning:
        _add_block(events, {"reasoningContent": {"text": reply.reasoning}})
    if reply.text:
        _add_block(events, {"text": reply.text})
    for call in reply.calls:
        start = {"toolUse": {"toolUseId": call.id, "name": call.name}}
        events.append({"contentBlockStart": {"start": start}})  # other blocks have none, as with Bedrock
        _add_block(events, {"toolUse": {"input": _to_json(call.input)}})
    prompt, count = sampled.prompt_length, len(completion.output_ids)
    usage: dict[str, int] = {"inputTokens": prompt, "outputTokens": count, "totalTokens": prompt + count}
    if completion.cached_tokens is not None:
        usage["cacheReadInputTokens"] = completion.cached_tokens
    events.append({"messageStop": {"stopReason": sampled.stop_reason}})
    latency = round(1000 * (completion.latency or 0.0))
    events.append({"metadata": {"usage": usage, "metrics": {"latencyMs": latency}}})
    return events


def _add_block(events: list[Any], delta: dict[str, Any]) -> None:
    # In one piece: an event passes twelve generators of the SDK, in its own loop three more for every turn before.
    events += {"contentBlockDelta": {"delta": delta}}, {"contentBlockStop": {}}


SGLangModel = TokenModel
"""The name that users of SGLang know."""
