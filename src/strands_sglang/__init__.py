"""A Strands model provider over SGLang's native `/generate` that keeps exact token trajectories.

A name is imported when it is first used: a command that needs none of them starts at once. The modules `client`,
`limiter`, `rollout`, `sglang`, `token` and `utils` have upstream's names and hold nothing of their own.
"""

from typing import TYPE_CHECKING

from .compat import names_on_use, warn_of_upstream

warn_of_upstream()

if TYPE_CHECKING:
    from .backends.clients import get_client, get_client_from_slime_args, get_tokenizer
    from .backends.sglang.client import SGLangClient
    from .backends.vllm import VLLMClient
    from .exceptions import (
        ContextOverflowError,
        ControlTokenError,
        LostContentError,
        MaxMessagesReachedError,
        MaxToolCallsReachedError,
        MaxToolIterationsReachedError,
        MaxTotalTokensReachedError,
        MessageConversionError,
        SGLangAbortedError,
        SGLangAnswerLimitError,
        SGLangClientError,
        SGLangConnectionError,
        SGLangContextLengthError,
        SGLangDecodingError,
        SGLangHTTPError,
        SGLangRequestError,
        SGLangThrottledError,
        StrandsSGLangError,
        StructuredOutputError,
        TemplateError,
        TokenBudgetReachedError,
        ToolLimitReachedError,
        ToolParserError,
        TrajectoryError,
    )
    from .limiter import LoopLimiter, LoopLimitReachedError
    from .limits import Limits
    from .model import SGLangModel, TokenModel
    from .rollout import Rollout
    from .tool_limiter import ToolLimiter
    from .tool_parsers import ToolParser, ToolParseResult, get_tool_parser, register_tool_parser
    from .trajectory import Token, TokenManager, Trajectory, TrajectoryForest, WeightSpan
    from .trajectory.packed import decode_routed_experts

__all__ = [
    "ContextOverflowError",
    "ControlTokenError",
    "Limits",
    "LoopLimitReachedError",
    "LoopLimiter",
    "LostContentError",
    "MaxMessagesReachedError",
    "MaxToolCallsReachedError",
    "MaxToolIterationsReachedError",
    "MaxTotalTokensReachedError",
    "MessageConversionError",
    "Rollout",
    "SGLangAbortedError",
    "SGLangAnswerLimitError",
    "SGLangClient",
    "SGLangClientError",
    "SGLangConnectionError",
    "SGLangContextLengthError",
    "SGLangDecodingError",
    "SGLangHTTPError",
    "SGLangModel",
    "SGLangRequestError",
    "SGLangThrottledError",
    "StrandsSGLangError",
    "StructuredOutputError",
    "TemplateError",
    "Token",
    "TokenBudgetReachedError",
    "TokenManager",
    "TokenModel",
    "ToolLimitReachedError",
    "ToolLimiter",
    "ToolParseResult",
    "ToolParser",
    "ToolParserError",
    "Trajectory",
    "TrajectoryError",
    "TrajectoryForest",
    "VLLMClient",
    "WeightSpan",
    "decode_routed_experts",
    "get_client",
    "get_client_from_slime_args",
    "get_tokenizer",
    "get_tool_parser",
    "register_tool_parser",
]

# The SDK alone takes 0.4 s to import, so a command that needs none of these names does without it.
__getattr__, __dir__ = names_on_use(
    __name__,
    {
        ".exceptions": __all__,  # but for these:
        ".backends.clients": ("get_client", "get_client_from_slime_args", "get_tokenizer"),
        ".backends.sglang.client": ("SGLangClient",),
        ".backends.vllm": ("VLLMClient",),
        ".limiter": ("LoopLimiter", "LoopLimitReachedError"),
        ".model": ("SGLangModel", "TokenModel"),
        ".limits": ("Limits",),
        ".rollout": ("Rollout",),
        ".tool_limiter": ("ToolLimiter",),
        ".tool_parsers": ("ToolParser", "ToolParseResult", "get_tool_parser", "register_tool_parser"),
        ".trajectory": ("Token", "TokenManager", "Trajectory", "TrajectoryForest", "WeightSpan"),
        ".trajectory.packed": ("decode_routed_experts",),
    },
)
