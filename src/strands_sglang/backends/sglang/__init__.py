"""The asynchronous client of SGLang's native API: one prompt of ids in, one checked answer out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import NON_RETRYABLE_STATUS_CODES, SGLangClient
    from .shared import get_client, get_client_from_slime_args, get_tokenizer

__all__ = [
    "NON_RETRYABLE_STATUS_CODES",
    "SGLangClient",
    "get_client",
    "get_client_from_slime_args",
    "get_tokenizer",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: with another client than this one, the HTTP stack is never loaded."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'shared' if name.startswith('get_') else 'client'}"), name)
