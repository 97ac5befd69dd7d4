"""The gateway: sessions, and the HTTP application in front of them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import inspect
import ipaddress
import json
import logging
import os
import secrets
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson
from aiohttp import web

from ..backends.sglang.sampling import SAMPLING_KEYS
from ..conversation import Conversation
from ..conversation.generation import GenerateClient
from ..conversation.options import DEFAULTS
from ..exceptions import did_you_mean, refuse_unknown
from .canonical import VOLATILE_RULES
from .delivery import arrived, refusal, send
from .dialects.anthropic_messages import ANTHROPIC_MESSAGES
from .dialects.chat_completions import CHAT_COMPLETIONS
from .dialects.responses import RESPONSES
from .dialects.wire import Refused, WireDialect, WireRequest, want_count, want_object
from .export import parquet_of, rows_of
from .session import Asker, GatewayPolicy, Limits, Session

logger = logging.getLogger(__name__)

MAX_BODY = 64 * 2**20

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_SESSION_LIMITS = ("max_requests", "max_new_tokens")
_CONVERSATION_LIMITS = ("max_sampled_tokens", "max_trajectory_tokens", "context_window_limit")
_LIMITS = (*_SESSION_LIMITS, *_CONVERSATION_LIMITS)
_ENCODINGS = frozenset({"br", "deflate", "gzip", "identity", "zstd"})


class Gateway:
    """Serves OpenAI Chat Completions, OpenAI Responses and Anthropic Messages with exact token trajectories.

    Use as an asynchronous context manager; the address is known inside:

        async with Gateway(client=client, tokenizer=tokenizer) as gateway:
            session = gateway.open()
            ...  # any client, with session.base_url and session.key
            session.trajectories

    Args:
        client: What speaks the generate contract: `SGLangClient`, the embedded engine, a scripted fake. It stays the
            caller's.
        tokenizer: Hugging Face style tokenizer of the served model.
        host: Address to listen on, or None for the socket file alone. Anything but loopback needs an `admin_key`.
        port: Port to listen on; 0 takes a free one.
        unix_path: Path of a socket file to listen on as well, for clients without a network.
        admin: False leaves out the routes that make, read and close sessions: only sessions opened in process, with
            `open`, are served. For programs that must not leave the limits of their session.
        admin_key: Key of those routes. None leaves them open to this machine.
        auto_sessions: Make a session for a key, or a path, that is not known, under that name. For development.
        hosts: Further names under which the gateway may be addressed; addresses and `localhost` always may.
        session_ttl: Seconds without a request after which a session is sealed; None for never.
        model_name: Name that `/v1/models` lists.
        strict: See `GatewayPolicy`.
        client_sampling: See `GatewayPolicy`.
        volatile_rules: See `GatewayPolicy`.
        max_body: Most bytes of a request's body, unpacked.
        hold: Seconds for which the head of a stream is held back, so that errors keep their status.
        ping_interval: Seconds between the pings of a stream that waits.
        **options: Options of every session's `Conversation`: `sampling_params`, `tool_parser`, `chat_template`, ...

    Raises:
        TypeError: An unknown option.
        ValueError: A bind beyond loopback without an admin key, no address at all, options of the session routes
            where there are none, or an unknown volatile rule.
    """

    def __init__(
        self,
        *,
        client: GenerateClient,
        tokenizer: Any,
        host: str | None = "127.0.0.1",
        port: int = 0,
        unix_path: str | None = None,
        admin: bool = True,
        admin_key: str | None = None,
        auto_sessions: bool = False,
        hosts: Collection[str] = (),
        session_ttl: float | None = None,
        model_name: str = "default",
        strict: bool = False,
        client_sampling: bool = False,
        volatile_rules: Collection[str] = tuple(VOLATILE_RULES),
        max_body: int = MAX_BODY,
        hold: float = 10.0,
        ping_interval: float = 5.0,
        **options: Any,
    ) -> None:
        refuse_unknown("Gateway()", options, _option_names() | SAMPLING_KEYS)  # `Conversation` says where these go
        if host is None and unix_path is None:
            raise ValueError("host=None leaves only a socket file to listen on; give unix_path")
        if not admin and (auto_sessions or admin_key is not None):
            raise ValueError(
                "admin=False leaves out the session routes; auto_sessions and admin_key have no place there"
            )
        if admin and host is not None and not is_loopback(host) and admin_key is None:
            raise ValueError(f"host={host!r} is reachable from other machines; give an admin_key")
        if unknown := set(volatile_rules) - VOLATILE_RULES.keys():
            raise ValueError(f"unknown volatile rules {sorted(unknown)}; known are {sorted(VOLATILE_RULES)}")
        self.client, self.tokenizer, self.model_name = client, tokenizer, model_name
        self.auto_sessions, self.session_ttl = auto_sessions, session_ttl
        self.max_body, self.hold, self.ping_interval = max_body, hold, ping_interval
        self.policy = GatewayPolicy(
            strict=strict, client_sampling=client_sampling, volatile_rules=tuple(volatile_rules)
        )
        self.sessions: dict[str, Session] = {}
        self._by_key: dict[bytes, Session] = {}
        self._options = options
        self._admin, self._admin_key = admin, admin_key
        self._host, self._port, self._unix_path = host, port, unix_path
        self._hosts = frozenset({host or "localhost", "localhost", *hosts})
        self._runner: web.AppRunner | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self.url = ""
        Conversation(tokenizer=tokenizer, client=client, **options)  # a wrong option fails here

    # ---- life ------------------------------------------------

    async def __aenter__(self) -> Gateway:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Listen; `url` holds the address afterwards, `http://localhost` where there is only a socket file."""
        runner = web.AppRunner(self.app(), handler_cancellation=True, access_log=None, shutdown_timeout=5)
        await runner.setup()
        try:
            if self._host is not None:
                await web.TCPSite(runner, self._host, self._port, backlog=1024).start()
                host, port = runner.addresses[0][:2]
                self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            else:
                self.url = "http://localhost"
            if self._unix_path is not None:
                await web.UnixSite(runner, self._unix_path).start()
                os.chmod(self._unix_path, 0o666)  # what opens a session is its key
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        for session in self.sessions.values():
            self._address(session)
        if self.session_ttl is not None:
            self._sweeper = asyncio.create_task(self._sweep(self.session_ttl))

    async def close(self) -> None:
        """Stop listening and abort what is in flight. Sessions keep their trajectories."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for session in list(self.sessions.values()):
            await session.drop()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _sweep(self, ttl: float) -> None:
        while True:
            await asyncio.sleep(ttl / 4)
            for session in list(self.sessions.values()):
                if not session.is_sealed and time.monotonic() - session.last_used > ttl:
                    await session.close()

    # ---- sessions ------------------------------------------------

    def open(
        self,
        *,
        labels: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        name: str | None = None,
        key: str | None = None,
        conversation: Conversation | None = None,
    ) -> Session:
        """A new session.

        Args:
            labels: Whatever identifies the rollout; JSON values.
            sampling: SGLang sampling parameters; they win over those of clients and of the gateway.
            limits: `max_requests`, `max_new_tokens` (of one reply), `max_sampled_tokens` (of the session),
                `max_trajectory_tokens` (of one path), `context_window_limit`.
            name: Name in paths; a random one by default.
            key: Its key; a random one of 128 bits by default.
            conversation: The core to put behind it, such as a model's; it keeps its own sampling and budgets.

        Raises:
            TypeError: `labels`, `sampling` or `limits` is not a mapping.
            ValueError: An unknown limit or sampling parameter, or a name that is taken.
        """
        for what, value in (("labels", labels), ("sampling", sampling), ("limits", limits)):
            if not isinstance(value, Mapping | None):
                raise TypeError(f"{what} must be a mapping, such as a dict, got {value!r}")
        name, key = name or uuid.uuid4().hex, key or secrets.token_urlsafe(16)
        if name in self.sessions:
            raise ValueError(f"there is a session {name!r} already")
        asked = dict(limits or {})
        if conversation is not None and (sampling or asked.keys() & set(_CONVERSATION_LIMITS)):
            raise ValueError("a conversation that is given keeps its own sampling and budgets")
        options = dict(self._options)
        for limit in _CONVERSATION_LIMITS:
            if asked.get(limit) is not None:
                options[limit] = asked[limit]
            asked.pop(limit, None)
        own = {limit: _count(limit, asked.pop(limit, None)) for limit in _SESSION_LIMITS}
        if asked:
            wrong = min(asked)
            raise ValueError(f"unknown limit {wrong!r}{did_you_mean(wrong, _LIMITS)}; there are {', '.join(_LIMITS)}")
        if sampling:
            options["sampling_params"] = {**(options.get("sampling_params") or {}), **sampling}
        session = Session(
            id=name,
            key=key,
            conversation=conversation or Conversation(tokenizer=self.tokenizer, client=self.client, **options),
            policy=self.policy,
            limits=Limits(**own),
            labels=dict(labels or {}),
        )
        self.sessions[name] = self._by_key[_key_digest(key)] = session
        self._address(session)
        return session

    async def delete(self, session: Session) -> None:
        """Drop a session with its trajectories; what is in flight is aborted."""
        self.sessions.pop(session.id, None)
        self._by_key.pop(_key_digest(session.key), None)
        await session.drop()

    def _address(self, session: Session) -> None:
        if self.url:
            session.anthropic_url = f"{self.url}/s/{session.id}"
            session.base_url = f"{session.anthropic_url}/v1"

    def _session_of(self, request: web.Request) -> Session:
        """The session of the path, else of the key; never one of the body."""
        name, key = request.match_info.get("session"), _presented_key(request)
        by_key = self._by_key.get(_key_digest(key)) if key else None
        named = by_key if name is None else self.sessions.get(name)
        if named is None and self.auto_sessions and key and by_key is None:
            return self.open(name=name or key, key=key)
        if named is None or not key or not hmac.compare_digest(key.encode(), named.key.encode()):
            if named is not None and by_key is not None:
                raise Refused("this key belongs to another session", status=403, code="wrong_session")
            raise Refused("no session has this key", status=401, code="invalid_api_key")
        return named

    # ---- the application ------------------------------------------------

    def app(self) -> web.Application:
        """The application, to be run with `handler_cancellation=True`."""
        app = web.Application(middlewares=[self._guard], client_max_size=self.max_body)
        for prefix in ("", "/s/{session}"):
            for path, dialect in (
                ("/v1/chat/completions", CHAT_COMPLETIONS),
                ("/v1/responses", RESPONSES),
                ("/v1/messages", ANTHROPIC_MESSAGES),
            ):
                app.router.add_post(prefix + path, self._endpoint(dialect, self._respond))
            app.router.add_post(
                prefix + "/v1/messages/count_tokens", self._endpoint(ANTHROPIC_MESSAGES, self._count_tokens)
            )
            app.router.add_get(prefix + "/v1/models", self._models)
            app.router.add_get(prefix + "/v1/models/{model:.+}", self._model)
            app.router.add_get(prefix + "/api/hello", self._hello)
        app.router.add_get("/health", self._hello)
        if self._admin:
            app.router.add_post("/sessions", self._for_admin(self._create))
            app.router.add_get("/sessions", self._for_admin(self._list))
            app.router.add_get("/sessions/{session}", self._for_admin(self._show))
            app.router.add_get("/sessions/{session}/trajectories", self._for_admin(self._trajectories))
            app.router.add_post("/sessions/{session}/close", self._for_admin(self._close_session))
            app.router.add_delete("/sessions/{session}", self._for_admin(self._delete_session))
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keep web pages in a browser on this machine away, and bound what is answered to a wrong path."""
        name = urlsplit(f"//{request.host}").hostname or ""
        if name not in self._hosts and not _is_address(name):
            return refusal(CHAT_COMPLETIONS, Refused(f"host {name!r} is not served here", status=403))
        origin = request.headers.get("Origin")
        if (origin is not None and urlsplit(origin).netloc != request.host) or request.headers.get(
            "Sec-Fetch-Site"
        ) in ("cross-site", "same-site"):
            return refusal(CHAT_COMPLETIONS, Refused("requests of web pages are not served here", status=403))
        try:
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return refusal(CHAT_COMPLETIONS, Refused(error.reason, status=error.status))

    def _endpoint(
        self,
        dialect: WireDialect,
        answer: Callable[[web.Request, WireDialect, Session, WireRequest], Awaitable[web.StreamResponse]],
    ) -> Handler:
        """A model endpoint: who asks, and what; refusals in the dialect's words."""

        async def handle(request: web.Request) -> web.StreamResponse:
            session: Session | None = None
            try:
                session = self._session_of(request)
                wire = dialect.read(await _body(request), session.readings[dialect.name])
                await session.conversation.read_images(wire.messages)  # type: ignore[arg-type]
                return await answer(request, dialect, session, wire)
            except Refused as error:
                refused = error
            except (OSError, web.HTTPException):  # the client went away, or aiohttp has the answer
                raise
            except Exception as error:
                # Neither the message nor the request: both may hold what the client's machine holds.
                where = traceback.extract_tb(error.__traceback__)[-1]
                logger.error(
                    "error=<%s>, where=<%s:%d> | request failed", type(error).__name__, where.name, where.lineno
                )
                refused = Refused(f"internal error ({type(error).__name__})", status=500, code="internal")
            if session is not None:
                session.counters.refused += 1
            return refusal(dialect, refused)

        return handle

    async def _respond(
        self, request: web.Request, dialect: WireDialect, session: Session, wire: WireRequest
    ) -> web.StreamResponse:
        answer = session.respond(dialect, wire, _asker(request))
        headers = {"x-strands-session": session.id}
        if ignored := session.ignored_fields(wire):
            headers["x-strands-ignored"] = ", ".join(sorted(set(ignored)))
        delivered = False
        try:
            response = await send(
                request, dialect, wire, answer.task, headers=headers, hold=self.hold, ping_interval=self.ping_interval
            )
            delivered = arrived(request, lambda: session.lost(answer))
        finally:
            (session.delivered if delivered else session.abandoned)(answer)
        return response

    async def _count_tokens(
        self, request: web.Request, dialect: WireDialect, session: Session, wire: WireRequest
    ) -> web.StreamResponse:
        return _json({"input_tokens": session.count_tokens(wire)})

    async def _hello(self, request: web.Request) -> web.StreamResponse:
        return web.Response()

    def _card(self) -> dict[str, Any]:
        # Both vendors' fields: a client reads those it knows.
        return {
            "id": self.model_name,
            "object": "model",
            "type": "model",
            "display_name": self.model_name,
            "created": 0,
            "created_at": "1970-01-01T00:00:00Z",
            "owned_by": "strands-sglang",
        }

    async def _models(self, request: web.Request) -> web.StreamResponse:
        card = self._card()
        paging = {"has_more": False, "first_id": card["id"], "last_id": card["id"]}
        return _json({"object": "list", "data": [card], **paging})

    async def _model(self, request: web.Request) -> web.StreamResponse:
        return _json({**self._card(), "id": request.match_info["model"]})

    # ---- administration ------------------------------------------------

    def _for_admin(self, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                expected, given = self._admin_key, _presented_key(request) or ""
                if expected is not None and not hmac.compare_digest(given.encode(), expected.encode()):
                    raise Refused("this route needs the admin key", status=401, code="invalid_api_key")
                return await answer(request)
            except Refused as refused:
                return refusal(CHAT_COMPLETIONS, refused)

        return handle

    def _named(self, request: web.Request) -> Session:
        session = self.sessions.get(request.match_info["session"])
        if session is None:
            raise Refused("unknown session", status=404, code="session_not_found")
        return session

    async def _create(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request) if request.can_read_body else {}
        if unknown := body.keys() - {"labels", "sampling", "limits"}:
            raise Refused(f"unknown fields {sorted(unknown)}; known are labels, sampling, limits")
        asked = {name: want_object(value, name) for name, value in body.items() if value is not None}
        try:
            session = self.open(**asked)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise Refused(str(error)) from error
        urls = {"openai": session.base_url, "anthropic": session.anthropic_url}
        return _json({"id": session.id, "key": session.key, "base_urls": urls}, status=201)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        return _json({"sessions": [session.to_json() for session in self.sessions.values()]})

    async def _show(self, request: web.Request) -> web.StreamResponse:
        return _json(self._named(request).to_json())

    async def _trajectories(self, request: web.Request) -> web.StreamResponse:
        session = self._named(request)
        rows = rows_of(session)
        kind = request.query.get("format") or ("parquet" if "parquet" in request.headers.get("Accept", "") else "json")
        if kind == "json":
            return _json(rows)
        if kind != "parquet":
            raise Refused(f"format must be json or parquet, got {kind!r}", param="format")
        try:
            data = await asyncio.to_thread(parquet_of, rows)
        except ImportError as error:
            raise Refused(
                f"Parquet needs pyarrow (pip install 'strands-rollout[train]'): {error}", status=501
            ) from error
        return web.Response(body=data, content_type="application/vnd.apache.parquet")

    async def _close_session(self, request: web.Request) -> web.StreamResponse:
        session = self._named(request)
        await session.close()
        return _json(session.to_json())

    async def _delete_session(self, request: web.Request) -> web.StreamResponse:
        session = self._named(request)
        await self.delete(session)
        return _json({"id": session.id, "deleted": True})


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


async def _body(request: web.Request) -> dict[str, Any]:
    """The body, a JSON object. aiohttp unpacks it, counting what comes out, or answers 400 to what it cannot unpack."""
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if encoding not in _ENCODINGS:
        raise Refused(f"bodies encoded as {encoding!r} are not supported; send gzip, deflate or plain", status=415)
    if request.content_type != "application/json":
        raise Refused("the content type must be application/json", status=415)
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise Refused("the body is larger than this gateway takes", status=413, code="too_large") from error
    except web.HTTPException:
        raise
    except Exception as error:  # a broken gzip stream: aiohttp raises what its parser raises
        raise Refused(f"the body cannot be read ({type(error).__name__})") from error
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refused(f"the body is not JSON: {error}") from None
    return dict(want_object(body, "the body"))


def _count(name: str, value: Any) -> int | None:
    try:
        return want_count(value, name)
    except Refused as refused:
        raise ValueError(refused.message) from None


def _presented_key(request: web.Request) -> str | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return request.headers.get("x-api-key") or None


def _key_digest(key: str) -> bytes:
    # Looked up by digest, so that the time a look-up takes reveals nothing about a key.
    return hashlib.sha256(key.encode()).digest()


def _asker(request: web.Request) -> Asker:
    """Client and agent by their headers; they are labels, and name no session."""
    headers = request.headers
    client = headers.get("User-Agent", "").partition(" ")[0].partition("/")[0][:64] or "unknown"
    agent = headers.get("x-claude-code-agent-id") or None
    if agent is None and (metadata := headers.get("x-codex-turn-metadata")):
        try:
            parsed = json.loads(metadata)
        except ValueError:
            parsed = None
        name = parsed.get("agent_name") if isinstance(parsed, dict) else None
        agent = name if isinstance(name, str) and name else None
    retries = headers.get("x-stainless-retry-count", "")  # of the vendors' Python clients; others never set it
    return Asker(client=client, agent=agent, is_retry=retries.isdecimal() and int(retries) > 0)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _option_names() -> set[str]:
    """What `Gateway` takes: its own arguments and those of a session's conversation."""
    own = {*inspect.signature(Gateway).parameters, *inspect.signature(Conversation).parameters}
    return (own | DEFAULTS.keys()) - {"options", "base_url"}


def is_loopback(host: str) -> bool:
    """Whether an address is one of this machine only."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
