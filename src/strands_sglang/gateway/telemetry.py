"""Telemetry of a gateway's requests: counts and times for Prometheus, a span each for OpenTelemetry.

Labels of metrics are our own names alone: a client's name for itself, its agents or models adds no series.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, chain
from operator import attrgetter, sub
from types import SimpleNamespace
from typing import Any

from aiohttp import web
from opentelemetry import propagate, trace
from opentelemetry.context import Context, get_current

from ..exceptions import StrandsSGLangError
from ..spans import TRACER, turn_ids
from ..trajectory import Turn
from .counters import Counters
from .dialects.reading import label
from .dialects.wire import Origin, Refused, WireReply, WireRequest

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_CLIENT_GONE = 499  # nothing is answered then; nginx counts it so
_SHORTEST_SPAN = 5_000_000  # nanoseconds
# Seconds after which the spans of requests are made, many at once, which costs less than one by one in the requests.
_SPAN_DELAY = 0.1
_COUNTS = {
    "tokens": ("Tokens of sampled turns", ("input_tokens", "cached_tokens", "output_tokens")),
    "turns": ("Sampled turns", ("sampled", "extended", "siblings", "constrained", "final")),
    "retries": ("Requests answered with the sample of an earlier one", ("joined", "replayed")),
    "lost": ("Answers that no client got, or that it may not have read", ("undelivered", "cut")),
    "passed": ("Requests to other backends", ("passed",)),
    "calls": ("Sampled tool calls", ("calls", "malformed")),
}


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
    """Facts about a request and its answer, for its span.

    Attributes:
        refused: The refusal that went into a stream, whose head said 200.
    """

    name: str
    began: int = field(default_factory=time.time_ns)
    ended: int = 0
    status: int = 200
    problem: str = ""
    refused: Refused | None = None
    parent: Context | None = None
    turn: Turn | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    phases: list[tuple[Phase, int, int]] = field(default_factory=list)

    def asks(self, session: str, wire: WireRequest, origin: Origin) -> None:
        """Note that the request was read."""
        model, agent = label(wire.model), origin.agent
        self.name = f"chat {model}"
        self.attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "gen_ai.conversation.id": session,
            "user_agent.name": origin.client,
            **({"gen_ai.agent.name": label(agent)} if agent else {}),
        }

    def is_answered(self, reply: WireReply, turn: Turn) -> None:
        """Its reply was written."""
        self.turn = turn
        self.attributes |= {
            "gen_ai.response.id": reply.id,
            "gen_ai.response.finish_reasons": (reply.finish,),
            "gen_ai.usage.input_tokens": reply.prompt_tokens,
            "gen_ai.usage.output_tokens": reply.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": reply.cached_tokens,
        }

    def make_span(self) -> None:
        """Make its span, with a child for each phase that is long enough to be seen."""
        span = TRACER.start_span(self.name, self.parent, trace.SpanKind.SERVER, start_time=self.began)
        if not span.is_recording():
            return
        ids = {} if self.turn is None else turn_ids(self.turn)
        known: dict[str, Any] = {"gen_ai.provider.name": "strands_sglang", "http.response.status_code": self.status}
        if self.status >= 400:  # another backend's have no other name
            known["error.type"] = self.problem or str(self.status)
            span.set_status(trace.StatusCode.ERROR)
        span.set_attributes({**self.attributes, **ids, **known})
        for phase, began, ended in self.phases:
            if ended - began >= _SHORTEST_SPAN:
                TRACER.start_span(phase.value, trace.set_span_in_context(span), start_time=began).end(ended)
        span.end(self.ended)


class Telemetry:
    """Counts and times of a gateway since it started.

    Attributes:
        deleted: Counts of the sessions that are gone: counters of Prometheus must not fall.
        restored: Counts that sessions brought from before a restart, which Prometheus has added up already.
    """

    def __init__(self) -> None:
        self.deleted, self.restored = Counters(), Counters()
        self._ended: list[Call] = []
        self._requests: Counter[tuple[str, str]] = Counter()
        self._buckets = {phase: [0] * (len(_BOUNDS) + 1) for phase in Phase}
        self._seconds = dict.fromkeys(Phase, 0.0)

    @contextmanager
    def request(self, request: web.Request, call: Call, dialect: str) -> Iterator[None]:
        """Count a request, whose span is made soon after its end. A trace of the client's is continued."""
        refused = None
        call.parent = propagate.extract(request.headers) if "traceparent" in request.headers else get_current()
        try:
            yield
            refused = call.refused
        except (OSError, asyncio.CancelledError) as error:  # another backend's break has a status
            call.status, call.problem = getattr(error, "status", _CLIENT_GONE), getattr(error, "code", "client_gone")
            raise
        except StrandsSGLangError as error:
            refused = Refused.of(error)
            raise
        except Exception as error:
            call.status, call.problem = getattr(error, "status", 500), type(error).__name__  # aiohttp's errors have one
            raise
        finally:
            if refused is not None:
                call.status, call.problem = refused.status, refused.code or "refused"
            self._requests[dialect, str(call.status)] += 1
            call.ended = self.note(Phase.REQUEST, call, call.began)
            if not self._ended:
                asyncio.get_running_loop().call_later(_SPAN_DELAY, self.make_spans)
            self._ended.append(call)

    def make_spans(self) -> None:
        """Make the spans of the requests that have ended."""
        calls, self._ended = self._ended, []
        for call in calls:
            call.make_span()

    def note(self, phase: Phase, call: Call, began: int) -> int:
        """Take the time of a phase that began at this time, in nanoseconds, and ends now."""
        ended = time.time_ns()
        seconds = (ended - began) / 1e9
        self._buckets[phase][bisect_left(_BOUNDS, seconds)] += 1
        self._seconds[phase] += seconds
        if phase is not Phase.REQUEST:
            call.phases.append((phase, began, ended))
        return ended

    def metrics(self, held: Iterable[Counters], states: Mapping[str, int], in_flight: int) -> bytes:
        """Everything, in the text format of Prometheus.

        Args:
            held: Counters of the sessions that are held.
            states: Their number by state.
            in_flight: Number of turns that are being sampled.
        """
        from prometheus_client import generate_latest

        families = self._collect([self.deleted, *held], states, in_flight)
        return generate_latest(SimpleNamespace(collect=lambda: families))

    def _collect(self, counts: Sequence[Counters], states: Mapping[str, int], in_flight: int) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        # Thousands of sessions in a few milliseconds, for nothing is served meanwhile.
        names = [name for _, fields in _COUNTS.values() for name in fields]
        sums = map(sum, zip(*map(attrgetter(*names), counts), strict=True))
        total = dict(zip(names, map(sub, sums, attrgetter(*names)(self.restored)), strict=True))
        roots = Counter(chain.from_iterable(count.roots.elements() for count in counts)) - self.restored.roots
        cached = total["cached_tokens"] / max(total["input_tokens"], 1)
        families: list[tuple[Any, str, str, tuple[str, ...], Mapping[Any, float]]] = [
            (CounterMetricFamily, "requests", "Requests", ("dialect", "status"), self._requests),
            (GaugeMetricFamily, "sessions", "Sessions held", ("state",), {(name,): n for name, n in states.items()}),
            (GaugeMetricFamily, "in_flight", "Turns being sampled", (), {(): in_flight}),
            (GaugeMetricFamily, "cached_share", "Share of prompt tokens found in a cache", (), {(): cached}),
            (CounterMetricFamily, "roots", "New roots", ("reason",), {(name,): n for name, n in roots.items()}),
        ]
        for name, (text, fields) in _COUNTS.items():
            kinds = {(field.removesuffix("_tokens"),): total[field] for field in fields}
            families.append((CounterMetricFamily, name, text, ("kind",), kinds))
        for kind, name, text, labels, values in families:
            family = kind(f"strands_gateway_{name}", f"{text}.", labels=labels)
            for value, number in values.items():
                family.add_metric(value, number)
            yield family
        times = HistogramMetricFamily("strands_gateway_seconds", "Times of requests.", labels=["phase"])
        for phase, buckets in self._buckets.items():
            bounds = [*map(str, _BOUNDS), "+Inf"]
            times.add_metric([phase], list(zip(bounds, accumulate(buckets), strict=True)), self._seconds[phase])
        yield times
