"""Training some agents and passing others: rows of an agent, and models that other backends answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from strands_sglang.__main__ import main as command_line
from strands_sglang.commands import gateway as command
from strands_sglang.gateway import OtherBackend
from tests.provider_support import completion
from tests.unit.gateway_support import Rig, rig, until

USER = {"role": "user", "content": "Hi"}
KEY = "sk-of-the-backend"
OWN = {"choices": [{"message": {"role": "assistant", "content": "From elsewhere."}}]}


class Upstream:
    """Another backend: its requests, and what it does with the next ones."""

    def __init__(self) -> None:
        self.requests: list[web.BaseRequest] = []
        self.bodies: list[bytes] = []
        self.url = ""
        self.status, self.headers, self.text = 200, {"request-id": "r1", "Set-Cookie": "a=b"}, json.dumps(OWN)
        self.pieces: list[bytes | Exception] = []
        self.go_on = asyncio.Event()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        if not self.pieces:
            headers = {"Content-Type": "application/json", **self.headers}
            return web.Response(status=self.status, headers=headers, text=self.text)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in self.pieces:
            await response.write(piece) if isinstance(piece, bytes) else request.transport.abort()
            await self.go_on.wait()
        return response


@asynccontextmanager
async def passing(script: list[Any] | None = None, **options: Any) -> AsyncIterator[tuple[Rig, Upstream]]:
    upstream = Upstream()
    runner = web.ServerRunner(web.Server(upstream.answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        others = {"haiku": OtherBackend(f"{upstream.url}/base/v1", KEY)}
        async with rig(script or [], other_backends=others, **options) as r:
            yield r, upstream
    finally:
        upstream.go_on.set()
        await runner.cleanup()


@pytest.mark.parametrize(
    ("path", "body", "sent_to", "header"),
    [
        ("/v1/chat/completions", {"messages": [USER], "odd": 1}, "/v1/chat/completions", "Authorization"),
        ("/v1/responses?a=b", {"input": "Hi"}, "/v1/responses?a=b", "Authorization"),
        ("/v1/messages?beta=true", {"messages": [USER]}, "/v1/messages?beta=true", "x-api-key"),
        ("/v1/messages/count_tokens", {"messages": [USER]}, "/v1/messages/count_tokens", "x-api-key"),
        (
            "/v1beta/models/haiku:generateContent?key=KEY&x=1",
            {"contents": []}, "/v1beta/models/haiku:generateContent?x=1", "x-goog-api-key",
        ),
    ],
    ids=["chat", "responses", "anthropic", "count", "google"],
)  # fmt: skip
async def test_a_request_for_another_backend_goes_there_as_it_is_with_its_key_alone(path, body, sent_to, header):
    async with passing([completion("Hello.")]) as (r, upstream):
        await r.chat([USER])
        raw = json.dumps({"model": "haiku", **body}, indent=1).encode()
        headers = {**r.headers, "Content-Type": "application/json", "anthropic-beta": "b1", "Cookie": "c=1"}
        url = r.session.anthropic_url + path.replace("KEY", r.session.key)
        async with r.http.post(url, data=raw, headers=headers) as response:
            assert (response.status, await response.json()) == (200, OWN)
            assert response.headers["request-id"] == "r1" and "Set-Cookie" not in response.headers
        (request,) = upstream.requests
        assert (str(request.rel_url), upstream.bodies) == (f"/base{sent_to}", [raw])
        assert KEY in request.headers[header] and request.headers["anthropic-beta"] == "b1"
        assert r.session.key not in f"{request.rel_url}{dict(request.headers)}" and "Cookie" not in request.headers
        rows = await r.call("GET", f"/sessions/{r.session.id}/trajectories")
        assert len(rows) == 1 and (r.session.counters.passed, r.session.counters.sampled) == (1, 1)
        assert 'strands_gateway_passed_total{kind="passed"} 1.0' in await r.call("GET", "/metrics")


async def test_any_other_name_is_the_policys() -> None:
    async with passing([completion("Hello.")] * 3) as (r, upstream):
        for name in ("haiku2", "Haiku", ""):
            await r.chat([USER], model=name)
        await r.chat([USER], model=["haiku"], status=400)
        assert not upstream.requests and r.session.counters.sampled == 3


async def test_a_stream_is_passed_piece_by_piece_and_a_broken_one_is_broken_off() -> None:
    async with passing() as (r, upstream):
        upstream.pieces = [b"data: 1\n\n", b"data: 2\n\n"]
        url, body = f"{r.session.base_url}/chat/completions", {"model": "haiku", "stream": True}
        async with r.http.post(url, json=body, headers=r.headers) as response:
            assert response.content_type == "text/event-stream"
            assert await response.content.readany() == b"data: 1\n\n"  # the second one is not sent yet
            upstream.go_on.set()
            assert await response.content.read() == b"data: 2\n\n"
        upstream.pieces = [b"data: 1\n\n", OSError()]
        with pytest.raises(aiohttp.ClientError):
            async with r.http.post(url, json=body, headers=r.headers) as response:
                await response.read()
        assert r.session.counters.passed == 2 and r.session.failure is None
        assert 'requests_total{dialect="chat",status="502"} 1.0' in await r.call("GET", "/metrics")


async def test_a_client_that_goes_away_ends_its_request_upstream_which_counts() -> None:
    async with passing() as (r, upstream):
        upstream.pieces = [b"data: 1\n\n"]
        asking = asyncio.create_task(r.events("/v1/chat/completions", {"model": "haiku"}))
        await until(lambda: upstream.requests)
        transport = upstream.requests[0].transport
        assert transport is not None
        asking.cancel()
        await until(transport.is_closing)
        assert r.session.counters.passed == 1 and r.session.failure is None


async def test_who_may_not_use_the_session_reaches_no_other_backend() -> None:
    async with passing(max_body=1000, limits={"max_requests": 2}) as (r, upstream):
        body, other = {"model": "haiku", "messages": [USER]}, r.gateway.open()
        for key, status in (("wrong", 401), (r.session.reward_key, 401), (other.key, 403)):
            await r.post("/v1/chat/completions", body, headers={"Authorization": f"Bearer {key}"}, status=status)
        await r.post("/v1/chat/completions", {**body, "pad": "x" * 2000}, status=413)
        await r.post("/v1/chat/completions", [], status=400)
        assert not upstream.requests
        for _ in range(2):
            await r.post("/v1/chat/completions", body)
        refused = await r.post("/v1/chat/completions", body, status=400)
        assert refused["error"]["code"] == "rollout_limit" and len(upstream.requests) == 2
        await other.close()
        headers = {"Authorization": f"Bearer {other.key}"}
        await r.call("POST", f"/s/{other.id}/v1/chat/completions", json=body, headers=headers, status=409)
        assert len(upstream.requests) == 2


@pytest.mark.parametrize(("status", "told"), [(401, 502), (403, 502), (302, 502), (429, 429), (500, 500)])
async def test_an_error_is_passed_unless_it_is_about_the_key(status: int, told: int) -> None:
    async with passing() as (r, upstream):
        upstream.status, upstream.text = status, json.dumps({"error": {"message": f"wrong key {KEY}"}})
        upstream.headers = {"Location": f"{upstream.url}/elsewhere", "Retry-After": "7"}
        said = await r.chat([USER], model="haiku", status=told)
        assert len(upstream.requests) == 1 and (KEY in str(said)) == (told == status)
        assert f'requests_total{{dialect="chat",status="{told}"}} 1.0' in await r.call("GET", "/metrics")
        assert r.session.counters.passed == (told == status)


async def test_a_backend_that_gives_no_answer_is_a_failure_until_it_does() -> None:
    async with rig([], other_backends={"haiku": OtherBackend("http://127.0.0.1:9")}) as r:
        said = await r.chat([USER], model="haiku", status=503)
        assert "the backend of this model gave no answer" in said["error"]["message"]
        assert r.session.failure is not None and r.session.counters.passed == 0
    async with passing() as (r, upstream):
        upstream.status = 401
        await r.chat([USER], model="haiku", status=502)
        assert r.session.failure is not None
        upstream.status = 200
        await r.chat([USER], model="haiku")
        assert r.session.failure is None
        r.session.failure = failure = ValueError("of the policy")
        await r.chat([USER], model="haiku")
        assert r.session.failure is failure


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("haiku", "expected MODEL=URL"), ("=http://h", "expected MODEL=URL"), ("haiku=ftp://h", "must be an address"),
        ("haiku=http://me:secret@h", "without user name"), ("haiku=http://h?key=k", "must be an address"),
        ("haiku=http://h,NO_SUCH_VARIABLE", "no key in the environment variable NO_SUCH_VARIABLE"),
    ],
    ids=range(6),
)  # fmt: skip
def test_a_wrong_backend_is_refused_without_its_secrets(given: str, words: str, capsys: Any, monkeypatch: Any) -> None:
    async def model(*_: Any) -> Any:
        return None, None, "m"

    monkeypatch.setattr(command, "_model", model)
    assert command_line(["gateway", "--model", "tiny", "--pass", given]) == 2
    complaint = capsys.readouterr().err
    assert words in complaint and "secret" not in complaint


def test_the_key_of_a_backend_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANDS_GATEWAY_PASS_KEY", "one\n")
    monkeypatch.setenv("OTHER", "two")
    with pytest.raises(ValueError, match="--pass: 'a' is given twice"):
        command._other_backends(["a=http://h", "a=http://i"])
    assert command._other_backend("a=http://h") == ("a", OtherBackend("http://h", "one"))
    assert command._other_backend("a=http://h/v1,OTHER") == ("a", OtherBackend("http://h/v1", "two"))
    assert "one" not in repr(command._other_backend("a=http://h"))


async def test_rows_are_filtered_by_the_name_or_role_of_an_agent(tmp_path: Any) -> None:
    async with rig([completion("One."), completion("Two."), completion("Three.")], state=tmp_path) as r:
        for agent, text in (("/root", "Task"), ("/root/a", "Part"), ("/root/b", "Other")):
            headers = {"x-codex-turn-metadata": json.dumps({"agent_name": agent})}
            await r.chat([{"role": "user", "content": text}], headers=headers)
        path = f"/sessions/{r.session.id}/trajectories"
        for query, agents in (
            ("", ["/root", "/root/a", "/root/b"]), ("?agent=/root", ["/root"]), ("?agent=main", ["/root"]),
            ("?agent=subagent", ["/root/a", "/root/b"]), ("?agent=/root/b&agent=main", ["/root", "/root/b"]),
            ("?agent=", []), ("?agent=nobody", []),
        ):  # fmt: skip
            assert [row["agent"] for row in await r.call("GET", path + query)] == agents
        await r.session.close()
        await r.call("GET", f"{path}?agent=main")
        refused = await r.call("GET", f"{path}?agents=main&agent=main", status=400)  # else all rows
        assert refused["error"]["message"] == "unknown query parameters ['agents']; known: agent"
        assert not r.session.is_exported  # the others' rows are still to be read
        await r.call("GET", path)
        await until(lambda: r.session.is_exported)
