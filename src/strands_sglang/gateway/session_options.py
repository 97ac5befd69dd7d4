"""The options of a session: the gateway's choices where a request leaves one, and limits beyond the token budgets.

Step limits of most programs do not work, so the gateway has its own. With `final_answer`, the main agent is asked for a
last answer, without calls, before it is refused: an end that programs understand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ..conversation.model_options import DEFAULTS, RefusedResults, SGLangConfig
from ..exceptions import MaxToolIterationsReachedError
from ..limits import Limits
from ..tool_parsers import ToolParser
from ..trajectory.images import Processor

FINAL_ANSWER = (
    "This is your last reply: a limit of this session is reached. Do not call tools any more; "
    "give your final answer now."
)
"""The request for a final answer if `final_answer` is True."""

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
    """Options of a session. All but the limits are the gateway's.

    Attributes:
        strict: Refuse what would otherwise be left out and counted: forced tool choice, unknown tool types, results of
            tools that cannot be shown.
        client_sampling: Honour sampling parameters of clients that the session does not set.
        join_equal: Take an equal request in flight for the same one, for clients that repeat requests on another
            connection without a mark. Agents that ask several times at once get copies then.
        refused_results: Whether the model is told that the result of a tool cannot be shown (`report`), or the request
            is refused.
        limits: Those that `open` is given.
    """

    strict: bool = False
    client_sampling: bool = False
    join_equal: bool = False
    refused_results: RefusedResults = _REFUSED_RESULTS
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        object.__setattr__(self, "refused_results", RefusedResults(self.refused_results))

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """The options in a state log. Older ones have the limits among them, and options that are gone."""
        limits = {name: value for name, value in stored.items() if name in Limits.__dataclass_fields__}
        others = {name: value for name, value in stored.items() if name in cls.__dataclass_fields__}
        return cls(**{**others, "limits": Limits.of(stored.get("limits"), **limits)})

    @property
    def final_words(self) -> str | None:
        """The request for a final answer, or None for a refusal without one."""
        words = self.limits.final_answer
        return words if isinstance(words, str) else FINAL_ANSWER if words else None

    def final_tokens(self, budget: int | None) -> int:
        """Tokens of a budget that are kept for the final answer."""
        return 0 if budget is None or self.final_words is None else min(_FINAL_TOKENS, budget // 4)
