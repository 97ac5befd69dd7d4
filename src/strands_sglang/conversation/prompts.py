"""The ids a call appends to its history: one renderer and one tool parser per (tools, template arguments).

A call is a `TurnRequest`, which is located and rendered to a `PreparedTurn`.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from strands.types.tools import ToolSpec

from ..exceptions import ControlTokenError, MediaError, MessageConversionError, TemplateError
from ..fast_paths import FastPath
from ..template import (
    ChatTemplate,
    ControlTokens,
    DeltaRenderer,
    Flag,
    Rendered,
    image_problem,
    short_history,
    special_values,
)
from ..tokenizer import TokenizerAdapter
from ..tool_parsers import ToolParser
from ..tool_parsers.splitting import ThinkTokens
from ..trajectory import CallOrigin, History, Image, Location, Message, Turn, encode_value
from ..trajectory.media import ImageEncoding, ImageExpander, Medium, PreparedImage, media_growth, place_images
from .messages import (
    ChatConversation,
    ShownCall,
    SystemPrompt,
    chat_call,
    format_tool_specs,
    to_chat,
)
from .model_options import MalformedCalls, ReasoningPolicy, SGLangConfig
from .reply_format import choose_reader
from .shared_prompts import SharedPrompts, digest_parts, shared_prompts
from .tool_calls import (
    CallIdForm,
    CallIds,
    call_grammar,
)

logger = logging.getLogger(__name__)

# Problems with replies, each said once a process.
_warned: set[str] = set()


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptFormat:
    """A set of tools and template arguments: its printer and its parser.

    Attributes:
        renderer: Prints prompts and deltas.
        parser: Reads replies.
        needs_function_ids: The template prints the tool's name only as part of the call id.
        grammars: Grammars of forced calls, by the names of their tools.
        key: Digest of all that it was made from, or None where a part cannot be told from others.
    """

    renderer: DeltaRenderer
    parser: ToolParser
    needs_function_ids: bool = False
    key: bytes | None = None
    grammars: dict[tuple[str, ...], str | None] = field(default_factory=dict)
    _readers: dict[ThinkTokens, ToolParser] = field(default_factory=dict)

    def reader(self, open: ThinkTokens | None) -> ToolParser:
        """The parser, with the tags of the block that the prompt left `open`."""
        if open is None:
            return self.parser
        if open not in self._readers:
            self._readers[open] = self.parser.with_think_tokens(open)
        return self._readers[open]

    @cached_property
    def call_ids(self) -> CallIdForm:
        """The call ids that the template takes."""
        return CallIdForm.FUNCTION if self.needs_function_ids else CallIdForm.of(self.renderer)


class Prompt(NamedTuple):
    """The ids that a call appends to its path.

    Attributes:
        media: Images of the new messages, in order.
        open: Tags of the reasoning block in which the prompt ends, so that the completion starts in it; or None.
    """

    ids: array[int]
    media: tuple[Medium, ...]
    open: ThinkTokens | None

    @property
    def tokens(self) -> int:
        """Number of tokens, as the server counts them."""
        return len(self.ids) + media_growth(self.media)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest(CallOrigin):
    """A model call, in terms that belong to no client, and who makes it: a call extends turns of its own agent.

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


