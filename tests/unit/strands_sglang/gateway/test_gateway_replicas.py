"""Several gateways behind a router that hashes the session, as `deploy/` has them."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from strands_sglang.__main__ import main as command_line
from strands_sglang.gateway import Gateway
from tests.conftest import ROOT
from tests.provider_support import Replay, completion, tokenizer

USER = {"role": "user", "content": "Hi"}


def test_the_command_says_what_took_the_place_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    for given in (["--workers", "2"], ["--workers=2"], ["--workers"]):
        with pytest.raises(SystemExit) as ended:
            command_line(["gateway", "--model", "tiny", *given])
        assert ended.value.code == 2 and "several gateways behind a router" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command_line(["gateway", "--help"])
    assert "--workers" not in capsys.readouterr().out


def test_images_can_export_spans() -> None:
    """A pod is given OTEL_EXPORTER_OTLP_ENDPOINT from outside, and a gateway that cannot export does not start."""
    installs = [line for line in (ROOT / "deploy" / "Containerfile").read_text().splitlines() if "uv sync" in line]
    assert installs and all("--extra otel" in line for line in installs)


def nginx_of_the_deployment(folder: Path) -> str:
    documents = list(yaml.safe_load_all((ROOT / "deploy" / "gateway.yaml").read_text()))
    (config,) = [each["data"]["default.conf"] for each in documents if each["kind"] == "ConfigMap"]
    services = {each["metadata"]["name"] for each in documents if each["kind"] == "Service"}
    assert set(re.findall(r"server (\S+):8080;", config)) < services
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join([f"{kind}_temp_path {folder};" for kind in kinds])
    http = f"access_log off; {places} {config}"
    return f"pid {folder}/pid; error_log stderr; daemon off; events {{}} http {{ {http} }}"


def haproxy_of_the_deployment(folder: Path) -> str:
    return (ROOT / "deploy" / "haproxy.cfg").read_text()


@pytest.mark.parametrize(
    ("program", "arguments", "config", "listen"),
    [
        ("nginx", ("-p", ".", "-c"), nginx_of_the_deployment, "listen 8080"),
        ("haproxy", ("-f",), haproxy_of_the_deployment, "bind :8080"),
    ],
    ids=["nginx", "haproxy"],
)
async def test_replicas_behind_a_router_of_the_deployment(
    program: str, arguments: tuple[str, ...], config: Callable[[Path], str], listen: str, tmp_path: Path
) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (apt-get install {program})")
    async with AsyncExitStack() as stack:
        gateways = [
            await stack.enter_async_context(
                Gateway(client=Replay([completion("Hello.")], cycle=True), tokenizer=tokenizer(), state=tmp_path / name)
            )
            for name in ("0", "1")
        ]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        names = [f"strands-gateway-{index}:8080" for index in (0, 1)]
        text = config(tmp_path)
        assert text.count(listen) == 1 and [text.count(name) for name in names] == [1, 1]
        text = text.replace(listen, f"{listen.split()[0]} 127.0.0.1:{port}")
        for name, gateway in zip(names, gateways, strict=True):
            text = text.replace(name, gateway.url.removeprefix("http://"))
        (tmp_path / "conf").write_text(text)
        router = await asyncio.create_subprocess_exec(program, *arguments, tmp_path / "conf", cwd=tmp_path)
        stack.push_async_callback(router.wait)
        stack.callback(lambda: router.returncode is None and router.terminate())
        http = await stack.enter_async_context(aiohttp.ClientSession())
        url = f"http://127.0.0.1:{port}"

        async def call(method: str, path: str, status: int, **options: Any) -> Any:
            async with http.request(method, url + path, **options) as response:
                assert response.status == status, await response.text()
                return await response.json()

        while True:
            with suppress(aiohttp.ClientError):
                await (await http.get(f"{url}/health")).read()
                break
            await asyncio.sleep(0.02)
        for name in (f"task-{n}" for n in range(8)):
            made = await call("POST", f"/sessions/{name}", 201, json={})
            assert made["base_urls"]["anthropic"] == f"{url}/s/{name}"
            for messages in ([USER], [USER, {"role": "assistant", "content": "Hello."}, USER]):
                headers = {"Authorization": f"Bearer {made['key']}"}
                body = {"model": "m", "messages": messages}
                await call("POST", f"/s/{name}/v1/chat/completions", 200, headers=headers, json=body)
            (row,) = await call("GET", f"/sessions/{name}/trajectories", 200)
            assert row["extension_rate"] == 1.0
        assert all(0 < len(gateway.sessions) < 8 for gateway in gateways)
        for path in ("/sessions", "/v1/chat/completions"):
            assert "name the session" in (await call("POST", path, 404, json={}))["error"]["message"]
