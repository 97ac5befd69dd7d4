"""Tool parsers: sampled text to tool calls, strictly.

A call is parsed exactly as it was written or reported as malformed. `get_tool_parser(name)` makes a parser,
`register_tool_parser(name)` adds one.
"""

from strands_sglang.tool_parsers._base import Block, Draft, ToolParser
from strands_sglang.tool_parsers._registry import (
    TOOL_PARSER_REGISTRY,
    UnknownToolParserError,
    get_tool_parser,
    list_tool_parsers,
    register_tool_parser,
)
from strands_sglang.tool_parsers._result import UNKNOWN_TOOL_NAME, ParseOutput, ToolParseResult
from strands_sglang.tool_parsers._schema import ParameterTypes
from strands_sglang.tool_parsers.glm import GLMToolParser
from strands_sglang.tool_parsers.hermes import HermesToolParser
from strands_sglang.tool_parsers.kimi_k2 import KimiK2ToolParser
from strands_sglang.tool_parsers.qwen_xml import QwenXMLToolParser

__all__ = [
    "TOOL_PARSER_REGISTRY",
    "UNKNOWN_TOOL_NAME",
    "Block",
    "Draft",
    "GLMToolParser",
    "HermesToolParser",
    "KimiK2ToolParser",
    "ParameterTypes",
    "ParseOutput",
    "QwenXMLToolParser",
    "ToolParseResult",
    "ToolParser",
    "UnknownToolParserError",
    "get_tool_parser",
    "list_tool_parsers",
    "register_tool_parser",
]
