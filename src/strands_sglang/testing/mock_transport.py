"""A transport that answers in process, for tests of what stands around a client."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..backends.http.user_transport import HTTPAnswer, HTTPRequest


class MockTransport:
    """Answers every request of a client by calling a function, without a network.

    ```python
    def handler(request: HTTPRequest) -> HTTPAnswer:
        assert request.json()["input_ids"] == [1, 2, 3]
        return HTTPAnswer.of_json({"output_ids": [4], "meta_info": {"finish_reason": {"type": "stop"}}})


    client = SGLangClient("http://server", transport=MockTransport(handler))
    ```

    Args:
        handler: Takes a request and returns its answer, or raises an `OSError`; may be asynchronous.
    """

    def __init__(self, handler: Callable[[HTTPRequest], Any]) -> None:
        self._handler = handler
        self.requests: list[HTTPRequest] = []

    async def send(self, request: HTTPRequest) -> HTTPAnswer:
        """Answer a request."""
        self.requests.append(request)
        answer = self._handler(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if not isinstance(answer, HTTPAnswer):
            raise TypeError(f"the handler returned {answer!r:.100}: expected an HTTPAnswer")
        return answer
