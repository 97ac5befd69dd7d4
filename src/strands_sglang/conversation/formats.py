"""Formats: the renderer and the parser for a set of tools and template arguments, each made and checked once."""

from __future__ import annotations

import logging
import marshal
import threading
import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from strands.types.tools import ToolSpec

from ..cache import Recent
from ..exceptions import MediaError, MessageConversionError
from ..fast_paths import FastPath
from ..template import ChatTemplate, DeltaRenderer, Flag, image_problem, special_values
from ..tokenizer import TokenizerAdapter
from ..tool_parsers import ToolParser
from ..tool_parsers.splitting import ThinkTokens
from ..trajectory import Message, encode_value
from ..trajectory.media import Medium, media_growth
from .messages import format_tool_specs
from .model_options import ReasoningPolicy, SGLangConfig
from .reply_format import choose_reader
from .tool_calls import CallIdForm, call_grammar

logger = logging.getLogger(__name__)

# Options that decide how messages are printed, beside the template's arguments.
_POLICIES: Final = ("reasoning_policy", "control_tokens", "dropped_content")
# Problems with replies, each said once a process.
_warned: set[str] = set()


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


class SharedPrompts:
    """The formats and first prompts that all rollouts of one tokenizer share: a group renders its prompt once.

    A fast path beside rendering each first prompt anew: every rollout has its own model, and thousands of them have the
    same tools and begin alike.

    Attributes:
        formats: Formats by all that they are made from.
        roots: First prompts by format and messages, each with the length of its text; bounded by the number of ids.
            `Prompts` reads and writes them.
    """

    def __init__(self) -> None:
        self.formats: Recent[PromptFormat] = Recent(256)
        self.roots: Recent[tuple[Prompt, int]] = Recent(1 << 19)


_shared: weakref.WeakKeyDictionary[Any, SharedPrompts] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def digest_parts(value: Any, key: bytes = b"") -> bytes | None:
    """Digest of all that a shared entry is made from; None if a part of it cannot be told from others."""
    try:
        # Unlike JSON, it tells all types apart, and it refuses those that it cannot. Version 2 knows no references.
        return blake2b(marshal.dumps(value, 2), digest_size=16, key=key).digest()
    except ValueError:
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptFormat:
    """A set of tools and template arguments: its printer, its parser and findings about both.

    Attributes:
        renderer: Prints prompts and deltas.
        parser: Reads replies.
        needs_function_ids: The template prints the tool's name only as part of the call id.
        key: Digest of all that it was made from; empty if it is not shared.
        roots: First prompts of this and other formats, each with the length of its text; None if it is not shared.
    """

    renderer: DeltaRenderer
    parser: ToolParser
    needs_function_ids: bool = False
    key: bytes = b""
    roots: Recent[tuple[Prompt, int]] | None = None
    _readers: dict[ThinkTokens, ToolParser] = field(default_factory=dict)
    _grammars: dict[tuple[str, ...], str | None] = field(default_factory=dict)
    _image_problems: dict[tuple[str, str], str | None] = field(default_factory=dict)

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

    # A format is shared under its tokenizer, which is therefore handed in: holding it would keep it alive for good.

    def call_grammar(self, names: Sequence[str], tokens: TokenizerAdapter) -> str | None:
        """EBNF grammar of a call of one of these tools; None if the format cannot be constrained."""
        key = tuple(names)
        if key not in self._grammars:
            is_plain = lambda text: not any(map(tokens.is_control, tokens.encode(text)))  # noqa: E731
            self._grammars[key] = call_grammar(self.renderer, names, is_plain)
        return self._grammars[key]

    def check_images(self, placeholder: str, role: str) -> None:
        """Refuse (`MediaError`) images that the template would reorder, drop or repeat in messages of a role."""
        key = placeholder, role
        if key not in self._image_problems:
            problem = image_problem(lambda probe: self.renderer.root(probe).text, placeholder, role)
            self._image_problems[key] = problem
        if (problem := self._image_problems[key]) is not None:
            raise MediaError(f"images cannot be exact with this chat template: it {problem}")

    def drops_reasoning(self, new: Sequence[Message]) -> bool:
        """True if the template drops earlier reasoning when these messages arrive."""
        flags = self.renderer.report.flags
        has_user_text = any(message.parts or not message.results for message in new)
        return Flag.DROPS_REASONING_AT_TOOL in flags or (has_user_text and Flag.DROPS_REASONING_AT_USER in flags)


