"""Episodes of agents of any make: a command with the address and the key of a gateway session."""

from .harness_env import HarnessEnvironment, HarnessFailedError, ProgramRun
from .recipes import (
    Harness,
    claude_code,
    codex,
    gemini_cli,
    mini_swe_agent,
    mistral_vibe,
    opencode,
    openhands,
    pi,
    qwen_code,
)
from .repository import RepositoryEnvironment

__all__ = [
    "Harness",
    "HarnessEnvironment",
    "HarnessFailedError",
    "ProgramRun",
    "RepositoryEnvironment",
    "claude_code",
    "codex",
    "gemini_cli",
    "mini_swe_agent",
    "mistral_vibe",
    "opencode",
    "openhands",
    "pi",
    "qwen_code",
]
