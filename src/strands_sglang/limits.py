"""`Limits`: the bounds of an episode, for environments, models, gateway sessions and agent programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from .hints import check_positive, did_you_mean


def _limit(part: str, *, zero: bool = False) -> Any:
    return field(default=None, metadata={"part": part, "zero": zero})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of an episode; None is no limit. Each can also be given by its name alone, which wins.

    Example: `Environment(limits=Limits(max_tool_iters=10, max_trajectory_tokens=32_768), ...)`

    Attributes:
        max_tool_iters: Replies with tool calls, after which the agent's loop ends; parallel calls are one iteration.
        max_tool_calls: Tool calls, after which the loop ends. Checked at complete iterations.
        max_parallel_tool_calls: Calls of one reply that are run; further ones are answered with an error.
        max_messages: Messages, prompts included, after which the loop ends, once calls have their results.
        max_trajectory_tokens: Tokens of one path, prompt and tool results included. Environments and `ToolLimiter` also
            call it `max_total_tokens`.
        max_response_tokens: Tokens of one path behind its first prompt, tool results included.
        max_sampled_tokens: Tokens sampled by all paths of a model or session.
        context_window_limit: Context length in tokens; None asks the server.
        max_requests: Most model calls of a program: sampled turns and requests to other backends.
        max_new_tokens: Most tokens of one reply, even if a program asks for more. For a model, a sampling parameter.
        max_seconds: Seconds from a program's first model call, after which further ones are refused. A reply in flight
            is aborted then, unless a final answer follows.
        max_parallel: Most replies that are sampled at a time; further calls wait.
        final_answer: Ask a program for a final answer before it is refused: True, or the words to ask with. It is one
            of its `max_requests`.

    Raises:
        ValueError: A limit is out of range.
    """

    max_tool_iters: int | None = _limit("loop", zero=True)
    max_tool_calls: int | None = _limit("loop", zero=True)
    max_parallel_tool_calls: int | None = _limit("loop", zero=True)
    max_messages: int | None = _limit("loop", zero=True)
    max_trajectory_tokens: int | None = _limit("tokens", zero=True)
    max_response_tokens: int | None = _limit("tokens", zero=True)
    max_sampled_tokens: int | None = _limit("tokens")
    context_window_limit: int | None = _limit("tokens")
    max_requests: int | None = _limit("calls")
    max_new_tokens: int | None = _limit("calls")
    max_seconds: float | None = _limit("calls")
    max_parallel: int | None = _limit("calls")
    final_answer: bool | str = field(default=False, metadata={"part": "calls"})

    def __post_init__(self) -> None:
        for each in fields(self)[:-1]:
            value, is_whole = getattr(self, each.name), each.name != "max_seconds"
            if value is not None:
                check_positive(whole=is_whole, optional=True, zero=each.metadata["zero"], **{each.name: value})
        if self.max_seconds == float("inf"):
            raise ValueError("max_seconds must be finite, got inf: leave it out for no limit")
        final: object = self.final_answer
        if not isinstance(final, bool | str) or (isinstance(final, str) and not final.strip()):
            raise ValueError(f"final_answer must be true, false or the words to ask with, got {final!r:.200}")

    @classmethod
    def of(cls, limits: Limits | Mapping[str, Any] | None, **named: Any) -> Self:
        """The limits, with those that were given by name; None among them is not given.

        Raises:
            ValueError: There is no limit of a name; the message has the nearest one.
        """
        given = limits.set_ones() if isinstance(limits, Limits) else dict(limits or {})
        given |= {name: value for name, value in named.items() if value is not None}
        if unknown := sorted(given.keys() - cls.__dataclass_fields__.keys(), key=str):
            wrong, known = unknown[0], ", ".join(cls.__dataclass_fields__)
            hint = did_you_mean(str(wrong), cls.__dataclass_fields__)
            raise ValueError(f"unknown limit {wrong!r}{hint}; there are {known}")
        return cls(**{name: value for name, value in given.items() if value is not None})

    def set_ones(self, *parts: str, owner: str | None = None) -> dict[str, Any]:
        """The limits that are set, by name.

        Args:
            parts: Those of these parts: of the agent's `loop`, of `tokens`, of a program's `calls`. All if not given.
            owner: Whoever keeps these parts only: one of another part is a `ValueError`.
        """
        found = {}
        for each in fields(self):
            if (value := getattr(self, each.name)) is None or value is False:
                continue
            if not parts or each.metadata["part"] in parts:
                found[each.name] = value
            elif owner is not None:
                raise ValueError(f"{owner} has no limit {each.name}: {_KEEPERS[each.metadata['part']]}")
        return found


_KEEPERS = {
    "loop": "it bounds an agent's loop, give it to the environment",
    "tokens": "it bounds a model, give it to that",
    "calls": "it bounds the calls of a program, give it to HarnessEnvironment or the gateway",
}


def limit_of(name: str) -> Any:
    """A property that reads and sets one of the owner's `limits`."""

    def change(owner: Any, value: Any) -> None:
        owner.limits = replace(owner.limits, **{name: value})

    return property(lambda owner: getattr(owner.limits, name), change, doc=f"`Limits.{name}` of `limits`.")
