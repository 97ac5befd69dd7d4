"""A real HTTP server on loopback that speaks SGLang's native API, or vLLM's, and fails on command."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from aiohttp import web

from . import faults
from .faults import Fault, ServerCall
from .vllm_protocol import RID_PREFIX, from_vllm


@dataclass(slots=True, kw_only=True)
class ServedRequest:
    """A generate request the server received.

    Attributes:
        headers: Headers, names in lower case.
        at: Time of arrival, `time.monotonic()` seconds.
        outcome: `running`, `answered`, or `disconnected` (the client went away, or the fault broke the connection).
    """

    rid: str
    body: dict[str, Any]
    headers: dict[str, str]
    at: float
    outcome: str = "running"
    status: int | None = None


class FaultyServer:
    """A scripted SGLang server (or router) for tests; an async context manager.

    Args:
        script: Faults of the generate requests, in order of arrival; good answers after its end. A function
            instead takes the call and returns a fault, or None for a good answer.
        workers: Makes it a router: `/abort_request` is 404, and `GET /workers` lists these addresses.
        max_model_len: Context length in `/v1/models`; None leaves it out.
        model_info: Further keys of `/model_info`.
        protocol: `sglang`, or `vllm` for its token-in, token-out endpoint; scripts are the same.
        raw_logprobs: A vLLM server without `--logprobs-mode processed_logprobs`.

    Attributes:
        requests: Every generate request.
        aborts: `(rid, time)` of every abort that arrived.
        paths: `METHOD /path` of every other request.
        weight_version: Version that good answers carry.
    """

    def __init__(
        self,
        script: Iterable[Fault] | Callable[[ServerCall], Fault | None] = (),
        *,
        workers: Sequence[str] | None = None,
        max_model_len: int | None = 4096,
        model_info: dict[str, Any] | None = None,
        protocol: Literal["sglang", "vllm"] = "sglang",
        raw_logprobs: bool = False,
    ) -> None:
        self.protocol = protocol
        self.raw_logprobs = raw_logprobs
        self._choose = script if callable(script) else None
        self.script: list[Fault] = [] if callable(script) else list(script)
        self.workers = workers
        self.max_model_len = max_model_len
        self.model_info = model_info or {}
        self.weight_version = "default"
        self.requests: list[ServedRequest] = []
        self.aborts: list[tuple[str, float]] = []
        self.paths: list[str] = []
        self._port = 0  # a free one, which it keeps
        self._running: dict[str, asyncio.Event] = {}
        self._seen: set[Any] = set()
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> FaultyServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen on loopback."""
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/generate" if self.protocol == "sglang" else "/inference/v1/generate", self._generate)
        app.router.add_route("*", "/{path:.*}", self._other)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, keepalive_timeout=5.0, shutdown_timeout=0.1, access_log=None
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=2048)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Break every connection and stop listening."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    @property
    def url(self) -> str:
        """Address of the server; it keeps it over a restart."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def rids(self) -> list[str]:
        """Request ids in order of arrival."""
        return [request.rid for request in self.requests]

    @property
    def aborted_rids(self) -> list[str]:
        """Distinct request ids that were aborted, in order."""
        return list(dict.fromkeys(rid for rid, _ in self.aborts))

    @property
    def running(self) -> list[str]:
        """Request ids the server is working on."""
        return list(self._running)

    @property
    def open_connections(self) -> int:
        """Connections that are open."""
        if self._runner is None or self._runner.server is None:
            return 0
        return len(self._runner.server.connections)

    def pause(self) -> None:
        """Let new requests wait, as `/pause_generation` does."""
        self._resumed.clear()

    def resume(self) -> None:
        """Let waiting requests run."""
        self._resumed.set()

    async def wait_for_requests(self, count: int) -> None:
        """Wait until this many generate requests have arrived."""
        while len(self.requests) < count:
            await asyncio.sleep(0.005)

    # ------------------------------------------------------------------ routes

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        vllm = None
        if self.protocol == "vllm":
            body, vllm = from_vllm(body), body
        rid = body.get("rid") or f"server-{len(self.requests)}"
        headers = {name.lower(): value for name, value in request.headers.items()}
        served = ServedRequest(rid=rid, body=body, headers=headers, at=time.monotonic())
        self.requests.append(served)
        if rid in self._running and vllm is None:
            return web.json_response({"error": {"message": f"Duplicate request ID detected: {rid}"}}, status=400)
        aborted = self._running[rid] = asyncio.Event()
        # A connection is known by the client's port, which another one may get once this is closed.
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        reused = peer in self._seen
        self._seen.add(peer)
        call = ServerCall(server=self, request=request, body=body, rid=rid, aborted=aborted, reused=reused, vllm=vllm)
        fault = self._next_fault(call)
        try:
            await self._resumed.wait()
            response = await fault(call)
            served.outcome, served.status = "answered", response.status
            if request.transport is None or request.transport.is_closing():
                served.outcome, served.status = "disconnected", None
                self._seen.discard(peer)
            return response
        except asyncio.CancelledError:
            served.outcome = "disconnected"
            raise
        finally:
            del self._running[rid]

    def _next_fault(self, call: ServerCall) -> Fault:
        if self._choose is not None:
            return self._choose(call) or faults.answer()
        return self.script.pop(0) if self.script else faults.answer()

    async def _other(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(f"{request.method} {request.path}")
        match request.path:
            case "/abort_request" if self.workers is None:
                rid = orjson.loads(await request.read()).get("rid", "")
                self.aborts.append((rid, time.monotonic()))
                if rid in self._running:  # a live id takes every id that begins with it along
                    for other, event in self._running.items():
                        if other.startswith(rid):
                            event.set()
                return web.Response()
            case "/inference/v1/abort_requests" if self.protocol == "vllm":
                for named in orjson.loads(await request.read())["request_ids"]:
                    rid = named.removeprefix(RID_PREFIX)
                    self.aborts.append((rid, time.monotonic()))
                    if rid in self._running:
                        self._running[rid].set()
                return web.Response()
            case "/version" if self.protocol == "vllm":
                return web.json_response({"version": "0.32.0"})
            case "/workers" if self.workers is not None:
                return web.json_response({"workers": [{"url": url, "is_healthy": True} for url in self.workers]})
            case "/health":
                return web.Response(status=200 if self._resumed.is_set() else 503)
            case "/model_info" | "/server_info" if self.workers is None and self.protocol == "sglang":
                return web.json_response(
                    {"model_path": "fake", "weight_version": self.weight_version, **self.model_info}
                )
            case "/get_model_info" | "/get_server_info" if self.protocol == "sglang":
                return web.json_response({"model_path": "fake", **self.model_info})
            case "/v1/models":
                model = {"id": "fake", "owned_by": self.protocol, "max_model_len": self.max_model_len}
                if self.max_model_len is None or self.workers is not None:
                    del model["max_model_len"]
                return web.json_response({"object": "list", "data": [model]})
        return web.json_response({"detail": "Not Found"}, status=404)
