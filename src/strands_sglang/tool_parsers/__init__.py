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
from strands_sglang.tool_parsers._sections import CallTokens, Header, SectionToolParser
from strands_sglang.tool_parsers._tagged import TaggedToolParser
from strands_sglang.tool_parsers._tags import TagGrammar
from strands_sglang.tool_parsers.deepseek import DeepSeekV3ToolParser, DeepSeekV31ToolParser
from strands_sglang.tool_parsers.glm import GLMToolParser
from strands_sglang.tool_parsers.hermes import HermesToolParser
from strands_sglang.tool_parsers.kimi_k2 import KimiK2ToolParser
from strands_sglang.tool_parsers.minimax_m2 import MiniMaxM2ToolParser
from strands_sglang.tool_parsers.qwen_xml import QwenXMLToolParser, SeedOSSToolParser

__all__ = [
    "TOOL_PARSER_REGISTRY",
    "UNKNOWN_TOOL_NAME",
    "Block",
    "CallTokens",
    "DeepSeekV3ToolParser",
    "DeepSeekV31ToolParser",
    "Draft",
    "GLMToolParser",
    "Header",
    "HermesToolParser",
    "KimiK2ToolParser",
    "MiniMaxM2ToolParser",
    "ParameterTypes",
    "ParseOutput",
    "QwenXMLToolParser",
    "SectionToolParser",
    "SeedOSSToolParser",
    "TagGrammar",
    "TaggedToolParser",
    "ToolParseResult",
    "ToolParser",
    "UnknownToolParserError",
    "get_tool_parser",
    "list_tool_parsers",
    "register_tool_parser",
]
