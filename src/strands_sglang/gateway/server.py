"""The gateway: sessions, and the HTTP application in front of them."""

from __future__ import annotations

import asyncio
import inspect
import secrets
import socket
import time
import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Unpack

from aiohttp import web
from aiohttp.typedefs import Handler

from ..backends import Backend, GenerateClient
from ..conversation import Conversation
from ..conversation.model_options import DEFAULTS, SAMPLING_NAMES, RefusedResults
from ..exceptions import StateError, StateFullError, refuse_unknown
from ..limits import Limits
from ..tokenizer import Tokenizer
from ..trajectory import digest, encode_value
from .delivery import Connection, Exchange, as_json
from .dialects import CHAT_COMPLETIONS, DIALECTS
from .dialects.wire import Refused, Route, WireDialect
from .exact_json import object_text
from .passing import OtherBackend, OtherBackends
from .requests import (
    SESSION_NAME,
    SESSION_NAME_WORDS,
    check_source,
    is_key,
    is_loopback,
    new_key,
    presented_key,
    printable,
)
from .session import Session
from .session_options import ConversationOptions, SessionOptions
from .session_routes import add_session_routes
from .session_table import SessionTable
from .state import DEFAULT_LIMIT, FORMAT, LogFile, StateFolder
from .telemetry import Telemetry

MAX_BODY = 64 * 2**20
DEFAULT_MODEL_NAME = "default"


