"""Counts and times of one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import Any, TypedDict

from strands.telemetry.metrics import EventLoopCycleMetric
from strands.types.event_loop import Usage

from strands_sglang.trajectory import Turn


class Summary(TypedDict):
    """A quantity over the model calls of a step."""

    total: float
    max: float
    mean: float
    min: float


class ToolMetrics(TypedDict):
    """A tool in one step.

    `parse_errors` are calls the model wrote that could not be parsed; such a call is answered with an error and also
    counts as a call where it reached the tool. `latency_s` is the sum over all calls, in seconds.
    """

    calls: int
    successes: int
    errors: int
    parse_errors: int
    latency_s: float


class TurnMetrics(TypedDict):
    """A model call and the tools it asked for. Times in seconds; token counts are None where unknown."""

    model_s: float
    tool_s: float
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None


class Metrics(TypedDict, total=False):
    """`Observation.metrics`: plain JSON values. Times in seconds; None where there is nothing to summarise.

    `model_latency_s` is measured around every model call of the step's agent; `tool_s` is wall time in which at least
    one tool ran, so parallel tools count once. Sub-agents are tools of the agent and counted as such.
    `untrained_tokens` are those sampled on trajectories that are not meant to be trained.
    """

    message_count: int
    model_calls: int
    model_latency_s: Summary | None
    input_tokens: Summary | None
    output_tokens: Summary | None
    cache_read_input_tokens: Summary | None
    cache_hit_rate: float | None
    tool_iters: int
    tool_calls: int
    cancelled_tool_calls: int
    per_tool_metrics: dict[str, ToolMetrics] | None
    parse_errors: int
    tool_exceptions: int
    untrained_tokens: int
    turns: list[TurnMetrics]
    wall_s: float
    tool_s: float
    reward_latency_s: float
    loop_termination_reason: str
    loop_error: dict[str, Any]


def summarize(values: Sequence[float], digits: int) -> Summary | None:
    """Total, maximum, mean and minimum, rounded; None for no values."""
    if not values:
        return None
    return {
        "total": round(sum(values), digits),
        "max": round(max(values), digits),
        "mean": round(sum(values) / len(values), digits),
        "min": round(min(values), digits),
    }


def total_of(metrics: Mapping[str, Any], name: str) -> Any:
    """A metric of a step as one number: the total of a summary; None without the metric."""
    value = metrics.get(name)
    return value.get("total") if isinstance(value, Mapping) else value


def turn_metrics(latencies: Sequence[float], tools: Mapping[int, float], metrics: Any) -> list[TurnMetrics]:
    """A row per model call.

    Args:
        latencies: Seconds of every model call.
        tools: Seconds of the tools by index of the call that asked for them.
        metrics: `agent.event_loop_metrics`, whose cycles have the token counts; a call that failed has none.
    """
    usages = chain(_usages(metrics), repeat({}))
    return [
        {
            "model_s": round(seconds, 4),
            "tool_s": round(tools.get(place, 0.0), 4),
            "input_tokens": usage.get("inputTokens"),
            "output_tokens": usage.get("outputTokens"),
            "cached_tokens": usage.get("cacheReadInputTokens"),
        }
        for place, (seconds, usage) in enumerate(zip(latencies, usages, strict=False))
    ]


def _usages(metrics: Any) -> list[Mapping[str, int]]:
    return [cycle.usage for invocation in metrics.agent_invocations for cycle in invocation.cycles]


def event_loop_metrics_to_dict(metrics: Any, tool_parse_errors: Mapping[str, int] | None) -> dict[str, Any]:
    """The part of `Metrics` that the SDK's own `EventLoopMetrics` knows, with the malformed calls by tool name."""
    usages = _usages(metrics)
    inputs = [usage.get("inputTokens", 0) for usage in usages]
    outputs = [usage.get("outputTokens", 0) for usage in usages]
    cached = [usage.get("cacheReadInputTokens", 0) for usage in usages]
    parse_errors = dict(tool_parse_errors or {})
    per_tool: dict[str, ToolMetrics] = {
        name: {
            "calls": tool.call_count,
            "successes": tool.success_count,
            "errors": tool.error_count,
            "parse_errors": parse_errors.get(name, 0),
            "latency_s": round(tool.total_time, 4),
        }
        for name, tool in metrics.tool_metrics.items()
    }
    for name, count in parse_errors.items():
        per_tool.setdefault(name, {"calls": 0, "successes": 0, "errors": 0, "parse_errors": count, "latency_s": 0.0})
    return {
        "model_calls": metrics.cycle_count,
        "model_latency_s": summarize(metrics.cycle_durations, 4),
        "input_tokens": summarize(inputs, 1),
        "output_tokens": summarize(outputs, 1),
        "cache_read_input_tokens": summarize(cached, 1) if any(cached) else None,
        "cache_hit_rate": round(sum(cached) / sum(inputs), 4) if sum(inputs) else None,
        "per_tool_metrics": per_tool or None,
        "parse_errors": sum(parse_errors.values()),
    }


def note_usage(metrics: Any, turns: Sequence[Turn]) -> None:
    """Set the event loop metrics of an agent that was never invoked itself, from the turns sampled in its place."""
    metrics.reset_usage_metrics()
    for turn in turns:
        prompt, sampled = turn.start + len(turn.prompt_ids), len(turn.completion.output_ids)
        usage = Usage(inputTokens=prompt, outputTokens=sampled, totalTokens=prompt + sampled)
        if turn.completion.cached_tokens is not None:
            usage["cacheReadInputTokens"] = turn.completion.cached_tokens
        zero = Usage(inputTokens=0, outputTokens=0, totalTokens=0)
        metrics.agent_invocations[-1].cycles.append(EventLoopCycleMetric(f"turn-{turn.index}", zero))
        metrics.update_usage(usage)
        metrics.cycle_count += 1
