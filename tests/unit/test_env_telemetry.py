"""Spans of rollouts: off until asked for, then with ids, reward and tokens."""

from __future__ import annotations

import pytest

from strands_env.core import Action, Environment, TaskContext
from strands_env.core.telemetry import disable_telemetry, enable_telemetry, rollout_span
from strands_env.testing import ScriptedModel

sdk = pytest.importorskip("opentelemetry.sdk.trace")
exporting = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

ACTION = Action(message="?", task_context=TaskContext(id="task-1", ground_truth="4", rollout_seed=7))


@pytest.fixture
def spans():
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    exporter, provider = exporting.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    enable_telemetry(provider)
    yield exporter.get_finished_spans
    disable_telemetry()


def environment(reward_fn=lambda action, result: 1.0) -> Environment:
    return Environment(model_factory=lambda: ScriptedModel(["four"]), reward_fn=reward_fn)


async def test_a_span_has_ids_reward_and_tokens(spans):
    result = await environment().step(ACTION)
    [span] = [span for span in spans() if span.name == "rollout"]
    assert span.attributes["strands_env.task.id"] == "task-1"
    assert span.attributes["strands_env.rollout.seed"] == "7"
    assert span.attributes["strands_env.reward"] == 1.0
    assert span.attributes["strands_env.termination_reason"] == "task_complete"
    assert span.attributes["strands_env.tokens"] == len(result.observation.tokens)
    assert span.attributes["strands_env.trained_tokens"] == len(b"four\n")


async def test_a_failure_is_the_status_of_the_span(spans):
    await environment(lambda action, result: 1 / 0).step(ACTION)
    [span] = [span for span in spans() if span.name == "rollout"]
    assert not span.status.is_ok
    assert span.status.description == "ZeroDivisionError: division by zero"
    assert "strands_env.reward" not in span.attributes


async def test_nothing_is_recorded_unless_asked_for(monkeypatch):
    from opentelemetry import trace

    monkeypatch.setattr(trace, "get_tracer", lambda *args, **options: pytest.fail("a tracer was made"))
    with rollout_span(ACTION, "agent") as write:
        write(await environment()._step(ACTION, None))
