"""The page of a run that goes on: what it is told, and its server, attacked."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager

import aiohttp
import pytest

from strands_env.commands.cli import main
from strands_env.eval.report import server as live_server
from strands_env.eval.report.live import LiveRun, LiveTraining, open_live
from strands_env.eval.report.server import LiveServer
from strands_env.eval.saved import RunTokenizer
from strands_env.eval.store import ResultLog, RunConfig, StorePaths
from strands_env.training.log import TrainingLog
from tests.unit.eval_support import sample, with_tokens


def append(folder, *samples) -> None:
    log = ResultLog(StorePaths.of(folder))
    log.append(list(samples))
    log.close()


def begin(folder, *samples):
    RunConfig(StorePaths.of(folder).run, {"benchmark": "b"}).check(has_results=False)
    append(folder, *samples)
    return folder


def with_token_data(reward: float | None, index: int = 0, *, aborted: bool = False):
    made = sample(reward, index, aborted=aborted)
    with_tokens(made.step_result)
    return made


class LetterTokenizer:
    """Encodes `cd`, the sampled tokens 3 and 4, as the token 9."""

    def decode(self, ids, **options):
        return "".join("cd" if token == 9 else chr(96 + token) for token in ids)

    def encode(self, text, **options):
        return [9 if letter == "*" else ord(letter) - 96 for letter in text.replace("cd", "*")]


@asynccontextmanager
async def served(source):
    """A server that follows, with an HTTP client."""
    async with LiveServer(source) as server, aiohttp.ClientSession() as session:
        follow = asyncio.create_task(server.follow())
        try:
            yield server, session
        finally:
            follow.cancel()


async def next_overview(events) -> dict:
    while not (line := await events.content.readline()).startswith(b"data: "):
        assert line
    return json.loads(line[6:])


def test_a_page_knows_what_a_report_knows_and_a_retried_sample_counts_once(tmp_path):
    begin(tmp_path, with_token_data(1.0), with_token_data(None, 1, aborted=True))
    live = LiveRun(tmp_path, tokenizer=RunTokenizer(tokenizer=LetterTokenizer()))
    assert live.read() == 2
    append(tmp_path, with_token_data(0.0, 1), with_token_data(1.0, 2))
    with StorePaths.of(tmp_path).results.open("ab") as file:
        file.write(b'{"id":"ab')  # a write under way
    assert live.read() == 2
    assert live.read() == 0
    shown = live.overview()
    assert (shown["summary"]["samples"], shown["samples"][1]) == (3, [1.0, 0.0, 1.0])
    assert (shown["live"]["done"], shown["drift"]["changed_trajectories"]) == (3, 3)
    assert shown["samples"][8] == [1, 1, 1]
    part = live.part("p/2")
    assert part["sample"]["trajectories"][0]["drift"] == [[2, 4, "other-merge", ["cd"], [9]]]
    assert part["vocabulary"] == {1: "a", 2: "b", 3: "c", 4: "d"}
    assert live.part("p/9") is live.part("../../etc/passwd") is None


def test_a_run_that_crashed_reopens_and_one_that_begins_anew_is_followed(tmp_path):
    begin(tmp_path, sample(1.0))
    results = StorePaths.of(tmp_path).results
    results.write_bytes(results.read_bytes() + b'{"id":"' + b"0" * 400)  # killed in the middle of a line
    live = open_live(tmp_path, tokenizer="none")
    assert isinstance(live, LiveRun) and live.read() == 1
    append(tmp_path, sample(0.0, 1))  # a resume cuts the torn line off
    assert live.read() == 1 and live.overview()["live"]["done"] == 2
    results.unlink()
    assert live.read() == 0 and live.overview()["live"]["done"] == 2
    append(tmp_path, sample(0.5))
    assert live.read() == 1 and live.overview()["samples"][1] == [0.5]


def test_a_run_is_watched_before_its_first_sample(tmp_path):
    RunConfig(StorePaths.of(tmp_path).run, {"benchmark": "b"}).check(has_results=False)
    live = open_live(tmp_path, tokenizer="none")
    assert live.read(0.1) == 0
    assert (live.title, live.overview()["samples"]) == ("b", [[] for _ in range(12)])


def test_a_training_is_followed_step_by_step_and_a_finished_step_is_read_once(tmp_path, capsys, monkeypatch):
    with TrainingLog(tmp_path) as log:  # begun, and in its first step
        live = open_live(tmp_path, tokenizer="none")
        assert isinstance(live, LiveTraining) and live.read() and live.overview()["steps"] == []
        begin(tmp_path / "step-1", sample(0.0))
        assert live.read() and not live.read()
        assert "loss" not in live.overview()["steps"][0]
        log.append({"step": 1, "loss": 0.25})
    assert live.read() and live.overview()["steps"][0]["loss"] == 0.25
    read = []
    real = live._files._of_run
    monkeypatch.setattr(live._files, "_of_run", lambda results: read.append(results.parent.name) or real(results))
    begin(tmp_path / "step-2", sample(1.0))
    assert live.read() and read == ["step-2"]
    assert [step["reward"] for step in live.overview()["steps"]] == [0.0, 1.0]
    assert live.part("p") == {"1": [[0.0, "answer"]], "2": [[1.0, "answer"]]}
    assert main(["watch", str(tmp_path), "--tokenizer", "none", "--json"]) == 0
    assert [step["step"] for step in json.loads(capsys.readouterr().out)["steps"]] == [1, 2]
    (tmp_path / "training.jsonl").write_text("something else\n")
    assert main(["watch", str(tmp_path), "--tokenizer", "none", "--json"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("kind", ["empty", "text", "absent", "gateway", "two"])
def test_what_is_no_run_is_refused_in_one_sentence(kind, tmp_path, capsys):
    path = tmp_path / "x"
    if kind in ("empty", "two"):
        path.mkdir()
    if kind == "two":
        begin(path / "a", sample(1.0)), begin(path / "b", sample(1.0))
    if kind == "text":
        path.write_text("hello")
    if kind == "gateway":
        path.mkdir()
        (path / "0a.jsonl").write_text('{"kind": "session"}\n')
    assert main(["watch", str(path), "--json"]) in (2, 3)
    said = capsys.readouterr()
    assert said.out == "" and str(path) in said.err and said.err.count("\n") == 1


def test_a_port_in_use_is_one_sentence(tmp_path, capsys):
    begin(tmp_path, sample(1.0))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["watch", str(tmp_path), "--port", str(taken.getsockname()[1])]) == 1
    assert "is in use: give another --port" in capsys.readouterr().err


async def test_two_pages_are_told_of_every_change_and_what_they_are_served_is_safe(tmp_path):
    begin(tmp_path, sample(1.0))
    async with served(open_live(tmp_path, tokenizer="none")) as (server, session):
        page = await session.get(server.address)
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'; connect-src 'self';" in policy and "frame-ancestors 'none'" in policy
        assert (page.headers["Referrer-Policy"], page.headers["Cache-Control"]) == ("no-referrer", "no-store")
        assert "Access-Control-Allow-Origin" not in page.headers
        one, two = [await session.get(server.address + "events") for _ in range(2)]
        assert [(await next_overview(each))["live"]["done"] for each in (one, two)] == [1, 1]
        append(tmp_path, sample(0.0, 1))
        assert [(await next_overview(each))["live"]["done"] for each in (one, two)] == [2, 2]
        found = await session.get(server.address + "part", params={"name": "p/1"})
        assert (await found.json())["sample"]["messages"][1]["blocks"] == [{"kind": "text", "text": "answer"}]


async def test_it_answers_nothing_without_its_key_to_other_hosts_or_by_other_methods(tmp_path):
    (tmp_path / "secret").write_text("a secret")
    begin(tmp_path, sample(1.0))
    async with served(open_live(tmp_path, tokenizer="none")) as (server, _):
        root, key = server.address.rsplit("/", 2)[:2]
        port = root.rpartition(":")[2]
        assert {address for address, _ in server._runner.addresses} == {"127.0.0.1"}
        own = f"127.0.0.1:{port}"

        async def ask(path: str, host: str | None = own, method: str = "GET") -> tuple[int, str]:
            """The request as it stands, without what a client would mend."""
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            head = f"{method} {path} HTTP/1.1\r\nConnection: close\r\n" + (f"Host: {host}\r\n" if host else "")
            writer.write(head.encode() + b"\r\n")
            answer = (await reader.read()).decode()
            writer.close()
            return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]

        assert (await ask(f"/{key}/"))[0] == (await ask(f"/{key}/", f"localhost:{port}"))[0] == 200
        for path, host, method, status in (
            *((path, own, "GET", 404) for path in ("/", f"/{key[:-1]}/", f"/{key}x/", "//", "/%00/", "/%c3%a9/")),
            ("/é/", own, "GET", 400),
            *((f"/{key}/{path}", own, "GET", 404) for path in ("x", "secret", "report.html", "events/", "part/x")),
            *((f"/{key}/{path}/secret", own, "GET", 404) for path in ("..", "%2e%2e", "..%2f..", "/etc")),
            *((f"/{key}/part?name={name}", own, "GET", 404) for name in ("", "..%2fsecret", "p/7", "%00", "%c3%a9")),
            *((f"/{key}/", host, "GET", 403) for host in ("evil.example", f"evil.example:{port}", "127.0.0.1")),
            (f"/{key}/", None, "GET", 400),
            (f"http://evil.example/{key}/", "evil.example", "GET", 403),
            *((f"/{key}/", own, method, 405) for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE")),
        ):
            got, text = await ask(path, host, method)
            assert (path, host, method, got) == (path, host, method, status)
            assert "secret" not in text and key not in text


async def test_too_many_pages_are_refused_and_one_that_does_not_read_is_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(live_server, "MAX_STREAMS", 3)
    monkeypatch.setattr(live_server, "QUIET_SECONDS", 0.01)
    begin(tmp_path, sample(1.0))
    source = open_live(tmp_path, tokenizer="none")
    real = source.overview
    monkeypatch.setattr(source, "overview", lambda: {**real(), "title": "x" * 20_000_000})
    async with served(source) as (server, session):
        _, _, where, key, _ = server.address.split("/")
        host, port = where.split(":")

        def connect_slow() -> socket.socket:
            slow = socket.create_connection((host, int(port)))
            slow.sendall(f"GET /{key}/events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            return slow

        async def until_streams(count: int) -> None:
            while server._streams != count:
                await asyncio.sleep(0.01)

        slow = connect_slow()
        await until_streams(1)
        reader = await session.get(server.address + "events", read_bufsize=2**25)
        assert (await next_overview(reader))["live"]["done"] == 1  # the slow one holds up nobody
        slow.close()
        await until_streams(1)
        with monkeypatch.context() as patched:
            patched.setattr(live_server, "SLOW_SECONDS", 0.2)
            slow = connect_slow()
            await until_streams(2)
            await until_streams(1)
            slow.close()
        others = [await session.get(server.address + "events") for _ in range(2)]
        refused = await session.get(server.address + "events")
        assert (refused.status, await refused.text()) == (503, "3 pages follow this run already: close one.")
        for each in others:
            each.close()
        await until_streams(1)
        assert (await session.get(server.address + "events")).status == 200
