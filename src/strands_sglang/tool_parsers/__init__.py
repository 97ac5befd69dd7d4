"""Tool parsers: sampled text to tool calls, strictly.

A call is parsed exactly as it was written or reported as malformed. `get_tool_parser(name)` makes a parser,
`register_tool_parser(name)` adds one. The classes of the families are in the modules of their kind; `glm`, `hermes`,
`kimi_k2` and `qwen_xml` have upstream's names and only import.
"""

from . import gpt_oss, message_formats, notations  # noqa: F401 - their parsers register themselves
from .base import (
    TOOL_PARSER_REGISTRY,
    ToolParser,
    UnknownToolParserError,
    as_tool_parser,
    get_tool_parser,
    list_tool_parsers,
    register_tool_parser,
)
from .calls import UNKNOWN_TOOL_NAME, Block, ParseOutput, ToolParseResult
from .json_calls import BareToolParser, CallKeys, HermesToolParser
from .sections import KimiK2ToolParser, SectionToolParser
from .splitting import ReplyFrame
from .tags import GLMToolParser, QwenXMLToolParser
from .values import ParameterTypes

__all__ = [
    "TOOL_PARSER_REGISTRY",
    "UNKNOWN_TOOL_NAME",
    "BareToolParser",
    "Block",
    "CallKeys",
    "GLMToolParser",
    "HermesToolParser",
    "KimiK2ToolParser",
    "ParameterTypes",
    "ParseOutput",
    "QwenXMLToolParser",
    "ReplyFrame",
    "SectionToolParser",
    "ToolParseResult",
    "ToolParser",
    "UnknownToolParserError",
    "as_tool_parser",
    "get_tool_parser",
    "list_tool_parsers",
    "register_tool_parser",
]
