"""The causes of an exception, through the SDK's wrapping, and its message."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from pydantic import ValidationError


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what the SDK wrapped in it, its explicit causes and the members of its group, each once."""
    seen: set[int] = set()
    pending: list[BaseException] = [error]
    while pending:
        link = pending.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        inner = [getattr(link, "original_exception", None), link.__cause__]
        if isinstance(link, BaseExceptionGroup):
            inner.extend(link.exceptions)
        pending.extend(item for item in reversed(inner) if isinstance(item, BaseException))


def root_cause(error: BaseException) -> BaseException:
    """The error inside the SDK's `EventLoopException` wrappers; other errors stand for themselves."""
    while True:
        inner = getattr(error, "original_exception", None)
        if not isinstance(inner, BaseException) or inner is error:
            return error
        error = inner


def _server_of(error: BaseException) -> str | None:
    """Scheme, host and port of the request that failed, where an error of httpx or openai has one."""
    try:
        url = urlsplit(str(error.request.url))  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError, ValueError):  # httpx raises where there was no request
        return None
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}" if url.scheme and url.netloc else None


def message_of(error: BaseException) -> str:
    """The error's text, with the server that an HTTP client's error leaves out.

    Of a pydantic error its first complaint in one line: the field, what is wrong, the value.
    """
    if not isinstance(error, ValidationError):
        text, server = str(error), _server_of(error)
        return text if server is None or server in text else f"{text} ({server})"
    found = error.errors(include_url=False)
    first, said = found[0], found[0]["msg"].removeprefix("Value error, ")
    if first["type"] != "value_error":
        said = f"{said[:1].lower()}{said[1:]}, got {first['input']!r:.100}"
    where = ".".join(map(str, first["loc"]))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{where}: {said}{more}" if where else f"{said}{more}"
