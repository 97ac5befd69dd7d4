"""A transport that answers in process, for tests of what stands around a client."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..backends.http.user_transport import HTTPRequest, HTTPResponse


class MockTransport:
    """Answers every request of a client by calling a function, without a network.

    ```python
    def handler(request: HTTPRequest) -> HTTPResponse:
        assert request.json()["input_ids"] == [1, 2, 3]
        return HTTPResponse.from_json({"output_ids": [4], "meta_info": {"finish_reason": {"type": "stop"}}})


    client = SGLangClient("http://server", transport=MockTransport(handler))
    ```

    Args:
        handler: Takes a request and returns its answer, or raises an `OSError`; may be asynchronous.
    """

    def __init__(self, handler: Callable[[HTTPRequest], Any]) -> None:
        self._handler = handler
        self.requests: list[HTTPRequest] = []

    async def send(self, request: HTTPRequest) -> HTTPResponse:
        """Answer a request."""
        self.requests.append(request)
        response = self._handler(request)
        if inspect.isawaitable(response):
            response = await response
        if not isinstance(response, HTTPResponse):
            raise TypeError(f"the handler returned {response!r:.100}: expected an HTTPResponse")
        return response
