"""Several workers at one address: whose a request is, how connections change hands, and what a dead worker leaves."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from strands_sglang.__main__ import main as command_line
from strands_sglang.command_line import CommandError
from strands_sglang.exceptions import StateError
from strands_sglang.gateway import Gateway, supervisor
from strands_sglang.gateway.state import StateFolder
from strands_sglang.gateway.supervisor import supervise
from strands_sglang.gateway.workers import Worker, bind, url_of
from tests.conftest import ROOT
from tests.provider_support import Replay, completion, tokenizer
from tests.unit.gateway_support import trained_once, until

USER = {"role": "user", "content": "Hi"}


class Workers:
    """Gateways that share a listener, in one process."""

    def __init__(self, url: str, gateways: list[Gateway], http: aiohttp.ClientSession) -> None:
        self.url, self.gateways, self.http = url, gateways, http

    async def call(self, method: str, path: str, *, key: str | None = None, status: int = 200, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with self.http.request(method, self.url + path, headers=headers, **options) as response:
            assert response.status == status or (status == 200 and response.status == 201), await response.text()
            return await response.json()

    async def chat(self, session: Any, messages: Any = (USER,), *, root: bool = False, **options: Any) -> Any:
        path = "/v1/chat/completions" if root else f"/s/{session['id']}/v1/chat/completions"
        body = {"model": "m", "messages": list(messages)}
        return await self.call("POST", path, key=session["key"], json=body, **options)

    def owner(self, session: Any) -> Gateway:
        return self.gateways[self.gateways[0].worker.owner(session["id"])]


@asynccontextmanager
async def workers(folder: Path, count: int = 2, *, limit: int = 100, **options: Any) -> AsyncIterator[Workers]:
    """Gateways of so many workers, and a client of `limit` connections."""
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
        client = Replay([completion("Hello.")], cycle=True)
        gateways = []
        for index in range(count):
            worker = Worker(index=index, count=count, folder=folder)
            gateways.append(
                await stack.enter_async_context(
                    Gateway(
                        client=client,
                        tokenizer=tokenizer(),
                        listener=listener.dup(),
                        worker=worker,
                        **options,
                    )
                )
            )
        connector = aiohttp.TCPConnector(limit=limit)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        yield Workers(f"http://127.0.0.1:{listener.getsockname()[1]}", gateways, http)


@pytest.mark.parametrize("limit", [1, 100], ids=["one connection", "many"])
async def test_every_session_is_its_workers_whatever_connection_a_request_takes(limit: int, tmp_path: Path) -> None:
    async with workers(tmp_path, 3, limit=limit) as w:
        sessions = [await w.call("POST", "/sessions", json={"labels": {"n": n}}) for n in range(12)]
        assert len(Counter(map(w.owner, sessions))) > 1
        for turn in range(3):
            history = [USER, *[{"role": "assistant", "content": "Hello."}, USER] * turn]
            await asyncio.gather(*[w.chat(each, history, root=turn == 1) for each in sessions])
        for each in sessions:
            session = w.owner(each).sessions[each["id"]]
            assert session.counters.sampled == 3 and session.counters.extension_rate == 1.0 and trained_once(session)
            assert not session.counters.undelivered and not session.counters.cut
            (row,) = await w.call("GET", f"/sessions/{each['id']}/trajectories")
            assert row["session"] == each["id"]
        listed = (await w.call("GET", "/sessions"))["sessions"]
        assert {each["id"] for each in listed} == {each["id"] for each in sessions} and len(listed) == 12
        async with w.http.get(f"{w.url}/metrics") as response:
            text = await response.text()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        samples = [each for each in families["strands_gateway_turns"].samples if each.labels["kind"] == "sampled"]
        assert sum(sample.value for sample in samples) == 36 and len(samples) == 3
        assert {each.labels["worker"] for each in families["strands_gateway_in_flight"].samples} == {"0", "1", "2"}


async def test_requests_that_do_not_wait_for_answers_are_all_answered(tmp_path: Path) -> None:
    async with workers(tmp_path) as w:
        session = await w.call("POST", "/sessions", json={})
        reader, writer = await asyncio.open_connection(*w.url.removeprefix("http://").split(":"))
        head = f"GET /s/{session['id']}/v1/models HTTP/1.1\r\nhost: localhost\r\n"
        writer.write(f"{head}authorization: Bearer {session['key']}\r\n\r\n".encode() * 50)
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 50:
            answers += await reader.read(65536)
        writer.close()


async def test_heads_in_pieces_large_bodies_and_keys_in_any_place_reach_the_worker(tmp_path: Path) -> None:
    async with workers(tmp_path) as w:
        sessions = [await w.call("POST", f"/sessions/mine-{n}", json={}) for n in range(6)]
        long = {"role": "user", "content": "word " * 100_000}
        assert {each["id"] for each in sessions} == {f"mine-{n}" for n in range(6)}
        await w.call("POST", "/sessions/mine-0", json={}, status=409)
        await w.call("POST", "/sessions/..%2Fmine", json={}, status=400)
        for each in sessions:
            await w.chat(each, [long], root=True)
            assert w.owner(each).sessions[each["id"]].counters.requests == 1
            google = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
            await w.call("POST", f"/v1beta/models/m:generateContent?key={each['key']}", json=google)
            body = b'{"messages": [{"role": "user", "content": "Hi"}]}'
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nX-API-KEY:  {each['key']}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            ).encode()
            reader, writer = await asyncio.open_connection(*w.url[len("http://") :].split(":"))
            for piece in (head[:9], head[9:50], head[50:] + body[:5], body[5:]):
                writer.write(piece)
                await asyncio.sleep(0.005)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()


async def test_no_worker_serves_what_another_owns(tmp_path: Path) -> None:
    async with workers(tmp_path, admin_key="admin") as w:
        made = [await w.call("POST", "/sessions", key="admin", json={}) for _ in range(8)]
        one = made[0]
        other = next(each for each in made if w.owner(each) is not w.owner(one))
        await w.chat({"id": one["id"], "key": other["key"]}, status=401)
        await w.chat({"id": one["id"], "key": "admin"}, status=401)
        await w.chat({"id": "unknown", "key": one["key"]}, status=401)
        await w.call("GET", "/sessions", key=one["key"], status=401)
        await w.call("POST", "/sessions/named", key=one["key"], json={}, status=401)
        await w.call("POST", f"/s/{one['id']}/reward", key=other["reward_key"], json={"reward": 1}, status=401)
        await w.call("POST", f"/s/{one['id']}/reward", key=one["reward_key"], json={"reward": 1})
        assert len((await w.call("GET", "/sessions", key="admin"))["sessions"]) == 8
        # On one connection, without waiting for the first answer.
        request = "GET /sessions/{} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer admin\r\n\r\n"
        reader, writer = await asyncio.open_connection(*w.url[len("http://") :].split(":"))
        for each in (one, other, one):
            writer.write(request.format(each["id"]).encode())
            await asyncio.sleep(0.02)
        answers = b""
        while answers.count(b'"counters"') < 3:
            answers += await reader.read(1 << 16)
        writer.close()


async def answer_to(w: Workers, sent: bytes) -> bytes:
    """Everything that comes until the gateway closes the connection."""
    reader, writer = await asyncio.open_connection(*w.url[len("http://") :].split(":"))
    writer.write(sent)
    answer = await reader.read()
    writer.close()
    return answer


async def test_however_a_request_spells_its_address_it_reaches_its_worker(tmp_path: Path) -> None:
    async with workers(tmp_path) as w:
        made = [await w.call("POST", "/sessions", json={}) for _ in range(8)]
        one = next(each for each in made if w.owner(each) is w.gateways[0])
        other = next(each for each in made if w.owner(each) is w.gateways[1])
        end = " HTTP/1.1\r\nhost: localhost\r\nx-note: a\u2028b\r\nconnection: close\r\n\r\n"
        for spelled in ("GET /sessions/", "\r\nGET /sessions/", "GET HTTP://localhost/sessions/", "GET /%73essions/"):
            for each in (one, other):
                assert each["id"].encode() in await answer_to(w, f"{spelled}{each['id']}{end}".encode())
        # Two in one piece: the second is said to be on the wrong connection, which ends, so its repeat is served.
        both = "".join(f"GET /sessions/{each['id']} HTTP/1.1\r\nhost: localhost\r\n\r\n" for each in (one, other))
        answers = await answer_to(w, both.encode())
        assert answers.count(b"HTTP/1.1 200") == 1 and b"worker 1 of the gateway cannot be reached on this" in answers
        # What cannot be a request is refused, and not waited for.
        for sent in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\nhost: localhost\n\n"):
            assert b" 400 " in (await answer_to(w, sent)).partition(b"\r\n")[0]


async def test_sessions_of_one_gateway_are_reached_by_name_and_key_when_there_are_workers(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with Gateway(client=Replay([]), tokenizer=tokenizer(), state=state) as gateway:
        made = [{"id": each.id, "key": each.key} for each in (gateway.open() for _ in range(8))]
    async with workers(tmp_path, 3, state=state) as w:
        for each in made:
            await w.chat(each)
            await w.chat(each, root=True)


async def test_a_worker_that_is_away_is_said_to_be(tmp_path: Path) -> None:
    async with workers(tmp_path) as w:
        made = [await w.call("POST", "/sessions", json={}) for _ in range(8)]
        gone = next(each for each in made if w.owner(each) is w.gateways[1])
        await w.gateways[1].close()
        async with aiohttp.ClientSession() as w.http:
            refused = await w.chat(gone, status=503)
            assert "worker 1 of the gateway" in refused["error"]["message"]
            name = next(f"s{n}" for n in range(99) if w.gateways[1].worker.owns(f"s{n}"))
            await w.call("POST", f"/sessions/{name}", json={}, status=503)  # it would be in two processes then
            listed = await w.call("GET", "/sessions")
            assert listed["workers_away"] == [1]
            assert {each["id"] for each in listed["sessions"]} == set(w.gateways[0].sessions)
            async with w.http.get(f"{w.url}/metrics") as response:
                families = {each.name: each for each in text_string_to_metric_families(await response.text())}
            answering = {each.labels["worker"]: each.value for each in families["strands_gateway_workers"].samples}
            assert answering == {"0": 1, "1": 0} and families["strands_gateway_sessions"].samples
            kept = next(each for each in made if w.owner(each) is w.gateways[0])
            await w.chat(kept)


async def test_a_worker_that_hangs_is_away_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.gateway.workers._PATIENCE", 0.05)
    async with workers(tmp_path) as w:
        made = [await w.call("POST", "/sessions", json={}) for _ in range(8)]
        hung = next(each for each in made if w.owner(each) is w.gateways[1])
        await w.gateways[1].close()
        with socket.socket(socket.AF_UNIX) as http, socket.socket(socket.AF_UNIX) as connections:
            for sock, name in ((http, "http-1"), (connections, "connections-1")):
                (tmp_path / name).unlink(missing_ok=True)
                sock.bind(str(tmp_path / name))
                sock.listen()  # the system takes connections, and nobody reads them
            async with aiohttp.ClientSession() as w.http:
                assert (await w.call("GET", "/sessions"))["workers_away"] == [1]
                async with w.http.get(f"{w.url}/metrics") as response:
                    assert 'strands_gateway_workers{worker="1"} 0.0' in await response.text()
                await w.chat(hung, status=503)
                for _ in range(2):  # one of them is this worker's turn, the other is not
                    assert w.owner(await w.call("POST", "/sessions", json={})) is w.gateways[0]


async def test_no_client_is_taken_for_a_worker_that_asks(tmp_path: Path) -> None:
    async with workers(tmp_path) as w:
        for _ in range(8):
            await w.call("POST", "/sessions", json={})
        async with w.http.get(f"{w.url}/sessions", headers={"x-strands-own-sessions": "1"}) as response:
            assert len((await response.json())["sessions"]) == 8


async def test_a_client_that_leaves_while_its_connection_changes_hands_breaks_nothing(tmp_path: Path) -> None:
    async with workers(tmp_path) as w:
        made = [await w.call("POST", "/sessions", json={}) for _ in range(6)]
        for each in made * 3:
            with socket.create_connection(w.url[len("http://") :].split(":")) as sock:
                sock.sendall(f"GET /sessions/{each['id']} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await asyncio.gather(*map(w.chat, made))


def _work(folder: Path, state: str | None, worker: Worker, listener: socket.socket, tell: Any) -> None:
    """Serves scripted replies; says the process's id as the model's name."""

    async def serve() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        client = Replay([completion("Hello.")], cycle=True)
        options = {"listener": listener, "worker": worker, "state": state}
        async with Gateway(client=client, tokenizer=tokenizer(), **options) as gateway:
            (folder / f"{worker.index}.new").write_text(str(os.getpid()))
            os.replace(folder / f"{worker.index}.new", folder / f"{worker.index}")
            tell("tiny")
            await stop.wait()
            tell((len(gateway.sessions), 0))

    if (folder / "fail").exists():
        raise CommandError("the model server does not answer")
    asyncio.run(serve())


@pytest.mark.parametrize("keeps", [True, False], ids=["with state", "in memory"])
async def test_a_dead_worker_is_replaced_and_its_sessions_taken_up_or_said_to_be_lost(
    keeps: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer()
    monkeypatch.setattr(supervisor, "_PAUSE", 0.2)
    state, folder = str(tmp_path / "state") if keeps else None, tmp_path
    told: asyncio.Queue[Any] = asyncio.Queue()
    with bind("127.0.0.1", 0) as listener:
        async with aiohttp.ClientSession() as http:
            parent = asyncio.create_task(
                supervise(
                    partial(_work, folder, state),
                    2,
                    listener=listener,
                    state=state,
                    method="fork",
                    tell=told.put_nowait,
                )
            )
            await told.get()
            w = Workers(url_of(listener), [], http)

            async def status_of(session: Any) -> int:
                async with http.get(f"{w.url}/sessions/{session['id']}") as response:
                    return response.status

            made = [await w.call("POST", f"/sessions/s{n}", json={}) for n in range(6)]
            for each in made:
                await w.chat(each)
            process = int((folder / "1").read_text())
            os.kill(process, signal.SIGKILL)
            await until(lambda: int((folder / "1").read_text()) != process)
            statuses: Counter[int] = Counter()
            for each in made:
                async with http.get(f"{w.url}/sessions/{each['id']}") as response:
                    statuses[response.status] += 1
                    if response.status == 200:
                        assert (await response.json())["counters"]["sampled"] == 1
                    else:
                        assert "--state FOLDER keeps them" in (await response.json())["error"]["message"]
            assert statuses.keys() == ({200} if keeps else {200, 410})
            if keeps:
                with pytest.raises(StateError, match="another gateway uses"):
                    StateFolder(tmp_path / "state", {})
            process = int((folder / "1").read_text())
            os.kill(process, signal.SIGTERM)  # by somebody else than its parent: no reason to end the others
            await until(lambda: parent.done() or int((folder / "1").read_text()) != process)
            assert not parent.done()
            (folder / "fail").touch()  # for a while, in which the others serve
            process = int((folder / "1").read_text())
            os.kill(process, signal.SIGKILL)
            await until(lambda: "cannot start: the model server does not answer" in caplog.text)
            assert {await status_of(each) for each in made} == {200, 503}
            (folder / "fail").unlink()
            await until(lambda: int((folder / "1").read_text()) != process)
            os.kill(os.getpid(), signal.SIGTERM)
            await parent
        if keeps:
            StateFolder(tmp_path / "state", {"version": metadata.version("strands-rollout")}).close()


async def test_a_signal_to_all_processes_at_once_counts_every_session_that_ends(tmp_path: Path) -> None:
    tokenizer()
    told: asyncio.Queue[Any] = asyncio.Queue()
    with bind("127.0.0.1", 0) as listener:
        work = partial(_work, tmp_path, None)
        parent = asyncio.create_task(
            supervise(work, 2, listener=listener, state=None, method="fork", tell=told.put_nowait)
        )
        assert await told.get() == "tiny"
        async with aiohttp.ClientSession() as http:
            w = Workers(url_of(listener), [], http)
            for _ in range(5):
                await w.call("POST", "/sessions", json={})
        processes = [int((tmp_path / str(index)).read_text()) for index in range(2)]
        for process in processes:
            os.kill(process, signal.SIGTERM)
        for process in processes:  # without a turn of the loop, which sees all ends at once
            os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        os.kill(os.getpid(), signal.SIGINT)
        await parent
        assert told.get_nowait() == (5, 0)


def test_the_command_refuses_workers_for_an_engine_in_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(["gateway", "--model", "tiny", "--workers", "2"]) == 2
    assert "lives in one process" in capsys.readouterr().err


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
        w = Workers(f"http://127.0.0.1:{port}", gateways, http)
        while True:
            with suppress(aiohttp.ClientError):
                await (await http.get(f"{w.url}/health")).read()
                break
            await asyncio.sleep(0.02)
        made = [await w.call("POST", f"/sessions/task-{n}", json={}) for n in range(8)]
        for each in made:
            await w.chat(each)
            await w.chat(each, [USER, {"role": "assistant", "content": "Hello."}, USER])
            assert each["base_urls"]["anthropic"] == f"{w.url}/s/{each['id']}"
            (row,) = await w.call("GET", f"/sessions/{each['id']}/trajectories")
            assert row["extension_rate"] == 1.0
        assert all(0 < len(gateway.sessions) < 8 for gateway in gateways)
        for path in ("/sessions", "/v1/chat/completions"):
            assert "name the session" in (await w.call("POST", path, json={}, status=404))["error"]["message"]
