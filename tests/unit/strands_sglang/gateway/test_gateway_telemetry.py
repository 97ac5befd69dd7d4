"""What an operator sees of a gateway: metrics for Prometheus, and spans that can be joined with tokens."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from strands import Agent
from strands.telemetry import tracer as sdk_tracer

from strands_sglang.command_line import CommandError
from strands_sglang.commands import gateway as command
from strands_sglang.exceptions import SGLangThrottledError
from strands_sglang.gateway import answers
from strands_sglang.gateway import telemetry as gateway_telemetry
from tests.provider_support import completion, make
from tests.unit.gateway_support import CALL, CHAT_TOOLS, Rig, rig, slow, until

USER = {"role": "user", "content": "A secret prompt"}


async def scrape(r: Rig, **headers: str) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    text = await r.call("GET", "/metrics", headers=headers)
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name.removeprefix("strands_gateway_"), *sample.labels.values()): sample.value for sample in samples}


async def test_metrics_count_requests_tokens_roots_and_times() -> None:
    script = [
        completion("Hello.", cached=2),
        completion(f"{CALL}<tool_call>x</tool_call>"),
        SGLangThrottledError("busy", status=503),
    ]
    async with rig(script, limits={"max_parallel": 1}) as r:
        await r.chat([USER])
        await r.chat([USER, {"role": "assistant", "content": "Hello."}, USER], tools=CHAT_TOOLS)
        await r.messages([USER, USER], status=503)
        await r.chat([], status=400)
        await r.chat([USER], headers={"Authorization": "Bearer wrong"}, status=401)
        seen, counters = await scrape(r), r.session.counters
    requests = {key[1:]: number for key, number in seen.items() if key[0] == "requests_total"}
    assert requests == {("chat", "200"): 2, ("anthropic", "503"): 1, ("chat", "400"): 1, ("chat", "401"): 1}
    assert seen["tokens_total", "output"] == sum(map(len, r.sampled())) and seen["tokens_total", "cached"] == 2
    assert seen["cached_share",] == 2 / seen["tokens_total", "input"] > 0
    assert (seen["roots_total", "first"], seen["roots_total", "context"]) == (1, 1) == tuple(counters.roots.values())
    assert (seen["calls_total", "calls"], seen["calls_total", "malformed"]) == (1, 1)
    assert (seen["sessions", "open"], seen["sessions", "closed"], seen["in_flight",]) == (1, 0, 0)
    counts = {key[1]: number for key, number in seen.items() if key[0] == "seconds_count"}
    assert counts == {"request": 5, "wait": 3, "sampling": 2}
    assert seen["seconds_bucket", "+Inf", "request"] == 5 >= seen["seconds_bucket", "0.005", "request"]


async def test_counts_never_fall_and_show_retries_and_answers_that_were_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_GRACE", 0.01)
    async with rig([completion("Hello."), slow("Never.", 30)]) as r:
        await r.chat([USER], headers={"Idempotency-Key": "k"})
        await r.chat([USER], headers={"Idempotency-Key": "k"})
        asking = asyncio.create_task(r.chat([USER, USER]))
        await until(lambda: len(r.prompts) == 2)
        before = await scrape(r)
        assert before["in_flight",] == 1 and before["retries_total", "replayed"] == 1
        asking.cancel()
        await until(lambda: r.client.cancelled)
        await r.gateway.delete(r.session)
        after = await scrape(r)
        assert after["requests_total", "chat", "499"] == 1 and after["sessions", "open"] == 0
        assert {key for key, number in before.items() if key[0].endswith("_total") and after[key] < number} == set()


async def test_what_a_session_brings_from_before_a_restart_is_not_counted_again(tmp_path: Path) -> None:
    async with rig([completion("One.")], state=tmp_path / "state") as r:
        await r.chat([USER])
        session, folder = r.session, Path(shutil.copytree(tmp_path / "state", tmp_path / "copy"))
    async with rig([completion("Two.")], state=folder) as r:
        r.session = r.gateway.sessions[session.id]
        assert (await scrape(r))["turns_total", "sampled"] == 0
        await r.chat([USER, {"role": "assistant", "content": "One."}, USER])
        assert r.session.counters.sampled == 2 and r.session.counters.roots["first"] == 1
        before = await scrape(r)
        assert before["turns_total", "sampled"] == 1 and not before.get(("roots_total", "first"))
        await r.gateway.delete(r.session)
        assert (await scrape(r))["turns_total", "sampled"] == 1


async def test_a_request_is_counted_with_the_status_that_its_client_got(tmp_path: Path) -> None:
    async with rig([completion("One.")], state=tmp_path) as r:
        assert r.gateway.sessions.folder is not None
        r.gateway.sessions.folder.limit = 0
        await r.chat([USER], status=507)  # the answer, which cannot be written down
        await r.chat([USER], status=507)
        assert (await scrape(r))["requests_total", "chat", "507"] == 2


async def test_names_that_clients_choose_make_no_series() -> None:
    async with rig([completion("Hello.")] * 30) as r:
        await r.chat([USER])
        before = set(await scrape(r))
        for number in range(1, 30):
            name = f'n{number}"}}\n'
            headers = {"User-Agent": f"c{number}/1", "x-claude-code-agent-id": f"a{number}"}
            await r.chat([USER], model=name, user=name, tools=[{"type": name}], headers=headers, **{name: 1})
        assert set(await scrape(r)) == before


async def test_metrics_need_the_admin_key_where_there_is_one() -> None:
    async with rig([], admin_key="admin") as r:
        for key in (r.session.key, r.session.reward_key, "wrong"):
            await r.call("GET", "/metrics", headers={"Authorization": f"Bearer {key}"}, status=401)
        await r.call("GET", "/metrics", status=401)
        assert await scrape(r, Authorization="Bearer admin")
    async with rig([], admin=False) as r:
        await r.call("GET", "/metrics", status=404)


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans of this test. A process takes one provider for good, so this one is put in its place."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr(gateway_telemetry, "TRACER", provider.get_tracer("test"))
    monkeypatch.setattr(sdk_tracer, "_tracer_instance", None)
    yield exporter
    provider.shutdown()


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


async def test_a_request_is_a_span_that_leads_to_its_tokens(exported: InMemorySpanExporter) -> None:
    script = [dataclasses.replace(completion(text, cached=2), delay=0.01) for text in ("Hello.", "Bye.")]
    async with rig(script) as r:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        agent = {"x-claude-code-agent-id": "helper"}
        first = await r.chat([USER], model="policy", headers={"traceparent": parent, **agent})
        history = [USER, first["choices"][0]["message"], USER]
        await r.messages(history, model="policy", headers=agent)
        (row,) = await r.call("GET", f"/sessions/{r.session.id}/trajectories")
        r.gateway.telemetry.make_spans()
        calls = named(exported, "chat policy")
        assert [call.attributes["strands.turn.id"] for call in calls] == row["request_ids"]
        assert {call.attributes["strands.trajectory.id"] for call in calls} == {row["request_ids"][0]}
        attributes = dict(calls[0].attributes or {})
        assert attributes["gen_ai.response.id"] == first["id"].removeprefix("chatcmpl-")
        assert attributes["gen_ai.usage.output_tokens"] == len(r.sampled()[0])
        assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.cache_read.input_tokens"]) == (
            len(r.prompts[0]), 2,
        )  # fmt: skip
        assert attributes["gen_ai.conversation.id"] == r.session.id
        assert calls[1].attributes is not None and calls[1].attributes["gen_ai.agent.name"] == "helper"
        assert calls[0].parent is not None and f"{calls[0].parent.span_id:x}" == "b7ad6b7169203331"
        children = [span.parent.span_id for span in named(exported, "sampling") if span.parent is not None]
        assert children == [call.context.span_id for call in calls]
        told = " ".join(span.to_json() for span in exported.get_finished_spans())
        assert "secret" not in told and "Hello" not in told and r.session.key not in told


async def test_a_span_names_the_error_of_its_request_without_its_words(exported: InMemorySpanExporter) -> None:
    async with rig([SGLangThrottledError("A secret", status=503), slow("Never.", 30)], hold=0.01) as r:
        await r.chat([USER], model="policy", status=503)
        await r.chat([USER], model="policy", n=2, status=400)
        asking = asyncio.create_task(r.chat([USER], model="policy"))
        await until(lambda: len(r.prompts) == 2)
        asking.cancel()
        await until(lambda: len(exported.get_finished_spans()) == 3)
        spans = exported.get_finished_spans()
        assert [span.attributes["error.type"] for span in spans] == ["overloaded", "refused", "client_gone"]
        assert [span.attributes["http.response.status_code"] for span in spans] == [503, 400, 499]
        assert "secret" not in " ".join(span.to_json() for span in spans)


async def test_the_wait_for_a_slot_is_a_span_of_its_own(exported: InMemorySpanExporter) -> None:
    async with rig([slow("Hello.", 0.02)] * 2, limits={"max_parallel": 1}) as r:
        await asyncio.gather(r.chat([USER]), r.chat([USER, USER]))
        await until(lambda: len(named(exported, "chat m")) == 2)
        assert len(named(exported, "wait")) == 1 and len(named(exported, "sampling")) == 2


async def test_the_sdks_own_span_of_a_call_has_the_same_two_ids(exported: InMemorySpanExporter) -> None:
    model, _ = make([completion("Hello.")])
    await Agent(model=model, callback_handler=None).invoke_async("Hi")
    (span,) = named(exported, "chat")
    (trajectory,) = model.trajectories
    assert span.attributes is not None
    ids = {span.attributes["strands.turn.id"], span.attributes["strands.trajectory.id"]}
    assert ids == set(trajectory.request_ids)


async def test_an_endpoint_without_its_exporter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.setattr(trace, "set_tracer_provider", lambda provider: None)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(CommandError, match=r"strands-rollout\[otel\]"):
        await command.serve(parser.parse_args(["--model", "tiny"]), socket.socket())
