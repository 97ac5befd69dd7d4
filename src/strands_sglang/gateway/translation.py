"""Between clients and the core: a request as the turn that it asks for, and a turn as the reply that clients get.

Clients know calls, replies and items by other ids, which a session recognises when they come back.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
from dataclasses import replace
from functools import partial
from typing import Any

from ..conversation import Conversation, SampledTurn, TurnRequest
from ..conversation.model_options import MalformedCalls, RefusedResults
from ..trajectory import History, Message, Turn
from .answers import PREFILLED, Answer
from .canonical import Canon, MessagePlacement, Readings, without_volatile
from .counters import Counters
from .dialects import CALL_PREFIXES
from .dialects.wire import Origin, Refused, WireDialect, WireReply, WireRequest
from .session_options import SessionOptions

_FINISHES = {"end_turn": "stop", "tool_use": "tool_calls"}


class Translation:
    """Translates the requests of one session's clients, and the turns that answer them."""

    def __init__(self, conversation: Conversation, options: SessionOptions, secret: bytes) -> None:
        self._conversation, self._options, self._secret = conversation, options, secret
        self._call_ids: dict[str, str] = {}
        self._placements: dict[bool, MessagePlacement] = {}
        self._readings: dict[str, Readings] = {}

    def readings(self, dialect: WireDialect) -> Readings:
        """The memory of earlier requests in a dialect."""
        return self._readings.setdefault(dialect.name, Readings(self.read_receipt))

    def read(self, wire: WireRequest, origin: Origin, counters: Counters, *, final: str | None = None) -> TurnRequest:
        """The turn that a request asks for, with the words that ask for a final answer at its end, if there are any."""
        system, rules = without_volatile(wire.system)
        history = self._arrange(wire, counters, final)
        if history.last is None and not system:
            raise Refused("there is no message to answer; send one", param="messages")
        if history.last is not None and history.last.role == "assistant":
            raise Refused(PREFILLED, param="messages")
        counters.receipts += wire.history.derive(
            "receipts", lambda before, new: (before or 0) + sum(message.receipt is not None for message in new)
        )
        counters.volatile.update(rules)
        return TurnRequest(
            messages=history,
            system=system or None,
            tools=wire.tools,  # type: ignore[arg-type]
            params=self._params(wire, is_final=final is not None),
            constraints=wire.constraints,
            agent=origin.agent,
            # Nobody expects calls then, so they go out as the text that they are.
            read_calls=wire.tool_choice != "none" and final is None,
            trim_stop=True,
            malformed_calls=MalformedCalls.TEXT,  # harnesses answer calls that they cannot read themselves
        )

    def _arrange(self, wire: WireRequest, counters: Counters, final: str | None) -> History:
        """The history in canonical form; a part that came before is not arranged again."""
        # Whether tools are there may change what a template prints; which ones does not.
        render = partial(self._conversation.render, tools=wire.tools[:1])  # type: ignore[arg-type]
        canon = Canon(
            placement=self._placements.setdefault(bool(wire.tools), MessagePlacement(render)),
            call_ids=self._call_ids,
            glue=wire.glue,
            find_problem=partial(self._conversation.find_problem, tools=wire.tools),  # type: ignore[arg-type]
            is_told=not self._options.strict and self._options.refused_results is RefusedResults.REPORT,
            counters=counters,
        )
        form = "canonical", wire.glue, bool(wire.tools)
        arranged = wire.history.derive(form, lambda before, new: canon.arrange(new, before))
        if final is not None:
            arranged = canon.arrange([Message(role="system", parts=(final,))], arranged)
        return arranged.history

    def _params(self, wire: WireRequest, *, is_final: bool) -> dict[str, Any]:
        configured = self._conversation.config["sampling_params"]
        params = {name: value for name, value in wire.sampling.items() if name not in configured}
        if not self._options.client_sampling:
            params = {}
        bounds = [wire.max_tokens, self._options.limits.max_new_tokens, configured.get("max_new_tokens")]
        budget = self._conversation.config["max_sampled_tokens"]
        if budget is not None and not is_final and (kept := self._options.final_tokens(budget)):
            # At least one: servers refuse a request for no tokens.
            bounds.append(max(budget - kept - self._conversation.forest.sampled_tokens, 1))
        limits = [bound for bound in bounds if bound is not None]
        if limits:
            params["max_new_tokens"] = min(limits)
        if wire.stop:
            own = configured.get("stop") or []
            params["stop"] = [*([own] if isinstance(own, str) else own), *wire.stop]
        return params

    def write(self, wire: WireRequest, answer: Answer, sampled: SampledTurn) -> WireReply:
        """The answer in the form that one request asked for."""
        turn, reply = sampled.turn, sampled.reply
        completion = turn.completion
        names = self.name_calls(turn)
        path = turn.path() if wire.token_ids else []
        prefix_ids = [token for step in path[:-1] for token in (*step.prompt_ids, *step.completion.output_ids)]
        if wire.kept_by is not None:
            self.keep_response(wire.kept_by, wire.history, turn)
        return WireReply(
            id=self._reply_id(turn.index),
            created=answer.created,
            model=wire.model,
            reasoning=reply.reasoning,
            text=reply.text,
            calls=[call._replace(id=name) for name, call in zip(names, reply.calls, strict=True)],
            finish=_FINISHES.get(sampled.stop_reason, "length"),
            stop_string=sampled.stop_string,
            prompt_tokens=sampled.prompt_length,
            # Clients subtract it from the prompt, which must not become negative.
            cached_tokens=min(completion.cached_tokens or 0, sampled.prompt_length),
            output_tokens=len(completion.output_ids),
            reasoning_tokens=self._conversation.reasoning_tokens(sampled) if reply.reasoning else 0,
            receipt=self.receipt_of(turn.index),
            logprobs=self._logprobs(turn) if wire.logprobs else None,
            prompt_ids=[*prefix_ids, *turn.prompt_ids] if wire.token_ids else None,
            output_ids=list(completion.output_ids) if wire.token_ids else None,
        )

    def turn_names(self) -> dict[str, int]:
        """The turns by their index and by the id of their reply, without the prefix of a dialect."""
        indices = range(len(self._conversation.forest.turns))
        return {name: index for index in indices for name in (str(index), self._reply_id(index))}

    def _reply_id(self, turn: int) -> str:
        return self._client_id(f"reply {turn}")  # no call has a blank in its id

    def name_calls(self, turn: Turn) -> list[str]:
        """The ids that clients are given for the calls of a turn, which are known from now on."""
        names = [self._client_id(call.id) for call in turn.reply.calls]
        for name, call in zip(names, turn.reply.calls, strict=True):
            for prefix in CALL_PREFIXES:  # any dialect may bring it back
                self._call_ids[prefix + name] = call.id
        return names

    def keep_response(self, readings: Readings, history: History, turn: Turn) -> None:
        """Keep the answer to a history, and its items, under the ids that the client was given."""
        client_ids, reply_id = self.name_calls(turn), self._reply_id(turn.index)
        calls = [call._replace(id=f"call_{name}") for name, call in zip(client_ids, turn.reply.calls, strict=True)]
        reply = replace(turn.reply, calls=tuple(calls))
        readings.responses.put(f"resp_{reply_id}", History(history, reply))
        readings.items.put(f"msg_{reply_id}", replace(reply, reasoning="", calls=()))
        readings.items.put(f"rs_{reply_id}", Message(role="assistant", reasoning=reply.reasoning))
        for name, call in zip(client_ids, calls, strict=True):
            readings.items.put(f"fc_{name}", Message(role="assistant", calls=(call,)))

    # ---- receipts ------------------------------------------------
    # A dialect that makes clients return a value verbatim (Anthropic's `signature`, Responses' `encrypted_content`)
    # carries one: proof of which turn an assistant message was. The client's words for the turn are still compared.

    def receipt_of(self, turn: int) -> str:
        """The receipt of a turn."""
        turn_bytes = turn.to_bytes(6, "big")
        # 24 bytes in all, so that base64 needs no padding.
        return base64.urlsafe_b64encode(turn_bytes + self._mark(turn_bytes, 18)).decode()

    def read_receipt(self, receipt: str) -> int | None:
        """The turn a receipt names, or None for one that this session did not issue."""
        try:
            data = base64.urlsafe_b64decode(receipt)
        except ValueError:
            return None
        turn_bytes, mark = data[:6], data[6:]
        return int.from_bytes(turn_bytes, "big") if hmac.compare_digest(mark, self._mark(turn_bytes, 18)) else None

    def _client_id(self, internal: str) -> str:
        """The id a client is given for a call, or for the reply of a turn: 24 hexadecimal digits."""
        return self._mark(internal.encode(), 12).hex()

    def _mark(self, data: bytes, size: int) -> bytes:
        return hashlib.blake2b(data, key=self._secret, digest_size=size).digest()

    def _logprobs(self, turn: Turn) -> list[tuple[str, float | None]]:
        completion = turn.completion
        values = completion.output_logprobs or [math.nan] * len(completion.output_ids)
        texts = self._conversation.token_texts(completion.output_ids)
        return [(text, None if math.isnan(value) else value) for text, value in zip(texts, values, strict=True)]
