"""Faults of a `FaultyServer`: answer a generate request, refuse it in any dialect, or break.

Each function returns a `Fault`; a server's script is a list of them.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import struct
import zlib
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec

import orjson
from aiohttp import web

from strands_sglang.testing import Reply, build_answer

from .vllm_protocol import to_vllm

P = ParamSpec("P")


def hash_reply(input_ids: Sequence[int]) -> Reply:
    """A reply that depends on the prompt alone, as greedy sampling does: ids below 1000, 6 on average and 200 at most.

    It samples token by token, so a prompt that already holds a part of the reply gets the rest of it.
    """
    seed = zlib.crc32(array("q", input_ids).tobytes())
    ids: list[int] = []
    while not ids or (ids[-1] % 6 and len(ids) < 200):
        ids.append(((seed * 0x9E3779B1 & 0xFFFFFFFF) >> 8) % 1000)
        seed = zlib.crc32(array("q", ids[-1:]).tobytes(), seed)
    return Reply(ids=ids, text=" ".join(map(str, ids)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCall:
    """A generate request under way.

    Attributes:
        server: The `FaultyServer`.
        aborted: Set when the request is aborted.
        reused: The connection has served a request before.
        vllm: The request in vLLM's words, where the server speaks these; `body` is SGLang's then, too.
    """

    server: Any
    request: web.Request
    body: dict[str, Any]
    rid: str
    aborted: asyncio.Event
    reused: bool
    vllm: dict[str, Any] | None = None

    def sampled(self) -> list[int]:
        """Ids of the answer that depends on the prompt alone."""
        return list(hash_reply(self.body.get("input_ids") or []).ids or ())

    def answer(self, reply: Reply | None = None) -> dict[str, Any]:
        """The answer for a reply; by default one that depends on the prompt alone."""
        ids = self.body.get("input_ids") or []
        made = reply or replace(hash_reply(ids), weight_version=self.server.weight_version)
        built = build_answer(made, ids, self.body, rid=self.rid)
        return built if self.vllm is None else to_vllm(built, self.vllm, raw_logprobs=self.server.raw_logprobs)


Fault = Callable[[ServerCall], Awaitable[web.StreamResponse]]
"""Answers, or breaks, one request."""


def _fault(serve: Callable[Concatenate[ServerCall, P], Awaitable[web.StreamResponse]]) -> Callable[P, Fault]:
    """Make a function of the call and its options one of the options that returns the fault."""

    @functools.wraps(serve)
    def make(*args: P.args, **options: P.kwargs) -> Fault:
        return lambda call: serve(call, *args, **options)

    return make


def _json(payload: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(payload), status=status, headers=headers, content_type="application/json")


@_fault
async def answer(
    call: ServerCall, reply: Reply | None = None, *, headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """A good answer (after the reply's delay; an abort ends the wait)."""
    if reply is not None and reply.delay:
        try:
            await asyncio.wait_for(call.aborted.wait(), reply.delay)
            reply = Reply(ids=[], finish="abort")
        except TimeoutError:
            pass
    return _json(call.answer(reply), headers=headers)


@_fault
async def raw_answer(call: ServerCall, payload: Any, *, headers: Mapping[str, str] | None = None) -> web.StreamResponse:
    """Exactly this body with status 200: bytes verbatim, anything else as JSON."""
    if isinstance(payload, bytes):
        return web.Response(body=payload, headers=headers, content_type="application/json")
    return _json(payload, headers=headers)


@_fault
async def status(
    call: ServerCall, code: int, body: Any = "", *, headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """An error status with any body: text verbatim, anything else as JSON."""
    if isinstance(body, str):
        return web.Response(text=body, status=code, headers=headers)
    return _json(body, code, headers)


def busy(retry_after: float | str | None = None) -> Fault:
    """503 queue full, as SGLang says it."""
    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    body = {"object": "error", "message": "The request queue is full.", "type": "503", "param": None, "code": 503}
    return status(503, body, headers=headers)


def worker_lost() -> Fault:
    """500 of a router whose worker died."""
    inner = {"type": "Internal Server Error", "code": "call_upstream_request_error", "message": "error sending request"}
    return status(500, {"error": inner}, headers={"x-smg-error-code": "call_upstream_request_error"})


def _reset(call: ServerCall) -> web.StreamResponse:
    transport = call.request.transport
    if transport is not None:
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    return web.Response()


@_fault
async def reset(call: ServerCall) -> web.StreamResponse:
    """The connection is reset before an answer begins."""
    return _reset(call)


@_fault
async def reset_if_reused(call: ServerCall) -> web.StreamResponse:
    """A reset on a kept-alive connection, as when the server's idle timer fires while the request is on its way."""
    return _reset(call) if call.reused else _json(call.answer())


@_fault
async def close(call: ServerCall) -> web.StreamResponse:
    """The connection is closed without an answer."""
    if call.request.transport is not None:
        call.request.transport.close()
    return web.Response()


@_fault
async def half_written(
    call: ServerCall, fraction: float = 0.5, *, framed: bool = True, code: int = 200
) -> web.StreamResponse:
    """Half of an answer: cut off by a closed connection, or (`framed=False`) as a whole HTTP message."""
    payload = orjson.dumps(call.answer())
    part = payload[: int(len(payload) * fraction)]
    if not framed:
        return web.Response(body=part, status=code, content_type="application/json")
    response = await _begun(call, len(payload), code)
    await response.write(part)
    if call.request.transport is not None:
        call.request.transport.close()
    return response


@_fault
async def slow(call: ServerCall, seconds: float, pieces: int = 10) -> web.StreamResponse:
    """A good answer that takes this long to arrive, piece by piece."""
    payload = orjson.dumps(call.answer())
    response = await _begun(call, len(payload))
    step = max(1, -(-len(payload) // pieces))
    for start in range(0, len(payload), step):
        await asyncio.sleep(seconds / pieces)
        await response.write(payload[start : start + step])
    return response


async def _begun(call: ServerCall, length: int, code: int = 200) -> web.StreamResponse:
    response = web.StreamResponse(status=code, headers={"Content-Length": str(length)})
    response.content_type = "application/json"
    await response.prepare(call.request)
    return response


@_fault
async def hang(call: ServerCall) -> web.StreamResponse:
    """No answer, until the request is aborted (then an abort with nothing sampled) or the client goes away."""
    await call.aborted.wait()
    return _json(call.answer(Reply(ids=[], finish="abort")))


def aborted(ids: tuple[int, ...] = (), message: str = "Aborted") -> Fault:
    """200 with the ids sampled so far and the finish reason `abort`."""
    return answer(Reply(ids=ids, finish="abort", meta={"finish_reason": {"type": "abort", "message": message}}))


@_fault
async def aborted_partway(call: ServerCall, fraction: float = 0.5) -> web.StreamResponse:
    """An abort after this part of the good answer: the rest comes when the request is resumed."""
    ids = call.sampled()
    sampled = ids[: int(len(ids) * fraction)]
    return _json(call.answer(Reply(ids=sampled, finish="abort", weight_version=call.server.weight_version)))


@_fault
async def close_after(call: ServerCall) -> web.StreamResponse:
    """A good answer on a connection that is closed right after it, without a word."""
    if (transport := call.request.transport) is not None:
        asyncio.get_running_loop().call_later(0.01, transport.close)
    return _json(call.answer())


@_fault
async def not_http(call: ServerCall, data: bytes = b"\x00\x01 this is not HTTP\r\n\r\n") -> web.StreamResponse:
    """Bytes that are not an HTTP answer."""
    if call.request.transport is not None:
        call.request.transport.write(data)
        call.request.transport.close()
    return web.Response()
