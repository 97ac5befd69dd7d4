"""Test tools for environments and reward functions of your own, without a server or a tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strands_sglang.compat import names_on_use

if TYPE_CHECKING:
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

# A scripted model needs no sandbox.
__getattr__, __dir__ = names_on_use(
    __name__,
    {
        "strands_env.rewards.proof": ("answered",),
        ".contracts": ("EnvironmentContract", "RewardContract", "RewardFunctionContract"),
        ".sandboxes": ("SandboxContract",),
        ".scripted": ("ScriptedCall", "ScriptedModel", "ScriptedReply", "call", "reply"),
    },
)
