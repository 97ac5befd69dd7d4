"""The canonical form of a history, the same for every spelling a client gives it.

Clients re-send a history in other shapes than before: results in the order in which tools finished, one message each or
all in one, volatile lines in the system prompt, system messages in the middle. Parts that the chat template would not
see are dropped. A message that it cannot print in its place is moved by a rule that looks at the message and at what
precedes it, never at what follows, so that a held prefix cannot change. The whole history comes with every request:
messages with the bytes of the request before are reused, after a digest in C instead of a reading in Python.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..exceptions import TemplateError
from ..trajectory import digest
from .exact_json import dumps

Message = dict[str, Any]
"""A Strands message: `role` (`user`, `assistant`, `system`) and a list of content blocks."""

VOLATILE_RULES: Mapping[str, re.Pattern[str]] = {
    # Claude Code: version, build suffix per kind of request and, in some versions, a hash of the body.
    "claude-code-billing": re.compile(r"^x-anthropic-billing-header:[^\n]*\n?", re.MULTILINE),
}
"""Lines of system prompts that say nothing to a model and change between requests of one conversation, by name."""

REMINDER = "<system-reminder>\n{}\n</system-reminder>"
"""The form of a system message for a template that prints none in the middle of a conversation."""


def without_volatile(system: str, rules: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """A system prompt without its volatile lines, and the names of the rules that found one."""
    used = []
    for name in rules:
        system, found = VOLATILE_RULES[name].subn("", system)
        if found:
            used.append(name)
    return system, tuple(used)


@dataclass(slots=True)
class MessagePlacement:
    """The places at which a chat template prints a message, asked once per pair of roles.

    `render` raises `TemplateError` for what the template refuses or loses.
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
        # A template that gathers system messages at the top would change what is held.
        fits = text.count("PROBE") == 1 and text.find("PROBE") > text.rfind(last) >= 0
        self._known[before, role] = fits
        return fits


@dataclass(slots=True)
class Arranged:
    """A history in canonical form; `moved` maps the old index of every assistant message to its new one.

    `role` is that of the last message as the template sees it, `tool` for results.
    """

    messages: list[Message] = field(default_factory=list)
    moved: dict[int, int] = field(default_factory=dict)
    role: str = "system"

    def append(self, message: Message, role: str) -> None:
        """Add a message that the template sees as one of this role."""
        self.messages.append(message)
        self.role = role

    def extend_last(self, blocks: list[dict[str, Any]]) -> None:
        """Add blocks to the last message, which stays what it was elsewhere."""
        last = self.messages[-1]
        self.messages[-1] = {**last, "content": [*last["content"], *blocks]}


def arrange(
    messages: Sequence[Message],
    placement: MessagePlacement | None,
    call_ids: Mapping[str, str],
    *,
    show: Callable[[Message], Message] | None = None,
    after: Arranged | None = None,
    start: int = 0,
) -> Arranged:
    """The canonical form of a history.

    - Results of one reply form one message, in any order; the core orders them by call.
    - A system message stays where the template prints one, else becomes a user message in `<system-reminder>` tags,
      else the end of the message before it.
    - Two user messages in a row are joined where the template refuses them.
    - Calls have the ids of the session, not those that clients know them by.

    Args:
        messages: Strands messages; they are not changed.
        placement: The places the template knows; None keeps every message where it stands.
        call_ids: Ids that clients were given to ids of the session; others stay.
        show: A block that tools made, as the model can be shown it; None leaves each as it is.
        after: The canonical form of the first `start` messages, which is not changed.
    """
    known = after or Arranged()
    out = Arranged(messages=list(known.messages), moved=dict(known.moved), role=known.role)
    for index in range(start, len(messages)):
        message = messages[index]
        role, content = message["role"], [_with_own_id(block, call_ids) for block in message["content"]]
        results = [block for block in content if "toolResult" in block]
        if show is not None and role == "user" and (results or out.role == "tool"):
            content = list(map(show, content))
            results = [block for block in content if "toolResult" in block]
        if role == "assistant":
            out.moved[index] = len(out.messages)
            out.append({"role": role, "content": content}, role)
        elif role == "system":
            _add_system(out, message, placement)
        else:
            if results and out.role == "tool":  # some clients send one message for each parallel result
                out.extend_last(results)
            elif results:
                out.append({"role": "user", "content": results}, "tool")
            rest = [block for block in content if "toolResult" not in block]
            if results and not rest:
                continue
            if placement is not None and out.messages and out.role == "user" and not placement.accepts("user", "user"):
                out.extend_last(rest)
            else:
                out.append({"role": "user", "content": rest}, "user")
    return out


