"""Between clients and the core: a request as the turn that it asks for, and a turn as the reply that clients get.

Clients know calls, replies and items by ids of their own, which a session recognises when they come back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

from ..cache import Recent
from ..conversation import Conversation, SampledTurn, TurnRequest
from ..conversation.messages import refusal_note, report_refused
from ..conversation.options import MalformedCalls, RefusedResults
from ..trajectory import Turn
from .answers import Answer
from .canonical import Message, MessagePlacement, arrange, without_volatile
from .counters import Counters
from .dialects import CALL_PREFIXES
from .dialects.reading import UNSHOWN, reasoning_block
from .dialects.wire import Origin, Refused, WireCall, WireReply, WireRequest
from .options import SessionOptions
from .receipts import Receipts

_REMEMBERED_RESPONSES = 64  # of a session, that `previous_response_id` can name
_REMEMBERED_ITEMS = 1024  # of a session, that `item_reference` can name
_FINISHES = {"end_turn": "stop", "tool_use": "tool_calls"}


class Translation:
    """Translates the requests of one session's clients, and the turns that answer them."""

    def __init__(self, conversation: Conversation, options: SessionOptions) -> None:
        self._conversation, self._options = conversation, options
        self._receipts = Receipts()
        self._call_ids: dict[str, str] = {}
        self._placements: dict[bool, MessagePlacement] = {}
        self._responses: Recent[list[Message]] = Recent(_REMEMBERED_RESPONSES)
        self._items: Recent[dict[str, Any]] = Recent(_REMEMBERED_ITEMS)

    def read(self, wire: WireRequest, origin: Origin, counters: Counters, *, final: str | None = None) -> TurnRequest:
        """The turn that a request asks for, with the words that ask for a final answer at its end, if there are any."""
        system, rules = without_volatile(wire.system, self._options.volatile_rules)
        history = self._whole_history(wire)
        show = partial(self._show, wire=wire, counters=counters)
        arranged = wire.reading.arrange(history, self._placement(wire), self._call_ids, show)
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
        counters.receipts += len(receipts)
        counters.volatile.update(rules)
        return TurnRequest(
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

    def _show(self, block: Message, *, wire: WireRequest, counters: Counters) -> Message:
        """A block that tools made; words stand for what cannot be shown, unless that is refused."""

        def find_problem(part: Any, role: str = "tool") -> str | None:
            if UNSHOWN in part:
                return str(part[UNSHOWN])
            return self._conversation.find_problem(part, role=role, tools=wire.tools)  # type: ignore[arg-type]

        if self._options.strict or self._options.refused_results is RefusedResults.RAISE:
            return block
        if "toolResult" in block:
            result = report_refused(block["toolResult"], find_problem)
            shown = block if result is block["toolResult"] else {"toolResult": result}
        else:
            problem = find_problem(block, "user")
            shown = block if problem is None else refusal_note(block, problem)
        counters.unshown += shown is not block
        return shown

    def _placement(self, wire: WireRequest) -> MessagePlacement:
        # Whether tools are there may change what a template prints; which ones does not.
        key = bool(wire.tools)
        if key not in self._placements:
            tools = wire.tools[:1]
            self._placements[key] = MessagePlacement(lambda chat: self._conversation.render(chat, tools))  # type: ignore[arg-type]
        return self._placements[key]

    def _params(self, wire: WireRequest, *, is_final: bool) -> dict[str, Any]:
        configured = self._conversation.config["sampling_params"]
        params = {name: value for name, value in wire.sampling.items() if name not in configured}
        if not self._options.client_sampling:
            params = {}
        bounds = [wire.max_tokens, self._options.max_new_tokens, configured.get("max_new_tokens")]
        budget = self._conversation.config["max_sampled_tokens"]
        if budget is not None and not is_final and (kept := self._options.final_tokens(budget)):
            # At least one: servers refuse a request for no tokens.
            bounds.append(max(budget - kept - self._conversation.forest.sampled_tokens, 1))
        known = [bound for bound in bounds if bound is not None]
        if known:
            params["max_new_tokens"] = min(known)
        if wire.stop:
            own = configured.get("stop") or []
            params["stop"] = [*([own] if isinstance(own, str) else own), *wire.stop]
        return params

    def write(self, wire: WireRequest, answer: Answer, sampled: SampledTurn) -> WireReply:
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
            said = reply_message(reply.text, [(f"call_{call.id}", call.name, call.arguments) for call in calls])
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
            reasoning_tokens=self._conversation.reasoning_tokens(sampled) if reply.reasoning else 0,
            receipt=self._receipts.issue(turn.index),
            logprobs=self._logprobs(turn) if wire.logprobs else None,
            prompt_ids=[*held, *turn.prompt_ids] if wire.token_ids else None,
            output_ids=list(done.output_ids) if wire.token_ids else None,
        )

    def _logprobs(self, turn: Turn) -> list[tuple[str, float | None]]:
        done = turn.completion
        values = done.output_logprobs or [math.nan] * len(done.output_ids)
        texts = self._conversation.token_texts(done.output_ids)
        return [(text, None if math.isnan(value) else value) for text, value in zip(texts, values, strict=True)]


def reply_message(text: str, calls: Iterable[tuple[str, str, Any]], reasoning: str = "") -> Message:
    """A reply as a message, calls as id, name and arguments."""
    blocks: list[dict[str, Any]] = [reasoning_block(reasoning)] if reasoning else []
    if text:
        blocks.append({"text": text})
    blocks += [{"toolUse": {"toolUseId": call_id, "name": name, "input": given}} for call_id, name, given in calls]
    return {"role": "assistant", "content": blocks}


def _item_id(answer_id: str, block: Message) -> str:
    """The id under which the Responses dialect gives a block."""
    return f"msg_{answer_id}" if "toolUse" not in block else "fc_" + block["toolUse"]["toolUseId"].partition("_")[2]
