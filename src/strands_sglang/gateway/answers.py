"""Which request gets which answer.

Equal requests are separate samples: an agent that asks N times wants N. A request gets an answer that is there
already, or is being sampled, only if it repeats the one that it was meant for, which is known

- if the client of an equal request went away before it had the answer, which is sampled on for a second in case that
  the client returns. The next equal request takes the answer over, marked or not: Claude Code and Codex
  repeat requests without a mark;
- if it ends with the first pieces of that answer;
- if it carries the `Idempotency-Key` of that request, or a retry count above 0, and no other answer can be meant.

In doubt a request is sampled: another sample is exact, a copy is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..cache import Recent
from ..conversation import PreparedTurn, SampledTurn
from ..trajectory import Message, TrajectoryForest, Turn, digest
from .counters import Counters
from .dialects.wire import Origin, Refused, WireRequest
from .exact_json import dumps

_REMEMBERED = 1024  # inputs of a session whose answers can still be asked for again
PREFILLED = "the last message must not be the assistant's: a reply is never prefilled"
_GRACE = 1.0  # seconds for which a reply that nobody waits for is sampled on


@dataclass(slots=True, eq=False)
class Answer:
    """The answer to a request, perhaps still being sampled. Each request for it has it in its own form.

    Attributes:
        key: Equal for equal requests.
        counters: Counts of the client that asked first.
        is_final: The final answer, after which every request is refused.
        number: Order in the session.
        task: Its sampling.
        turn: The turn, once it is sampled.
        created: Unix time in seconds.
        waiters: Number of requests that wait or are being answered.
        is_owed: A connection was cut before its client had the answer: the next equal request takes it over.
        is_lost: It was aborted, or failed: nobody gets it.
    """

    key: bytes
    counters: Counters
    is_final: bool = False
    number: int = field(default=0, init=False)
    task: asyncio.Future[SampledTurn] = field(init=False)
    turn: Turn | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    waiters: int = 0
    is_owed: bool = False
    is_delivered: bool = False
    is_lost: bool = False

    def begins_with(self, begun: Message) -> bool:
        """A client that has these pieces of a reply, and at least one, may have them from this answer."""
        if self.turn is None or begun.receipt not in (None, self.turn.index):
            return False
        reasoning, text, reply = begun.reasoning.strip(), begun.text.strip(), self.turn.reply
        is_equal = reasoning in ("", reply.reasoning.strip()) and text in ("", reply.text.strip())
        return is_equal and bool(reasoning or text)


class Answers:
    """The answers of a session, from the request that they are sampled for to the client that has them whole.

    `on_change` is told when the fate of an answer becomes known, or changes.
    """

    def __init__(self, forest: TrajectoryForest, on_change: Callable[[Answer], None]) -> None:
        self._forest, self._on_change = forest, on_change
        self._by_key: Recent[list[Answer]] = Recent(_REMEMBERED)
        self._count = 0

    def claim(self, key: bytes, *, is_retry: bool, joins_equal: bool, begun: Message | None = None) -> Answer | None:
        """The answer that a request repeats, or None if it is to be sampled.

        Args:
            is_retry: The client says that it repeats a request.
            joins_equal: Take any equal request in flight for the one that is repeated.
            begun: The pieces of the answer that the client has already.

        Raises:
            Refused: No answer begins like that.
        """
        answers = self._by_key.get(key) or []
        candidates = [answer for answer in answers if not answer.is_lost]
        if begun is not None:
            candidates = [answer for answer in candidates if answer.begins_with(begun)]
            if not candidates:
                raise Refused(PREFILLED, param="messages")
            answer = max(candidates, key=lambda answer: answer.is_owed)
            answer.is_owed = False
            return answer
        for answer in candidates:
            if answer.is_owed:
                answer.is_owed = False
                return answer
        if is_retry and (lost := next((answer for answer in answers if answer.is_lost), None)) is not None:
            answers.remove(lost)  # it may be a retry of this one, so it is not another's
        elif is_retry and len(candidates) == 1:
            return candidates[0]
        return next((answer for answer in candidates if joins_equal and not answer.task.done()), None)

    def add(self, answer: Answer) -> None:
        """Keep an answer whose sampling begins."""
        answer.number = self._count
        self._count += 1
        self._by_key.put(answer.key, [*(self._by_key.get(answer.key) or ()), answer])

    def finish(self, answer: Answer) -> bool:
        """Note that sampling has ended; True if the same input was sampled before."""
        if not answer.task.cancelled() and answer.task.exception() is None:
            answer.turn = answer.task.result().turn
        if answer.turn is None:
            answer.is_lost = True
        elif not answer.waiters:
            self._set_aside(answer)
        answers = self._by_key.get(answer.key) or []
        return any(other.turn is not None for other in answers if other is not answer)

    @contextlib.contextmanager
    def delivering(self, answer: Answer) -> Iterator[None]:
        """A request waits for an answer and is sent it: delivered at the end of the block, not if that raises."""
        answer.waiters += 1
        try:
            yield
        except BaseException:
            answer.waiters -= 1
            if not answer.waiters and not answer.is_delivered:
                if not answer.task.done():
                    answer.is_owed = True
                    asyncio.get_running_loop().call_later(_GRACE, self._stop, answer)
                elif answer.turn is not None:
                    self._set_aside(answer)
            raise
        answer.waiters -= 1
        answer.is_delivered, answer.is_owed = True, False
        if answer.turn is not None:
            self._forest.keep(answer.turn)  # it may have been set aside before
        self._on_change(answer)

    def note_cut(self, answer: Answer) -> None:
        """Note that a client reset its connection behind the answer, which it may not have read."""
        if answer.is_delivered and not answer.is_owed:
            answer.counters.cut += 1
        answer.is_owed = True
        self._on_change(answer)

    def _stop(self, answer: Answer) -> None:
        """End the sampling of an answer that nobody has asked for since its last client went away."""
        if not answer.waiters and not answer.task.done():
            answer.task.cancel()
            answer.is_lost = True

    def fail(self, answer: Answer) -> None:
        """Note that an answer cannot be written: nobody gets it, and a repeat is sampled anew."""
        if answer.turn is not None:
            answer.counters.undelivered += 1
            self._forest.discard(answer.turn)
            answer.turn = None
        answer.is_lost = True
        self._on_change(answer)

    def _set_aside(self, answer: Answer) -> None:
        """Keep an answer that no client got for a repeat; until then its turn counts as discarded."""
        assert answer.turn is not None
        answer.counters.undelivered += 1
        answer.is_owed = True
        self._forest.discard(answer.turn)
        self._on_change(answer)


def key_of(wire: WireRequest, origin: Origin, prepared: PreparedTurn) -> bytes:
    """Equal for equal requests in any form of answer; two sub-agents with one prompt are two."""
    request = prepared.request
    return digest(
        prepared.location.key,
        (origin.agent or "").encode(),
        (origin.idempotency_key or "").encode(),
        dumps([request.params, request.constraints, wire.tool_choice], sort_keys=True),
    )
