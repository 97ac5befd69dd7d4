"""Options of the client, checked where they are set: addresses, headers, seconds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import takewhile
from typing import Any
from urllib.parse import urlsplit

from ...exceptions import BackendRequestError, check_positive
from ...secret_names import is_secret_name

_SURROGATES = re.compile("[\ud800-\udfff]")
_NOT_IN_HEADER = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_FRAMING_HEADERS = frozenset({"content-length", "transfer-encoding", "expect"})
_WRITERS: tuple[Callable[[str], str], ...] = (
    json.dumps,
    partial(json.dumps, ensure_ascii=False),
    repr,
    lambda text: repr(text.encode())[1:],
)
_TELLING = 8  # first characters by which a key is recognised
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_IN_ADDRESS = re.compile(r"[\x00-\x20\x7f?#\\]")
_CREDENTIALS = re.compile(r"//[^/?#]*@")


def checked_url(name: str, url: Any) -> str:
    """A server address without trailing slash; `ValueError` (password left out) unless a URL without user name."""
    if not is_address(url):
        redacted = _CREDENTIALS.sub("//***@", url) if isinstance(url, str) else url
        raise ValueError(
            f"{name} must be an address such as 'http://localhost:30000', without user name and password (give "
            f"api_key, or headers={{'Authorization': ...}}), got {redacted!r}"
        )
    return str(url).strip().rstrip("/")


def is_address(url: Any) -> bool:
    """True for an address that `checked_url` accepts."""
    if not isinstance(url, str) or _NOT_IN_ADDRESS.search(url.strip()):
        return False
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname or "", parts.port  # which is checked when it is read
        if ":" not in host:  # else an IPv6 address
            host.encode("idna")  # empty and over-long labels, which would fail at the first request
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and "@" not in parts.netloc


def checked_seconds(name: str, value: Any) -> float | None:
    """Seconds above 0; None, or infinity, for no limit; `ValueError` for anything else."""
    check_positive("seconds", optional=True, **{name: value})
    return None if value is None or math.isinf(value) else float(value)


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """A copy of headers that HTTP can carry; the `ValueError` for others shows no value, which is often a key."""
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"header names must be letters, digits and '-', got {name!r}")
        if name.lower() in _FRAMING_HEADERS:
            raise ValueError(f"headers must leave {sorted(_FRAMING_HEADERS)} to the client, got {name!r}")
        if not isinstance(value, str) or _NOT_IN_HEADER.search(value):
            raise ValueError(f"the value of header {name!r} must be a text without line breaks")
    return dict(headers)


def bearer(key: str | None) -> dict[str, str]:
    """The header of an API key, if there is one."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}


class Secrets:
    """The keys in the headers that a client sends. Every text from outside that is shown passes `hide` first."""

    def __init__(self, *headers: Mapping[str, str]) -> None:
        spellings: dict[str, None] = {}
        for name, value in ((name, value) for each in headers for name, value in each.items()):
            if is_secret_name(name, is_header=True) and (secret := value.removeprefix("Bearer ").strip()):
                forms = (secret, secret.encode().decode("latin-1"))  # as it is sent, and as headers are read
                spellings.update(dict.fromkeys((*forms, *(write(form)[1:-1] for form in forms for write in _WRITERS))))
        self._forms = tuple(spellings)
        self._begins = (
            re.compile("|".join(re.escape(form[:_TELLING]) for form in spellings), re.IGNORECASE) if spellings else None
        )

    def hide(self, text: str) -> str:
        """The text with `***` for every key, and for the beginning of one, as where a text was cut."""
        if self._begins is None:
            return text
        pieces, place = [], 0
        while match := self._begins.search(text, place):
            start = match.start()
            pieces += [text[place:start], "***"]
            # A text may be cut within the key, so as much of it as stands there is hidden.
            pairs = (zip(text[start:].lower(), form.lower(), strict=False) for form in self._forms)
            place = start + max(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], each)) for each in pairs)
        return "".join((*pieces, text[place:]))

    def hide_in(self, error: BaseException | None) -> None:
        """Hide keys in the words of an error and of the errors that it came from."""
        visited: set[int] = set()
        while error is not None and id(error) not in visited:
            visited.add(id(error))
            error.args = tuple(self.hide(each) if isinstance(each, str) else each for each in error.args)
            for name in ("message", "body", "msg", "doc"):
                if isinstance(value := getattr(error, name, None), str):
                    setattr(error, name, self.hide(value))
            error = error.__cause__ or error.__context__


def check_rid(rid: Any) -> None:
    """Raises `BackendRequestError` unless an id is text, without half a surrogate, and not empty (a prefix of any)."""
    if not isinstance(rid, str) or not rid:
        raise BackendRequestError(f"rid must be a non-empty string, got {rid!r}")
    if _SURROGATES.search(rid):
        raise BackendRequestError(f"rid must be text without lone surrogates, got {rid!a}")


def affinity_header(name: str, routing_key: Any) -> dict[str, str]:
    """The header of a routing key, if there is one; `BackendRequestError` if it cannot be one."""
    if routing_key is None:
        return {}
    if not isinstance(routing_key, str) or _NOT_IN_HEADER.search(routing_key):
        raise BackendRequestError(f"routing_key must be a text without line breaks, got {routing_key!r}")
    return {name: routing_key}
