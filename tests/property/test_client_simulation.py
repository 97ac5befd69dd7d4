"""Hundreds of schedules of the HTTP client on a simulated network and clock; a failing seed replays exactly.

The real client runs; connections, time, jitter and request ids are simulated.

SIMULATION_SEEDS=20000 pytest tests/property/test_client_simulation.py    # more schedules
SIMULATION_FIRST=1234 SIMULATION_SEEDS=1 pytest ...                       # one of them again
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.client_proto import ResponseHandler

from strands_sglang import SGLangClient
from strands_sglang.backends import GenerateRequest, token_array
from strands_sglang.backends.http import connections, retry, server_client
from strands_sglang.exceptions import (
    SGLangClientError,
    SGLangConnectionError,
    SGLangDecodingError,
    SGLangHTTPError,
    SGLangThrottledError,
)
from tests.unit.simulation import simulate

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "300"))
FIRST = int(os.environ.get("SIMULATION_FIRST", "0"))
PART = 100
TIMEOUT, CONNECT_TIMEOUT, RETRY_AFTER = 4.0, 2.0, 7.0
EXACT = 1e-6

# docs/errors-and-retries.md, written down once more: the class of each fault, its error, and whether it may still run.
FAULTS: dict[str, tuple[str, type[SGLangClientError], bool]] = {
    "refused": ("unreachable", SGLangConnectionError, False),
    "no connection": ("unreachable", SGLangConnectionError, False),
    "stale": ("stale", SGLangConnectionError, True),
    "reset": ("reset", SGLangConnectionError, True),
    "hang": ("timeout", SGLangConnectionError, True),
    "408": ("timeout", SGLangHTTPError, True),
    "503": ("busy", SGLangThrottledError, False),
    "503, Retry-After": ("busy", SGLangThrottledError, False),
    "500": ("server_error", SGLangHTTPError, False),
    "502": ("gateway", SGLangHTTPError, True),
    "400": ("never", SGLangHTTPError, False),
    "half body": ("decoding", SGLangDecodingError, True),
    "foreign answer": ("decoding", SGLangDecodingError, True),
}
LIMITS = {"stale": 1, "reset": 5, "timeout": 2, "server_error": 3, "decoding": 3, "never": 0}
GOOD = ("good", "answered twice")


@dataclass
class Try:
    """An attempt: when it began, what became of it and when, on which connection."""

    began: float
    fault: str
    ended: float | None = None
    rid: str | None = None
    is_new: bool = True


@dataclass
class Call:
    """A call of the schedule, and what the network saw of it."""

    number: int
    rng: random.Random
    trouble: float
    faults: list[str]
    tries: list[Try] = field(default_factory=list)
    outcome: Any = None
    ended: float = 0.0

    def begin(self) -> None:
        """Before an attempt: decide what the network will do to it."""
        fault = self.rng.choice(self.faults) if self.rng.random() < self.trouble else "good"
        self.tries.append(Try(asyncio.get_running_loop().time(), fault))


current: ContextVar[Call] = ContextVar("current")


class Connection(asyncio.Transport):
    """One end of a simulated connection; what is written arrives at the server at once."""

    def __init__(self, network: Network, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.network, self.protocol = network, protocol
        self.loop = asyncio.get_running_loop()
        self.received, self.served, self.is_open = b"", 0, True
        self.is_poisoned = False  # a second copy of an answer lies in it
        network.connections.append(self)
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        self.received += bytes(data)
        head, end, body = self.received.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        if end and len(body) >= length:
            self.received = b""
            self.network.request(self, head.split(b" ")[1].decode(), body)
            self.served += 1

    def is_closing(self) -> bool:
        return not self.is_open

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.lose(None)

    abort = close

    def lose(self, error: Exception | None) -> None:
        if self.is_open:
            self.is_open = False
            self.loop.call_soon(self.protocol.connection_lost, error)

    def send(self, status: int, body: Any, *, cut: bool = False, headers: str = "") -> None:
        if self.is_open:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            head = (
                f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(data)}\r\n\r\n"
            )
            self.protocol.data_received(head.encode() + (data[: len(data) // 2] if cut else data))


class Network:
    """The server and everything before it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"network {seed}")
        self.connections: list[Connection] = []
        self.answers: dict[str, Any] = {}
        self.aborted: Counter[str] = Counter()
        self.calls: dict[str, Call] = {}  # by request id: requests are sent in a context of their own

    async def connect(self, path: str) -> ResponseHandler:
        """A connection for a request of this path."""
        if path == "/generate":
            attempt = self.calls[connections._sending.get().rid].tries[-1]
            if attempt.fault == "no connection":
                attempt.ended = asyncio.get_running_loop().time() + CONNECT_TIMEOUT
                await asyncio.sleep(2 * CONNECT_TIMEOUT)
            if attempt.fault == "refused":
                attempt.ended = asyncio.get_running_loop().time()
                raise ConnectionRefusedError(111, "refused")
        protocol = ResponseHandler(asyncio.get_running_loop())
        Connection(self, protocol)
        return protocol

    def request(self, connection: Connection, path: str, body: bytes) -> None:
        if path == "/generate":
            self.generate(connection, json.loads(body))
        elif path == "/abort_request":
            self.aborted[json.loads(body)["rid"]] += 1
            self.later(connection, self.rng.choice(["200", "200", "200", "503", "reset", "hang"]), {})
        else:
            self.later(connection, "404", {})

    def generate(self, connection: Connection, body: dict[str, Any]) -> None:
        attempt = self.calls[body["rid"]].tries[-1]
        attempt.rid, attempt.is_new = body["rid"], not connection.served
        assert body["rid"] not in self.answers, "a request id was sent twice"
        ids = [1000 + body["input_ids"][0]]
        answer = {"text": "", "output_ids": ids, "meta_info": {
            "id": body["rid"], "finish_reason": {"type": "stop"}, "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": 1}}  # fmt: skip
        others = [known for known in self.answers.values() if known["output_ids"] != ids]
        self.answers[body["rid"]] = answer
        if attempt.fault in ("refused", "no connection") or (attempt.fault == "foreign answer" and not others):
            attempt.fault = "good"
        if attempt.fault in ("stale", "reset"):
            attempt.fault = "reset" if attempt.is_new else "stale"
        if connection.is_poisoned:
            attempt.fault, attempt.ended = "foreign answer", connection.loop.time()
            return
        self.later(connection, attempt.fault, others[-1] if attempt.fault == "foreign answer" else answer, attempt)

    def later(self, connection: Connection, fault: str, answer: Any, attempt: Try | None = None) -> None:
        def happen() -> None:
            if attempt is not None:
                attempt.ended = connection.loop.time()
            if fault in ("stale", "reset"):
                connection.lose(ConnectionResetError(104, "reset"))
            elif fault == "half body":
                connection.send(200, answer, cut=True)
                connection.loop.call_later(0.0, connection.lose, None)
            elif fault[0].isdigit() and fault != "200":
                header = f"Retry-After: {RETRY_AFTER:g}\r\n" if fault.endswith("Retry-After") else ""
                connection.send(int(fault[:3]), {"error": {"message": "no"}}, headers=header)
            else:
                connection.send(200, answer)
                if fault == "answered twice":
                    connection.is_poisoned = True
                    connection.send(200, answer)

        if fault != "hang":
            connection.loop.call_later(self.rng.uniform(0.01, 1.5), happen)
        elif attempt is not None:
            attempt.ended = attempt.began + TIMEOUT