class Formats:
    """The formats of a conversation.

    Args:
        chat_template: Jinja text to use instead of the tokenizer's, or None.
        tool_parser: The parser to use, or None to choose by the template.
    """

    def __init__(self, tokens: TokenizerAdapter, chat_template: str | None, tool_parser: ToolParser | None) -> None:
        self._tokens = tokens
        self._chat_template = chat_template
        self._tool_parser = tool_parser
        self._formats: dict[bytes, PromptFormat] = {}

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate.from_tokenizer(self._tokens.tokenizer, self._chat_template)

    @cached_property
    def _shared(self) -> SharedPrompts:
        """Formats and first prompts of all rollouts with this tokenizer."""
        with _lock:
            return _shared.setdefault(self._tokens.codec, SharedPrompts())

    @staticmethod
    def key_of(tools: Sequence[ToolSpec], options: SGLangConfig) -> bytes:
        """The tools and all options that decide how they are printed, in bytes."""
        if not isinstance(tools, Sequence):
            raise MessageConversionError(f"tools is {tools!r:.100}, expected a list")
        key = encode_value([list(tools), _template_kwargs(options), [str(options[name]) for name in _POLICIES]])
        return bytes(memoryview(key))  # which is kept: bytes that orjson made hold the 4 KB that they were written in

    def get(self, tool_specs: Sequence[ToolSpec], options: SGLangConfig, key: bytes | None = None) -> PromptFormat:
        """The format for these tools under these options, checked once a process; `key` is their `key_of`.

        Raises:
            TemplateError: The template cannot be used with tools.
            ToolParserError: No parser reads its calls.
        """
        key = self.key_of(tool_specs, options) if key is None else key
        prompt_format = self._formats.get(key)
        if prompt_format is not None:
            return prompt_format
        tools = format_tool_specs(tool_specs) if tool_specs else None
        shared = self._shared_key(tools, options) if FastPath.SHARED_PROMPTS.is_on else None
        prompt_format = None if shared is None else self._shared.formats.get(shared)
        if prompt_format is None:
            prompt_format = self._make(tools, options, shared)
            if shared is not None:
                self._shared.formats.put(shared, prompt_format)
        self._formats[key] = prompt_format
        return prompt_format

    def _shared_key(self, tools: list[dict[str, Any]] | None, options: SGLangConfig) -> bytes | None:
        """Key of a format, of all that it is made from."""
        tokenizer, codec = self._tokens.tokenizer, self._tokens.codec
        template = getattr(tokenizer, "chat_template", None) if self._chat_template is None else self._chat_template
        parser = None if self._tool_parser is None else id(self._tool_parser)  # the format keeps the parser alive
        special = special_values(tokenizer)
        facts = [template, special, list(self._tokens.stop_tokens), codec.vocabulary_size]
        policies = [str(options[name]) for name in _POLICIES]
        return digest_parts([tools, _template_kwargs(options), policies, parser, facts])

    def _make(self, tools: list[dict[str, Any]] | None, options: SGLangConfig, key: bytes | None) -> PromptFormat:
        kwargs = _template_kwargs(options)
        renderer = self._make_renderer(tools, options, kwargs)
        keep = renderer.report.keep_reasoning_kwargs
        if keep and options["reasoning_policy"] is ReasoningPolicy.APPEND and not keep.keys() & kwargs.keys():
            renderer = self._make_renderer(tools, options, {**kwargs, **keep})
        logger.debug("report=<%s> | chat template checked", renderer.report.summary)
        reading = choose_reader(renderer, self._tool_parser)
        if reading.problem and reading.problem not in _warned:
            _warned.add(reading.problem)
            logger.warning("problem=<%s> | replies are shown with markers of the chat template", reading.problem)
        return PromptFormat(
            renderer=renderer,
            parser=reading.parser,
            needs_function_ids=reading.needs_function_ids,
            key=key or b"",
            roots=None if key is None else self._shared.roots,
        )

    def _make_renderer(
        self, tools: list[dict[str, Any]] | None, options: SGLangConfig, kwargs: dict[str, Any]
    ) -> DeltaRenderer:
        return DeltaRenderer(
            self._template,
            tools=tools,
            template_kwargs=kwargs,
            stop_tokens=self._tokens.stop_tokens,
            special_tokens=self._tokens.special_tokens,
            control_texts=self._tokens.control_texts,
            control_tokens=options["control_tokens"],
            dropped_content=options["dropped_content"],
        )


def _template_kwargs(options: SGLangConfig) -> dict[str, Any]:
    thinking = options["enable_thinking"]
    return {**options["chat_template_kwargs"], **({} if thinking is None else {"enable_thinking": thinking})}
