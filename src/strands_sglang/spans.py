"""Spans by OpenTelemetry's conventions for generative AI. Nothing is made of them where no exporter is set.

A call and its tokens are joined by two attributes, which the gateway's spans have, and the `chat` spans of the Strands
SDK: `strands.turn.id` is one of a trajectory's `request_ids`, `strands.trajectory.id` the first of them. No attribute
holds a prompt, an answer or a key.
"""

from __future__ import annotations

from opentelemetry import trace

from .trajectory import Turn

TRACER = trace.get_tracer("strands_sglang")
"""Finds the provider of spans when a span starts, so one may be set at any time."""


def turn_ids(turn: Turn) -> dict[str, str]:
    """The two attributes of a turn."""
    return {
        f"strands.{name}.id": next(iter(first.completion.request_ids), str(first.index))
        for name, first in (("trajectory", turn.root), ("turn", turn))
    }


def note_turn(turn: Turn) -> None:
    """Give the current span, if it is recorded, the ids of a turn."""
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attributes(turn_ids(turn))