class Schedule:
    """The choices of a seed: calls, their starts and cancellations, the client's end, what it may repeat."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.network = Network(seed)
        trouble = rng.choice([0.3, 0.7, 1.0])
        # Few kinds of fault in a schedule, or no class would come to its limit.
        faults = rng.sample([*FAULTS, "answered twice"], rng.choice([1, 2, len(FAULTS)]))
        self.calls = [
            Call(number, random.Random(f"{seed} {number}"), trouble, faults) for number in range(rng.randint(1, 4))
        ]
        self.max_retries = rng.choice([0, 1, 3, 8])
        self.deadline = rng.choice([None, 15.0])
        self.slots = rng.choice([1, 100])
        self.close_at = rng.uniform(0, 20) if rng.random() < 0.3 else None
        self.cancel_at = {call.number: rng.uniform(0, 12) for call in self.calls if rng.random() < 0.2}
        self.closed_at = float("inf")
        if seed < len(FAULTS):  # each kind of fault alone and always, so that every limit of the table is come to
            self.calls = [Call(0, random.Random(f"{seed} 0"), 1.0, [list(FAULTS)[seed]])]
            self.max_retries, self.deadline, self.close_at, self.cancel_at = 8, None, None, {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        made = SGLangClient(
            "http://127.0.0.1:1", timeout=TIMEOUT, connect_timeout=CONNECT_TIMEOUT, max_connections=self.slots,
            max_retries=self.max_retries, retry_delay=1.0, max_retry_delay=5.0, retry_deadline=self.deadline,
        )  # fmt: skip
        made._rng = random.Random(self.seed)
        tasks = [loop.create_task(self.call(made, call)) for call in self.calls]
        for number, at in self.cancel_at.items():
            loop.call_later(at, tasks[number].cancel)
        if self.close_at is not None:
            await asyncio.wait(tasks, timeout=self.close_at)
            self.closed_at = loop.time()
            await made.close()
        async with asyncio.timeout(1000):
            await asyncio.wait(tasks)
        assert not any(each.slots.locked() for each in made._transports.values()), "a slot was not given back"
        await made.close()
        assert made._transports == {}
        await asyncio.sleep(0)
        assert not [held for held in self.network.connections if held.is_open], "a connection is left open"
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a task is left over"

    async def call(self, made: SGLangClient, call: Call) -> None:
        current.set(call)
        try:
            await asyncio.sleep(call.rng.random() * 3)
            request = GenerateRequest(
                prompt=token_array([call.number, 7]), sampling_params={"max_new_tokens": 4}, before_attempt=call.begin
            )
            call.outcome = dict((await made.ask(request)).payload)
        except BaseException as error:
            call.outcome = error
        call.ended = asyncio.get_running_loop().time()

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        assert self.network.aborted.keys() <= self.network.answers.keys(), "what was never sent was aborted"
        for call in self.calls:
            self.check_call(call)

    def check_call(self, call: Call) -> None:
        ended_itself = isinstance(call.outcome, SGLangClientError) and "client was closed" not in str(call.outcome)
        if ended_itself and call.tries[-1].ended is None:
            late = call.tries.pop()  # its turn came after the deadline, and it was not made
            assert late.rid is None and self.deadline is not None and self.slots == 1
            assert late.began - call.tries[0].began > self.deadline
        last = call.tries[-1] if call.tries else None
        if isinstance(call.outcome, dict):
            assert call.outcome["output_ids"] == [1000 + call.number], "an answer of another call"
            assert last is not None and last.fault in GOOD
        cut = isinstance(call.outcome, asyncio.CancelledError) or (
            isinstance(call.outcome, SGLangConnectionError) and "client was closed" in str(call.outcome)
        )
        if cut:
            assert call.number in self.cancel_at or call.ended >= self.closed_at
        elif not isinstance(call.outcome, dict):
            assert isinstance(call.outcome, FAULTS[last.fault][1]), (last.fault, call.outcome)
        self.check_table(call, cut)
        # A call that was cut ends when the server has been told.
        cut_at = self.cancel_at[call.number] if isinstance(call.outcome, asyncio.CancelledError) else self.closed_at
        for place, attempt in enumerate(call.tries):
            interrupted = cut and place == len(call.tries) - 1
            known = (
                attempt.fault in FAULTS and attempt.ended is not None and not (interrupted and attempt.ended >= cut_at)
            )
            if attempt.rid is None:
                continue
            if interrupted and not known and attempt.fault not in GOOD and attempt.ended is None:
                assert self.network.aborted[attempt.rid], "a request may still run"
            elif known:
                assert bool(self.network.aborted[attempt.rid]) == FAULTS[attempt.fault][2], attempt
            elif not interrupted:
                assert not self.network.aborted[attempt.rid], "an answered request was aborted"

    def check_table(self, call: Call, cut: bool) -> None:
        """Attempts and the waits between them follow the written table."""
        used: Counter[str] = Counter()
        paid, needs_new = 0, False
        for attempt, following in itertools.zip_longest(call.tries, call.tries[1:]):
            assert attempt.is_new or not needs_new, "an old connection after one that was bad"
            if attempt.fault in GOOD or (following is None and cut):
                assert following is None, "a good answer was asked for again"
                return
            kind = FAULTS[attempt.fault][0]
            needs_new = needs_new or kind in ("stale", "decoding")
            if kind == "stale" and used[kind]:
                kind = "reset"
            is_free = kind == "stale"
            ceiling = 0.0 if is_free else min(5.0, 2.0**paid)
            asked = RETRY_AFTER if attempt.fault.endswith("Retry-After") else 0.0
            low, high = max(ceiling / 2, asked), max(ceiling, asked)
            spent = attempt.ended - call.tries[0].began
            limit = LIMITS.get(kind, self.max_retries)
            is_final = used[kind] >= (limit if is_free else min(limit, self.max_retries))
            is_final = is_final or (not is_free and paid >= self.max_retries)
            late = self.deadline is not None and spent + high > self.deadline
            if following is None:
                assert is_final or late or (self.slots == 1 and self.deadline), f"given up too early after {attempt}"
                return
            assert not is_final, f"repeated too often after {attempt}"
            assert self.deadline is None or following.began - call.tries[0].began <= self.deadline + EXACT
            waited = following.began - attempt.ended
            assert waited >= low - EXACT, f"waited {waited} after {attempt}"
            assert self.slots == 1 or waited <= high + EXACT, f"waited {waited} after {attempt}"
            used[kind] += 1
            paid += not is_free


def schedule(seed: int) -> list[Any]:
    """One schedule; returns what happened."""
    made = Schedule(seed)
    ids = itertools.count()
    with pytest.MonkeyPatch.context() as patch:

        async def connect(_: connections._Connector, request: Any, *args: Any) -> ResponseHandler:
            return await made.network.connect(request.url.path)

        def new_rid() -> str:
            rid = f"{next(ids):032x}"
            made.network.calls[rid] = current.get()
            return rid

        patch.setattr(connections._Connector, "_create_connection", connect)
        patch.setattr(server_client, "_new_rid", new_rid)
        patch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time()))
        simulate(seed, made.run)
    made.check()
    return [
        [[(a.began, a.fault, a.ended, a.is_new) for a in call.tries], call.ended, repr(call.outcome)]
        for call in made.calls
    ] + [sum(made.network.aborted.values())]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setattr("strands_sglang.backends.http.transport.logger.disabled", True)
    monkeypatch.setattr("strands_sglang.backends.http.server_client.logger.disabled", True)


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, PART))
def test_every_call_ends_and_every_request_that_may_still_run_is_aborted(first):
    for seed in range(first, min(first + PART, FIRST + SEEDS)):
        try:
            schedule(seed)
        except BaseException as error:
            error.add_note(f"schedule {seed}: SIMULATION_FIRST={seed} SIMULATION_SEEDS=1")
            raise


@pytest.mark.parametrize("seed", [3, 14, 15])
def test_a_schedule_replays_exactly(seed):
    assert schedule(seed) == schedule(seed)
