"""Choosing the tool parser that reads what a chat template prints.

A wrong parser finds no calls and every reward becomes zero, without an error. So the template is asked: it prints one
structured call, and a parser fits when it reads exactly that call back.
"""

from __future__ import annotations

import logging

from ..exceptions import ToolParserError
from ..template import DeltaRenderer
from ..tool_parsers import ToolParser, get_tool_parser, list_tool_parsers

logger = logging.getLogger(__name__)

_NAME = "probe_tool"
_ARGUMENTS = {"city": "Zürich", "note": "two words"}


def reads_call(parser: ToolParser, printed: str) -> bool:
    """Whether the parser reads the probe call back."""
    calls = parser.parse(printed)
    return len(calls) == 1 and not calls[0].is_error and (calls[0].name, calls[0].input) == (_NAME, _ARGUMENTS)


def choose_tool_parser(renderer: DeltaRenderer) -> ToolParser:
    """The registered parser that reads the calls this template prints.

    Raises:
        ToolParserError: No parser does, or the template prints no calls to judge by.
    """
    printed = renderer.printed_call(_NAME, _ARGUMENTS)
    for name in list_tool_parsers() if printed is not None else ():
        parser = get_tool_parser(name)
        if reads_call(parser, str(printed)):
            logger.debug("tool_parser=<%s> | chosen by what the chat template prints", name)
            return parser
    shown = "prints no structured calls" if printed is None else f"prints calls as {printed!r}"
    raise ToolParserError(
        f"no tool parser was given and none can be chosen: this chat template {shown}; "
        f"pass tool_parser=get_tool_parser(name) with one of {list_tool_parsers()}"
    )


def check_tool_parser(parser: ToolParser, renderer: DeltaRenderer) -> None:
    """Warn when a given parser does not read the calls this template prints."""
    printed = renderer.printed_call(_NAME, _ARGUMENTS)
    if printed is not None and not reads_call(parser, printed):
        logger.warning(
            "tool_parser=<%s>, printed_call=<%s> | the tool parser does not read what the chat template prints; "
            "the model's calls will probably not be found",
            type(parser).__name__,
            printed,
        )
