"""The example of gateways as replicas of a Ray Serve deployment: sessions are spread, and outlive their replica."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.backends.engine.tiny import make_tiny_tokenizer
from tests.conftest import ROOT
from tests.servers import FaultyServer
from tests.unit.strands_env.eval.test_distributed_processes import PATHS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,  # the gateways listen at the node's address
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("ray", "grpc", "uvicorn")),
        reason="Ray Serve is not installed (pip install 'ray[serve]')",
    ),
]
USER = {"role": "user", "content": "Hi"}


async def test_sessions_are_spread_over_gateways_and_outlive_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray
    from ray import serve

    monkeypatch.setenv("STRANDS_GATEWAY_ADMIN_KEY", "admin")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    example = importlib.import_module("ray_serve_gateway")
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = HERMES_TEMPLATE
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    paths = {**PATHS["runtime_env"]["env_vars"], "STRANDS_GATEWAY_ADMIN_KEY": "admin"}
    paths["PYTHONPATH"] = os.pathsep.join([str(ROOT / "examples"), paths["PYTHONPATH"]])
    async with FaultyServer() as server, aiohttp.ClientSession() as http:
        options = {"base_url": server.url, "tokenizer": str(tmp_path / "tokenizer"), "state": str(tmp_path / "state")}
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": paths})
        try:
            serve.start(http_options={"port": port})
            await asyncio.to_thread(serve.run, example.app(options))

            async def call(method: str, url: str, key: str, body: Any = None) -> tuple[int, Any]:
                headers = {"authorization": f"Bearer {key}"}
                async with http.request(method, url, json=body, headers=headers) as response:
                    return response.status, await response.json()

            assert (await call("POST", f"http://127.0.0.1:{port}/", "wrong", {}))[0] == 401
            made = [(await call("POST", f"http://127.0.0.1:{port}/", "admin", {}))[1] for _ in range(8)]
            assert len({each["base_urls"]["openai"].partition("/s/")[0] for each in made}) == 2

            async def chat(session: Any, *messages: Any) -> Any:
                url = f"{session['base_urls']['openai']}/chat/completions"
                status, answer = await call("POST", url, session["key"], {"model": "m", "messages": messages})
                assert status == 200, answer
                return answer["choices"][0]["message"]

            first = [await chat(each, USER) for each in made]
            actors = [each for each in ray.util.list_named_actors(all_namespaces=True) if "Replica" in each["name"]]
            ray.kill(ray.get_actor(actors[0]["name"], namespace=actors[0]["namespace"]))
            for session, answer in zip(made, first, strict=True):
                for _ in range(600):  # it is started again
                    try:
                        await chat(session, USER, answer, USER)
                        break
                    except aiohttp.ClientError:
                        await asyncio.sleep(0.2)
                url = session["base_urls"]["anthropic"].replace("/s/", "/sessions/")
                (row,) = (await call("GET", f"{url}/trajectories", "admin"))[1]
                assert row["extension_rate"] == 1.0 and len(row["turns"]) == 2
        finally:
            serve.shutdown()
            ray.shutdown()
