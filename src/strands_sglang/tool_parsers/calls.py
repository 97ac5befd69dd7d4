"""Calls of a sampled text: as the model wrote them, or malformed with the reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

from .splitting import TextSegment

UNKNOWN_TOOL_NAME = "unknown_tool"
"""Name of a malformed call whose tool is unknown."""


@dataclass(frozen=True, slots=True)
class ToolParseResult:
    """A call as the model wrote it, or one malformed call.

    Attributes:
        id: `call_0000`, `call_0001`, ... in the order of the text; unique within one text only. Empty in a `Block`.
        name: Tool name as printed; for a malformed call the best guess or `UNKNOWN_TOOL_NAME` (in a `Block` "").
        input: Arguments; `{}` for a malformed call, which must not run.
        raw: None for a call; for a malformed call its text.
        error: The fault, in one sentence; None for a call.
        model_id: The id the model itself printed (Kimi: `functions.add:0`), where the format has one.
        span: Offsets (start, end) of the call's markup in the whole text; (0, 0) where the parser does not say.
    """

    UNKNOWN_NAME: ClassVar[str] = UNKNOWN_TOOL_NAME

    id: str = ""
    name: str = ""
    input: dict[str, Any] = field(default_factory=dict)
    raw: str | None = None
    error: str | None = None
    model_id: str | None = None
    span: tuple[int, int] = (0, 0)

    @classmethod
    def from_parse_error(cls, id: str, raw: str, name: str | None = None) -> Self:
        """A malformed call, for parsers written for upstream."""
        return cls(id=id, name=name or UNKNOWN_TOOL_NAME, input={}, raw=raw)

    @property
    def is_error(self) -> bool:
        """The call is malformed."""
        return self.raw is not None

    def with_id(self, index: int) -> ToolParseResult:
        """The same result with the id, and the name, that it has in a whole text."""
        # Written out, here and below: `dataclasses.replace` takes several times as long, and every call is made thrice.
        name = self.name or UNKNOWN_TOOL_NAME
        return ToolParseResult(f"call_{index:04d}", name, self.input, self.raw, self.error, self.model_id, self.span)

    def with_span(self, start: int, end: int) -> ToolParseResult:
        """The same result with the offsets of its markup."""
        return ToolParseResult(self.id, self.name, self.input, self.raw, self.error, self.model_id, (start, end))

    @property
    def payload(self) -> str:
        """The arguments as JSON text, or the raw text of a malformed call."""
        return json.dumps(self.input) if self.raw is None else self.raw


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseOutput:
    """A whole sampled text, parsed.

    Attributes:
        calls: Calls and malformed calls in the order of the text.
        text: Visible text: without reasoning, tags and call markup, otherwise as sampled.
        reasoning: Inside of the reasoning blocks; several are joined by a newline.
        unclosed_call: A call that begins and never ends, as a malformed one. A truncated turn explains it; after a
            normal end of turn report it to the model.
        segments: Pieces of the text; they tile it without gap or overlap.
    """

    calls: tuple[ToolParseResult, ...]
    text: str
    reasoning: str
    segments: tuple[TextSegment, ...]
    unclosed_call: ToolParseResult | None = None


class Block(NamedTuple):
    """A call block: its calls in order, without ids, and the offset behind its end marker."""

    end: int
    calls: tuple[ToolParseResult, ...]

    @classmethod
    def around(cls, calls: Sequence[ToolParseResult], start: int, end: int) -> Block:
        """The block `[start, end)` of these calls; an only one owns its markers."""
        return cls(end, (calls[0].with_span(start, end),) if len(calls) == 1 else tuple(calls))
