"""Models of other backends: a request that names one goes there as it is, and its answer comes back as it is.

A program's small model or its judge, say. Nothing of such a request is held, so nothing of it is trained; it is
counted. The key of the other backend is the gateway's own: a client's key never goes there, nor that key to a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from ..backends.http.client_options import bearer, checked_headers, checked_url
from .dialects.wire import Refused, WireDialect

_SENT = ("Accept", "Content-Type", "Content-Encoding", "anthropic-version", "anthropic-beta", "OpenAI-Beta")
_RETURNED = ("Content-Type", "Retry-After", "x-should-retry", "request-id", "x-request-id")
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=600)


class OtherBackendError(Refused):
    """Another backend gave no answer."""


@dataclass(frozen=True, slots=True)
class OtherBackend:
    """A server that speaks the dialect of the requests that name its model.

    Attributes:
        url: Its address, with or without `/v1`.
        key: Its key, or None.

    Raises:
        ValueError: No address of a server, or a key that no header can hold.
    """

    url: str
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        checked_url("another backend", self.url)
        checked_headers({"key": self.key or ""})


class BrokenOffError(ConnectionResetError):
    """Another backend broke its answer off, and so does the gateway: the status has been sent."""

    status, code = 502, "upstream"


class OtherBackends:
    """The other backends of a gateway, by the names of their models."""

    def __init__(self, backends: Mapping[str, OtherBackend]) -> None:
        self._backends = dict(backends)
        self._http: aiohttp.ClientSession | None = None

    def find(self, body: Mapping[str, Any]) -> OtherBackend | None:
        """The backend of the model that a request names, None for the policy."""
        model = body.get("model")
        return self._backends.get(model) if isinstance(model, str) else None

    async def pass_on(self, request: web.Request, dialect: WireDialect, backend: OtherBackend) -> web.StreamResponse:
        """Send a request on, and its answer back, piece by piece.

        Raises:
            OtherBackendError: There is no answer, and nothing was written.
            OSError: The client went away, or the backend broke its answer off.
        """
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=_TIMEOUT, cookie_jar=aiohttp.DummyCookieJar())
        path = request.rel_url.raw_path
        if "session" in request.match_info:  # /s/ID
            path = "/" + path.split("/", 3)[3]
        headers = {name: request.headers[name] for name in _SENT if name in request.headers}
        if backend.key is not None:
            name = next(iter(dialect.key_headers), None)
            headers |= bearer(backend.key) if name is None else {name: backend.key}
        query = [(name, value) for name, value in request.query.items() if name != dialect.key_query]
        response = None
        try:
            async with self._http.post(
                backend.url.strip().rstrip("/").removesuffix("/v1") + path,
                params=query,
                data=await request.read(),
                headers=headers,
                allow_redirects=False,  # which would take the key elsewhere
            ) as answer:
                if answer.status in (401, 403) or 300 <= answer.status < 400:  # its words may name the key
                    what = f"the backend of this model refused the gateway (HTTP {answer.status})"
                    raise OtherBackendError(what, status=502, code="upstream")
                response = web.StreamResponse(status=answer.status)
                response.headers.update({name: answer.headers[name] for name in _RETURNED if name in answer.headers})
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, TimeoutError) as error:
            what = f"the backend of this model gave no answer ({type(error).__name__})"
            if response is not None:
                raise BrokenOffError(what) from None
            raise OtherBackendError(what, status=503, code="upstream", retry_after=1) from None

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()
