"""Fakes for tests of code that uses this package: no server, no model, no GPU.

- `ScriptedClient` speaks the generate contract from a list of replies, in process.
- `FaultyServer` is a real HTTP server on loopback whose every answer is chosen by the test: error shapes, resets,
  half-written JSON, hangs, aborts. It records what it was sent.
- `MockTransport` answers the requests of a client by calling a function: `HTTPRequest` in, `HTTPAnswer` out.
"""

from ..backends.http.connections import HTTPAnswer
from ..backends.http.user_transport import HTTPRequest, Transport
from . import faults
from .faults import Fault, ServerCall
from .faulty_server import FaultyServer, ServedRequest
from .mock_transport import MockTransport
from .replies import Reply, build_answer
from .scripted_client import ScriptedClient, ScriptedRequest, ScriptExhaustedError

__all__ = [
    "Fault",
    "FaultyServer",
    "HTTPAnswer",
    "HTTPRequest",
    "MockTransport",
    "Reply",
    "ScriptExhaustedError",
    "ScriptedClient",
    "ScriptedRequest",
    "ServedRequest",
    "ServerCall",
    "Transport",
    "build_answer",
    "faults",
]