class Gateway:
    """Serves the APIs of OpenAI, Anthropic and Google with exact token trajectories.

    Use as an asynchronous context manager; the address is known inside:

        async with Gateway(client=client, tokenizer=tokenizer) as gateway:
            session = gateway.open()
            ...  # any client, with session.base_url and session.key
            session.trajectories

    Args:
        client: The generation backend: `SGLangClient`, the embedded engine, a scripted fake. The caller closes it.
        tokenizer: Hugging Face style tokenizer of the served model.
        host: Address to listen on. Anything but loopback needs an `admin_key`.
        port: Port to listen on; 0 takes a free one.
        listener: Socket to listen on in place of `host` and `port`, such as one in the network of a sandbox, or of a
            file (`socket.AF_UNIX`); the gateway closes it.
        admin: False leaves out the routes that make, read and close sessions: only sessions opened in process, with
            `open`, are served. For programs that must not leave the limits of their session.
        admin_key: Key of those routes. None leaves them open to this machine.
        auto_sessions: Make a session for a key, or a path, that is not known, under that name. For development.
        hosts: Further names under which the gateway may be addressed; addresses and `localhost` always may.
        session_ttl: Seconds without a request, in flight or new, after which a session is sealed; None for never.
        model_name: Name of the served model, which `/v1/models` lists, and to which a state folder belongs.
        other_backends: Backends of models that are not the policy, by name. Any other name is the policy's.
        strict, client_sampling, join_equal: See `SessionOptions`.
        state: Folder in which sessions survive this process; None keeps them in memory alone.
        state_limit: Most bytes of that folder. Beyond it, new calls are refused.
        max_body: Most bytes of a request's body, unpacked.
        hold: Seconds for which the head of a stream is held back, so that errors keep their status.
        ping_interval: Seconds between the pings of a stream that waits.
        **options: Options of every session's `Conversation`: `sampling_params`, `tool_parser`, `chat_template`, ...

    Raises:
        TypeError: An unknown option.
        ValueError: A bind beyond loopback without an admin key, no address at all, options of the session routes
            where there are none.
        StateError: Another gateway uses the state folder; at the start, it is of another version or model.
    """

    def __init__(
        self,
        *,
        client: Backend | GenerateClient,
        tokenizer: Tokenizer,
        host: str = "127.0.0.1",
        port: int = 0,
        listener: socket.socket | None = None,
        admin: bool = True,
        admin_key: str | None = None,
        auto_sessions: bool = False,
        hosts: Collection[str] = (),
        session_ttl: float | None = None,
        model_name: str = DEFAULT_MODEL_NAME,
        other_backends: Mapping[str, OtherBackend] | None = None,
        strict: bool = False,
        client_sampling: bool = False,
        join_equal: bool = False,
        state: str | Path | None = None,
        state_limit: int = DEFAULT_LIMIT,
        max_body: int = MAX_BODY,
        hold: float = 10.0,
        ping_interval: float = 5.0,
        **options: Unpack[ConversationOptions],
    ) -> None:
        known = {*inspect.signature(Gateway).parameters, *inspect.signature(Conversation).parameters, *DEFAULTS}
        # `Conversation` says where sampling parameters go.
        refuse_unknown("Gateway()", options, (known - {"options", "base_url"}) | SAMPLING_NAMES)
        if not admin and (auto_sessions or admin_key is not None):
            raise ValueError(
                "admin=False leaves out the session routes; auto_sessions and admin_key have no place there"
            )
        if admin and not is_loopback(host) and admin_key is None:
            raise ValueError(f"host={host!r} is reachable from other machines; give an admin_key")
        self.client, self.tokenizer, self.model_name = client, tokenizer, model_name
        self.auto_sessions, self.session_ttl = auto_sessions, session_ttl
        self.max_body, self.hold, self.ping_interval = max_body, hold, ping_interval
        self.options = SessionOptions(
            strict=strict,
            client_sampling=client_sampling,
            join_equal=join_equal,
            refused_results=RefusedResults(options.pop("refused_results", DEFAULTS["refused_results"])),
        )
        self.other_backends = OtherBackends(other_backends or {})
        self.telemetry = Telemetry()
        self._conversation_options = options
        self._admin, self._admin_key = admin, admin_key
        self._host, self._port, self._listener = host, port, listener
        self._hosts = frozenset({host, "localhost", *hosts})
        self._dialects: dict[Handler, WireDialect] = {}  # by the handlers of their routes
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self.url = ""
        Conversation(tokenizer=tokenizer, client=client, **options)  # a wrong option fails here
        folder = None if state is None else StateFolder(state, self._identity(), limit=state_limit)
        self.sessions = SessionTable(self._make_session, folder)

    # ---- life ------------------------------------------------

    async def __aenter__(self) -> Gateway:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Take up the sessions of the state folder, and listen; `url` holds the address afterwards.

        It is `http://localhost` for a socket of a file. Connections are refused until then.
        """
        # A client that goes away cancels its handler, which abandons its answer.
        self._runner = web.AppRunner(self.app(), handler_cancellation=True, shutdown_timeout=5)
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        connection = partial(Connection, self._runner.server, loop=loop)
        try:
            self._listener = self._listener or bind(self._host, self._port)
            self.url = url_of(self._listener)
            await self.sessions.restore()
            self._server = await loop.create_server(connection, sock=self._listener, backlog=1024)
        except (OSError, StateError):
            await self.close()
            raise
        if self.session_ttl is not None:
            self._sweeper = asyncio.create_task(self._sweep(self.session_ttl))

    async def close(self) -> None:
        """Stop listening and abort answers in flight. Sessions keep their trajectories.

        With a state folder, a client that comes meanwhile is told to ask again; it finds its session after a restart.
        """
        if self._sweeper is not None:
            self._sweeper.cancel()
        kept = self.sessions.folder is not None
        await asyncio.gather(*[session.drop(is_kept=kept) for session in self.sessions.values()])
        for listening in (self._server, self._listener):
            if listening is not None:
                listening.close()
        self._server = self._listener = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self.telemetry.make_spans()
        await self.other_backends.close()
        self.sessions.close()

    async def _sweep(self, ttl: float) -> None:
        while True:
            await asyncio.sleep(ttl / 4)
            for session in self.sessions.values():
                if session.is_idle and time.monotonic() - session.last_used > ttl:
                    with suppress(StateFullError):  # there may be room the next time
                        session.seal()

    # ---- sessions ------------------------------------------------

    def open(
        self,
        *,
        labels: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        name: str | None = None,
        key: str | None = None,
        join_equal: bool | None = None,
        conversation: Conversation | None = None,
    ) -> Session:
        """A new session.

        Args:
            labels: Names of the rollout; JSON values, at most 100 levels deep.
            sampling: SGLang sampling parameters; they win over those of clients and of the gateway.
            limits: `Limits` on calls and tokens, as such or by name.
            name: Name in paths, of 1 to 128 letters, digits and `._~-`; a random one by default.
            key: Its key, of no other open session; a random one of 128 bits by default.
            join_equal: See `SessionOptions`; that of the gateway by default.
            conversation: The core to put behind it, such as a model's; it keeps its own sampling and budgets.

        Raises:
            TypeError: `labels`, `sampling` or `limits` is not a mapping, `join_equal` is not a bool.
            ValueError: Labels that are not JSON values, an unknown limit or sampling parameter, a name that cannot
                stand in an address, or a name or key that is taken.
        """
        named = None if isinstance(limits, Limits) else limits
        for what, value in (("labels", labels), ("sampling", sampling), ("limits", named)):
            object_text(value, what)
        if not isinstance(join_equal, bool | None):
            raise TypeError(f"join_equal must be true or false, got {join_equal!r}")
        name, key = name or uuid.uuid4().hex, key or new_key()
        if not SESSION_NAME.fullmatch(name):
            raise ValueError(f"name={name!r} cannot stand in an address: give {SESSION_NAME_WORDS}")
        if self.sessions.find(name) is not None:
            raise ValueError(f"there is a session {name!r} already")
        holder = self.sessions.by_key(key)
        if holder is not None and not holder.is_sealed:
            raise ValueError(f"the key belongs to the open session {holder.id!r}; close it, or give another key")
        bounds = Limits.of(limits)
        bounds.set_ones("calls", "tokens", owner="a session")
        budgets = bounds.set_ones("tokens")  # of its conversation
        session_options = replace(self.options, limits=Limits(**bounds.set_ones("calls")))
        if join_equal is not None:
            session_options = replace(session_options, join_equal=join_equal)
        if conversation is not None and (sampling or budgets):
            raise ValueError("a conversation that is given keeps its own sampling and budgets")
        if conversation is not None and self.sessions.folder is not None:
            raise ValueError("a conversation that is given cannot be kept in a state folder")
        # A session's own values lie over those of the gateway, parameter by parameter.
        configured = self._conversation_options.get("sampling_params") or {}
        header = {
            "session": name,
            "key": key,
            "reward_key": new_key(),
            "secret": secrets.token_hex(16),
            "labels": dict(labels or {}),
            "options": asdict(session_options) | {"limits": session_options.limits.set_ones()},
            "conversation": {
                "routing_key": self._conversation_options.get("routing_key") or uuid.uuid4().hex,
                **budgets,
                "sampling_params": {**configured, **(sampling or {})},
            },
        }
        return self.sessions.open(header, conversation)

    def _make_session(self, header: Mapping[str, Any], file: LogFile, conversation: Conversation | None) -> Session:
        options: ConversationOptions = {**self._conversation_options, **header["conversation"]}
        return Session(
            id=header["session"],
            key=header["key"],
            reward_key=header["reward_key"],
            secret=bytes.fromhex(header["secret"]),
            gateway_url=lambda: self.url,
            conversation=conversation or Conversation(tokenizer=self.tokenizer, client=self.client, **options),
            options=SessionOptions.read(header["options"]),
            labels=header["labels"],
            file=file,
            telemetry=self.telemetry,
            other_backends=self.other_backends,
        )

    async def delete(self, session: Session) -> None:
        """Drop a session with its trajectories; answers in flight are aborted."""
        if session.id in self.sessions:
            self.telemetry.deleted += session.counters
        self.sessions.remove(session)
        await session.drop()

    def _identity(self) -> dict[str, str]:
        """Facts that all sessions of a state folder share: they are exact with this model and this version only."""
        vocabulary: dict[str, int] = getattr(self.tokenizer, "get_vocab", dict)()
        template = self._conversation_options.get("chat_template") or getattr(self.tokenizer, "chat_template", None)
        return {
            "version": f"{metadata.version('strands-rollout')} ({FORMAT})",
            "model": self.model_name,
            "tokenizer": digest(encode_value(sorted(vocabulary.items()))).hex(),
            "chat template": digest(encode_value(template)).hex(),
        }

    def _session_of(self, request: web.Request, dialect: WireDialect) -> Session:
        """The session of the path, otherwise of the key; never one of the body."""
        name, key = request.match_info.get("session"), presented_key(request, dialect.key_query)
        by_key = self.sessions.by_key(key) if key else None
        session = by_key if name is None else self.sessions.get(name)
        if key and not self.auto_sessions and self.sessions.was_dropped(key):
            raise Refused("the session of this key is closed", status=409, code="session_closed")
        if session is None and self.auto_sessions and key and by_key is None:
            name = name or key
            if name in self.sessions or not SESSION_NAME.fullmatch(name) or not SESSION_NAME.fullmatch(key):
                raise Refused("this key names no new session", status=403, code="wrong_session")
            return self.open(name=name, key=key)
        if session is None or not is_key(key, session.key):
            if session is not None and by_key is not None:
                raise Refused("this key belongs to another session", status=403, code="wrong_session")
            raise Refused("no session has this key", status=401, code="invalid_api_key")
        return session

    # ---- the application ------------------------------------------------

    def app(self) -> web.Application:
        """The application, to be run with `handler_cancellation=True` and `auto_decompress=False`."""
        app = web.Application(middlewares=[self._guard], client_max_size=self.max_body)
        for prefix in ("", "/s/{session}"):
            for dialect in DIALECTS:
                for route in dialect.routes:
                    app.router.add_post(prefix + route.path, self._endpoint(dialect, route))
            app.router.add_get(prefix + "/v1/models", self._models)
            app.router.add_get(prefix + "/v1/models/{model:.+}", self._models)
            app.router.add_get(prefix + "/api/hello", self._hello)
        app.router.add_get("/health", self._hello)
        add_session_routes(
            app,
            self.sessions,
            self.telemetry,
            open_session=self.open,
            delete_session=self.delete,
            admin=self._admin,
            key=self._admin_key,
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer refusals and errors in the dialect's words."""
        try:
            check_source(request, self._hosts)
            return await handler(request)
        except OSError:  # the client went away
            raise
        except web.HTTPException as error:
            if error.status < 400:
                raise
            refused = Refused(error.reason, status=error.status)
        except Exception as error:
            refused = Refused.of(error)
        dialect = self._dialects.get(request.match_info.handler, CHAT_COMPLETIONS)
        # Keeps SDKs from repeating requests that will be refused again.
        headers = {"x-should-retry": "false"}
        if refused.retry_after is not None:
            headers = {"retry-after": f"{refused.retry_after:g}"}
        response = as_json(dialect.error(refused), status=refused.status, headers=headers)
        if response.status in (408, 413) or request.content.exception() is not None:  # a part of the body is left
            response.force_close()
        return response

    def _endpoint(self, dialect: WireDialect, route: Route) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            exchange = Exchange(request, dialect, route, hold=self.hold, ping_interval=self.ping_interval)
            with self.telemetry.request(request, exchange.call, dialect.name):
                response = await self._session_of(request, dialect).serve(exchange)
                exchange.call.status = response.status
                return response

        self._dialects[handle] = dialect
        return handle

    async def _hello(self, request: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _models(self, request: web.Request) -> web.StreamResponse:
        """The card of a model, or a list of the only one, with the fields of all vendors."""
        model = request.match_info.get("model")
        name = self.model_name if model is None else printable(model)
        card: dict[str, Any] = {"id": name, "object": "model", "type": "model", "display_name": self.model_name}
        card |= {"created": 0, "created_at": "1970-01-01T00:00:00Z", "owned_by": "strands-sglang"}
        listing = {"object": "list", "data": [card], "has_more": False, "first_id": name, "last_id": name}
        return as_json(listing if model is None else card)


def bind(host: str, port: int) -> socket.socket:
    """A socket that has its address, and listens once it is served: clients that come before are refused at once."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:  # `::` is not 0.0.0.0 as well
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def url_of(listener: socket.socket) -> str:
    """The address of a socket; a file has no other than `localhost`."""
    if listener.family == getattr(socket, "AF_UNIX", None):  # not on every platform
        return "http://localhost"
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
