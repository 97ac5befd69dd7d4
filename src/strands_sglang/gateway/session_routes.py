"""The session routes: make, list, show, read, close and delete sessions, with the admin key where there is one."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.typedefs import Handler

from .delivery import as_json
from .dialects.wire import Refused
from .requests import bytes_of, presented_key, read_body
from .session import Session

if TYPE_CHECKING:
    from .server import Gateway


def add_session_routes(app: web.Application, gateway: Gateway, key: str | None) -> None:
    """Add the routes below `/sessions` to an application; `key` is the admin key, None for routes without one."""

    def guarded(answer: Callable[[web.Request], Awaitable[web.Response]]) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            presented = presented_key(request) or ""
            if key is not None and not hmac.compare_digest(bytes_of(presented), bytes_of(key)):
                raise Refused("this route needs the admin key", status=401, code="invalid_api_key")
            return await answer(request)

        return handle

    def of_session(answer: Callable[[Session], Awaitable[Any]]) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            session = gateway.sessions.get(request.match_info["session"])
            if session is None:
                raise Refused("unknown session", status=404, code="session_not_found")
            return as_json(await answer(session))

        return guarded(handle)

    async def create(request: web.Request) -> web.Response:
        body = await read_body(request) if request.can_read_body else {}
        if unknown := body.keys() - {"labels", "sampling", "limits", "join_equal"}:
            raise Refused(f"unknown fields {sorted(unknown)}; known are labels, sampling, limits, join_equal")
        options: dict[str, Any] = {name: value for name, value in body.items() if value is not None}
        try:
            session = gateway.open(**options)
        except (TypeError, ValueError) as error:
            raise Refused(str(error)) from error
        # Where this caller reaches the gateway, which is not where it listens: 0.0.0.0, or a port behind a service.
        address = f"{request.scheme}://{request.host}/s/{session.id}"
        urls = {"openai": f"{address}/v1", "anthropic": address, "google": address}
        return as_json({"id": session.id, "key": session.key, "base_urls": urls}, status=201)

    async def list_sessions(request: web.Request) -> web.Response:
        return as_json({"sessions": [session.to_json() for session in gateway.sessions.values()]})

    async def show(session: Session) -> Any:
        return session.to_json()

    async def read(session: Session) -> Any:
        return _rows(session)

    async def close(session: Session) -> Any:
        await session.close()
        return session.to_json()

    async def delete(session: Session) -> Any:
        await gateway.delete(session)
        return {"id": session.id, "deleted": True}

    one = "/sessions/{session}"
    app.router.add_post("/sessions", guarded(create))
    app.router.add_get("/sessions", guarded(list_sessions))
    app.router.add_get(one, of_session(show))
    app.router.add_get(f"{one}/trajectories", of_session(read))
    app.router.add_post(f"{one}/close", of_session(close))
    app.router.add_delete(one, of_session(delete))


def _rows(session: Session) -> list[dict[str, Any]]:
    """One row per trajectory. Images are left out; `images` has their number."""
    counters = session.counters
    return [
        {
            "session": session.id,
            "labels": dict(session.labels),
            "agent": trajectory.agent_name,
            "token_ids": trajectory.token_ids,
            "loss_mask": trajectory.loss_mask,
            "output_mask": trajectory.output_mask,
            "logprobs": trajectory.logprobs,
            "prompt_length": trajectory.initial_prompt_length,
            "segments": trajectory.segment_info,
            "finish_reason": trajectory.finish_reason,
            "is_discarded": trajectory.is_discarded,
            "constrained": [turn.is_constrained for turn in trajectory.turns],
            "tool_calls": [{"id": c.id, "name": c.name, "error": c.error} for c in trajectory.calls],
            "weight_versions": [[s.version, s.start, s.end] for s in trajectory.weight_versions],
            "request_ids": trajectory.request_ids,
            "images": len(trajectory.images),
            "extension_rate": counters.extension_rate,
            "edited": counters.edited,
        }
        for trajectory in session.trajectories
    ]