def _with_own_id(block: dict[str, Any], call_ids: Mapping[str, str]) -> dict[str, Any]:
    """A call or a result under the session's id of the call."""
    for kind in ("toolUse", "toolResult"):
        if kind in block and (own := call_ids.get(block[kind]["toolUseId"])) is not None:
            return {kind: {**block[kind], "toolUseId": own}}
    return block


def _add_system(out: Arranged, message: Message, placement: MessagePlacement | None) -> None:
    if placement is None or placement.accepts(out.role, "system"):
        out.append(message, "system")
        return
    reminder = [{"text": REMINDER.format("\n".join(block["text"] for block in message["content"] if "text" in block))}]
    if out.role == "assistant" or placement.accepts(out.role, "user"):
        out.append({"role": "user", "content": reminder}, "user")
    elif out.role == "tool":  # into the newest result, which no held prefix has yet
        *before, last = out.messages[-1]["content"]
        result = {**last["toolResult"], "content": [*last["toolResult"]["content"], *reminder]}
        out.messages[-1] = {**out.messages[-1], "content": [*before, {"toolResult": result}]}
    else:
        out.extend_last(reminder)


_KEPT = 4  # histories a session remembers: the main agent's and those of sub-agents at work


@dataclass(slots=True, eq=False)
class Reading:
    """An agent's last history: digests of its `items`, `parts` read from each, `messages` and their `arranged` form."""

    items: list[bytes] = field(default_factory=list)
    parts: list[Any] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    arranged: Arranged = field(default_factory=Arranged)

    def arrange(
        self,
        messages: list[Any],
        placement: MessagePlacement,
        call_ids: dict[str, str],
        show: Callable[[Message], Message],
    ) -> Arranged:
        """The canonical form of messages, continued from the last one where they begin with its messages."""
        count = len(self.messages)
        if 0 < count <= len(messages) and all(map(_is_same, messages, self.messages)):
            arranged = arrange(messages, placement, call_ids, show=show, after=self.arranged, start=count)
        else:
            arranged = arrange(messages, placement, call_ids, show=show)
        self.messages, self.arranged = messages, arranged
        return arranged


class Readings:
    """The readings of a session's recent histories."""

    def __init__(self) -> None:
        self._recent: list[Reading] = []

    def read(self, items: Sequence[Any], read_one: Callable[[Any, int], Any]) -> Reading:
        """A history in canonical form; messages that are unchanged, byte by byte, are not read again."""
        # Not by `==`, for which 1, 1.0 and True are equal, and keys in any order: what is printed would differ.
        digests = [digest(dumps(item)) for item in items]
        # Agents of one session interleave: each goes on from its own last history.
        best = max(self._recent, key=lambda reading: _likeness(reading.items, digests), default=None)
        if best is None or not _likeness(best.items, digests):
            best = Reading()
        self._recent = [*[reading for reading in self._recent if reading is not best][-(_KEPT - 1) :], best]
        known = dict(zip(enumerate(best.items), best.parts, strict=True))
        parts = [known.get((i, mark)) or read_one(items[i], i) for i, mark in enumerate(digests)]
        best.items, best.parts = digests, parts
        return best


def _likeness(known: Sequence[bytes], items: Sequence[bytes]) -> int:
    """Number of equal messages; any answer is right, a good one saves time."""
    return sum(map(operator.eq, known, items))


def _is_same(message: Message, other: Message) -> bool:
    return message is other or dumps(message) == dumps(other)
