"""Every error `strands_sglang` raises on its own account.

```
StrandsSGLangError
├── BackendError                           the generate call failed
│   ├── BackendHTTPError                   the server answered with an error status
│   │   ├── BackendContextLengthError      the prompt (or prompt + max_new_tokens) exceeds the context
│   │   └── BackendThrottledError          429 or 503: try again later
│   ├── BackendConnectionError             no answer: refused, reset, timed out
│   ├── BackendAnswerError                 an answer that is not what it should be
│   │   └── BackendAnswerLimitError        an answer that is too large, or compressed
│   └── BackendAbortedError                the server aborted the request; carries the partial answer
├── BackendRequestError (ValueError)       the request is wrong; it never left the process
├── TemplateError (ValueError)             the chat template cannot express this step, or cannot be used at all
│   ├── MediaError                         images and their placeholders do not agree, or cannot be carried exactly
│   ├── ControlTokenError                  a message spells a control token, and that cannot or must not be encoded
│   └── LostContentError                   the chat template would drop content of a message
├── MessageConversionError (ValueError)    a message block has no place in a chat-template message
├── ToolParserError (ValueError)           no parser, or the wrong one, for the calls this template prints
├── TrajectoryError (RuntimeError)         the token trajectory would become inexact
├── ContextOverflowError                   no room in the context (also the SDK's ContextWindowOverflowException)
├── TokenBudgetReachedError                a token budget is used up (also the SDK's MaxTokensReachedException)
├── ToolLimitReachedError                  a limit of `ToolLimiter` is reached
│   ├── MaxToolIterationsReachedError
│   ├── MaxToolCallsReachedError
│   ├── MaxTotalTokensReachedError
│   └── MaxMessagesReachedError
├── StateError                             the gateway's state folder, or a log in it, cannot be used
│   └── StateFullError                     nothing more can be written there
└── StructuredOutputError                  constrained output was truncated or does not validate
```

All of them pickle: rollouts cross process boundaries. Where the server found the overflow, its answer is the
`__cause__`. Every backend raises these types; `SGLangClientError`, `SGLangHTTPError` and so on are their names in
strands-sglang, bound at the end of this module, so that one `except` holds whatever samples.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from strands.types.exceptions import ContextWindowOverflowException, MaxTokensReachedException

from .hints import check_choice as check_choice
from .hints import check_positive as check_positive
from .hints import did_you_mean as did_you_mean
from .hints import explain_arguments as explain_arguments
from .hints import install_command as install_command
from .hints import refuse_unknown as refuse_unknown


class StrandsSGLangError(Exception):
    """Base of all errors of this package."""


class BackendError(StrandsSGLangError):
    """The generate call failed; no token of it was recorded."""


class BackendHTTPError(BackendError):
    """The server answered with an error status.

    Args:
        first: The status, or the message where `status` is a keyword.
        body: The server's text.
    """

    def __init__(self, first: int | str | None = None, body: str | None = None, *, status: int | None = None) -> None:
        code, message = status, first
        if code is None:
            code, message = first, None  # type: ignore[assignment]  # checked below
        if not isinstance(code, int):
            raise TypeError(f"{type(self).__name__} takes (status, body) or (message, status=, body=), got {first!r}")
        self.status, self.body = code, body or ""
        self.message = f"HTTP {code}: {self.body}" if message is None else str(message)
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        # The message alone does not make the error again: `args` holds nothing else.
        return partial(type(self), status=self.status, body=self.body), (self.message,), self.__dict__


class BackendContextLengthError(BackendHTTPError):
    """The prompt, or the prompt plus `max_new_tokens`, exceeds the server's context length."""


class BackendThrottledError(BackendHTTPError):
    """The server is full or asks to slow down (429, 503)."""


class BackendConnectionError(BackendError):
    """The server gave no answer: connection refused, reset or timed out."""


class BackendAnswerError(BackendError):
    """The answer is not what it should be: not readable, or in contradiction to itself or the request."""


class BackendAnswerLimitError(BackendAnswerError):
    """The server's answer is larger than the client reads, or compressed. It is not retried."""


class BackendAbortedError(BackendError):
    """The server aborted the request before it was complete.

    Attributes:
        partial: The server's answer with what had been sampled so far, or None.
    """

    def __init__(self, message: str, partial: dict[str, Any] | None = None) -> None:
        super().__init__(message, partial)
        self.partial = partial

    def __str__(self) -> str:
        return str(self.args[0])


