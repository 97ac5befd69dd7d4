"""A Strands model provider over SGLang's native `/generate` that keeps exact token trajectories.

A name is imported when it is first used: a command that needs none of them starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import compat

compat.warn_of_upstream()
compat.install(__name__, compat.MODULES)

if TYPE_CHECKING:
    from .backends.clients import get_client, get_client_from_slime_args, get_tokenizer
    from .backends.sglang import SGLangClient
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
    from .exceptions import ToolLimitReachedError as LoopLimitReachedError
    from .model import SGLangModel, TokenModel
    from .tool_limiter import ToolLimiter
    from .tool_limiter import ToolLimiter as LoopLimiter
    from .tool_parsers import ToolParser, ToolParseResult, get_tool_parser, register_tool_parser
    from .trajectory import Token, TokenManager, Trajectory, TrajectoryForest, WeightSpan
    from .trajectory import TokenManager as Rollout
    from .trajectory.packed import decode_routed_experts

__all__ = [
    "ContextOverflowError",
    "ControlTokenError",
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

_MODULES = {
    "backends.clients": ("get_client", "get_client_from_slime_args", "get_tokenizer"),
    "backends.sglang": ("SGLangClient",),
    "trajectory.packed": ("decode_routed_experts",),
    "backends.vllm": ("VLLMClient",),
    "model": ("SGLangModel", "TokenModel"),
    "tool_limiter": ("ToolLimiter",),
    "tool_parsers": ("ToolParser", "ToolParseResult", "get_tool_parser", "register_tool_parser"),
    "trajectory": ("Token", "TokenManager", "Trajectory", "TrajectoryForest", "WeightSpan"),
}
_ALIASES = compat.MODULES["limiter"] | compat.MODULES["rollout"]
"""Names of strands-sglang 0.4.3 to 0.6 for what has another name here; `docs/migration.md` lists them."""


def __getattr__(name: str) -> Any:
    if name in __all__:  # whatever no other module has is an error
        old = _ALIASES.get(name)
        module = next((module for module, names in _MODULES.items() if name in names), "exceptions")
        value = compat.object_at(old or f"{__name__}.{module}:{name}")
    elif name in (*_MODULES, *compat.MODULES, "exceptions"):
        return import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
