"""The asynchronous client of SGLang's native API: one prompt of ids in, one checked answer out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..http.retry import RetryBudget, RetryClass, RetryPolicy
    from .answer import read_answer
    from .client import NON_RETRYABLE_STATUS_CODES, SGLangClient
    from .shared import get_client, get_client_from_slime_args, get_tokenizer

__all__ = [
    "NON_RETRYABLE_STATUS_CODES",
    "RetryBudget",
    "RetryClass",
    "RetryPolicy",
    "SGLangClient",
    "get_client",
    "get_client_from_slime_args",
    "get_tokenizer",
    "read_answer",
]

_MODULES = {
    ".answer": ("read_answer",),
    "..http.retry": ("RetryBudget", "RetryClass", "RetryPolicy"),
    ".shared": ("get_client", "get_client_from_slime_args", "get_tokenizer"),
    ".client": ("NON_RETRYABLE_STATUS_CODES", "SGLangClient"),
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: with another client than this one, the HTTP stack is never loaded."""
    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(module, __name__), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
