"""A Strands model provider over SGLang's native `/generate` that keeps exact token trajectories.

A name is imported when it is first used: a command that needs none of them starts at once. The modules `client`,
`limiter`, `rollout`, `sglang`, `token` and `utils` have upstream's names and hold nothing of their own.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .compat import warn_of_upstream

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

# The module of a name; names that are missing here are in `exceptions`.
_HOMES = {
    **dict.fromkeys(("get_client", "get_client_from_slime_args", "get_tokenizer"), "backends.clients"),
    "SGLangClient": "backends.sglang.client",
    "VLLMClient": "backends.vllm",
    **dict.fromkeys(("LoopLimiter", "LoopLimitReachedError"), "limiter"),
    **dict.fromkeys(("SGLangModel", "TokenModel"), "model"),
    "Limits": "limits",
    "Rollout": "rollout",
    "ToolLimiter": "tool_limiter",
    **dict.fromkeys(("ToolParser", "ToolParseResult", "get_tool_parser", "register_tool_parser"), "tool_parsers"),
    **dict.fromkeys(("Token", "TokenManager", "Trajectory", "TrajectoryForest", "WeightSpan"), "trajectory"),
    "decode_routed_experts": "trajectory.packed",
}


def __getattr__(name: str) -> Any:
    # The SDK alone takes 0.4 s to import, so a command that needs none of these names does without it.
    if name in __all__:
        value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'exceptions')}"), name)
    elif not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        value = import_module(f"{__name__}.{name}")  # `import strands_sglang; strands_sglang.client` works upstream
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
