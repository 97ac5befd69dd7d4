"""A session: one rollout behind a key. `Session.serve` is the way of a request, on one page."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import Any

from aiohttp import web

from ..conversation import PreparedTurn, SampledTurn
from ..exceptions import TokenBudgetReachedError
from ..trajectory import History, Role
from .answers import Answer, Answers, key_of
from .counters import Counters, counters_of
from .delivery import Exchange, as_json
from .dialects.wire import Origin, Refused, WireRequest
from .exact_json import dumps
from .passing import OtherBackend, OtherBackendError, OtherBackends
from .requests import new_key
from .reward import Reward
from .session_log import MainAgent, SessionLog, SessionState
from .session_options import MaxRequestsReachedError, MaxSecondsReachedError
from .state import LogFile
from .telemetry import Call, Phase
from .translation import Translation


@dataclass(slots=True, eq=False, kw_only=True)
class Session(SessionState):
    """A session that is served: its state, its keys, and its answers in flight.

    Attributes:
        gateway_url: Gives the gateway's address, empty before it listens.
        failure: The error of the last request (a limit, an overflow, the model server); None after a success.
        log: Where it writes down the events that a restart needs.
        is_exported: All rows were sent after the close, whether or not anybody read them.
        reward_key: Key that sets the reward. The agent has `key` alone, unless it is to score itself.
    """

    key: str
    reward_key: str = field(default_factory=new_key)
    gateway_url: Callable[[], str] = lambda: ""
    other_backends: OtherBackends = field(default_factory=lambda: OtherBackends({}))
    is_exported: bool = False
    is_suspended: bool = False
    failure: Exception | None = None
    last_used: float = field(default_factory=time.monotonic)
    file: InitVar[LogFile]
    log: SessionLog = field(init=False)
    _tasks: set[asyncio.Task[SampledTurn]] = field(default_factory=set)
    _serving: int = 0
    _passing: int = 0
    _slots: contextlib.AbstractAsyncContextManager[Any] = field(default_factory=contextlib.nullcontext)

    def __post_init__(self, file: LogFile) -> None:
        self.log = SessionLog(self, file)
        self.translation = Translation(self.conversation, self.options, self.secret)
        self.answers = Answers(self.conversation.forest, self.log.note_fate)
        if self.options.limits.max_parallel is not None:
            self._slots = asyncio.Semaphore(self.options.limits.max_parallel)

    # ---- for its maker ------------------------------------------------

    @property
    def anthropic_url(self) -> str:
        """Address for Anthropic clients, which append `/v1/messages`; empty before the gateway listens."""
        url = self.gateway_url()
        return url and f"{url}/s/{self.id}"

    @property
    def base_url(self) -> str:
        """Address for OpenAI clients, `/v1` included; empty before the gateway listens."""
        return self.anthropic_url and f"{self.anthropic_url}/v1"

    @property
    def google_url(self) -> str:
        """Address for Google clients, which append `/v1beta/models/...`."""
        return self.anthropic_url

    @property
    def is_idle(self) -> bool:
        """True for an open session in which nothing is in flight."""
        return not (self.is_sealed or self._tasks or self._serving)

    @property
    def in_flight(self) -> int:
        """Number of replies that are being sampled."""
        return len(self._tasks)

    def set_reward(self, value: float | None, *, turns: Any = None, info: Any = None) -> Reward:
        """Set the reward, in place of an earlier one.

        Args:
            value: Of the whole session; None for no score.
            turns, info: See `Reward.of`.

        Raises:
            TypeError, ValueError: See `Reward.of`.
            Refused: Another reward is final.
            StateFullError: It could not be written down.
        """
        reward = Reward.of(value, turns, info, self.translation.turn_names())
        if self.is_reward_final and reward != self.reward:
            what = f"the reward of session {self.id} has been exported and cannot be changed; set it before that"
            raise Refused(what, status=409, code="reward_final")
        self.log.note(reward=reward.to_json(), is_held=False)
        self.reward = reward
        return reward

    def seal(self, *, is_final: bool = False) -> None:
        """Refuse later requests, also those after a restart; with `is_final`, also other rewards.

        Raises:
            StateFullError: It could not be written down, so the session stays open.
        """
        is_final |= self.is_reward_final
        if not self.is_sealed or is_final > self.is_reward_final:
            self.log.note(closed=True, is_final=is_final, is_held=False)
        self.is_sealed, self.is_reward_final = True, is_final

    async def close(self, *, is_final: bool = False) -> None:
        """Seal the session: answers in flight are waited for, later requests are refused. Trajectories stay."""
        self.seal(is_final=is_final)
        await self._end_tasks()
        self.conversation.free_scratch()

    async def _end_tasks(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
            await asyncio.sleep(0)  # the callbacks that take them out

    async def drop(self, *, is_kept: bool = False) -> None:
        """Abort answers in flight and seal the session, but for one that is kept for a restart of the gateway."""
        self.is_suspended |= is_kept
        self.is_sealed |= not is_kept
        for task in self._tasks:
            task.cancel()
        await self._end_tasks()

    def to_json(self) -> dict[str, Any]:
        """State and counters."""
        return {
            "id": self.id,
            "labels": dict(self.labels),
            "closed": self.is_sealed,
            "reward": self.reward and self.reward.to_json(),
            "in_flight": self.in_flight,
            "sampled_tokens": self.conversation.forest.sampled_tokens,
            "tool_parse_errors": self.conversation.tool_parse_errors,
            "counters": self.counters.to_json(),
            "clients": {name: counters.to_json() for name, counters in self.clients.items()},
        }

    # ---- a request ------------------------------------------------

    async def serve(self, exchange: Exchange) -> web.StreamResponse:
        """Answer one request: read it, prepare its turn, sample that or find the answer it repeats, and write it.

        Sampling belongs to the session, not to the connection: it ends early only when no client waits for it any more.

        Raises:
            Refused: There is no answer, and nothing was written.
            OSError: The client went away.
        """
        dialect, origin = exchange.dialect, exchange.origin
        counters = counters_of(self.clients, origin.client)
        self._serving += 1
        try:
            # Read.
            self._check_open()
            self.log.file.flush()  # nothing is sampled that could not be written down
            fields = await exchange.read()
            if (other := self.other_backends.find(fields)) is not None:
                return await self._pass_on(exchange, other, counters)
            wire = dialect.read(fields, self.translation.readings(dialect))
            await self.conversation.read_images(wire.history)
            write_count = dialect.count if exchange.route.counts else None
            if write_count is None:
                self._note(wire, exchange, counters)
                exchange.call.asks(self.id, wire, origin)
            # Prepare.
            prepared = await self._prepare(wire, origin, counters if write_count is None else Counters())
            if write_count is not None:
                return as_json(write_count(prepared.prompt_length))
            # Sample, or find the answer that is repeated.
            key = key_of(wire, origin, prepared)
            joins_equal = self.options.join_equal
            answer = self.answers.claim(key, is_retry=origin.is_retry, joins_equal=joins_equal, begun=wire.begun)
            if answer is None:
                answer = await self._start(wire, exchange, prepared, key, counters)
            elif answer.task.done():
                counters.replayed += 1
            else:
                counters.joined += 1
            # Write.
            with self.answers.delivering(answer):
                await exchange.wait(answer.task, stream=wire.stream)
                try:
                    body = self._write(exchange, wire, answer)
                except Exception as error:
                    body = exchange.refuse(Refused.of(error), stream=wire.stream)
                when_reset = partial(self.answers.note_cut, answer)
                return await exchange.send(body, stream=wire.stream, when_reset=when_reset)
        except OSError:
            raise
        except Exception:
            counters.refused += 1
            raise
        finally:
            self._serving -= 1
            self.last_used = time.monotonic()

    async def _pass_on(self, exchange: Exchange, other: OtherBackend, counters: Counters) -> web.StreamResponse:
        """Have another backend answer, within the session's limits."""
        self.began = self.began or time.monotonic()
        if (reached := self._find_reached()) is not None:
            raise Refused(str(reached), code="rollout_limit")
        self._passing += 1
        is_answered = True  # also for a client that breaks the answer off: it cost the other backend the same
        try:
            response = await self.other_backends.pass_on(exchange.request, exchange.dialect, other)
        except OtherBackendError as error:
            self.failure, is_answered = error, False
            raise
        finally:
            self._passing -= 1
            counters.passed += is_answered
            self.log.note()  # with the counts
        if isinstance(self.failure, OtherBackendError):
            self.failure = None
        return response

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """Record core errors and re-raise them as refusals."""
        try:
            yield
        except Exception as error:
            self.failure = error
            raise Refused.of(error) from error

    def _check_open(self) -> None:
        if self.is_suspended:
            what = "the gateway is being started again"
            raise Refused(what, status=503, code="restarting", retry_after=1, is_kept=True)
        if self.is_sealed:
            raise Refused(f"session {self.id} is closed", status=409, code="session_closed")

    def _note(self, wire: WireRequest, exchange: Exchange, counters: Counters) -> None:
        """Count a request with the parts left out of it, which a strict gateway refuses and the answer names."""
        self.began = self.began or time.monotonic()  # `max_seconds` counts from the first request, not from `open`
        is_forced = wire.tool_choice not in ("auto", "none")
        if self.options.strict and (is_forced or wire.unknown_tools):
            what = "a forced tool_choice" if is_forced else f"tools of type {', '.join(wire.unknown_tools)}"
            raise Refused(f"{what} is refused by a strict gateway", param="tool_choice" if is_forced else "tools")
        configured = self.conversation.config["sampling_params"]
        sampling = [name for name in wire.sampling if not self.options.client_sampling or name in configured]
        ignored = [*wire.ignored, *(["tool_choice"] if is_forced else []), *sampling]
        ignored = [wire.spelled.get(name, name) for name in ignored]
        counters.note(ignored=ignored, unknown_tools=wire.unknown_tools)
        exchange.headers["x-strands-session"] = self.id
        if ignored:
            exchange.headers["x-strands-ignored"] = ", ".join(sorted(set(ignored)))

    def _find_reached(self) -> Exception | None:
        """The limit that a further request would break, or None."""
        options, limits, counters = self.options, self.options.limits, self.counters
        keeps_last = options.final_words is not None  # the last request, for the final answer
        requests = counters.sampled + self.in_flight + counters.passed + self._passing
        if limits.max_requests is not None and requests >= limits.max_requests - keeps_last:
            return MaxRequestsReachedError(limits.max_requests, requests)
        if limits.max_seconds is not None and time.monotonic() - (self.began or 0.0) >= limits.max_seconds:
            return MaxSecondsReachedError(limits.max_seconds)
        budget, sampled = self.conversation.config["max_sampled_tokens"], self.conversation.forest.sampled_tokens
        if keeps_last and budget is not None and sampled >= budget - options.final_tokens(budget):
            return TokenBudgetReachedError("max_sampled_tokens", budget, sampled)
        return None

    def _must_end(self, wire: WireRequest, origin: Origin) -> bool:
        """True if the answer is to be the final one; refuses at a limit that leaves no answer."""
        reached = self._find_reached()
        if reached is None:
            return False
        has_tools = bool(wire.tools)
        main = self.main_agents.get(has_tools, MainAgent(origin.agent))
        is_main = origin.agent == main.name and (has_tools or True not in self.main_agents)
        if self.options.final_words is not None and is_main and not self.has_ended:
            return True
        self.failure = reached
        raise Refused(str(reached), code="rollout_limit")

    async def _prepare(
        self, wire: WireRequest, origin: Origin, counters: Counters, *, final: str | None = None
    ) -> PreparedTurn:
        """Locate and render a request, in a thread where that takes long."""
        with self._noting_failure():
            turn_request = self.translation.read(wire, origin, counters, final=final)
            if self.main_agents and origin.agent not in (None, self.main_agent.name):
                turn_request = replace(turn_request, role=Role.SUBAGENT, parent_agent=self.main_agent.name)
            prepared = await self.conversation.prepare_aside(turn_request)
            self._check_open()
        return prepared

    async def _start(
        self, wire: WireRequest, exchange: Exchange, prepared: PreparedTurn, key: bytes, counters: Counters
    ) -> Answer:
        """Begin to sample a turn, with the words that ask for a final answer where a limit is reached."""
        origin = exchange.origin
        if is_final := self._must_end(wire, origin):
            # Not in the key: a repeat comes without them.
            self.has_ended = True
            try:
                prepared = await self._prepare(wire, origin, Counters(), final=self.options.final_words)
            except BaseException:
                self.has_ended = False
                raise
        answer = Answer(key=key, counters=counters, is_final=is_final)
        answer.task = task = asyncio.create_task(self._sample(prepared, exchange.call))
        self._tasks.add(task)
        self.answers.add(answer)
        self.log.note_question(answer, agent=prepared.request.agent, has_tools=bool(prepared.request.tools))

        def finish(task: asyncio.Task[SampledTurn]) -> None:
            self._tasks.discard(task)
            self.last_used = time.monotonic()  # also where no client waits for it any more
            is_sibling = self.answers.finish(answer)
            if answer.turn is None:
                self.has_ended &= not is_final
            else:
                counters.count_turn(prepared, answer.turn, is_final=is_final, is_sibling=is_sibling)
                self.log.note_answer(answer, prepared.history)  # before those who wait for it wake up

        task.add_done_callback(finish)
        return answer

    async def _sample(self, prepared: PreparedTurn, call: Call) -> SampledTurn:
        request = prepared.request
        main = self.main_agents.setdefault(bool(request.tools), MainAgent(request.agent))
        left: float | None = None
        if self.options.limits.max_seconds is not None and self.options.final_words is None:  # or it is finished
            left = self.options.limits.max_seconds - (time.monotonic() - (self.began or 0.0))
        with self._noting_failure():
            began = time.time_ns()
            try:
                async with asyncio.timeout(left) as time_limit, self._slots:  # the wait for a slot counts too
                    if self.options.limits.max_parallel is not None:
                        self.telemetry.note(Phase.WAIT, call, began)
                        began = time.time_ns()
                    sampled = await self.conversation.sample(prepared)
                    self.telemetry.note(Phase.SAMPLING, call, began)
            except TimeoutError:
                if not time_limit.expired():
                    raise
                raise MaxSecondsReachedError(self.options.limits.max_seconds or 0.0) from None
        self.failure = None
        if request.agent == main.name:
            main.turn, main.history = sampled.turn, History(prepared.history, sampled.reply)
        return sampled

    def _write(self, exchange: Exchange, wire: WireRequest, answer: Answer) -> bytes:
        """The whole answer, before its first byte is sent; one that cannot be written is refused and forgotten."""
        dialect = exchange.dialect
        try:
            sampled = answer.task.result()
        except asyncio.CancelledError:
            self._check_open()
            raise Refused("the session was dropped", status=409, code="session_closed") from None
        try:
            reply = self.translation.write(wire, answer, sampled)
            exchange.call.is_answered(reply, sampled.turn)
            if wire.kept_by is not None:
                self.log.note_history(answer, wire.history)
            body = b"".join(dialect.events(wire, reply)) if wire.stream else dumps(dialect.answer(wire, reply))
        except Exception as error:  # of any kind: a repeat would meet it again
            self.answers.fail(answer)
            self.failure = refused = Refused.of(error)
            refused.code = "unwritable"
            raise refused from error
        self.log.file.flush()
        return body
