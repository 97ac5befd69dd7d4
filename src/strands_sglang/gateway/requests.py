"""Reading HTTP requests: body, key, host, and where a request comes from."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import hmac
import ipaddress
import re
import secrets
import zlib
from collections.abc import Collection
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import orjson
from aiohttp import web

from ..tool_parsers.values import JSONError
from .dialects import KEY_HEADERS
from .dialects.reading import label, want
from .dialects.wire import Origin, Refused
from .exact_json import loads

SESSION_NAME = re.compile(r"(?!\.{1,2}\Z)[\w.~-]{1,128}", re.ASCII)
"""A name that a caller may give a session: a part of an address, which clients read `.` and `..` out of."""
SESSION_NAME_WORDS = "1 to 128 letters, digits and ._~-, and neither . nor .."

BODY_SECONDS = 120.0
"""Time in which the whole body of a request has to arrive."""

_ORIGIN_HEADERS = (
    "Idempotency-Key", "User-Agent", "x-claude-code-agent-id", "x-codex-turn-metadata", "x-parent-session-id",
    "x-session-affinity", "x-stainless-retry-count",
)  # fmt: skip


async def read_body(request: web.Request) -> dict[str, Any]:
    """The body, a JSON object, unpacked."""
    if request.content_type != "application/json":
        raise Refused("the content type must be application/json", status=415)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            raw = await request.read()
    except TimeoutError:
        raise Refused(f"the body did not come within {BODY_SECONDS:g} seconds", status=408) from None
    except web.HTTPRequestEntityTooLarge as error:
        raise Refused("the body is larger than this gateway takes", status=413, code="too_large") from error
    except web.HTTPException:
        raise
    except Exception as error:  # broken chunks: aiohttp raises the errors of its parser
        raise Refused(f"the body cannot be read ({type(error).__name__})") from error
    raw = unpack(raw, request.headers.get("Content-Encoding", "identity").strip().lower(), request.client_max_size)
    try:
        body = loads(raw.removeprefix(codecs.BOM_UTF8))
    except JSONError as error:
        raise Refused(f"the body cannot be read as JSON: {error}") from None
    return dict(want(dict, body, "the body"))


def unpack(raw: bytes, encoding: str, most: int) -> bytes:
    """A body without its encoding, of at most so many bytes."""
    if encoding == "identity":
        return raw
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise Refused(f"bodies encoded as {label(encoding)} cannot be read; send gzip, deflate or plain", status=415)
    # Deflate comes with the head of zlib or without one.
    has_head = raw[:2] == b"\x1f\x8b" or (len(raw) > 1 and raw[0] & 15 == 8 and (raw[0] << 8 | raw[1]) % 31 == 0)
    data = b""
    try:
        while raw and len(data) <= most:  # gzip may come in several pieces
            piece = zlib.decompressobj(zlib.MAX_WBITS | 32 if has_head else -zlib.MAX_WBITS)
            data += piece.decompress(raw, most + 1 - len(data))
            if not piece.eof and len(data) <= most:
                raise zlib.error("it ends early")
            raw = piece.unused_data
    except zlib.error as error:
        raise Refused(f"the body is not {encoding}: {error}") from None
    if len(data) > most:
        raise Refused("the body is larger than this gateway takes", status=413, code="too_large")
    return data


def presented_key(request: web.Request, query: str | None = None) -> str | None:
    """The key of a request, or None; `query` names the parameter of the address that may hold it."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    by_name = (request.headers.get(name) for name in KEY_HEADERS)
    return next(filter(None, by_name), None) or (query and request.query.get(query)) or None


def new_key() -> str:
    """A random key of 128 bits."""
    return secrets.token_urlsafe(16)


def is_key(presented: str | None, key: str | None) -> bool:
    """True if a key was presented and is this one, compared in constant time."""
    return bool(presented and key) and hmac.compare_digest(bytes_of(presented or ""), bytes_of(key or ""))


def bytes_of(text: str) -> bytes:
    """The bytes of a header, which need not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def printable(text: str) -> str:
    """Text of a header that JSON can hold."""
    return bytes_of(text).decode("utf-8", "replace")


def key_digest(key: str) -> bytes:
    """The digest by which a key is looked up, so that the time it takes reveals nothing about the key."""
    return hashlib.sha256(bytes_of(key)).digest()


def origin_of(request: web.Request) -> Origin:
    """Client and agent by their headers; they are labels, and name no session."""
    headers = {name: printable(request.headers.get(name, "")) for name in _ORIGIN_HEADERS}
    client = headers["User-Agent"].partition(" ")[0].partition("/")[0]
    agent: Any = headers["x-claude-code-agent-id"]
    if not agent and (turn := headers["x-codex-turn-metadata"]):
        with suppress(orjson.JSONDecodeError, AttributeError):  # no JSON, or no object
            agent = orjson.loads(turn).get("agent_name")
    if not agent and headers["x-parent-session-id"]:  # opencode: a session below the main one
        agent = headers["x-session-affinity"]
    repeat_key = headers["Idempotency-Key"] or None
    # A count of the vendors' Python clients; others never set it.
    is_retry = re.fullmatch("0*[1-9][0-9]*", headers["x-stainless-retry-count"]) is not None
    return Origin(
        client=label(client) if client else "unknown",
        agent=agent if isinstance(agent, str) and agent else None,
        idempotency_key=repeat_key,
        is_retry=is_retry or repeat_key is not None,
    )


def check_source(request: web.Request, hosts: Collection[str]) -> None:
    """Refuse requests of web pages in a browser on this machine.

    Args:
        hosts: Names of this machine. A page that rebinds its own name to it sends that as `Host`.
    """
    host, origin = _part_of(f"//{request.host}", "hostname"), request.headers.get("Origin")
    if host not in hosts and not is_address(host):
        raise Refused(f"host {label(host or request.host)} is not served here", status=403)
    is_other_page = origin is not None and _part_of(origin, "netloc") != request.host
    if is_other_page or request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
        raise Refused("requests of web pages are not served here", status=403)


def _part_of(address: str, name: str) -> str:
    """A part of an address, empty for one that is malformed."""
    try:
        return getattr(urlsplit(address), name) or ""
    except ValueError:
        return ""


def is_address(host: str) -> bool:
    """True for an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """True for an address of this machine only."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)
