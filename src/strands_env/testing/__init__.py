"""What users of the package test their own environments and reward functions with: no server, no tokenizer."""

from __future__ import annotations

from .scripted import ScriptedModel, ScriptedReply, call, reply

__all__ = ["ScriptedModel", "ScriptedReply", "call", "reply"]
