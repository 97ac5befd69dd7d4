"""What users of the package test their own environments and reward functions with: no server, no tokenizer."""

from __future__ import annotations

from .contracts import EnvironmentContract, RewardFunctionContract, answered
from .sandboxes import FolderSandbox, SandboxContract
from .scripted import ScriptedCall, ScriptedModel, ScriptedReply, call, reply

__all__ = [
    "EnvironmentContract",
    "FolderSandbox",
    "RewardFunctionContract",
    "SandboxContract",
    "ScriptedCall",
    "ScriptedModel",
    "ScriptedReply",
    "answered",
    "call",
    "reply",
]
