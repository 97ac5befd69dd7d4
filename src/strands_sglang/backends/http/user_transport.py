"""A transport of the user's, in place of the client's own connections: for tests, proxies, other networks.

```python
class Echo:
    async def send(self, request: HTTPRequest) -> HTTPResponse:
        return HTTPResponse.from_json({"path": request.url})
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson


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


@dataclass(frozen=True, slots=True)
class HTTPResponse:
    """An answer; header names in lower case, and of error bodies the first 4 MiB."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def from_json(cls, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HTTPResponse:
        """An answer with a JSON body."""
        return cls(status, {name.lower(): text for name, text in (headers or {}).items()}, orjson.dumps(value))


class Transport(Protocol):
    """Sends requests. Used on every event loop that the client is used on; its maker closes it."""

    async def send(self, request: HTTPRequest) -> HTTPResponse:
        """Send a request and read its whole answer.

        Raises:
            OSError: There is none; the client repeats the request by its table (`ConnectionRefusedError`:
                `unreachable`, `TimeoutError`: `timeout`, others: `reset`).
        """
        ...
