"""Tool parsers: sampled text to tool calls, strictly.

A call is parsed exactly as it was written or reported as malformed. `get_tool_parser(name)` makes a parser,
`register_tool_parser(name)` adds one.
"""

from .base import (
    TOOL_PARSER_REGISTRY,
    UNKNOWN_TOOL_NAME,
    Block,
    ParseOutput,
    ToolParser,
    ToolParseResult,
    UnknownToolParserError,
    as_tool_parser,
    get_tool_parser,
    list_tool_parsers,
    register_tool_parser,
)
from .gemma4 import Gemma4ToolParser
from .glm import GLMToolParser
from .gpt_oss import GptOssToolParser
from .json_calls import (
    ApertusToolParser,
    BareToolParser,
    CallKeys,
    CommandRPlusToolParser,
    CommandToolParser,
    GigaChatToolParser,
    GraniteToolParser,
    HermesToolParser,
    InternS1ToolParser,
    JSONListToolParser,
    LlamaJSONToolParser,
    LongCatToolParser,
    MiniMaxM1ToolParser,
    NemotronToolParser,
    XLAMToolParser,
)
from .mistral import MistralToolParser
from .olmo3 import Olmo3ToolParser
from .sections import (
    CallTokens,
    DeepSeekV3ToolParser,
    DeepSeekV31ToolParser,
    Header,
    KimiK2ToolParser,
    SectionToolParser,
)
from .tags import (
    DeepSeekV32ToolParser,
    MiMoToolParser,
    MiniMaxM2ToolParser,
    QwenXMLToolParser,
    SeedOSSToolParser,
    TaggedToolParser,
    TagGrammar,
)
from .values import ParameterTypes

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
