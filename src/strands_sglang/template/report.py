"""The findings of the self-check about a chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .chat_messages import ArgumentForm, ContentForm, HistoryPart
from .reasoning import opened_tags


class TemplateVerdict(StrEnum):
    """The self-check's judgement: can deltas of this template be proved?"""

    EXACT = "EXACT"
    """Every probed step is exact from a short conversation: cost independent of the history."""
    EXACT_FULL = "EXACT-FULL"
    """Every probed step is exact, but the template carries state through the history, which is rendered each time."""
    PARTIAL = "PARTIAL"
    """Text and single tool calls work; the template refuses some shapes, and so do we, at that step."""
    UNSUPPORTED = "UNSUPPORTED"
    """The template cannot express a plain reply, or, with tools, a tool call and its result."""


class Flag(StrEnum):
    """A caveat about a template that works."""

    DROPS_REASONING_AT_USER = "drops-reasoning-at-user"
    """A re-rendered history has lost earlier reasoning as soon as a user message follows; our trajectory keeps it."""
    DROPS_REASONING_AT_TOOL = "drops-reasoning-at-tool"
    """The same as soon as a tool result follows."""
    GENERATION_PROMPT_NOT_IN_HISTORY = "generation-prompt-not-in-history"
    """The generation prompt is not how the template prints a past turn: a full re-render never extends a trajectory."""
    REPEATS_TOOLS = "repeats-tools"
    """The template moves the tool list to the latest user turn, so deltas repeat it."""
    REPEATS_SYSTEM = "repeats-system"
    """The template moves the system text to the latest user turn, so deltas repeat it."""
    DROPS_TEXT_BESIDE_CALLS = "drops-text-beside-calls"
    """A re-rendered history loses what a turn says beside its tool calls."""
    DROPS_CALLS = "drops-calls"
    """A re-rendered history loses tool calls: the template does not print `tool_calls`."""
    NO_CLOSER = "no-closer"
    """The template prints no end of turn for some shape; the sampled stop token stays in the context nevertheless."""
    CLOSER_IS_NOT_A_STOP = "closer-is-not-a-stop"
    """The template ends some turn with a token that the engine does not stop on: check the stop tokens."""


class Shape(StrEnum):
    """A kind of step: the assistant turn and the messages that follow it."""

    TEXT_USER = "text>user"
    CALL_TOOL = "call>tool"
    CALLS_TOOLS = "calls>tools"
    CALL_TOOL_USER = "call>tool+user"
    CALL_USER = "call>user"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeResult:
    """The outcome of the probes of one shape.

    Attributes:
        answered: Probes that rendered, of `total`.
        history: Messages that have to be rendered; None if no probe rendered.
        closer: End of the assistant turn; empty if the template prints nothing.
        reason: First reason why a probe was refused; empty if none was.
    """

    answered: int
    total: int
    history: HistoryPart | None
    closer: str
    reason: str

    @property
    def ok(self) -> bool:
        """The shape can be expressed, perhaps not in every context."""
        return self.history is not None

    @property
    def complete(self) -> bool:
        """Every probe rendered."""
        return self.answered == self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of the self-check of one template with given variables, with or without tools.

    Attributes:
        history: Messages that are rendered for a step.
        content_forms: Form of the content, by role.
        shapes: Result by shape. Without tools only `text>user`.
        prints_tools: The first prompt shows the tools; True without tools.
        generation_prompt: What the template prints before a reply.
        reply_header: The end of what the template prints before a past reply; None if it cannot print one.
        keep_reasoning_kwargs: Template variables that make the template keep earlier reasoning at a user turn; empty
            where it keeps it anyway or has no such variable. Policy `append` adds them.
    """

    verdict: TemplateVerdict
    history: HistoryPart
    argument_form: ArgumentForm
    content_forms: Mapping[str, ContentForm]
    shapes: Mapping[Shape, ShapeResult]
    flags: frozenset[Flag]
    prints_tools: bool
    generation_prompt: str
    reply_header: str | None = None
    keep_reasoning_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def opens_reasoning(self) -> str | None:
        """The tag of a reasoning block that the generation prompt leaves open, or None."""
        return (self.opened_tags(self.generation_prompt) or (None,))[0]

    def opened_tags(self, prompt_text: str) -> tuple[str, str] | None:
        """Tags of the reasoning block that a prompt of this template leaves open, or None."""
        return opened_tags(prompt_text, self.generation_prompt, self.reply_header)

    @property
    def closers(self) -> dict[Shape, str]:
        """The end of the assistant turn, by shape that can be expressed."""
        return {shape: result.closer for shape, result in self.shapes.items() if result.ok}

    @property
    def refused(self) -> dict[Shape, str]:
        """Reason by shape that cannot be expressed, or not in every surrounding."""
        return {shape: result.reason for shape, result in self.shapes.items() if not result.complete}

    @property
    def summary(self) -> str:
        """One line for a log."""
        parts = [str(self.verdict), f"history={self.history}", f"arguments={self.argument_form}"]
        parts.append("closers={" + ", ".join(f"{k}: {v!r}" for k, v in self.closers.items()) + "}")
        if self.flags:
            parts.append("flags=[" + ", ".join(sorted(self.flags)) + "]")
        if self.refused:
            parts.append("refused={" + ", ".join(f"{k}: {v}" for k, v in self.refused.items()) + "}")
        return " ".join(parts)