class BackendRequestError(StrandsSGLangError, ValueError):
    """The request is wrong and was not sent (ids outside the vocabulary, unknown sampling keys, empty prompt)."""


class TemplateError(StrandsSGLangError, ValueError):
    """The chat template cannot express this step without losing or inventing text.

    Attributes:
        index: Index of the first message of the history that it refuses, where that is known, or None.
    """

    index: int | None = None


class MediaError(TemplateError):
    """Images cannot be carried exactly: placeholders and images do not agree, or nothing expands them."""


class ControlTokenError(TemplateError):
    """Text from outside spells a control token, and it cannot, or by `control_tokens="error"` must not, be encoded."""


class LostContentError(TemplateError):
    """The chat template would drop content of a message."""


class MessageConversionError(StrandsSGLangError, ValueError):
    """A content block has no place in a chat-template message; the message names the block.

    Attributes:
        index: Index of the message in the history, or None for the system prompt.
    """

    def __init__(self, message: str, *, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class ToolParserError(StrandsSGLangError, ValueError):
    """No tool parser, or an unfitting one, for the calls of this chat template."""


class TrajectoryError(StrandsSGLangError, RuntimeError):
    """An operation that would make the token trajectory inexact."""


class TokenBudgetReachedError(StrandsSGLangError, MaxTokensReachedException):
    """A token budget of the episode is used up, so no further token can be sampled.

    It is also the SDK's `MaxTokensReachedException`, which ends the agent loop on any turn without a retry.

    Attributes:
        budget: Name of the option that set it.
        limit: The budget in tokens.
    """

    def __init__(self, budget: str, limit: int, used: int) -> None:
        super().__init__(f"{budget}={limit} is used up ({used} tokens); no further token can be sampled")
        self.budget, self.limit, self.used = budget, limit, used

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.budget, self.limit, self.used)


class ContextOverflowError(StrandsSGLangError, ContextWindowOverflowException):
    """The prompt leaves no room to sample in the model's context.

    It is also the SDK's `ContextWindowOverflowException`, at which conversation managers shorten the history.

    Attributes:
        tokens: Length of the prompt.
        limit: Length that would have fit.
    """

    def __init__(self, tokens: int, limit: int, message: str | None = None) -> None:
        super().__init__(message or f"the prompt has {tokens} tokens, the context takes {limit} and a reply")
        self.tokens, self.limit = tokens, limit

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.tokens, self.limit, str(self))


class ToolLimitReachedError(StrandsSGLangError):
    """A limit of `ToolLimiter` is reached; the history ends with the tool results.

    Attributes:
        count: The count when it was checked; None when not given.
    """

    WHAT: ClassVar[str] = "limit"

    def __init__(self, limit: float, count: int | None = None) -> None:
        super().__init__(limit, count)
        self.limit = limit
        self.count = count

    def __str__(self) -> str:
        counted = "" if self.count is None else f" ({self.count} counted)"
        return f"{self.WHAT}={self.limit} is reached{counted}"


class MaxToolIterationsReachedError(ToolLimitReachedError):
    """`max_tool_iters` is reached."""

    WHAT = "max_tool_iters"


class MaxToolCallsReachedError(ToolLimitReachedError):
    """`max_tool_calls` is reached."""

    WHAT = "max_tool_calls"


class MaxTotalTokensReachedError(ToolLimitReachedError):
    """`max_total_tokens` is reached."""

    WHAT = "max_total_tokens"


class MaxMessagesReachedError(ToolLimitReachedError):
    """`max_messages` is reached; the history ends with the user's message or the tool results."""

    WHAT = "max_messages"


class StateError(StrandsSGLangError):
    """The gateway's state folder, or the log of a session in it, cannot be used."""


class StateFullError(StateError):
    """Nothing more can be written to the state folder."""


class StructuredOutputError(StrandsSGLangError):
    """Constrained output was truncated or does not validate against the model."""


# ---- the names of strands-sglang, which type checkers have to see ----------------------------------------------------

SGLangClientError = BackendError
SGLangHTTPError = BackendHTTPError
SGLangContextLengthError = BackendContextLengthError
SGLangThrottledError = BackendThrottledError
SGLangConnectionError = BackendConnectionError
SGLangDecodingError = BackendAnswerError
SGLangAnswerLimitError = BackendAnswerLimitError
SGLangAbortedError = BackendAbortedError
SGLangRequestError = BackendRequestError
