"""Tool calls as a chat template prints them: which parser reads them, and which ids they have.

A wrong parser finds no calls and every reward becomes zero, without an error. So the template is asked: it prints one
structured call, and a parser fits when it reads exactly that call back.

Some templates are particular about call ids: Kimi K2 prints the tool's name as part of the id and nowhere else, and
Mistral takes nine ASCII letters and digits only. Calls sampled here have such ids; those of a supplied history get
them.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ..exceptions import ToolParserError
from ..template import DeltaRenderer
from ..template.reasoning import REASONING_TAGS
from ..template.step import common_prefix
from ..tool_parsers import TOOL_PARSER_REGISTRY, ParameterTypes, ToolParser, list_tool_parsers
from ..tool_parsers.json_calls import NINE_ALPHANUMERICS
from ..trajectory import Call, ToolCall
from .messages import ShownCall

logger = logging.getLogger(__name__)

INVALID_TOOL_NAME = "INVALID_TOOL_NAME"
"""The SDK's replacement for a tool name that it refuses."""

_LONG_ID = "call_0123456789abcdef01234567"  # such as other providers make
_PLAIN_NAME = re.compile(r"[\w-]+")

_warned: set[tuple[type[ToolParser], PrintedCalls]] = set()

_NAME = "probe_tool"
_ARGUMENTS = {"city": "Zürich", "note": "two words"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedCalls:
    """The form in which a chat template prints a structured call.

    Attributes:
        texts: The call as printed, with an ordinary call id and with one of the form `functions.NAME:INDEX`.
    """

    name: str = _NAME
    arguments: Mapping[str, Any] = field(default_factory=lambda: _ARGUMENTS, compare=False)
    texts: tuple[str, ...]

    @classmethod
    def of(cls, renderer: DeltaRenderer, name: str = _NAME, arguments: Mapping[str, Any] = _ARGUMENTS) -> PrintedCalls:
        """Ask the template."""
        texts = (renderer.printed_call(name, arguments, call_id) for call_id in (None, function_id(name, 0)))
        printed = tuple(dict.fromkeys(text for text in texts if text is not None))
        return cls(name=name, arguments=arguments, texts=printed)

    def read_by(self, parser: ToolParser) -> bool:
        """True if the parser reads the call in one of the two forms."""
        return any(self._reads(parser, text) for text in self.texts)

    def need_function_ids(self, parser: ToolParser) -> bool:
        """True if the tool's name is printed only as part of the id (Kimi K2), so that ids have to have that form."""
        return len(self.texts) > 1 and not self._reads(parser, self.texts[0]) and self._reads(parser, self.texts[1])

    def _reads(self, parser: ToolParser, printed: str) -> bool:
        # A stop token that ends the call (gpt-oss, GigaChat) is sampled and read, but not part of what was printed.
        for text in (printed, printed + parser.tool_end_token):
            calls = [(call.raw, call.name, call.input) for call in parser.parse(text)]
            if calls == [(None, self.name, self.arguments)]:
                return True
        return False


class CallIdForm(StrEnum):
    """The ids that a chat template takes."""

    ANY = "any"
    """Ids are printed as they are, or not at all."""
    FUNCTION = "function"
    """`functions.NAME:INDEX` (Kimi K2)."""
    NINE_ALPHANUMERICS = "nine_alphanumerics"
    """Nine ASCII letters and digits (Mistral)."""

    @classmethod
    def of(cls, renderer: DeltaRenderer) -> CallIdForm:
        """Ask the template; `FUNCTION` is found with the parser."""
        if renderer.printed_call(_NAME, _ARGUMENTS) is None:
            return cls.ANY  # no calls are printed at all
        takes_long = renderer.printed_call(_NAME, _ARGUMENTS, call_id=_LONG_ID) is not None
        return cls.ANY if takes_long else cls.NINE_ALPHANUMERICS


class CallIds:
    """Ids and names of tool calls for the template: as the model wrote them, not as the SDK rewrote them."""

    def __init__(self) -> None:
        self.sampled: dict[str, ToolCall] = {}
        """Calls that were sampled here, by id."""

    def in_history(self, form: Callable[[], CallIdForm]) -> Callable[[Call], ShownCall]:
        """Names the calls of a whole history, one after the other.

        `form` tells which ids the template takes; it is asked only if there are calls that were not sampled here.
        """
        count = itertools.count()

        def name_call(call: Call) -> ShownCall:
            index, sampled = next(count), self.sampled.get(call.id)
            if sampled is not None:
                return ShownCall(sampled.shown_id, sampled.name if call.name == INVALID_TOOL_NAME else call.name)
            if form() is CallIdForm.FUNCTION:
                return ShownCall(function_id(call.name, index), call.name)
            if form() is CallIdForm.NINE_ALPHANUMERICS and not NINE_ALPHANUMERICS.fullmatch(call.id):
                return ShownCall(f"hist{index:05d}", call.name)
            return ShownCall(call.id, call.name)

        return name_call


def function_id(name: str, index: int) -> str:
    """A call id of the form Kimi K2 writes; the index counts all calls of a conversation."""
    return f"functions.{name}:{index}"


def check_names(parser: ToolParser, renderer: DeltaRenderer) -> None:
    """Refuse, with ToolParserError, a tool of which a name is not read back as the template prints it.

    Formats that print the names of tools and parameters bare cannot express every one, and some give a name a special
    meaning (`all` in Functionary); each call of such a tool would be malformed, or none.
    """
    printed = PrintedCalls.of(renderer)
    if not printed.read_by(parser):  # not the parser of this template, of which the user was warned
        return

    @functools.cache
    def is_read(name: str, key: str) -> bool:
        if not _PLAIN_NAME.fullmatch(name + key):
            return False
        # Templates print letters as they are, so they need not be asked about each name of them.
        texts = tuple(text.replace("city", key).replace(_NAME, name) for text in printed.texts)
        arguments = {key if each == "city" else each: value for each, value in _ARGUMENTS.items()}
        return PrintedCalls(name=name, arguments=arguments, texts=texts).read_by(parser)

    def check(named: str, tool: str, odd: Mapping[str, Any], plain: PrintedCalls) -> None:
        asked = PrintedCalls.of(renderer, tool, odd)
        if asked.texts and not asked.read_by(parser) and plain.read_by(parser):
            raise ToolParserError(
                f"the tool {tool!r} has a {named}, which this model's format of calls cannot express "
                f"({type(parser).__name__}): rename it, e.g. to letters, digits and underscores"
            )

    types = ParameterTypes(renderer.tools)
    for name in [tool["function"]["name"] for tool in renderer.tools or ()]:
        if not is_read(name, "city"):
            check("name", name, _ARGUMENTS, printed)
        for key, is_outer in types.names(name).items():
            if not (is_read(_NAME, key) if is_outer else _PLAIN_NAME.fullmatch(key)):
                odd, plain = ({each: "x"} if is_outer else {"x": {each: "x"}} for each in (key, "x"))
                check(f"parameter named {key!r}", name, odd, PrintedCalls.of(renderer, name, plain))


_PROBE = {"x": "y"}
_PROBE_PRINTED = re.compile(r"\{\s*\"x\"\s*:\s*\"y\"\s*\}")
_JSON_RULES = r"""
object ::= "{" space (pair ("," space pair)*)? "}"
pair ::= string space ":" space value space
array ::= "[" space (value space ("," space value space)*)? "]"
value ::= object | array | string | "true" | "false" | "null" | number
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
string ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
space ::= [ \n\t]{0,20}
rest ::= [^\x00]*
"""


def call_grammar(renderer: DeltaRenderer, names: Sequence[str], is_plain: Callable[[str], bool]) -> str | None:
    """EBNF grammar of a reply that is a call of one of these tools; None where it cannot be spelled.

    What stands before the arguments is as the template prints it. Arguments in JSON are any object, and end the reply;
    others are free.

    Args:
        is_plain: Tells whether a text has no control tokens, which a grammar cannot spell.
    """
    calls = []
    for name in names:
        empty, printed = (renderer.printed_call(name, arguments, function_id(name, 0)) for arguments in ({}, _PROBE))
        if not printed or empty is None:
            return None
        match = _PROBE_PRINTED.search(printed)
        head = printed[: common_prefix(empty, printed) if match is None else match.start()]
        tail = "" if match is None else printed[match.end() :]
        for _, closing in REASONING_TAGS:  # the prompt opened a block, which an empty turn closes first
            head = head.rpartition(closing)[2]
        if name not in head or not is_plain(head + tail):
            return None
        ending = "rest" if match is None else f"object {json.dumps(tail)}"
        calls.append(f"space {json.dumps(head.lstrip())} {ending}")
    return f"root ::= {' | '.join(calls)}{_JSON_RULES}" if calls else None


def find_tool_parser(printed: PrintedCalls) -> ToolParser | None:
    """The registered parser that reads this template's calls; None if none does, or it prints none."""
    for family in dict.fromkeys(TOOL_PARSER_REGISTRY[name] for name in list_tool_parsers()):
        parser = family()
        if printed.read_by(parser):
            logger.debug("tool_parser=<%s> | chosen by what the chat template prints", family.__name__)
            return parser
    return None


def choose_tool_parser(printed: PrintedCalls) -> ToolParser:
    """The parser of `find_tool_parser`, or `ToolParserError`."""
    if (parser := find_tool_parser(printed)) is not None:
        return parser
    shown = f"prints calls as {printed.texts[0]!r}" if printed.texts else "prints no structured calls"
    raise ToolParserError(
        f"no tool parser was given and none can be chosen: this chat template {shown}; "
        f"pass tool_parser= with one of {', '.join(list_tool_parsers())}"
    )


def check_tool_parser(parser: ToolParser, printed: PrintedCalls) -> None:
    """Warn, once a process, when a given parser does not read the calls this template prints."""
    if printed.texts and not printed.read_by(parser) and (type(parser), printed) not in _warned:
        _warned.add((type(parser), printed))
        logger.warning(
            "tool_parser=<%s>, printed_call=<%s> | the tool parser does not read calls as the template prints them; "
            "the model's calls will probably not be found",
            type(parser).__name__,
            printed.texts[0],
        )
