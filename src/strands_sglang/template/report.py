"""The findings of the self-check about a chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from .chat_messages import ArgumentForm, ContentForm, HistoryPart
from .reasoning import opened_tags
from .replies import PrintedReplies


class _Explained(StrEnum):
    """Members with a text: their meaning, or a remedy."""

    text: str

    def __new__(cls, value: str, text: str) -> Self:
        member = str.__new__(cls, value)
        member._value_, member.text = value, text
        return member


class TemplateVerdict(_Explained):
    """The self-check's judgement: can deltas of this template be proved?"""

    EXACT = "EXACT", "every step is exact; its cost does not grow with the conversation"
    EXACT_FULL = (
        "EXACT-FULL",
        "every step is exact; the template keeps state, so each step renders the full history",
    )
    PARTIAL = "PARTIAL", "exact, but the template refuses some shapes; such a step raises TemplateError"
    UNSUPPORTED = "UNSUPPORTED", "the template cannot express a plain reply or, with tools, a tool call and its result"


class Flag(_Explained):
    """A caveat about a template that works. What a history that is rendered anew loses, a running trajectory keeps."""

    DROPS_REASONING_AT_USER = (
        "drops-reasoning-at-user",
        "earlier reasoning is lost in a re-rendered history once a user message follows",
    )
    DROPS_REASONING_AT_TOOL = (
        "drops-reasoning-at-tool",
        "earlier reasoning is lost in a re-rendered history once a tool result follows; the trajectory keeps it, or "
        "branch",
    )
    GENERATION_PROMPT_NOT_IN_HISTORY = (
        "generation-prompt-not-in-history",
        "a re-rendered history never extends the trajectory; nothing to do here, but do not compare the two",
    )
    REPEATS_TOOLS = (
        "repeats-tools",
        "deltas at user turns repeat the tool list, as the model saw in training; to avoid it start a new path at user "
        "turns",
    )
    REPEATS_SYSTEM = (
        "repeats-system",
        "deltas at user turns repeat the system text; to avoid it start a new path at user turns",
    )
    DROPS_TEXT_BESIDE_CALLS = (
        "drops-text-beside-calls",
        "text beside tool calls is lost in a re-rendered history (a restored session, a shortened one); "
        "dropped_content says what happens",
    )
    DROPS_CALLS = (
        "drops-calls",
        "tool calls are lost in a re-rendered history; dropped_content says what happens",
    )
    NO_CLOSER = "no-closer", "some turn ends without an end token; the sampled one stays in the context"
    CLOSER_IS_NOT_A_STOP = (
        "closer-is-not-a-stop",
        "some turn ends with a token that is not a stop token; check the stop tokens (--stop)",
    )


class Shape(_Explained):
    """A kind of step, the assistant turn and the messages that follow it, with advice for one that is refused."""

    TEXT_USER = "text>user", "this template cannot hold a conversation; use another one"
    CALL_TOOL = "call>tool", "use a template with tool support, or pass tool results as user messages"
    CALLS_TOOLS = "calls>tools", "have the model make one call at a time"
    CALL_TOOL_USER = "call>tool+user", "do not add a user message after tool results"
    CALL_USER = "call>user", "answer a call that did not parse with a tool message, not with a user message"


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
        generation_prompt: Text that the template prints before a reply.
        reply_header: The end of the text that the template prints before a past reply; None if it cannot print one.
        keep_reasoning_kwargs: Template variables that make the template keep earlier reasoning at a user turn; empty
            where it keeps it anyway or has no such variable. Policy `append` adds them.
        replies: Replies of every kind as the template prints them.
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
    replies: PrintedReplies = field(default_factory=PrintedReplies)

    @property
    def opens_reasoning(self) -> str | None:
        """The tag of a reasoning block that the generation prompt leaves open, or None."""
        return (self.opened_tags(self.generation_prompt) or (None,))[0]

    def opened_tags(self, prompt_text: str) -> tuple[str, str] | None:
        """Tags of the reasoning block that a prompt of this template leaves open, or None."""
        if self.replies.opens and self.generation_prompt and prompt_text.endswith(self.generation_prompt):
            by_name = opened_tags(self.generation_prompt, self.generation_prompt, self.reply_header)
            return by_name or self.replies.tags
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
        """A line for a log."""
        parts = [str(self.verdict), f"history={self.history}", f"arguments={self.argument_form}"]
        parts.append("closers={" + ", ".join(f"{k}: {v!r}" for k, v in self.closers.items()) + "}")
        if self.flags:
            parts.append("flags=[" + ", ".join(sorted(self.flags)) + "]")
        if self.refused:
            parts.append("refused={" + ", ".join(f"{k}: {v}" for k, v in self.refused.items()) + "}")
        return " ".join(parts)
