"""The options of a session: the gateway's choices where a request leaves one, and limits beyond the token budgets.

Step limits of most programs do not work, so the gateway has its own. With `final_answer`, the main agent is asked for a
last answer, without calls, before it is refused: an end that programs understand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from ..conversation.model_options import DEFAULTS, RefusedResults, SGLangConfig
from ..exceptions import MaxToolIterationsReachedError, did_you_mean
from ..tool_parsers import ToolParser
from ..trajectory.images import Processor
from .canonical import VOLATILE_RULES
from .dialects.reading import quote

FINAL_ANSWER = (
    "This is your last reply: a limit of this session is reached. Do not call tools any more; "
    "give your final answer now."
)
"""The request for a final answer if `final_answer` is True."""

_LIMITS = ("max_requests", "max_new_tokens", "max_seconds", "max_parallel", "final_answer")
_BUDGETS = ("max_sampled_tokens", "max_trajectory_tokens", "context_window_limit")  # of the session's conversation
_FINAL_TOKENS = 1024  # kept of `max_sampled_tokens` for the final answer; at most a quarter of it


class MaxRequestsReachedError(MaxToolIterationsReachedError):
    """`max_requests` of a session is reached."""

    WHAT = "max_requests"


class MaxSecondsReachedError(MaxToolIterationsReachedError):
    """`max_seconds` of a session have passed."""

    WHAT = "max_seconds"


class ConversationOptions(SGLangConfig, total=False):
    """Options of every session's `Conversation`, which documents them."""

    tool_parser: ToolParser | str | None
    chat_template: str | None
    stop_tokens: Sequence[str]
    vocab_size: int | None
    processor: Processor | None


_REFUSED_RESULTS = RefusedResults(DEFAULTS["refused_results"])  # one default, with agents and without


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Options of a session. The first five are the gateway's, the others are the limits that `open` is given.

    Attributes:
        strict: Refuse what would otherwise be left out and counted: forced tool choice, unknown tool types, results of
            tools that cannot be shown.
        client_sampling: Honour sampling parameters of clients that the session does not set.
        join_equal: Take an equal request in flight for the same one, for clients that repeat requests on another
            connection without a mark. Agents that ask several times at once get copies then.
        volatile_rules: Names of the rules that take volatile lines out of system prompts.
        refused_results: Whether the model is told that the result of a tool cannot be shown (`report`), or the request
            is refused.
        max_requests: Most sampled turns and requests to other backends.
        max_new_tokens: Most tokens of one reply, whatever the client asks for.
        max_seconds: Seconds from the first request, after which requests are refused. A reply in flight is aborted
            then, unless a final answer follows.
        max_parallel: Most replies that are sampled at a time; further requests wait.
        final_answer: Ask the main agent for a final answer before it is refused: True, or the words to ask with.
    """

    strict: bool = False
    client_sampling: bool = False
    join_equal: bool = False
    volatile_rules: tuple[str, ...] = tuple(VOLATILE_RULES)
    refused_results: RefusedResults = _REFUSED_RESULTS
    max_requests: int | None = None
    max_new_tokens: int | None = None
    max_seconds: float | None = None
    max_parallel: int | None = None
    final_answer: bool | str = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "volatile_rules", tuple(self.volatile_rules))
        object.__setattr__(self, "refused_results", RefusedResults(self.refused_results))
        if unknown := set(self.volatile_rules) - VOLATILE_RULES.keys():
            raise ValueError(f"unknown volatile rules {sorted(unknown)}; known are {sorted(VOLATILE_RULES)}")
        for name in ("max_requests", "max_new_tokens", "max_parallel"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a positive integer, got {quote(value)}")
        seconds, final = self.max_seconds, self.final_answer
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and 0 < seconds < float("inf")):
            raise ValueError(f"max_seconds must be a positive number, got {quote(seconds)}")
        if not isinstance(final, bool | str) or (isinstance(final, str) and not final.strip()):
            raise ValueError(f"final_answer must be true, false or the words to ask with, got {quote(final)}")

    def with_limits(self, limits: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """These options with limits by name, and the budgets among them, which are the conversation's; None is none."""
        known = (*_LIMITS, *_BUDGETS)
        if unknown := sorted(limits.keys() - set(known), key=str):
            wrong = unknown[0]
            raise ValueError(f"unknown limit {wrong!r}{did_you_mean(str(wrong), known)}; there are {', '.join(known)}")
        values = {name: value for name, value in limits.items() if value is not None}
        budgets = {name: values.pop(name) for name in _BUDGETS if name in values}
        return replace(self, **values), budgets

    @property
    def final_words(self) -> str | None:
        """The request for a final answer, or None for a refusal without one."""
        if isinstance(self.final_answer, str):
            return self.final_answer
        return FINAL_ANSWER if self.final_answer else None

    def final_tokens(self, budget: int | None) -> int:
        """Tokens of a budget that are kept for the final answer."""
        return 0 if budget is None or self.final_words is None else min(_FINAL_TOKENS, budget // 4)
