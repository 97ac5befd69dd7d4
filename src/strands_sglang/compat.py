"""Names that strands-sglang 0.3 to 0.6 had for what has another name here; `docs/migration.md` lists them.

The modules `strands_sglang.client` and `strands_sglang.utils` are import paths of theirs, over this one.
"""

from .backends.sglang import (
    NON_RETRYABLE_STATUS_CODES,
    SGLangClient,
    get_client,
    get_client_from_slime_args,
    get_tokenizer,
)
from .tool_limiter import ToolLimiter as LoopLimiter
from .tool_limiter import ToolLimitReachedError as LoopLimitReachedError
from .trajectory import TokenManager as Rollout

__all__ = [
    "NON_RETRYABLE_STATUS_CODES",
    "LoopLimitReachedError",
    "LoopLimiter",
    "Rollout",
    "SGLangClient",
    "get_client",
    "get_client_from_slime_args",
    "get_tokenizer",
]
