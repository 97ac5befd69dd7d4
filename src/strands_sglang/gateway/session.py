"""A session: one rollout behind a key.

One request, in order:

1. a dialect has read the body into a `WireRequest` (`server`, `dialects`);
2. `_prepare` puts the history into canonical form, then the conversation locates the path it extends and renders it;
3. `Answers.claim` finds the answer that it repeats. If there is none, limits are checked and `_start` samples a turn.
   Sampling belongs to the session, not to the connection: it ends early only when no client waits for it any more;
4. `_sample` commits the turn, then keeps the main agent's history for the environment;
5. `reply` gives each client that waits the turn in the form that it asked for;
6. the server reports to `answers` whether the client got it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..cache import Recent
from ..conversation import Conversation, PreparedTurn, SampledTurn, TurnRequest
from ..conversation.messages import refusal_note, report_refused
from ..conversation.options import MalformedCalls, RefusedResults
from ..trajectory import Trajectory, Turn, digest
from .answers import Answer, Answers
from .canonical import VOLATILE_RULES, Message, MessagePlacement, Readings, arrange, without_volatile
from .counters import Counters, count, counters_of
from .dialects import CALL_PREFIXES
from .dialects.reading import UNSHOWN, reasoning_block
from .dialects.wire import Origin, Refused, WireCall, WireReply, WireRequest
from .exact_json import dumps
from .limits import Limits, MaxSecondsReachedError
from .receipts import Receipts

_REMEMBERED_RESPONSES = 64  # of a session, that `previous_response_id` can name
_REMEMBERED_ITEMS = 1024  # of a session, that `item_reference` can name
_FINISHES = {"end_turn": "stop", "tool_use": "tool_calls"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPolicy:
    """The gateway's choices where a request leaves one.

    Attributes:
        strict: Refuse what would otherwise be left out and counted: forced tool choice, unknown tool types, results of
            tools that cannot be shown.
        client_sampling: Honour sampling parameters of clients that the session does not set.
        join_equal: Take an equal request in flight for the same one, for clients that repeat requests on another
            connection without a mark. Agents that ask several times at once get copies then.
        volatile_rules: Names of the rules that take volatile lines out of system prompts.
        refused_results: Whether the model is told that the result of a tool cannot be shown (`report`), or the request
            is refused.
    """

    strict: bool = False
    client_sampling: bool = False
    join_equal: bool = False
    volatile_rules: tuple[str, ...] = tuple(VOLATILE_RULES)
    refused_results: RefusedResults = RefusedResults.REPORT


@dataclass(slots=True, eq=False)
class MainAgent:
    """The agent that began, among those with tools (`main`) or without (`aside`): its last turn, and what was said."""

    name: str | None
    turn: Turn | None = None
    messages: list[Message] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Session:
    """One rollout behind a key.

    Attributes:
        id: Its name in paths.
        base_url: Address for OpenAI clients, `/v1` included; empty before the gateway listens.
        anthropic_url: Address for Anthropic clients, which append `/v1/messages`.
        readings: Recent histories in canonical form, by dialect.
        failure: The error of the last request (a limit, an overflow, the model server); None after a success.
    """

    id: str
    key: str
    conversation: Conversation
    policy: GatewayPolicy = field(default_factory=GatewayPolicy)
    limits: Limits = field(default_factory=Limits)
    labels: Mapping[str, Any] = field(default_factory=dict)
    base_url: str = ""
    anthropic_url: str = ""
    counters: Counters = field(default_factory=Counters)
    clients: dict[str, Counters] = field(default_factory=dict)
    is_sealed: bool = False
    failure: Exception | None = None
    readings: defaultdict[str, Readings] = field(default_factory=lambda: defaultdict(Readings))
    last_used: float = field(default_factory=time.monotonic)
    _receipts: Receipts = field(default_factory=Receipts)
    _call_ids: dict[str, str] = field(default_factory=dict)
    answers: Answers = field(init=False)
    _tasks: set[asyncio.Task[SampledTurn]] = field(default_factory=set)
    _placements: dict[bytes, MessagePlacement] = field(default_factory=dict)
    _main: dict[str, MainAgent] = field(default_factory=dict)
    _responses: Recent[list[Message]] = field(default_factory=lambda: Recent(_REMEMBERED_RESPONSES))
    _items: Recent[dict[str, Any]] = field(default_factory=lambda: Recent(_REMEMBERED_ITEMS))
    _began: float | None = None
    _has_ended: bool = False
    _preparing: int = 0
    _slots: contextlib.AbstractAsyncContextManager[Any] = field(default_factory=contextlib.nullcontext)

    def __post_init__(self) -> None:
        self.answers = Answers(self.conversation.forest)
        if self.limits.max_parallel is not None:
            self._slots = asyncio.Semaphore(self.limits.max_parallel)

    # ---- for its maker ------------------------------------------------

    @property
    def google_url(self) -> str:
        """Address for Google clients, which append `/v1beta/models/...`."""
        return self.anthropic_url

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
        known = (self._main.get("main"), self._main.get("aside"))
        return next((main for main in known if main is not None and main.turn is not None), MainAgent(None))

    @property
    def is_idle(self) -> bool:
        """True for an open session in which nothing is in flight."""
        return not (self.is_sealed or self._tasks or self._preparing)

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

    # ---- for the dialects ------------------------------------------------

    async def count_tokens(self, request: WireRequest) -> int:
        """Number of tokens of the prompt that this request would send; nothing is recorded."""
        self._check_open()
        with self._failing():
            return (await self._prepare(request, Origin(), ())).prompt_length

    async def respond(self, request: WireRequest, origin: Origin) -> Answer:
        """The answer to a request: the one that it repeats, or a new one; raises `Refused`.

        The caller counts as a waiter until it calls `answers.deliver` or `answers.abandon`.
        """
        self._check_open()
        self.last_used = time.monotonic()
        self._began = self._began or self.last_used  # `max_seconds` counts from the first request, not from `open`
        counters = (self.counters, counters_of(self.clients, origin.client))
        is_forced = request.tool_choice not in ("auto", "none")
        if self.policy.strict and (is_forced or request.unknown_tools):
            what = "a forced tool_choice" if is_forced else f"tools of type {', '.join(request.unknown_tools)}"
            raise Refused(f"{what} is refused by a strict gateway", param="tool_choice" if is_forced else "tools")
        for counts in counters:
            counts.note(ignored=self.ignored_fields(request), unknown_tools=request.unknown_tools)
        with self._failing():
            prepared = await self._prepare(request, origin, counters)
            self._check_open()
        asked = prepared.request
        # The agent belongs to it: two sub-agents with one prompt are two. How the reply is wrapped does not.
        key = digest(
            prepared.location.key,
            (origin.agent or "").encode(),
            (origin.idempotency_key or "").encode(),
            dumps([asked.params, asked.constraints, request.tool_choice], sort_keys=True),
        )
        answer = self.answers.claim(key, is_retry=origin.is_retry, joins_equal=self.policy.join_equal)
        if answer is not None:
            count(counters, "replayed" if answer.task.done() else "joined")
        else:
            if is_final := self._must_end(request, origin):
                # The words that ask for it enter the prompt but not the key: a repeat comes without them.
                self._has_ended = True
                try:
                    with self._failing():
                        prepared = await self._prepare(request, origin, (), final=self.limits.final_words)
                        self._check_open()
                except BaseException:
                    self._has_ended = False
                    raise
            answer = Answer(key=key, counters=counters, is_final=is_final)
            self._start(answer, prepared)
        answer.waiters += 1
        return answer

    # ---- a turn ------------------------------------------------

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Record core errors and re-raise them as refusals."""
        try:
            yield
        except Exception as error:
            self.failure = error
            raise Refused.of(error) or error from error

    def _check_open(self) -> None:
        if self.is_sealed:
            raise Refused(f"session {self.id} is closed", status=409, code="session_closed")

    def _must_end(self, request: WireRequest, origin: Origin) -> bool:
        """True if the answer is to be the final one; refuses at a limit that leaves no answer."""
        limits = self.limits
        reached = limits.find_reached(
            requests=self.counters.sampled + len(self._tasks),
            seconds=time.monotonic() - (self._began or 0.0),
            sampled=self.conversation.forest.sampled_tokens,
            budget=self.conversation.config["max_sampled_tokens"],
        )
        if reached is None:
            return False
        kind = "main" if request.tools or "main" in self._main else "aside"
        main = self._main.get(kind, MainAgent(origin.agent))
        is_main = (kind == "main") == bool(request.tools) and origin.agent == main.name
        if limits.final_words is not None and is_main and not self._has_ended:
            return True
        self.failure = reached
        raise Refused(str(reached), code="rollout_limit")

    def ignored_fields(self, request: WireRequest) -> list[str]:
        """Fields of a request that have no effect in this session."""
        ignored = list(request.ignored)
        if request.tool_choice not in ("auto", "none"):
            ignored.append("tool_choice")
        configured = self.conversation.config["sampling_params"]
        honoured = self.policy.client_sampling
        ignored += [name for name in request.sampling if not honoured or name in configured]
        return ignored

    async def _prepare(
        self, request: WireRequest, origin: Origin, counters: tuple[Counters, ...], *, final: str | None = None
    ) -> PreparedTurn:
        """Locate and render a request, with the words that ask for a final answer at its end, if there are any."""
        system, rules = without_volatile(request.system, self.policy.volatile_rules)
        history = self._whole_history(request)
        unshown = 0

        def show(block: Message) -> Message:
            nonlocal unshown
            shown = self._shown(block, request)
            unshown += shown is not block
            return shown

        arranged = request.reading.arrange(history, self._placement(request), self._call_ids, show)
        for counts in counters or (self.counters,):
            counts.unshown += unshown
        if final is not None:
            asked_to_end = [*history, {"role": "system", "content": [{"text": final}]}]
            placement = self._placement(request)
            arranged = arrange(asked_to_end, placement, self._call_ids, after=arranged, start=len(history))
        messages, moved, offset = arranged.messages, arranged.moved, len(history) - len(request.messages)
        if not messages and not system:
            raise Refused("there is no message to answer; send one", param="messages")
        if messages and messages[-1]["role"] == "assistant":
            raise Refused("the last message must not be the assistant's: a reply is never prefilled", param="messages")
        # Receipts count the messages of this request, which may continue an earlier one.
        named = {moved[offset + index]: self._receipts.read(text) for index, text in request.receipts.items()}
        receipts = {index: turn for index, turn in named.items() if turn is not None}
        for index, turn in receipts.items():  # equal replies with different receipts are different histories
            messages[index]["receipt"] = turn
        asked = TurnRequest(
            messages=messages,  # type: ignore[arg-type]
            system=system or None,
            tools=request.tools,  # type: ignore[arg-type]
            params=self._params(request, is_final=final is not None),
            constraints=request.constraints,
            agent=origin.agent,
            receipts=receipts,
            # Nobody expects calls then, so they go out as the text that they are.
            read_calls=request.tool_choice != "none" and final is None,
            trim_stop=True,
            malformed_calls=MalformedCalls.TEXT,  # harnesses have answers of their own to what they cannot read
        )
        self._preparing += 1
        try:
            prepared = await self.conversation.prepare_aside(asked)
        finally:
            self._preparing -= 1
        for counts in counters:
            counts.receipts += len(receipts)
            counts.volatile.update(rules)
        return prepared

    def _whole_history(self, request: WireRequest) -> list[Message]:
        if request.previous is None:
            return self._resolved(request.messages)
        before = self._responses.get(request.previous)
        if before is None:
            raise Refused(
                f"previous_response_id {request.previous!r} is not known here; send the whole input",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        return [*before, *self._resolved(request.messages)]

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

    def _shown(self, block: Message, request: WireRequest) -> Message:
        """A block that tools made; words stand for what cannot be shown, unless the policy refuses it."""

        def find_problem(part: Any, role: str = "tool") -> str | None:
            if UNSHOWN in part:
                return str(part[UNSHOWN])
            return self.conversation.find_problem(part, role=role, tools=request.tools)  # type: ignore[arg-type]

        if self.policy.strict or self.policy.refused_results is RefusedResults.RAISE:
            return block
        if "toolResult" in block:
            result = report_refused(block["toolResult"], find_problem)
            return block if result is block["toolResult"] else {"toolResult": result}
        problem = find_problem(block, "user")
        return block if problem is None else refusal_note(block, problem)

    def _placement(self, request: WireRequest) -> MessagePlacement:
        # Whether tools are there may change what a template prints; which ones does not.
        key = b"tools" if request.tools else b""
        if key not in self._placements:
            tools = request.tools[:1]
            self._placements[key] = MessagePlacement(lambda chat: self.conversation.render(chat, tools))  # type: ignore[arg-type]
        return self._placements[key]

    def _params(self, request: WireRequest, *, is_final: bool) -> dict[str, Any]:
        configured = self.conversation.config["sampling_params"]
        params = {name: value for name, value in request.sampling.items() if name not in configured}
        if not self.policy.client_sampling:
            params = {}
        bounds = [request.max_tokens, self.limits.max_new_tokens, configured.get("max_new_tokens")]
        budget = self.conversation.config["max_sampled_tokens"]
        if budget is not None and not is_final and (kept := self.limits.final_tokens(budget)):
            # At least one: servers refuse a request for no tokens.
            bounds.append(max(budget - kept - self.conversation.forest.sampled_tokens, 1))
        known = [bound for bound in bounds if bound is not None]
        if known:
            params["max_new_tokens"] = min(known)
        if request.stop:
            own = configured.get("stop") or []
            params["stop"] = [*([own] if isinstance(own, str) else own), *request.stop]
        return params

    def _start(self, answer: Answer, prepared: PreparedTurn) -> None:
        answer.task = asyncio.create_task(self._sample(prepared))
        self._tasks.add(answer.task)
        self.answers.add(answer)

        def finish(done: asyncio.Task[SampledTurn]) -> None:
            self._tasks.discard(done)
            self.last_used = time.monotonic()
            is_sibling = self.answers.finish(answer)
            if answer.turn is None:
                self._has_ended &= not answer.is_final
            else:
                self._count_turn(prepared, answer, answer.turn, is_sibling=is_sibling)

        answer.task.add_done_callback(finish)

    async def _sample(self, prepared: PreparedTurn) -> SampledTurn:
        request = prepared.request
        main = self._main.setdefault("main" if request.tools else "aside", MainAgent(request.agent))
        left: float | None = None
        if self.limits.max_seconds is not None and self.limits.final_words is None:  # else a reply is finished
            left = self.limits.max_seconds - (time.monotonic() - (self._began or 0.0))
        with self._failing():
            try:
                async with asyncio.timeout(left) as time_limit, self._slots:  # the wait for a slot counts too
                    sampled = await self.conversation.sample(prepared)
            except TimeoutError:
                if not time_limit.expired():
                    raise
                raise MaxSecondsReachedError(self.limits.max_seconds or 0.0) from None
        self.failure = None
        if request.agent == main.name:
            reply = sampled.reply
            calls = [(call.id, call.name, call.input) for call in reply.calls]
            said: list[Any] = [*request.messages, _message_of(reply.text, calls, reply.reasoning)]
            main.turn, main.messages = sampled.turn, said
        return sampled

    def _count_turn(self, prepared: PreparedTurn, answer: Answer, turn: Turn, *, is_sibling: bool) -> None:
        location, messages = prepared.location, prepared.request.messages
        # The last reply as the client returned it, beside the one that was sampled.
        seen = messages[location.first_new - 1]["content"] if location.parent is not None else []
        ids = [block["toolUse"]["toolUseId"] for block in seen if "toolUse" in block]
        for counts in answer.counters:
            counts.sampled += 1
            counts.final += answer.is_final
            counts.siblings += is_sibling
            counts.constrained += bool(prepared.request.constraints)
            counts.malformed += (malformed := sum(call.error is not None for call in turn.calls))
            counts.calls += len(turn.calls) - malformed
            counts.continued += any(message["role"] == "assistant" for message in messages)
            if location.parent is None:
                counts.roots[str(location.reason)] += 1
                continue
            reply = location.parent.reply
            counts.extended += 1
            counts.ids_rewritten += ids != list(reply.call_ids)
            counts.reasoning_dropped += reply.reasoning is not None and not any("reasoningContent" in b for b in seen)

    def reply(self, answer: Answer, request: WireRequest) -> WireReply:
        """The answer in the form that one request asked for; `Refused` if there is none."""
        if answer.task.cancelled():
            raise Refused("the session was dropped", status=409, code="session_closed")
        sampled = answer.task.result()
        turn, reply = sampled.turn, sampled.reply
        done = turn.completion
        calls = []
        for call in reply.calls:
            given = self._receipts.call_id(call.id)
            for prefix in CALL_PREFIXES:  # any dialect may bring it back
                self._call_ids[prefix + given] = call.id
            calls.append(WireCall(id=given, name=call.name, arguments=call.input))
        path = turn.path() if request.token_ids else []
        held = [token for step in path[:-1] for token in (*step.prompt_ids, *step.completion.output_ids)]
        if request.keeps_response:
            said = _message_of(reply.text, [(f"call_{call.id}", call.name, call.arguments) for call in calls])
            self._responses.put(f"resp_{answer.id}", [*self._whole_history(request), said])
            for block in said["content"]:
                self._items.put(_item_id(answer.id, block), block)
            if reply.reasoning:
                self._items.put(f"rs_{answer.id}", reasoning_block(reply.reasoning))
        return WireReply(
            id=answer.id,
            created=answer.created,
            model=request.model,
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
            logprobs=self._logprobs(turn) if request.logprobs else None,
            prompt_ids=[*held, *turn.prompt_ids] if request.token_ids else None,
            output_ids=list(done.output_ids) if request.token_ids else None,
        )

    def _logprobs(self, turn: Turn) -> list[tuple[str, float | None]]:
        done = turn.completion
        values = done.output_logprobs or [math.nan] * len(done.output_ids)
        texts = self.conversation.token_texts(done.output_ids)
        return [(text, None if math.isnan(value) else value) for text, value in zip(texts, values, strict=True)]


def _message_of(text: str, calls: Iterable[tuple[str, str, Any]], reasoning: str = "") -> Message:
    blocks: list[dict[str, Any]] = [reasoning_block(reasoning)] if reasoning else []
    if text:
        blocks.append({"text": text})
    blocks += [{"toolUse": {"toolUseId": call_id, "name": name, "input": given}} for call_id, name, given in calls]
    return {"role": "assistant", "content": blocks}


def _item_id(answer_id: str, block: Message) -> str:
    """The id under which the Responses dialect gives a block."""
    return f"msg_{answer_id}" if "toolUse" not in block else "fc_" + block["toolUse"]["toolUseId"].partition("_")[2]