class PromptBuilder:
    """Renders and encodes prompts; `expander` expands images, None for a model that takes none.

    Args:
        chat_template: Jinja text to use instead of the tokenizer's, or None.
        tool_parser: The parser to use, or None to choose by the template.
    """

    def __init__(
        self,
        tokens: TokenizerAdapter,
        chat_template: str | None,
        tool_parser: ToolParser | None,
        expander: ImageExpander | None,
        options: SGLangConfig,
    ) -> None:
        self._tokens = tokens
        self._chat_template = chat_template
        self._tool_parser = tool_parser
        self._template: ChatTemplate | None = None
        self._formats: dict[bytes, PromptFormat] = {}
        self.calls = CallIds()
        self._heads: dict[bytes, list[dict[str, Any]]] = {}
        """The short history of each call's input, which a delta needs."""
        self._characters = self._encoded = 0
        self._expander = expander
        self.options = options
        self._entered: dict[tuple[bytes, int | None, ImageEncoding], PreparedImage | str] = {}
        self._image_problems: dict[tuple[PromptFormat, str], str | None] = {}

    def reset(self) -> None:
        """Forget the ids of calls; renderers stay."""
        self.calls.sampled.clear()
        self._heads.clear()
        self._entered.clear()

    @property
    def _policies(self) -> list[str]:
        return [str(self.options[name]) for name in ("reasoning_policy", "control_tokens", "dropped_content")]

    @property
    def _template_kwargs(self) -> dict[str, Any]:
        thinking = self.options["enable_thinking"]
        return {**self.options["chat_template_kwargs"], **({} if thinking is None else {"enable_thinking": thinking})}

    def key_of(self, tools: Sequence[ToolSpec]) -> bytes:
        """The tools and all options that decide how they are printed, in bytes."""
        if not isinstance(tools, Sequence):
            raise MessageConversionError(f"tools is {tools!r:.100}, expected a list")
        return encode_value([list(tools), self._template_kwargs, *self._policies])

    def format_of(self, tool_specs: Sequence[ToolSpec], key: bytes | None = None) -> PromptFormat:
        """The format for these tools under the options in force, checked once a process; `key` is their `key_of`.

        Raises:
            TemplateError: The template cannot be used with tools.
            ToolParserError: No parser reads its calls.
        """
        key = self.key_of(tool_specs) if key is None else key
        prompt_format = self._formats.get(key)
        if prompt_format is not None:
            return prompt_format
        tools, kwargs = format_tool_specs(tool_specs) if tool_specs else None, self._template_kwargs
        shared = self._shared_key(tools, kwargs) if FastPath.SHARED_PROMPTS.is_on else None
        prompt_format = None if shared is None else self._shared_prompts.formats.get(shared)
        if prompt_format is None:
            prompt_format = self._make_format(tools, kwargs, shared)
            if shared is not None:
                self._shared_prompts.formats.put(shared, prompt_format)
        self._formats[key] = prompt_format
        return prompt_format

    @cached_property
    def _shared_prompts(self) -> SharedPrompts:
        return shared_prompts(self._tokens.codec)

    def _shared_key(self, tools: list[dict[str, Any]] | None, kwargs: Mapping[str, Any]) -> bytes | None:
        """Key of a format, of all that it is made from."""
        tokenizer, codec = self._tokens.tokenizer, self._tokens.codec
        template = getattr(tokenizer, "chat_template", None) if self._chat_template is None else self._chat_template
        parser = None if self._tool_parser is None else id(self._tool_parser)  # the format keeps the parser alive
        special = special_values(tokenizer)
        facts = [template, special, list(self._tokens.stop_tokens), codec.vocabulary_size]
        return digest_parts([tools, dict(kwargs), self._policies, parser, facts])

    def _make_format(
        self, tools: list[dict[str, Any]] | None, kwargs: Mapping[str, Any], key: bytes | None
    ) -> PromptFormat:
        renderer = self._make_renderer(tools, kwargs)
        keep = renderer.report.keep_reasoning_kwargs
        if keep and self.options["reasoning_policy"] is ReasoningPolicy.APPEND and not keep.keys() & kwargs.keys():
            renderer = self._make_renderer(tools, {**kwargs, **keep})
        logger.debug("report=<%s> | chat template checked", renderer.report.summary)
        reading = choose_reader(renderer, self._tool_parser)
        if reading.problem and reading.problem not in _warned:
            _warned.add(reading.problem)
            logger.warning("problem=<%s> | replies are shown with markers of the chat template", reading.problem)
        return PromptFormat(
            renderer=renderer, parser=reading.parser, needs_function_ids=reading.needs_function_ids, key=key
        )

    def _make_renderer(self, tools: list[dict[str, Any]] | None, kwargs: Mapping[str, Any]) -> DeltaRenderer:
        if self._template is None:
            self._template = ChatTemplate.from_tokenizer(self._tokens.tokenizer, self._chat_template)
        return DeltaRenderer(
            self._template,
            tools=tools,
            template_kwargs=kwargs,
            stop_tokens=self._tokens.stop_tokens,
            special_tokens=self._tokens.special_tokens,
            control_texts=self._tokens.control_texts,
            control_tokens=self.options["control_tokens"],
            dropped_content=self.options["dropped_content"],
        )

    def call_grammar(self, prompt_format: PromptFormat, names: Sequence[str]) -> str | None:
        """EBNF grammar of a call of one of these tools; None where the format cannot be constrained."""
        key = tuple(names)
        if key not in prompt_format.grammars:
            codec = self._tokens
            is_plain = lambda text: not any(map(codec.is_control, codec.encode(text)))  # noqa: E731
            prompt_format.grammars[key] = call_grammar(prompt_format.renderer, names, is_plain)
        return prompt_format.grammars[key]

    def root(self, prompt_format: PromptFormat, location: Location, messages: Sequence[Message], system: str) -> Prompt:
        """The whole history as a fresh prompt."""
        chat = self._to_chat(prompt_format, messages, system)
        self._heads[location.key] = short_history(chat.messages)
        # An impure template, such as one that prints the date, may print another text next time.
        is_alone = chat.images or prompt_format.key is None or not prompt_format.renderer.template.is_pure
        key = None if is_alone else digest_parts(chat.messages, prompt_format.key or b"")
        known = None if key is None else self._shared_prompts.roots.get(key)
        if known is None:
            rendered = prompt_format.renderer.root(chat.messages)
            prompt = self._encode(prompt_format, rendered, chat)
            if key is not None:
                self._shared_prompts.roots.put(key, (prompt, len(rendered.text)), len(prompt.ids))
        else:
            prompt, characters = known
            self._characters += characters
            self._encoded += len(prompt.ids)
            place_images(prompt.ids, (), self._expander)  # who encoded it may have known no placeholders
        return prompt._replace(ids=prompt.ids[:])  # a copy: others share it

    def delta(
        self, prompt_format: PromptFormat, parent: Turn, location: Location, messages: Sequence[Message], system: str
    ) -> Prompt:
        """The prompt behind the sampled ids of `parent`; `TemplateError` if the template cannot express it."""
        sampled = parent.completion.output_ids
        if self._expander is not None and any(token in sampled for token in self._expander.media_ids):
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
        self._heads[location.key] = short_history(head, new.messages)
        stop = parent.completion.last_stop
        try:
            delta = prompt_format.renderer.delta(
                [*head, turn],
                new.messages,
                whole=whole,
                emitted=None if stop is None else self._tokens.token_text(stop),
                truncated=stop is None,
            )
            return self._encode(prompt_format, delta, new)
        except TemplateError as error:
            error.index = location.first_new
            raise

    def _encode(self, prompt_format: PromptFormat, rendered: Rendered, chat: ChatConversation) -> Prompt:
        ids = self._tokens.encode(rendered.text, rendered.literal)
        self._characters += len(rendered.text)
        self._encoded += len(ids)
        images: list[PreparedImage] = []
        if chat.images:
            if self._expander is None:
                count = f"{len(chat.images)} image{'s' * (len(chat.images) > 1)}"
                raise MediaError(
                    f"the prompt has {count}, but the model was given no processor: pass processor= with the folder or "
                    "hub id of the served vision-language model"
                )
            for role in {message["role"] for message in chat.messages if isinstance(message["content"], list)}:
                self._check_images(prompt_format, self._expander, role)
            images = list(map(self.prepare_image, chat.images))
        media = place_images(ids, images, self._expander)
        return Prompt(ids=ids, media=media, open=prompt_format.renderer.report.opened_tags(rendered.text))

    def _check_images(self, prompt_format: PromptFormat, expander: ImageExpander, role: str) -> None:
        """Refuse images that the template would reorder, drop or repeat in messages of a role."""
        if (prompt_format, role) not in self._image_problems:
            placeholder = self._tokens.token_text(expander.placeholder_id)
            problem = image_problem(lambda probe: prompt_format.renderer.root(probe).text, placeholder, role)
            self._image_problems[prompt_format, role] = problem
        if (problem := self._image_problems[prompt_format, role]) is not None:
            raise MediaError(f"images cannot be exact with this chat template: it {problem}")

    def find_problem(self, prompt_format: PromptFormat, part: str | Image, role: str) -> str | None:
        """Why a part cannot be shown in a message of a role (`user`, or `tool` for results); None if it can."""
        try:
            if isinstance(part, Image):
                self.prepare_image(part)
                if self._expander is not None:
                    self._check_images(prompt_format, self._expander, role)
            elif self.options["control_tokens"] == ControlTokens.ERROR:
                prompt_format.renderer.initial([{"role": "user", "content": part}])
        except MediaError as error:
            return str(error)
        except ControlTokenError:  # whose words spell the token, too
            return "it spells a control token"
        return None

    def knows_image(self, image: Image) -> bool:
        """True for an image that `prepare_image` has seen."""
        return self._image_key(image) in self._entered

    def _image_key(self, image: Image) -> tuple[bytes, int | None, ImageEncoding]:
        return image.key, self.options["max_image_pixels"], ImageEncoding(self.options["image_encoding"])

    def prepare_image(self, image: Image) -> PreparedImage:
        """Decode, convert and size an image, once; from any thread. `MediaError` if it cannot be shown."""
        if image.problem or self._expander is None:
            raise MediaError(image.problem or "this model takes text only")
        key = self._image_key(image)
        _, most, encoding = key
        if key not in self._entered:  # read ahead, or shown again by a new root
            try:
                self._entered[key] = self._expander.prepare(image.data, max_pixels=most, encoding=encoding)
            except MediaError as error:
                self._entered[key] = str(error)
        entered = self._entered[key]
        if isinstance(entered, str):
            raise MediaError(entered)
        return entered

    def _to_chat(self, prompt_format: PromptFormat, messages: Sequence[Message], system: str) -> ChatConversation:
        return to_chat(messages, system, name_call=self.calls.in_history(lambda: prompt_format.call_ids))

    def estimate_tokens(self, size: int) -> int:
        """A guess at the tokens of so many bytes, at the characters of a token of this episode so far (4 at first)."""
        # Never tokenised: the SDK asks before every model call.
        return round(size * self._encoded / self._characters if self._encoded else size / 4.0)


def drops_reasoning(prompt_format: PromptFormat, new: Sequence[Message]) -> bool:
    """True if the template drops earlier reasoning when these messages arrive."""
    flags = prompt_format.renderer.report.flags
    has_user_text = any(message.parts or not message.results for message in new)
    return Flag.DROPS_REASONING_AT_TOOL in flags or (has_user_text and Flag.DROPS_REASONING_AT_USER in flags)
