"""What samples: the contract of backends, and the backends that come with the package.

A conversation takes any `Backend`. A client that only has `generate(input_ids, **fields)` with the fields and answers
of SGLang's `/generate` is adapted by `as_backend`. Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .contract import (
        CONSTRAINTS,
        Backend,
        BackendInfo,
        Capabilities,
        GenerateAnswer,
        GenerateRequest,
        LogprobKind,
        PromptScoring,
        SamplingParams,
        ScoredPrompt,
    )
    from .prompt import PromptIds
    from .wrapper import BackendWrapper

__all__ = [
    "CONSTRAINTS",
    "Backend",
    "BackendInfo",
    "BackendWrapper",
    "Capabilities",
    "GenerateAnswer",
    "GenerateRequest",
    "LogprobKind",
    "PromptIds",
    "PromptScoring",
    "SamplingParams",
    "ScoredPrompt",
    "as_backend",
]


_ELSEWHERE = {"BackendWrapper": "wrapper", "PromptIds": "prompt"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_ELSEWHERE.get(name, 'contract')}")
    value = globals()[name] = getattr(module, name)
    return value


def as_backend(client: Any) -> Backend:
    """A client as a backend: itself where it is one, else an adapter of its `generate`.

    A backend may have a `generate` as well, for callers with lists. Where that is more than a view of its `ask` (a
    subclass or a test has replaced it), it is what the caller wants to be called.

    Raises:
        TypeError: It is neither.
    """
    from .contract import Backend

    generate = getattr(client, "generate", None)
    if isinstance(client, Backend) and (generate is None or getattr(generate, "calls_ask", None) is True):
        return client
    if not callable(generate):
        raise TypeError(f"got client={client!r}, expected a Backend, or something with `generate`")
    from .sglang.adapter import GenerateAdapter

    return GenerateAdapter(client)
