"""`OpenEnvEnvironment`: the tools and the reward of a server that speaks OpenEnv's protocol. Tried with openenv 0.10.0.

The protocol is JSON over one WebSocket for each episode, spoken here directly: the package `openenv` is not needed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
from strands import Agent
from strands.agent.agent_result import AgentResult
from strands.types.tools import ToolUse

from strands_env.core import Action, Environment, RewardResult, StepResult
from strands_env.core.episode import fail_step
from strands_env.tools.results import error_result, make_tool, text_result

_MESSAGE_BYTES = 100 << 20
_GENERIC = frozenset({"Action", "CallToolAction", "ListToolsAction"})
"""Titles of the actions of servers whose tools are listed; others take one action, of the schema they publish."""


class OpenEnvError(ConnectionError):
    """A server of OpenEnv cannot be reached, refuses a session, or breaks the protocol."""


class OpenEnvServerError(RuntimeError):
    """An error that a server gave in answer to a message; its session goes on."""


class OpenEnvSession:
    """A session of an OpenEnv server: one episode of its environment, one message at a time.

    Args:
        url: Address of the server, `http://HOST:PORT`.
        headers: HTTP headers, such as an authorization.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is no address of an OpenEnv server: write http://HOST:PORT")
        self.url, self._headers = url.rstrip("/"), dict(headers or {})
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def open(self) -> dict[str, Any]:
        """Connect, and return the schema of an action."""
        self._http = aiohttp.ClientSession(headers=self._headers)
        try:
            async with self._http.get(f"{self.url}/schema") as answer:
                schema = (await answer.json())["action"]
            self._socket = await self._http.ws_connect(f"{self.url}/ws", max_msg_size=_MESSAGE_BYTES, heartbeat=20.0)
        except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
            what = f"no OpenEnv server answers at {self.url!r} ({type(error).__name__}: {error})"
            raise OpenEnvError(f"{what}: start one there, or give its address as openenv:http://HOST:PORT") from error
        return dict(schema)

    async def send(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message (`reset`, `step`) and return the observation: `observation`, `reward` and `done`.

        Raises:
            OpenEnvServerError: The server refused it, or its environment raised.
            OpenEnvError: The session is lost.
        """
        if self._socket is None:
            raise OpenEnvError(f"the session at {self.url!r} is not open")
        try:
            await self._socket.send_json({"type": kind, "data": dict(data)})
            answer = await self._socket.receive_json()
            kind, body = answer["type"], {"observation": {}, "reward": None, "done": False, **answer["data"]}
            if not isinstance(body["observation"], Mapping):
                raise TypeError(f"its observation is {body['observation']!r:.100}, expected an object")
        except asyncio.CancelledError:  # answers carry no id: this one would be taken for that of the next message
            await self.close()
            raise
        except (aiohttp.ClientError, OSError, ValueError, TypeError, KeyError) as error:
            await self.close()
            raise OpenEnvError(f"the session at {self.url!r} was lost: {type(error).__name__}: {error}") from error
        if kind == "error":
            if body.get("code") in ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"):
                raise OpenEnvError(f"{self.url!r} gives no session: {body.get('message')}")
            details = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in body.get("errors", ()))
            raise OpenEnvServerError(": ".join(filter(None, [str(body.get("message")), details])))
        return body

    async def close(self) -> None:
        """Disconnect, which ends the server's session."""
        http, socket = self._http, self._socket
        self._http = self._socket = None
        if socket is not None:
            await socket.close()
        if http is not None:
            await http.close()


class OpenEnvEnvironment(Environment):
    """An environment that an OpenEnv server holds: our agent plays with its tools, its rewards are added up.

    A server with tools lists them once an episode has begun; any other takes one kind of action, the tool `act`. The
    loop ends when the server says that the episode is done. The prompt is the action's message and then the server's
    first observation, where it has one. Bad arguments are a tool's error, which the policy may mend; a lost session
    is a failure of infrastructure.

    Args:
        url: Address of the server.
        headers: HTTP headers, such as an authorization.
        **options: Further arguments of `Environment`. A `reward_fn` replaces the server's rewards.

    Attributes:
        session: The running episode, for a reward that asks the server itself; None before `reset`.
        is_done: The server has ended the episode.
    """

    def __init__(self, *, url: str, headers: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.url, self.headers = url, headers
        OpenEnvSession(url)
        if self.reward_fn is None:
            self.reward_fn = self.server_reward
        self.session: OpenEnvSession | None = None
        self._agent: Agent | None = None
        self._acting = asyncio.Lock()
        self._tools: list[Any] = []
        self._first: dict[str, Any] = {}
        self._rewards: list[float | None] = []
        self.is_done = False

    def identity(self) -> dict[str, Any]:
        """The reward's state, so that a resumed run is scored as it was begun."""
        return {"url": self.url}

    async def reset(self, action: Action) -> None:
        """Begin an episode on the server, with the arguments for its `reset` that the task names."""
        await self.cleanup()
        self._rewards, self.is_done = [], False
        self.session = session = OpenEnvSession(self.url, self.headers)
        schema = await session.open()
        arguments = (action.task_context.model_extra or {}).get("reset") or {}
        try:
            # Before the episode, of whose steps a server may count each; some have tools of an episode alone.
            listed = await _list_tools(session) if _lists_tools(schema) else []
            self._first = await session.send("reset", arguments)
            if failed := _error_in(self._first["observation"]):
                raise OpenEnvServerError(failed)
            if _lists_tools(schema):
                if not (listed := listed or await _list_tools(session)):
                    raise OpenEnvServerError("it lists no tools")
                self._tools = [self._tool(each["name"], each) for each in listed]
                return
        except OpenEnvServerError as error:
            raise OpenEnvError(f"the server at {self.url!r} cannot begin with {arguments!r}: {error}") from error
        schema["properties"] = {k: v for k, v in schema.get("properties", {}).items() if k != "metadata"}
        about = schema.get("description") or schema.get("title") or "Act in the environment."
        self._tools = [self._tool(None, {"name": "act", "description": about, "input_schema": schema})]

    async def cleanup(self) -> None:
        """End the server's session."""
        session, self.session = self.session, None
        if session is not None:
            await session.close()

    def get_tools(self) -> list[Any]:
        """The server's tools."""
        return self._tools

    async def interact(self, agent: Agent, action: Action) -> AgentResult:
        """Begin with the action's message and the server's first observation."""
        prompt = action.prompt
        if (seen := _text_of(self._first["observation"])) and isinstance(prompt, str):
            prompt = f"{prompt}\n\n{seen}"
        self._agent = agent
        result = await self.invoke(agent, prompt)
        if self.is_done:
            result.stop_reason = "end_turn"  # not cancelled: the server ended the episode
        return result

    def _tool(self, name: str | None, described: Mapping[str, Any]) -> Any:
        schema = described.get("input_schema") or {"type": "object", "properties": {}}

        async def answer(tool_use: ToolUse) -> dict[str, Any]:
            arguments = dict(tool_use["input"])
            message = arguments if name is None else {"type": "call_tool", "tool_name": name, "arguments": arguments}
            return await self._act(message)

        return make_tool(described["name"], described.get("description") or described["name"], schema, answer)

    async def _act(self, message: Mapping[str, Any]) -> dict[str, Any]:
        assert self.session is not None
        try:
            async with self._acting:  # parallel calls act one after the other
                if self.is_done:
                    return error_result("the episode is over")
                seen = await self.session.send("step", message)
                self.is_done = bool(seen["done"])
        except OpenEnvServerError as error:
            return error_result(str(error))
        except OpenEnvError as error:
            fail_step(error)
            raise
        self._rewards.append(None if seen["reward"] is None else float(seen["reward"]))
        if self.is_done and self._agent is not None:
            self._agent.cancel(after_current_tools=True)
        if failed := _error_in(seen["observation"]):
            return error_result(failed)
        return text_result(_text_of(seen["observation"]) or "done")

    async def server_reward(self, action: Action, result: StepResult) -> RewardResult:
        """The sum of the rewards of all steps; none where the server gave none."""
        given = [reward for reward in self._rewards if reward is not None]
        info: dict[str, Any] = {"rewards": list(self._rewards), "done": self.is_done}
        if not given and self._rewards:
            return RewardResult(reward=None, info={**info, "reason": "the server gave no reward for any step"})
        return RewardResult(reward=sum(given), info=info)


def _lists_tools(schema: Mapping[str, Any]) -> bool:
    """All actions of the server are the generic ones, which some servers publish as alternatives."""
    titles = list(schema.get("$defs", ())) if "oneOf" in schema else [schema.get("title")]
    return bool(titles) and _GENERIC.issuperset(titles)


async def _list_tools(session: OpenEnvSession) -> list[Mapping[str, Any]]:
    seen = await session.send("step", {"type": "list_tools"})
    return seen["observation"].get("tools") or []


def _error_in(observation: Mapping[str, Any]) -> str:
    failed = observation.get("error") or ""
    return str(failed.get("message", failed) if isinstance(failed, Mapping) else failed)


def _text_of(observation: Mapping[str, Any]) -> str:
    """An observation as text: that of a tool's result, or its fields as JSON."""
    result = observation.get("result")
    if isinstance(result, Mapping) and isinstance(parts := result.get("content"), list):
        return "\n".join(str(part.get("text", part)) for part in parts)
    if "tool_name" in observation and "result" in observation:
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    shown = {key: value for key, value in observation.items() if key != "metadata" and value is not None}
    if len(shown) == 1 and isinstance(text := next(iter(shown.values())), str):
        return text
    return json.dumps(shown, ensure_ascii=False) if shown else ""
