"""Tool parsers: sampled text to tool calls, strictly.

A call is parsed exactly as it was written or reported as malformed. `get_tool_parser(name)` makes a parser,
`register_tool_parser(name)` adds one.
"""

from strands_sglang.tool_parsers.bare import BareToolParser
from strands_sglang.tool_parsers.base import (
    TOOL_PARSER_REGISTRY,
    UNKNOWN_TOOL_NAME,
    Block,
    Draft,
    ParseOutput,
    ToolParser,
    ToolParseResult,
    UnknownToolParserError,
    as_tool_parser,
    get_tool_parser,
    list_tool_parsers,
    register_tool_parser,
)
from strands_sglang.tool_parsers.deepseek import DeepSeekV3ToolParser, DeepSeekV31ToolParser, DeepSeekV32ToolParser
from strands_sglang.tool_parsers.gemma4 import Gemma4ToolParser
from strands_sglang.tool_parsers.glm import GLMToolParser
from strands_sglang.tool_parsers.gpt_oss import GptOssToolParser
from strands_sglang.tool_parsers.hermes import (
    GigaChatToolParser,
    HermesToolParser,
    InternS1ToolParser,
    LongCatToolParser,
)
from strands_sglang.tool_parsers.json_calls import (
    ApertusToolParser,
    CallKeys,
    CommandRPlusToolParser,
    CommandToolParser,
    GraniteToolParser,
    JSONListToolParser,
    MiniMaxM1ToolParser,
    NemotronToolParser,
    XLAMToolParser,
)
from strands_sglang.tool_parsers.kimi_k2 import KimiK2ToolParser
from strands_sglang.tool_parsers.llama import LlamaJSONToolParser
from strands_sglang.tool_parsers.minimax_m2 import MiniMaxM2ToolParser
from strands_sglang.tool_parsers.mistral import MistralToolParser
from strands_sglang.tool_parsers.olmo3 import Olmo3ToolParser
from strands_sglang.tool_parsers.qwen_xml import MiMoToolParser, QwenXMLToolParser, SeedOSSToolParser
from strands_sglang.tool_parsers.schema import ParameterTypes
from strands_sglang.tool_parsers.sections import CallTokens, Header, SectionToolParser
from strands_sglang.tool_parsers.tags import TaggedToolParser, TagGrammar

__all__ = [
    "TOOL_PARSER_REGISTRY",
    "UNKNOWN_TOOL_NAME",
    "ApertusToolParser",
    "BareToolParser",
    "Block",
    "CallKeys",
    "CallTokens",
    "CommandRPlusToolParser",
    "CommandToolParser",
    "DeepSeekV3ToolParser",
    "DeepSeekV31ToolParser",
    "DeepSeekV32ToolParser",
    "Draft",
    "GLMToolParser",
    "Gemma4ToolParser",
    "GigaChatToolParser",
    "GptOssToolParser",
    "GraniteToolParser",
    "Header",
    "HermesToolParser",
    "InternS1ToolParser",
    "JSONListToolParser",
    "KimiK2ToolParser",
    "LlamaJSONToolParser",
    "LongCatToolParser",
    "MiMoToolParser",
    "MiniMaxM1ToolParser",
    "MiniMaxM2ToolParser",
    "MistralToolParser",
    "NemotronToolParser",
    "Olmo3ToolParser",
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
    "XLAMToolParser",
    "as_tool_parser",
    "get_tool_parser",
    "list_tool_parsers",
    "register_tool_parser",
]
