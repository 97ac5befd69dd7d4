"""The session routes: make, list, show, read, close and delete sessions, with the admin key where there is one."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from .delivery import as_json, hide
from .dialects.wire import Refused
from .requests import bytes_of, presented_key, read_body
from .session import Session


class SessionRoutes:
    """The routes of a gateway below `/sessions`.

    Args:
        sessions: Open and sealed ones, by id; the gateway changes it.
        make: Opens a session.
        drop: Ends one and forgets it.
        key: The admin key; None for routes without one.
    """

    def __init__(
        self,
        *,
        sessions: Mapping[str, Session],
        make: Callable[..., Session],
        drop: Callable[[Session], Awaitable[None]],
        key: str | None,
    ) -> None:
        self._sessions, self._make, self._drop, self._key = sessions, make, drop, key

    def add_to(self, app: web.Application) -> None:
        """Add the routes to an application."""
        one = "/sessions/{session}"
        app.router.add_post("/sessions", self._guard(self.create))
        app.router.add_get("/sessions", self._guard(self.list))
        app.router.add_get(one, self._guard(self.show))
        app.router.add_get(f"{one}/trajectories", self._guard(self.read))
        app.router.add_post(f"{one}/close", self._guard(self.close))
        app.router.add_delete(one, self._guard(self.delete))

    def _guard(self, answer: Handler) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            given = presented_key(request) or ""
            if self._key is not None and not hmac.compare_digest(bytes_of(given), bytes_of(self._key)):
                raise Refused("this route needs the admin key", status=401, code="invalid_api_key")
            try:
                return await answer(request)
            except (Refused, OSError, web.HTTPException):
                raise
            except Exception as error:
                raise hide(error) from None

        return handle

    def _find(self, request: web.Request) -> Session:
        session = self._sessions.get(request.match_info["session"])
        if session is None:
            raise Refused("unknown session", status=404, code="session_not_found")
        return session

    async def create(self, request: web.Request) -> web.StreamResponse:
        """`POST /sessions`."""
        body = await read_body(request) if request.can_read_body else {}
        if unknown := body.keys() - {"labels", "sampling", "limits", "join_equal"}:
            raise Refused(f"unknown fields {sorted(unknown)}; known are labels, sampling, limits, join_equal")
        asked: dict[str, Any] = {name: value for name, value in body.items() if value is not None}
        try:
            session = self._make(**asked)
        except (TypeError, ValueError) as error:
            raise Refused(str(error)) from error
        # Where this caller reaches the gateway, which is not where it listens: 0.0.0.0, or a port behind a service.
        address = f"{request.scheme}://{request.host}/s/{session.id}"
        urls = {"openai": f"{address}/v1", "anthropic": address, "google": address}
        return as_json({"id": session.id, "key": session.key, "base_urls": urls}, status=201)

    async def list(self, request: web.Request) -> web.StreamResponse:
        """`GET /sessions`."""
        return as_json({"sessions": [session.to_json() for session in self._sessions.values()]})

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET /sessions/ID`."""
        return as_json(self._find(request).to_json())

    async def read(self, request: web.Request) -> web.StreamResponse:
        """`GET /sessions/ID/trajectories`: one row per trajectory. Images are left out; `images` has their number."""
        session = self._find(request)
        counters = session.counters
        rows = [
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
        return as_json(rows)

    async def close(self, request: web.Request) -> web.StreamResponse:
        """`POST /sessions/ID/close`."""
        session = self._find(request)
        await session.close()
        return as_json(session.to_json())

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """`DELETE /sessions/ID`."""
        session = self._find(request)
        await self._drop(session)
        return as_json({"id": session.id, "deleted": True})
