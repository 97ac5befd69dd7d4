"""The canonical form of a history, the same for every spelling a client gives it.

Clients re-send a history in other shapes than before: results in the order in which tools finished, one message each or
all in one, a reply in pieces, volatile lines in the system prompt, system messages in the middle. A message that the
chat template cannot print in its place is moved by a rule that looks at the message and at those before it, never at
later ones, so that a held prefix cannot change. The whole history comes with every request: the part that was there
before is neither read nor arranged again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..cache import Recent
from ..conversation.history_reader import HistoryReader
from ..conversation.messages import REFUSED_PART
from ..exceptions import MessageConversionError, TemplateError
from ..trajectory import History, Image, Message, Result
from ..trajectory.message import Parts, join_parts, order_results
from .counters import Counters

VOLATILE_RULES: Mapping[str, re.Pattern[str]] = {
    # Claude Code: version, build suffix per kind of request and, in some versions, a hash of the body.
    "claude-code-billing": re.compile(r"^x-anthropic-billing-header:[^\n]*\n?", re.MULTILINE),
}
"""Lines of system prompts that say nothing to a model and change between requests of one conversation, by name."""

REMINDER = "<system-reminder>\n{}\n</system-reminder>"
"""The form of a system message for a template that prints none in the middle of a conversation."""

_KEPT = 8  # histories a session remembers: the main agent's and those of sub-agents at work
_REMEMBERED_RESPONSES = 64  # of a session, that `previous_response_id` can name
_REMEMBERED_ITEMS = 1024  # of a session, that `item_reference` can name


def without_volatile(system: str) -> tuple[str, list[str]]:
    """A system prompt without its volatile lines, and the names of the rules that found one."""
    names = []
    for name, rule in VOLATILE_RULES.items():
        system, count = rule.subn("", system)
        if count:
            names.append(name)
    return system, names


class Read(NamedTuple):
    """A history as a client sent it, read up to an item.

    Attributes:
        message: The item's, or None for one that is left out.
        system: Texts of the system messages in front of the first other message.
        left_out: Types of everything that was left out.
        history: The other messages.
    """

    message: Message | None
    system: tuple[str, ...]
    left_out: tuple[str, ...]
    history: History


class Readings(HistoryReader[Read]):
    """A session's memory of requests in one dialect, so that only new parts are read.

    Args:
        read_receipt: The index of the turn that a receipt names, or None for one that the session did not issue.

    Attributes:
        responses: Histories by the id of the response that ended them (Responses).
        items: Pieces of replies by the ids under which clients may name them (Responses).
    """

    def __init__(self, read_receipt: Callable[[str], int | None]) -> None:
        super().__init__(_KEPT)
        self._read_receipt = read_receipt
        self.responses: Recent[History] = Recent(_REMEMBERED_RESPONSES)
        self.items: Recent[Message] = Recent(_REMEMBERED_ITEMS)

    def read(
        self,
        items: Sequence[Any],
        read_one: Callable[[Any, int, Sequence[Read]], Message | None],
        left_out: Callable[[Any, Message | None], tuple[str, ...]] = lambda item, message: (),
    ) -> Read:
        """The whole history.

        Args:
            read_one: The message of an item, by its index and the items read before it; None leaves it out.
            left_out: Types of the parts that are left out, of an item and its message.
        """
        empty = Read(None, (), (), History())

        def read_next(item: Any, index: int, before: Sequence[Read]) -> Read:
            _, system, others, history = before[-1] if before else empty
            message = read_one(item, index, before)
            if message is not None and message.role == "system" and history.last is None:
                system += (message.text,)
            elif message is not None:
                history = History(history, message)
            return Read(message, system, others + left_out(item, message), history)

        return self.read_items(items, read_next)[-1] if items else empty

    def turn_of(self, receipt: Any) -> int | None:
        """The index of the turn that a value returned by a client proves, if it proves one."""
        return self._read_receipt(receipt) if isinstance(receipt, str) and receipt else None


@dataclass(slots=True)
class MessagePlacement:
    """The places at which a chat template prints a message, asked once per pair of roles.

    `render` raises `TemplateError` for a message that the template refuses or loses.
    """

    render: Callable[[Sequence[Mapping[str, Any]]], str]
    _known: dict[tuple[str, str], bool] = field(default_factory=dict)

    def accepts(self, before: str, role: str) -> bool:
        """True if a message of `role` may follow one of `before` (`user`, `assistant`, `system` or `tool`)."""
        if (before, role) in self._known:
            return self._known[before, role]
        history: list[dict[str, Any]] = [{"role": "system", "content": "P0"}, {"role": "user", "content": "P1"}]
        if before == "tool":
            call = {"id": "call00000", "type": "function", "function": {"name": "probe", "arguments": {}}}
            result = {"role": "tool", "content": "P2", "tool_call_id": "call00000", "name": "probe"}
            history += [{"role": "assistant", "content": "", "tool_calls": [call]}, result]
        elif before in ("assistant", "system"):
            history.append({"role": before, "content": "P2"})
        last = history[-1]["content"]
        try:
            text = self.render([*history, {"role": role, "content": "PROBE"}])
        except TemplateError:
            text = ""
        # A template that gathers system messages at the top would change the held prefix.
        fits = text.count("PROBE") == 1 and text.find("PROBE") > text.rfind(last) >= 0
        self._known[before, role] = fits
        return fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Canon:
    """The rules by which a session arranges the histories of its clients.

    - Pieces of a reply form one message where the dialect has pieces; so do results of one reply, ordered by its calls.
    - A system message stays where the template prints one, otherwise becomes a user message in `<system-reminder>`
      tags, otherwise the end of the message before it.
    - Two user messages in a row are joined where the template refuses them.
    - A result that answers no call of the history is refused, as by the vendors: its client sent a part of the history.
    - Calls have the ids of the session, not those that clients know them by.

    Attributes:
        placement: The places the template knows.
        call_ids: Ids that clients were given to ids of the session; others stay.
        glue: Joins texts of the pieces of a reply; None where replies come whole.
        find_problem: Why the model cannot be shown a part that tools made, by the role that it stands in, or None.
        is_told: The model reads that in the part's place; otherwise the request is refused.
        counters: Where parts that are not shown are counted.
    """

    placement: MessagePlacement
    call_ids: Mapping[str, str] = field(default_factory=dict)
    glue: str | None = None
    find_problem: Callable[..., str | None] = lambda part, role: None
    is_told: bool = True
    counters: Counters = field(default_factory=Counters)

    def arrange(self, messages: Iterable[Message], after: Arranged | None = None) -> Arranged:
        """The canonical form of a history; the messages follow those of `after`, which is not changed."""
        out = Arranged() if after is None else replace(after)
        for message in messages:
            if message.role == "assistant":
                self._add_reply(out, message)
            elif message.role == "system":
                self._add_system(out, message)
            else:
                self._add_user(out, message)
        return out

    def _add_reply(self, out: Arranged, message: Message) -> None:
        if any(call.id in self.call_ids for call in message.calls):
            calls = [call._replace(id=self.call_ids.get(call.id, call.id)) for call in message.calls]
            message = replace(message, calls=tuple(calls))
        if self.glue is not None and out.role == "assistant":
            out.replace_last(join_replies(out.last, message, self.glue))
        else:
            out.append(message, "assistant")

    def _add_user(self, out: Arranged, message: Message) -> None:
        parts = message.parts
        if message.results or out.role == "tool":
            parts, _ = self._shown(parts, "user")
        results = []
        for call_id, given, is_error in message.results:
            shown, is_refused = self._shown(given, "tool")
            call_id = self.call_ids.get(call_id, call_id)
            if not any(call.id == call_id for earlier in reversed(out.history) for call in earlier.calls):
                raise MessageConversionError(
                    f"the result of call {call_id[:100]!r} answers no call of this history: send the whole history"
                )
            results.append(Result(call_id, shown, is_error or is_refused))
        if results and out.role == "tool":  # some clients send one message for each parallel result
            results = [*out.last.results, *results]
            out.history = out.history.before or History()
        if results:
            out.append(Message(role="user", results=order_results(results, out.history)), "tool")
        if parts or not results:
            if out.role == "user" and not self.placement.accepts("user", "user"):
                out.extend_last(parts)
            else:
                out.append(Message(role="user", parts=parts), "user")

    def _shown(self, parts: Parts, role: str) -> tuple[Parts, bool]:
        """Parts with words in place of those that cannot be shown, and True if no other part is left."""
        words = [self._words_for(part, role) for part in parts]
        if not any(words):
            return parts, False
        return join_parts([word or part for word, part in zip(words, parts, strict=True)]), all(words)

    def _words_for(self, part: str | Image, role: str) -> str | None:
        """The words in place of a part that the model cannot be shown; None for any other."""
        if role == "system" and isinstance(part, Image):
            problem: str | None = part.problem or "a system message holds text only"
            if not self.is_told:
                raise MessageConversionError(f"an image behind the result of a tool: {problem}")
        else:  # where the model is told nothing, a prompt with the part is refused when it is rendered
            problem = self.find_problem(part, role=role) if self.is_told else None
        if problem is None:
            return None
        self.counters.unshown += 1
        kind = "text" if isinstance(part, str) else part.kind if part.problem else "image"
        return REFUSED_PART.format(kind, problem)

    def _add_system(self, out: Arranged, message: Message) -> None:
        if any(isinstance(part, Image) for part in message.parts):
            parts, _ = self._shown(message.parts, "system")
            message = replace(message, parts=parts)
        if self.placement.accepts(out.role, "system"):
            out.append(message, "system")
            return
        reminder = (REMINDER.format(message.text),)
        if out.role == "assistant" or self.placement.accepts(out.role, "user"):
            out.append(Message(role="user", parts=reminder), "user")
        elif out.role == "tool":  # into the newest result, which no held prefix has yet
            *before, last = out.last.results
            last = last._replace(parts=join_parts([*last.parts, *reminder]))
            out.replace_last(replace(out.last, results=(*before, last)))
        else:
            out.extend_last(reminder)


@dataclass(slots=True)
class Arranged:
    """A history in canonical form; `role` is that of the last message as the template sees it, `tool` for results."""

    history: History = field(default_factory=History)
    role: str = "system"

    @property
    def last(self) -> Message:
        """The last message."""
        assert self.history.last is not None
        return self.history.last

    def append(self, message: Message, role: str) -> None:
        """Add a message that the template sees as one of this role."""
        self.history, self.role = History(self.history, message), role

    def replace_last(self, message: Message) -> None:
        """Put a message in place of the last one."""
        self.history = History(self.history.before, message)

    def extend_last(self, parts: Parts) -> None:
        """Add parts to the last message, which is not changed in other histories."""
        self.replace_last(replace(self.last, parts=join_parts([*self.last.parts, *parts])))


def join_replies(first: Message, second: Message, glue: str = "\n") -> Message:
    """Two pieces of one reply as one message."""
    return Message(
        role="assistant",
        parts=join_parts([*first.parts, *second.parts], glue),
        reasoning=glue.join(filter(None, (first.reasoning, second.reasoning))),
        calls=first.calls + second.calls,
        receipt=first.receipt if second.receipt is None else second.receipt,
    )
