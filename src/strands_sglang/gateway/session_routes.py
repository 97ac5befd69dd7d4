"""The session routes: make, list, show, read, reward, close and delete sessions.

All but the reward's take the admin key where there is one. A reward takes the admin key or the session's `reward_key`,
never the key that the agent has, and never nothing: an agent must not score itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from aiohttp import web

from .delivery import as_json
from .dialects.wire import Refused
from .requests import is_key, presented_key, read_body
from .reward import Reward
from .session import Session
from .session_table import SessionTable
from .telemetry import Telemetry


def add_session_routes(
    app: web.Application,
    table: SessionTable,
    telemetry: Telemetry,
    *,
    open_session: Callable[..., Session],
    delete_session: Callable[[Session], Awaitable[None]],
    admin: bool,
    key: str | None,
) -> None:
    """Add the routes to an application: the reward's and, with `admin`, those below `/sessions`.

    Args:
        open_session, delete_session: See `Gateway.open` and `Gateway.delete`.
        key: The admin key, None for routes without one.
    """

    def add(method: str, path: str, answer: Callable[[web.Request], Awaitable[Any]], *, guarded: bool = True) -> None:
        async def handle(request: web.Request) -> web.StreamResponse:
            if guarded and key is not None and not is_key(presented_key(request), key):
                raise Refused("this route needs the admin key", status=401, code="invalid_api_key")
            value = await answer(request)
            return value if isinstance(value, web.StreamResponse) else as_json(value)

        app.router.add_route(method, path, handle)

    def check_names(kind: str, given: Mapping[str, Any], *known: str) -> None:
        if unknown := sorted({*given} - {*known}):
            raise Refused(f"unknown {kind} {unknown}; known: {', '.join(known)}", param=unknown[0])

    def session_of(request: web.Request) -> Session:
        session = table.find(request.match_info["session"])
        if session is None:
            raise Refused("unknown session", status=404, code="session_not_found")
        return session

    def check_reward_key(request: web.Request) -> None:
        presented, session = presented_key(request), table.get(request.match_info["session"])
        if is_key(presented, key) or (session is not None and is_key(presented, session.reward_key)):
            return
        if session is not None and is_key(presented, session.key):
            what, status = "the key of the agent sets no reward: send the session's reward_key, or the admin key", 403
            raise Refused(what, status=status, code="wrong_key")
        what = "no session takes rewards with this key: send its reward_key, or the admin key"
        raise Refused(what, status=401, code="invalid_api_key")

    def set_reward(session: Session, body: Mapping[str, Any]) -> Reward:
        check_names("fields", body, "reward", "turns", "info")
        if "reward" not in body:
            raise Refused("reward is missing: a number, or null for no score of the whole", param="reward")
        try:
            return session.set_reward(body["reward"], turns=body.get("turns"), info=body.get("info"))
        except (TypeError, ValueError) as error:
            raise Refused(str(error)) from error

    async def reward(request: web.Request) -> Any:
        check_reward_key(request)
        session = session_of(request)
        return {"id": session.id, **set_reward(session, await read_body(request)).to_json()}

    async def create(request: web.Request) -> web.Response:
        name = request.match_info.get("session")
        if table.find(name) is not None:
            raise Refused(f"there is a session {name!r} already", status=409, code="session_exists")
        body = await read_body(request) if request.can_read_body else {}
        check_names("fields", body, "labels", "sampling", "limits", "join_equal")
        options: dict[str, Any] = {name: value for name, value in body.items() if value is not None}
        try:
            session = open_session(name=name, **options)
        except (TypeError, ValueError) as error:
            raise Refused(str(error)) from error
        # Where this caller reaches the gateway, which is not where it listens: 0.0.0.0, or a port behind a service.
        address = f"{request.scheme}://{request.host}/s/{session.id}"
        urls = {"openai": f"{address}/v1", "anthropic": address, "google": address}
        made = {"id": session.id, "key": session.key, "reward_key": session.reward_key, "base_urls": urls}
        return as_json(made, status=201)

    async def list_sessions(request: web.Request) -> Any:
        folder = table.folder
        sessions: list[dict[str, Any]] = [{"id": name, "error": error} for name, (_, error) in table.damaged.items()]
        for session in list(table.values()):  # perhaps thousands, while others are served
            sessions.append(session.to_json())
            await asyncio.sleep(0)
        listing: dict[str, Any] = {"sessions": sessions}
        if folder is not None:
            listing["state"] = {"folder": str(folder.path), "bytes": folder.size, "limit": folder.limit}
        return listing

    async def metrics(request: web.Request) -> web.Response:
        sessions = list(table.values())
        closed = sum(session.is_sealed for session in sessions)
        text = telemetry.metrics(
            [counters for session in sessions for counters in session.clients.values()],
            {"open": len(sessions) - closed, "closed": closed, "damaged": len(table.damaged)},
            in_flight=sum(session.in_flight for session in sessions),
        )
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def show(request: web.Request) -> Any:
        return session_of(request).to_json()

    async def read(request: web.Request) -> web.Response:
        session = session_of(request)
        check_names("query parameters", request.query, "agent")
        if session.is_sealed and not session.is_reward_final:
            session.is_reward_final = True
            session.log.note(is_final=True)
        agents = request.query.getall("agent", [])
        is_last = session.is_sealed and not session.in_flight and not agents
        response = as_json(_rows(session, agents))
        if is_last:
            await response.prepare(request)
            await response.write_eof()
            # The socket's buffers may hold rows that its caller never reads: the log stays until a DELETE.
            session.is_exported = True
        return response

    async def close(request: web.Request) -> Any:
        session = session_of(request)
        if body := await read_body(request) if request.can_read_body else {}:
            check_reward_key(request)
            set_reward(session, body)
        await session.close(is_final=bool(body))
        return session.to_json()

    async def delete(request: web.Request) -> Any:
        name = request.match_info["session"]
        if not table.remove_damaged(name):
            await delete_session(session_of(request))
        return {"id": name, "deleted": True}

    add("POST", "/s/{session}/reward", reward, guarded=False)
    if not admin:
        return
    one = "/sessions/{session}"
    add("GET", "/metrics", metrics)
    add("POST", "/sessions", create)
    add("GET", "/sessions", list_sessions)
    add("POST", one, create)
    add("GET", one, show)
    add("GET", f"{one}/trajectories", read)  # and no HEAD: who asks for a head gets no rows
    add("POST", f"{one}/close", close)
    add("DELETE", one, delete)


def _rows(session: Session, agents: Collection[str] = ()) -> list[dict[str, Any]]:
    """A row per trajectory, of these agents alone where some are named, by name or role.

    Images are left out; `images` has their number.

    A turn may be on several paths, of which one trains it: its reward is in the rows of all.
    """
    counters, reward = session.counters, session.reward or Reward()
    return [
        {
            "session": session.id,
            "labels": dict(session.labels),
            "agent": trajectory.agent_name,
            "role": trajectory.role,
            "parent": trajectory.parent,
            "trainable": trajectory.trainable,
            "token_ids": trajectory.token_ids,
            "loss_mask": trajectory.loss_mask,
            "output_mask": trajectory.output_mask,
            "logprobs": trajectory.logprobs,
            "prompt_length": trajectory.initial_prompt_length,
            "segments": trajectory.segment_info,
            "finish_reason": trajectory.finish_reason,
            "is_discarded": trajectory.is_discarded,
            "reward": reward.value,
            "reward_info": reward.info,
            "turns": [turn.index for turn in trajectory.turns],
            "turn_rewards": [reward.turns.get(turn.index) for turn in trajectory.turns],
            "constrained": [turn.is_constrained for turn in trajectory.turns],
            "tool_calls": [{"id": c.id, "name": c.name, "error": c.error} for c in trajectory.calls],
            "weight_versions": [[s.version, s.start, s.end] for s in trajectory.weight_versions],
            "request_ids": trajectory.request_ids,
            "images": len(trajectory.images),
            "extension_rate": counters.extension_rate,
            "edited": counters.edited,
        }
        for trajectory in session.trajectories
        if not agents or {trajectory.agent_name, str(trajectory.role)} & {*agents}
    ]
