"""Fakes for tests of code that uses this package: no server, no model, no GPU.

- `ScriptedClient` speaks the generate contract from a list of replies, in process.
- `MockTransport` answers the requests of a client by calling a function: `HTTPRequest` in, `HTTPResponse` out.
"""

from ..backends.http.user_transport import HTTPRequest, HTTPResponse, Transport
from .mock_transport import MockTransport
from .replies import Reply, build_answer
from .scripted_client import ScriptedClient, ScriptedRequest, ScriptExhaustedError

__all__ = [
    "HTTPRequest",
    "HTTPResponse",
    "MockTransport",
    "Reply",
    "ScriptExhaustedError",
    "ScriptedClient",
    "ScriptedRequest",
    "Transport",
    "build_answer",
]
