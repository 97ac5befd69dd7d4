"""A session: one rollout behind a key. `Session.serve` is the way of a request, on one page."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

from ..cache import Recent
from ..conversation import Conversation, PreparedTurn, SampledTurn, TurnRequest
from ..conversation.messages import read, refusal_note, report_refused
from ..conversation.options import MalformedCalls, RefusedResults
from ..exceptions import MessageConversionError
from ..trajectory import Trajectory, Turn, digest
from .answers import Answer, Answers
from .canonical import Message, MessagePlacement, Readings, arrange, without_volatile
from .counters import Counters, counters_of
from .delivery import Exchange, as_json, hide
from .dialects import CALL_PREFIXES
from .dialects.reading import UNSHOWN, reasoning_block
from .dialects.wire import Origin, Refused, WireCall, WireDialect, WireReply, WireRequest
from .exact_json import dumps
from .options import MaxSecondsReachedError, SessionOptions
from .receipts import Receipts

_REMEMBERED_RESPONSES = 64  # of a session, that `previous_response_id` can name
_REMEMBERED_ITEMS = 1024  # of a session, that `item_reference` can name
_FINISHES = {"end_turn": "stop", "tool_use": "tool_calls"}


@dataclass(slots=True, eq=False)
class MainAgent:
    """The agent that began, among those with tools or those without: its last turn, and the messages up to it."""

    name: str | None
    turn: Turn | None = None
    messages: list[Message] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Session:
    """One rollout behind a key.

    Attributes:
        id: Its name in paths.
        clients: Counters by client.
        gateway_url: Gives the gateway's address, empty before it listens.
        failure: The error of the last request (a limit, an overflow, the model server); None after a success.
    """

    id: str
    key: str
    conversation: Conversation
    options: SessionOptions = field(default_factory=SessionOptions)
    labels: Mapping[str, Any] = field(default_factory=dict)
    gateway_url: Callable[[], str] = lambda: ""
    clients: dict[str, Counters] = field(default_factory=dict)
    is_sealed: bool = False
    failure: Exception | None = None
    last_used: float = field(default_factory=time.monotonic)
    _readings: defaultdict[str, Readings] = field(default_factory=lambda: defaultdict(Readings))
    _receipts: Receipts = field(default_factory=Receipts)
    _call_ids: dict[str, str] = field(default_factory=dict)
    _answers: Answers = field(init=False)
    _tasks: set[asyncio.Task[SampledTurn]] = field(default_factory=set)
    _placements: dict[bool, MessagePlacement] = field(default_factory=dict)
    _main: dict[bool, MainAgent] = field(default_factory=dict)  # with tools, and without
    _responses: Recent[list[Message]] = field(default_factory=lambda: Recent(_REMEMBERED_RESPONSES))
    _items: Recent[dict[str, Any]] = field(default_factory=lambda: Recent(_REMEMBERED_ITEMS))
    _began: float | None = None
    _has_ended: bool = False
    _serving: int = 0
    _slots: contextlib.AbstractAsyncContextManager[Any] = field(default_factory=contextlib.nullcontext)

    def __post_init__(self) -> None:
        self._answers = Answers(self.conversation.forest)
        if self.options.max_parallel is not None:
            self._slots = asyncio.Semaphore(self.options.max_parallel)

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
    def counters(self) -> Counters:
        """Counts of all clients together, as they are now."""
        return sum(self.clients.values(), Counters())

    @property
    def trajectories(self) -> list[Trajectory]:
        """Every path of the session; each sampled token carries loss in exactly one of them."""
        return self.conversation.trajectories

    @property
    def history(self) -> list[Message]:
        """The conversation of the main agent with its last reply, as Strands messages.

        The main agent is the one that began. Requests without tools (titles, summaries) count only without others.
        """
        return list(self._last.messages)

    @property
    def last_turn(self) -> Turn | None:
        """The turn that gave the last reply of `history`."""
        return self._last.turn

    @property
    def _last(self) -> MainAgent:
        known = (self._main.get(True), self._main.get(False))
        return next((main for main in known if main is not None and main.turn is not None), MainAgent(None))

    @property
    def is_idle(self) -> bool:
        """True for an open session in which nothing is in flight."""
        return not (self.is_sealed or self._tasks or self._serving)

    async def close(self) -> None:
        """Seal the session: answers in flight are waited for, later requests are refused. Trajectories stay."""
        self.is_sealed = True
        while self._tasks:
            await asyncio.wait(self._tasks)
            await asyncio.sleep(0)  # the callbacks that take them out

    async def drop(self) -> None:
        """Seal the session and abort what is in flight."""
        for task in self._tasks:
            task.cancel()
        await self.close()

    def to_json(self) -> dict[str, Any]:
        """State and counters."""
        return {
            "id": self.id,
            "labels": dict(self.labels),
            "closed": self.is_sealed,
            "in_flight": len(self._tasks),
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
            self._check_open()
            wire = dialect.read(await exchange.read(), self._readings[dialect.name])
            readable = []
            for message in wire.messages:
                with contextlib.suppress(MessageConversionError):
                    readable.append(read(message))
            await self.conversation.read_images(readable)
            write_count = dialect.count if exchange.route.counts else None
            if write_count is None:
                self._note(wire, exchange, counters)
            with self._noting_failure():
                prepared = await self._prepare(wire, origin, counters if write_count is None else Counters())
            if write_count is not None:
                return as_json(write_count(prepared.prompt_length))
            key = _key_of(wire, origin, prepared)
            answer = self._answers.claim(key, is_retry=origin.is_retry, joins_equal=self.options.join_equal)
            if answer is None:
                answer = await self._start(wire, origin, prepared, key, counters)
            elif answer.task.done():
                counters.replayed += 1
            else:
                counters.joined += 1
            with self._answers.delivering(answer):
                await exchange.wait(answer.task, stream=wire.stream)
                try:
                    body = self._write(dialect, wire, answer)
                except Refused as refused:
                    body = exchange.refuse(refused, stream=wire.stream)
                when_reset = partial(self._answers.note_cut, answer)
                return await exchange.send(body, stream=wire.stream, when_reset=when_reset)
        except OSError:
            raise
        except Exception:
            counters.refused += 1
            raise
        finally:
            self._serving -= 1

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """Record core errors and re-raise them as refusals."""
        try:
            yield
        except Exception as error:
            self.failure = error
            raise Refused.of(error) or error from error

    def _check_open(self) -> None:
        if self.is_sealed:
            raise Refused(f"session {self.id} is closed", status=409, code="session_closed")

    def _note(self, wire: WireRequest, exchange: Exchange, counters: Counters) -> None:
        """Count a request with what is left out of it, which a strict gateway refuses and the answer names."""
        self.last_used = time.monotonic()
        self._began = self._began or self.last_used  # `max_seconds` counts from the first request, not from `open`
        is_forced = wire.tool_choice not in ("auto", "none")
        if self.options.strict and (is_forced or wire.unknown_tools):
            what = "a forced tool_choice" if is_forced else f"tools of type {', '.join(wire.unknown_tools)}"
            raise Refused(f"{what} is refused by a strict gateway", param="tool_choice" if is_forced else "tools")
        configured = self.conversation.config["sampling_params"]
        sampling = [name for name in wire.sampling if not self.options.client_sampling or name in configured]
        ignored = [*wire.ignored, *(["tool_choice"] if is_forced else []), *sampling]
        counters.note(ignored=ignored, unknown_tools=wire.unknown_tools)
        exchange.headers["x-strands-session"] = self.id
        if ignored:
            exchange.headers["x-strands-ignored"] = ", ".join(sorted(set(ignored)))

    def _must_end(self, wire: WireRequest, origin: Origin) -> bool:
        """True if the answer is to be the final one; refuses at a limit that leaves no answer."""
        reached = self.options.find_reached(
            requests=self.counters.sampled + len(self._tasks),
            seconds=time.monotonic() - (self._began or 0.0),
            sampled=self.conversation.forest.sampled_tokens,
            budget=self.conversation.config["max_sampled_tokens"],
        )
        if reached is None:
            return False
        has_tools = bool(wire.tools)
        main = self._main.get(has_tools, MainAgent(origin.agent))
        is_main = origin.agent == main.name and (has_tools or True not in self._main)
        if self.options.final_words is not None and is_main and not self._has_ended:
            return True
        self.failure = reached
        raise Refused(str(reached), code="rollout_limit")

    async def _prepare(
        self, wire: WireRequest, origin: Origin, counters: Counters, *, final: str | None = None
    ) -> PreparedTurn:
        """Locate and render a request, with the words that ask for a final answer at its end, if there are any."""
        system, rules = without_volatile(wire.system, self.options.volatile_rules)
        history = self._whole_history(wire)
        unshown = 0

        def show(block: Message) -> Message:
            nonlocal unshown
            shown = self._shown(block, wire)
            unshown += shown is not block
            return shown

        arranged = wire.reading.arrange(history, self._placement(wire), self._call_ids, show)
        counters.unshown += unshown
        if final is not None:
            asked_to_end = [*history, {"role": "system", "content": [{"text": final}]}]
            placement = self._placement(wire)
            arranged = arrange(asked_to_end, placement, self._call_ids, after=arranged, start=len(history))
        messages, moved, offset = arranged.messages, arranged.moved, len(history) - len(wire.messages)
        if not messages and not system:
            raise Refused("there is no message to answer; send one", param="messages")
        if messages and messages[-1]["role"] == "assistant":
            raise Refused("the last message must not be the assistant's: a reply is never prefilled", param="messages")
        # Receipts count the messages of this request, which may continue an earlier one.
        named = {moved[offset + index]: self._receipts.read(text) for index, text in wire.receipts.items()}
        receipts = {index: turn for index, turn in named.items() if turn is not None}
        for index, turn in receipts.items():  # equal replies with different receipts are different histories
            messages[index]["receipt"] = turn
        asked = TurnRequest(
            messages=messages,
            system=system or None,
            tools=wire.tools,  # type: ignore[arg-type]
            params=self._params(wire, is_final=final is not None),
            constraints=wire.constraints,
            agent=origin.agent,
            receipts=receipts,
            # Nobody expects calls then, so they go out as the text that they are.
            read_calls=wire.tool_choice != "none" and final is None,
            trim_stop=True,
            malformed_calls=MalformedCalls.TEXT,  # harnesses have answers of their own to what they cannot read
        )
        prepared = await self.conversation.prepare_aside(asked)
        self._check_open()
        counters.receipts += len(receipts)
        counters.volatile.update(rules)
        return prepared

    def _whole_history(self, wire: WireRequest) -> list[Message]:
        if wire.previous is None:
            return self._resolved(wire.messages)
        before = self._responses.get(wire.previous)
        if before is None:
            raise Refused(
                f"previous_response_id {wire.previous!r} is not known here; send the whole input",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        return [*before, *self._resolved(wire.messages)]

    def _resolved(self, messages: list[Message]) -> list[Message]:
        """The messages with the items that a client only names (Responses)."""
        resolved = list(messages)
        for index, message in enumerate(messages):
            if message["role"] == "assistant" and any("reference" in block for block in message["content"]):
                content = [self._items.get(b["reference"]) if "reference" in b else b for b in message["content"]]
                if None in content:
                    name = message["content"][content.index(None)]["reference"]
                    raise Refused(f"the item {name!r:.100} is not known here; send it whole", param="input")
                resolved[index] = {**message, "content": content}
        return resolved

    def _shown(self, block: Message, wire: WireRequest) -> Message:
        """A block that tools made; words stand for what cannot be shown, unless the policy refuses it."""

        def find_problem(part: Any, role: str = "tool") -> str | None:
            if UNSHOWN in part:
                return str(part[UNSHOWN])
            return self.conversation.find_problem(part, role=role, tools=wire.tools)  # type: ignore[arg-type]

        if self.options.strict or self.options.refused_results is RefusedResults.RAISE:
            return block
        if "toolResult" in block:
            result = report_refused(block["toolResult"], find_problem)
            return block if result is block["toolResult"] else {"toolResult": result}
        problem = find_problem(block, "user")
        return block if problem is None else refusal_note(block, problem)

    def _placement(self, wire: WireRequest) -> MessagePlacement:
        # Whether tools are there may change what a template prints; which ones does not.
        key = bool(wire.tools)
        if key not in self._placements:
            tools = wire.tools[:1]
            self._placements[key] = MessagePlacement(lambda chat: self.conversation.render(chat, tools))  # type: ignore[arg-type]
        return self._placements[key]

    def _params(self, wire: WireRequest, *, is_final: bool) -> dict[str, Any]:
        configured = self.conversation.config["sampling_params"]
        params = {name: value for name, value in wire.sampling.items() if name not in configured}
        if not self.options.client_sampling:
            params = {}
        bounds = [wire.max_tokens, self.options.max_new_tokens, configured.get("max_new_tokens")]
        budget = self.conversation.config["max_sampled_tokens"]
        if budget is not None and not is_final and (kept := self.options.final_tokens(budget)):
            # At least one: servers refuse a request for no tokens.
            bounds.append(max(budget - kept - self.conversation.forest.sampled_tokens, 1))
        known = [bound for bound in bounds if bound is not None]
        if known:
            params["max_new_tokens"] = min(known)
        if wire.stop:
            own = configured.get("stop") or []
            params["stop"] = [*([own] if isinstance(own, str) else own), *wire.stop]
        return params

    async def _start(
        self, wire: WireRequest, origin: Origin, prepared: PreparedTurn, key: bytes, counters: Counters
    ) -> Answer:
        """Begin to sample a turn, with the words that ask for a final answer where a limit is reached."""
        if is_final := self._must_end(wire, origin):
            # Not in the key: a repeat comes without them.
            self._has_ended = True
            try:
                with self._noting_failure():
                    prepared = await self._prepare(wire, origin, Counters(), final=self.options.final_words)
            except BaseException:
                self._has_ended = False
                raise
        answer = Answer(key=key, counters=counters, is_final=is_final)
        answer.task = asyncio.create_task(self._sample(prepared))
        self._tasks.add(answer.task)
        self._answers.add(answer)

        def finish(done: asyncio.Task[SampledTurn]) -> None:
            self._tasks.discard(done)
            self.last_used = time.monotonic()
            is_sibling = self._answers.finish(answer)
            if answer.turn is None:
                self._has_ended &= not is_final
            else:
                _count_turn(prepared, answer, answer.turn, is_sibling=is_sibling)

        answer.task.add_done_callback(finish)
        return answer

    async def _sample(self, prepared: PreparedTurn) -> SampledTurn:
        request = prepared.request
        main = self._main.setdefault(bool(request.tools), MainAgent(request.agent))
        left: float | None = None
        if self.options.max_seconds is not None and self.options.final_words is None:  # else a reply is finished
            left = self.options.max_seconds - (time.monotonic() - (self._began or 0.0))
        with self._noting_failure():
            try:
                async with asyncio.timeout(left) as time_limit, self._slots:  # the wait for a slot counts too
                    sampled = await self.conversation.sample(prepared)
            except TimeoutError:
                if not time_limit.expired():
                    raise
                raise MaxSecondsReachedError(self.options.max_seconds or 0.0) from None
        self.failure = None
        if request.agent == main.name:
            reply = sampled.reply
            calls = [(call.id, call.name, call.input) for call in reply.calls]
            said: list[Any] = [*request.messages, _message_of(reply.text, calls, reply.reasoning)]
            main.turn, main.messages = sampled.turn, said
        return sampled

    def _write(self, dialect: WireDialect, wire: WireRequest, answer: Answer) -> bytes:
        """The whole answer, before its first byte is sent; one that cannot be written is refused and forgotten."""
        try:
            sampled = answer.task.result()
        except asyncio.CancelledError:
            raise Refused("the session was dropped", status=409, code="session_closed") from None
        except Refused:
            raise
        except Exception as error:
            raise hide(error) from error
        try:
            reply = self._reply(wire, answer, sampled)
            return b"".join(dialect.events(wire, reply)) if wire.stream else dumps(dialect.answer(wire, reply))
        except Exception as error:  # whatever it is, a repeat would meet it again
            self._answers.fail(answer)
            self.failure = refused = hide(error)
            refused.code = "unwritable"
            raise refused from error

    def _reply(self, wire: WireRequest, answer: Answer, sampled: SampledTurn) -> WireReply:
        """The answer in the form that one request asked for."""
        turn, reply = sampled.turn, sampled.reply
        done = turn.completion
        calls = []
        for call in reply.calls:
            given = self._receipts.call_id(call.id)
            for prefix in CALL_PREFIXES:  # any dialect may bring it back
                self._call_ids[prefix + given] = call.id
            calls.append(WireCall(id=given, name=call.name, arguments=call.input))
        path = turn.path() if wire.token_ids else []
        held = [token for step in path[:-1] for token in (*step.prompt_ids, *step.completion.output_ids)]
        if wire.keeps_response:
            said = _message_of(reply.text, [(f"call_{call.id}", call.name, call.arguments) for call in calls])
            self._responses.put(f"resp_{answer.id}", [*self._whole_history(wire), said])
            for block in said["content"]:
                self._items.put(_item_id(answer.id, block), block)
            if reply.reasoning:
                self._items.put(f"rs_{answer.id}", reasoning_block(reply.reasoning))
        return WireReply(
            id=answer.id,
            created=answer.created,
            model=wire.model,
            reasoning=reply.reasoning,
            text=reply.text,
            calls=calls,
            finish=_FINISHES.get(reply.stop_reason, "length"),
            stop_string=reply.stop_string,
            prompt_tokens=sampled.prompt_length,
            # Clients subtract it from the prompt, which must not become negative.
            cached_tokens=min(done.cached_tokens or 0, sampled.prompt_length),
            output_tokens=len(done.output_ids),
            reasoning_tokens=self.conversation.reasoning_tokens(sampled) if reply.reasoning else 0,
            receipt=self._receipts.issue(turn.index),
            logprobs=self._logprobs(turn) if wire.logprobs else None,
            prompt_ids=[*held, *turn.prompt_ids] if wire.token_ids else None,
            output_ids=list(done.output_ids) if wire.token_ids else None,
        )

    def _logprobs(self, turn: Turn) -> list[tuple[str, float | None]]:
        done = turn.completion
        values = done.output_logprobs or [math.nan] * len(done.output_ids)
        texts = self.conversation.token_texts(done.output_ids)
        return [(text, None if math.isnan(value) else value) for text, value in zip(texts, values, strict=True)]


def _key_of(wire: WireRequest, origin: Origin, prepared: PreparedTurn) -> bytes:
    """Equal for equal requests, whatever the form of the answer; two sub-agents with one prompt are two."""
    asked = prepared.request
    return digest(
        prepared.location.key,
        (origin.agent or "").encode(),
        (origin.idempotency_key or "").encode(),
        dumps([asked.params, asked.constraints, wire.tool_choice], sort_keys=True),
    )


def _count_turn(prepared: PreparedTurn, answer: Answer, turn: Turn, *, is_sibling: bool) -> None:
    """Count a sampled turn, and what its client did to the reply before it."""
    counts, location, messages = answer.counters, prepared.location, prepared.request.messages
    counts.sampled += 1
    counts.final += answer.is_final
    counts.siblings += is_sibling
    counts.constrained += bool(prepared.request.constraints)
    counts.malformed += (malformed := sum(call.error is not None for call in turn.calls))
    counts.calls += len(turn.calls) - malformed
    counts.continued += any(message["role"] == "assistant" for message in messages)
    if location.parent is None:
        counts.roots[str(location.reason)] += 1
        return
    # The last reply as the client returned it, beside the one that was sampled.
    returned, reply = messages[location.first_new - 1]["content"], location.parent.reply
    ids = [block["toolUse"]["toolUseId"] for block in returned if "toolUse" in block]
    counts.extended += 1
    counts.ids_rewritten += ids != list(reply.call_ids)
    counts.reasoning_dropped += bool(reply.reasoning) and not any("reasoningContent" in b for b in returned)


def _message_of(text: str, calls: Iterable[tuple[str, str, Any]], reasoning: str = "") -> Message:
    blocks: list[dict[str, Any]] = [reasoning_block(reasoning)] if reasoning else []
    if text:
        blocks.append({"text": text})
    blocks += [{"toolUse": {"toolUseId": call_id, "name": name, "input": given}} for call_id, name, given in calls]
    return {"role": "assistant", "content": blocks}


def _item_id(answer_id: str, block: Message) -> str:
    """The id under which the Responses dialect gives a block."""
    return f"msg_{answer_id}" if "toolUse" not in block else "fc_" + block["toolUse"]["toolUseId"].partition("_")[2]
