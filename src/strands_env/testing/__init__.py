"""Test tools for environments and reward functions of your own, without a server or a tokenizer."""

from __future__ import annotations

from .contracts import EnvironmentContract, RewardFunctionContract, answered
from .sandboxes import SandboxContract
from .scripted import ScriptedCall, ScriptedModel, ScriptedReply, call, reply

__all__ = [
    "EnvironmentContract",
    "RewardFunctionContract",
    "SandboxContract",
    "ScriptedCall",
    "ScriptedModel",
    "ScriptedReply",
    "answered",
    "call",
    "reply",
]
