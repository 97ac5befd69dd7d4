"""Backends: the contract, and the ones that come with the package.

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
    from .http.server import ServerClient
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
    "client_class",
]


_ELSEWHERE = {"BackendWrapper": "wrapper", "PromptIds": "prompt"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_ELSEWHERE.get(name, 'contract')}")
    value = globals()[name] = getattr(module, name)
    return value


def as_backend(client: Any) -> Backend:
    """A client as a backend: itself if it is one, else an adapter of its `generate`; `TypeError` if it is neither.

    A `generate` of a backend that is more than a view of its `ask` (a subclass or a test replaced it) takes precedence.
    """
    from .contract import Backend

    generate = getattr(client, "generate", None)
    if isinstance(client, Backend) and (generate is None or getattr(generate, "calls_ask", None) is True):
        return client
    if not callable(generate):
        raise TypeError(f"got client={client!r}, expected a Backend, or something with `generate`")
    from .sglang.adapter import GenerateAdapter

    return GenerateAdapter(client)


def client_class(base_url: str, plain: str = "sglang") -> tuple[type[ServerClient], str]:
    """The client class for an address, and the address without its marking.

    `vllm+http://host:8000` is vLLM, `sglang+http://...` SGLang, a plain address of the kind `plain`; else `ValueError`.
    """
    kind, marked, rest = str(base_url).partition("+http")
    kind, rest = (kind, f"http{rest}") if marked else (plain, str(base_url))
    if kind == "vllm":
        from .vllm import VLLMClient

        return VLLMClient, rest
    if kind == "sglang":
        from .sglang import SGLangClient

        return SGLangClient, rest
    raise ValueError(f"base_url={base_url!r}: expected http://..., sglang+http://... or vllm+http://...")
