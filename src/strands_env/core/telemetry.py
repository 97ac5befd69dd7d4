"""OpenTelemetry: a span a rollout, with its ids, reward and tokens. Off until `enable_telemetry` is called.

The spans of the SDK (agent, model calls, tools) become its children.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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


@contextmanager
def rollout_span(action: Action, agent_name: str) -> Iterator[Callable[[StepResult], None]]:
    """The span of a step, the current one inside; what is yielded writes the result into it.

    Costs a comparison while telemetry is off.
    """
    if _tracer is None:
        yield lambda result: None
        return
    seed = getattr(action.task_context, FIELD, None)
    attributes = {"strands_env.task.id": action.task_context.id, "gen_ai.agent.name": agent_name}
    if seed is not None:
        attributes["strands_env.rollout.seed"] = str(seed)
    with _tracer.start_as_current_span("rollout", attributes=attributes) as span:
        yield partial(_write, span)


def _write(span: Any, result: StepResult) -> None:
    span.set_attributes({name: value for name, value in _attributes(result).items() if value is not None})
    if result.error is not None:
        from opentelemetry.trace import StatusCode

        span.set_status(StatusCode.ERROR, f"{result.error.type}: {result.error.message}"[:500])


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
