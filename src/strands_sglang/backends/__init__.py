"""Backends: the contract, and the ones that come with the package.

A conversation takes any `Backend`. A client that only has `generate(input_ids, **fields)` with the fields and answers
of SGLang's `/generate` is adapted by `as_backend`. Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clients import client_class
    from .contract import (
        CONSTRAINTS,
        Backend,
        BackendInfo,
        Capabilities,
        GenerateAnswer,
        GenerateRequest,
        LogprobKind,
        PromptIds,
        PromptScoring,
        SamplingParams,
        ScoredPrompt,
    )
    from .wrapper import BackendWrapper, as_backend

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
    "client_class",
]


_ELSEWHERE = {"BackendWrapper": "wrapper", "as_backend": "wrapper", "client_class": "clients"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_ELSEWHERE.get(name, 'contract')}")
    value = globals()[name] = getattr(module, name)
    return value
