"""Answers of any backend: error bodies, and checks of ids, log-probabilities, weight versions, the length."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import NoneType
from typing import Any, TypeGuard, TypeVar, cast

import orjson

from ..exceptions import BackendAnswerError, BackendContextLengthError, BackendHTTPError, BackendThrottledError
from ..trajectory import Finish, FinishType, SamplingMask, WeightSpan
from ..trajectory.packed import LOGPROB_TYPECODE, TOKEN_TYPECODE, pack_ids

F = TypeVar("F", bound=Callable[..., Any])

THROTTLED_STATUS_CODES = frozenset({429, 503})
"""Statuses that become `BackendThrottledError`: the server is full, or asks to slow down."""
_LONGEST_MESSAGE = 2000
# A log-probability this far above 0 is a rounding error of float32; any other positive one is refused.
_ROUNDING = 1e-5


def is_count(value: Any) -> TypeGuard[int]:
    """True for an integer that is not a truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def refuse_unreadable(read: F) -> F:
    """Make a reader of answers raise `BackendAnswerError`, which shows the answer, for any error it stumbles over."""

    @functools.wraps(read)
    def read_or_refuse(payload: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return read(payload, *args, **kwargs)
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
            raise BackendAnswerError(f"the answer cannot be read ({error!r}): {payload!r:.200}") from error

    return cast(F, read_or_refuse)


def checked_ids(name: str, listed: Any) -> array[int]:
    """Token ids as a compact array. A wrong one, sent back in the next prompt, would kill the server."""
    return pack_ids(listed, name, BackendAnswerError)


def checked_logprobs(name: str, values: Sequence[Any]) -> array[float]:
    """Log-probabilities as a compact array, NaN where there is none; a positive one contradicts itself."""
    kinds = set(map(type, values))
    if not kinds <= {float}:
        if bool in kinds or not all(issubclass(kind, Real | NoneType) for kind in kinds):
            raise BackendAnswerError(f"{name}={values!r:.200}: expected numbers or null as log-probabilities")
        values = [math.nan if value is None else float(value) for value in values]
    logprobs = array(LOGPROB_TYPECODE, values)
    # No comparison with NaN holds, so `max` would overlook the values beside one.
    known = logprobs if (total := sum(logprobs)) == total else [value for value in logprobs if value == value]
    if known and (positive := max(known)) > _ROUNDING:
        raise BackendAnswerError(f"{name} has the log-probability {positive!r}: expected at most 0")
    return logprobs


def top_rows(name: str, rows: Sequence[Sequence[tuple[int, Any]]]) -> dict[str, Any]:
    """The fields `top_ids` and `top_logprobs` of a `ScoredPrompt`, from pairs of id and log-probability a position.

    A position without pairs, the first of a sequence, is filled with -1 and NaN.
    """
    size = max(map(len, rows), default=0)
    if not all(len(row) in (0, size) for row in rows):
        raise BackendAnswerError(f"{name} has rows of {sorted({len(row) for row in rows})} tokens: expected one length")
    ids = array(TOKEN_TYPECODE)
    values: list[Any] = []
    for row in rows:
        ids.extend(checked_ids(name, [token for token, _ in row]) if row else [-1] * size)
        values.extend([value for _, value in row] if row else [None] * size)
    return {"top_ids": ids, "top_logprobs": checked_logprobs(name, values)}


def weight_spans(entries: Any, version_of_all: Any, count: int) -> tuple[WeightSpan, ...]:
    """Spans that tile the output; the version is None where the answer does not say it in a readable way.

    Args:
        entries: A list of `{"version", "start", "end"}` in output positions, or any other value if there is none.
        version_of_all: The version where there is no list.
    """
    if not (isinstance(entries, list) and entries):
        entries = [{"version": version_of_all, "start": 0, "end": count}]
    pieces: list[tuple[str | None, int]] = []  # version and end; parts that no entry names are among them
    for entry in entries:
        if isinstance(entry, Mapping):
            version, first, last = entry.get("version"), entry.get("start"), entry.get("end")
            if isinstance(version, str | int) and isinstance(first, int) and isinstance(last, int) and first < last:
                pieces += (None, first), (str(version), last)
    spans: list[WeightSpan] = []
    end = 0
    for name, stop in (*pieces, (None, count)):
        if (stop := min(stop, count)) > end:
            spans.append(WeightSpan(version=name, start=end, end=stop))
            end = stop
    return tuple(spans)


def sampling_mask(name: str, sets: Any, count: int) -> SamplingMask | None:
    """The sampling mask of as many sampled tokens, from a list of ids for each; None where there is none."""
    if sets is None:
        return None
    if not isinstance(sets, list) or len(sets) != count:
        raise BackendAnswerError(f"{name} does not have one set per output token ({count}): {sets!r:.200}")
    return SamplingMask.from_sets(checked_ids(name, survivors) for survivors in sets)


def http_error(status: int, text: str, words: str, *, overflows: bool, hint: str | None) -> BackendHTTPError:
    """The typed error of an error answer with this body: the server's words, their first 2,000 characters, and a hint.

    `overflows`: it says that the prompt, or the prompt and `max_new_tokens`, do not fit the context.
    """
    cls: type[BackendHTTPError] = BackendHTTPError
    if overflows:
        cls = BackendContextLengthError
    elif status in THROTTLED_STATUS_CODES:
        cls = BackendThrottledError
    if len(words) > _LONGEST_MESSAGE:
        words = f"{words[:_LONGEST_MESSAGE]}... ({len(words)} characters)"
    return cls(f"HTTP {status}: {words or '(empty body)'}{f' ({hint})' if hint else ''}", status=status, body=text)


def check_output(ids: array[int], finish: Finish, *, vocab_size: int | None, max_new_tokens: int | None) -> None:
    """Check sampled ids against the request; a bound is None if unknown.

    An aborted answer may exceed `max_new_tokens`: steps decoded several tokens, and nobody cut them to the length.

    Raises:
        BackendAnswerError: An id is outside the vocabulary, or there are too many.
    """
    if vocab_size is not None and ids and max(ids) >= vocab_size:
        raise BackendAnswerError(
            f"output_ids has {max(ids)}, expected ids from 0 to {vocab_size - 1}, those of the vocabulary"
        )
    if max_new_tokens is not None and len(ids) > max_new_tokens and finish.type is not FinishType.ABORT:
        raise BackendAnswerError(f"the answer holds {len(ids)} tokens, but max_new_tokens was {max_new_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """The content of an error body of any shape.

    Attributes:
        message: The server's words; the whole body if it is not JSON of a known shape.
        known: False if the body is JSON of an unknown shape.
        code: The `code` field (a number at SGLang, a word at routers), or None.
        retryable: The server's own verdict, where it gives one (stream form), or None.
    """

    message: str
    known: bool = True
    code: int | str | None = None
    retryable: bool | None = None


def parse_error_body(body: str | bytes) -> ErrorBody:
    """Read any error body. Never raises: a body that is not JSON is its own message."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    try:
        parsed = orjson.loads(_first_event(text))
    except orjson.JSONDecodeError:
        # Plain text: a crash of SGLang (500), or a router that cannot read the body (422).
        return ErrorBody(message=text.strip())
    if not isinstance(parsed, dict):
        return ErrorBody(message=parsed if isinstance(parsed, str) else text.strip(), known=isinstance(parsed, str))
    inner = parsed.get("error")
    if isinstance(inner, str):  # SGLang's schema check and authentication
        return ErrorBody(message=inner)
    # Value errors are nested; parse errors and a full queue of SGLang are flat; `detail` is of a wrong path.
    fields: dict[str, Any] = inner if isinstance(inner, dict) else parsed
    message = fields.get("message", fields.get("detail"))
    code, retryable = fields.get("code"), fields.get("retryable")
    return ErrorBody(
        message=message if isinstance(message, str) else text.strip(),
        known=isinstance(message, str),
        code=code if isinstance(code, (int, str)) and not isinstance(code, bool) else None,
        retryable=retryable if isinstance(retryable, bool) else None,
    )


def _first_event(text: str) -> str:
    """The JSON of the first `data:` line if the text is an event stream, otherwise the text itself."""
    if not text.lstrip().startswith("data:"):
        return text
    return text.lstrip().splitlines()[0].removeprefix("data:").strip()


def parse_answer(body: bytes, key: str, make_error: Callable[[int, bytes], BackendHTTPError]) -> Any:
    """The JSON of an answer of status 200; `key` is one that every generate answer has.

    Raises:
        BackendAnswerError: It is not JSON (half-written, or another server).
        BackendHTTPError: It is an error object or an error event. Its status is the `code` of the error where that is
            an HTTP status, otherwise 200.
    """
    fault: orjson.JSONDecodeError | None = None
    parsed: Any = None
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        fault = error
        with contextlib.suppress(orjson.JSONDecodeError):  # an event stream may hold an error
            parsed = orjson.loads(_first_event(body.decode("utf-8", "replace")))
    other: dict[str, Any] = parsed if isinstance(parsed, dict) and key not in parsed else {}
    if other.get("error") or other.get("object") == "error" or isinstance(other.get("detail"), str):
        code = str(parse_error_body(body).code)
        raise make_error(int(code) if re.fullmatch("[45][0-9][0-9]", code) else 200, body)
    if fault is not None:
        raise BackendAnswerError(f"the answer is not JSON ({fault}); {len(body)} bytes: {body!r:.200}") from fault
    return parsed
