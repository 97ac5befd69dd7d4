"""The ids a call appends to its history. A call is a `TurnRequest`, located and rendered to a `PreparedTurn`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strands.types.tools import ToolSpec

from ..exceptions import MediaError, TemplateError
from ..template import Rendered, short_history
from ..tokenizer import TokenizerAdapter
from ..trajectory import CallOrigin, History, Location, Message
from ..trajectory.media import place_images
from .formats import Prompt, PromptFormat, digest_parts
from .messages import ChatConversation, ShownCall, SystemPrompt, chat_call, to_chat
from .model_options import MalformedCalls, SGLangConfig
from .prompt_images import PromptImages
from .tool_calls import CallIds


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest(CallOrigin):
    """A model call, in terms that belong to no client, and its caller: a call extends turns of the same agent.

    Attributes:
        messages: The whole history: Strands messages, or one that was read already.
        ephemeral_blocks: Number of content blocks at the end of the last Strands message that later histories lack.
        system: System prompt: text, or system content blocks.
        tools: Strands tool specs.
        params: Sampling parameters of this call alone; they take precedence over the configured ones.
        constraints: Grammar of this call, e.g. `{"json_schema": text}`; the turn is marked as constrained.
        forced_tools: Names of tools of which the reply has to call one, by a grammar; empty for a free choice.
        fields: Fields of the backend's own, see `Backend.check_fields`.
        as_root: Render the whole history afresh, also where a path could be extended.
        malformed_calls: Treatment of calls that cannot be parsed.
        read_calls: False leaves every call in the text as it was sampled.
        trim_stop: Leave a stop string out of the reply's text; its tokens stay in the trajectory.
    """

    messages: Sequence[Any] | History
    ephemeral_blocks: int = 0
    system: SystemPrompt = None
    tools: Sequence[ToolSpec] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    constraints: Mapping[str, Any] = field(default_factory=dict)
    forced_tools: Sequence[str] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    as_root: bool = False
    malformed_calls: MalformedCalls = MalformedCalls.RENAME
    read_calls: bool = True
    trim_stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTurn:
    """A request that is located and rendered, but not sampled."""

    request: TurnRequest
    history: History
    location: Location
    format: PromptFormat
    prompt: Prompt

    @property
    def prompt_length(self) -> int:
        """Length of the whole prompt in tokens, as the server counts it."""
        parent = self.location.parent
        return self.prompt.tokens + (parent.expanded_end if parent is not None else 0)


class Prompts:
    """Renders and encodes the prompts of an episode."""

    def __init__(self, tokens: TokenizerAdapter, images: PromptImages) -> None:
        self._tokens = tokens
        self._images = images
        self.calls = CallIds()
        self._heads: dict[bytes, list[dict[str, Any]]] = {}
        """The short history of each call's input, which a delta needs."""
        self._characters = self._encoded = 0

    def reset(self) -> None:
        """Forget the ids of calls."""
        self.calls.sampled.clear()
        self._heads.clear()

    def root(
        self,
        prompt_format: PromptFormat,
        location: Location,
        messages: Sequence[Message],
        system: str,
        options: SGLangConfig,
    ) -> Prompt:
        """The whole history as a fresh prompt."""
        chat = self._to_chat(prompt_format, messages, system)
        self._heads[location.key] = short_history(chat.messages)
        roots = prompt_format.roots
        # An impure template, such as one that prints the date, may print another text next time.
        is_alone = chat.images or roots is None or not prompt_format.renderer.template.is_pure
        key = None if is_alone else digest_parts(chat.messages, prompt_format.key)
        if roots is None or key is None:
            return self._encode(prompt_format, prompt_format.renderer.root(chat.messages), chat, options)
        if (known := roots.get(key)) is None:
            rendered = prompt_format.renderer.root(chat.messages)
            prompt = self._encode(prompt_format, rendered, chat, options)
            roots.put(key, (prompt, len(rendered.text)), len(prompt.ids))
        else:
            prompt, characters = known
            self._characters += characters
            self._encoded += len(prompt.ids)
            place_images(prompt.ids, (), self._images.expander)  # who encoded it may have known no placeholders
        return prompt._replace(ids=prompt.ids[:])  # a copy: others share it

    def delta(
        self,
        prompt_format: PromptFormat,
        location: Location,
        messages: Sequence[Message],
        system: str,
        options: SGLangConfig,
    ) -> Prompt:
        """The prompt behind the sampled ids of the parent; `TemplateError` if the template cannot express it."""
        parent = location.parent
        assert parent is not None
        sampled = parent.completion.output_ids
        expander = self._images.expander
        if expander is not None and any(token in sampled for token in expander.media_ids):
            raise MediaError(
                "the model sampled a token that stands for an image, and a server would take it for one: this path "
                "cannot be extended; forbid the token with sampling_params={'logit_bias': ...}, or end the episode here"
            )
        *before, reply = messages[: location.first_new]
        # The turn as the template needs to see it: which calls were made. What was sampled is never printed again.
        turn: dict[str, Any] = {"role": "assistant", "content": ""}
        names: list[ShownCall] = []
        calls: dict[str, ShownCall] = {}
        for made in parent.calls:
            if not made.is_text:
                names.append(ShownCall(made.shown_id, made.name))
                calls[made.id] = names[-1]
        if names:
            turn["tool_calls"] = [chat_call(name, {}) for name in names]
        # Results name the ids by which the client calls the calls, or those that it was given.
        for call, name in zip(reply.calls, names, strict=False):
            calls[call.id] = name
        new = to_chat(messages[location.first_new :], calls=calls)

        def whole() -> list[dict[str, Any]]:
            return self._to_chat(prompt_format, before, system).messages

        head = self._heads.get(parent.key)
        if head is None:
            head = short_history(whole())
        is_same = "user" not in [message["role"] for message in new.messages]  # of tool results: nothing is held twice
        self._heads[location.key] = head if is_same else short_history(head, new.messages)
        stop = parent.completion.last_stop
        try:
            delta = prompt_format.renderer.delta(
                [*head, turn],
                new.messages,
                whole=whole,
                emitted=None if stop is None else self._tokens.token_text(stop),
                truncated=stop is None,
            )
            return self._encode(prompt_format, delta, new, options)
        except TemplateError as error:
            error.index = location.first_new
            raise

    def _encode(
        self, prompt_format: PromptFormat, rendered: Rendered, chat: ChatConversation, options: SGLangConfig
    ) -> Prompt:
        ids = self._tokens.encode(rendered.text, rendered.literal)
        self._characters += len(rendered.text)
        self._encoded += len(ids)
        media = self._images.place(ids, chat, prompt_format, options)
        return Prompt(ids=ids, media=media, open=prompt_format.renderer.report.opened_tags(rendered.text))

    def _to_chat(self, prompt_format: PromptFormat, messages: Sequence[Message], system: str) -> ChatConversation:
        return to_chat(messages, system, name_call=self.calls.in_history(lambda: prompt_format.call_ids))

    def estimate_tokens(self, size: int) -> int:
        """A guess at the tokens of so many bytes, at the characters of a token of this episode so far (4 at first)."""
        # Never tokenised: the SDK asks before every model call.
        return round(size * self._encoded / self._characters if self._encoded else size / 4.0)
