"""Inside the sandbox of an `AgentWorldModelEnv`: the application of a generated world, and nothing of this package.

An endpoint is a tool, called in this process as `fastapi_mcp` calls it for a client: the same names, arguments and
texts of results.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sqlite3
import sys
import urllib.parse
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

_METHODS = ("get", "post", "put", "delete", "patch")


class World:
    """The application of `world.py` over the database `work.db`, started once, with an event loop that lasts."""

    def __init__(self) -> None:
        url = f"sqlite:///{os.path.abspath('work.db')}"
        os.environ["DATABASE_PATH"] = url
        import httpx
        import sqlalchemy  # type: ignore[import-not-found]

        # Every engine is one of the episode's database, whatever file the generated code names.
        create = sqlalchemy.create_engine
        sqlalchemy.create_engine = lambda *_, **__: create(url, connect_args={"check_same_thread": False})
        sys.path.insert(0, os.getcwd())
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._app = importlib.import_module("world").app
        self._endpoints: dict[str, tuple[str, str, list[dict[str, Any]]]] = {}
        # A lifespan that is never left: the world ends with its sandbox.
        self._life = self._app.router.lifespan_context(self._app)
        self._loop.run_until_complete(self._life.__aenter__())
        # The loop of this thread, which the time limit of a call interrupts: an endpoint that hangs ends with it.
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://world", timeout=None)

    def tools(self) -> list[dict[str, Any]]:
        """Name, description and input schema of every endpoint."""
        document, tools = self._app.openapi(), []
        for path, operations in document["paths"].items():
            for method, declared in operations.items():
                if method not in _METHODS or not declared.get("operationId"):
                    continue
                operation = _resolve(declared, document)
                name, parameters = operation["operationId"], operation.get("parameters", [])
                self._endpoints[name] = (method, path, parameters)
                tools.append({"name": name, **_describe(operation, f"{method.upper()} {path}")})
        return tools

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of an endpoint: `text`, and `is_error`."""
        try:
            status, body = self._loop.run_until_complete(self._request(name, arguments))
        except Exception as error:
            return {"is_error": True, "text": f"Error calling {name}: {error!r}"}
        if status >= 400:
            return {"is_error": True, "text": f"Error calling {name}. Status code: {status}. Response: {body}"}
        with suppress(ValueError):
            body = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
        return {"is_error": False, "text": body}

    async def _request(self, name: str, arguments: dict[str, Any]) -> tuple[int, str]:
        method, path, parameters = self._endpoints[name]
        places = {each["name"]: each["in"] for each in parameters if each["name"] in arguments}
        for key in (key for key, place in places.items() if place == "path"):
            path = path.replace(f"{{{key}}}", urllib.parse.quote(str(arguments[key]), safe=""))
        query = {key: arguments[key] for key, place in places.items() if place == "query"}
        body = {key: value for key, value in arguments.items() if key not in places}
        response = await self._client.request(method, path, params=query, json=body or None)
        return response.status_code, response.text


started: list[World] = []
"""The world of this interpreter; an interpreter that took the place of the first has none."""


def start() -> list[dict[str, Any]]:
    """Start the world; its tools."""
    started.append(World())
    return started[0].tools()


def reply(number: int, result: Any) -> None:
    """Leave a result where the environment reads it, apart from what a world prints."""
    Path("reply.json").write_text(json.dumps({"number": number, "result": result}), "utf-8")


def snapshot() -> None:
    """Write the database, as it is committed, to `final.db`."""
    with closing(sqlite3.connect("work.db")) as source, closing(sqlite3.connect("final.db")) as target:
        source.backup(target)


def verify() -> None:
    """Run the task's verifier, `verify.py`, and write its verdict to `verdict.json`."""
    namespace: dict[str, Any] = {"sqlite3": sqlite3, "json": json, "__name__": "verify"}
    exec(compile(Path("verify.py").read_text("utf-8"), "verify.py", "exec"), namespace)
    verdict = namespace["verify_task_completion"](
        initial_db_path="initial.db", final_db_path="final.db", final_answer=Path("answer.txt").read_text("utf-8")
    )
    Path("verdict.json").write_text(json.dumps(verdict, default=str), "utf-8")


def _describe(operation: dict[str, Any], default: str) -> dict[str, Any]:
    """Description and input schema of an operation: its parameters and the fields of its body, side by side."""
    parameters = [each for each in operation.get("parameters", []) if each["in"] in ("path", "query")]
    contents = operation.get("requestBody", {}).get("content", {})
    body: dict[str, Any] = next(iter(contents.values())).get("schema", {}) if contents else {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    for each in parameters:
        description = {"description": each["description"]} if each.get("description") else {}
        properties[each["name"]] = each.get("schema", {}) | description
        if each.get("required"):
            required.append(each["name"])
    properties |= body.get("properties", {})
    required += body.get("required", [])
    texts = (operation.get("summary") or default, operation.get("description"))
    schema = {"type": "object", "properties": properties, "required": required}
    return {"description": "\n\n".join(text for text in texts if text), "inputSchema": schema}


def _resolve(value: Any, document: dict[str, Any], seen: tuple[str, ...] = ()) -> Any:
    """The value with every reference replaced by what it refers to; one inside itself is any value."""
    if isinstance(value, list):
        return [_resolve(each, document, seen) for each in value]
    if not isinstance(value, dict):
        return value
    if (name := value.get("$ref")) is None:
        return {key: _resolve(each, document, seen) for key, each in value.items()}
    if name in seen:
        return {}
    target: Any = document
    for part in name.removeprefix("#/").split("/"):
        target = target[part]
    return _resolve(target, document, (*seen, name))


if __name__ == "__main__":
    {"snapshot": snapshot, "verify": verify}[sys.argv[1]]()
