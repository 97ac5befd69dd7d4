"""OpenTelemetry: a span a rollout, with its ids, reward and tokens. Off until `enable_telemetry` is called.

The spans of the SDK (agent, model calls, tools) become its children.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .seeds import FIELD

if TYPE_CHECKING:
    from .types import Action, StepResult

_tracer: Any = None


def enable_telemetry(tracer_provider: Any = None) -> None:
    """Record a span for every step from now on, in this process.

    Args:
        tracer_provider: `opentelemetry.trace.TracerProvider`; the global one if None, such as
            `strands.telemetry.StrandsTelemetry().setup_otlp_exporter()` sets up.
    """
    global _tracer
    from opentelemetry import trace

    _tracer = trace.get_tracer("strands_env", tracer_provider=tracer_provider)


def disable_telemetry() -> None:
    """Record no spans from now on."""
    global _tracer
    _tracer = None


class RolloutSpan:
    """The span of a step; without telemetry, nothing."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def end(self, result: StepResult) -> None:
        """Write what came out of the step."""
        if self._span is None:
            return
        for name, value in _attributes(result).items():
            if value is not None:
                self._span.set_attribute(name, value)
        if result.error is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR, f"{result.error.type}: {result.error.message}"[:500])


_OFF = RolloutSpan(None)


@contextmanager
def rollout_span(action: Action, agent_name: str) -> Iterator[RolloutSpan]:
    """The span of a step, the current one inside; costs a comparison while telemetry is off."""
    if _tracer is None:
        yield _OFF
        return
    seed = getattr(action.task_context, FIELD, None)
    attributes = {"strands_env.task.id": action.task_context.id, "gen_ai.agent.name": agent_name}
    if seed is not None:
        attributes["strands_env.rollout.seed"] = str(seed)
    with _tracer.start_as_current_span("rollout", attributes=attributes) as span:
        yield RolloutSpan(span)


def _attributes(result: StepResult) -> dict[str, Any]:
    metrics, tokens = result.observation.metrics, result.observation.tokens
    counts = {name: (metrics.get(f"{name}_tokens") or {}).get("total") for name in ("input", "output")}
    return {
        "strands_env.reward": None if result.reward is None else result.reward.reward,
        "strands_env.termination_reason": result.termination_reason.value,
        "strands_env.model_calls": metrics.get("model_calls"),
        "strands_env.tool_calls": metrics.get("tool_calls"),
        "gen_ai.usage.input_tokens": counts["input"],
        "gen_ai.usage.output_tokens": counts["output"],
        "strands_env.tokens": None if tokens is None else len(tokens),
        "strands_env.trained_tokens": None if tokens is None else int(tokens.loss_mask_array.sum()),
        "strands_env.trajectories": len(result.trajectories),
    }
