"""What happened to the requests of a gateway: counts and times for Prometheus, a span each for OpenTelemetry.

Labels of metrics are names of ours alone: whatever clients call themselves, their agents or models, adds no series.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from aiohttp import web
from opentelemetry import propagate, trace
from opentelemetry.context import Context

from ..telemetry import TRACER, turn_ids
from ..trajectory import Turn
from .counters import Counters
from .delivery import Exchange
from .dialects.reading import label
from .dialects.wire import Origin, Refused, WireReply, WireRequest

if TYPE_CHECKING:
    from .session_table import SessionTable

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_CLIENT_GONE = 499  # nothing is answered then; nginx counts it so
_SHORTEST_SPAN = 1_000_000  # nanoseconds
_COUNTS = {
    "tokens": ("Tokens of sampled turns", ("input_tokens", "cached_tokens", "output_tokens")),
    "turns": ("Sampled turns", ("sampled", "extended", "siblings", "constrained", "final")),
    "retries": ("Requests answered with the sample of an earlier one", ("joined", "replayed")),
    "lost": ("Answers that no client got, or that it may not have read", ("undelivered", "cut")),
    "passed": ("Requests to other backends", ("passed",)),
    "calls": ("Sampled tool calls", ("calls", "malformed")),
}


_CALL: ContextVar[Call | None] = ContextVar("call", default=None)
"""The request at work; sampling that it starts belongs to it."""


class Phase(StrEnum):
    """A part of a request whose time is taken."""

    REQUEST = "request"
    """From its head to the last byte of its answer."""
    WAIT = "wait"
    """For a slot, in a session with `max_parallel`."""
    SAMPLING = "sampling"
    """From its slot until its turn is recorded."""


@dataclass(slots=True)
class Call:
    """A request and its answer, as far as it got."""

    began: int = field(default_factory=time.time_ns)
    session: str = ""
    wire: WireRequest | None = None
    origin: Origin | None = None
    reply: WireReply | None = None
    turn: Turn | None = None
    phases: list[tuple[Phase, int, int]] = field(default_factory=list)

    def finish(self, route: str, parent: Context | None, status: int, problem: str) -> None:
        """Make the span, with a child for each phase that is long enough to be seen."""
        # At once, when all is known: half the price of a span that is open meanwhile.
        span = TRACER.start_span(route, parent, trace.SpanKind.SERVER, start_time=self.began)
        if not span.is_recording():
            return
        attributes: dict[str, Any] = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "strands_sglang"}
        if self.wire is not None and self.origin is not None:
            attributes["gen_ai.request.model"] = model = label(self.wire.model)
            attributes["gen_ai.conversation.id"] = self.session
            attributes["user_agent.name"] = self.origin.client
            if self.origin.agent is not None:
                attributes["gen_ai.agent.name"] = label(self.origin.agent)
            span.update_name(f"chat {model}")
        if self.reply is not None and self.turn is not None:
            attributes["gen_ai.response.id"] = self.reply.id
            attributes["gen_ai.response.finish_reasons"] = (self.reply.finish,)
            attributes["gen_ai.usage.input_tokens"] = self.reply.prompt_tokens
            attributes["gen_ai.usage.output_tokens"] = self.reply.output_tokens
            attributes["gen_ai.usage.cache_read.input_tokens"] = self.reply.cached_tokens
            attributes |= turn_ids(self.turn)
        if problem:
            attributes |= {"error.type": problem, "http.response.status_code": status}
            span.set_status(trace.StatusCode.ERROR)
        span.set_attributes(attributes)
        for phase, began, ended in self.phases:
            if ended - began >= _SHORTEST_SPAN:
                TRACER.start_span(phase.value, trace.set_span_in_context(span), start_time=began).end(ended)
        span.end()


class Telemetry:
    """Counts and times of a gateway since it started.

    Attributes:
        deleted: Counts of the sessions that are gone: what Prometheus counts must not fall.
    """

    def __init__(self) -> None:
        self.deleted = Counters()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._buckets = {phase: [0] * (len(_BOUNDS) + 1) for phase in Phase}
        self._seconds = dict.fromkeys(Phase, 0.0)

    @contextmanager
    def request(self, request: web.Request, exchange: Exchange) -> Iterator[None]:
        """Count a request, and make a span of it at its end. A trace of the client's is continued."""
        call, status, problem = Call(), 200, ""
        token = _CALL.set(call)
        try:
            yield
            if exchange.refused is not None:  # in a stream whose head said 200
                status, problem = exchange.refused.status, exchange.refused.code or "refused"
        except BaseException as error:
            is_gone = isinstance(error, OSError) or not isinstance(error, Exception)
            status = error.status if isinstance(error, Refused | web.HTTPException) else 500
            status = _CLIENT_GONE if is_gone else status
            problem = getattr(error, "code", None) or type(error).__name__
            raise
        finally:
            _CALL.reset(token)
            self._requests[exchange.dialect.name, str(status)] += 1
            self._take_time(Phase.REQUEST, time.time_ns() - call.began)
            parent = propagate.extract(request.headers) if "traceparent" in request.headers else None
            call.finish(f"POST {exchange.route.path}", parent, status, problem)

    def note(self, phase: Phase, began: int) -> None:
        """Take the time of a phase that began at this time, in nanoseconds, and ends now."""
        ended, call = time.time_ns(), _CALL.get()
        self._take_time(phase, ended - began)
        if call is not None:
            call.phases.append((phase, began, ended))

    def _take_time(self, phase: Phase, nanoseconds: int) -> None:
        seconds = nanoseconds / 1e9
        self._buckets[phase][bisect_left(_BOUNDS, seconds)] += 1
        self._seconds[phase] += seconds

    def metrics(self, table: SessionTable) -> bytes:
        """Everything, in the text format of Prometheus."""
        from prometheus_client.core import CollectorRegistry
        from prometheus_client.exposition import generate_latest
        from prometheus_client.registry import Collector

        telemetry = self

        class Gathered(Collector):
            def collect(self) -> Iterator[Any]:
                return telemetry._collect(table)

        registry = CollectorRegistry()
        registry.register(Gathered())
        return generate_latest(registry)

    def _collect(self, table: SessionTable) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        sessions = table.loaded  # of a state folder the others show their counts when they are read
        counts = [self.deleted, *(counters for session in sessions for counters in session.clients.values())]
        total = {name: sum(getattr(count, name) for count in counts) for _, names in _COUNTS.values() for name in names}
        roots = sum((count.roots for count in counts if count.roots), Counter[str]())
        closed = sum(session.is_sealed for session in sessions)

        def family(kind: Any, name: str, text: str, label: str, values: Mapping[str, float]) -> Any:
            made = kind(f"strands_gateway_{name}", f"{text}.", labels=[label])
            for value, number in values.items():
                made.add_metric([value], number)
            return made

        requests = CounterMetricFamily("strands_gateway_requests", "Requests.", labels=["dialect", "status"])
        for labels, number in self._requests.items():
            requests.add_metric(labels, number)
        yield requests
        states = {"open": len(sessions) - closed, "closed": closed, "stored": len(table) - len(sessions)}
        yield family(GaugeMetricFamily, "sessions", "Sessions held", "state", states)
        if table.folder is not None:
            size = table.folder.size
            yield GaugeMetricFamily("strands_gateway_state_bytes", "Size of the state folder.", size)
        in_flight = sum(session.in_flight for session in sessions)
        yield GaugeMetricFamily("strands_gateway_in_flight", "Turns being sampled.", in_flight)
        cached = total["cached_tokens"] / max(total["input_tokens"], 1)
        yield GaugeMetricFamily("strands_gateway_cached_share", "Share of prompt tokens found in the cache.", cached)
        yield family(CounterMetricFamily, "roots", "New roots", "reason", roots)
        for name, (text, fields) in _COUNTS.items():
            values = {field.removesuffix("_tokens"): total[field] for field in fields}
            yield family(CounterMetricFamily, name, text, "kind", values)
        times = HistogramMetricFamily("strands_gateway_seconds", "Times of requests.", labels=["phase"])
        for phase, buckets in self._buckets.items():
            bounds = [*map(str, _BOUNDS), "+Inf"]
            times.add_metric([phase], list(zip(bounds, accumulate(buckets), strict=True)), self._seconds[phase])
        yield times


def note_request(session: str, wire: WireRequest, origin: Origin) -> None:
    """Note what the request at work asks for."""
    if (call := _CALL.get()) is not None:
        call.session, call.wire, call.origin = session, wire, origin


def note_reply(reply: WireReply, turn: Turn) -> None:
    """Note the answer to the request at work."""
    if (call := _CALL.get()) is not None:
        call.reply, call.turn = reply, turn
