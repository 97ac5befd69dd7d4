"""Test tools for environments and reward functions of your own, without a server or a tokenizer."""

from __future__ import annotations

from strands_env.rewards.proof import answered

from .contracts import EnvironmentContract, RewardContract, RewardFunctionContract
from .sandboxes import SandboxContract
from .scripted import ScriptedCall, ScriptedModel, ScriptedReply, call, reply

__all__ = [
    "EnvironmentContract",
    "RewardContract",
    "RewardFunctionContract",
    "SandboxContract",
    "ScriptedCall",
    "ScriptedModel",
    "ScriptedReply",
    "answered",
    "call",
    "reply",
]
