"""Counters of a session: extensions, new roots by reason, retries, and everything a client sent that had no effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..conversation import PreparedTurn
    from ..trajectory import Turn

_MOST_NAMES = 100  # of anything that clients name; the others are counted together
OTHERS = "(others)"


@dataclass(slots=True, kw_only=True)
class Counters:
    """Counts of one client in a session, or their sum.

    Attributes:
        requests: Requests that were read.
        refused: Requests that were answered with an error.
        sampled: Turns that were sampled.
        input_tokens, cached_tokens, output_tokens: Tokens of their prompts, those of them in a cache, and sampled ones.
        continued: Sampled requests whose history held an assistant message.
        extended: Those of them that extended a held path.
        roots: New roots by `RootReason`.
        siblings: Further samples of an input that had been sampled before.
        joined: Requests that repeated one in flight, and waited for its answer.
        replayed: Answers given again because they had not been delivered whole.
        undelivered: Answers that were not delivered whole.
        cut: Delivered answers whose connection was reset after their last event: it may have been left unread.
        reasoning_dropped: Extended requests whose client did not return the last reasoning.
        receipts: Receipts of this session that clients returned.
        ids_rewritten: Extended requests whose client had changed the ids of calls.
        calls: Tool calls that were sampled, without malformed ones.
        malformed: Calls that could not be parsed.
        constrained: Turns sampled under a grammar.
        final: Final answers that were asked for because a limit was reached.
        passed: Requests that went to other backends, without those that got no answer.
        unshown: Results of tools in which words stand for parts that the model cannot be shown.
        unknown_tools: Tools, and items of a history, that were left out, by type.
        ignored: Fields without effect, by name.
        volatile: Volatile lines taken out of system prompts, by rule.
    """

    requests: int = 0
    refused: int = 0
    sampled: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    continued: int = 0
    extended: int = 0
    roots: Counter[str] = field(default_factory=Counter)
    siblings: int = 0
    joined: int = 0
    replayed: int = 0
    undelivered: int = 0
    cut: int = 0
    reasoning_dropped: int = 0
    receipts: int = 0
    ids_rewritten: int = 0
    calls: int = 0
    malformed: int = 0
    constrained: int = 0
    final: int = 0
    passed: int = 0
    unshown: int = 0
    unknown_tools: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    volatile: Counter[str] = field(default_factory=Counter)

    @property
    def extension_rate(self) -> float | None:
        """Share of continued requests that extended a held path; None before the first."""
        return self.extended / self.continued if self.continued else None

    @property
    def edited(self) -> int:
        """Histories in which a reply differs from the sampled one."""
        return self.roots["edited"]

    def __add__(self, other: Counters) -> Counters:
        return Counters(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})

    def note(self, *, ignored: Iterable[str] = (), unknown_tools: Iterable[str] = ()) -> None:
        """Count a request that was read, its fields without effect, and the types of its tools that were left out."""
        self.requests += 1
        for counts, names in ((self.ignored, ignored), (self.unknown_tools, unknown_tools)):
            for name in names:
                counts[_bound_name(name, counts)] += 1

    def count_turn(self, prepared: PreparedTurn, turn: Turn, *, is_final: bool, is_sibling: bool) -> None:
        """Count a sampled turn, and the changes that its client made to the reply before it."""
        location, messages = prepared.location, prepared.history.messages
        self.sampled += 1
        self.input_tokens += prepared.prompt_length
        self.cached_tokens += min(turn.completion.cached_tokens or 0, prepared.prompt_length)
        self.output_tokens += len(turn.completion.output_ids)
        self.final += is_final
        self.siblings += is_sibling
        self.constrained += bool(prepared.request.constraints)
        self.malformed += (malformed := sum(call.error is not None for call in turn.calls))
        self.calls += len(turn.calls) - malformed
        self.continued += any(message.role == "assistant" for message in messages)
        if location.parent is None:
            self.roots[str(location.reason)] += 1
            return
        # The last reply as the client returned it, beside the one that was sampled.
        returned, reply = messages[location.first_new - 1], location.parent.reply
        self.extended += 1
        self.ids_rewritten += returned.call_ids != reply.call_ids
        self.reasoning_dropped += bool(reply.reasoning) and not returned.reasoning

    def values(self) -> dict[str, Any]:
        """The counts as JSON values."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}

    def set(self, counts: Mapping[str, Any]) -> None:
        """Set counts to their `values`."""
        for name, value in counts.items():
            setattr(self, name, Counter(value) if isinstance(value, dict) else value)

    def to_json(self) -> dict[str, Any]:
        """The counts, and figures that follow from them."""
        return {**self.values(), "edited": self.edited, "extension_rate": self.extension_rate}


def counters_of(clients: dict[str, Counters], client: str) -> Counters:
    """The counters of a client, made with its first request."""
    return clients.setdefault(_bound_name(client, clients), Counters())


def _bound_name(name: str, known: Mapping[str, Any]) -> str:
    # Clients choose these names: without a bound they could fill the memory.
    return name if name in known or len(known) < _MOST_NAMES else OTHERS
