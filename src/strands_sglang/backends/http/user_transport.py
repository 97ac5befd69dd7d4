"""A transport of the user's, in place of the client's own connections: for tests, proxies, other networks.

```python
class Echo:
    async def send(self, request: HTTPRequest) -> HTTPAnswer:
        return HTTPAnswer.of_json({"path": request.url})
```
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from ...exceptions import BackendAnswerLimitError
from .connections import Attempt, HTTPAnswer, Target


@dataclass(frozen=True, slots=True)
class HTTPRequest:
    """A request as it would be written: the whole address, and headers without `Host` and `Content-Length`."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The parsed body."""
        return orjson.loads(self.body)


class Transport(Protocol):
    """Sends requests. Used on every event loop that the client is used on; its maker closes it."""

    async def send(self, request: HTTPRequest) -> HTTPAnswer:
        """Send a request and read its whole answer.

        Raises:
            OSError: There is none; the client repeats the request by its table (`ConnectionRefusedError`:
                `unreachable`, `TimeoutError`: `timeout`, others: `reset`).
        """
        ...


class UserConnections:
    """The interface of `HTTPClient` over a `Transport`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def request(
        self,
        target: Target,
        body: Iterable[bytes] = (),
        *,
        headers: bytes = b"",
        timeout: float | None = None,
        limit: int,
        attempt: Attempt | None = None,
    ) -> HTTPAnswer:
        """Send a request; as `HTTPClient.request`."""
        more = dict(line.split(": ", 1) for line in headers.decode().split("\r\n") if line)
        request = HTTPRequest(target.method, target.url, {**target.headers, **more}, b"".join(body))
        if attempt is not None:
            attempt.connected = True
        async with asyncio.timeout(timeout):
            answer = await self._transport.send(request)
        if answer.status == 200 and len(answer.body) > limit:
            raise BackendAnswerLimitError(f"the answer has more than {limit} bytes; see max_answer_bytes")
        return answer

    def close(self) -> None:
        """Nothing: the transport is the user's."""

    release_sockets = close
