"""The asynchronous client of SGLang's native API: one prompt of ids in, one checked answer out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import NON_RETRYABLE_STATUS_CODES, SGLangClient

__all__ = ["NON_RETRYABLE_STATUS_CODES", "SGLangClient"]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: with another client than this one, the HTTP stack is never loaded."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.client"), name)
