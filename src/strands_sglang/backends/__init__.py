"""Backends: the contract, and the ones that come with the package.

A conversation takes any `Backend`. A client that only has `generate(input_ids, **fields)` with the fields and answers
of SGLang's `/generate` is adapted by `as_backend`.
"""

from .clients import client_class
from .contract import (
    CONSTRAINTS,
    Backend,
    BackendInfo,
    Capabilities,
    GenerateAnswer,
    GenerateClient,
    GenerateRequest,
    LogprobKind,
    PromptScoring,
    SamplingParams,
    ScoredPrompt,
    token_array,
)
from .recording import RecordingBackend, ReplayBackend
from .tinker import TinkerClient
from .wrapper import BackendWrapper, as_backend

__all__ = [
    "CONSTRAINTS",
    "Backend",
    "BackendInfo",
    "BackendWrapper",
    "Capabilities",
    "GenerateAnswer",
    "GenerateClient",
    "GenerateRequest",
    "LogprobKind",
    "PromptScoring",
    "RecordingBackend",
    "ReplayBackend",
    "SamplingParams",
    "ScoredPrompt",
    "TinkerClient",
    "as_backend",
    "client_class",
    "token_array",
]
