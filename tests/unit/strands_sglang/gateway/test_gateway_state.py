"""Sessions that survive the gateway's process: what a restart knows, what a kill leaves, and what is refused."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import struct
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import Message as Headers
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import aiohttp
import pytest

from strands_sglang.__main__ import main as command_line
from strands_sglang.backends.clients import Connection, client_class
from strands_sglang.backends.records import from_json, to_json
from strands_sglang.commands import gateway as command
from strands_sglang.conversation import Conversation
from strands_sglang.exceptions import StateError
from strands_sglang.gateway import Gateway, Session
from strands_sglang.gateway.exact_json import dumps
from strands_sglang.gateway.server import bind, url_of
from strands_sglang.gateway.session_log import restore_turn, turn_to_json
from strands_sglang.gateway.session_routes import _rows
from strands_sglang.gateway.session_table import SessionTable
from strands_sglang.gateway.state import LogFile, StateFolder
from strands_sglang.lines import finish_line
from strands_sglang.trajectory import (
    Call,
    Completion,
    Finish,
    FinishType,
    Image,
    LengthLimit,
    Location,
    Message,
    Result,
    Role,
    SamplingMask,
    ToolCall,
    Turn,
    WeightSpan,
)
from strands_sglang.trajectory.media import Medium
from tests.provider_support import Replay, completion, tokenizer
from tests.unit.gateway_support import (
    ANTHROPIC_TOOLS,
    CALL,
    CHAT_TOOLS,
    RESPONSES_TOOLS,
    Rig,
    rig,
    slow,
    trained_once,
    trained_runs,
    until,
)  # fmt: skip

USER = {"role": "user", "content": "Hi"}


def copy_of(folder: Path) -> Path:
    """What a kill at this moment would leave."""
    number = len(list(folder.parent.glob("killed*")))
    return Path(shutil.copytree(folder, folder.parent / f"killed{number}"))


@asynccontextmanager
async def restarted(folder: Path, session: Session, *script: Any, **options: Any) -> AsyncIterator[Rig]:
    """Another gateway on a copy of a folder, with the same session."""
    client = Replay(list(script))
    async with (
        Gateway(client=client, tokenizer=tokenizer(), state=copy_of(folder), **options) as gateway,
        aiohttp.ClientSession() as http,
    ):
        yield Rig(gateway, gateway.sessions[session.id], client, http)


def everything(session: Session) -> Any:
    """What can be seen of a session."""
    facts = {name: value for name, value in session.to_json().items() if name != "in_flight"}
    forest = session.conversation.forest
    return facts, _rows(session), session.history, forest.facts(), [turn.index for turn in forest.turns]


def alike(session: Session) -> Any:
    """What is the same in sessions that had the same requests: all but counts of refusals and random ids."""
    _, rows, *others = everything(session)
    return [{**row, "request_ids": len(row["request_ids"])} for row in rows], *others


def results_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in message.get("tool_calls") or []]


class OtherTokenizer:
    """One with another vocabulary."""

    def __getattr__(self, name: str) -> Any:
        return getattr(tokenizer(), name)

    def get_vocab(self) -> dict[str, int]:
        return {"a": 1}


async def talk(r: Rig, seed: int) -> None:
    """A few requests in several dialects, of several agents, with retries, edits, grammars and failures."""
    draw = random.Random(seed)
    history: list[Any] = [USER]
    blocks: list[Any] = [USER]
    for number in range(draw.randrange(2, 5)):
        reply = draw.choice([f"Answer {number}.", f"<think>\nHm {number}.\n</think>\n\nDone.{CALL}", f"{CALL}{CALL}"])
        r.client.then(completion(reply, version=draw.choice([None, "7"]), cached=3))
        shape = draw.choice(["chat", "messages", "responses", "agent", "edit"])
        if shape == "messages":
            content = (await r.messages(blocks, tools=ANTHROPIC_TOOLS))["content"]
            calls = [block["id"] for block in content if block["type"] == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": call, "content": "3"} for call in calls]
            blocks = [
                *blocks,
                {"role": "assistant", "content": content},
                {"role": "user", "content": results or "And?"},
            ]
        elif shape == "responses":
            first = await r.responses("Hi", tools=RESPONSES_TOOLS)
            r.client.then(completion("Again."))
            await r.responses("And?", previous_response_id=first["id"], tools=RESPONSES_TOOLS)
        elif shape == "agent":
            await r.messages([USER], headers={"x-claude-code-agent-id": f"sub{number}"})
        else:
            message = (await r.chat(history, tools=CHAT_TOOLS, logprobs=True))["choices"][0]["message"]
            if shape == "edit":
                message["content"] = "Something else."
            history = [*history, message, *(results_of(message) or [{"role": "user", "content": "Go on"}])]
    await r.messages([{"role": "assistant", "content": "no"}], status=400)


@pytest.mark.parametrize("seed", range(8))
async def test_a_restarted_session_is_the_session(seed: int, tmp_path: Path) -> None:
    async with rig([], state=tmp_path / "state", limits={"max_sampled_tokens": 10_000}) as r:
        await talk(r, seed)
        r.session.set_reward(0.5, turns=[1.0], info={"by": "test"})
        await r.chat([USER], n=2, status=400)
        r.session.log.note()  # counts of refused requests come with the next event
        before = everything(r.session)
        async with restarted(tmp_path / "state", r.session) as later:
            assert everything(later.session) == before and trained_once(later.session)
            # Both go on alike, down to the ids of prompts and of calls.
            for each in (r, later):
                each.client.requests.clear()
                await talk(each, seed + 100)
            assert later.prompts == r.prompts
            assert alike(later.session) == alike(r.session)
            async with restarted(later.gateway.sessions.folder.path, r.session) as last:
                assert alike(last.session) == alike(later.session)


def test_every_field_of_a_turn_is_written_down() -> None:
    def conversation() -> Conversation:
        return Conversation(client=Replay([]), tokenizer=tokenizer())

    image = Image(b"png", "png", "broken")
    calls = (Call("c1", "add", {"a": 10**30, "b": 1.0, "c": "\ud800"}),)
    reply = Message(role="assistant", parts=("Hi", image), reasoning="Hm", calls=calls, receipt=3)
    results = (Result("c1", ("3", image), True),)
    span = {"data": "data:x", "digest": "d", "grid": (1, 2, 3), "processor": "p", "position": 0}
    completion = Completion(
        output_ids=array("i", [5, 6]),
        output_logprobs=array("d", [-0.1, float("nan")]),
        prompt_logprobs=array("d", [-1e-300]),
        finish=Finish(type=FinishType.LENGTH, matched="x", message="m", limited_by=LengthLimit.CONTEXT),
        weight_spans=(WeightSpan(version="7", start=0, end=1), WeightSpan(version=None, start=1, end=2)),
        cached_tokens=4,
        latency=0.1,
        routed_experts=b"\x01\x00\x00\x00",
        sampling_mask=SamplingMask.from_sets([[1, 2], []]),
        request_ids=("r1", "r2"),
    )
    first, second = conversation(), conversation()
    location = Location(
        key=b"k", context=b"c", parent=None, first_new=0, agent="a", agent_id="i", attempt="1", role=Role.SUBAGENT,
        parent_agent="p", epoch=0,
    )  # fmt: skip
    turn = first.commit(
        location,
        prompt_ids=array("i", [1]),
        completion=completion,
        reply=reply,
        calls=[ToolCall(id="c1", name="add", model_id="m", error="e", is_text=True)],
        media=[Medium(span=array("i", [9, 9]), **span)],
        is_constrained=True,
        is_recalled=True,
    )
    value = json.loads(dumps(turn_to_json(turn, first.forest.context_of(turn))))
    again = restore_turn(second, value)
    assert json.loads(dumps(turn_to_json(again, second.forest.context_of(again)))) == value
    for kind, one, other in ((Turn, turn, again), (Completion, turn.completion, again.completion)):
        for field in dataclasses.fields(kind):
            if field.name not in ("parent", "completion", "media", "sampling_mask"):
                assert repr(getattr(one, field.name)) == repr(getattr(other, field.name)), field.name
            assert field.name in ("parent", "start") or getattr(one, field.name) not in (None, field.default), (
                "left out above"
            )
    assert from_json(to_json(results)) == results
    assert second.tool_parse_errors == {"add": 1}


async def test_a_repeat_after_a_restart_gets_the_answer_that_was_there(tmp_path: Path) -> None:
    async with rig([slow("Hello.", 0.1), completion("Two.")], state=tmp_path / "state") as r:
        asking = asyncio.create_task(r.chat([USER], tools=CHAT_TOOLS))
        await until(lambda: r.prompts)
        asking.cancel()
        await until(lambda: r.session.counters.undelivered)
        assert [t.is_discarded for t in r.session.trajectories] == [True]
        async with restarted(tmp_path / "state", r.session) as later:
            answer = await later.chat([USER], tools=CHAT_TOOLS)
            assert answer["choices"][0]["message"]["content"] == "Hello." and not later.prompts
            assert [t.is_discarded for t in later.session.trajectories] == [False]
        first = await r.chat([USER], tools=CHAT_TOOLS)
        async with restarted(tmp_path / "state", r.session, completion("Own.")) as later:
            retried = {"x-stainless-retry-count": "1"}
            assert await later.chat([USER], tools=CHAT_TOOLS, headers=retried) == first  # ids and times included
            # Whoever asks again without a mark wants a sample of his own.
            assert (await later.chat([USER], tools=CHAT_TOOLS))["id"] != first["id"]
            assert later.session.counters.siblings == 1 and trained_once(later.session)


@pytest.mark.parametrize("read", [["reasoning"], ["reasoning", "message"], ["message"]], ids="+".join)
async def test_a_client_that_read_a_part_of_an_answer_gets_the_rest(read: list[str], tmp_path: Path) -> None:
    items = [{"role": "user", "content": "Hi"}]
    script = [completion(f"<think>\nHm.\n</think>\n\nI will.{CALL}"), completion("Done.")]
    async with rig(script, state=tmp_path / "state") as r:
        output = (await r.responses(items, tools=RESPONSES_TOOLS))["output"]
        begun = [item for item in output if item["type"] in read]
        async with restarted(tmp_path / "state", r.session, *script[1:]) as later:
            body = {"model": "m", "input": [*items, *begun], "tools": RESPONSES_TOOLS}
            events = await later.events("/v1/responses", body)
            rest = [event["item"] for event in events if event["type"] == "response.output_item.done"]
            assert rest == [item for item in output if item["type"] not in (*read, "reasoning")]
            assert events[-1]["type"] == "response.completed" and not later.prompts
            results = [{"type": "function_call_output", "call_id": rest[-1]["call_id"], "output": "3"}]
            done = (await later.responses([*items, *begun, *rest, *results], tools=RESPONSES_TOOLS))["output"]
            (row,) = later.session.trajectories
            assert later.session.counters.roots == {"first": 1} and trained_once(later.session)
            assert not row.is_discarded and len(list(trained_runs(row))) == 2
            # Of an answer that was read whole there is no rest; to what no answer begins with, none is made up.
            whole = [*items, *begun, *rest, *results, *done]
            assert (await later.responses(whole, tools=RESPONSES_TOOLS))["output"] == []
            for other in ("I will", "", "Done."):
                prefilled = [*items, {"role": "assistant", "content": other}]
                told = await later.responses(prefilled, tools=RESPONSES_TOOLS, status=400)
                assert "never prefilled" in told["error"]["message"]


async def test_a_retry_of_a_request_that_a_kill_broke_off_is_no_copy_of_an_equal_one(tmp_path: Path) -> None:
    async with rig([completion("One."), slow("Never.", 30)], state=tmp_path / "state") as r:
        await r.chat([USER])
        asking = asyncio.create_task(r.chat([USER]))
        await until(lambda: len(r.prompts) == 2)
        async with restarted(tmp_path / "state", r.session, completion("Two.")) as later:
            answer = await later.chat([USER], headers={"x-stainless-retry-count": "1"})
            assert answer["choices"][0]["message"]["content"] == "Two." and len(later.session.trajectories) == 2
        asking.cancel()


async def test_limits_and_what_is_over_last(tmp_path: Path) -> None:
    limits = {"max_requests": 2, "max_seconds": 1000, "final_answer": True}
    async with rig([completion("One."), completion("Bye.")], state=tmp_path / "state", limits=limits) as r:
        await r.chat([USER])
        async with restarted(tmp_path / "state", r.session, completion("Bye.")) as later:
            await later.chat([USER])  # the final answer
            assert later.session.counters.final == 1
            async with restarted(later.gateway.sessions.folder.path, r.session) as last:
                await last.chat([USER], status=400)
                assert last.session.options == r.session.options and last.session.began is not None
                await last.call("POST", f"/sessions/{r.session.id}/close", json={})
                async with restarted(last.gateway.sessions.folder.path, r.session) as closed:
                    assert (await closed.chat([USER], status=409))["error"]["code"] == "session_closed"


@pytest.mark.parametrize("how", ["whole", "40 bytes", "reset", "never", "head"])
async def test_a_closed_session_stays_in_the_folder_until_its_reader_deletes_it(how: str, tmp_path: Path) -> None:
    """The socket's buffer may hold all rows of a reader that then resets: only the reader knows that it has them."""
    async with rig([completion("One.")], state=tmp_path / "state") as r:
        await r.chat([USER])
        await r.session.close()
        path = f"/sessions/{r.session.id}/trajectories"
        if how == "whole":
            assert sum((await r.call("GET", path))[0]["loss_mask"])
        elif how == "head":
            await r.call("HEAD", path, status=405)
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(r.gateway.url.rpartition(":")[2]))
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            if how == "40 bytes":
                assert len(await reader.readexactly(40)) == 40
            await until(lambda: r.session.is_exported)  # the socket has taken all of them
            if how == "reset":
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.close()
        async with restarted(tmp_path / "state", r.session) as later:
            assert _rows(later.session) == _rows(r.session)
            assert (await later.call("GET", path))[0]["token_ids"] == r.session.trajectories[0].token_ids
            folder = later.gateway.sessions.folder
            (log,) = folder.path.glob("*.jsonl")
            assert (await later.call("GET", "/sessions"))["state"]["bytes"] == log.stat().st_size
            await later.call("DELETE", f"/sessions/{r.session.id}")
            await later.call("GET", path, status=404)
            assert not log.exists() and (await later.call("GET", "/sessions"))["state"]["bytes"] == 0


async def test_clients_of_an_orderly_restart_are_told_to_ask_again(tmp_path: Path) -> None:
    async with rig([slow("One.", 30), slow("Two.", 30)], state=tmp_path / "state", hold=0.02) as r:
        other = r.gateway.open()
        asking = asyncio.create_task(r.chat([USER], status=503))
        await until(lambda: r.prompts)
        body = {"messages": [USER], "max_tokens": 9, "stream": True}
        async with r.http.post(f"{r.session.anthropic_url}/v1/messages", json=body, headers=r.headers) as streaming:
            assert (streaming.status, len(r.prompts)) == (200, 2)
            await r.gateway.close()
            assert (await asking)["error"]["code"] == "restarting"
            with pytest.raises(aiohttp.ClientError):
                await streaming.text()
        async with restarted(tmp_path / "state", r.session, completion("One."), completion("Two.")) as later:
            assert (await later.chat([USER]))["choices"][0]["message"]["content"] == "One."
            assert len(later.gateway.sessions) == 2 and not later.gateway.sessions[other.id].is_sealed


# ---- kills ------------------------------------------------


async def test_a_log_that_ends_at_any_byte_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    async with rig([completion("One."), completion("Two.")], state=tmp_path / "state") as r:
        await r.chat([USER])
        (file,) = (tmp_path / "state").glob("*.jsonl")
        before, size = alike(r.session), file.stat().st_size
        await r.chat([USER, {"role": "assistant", "content": "One."}, USER])
        lines = file.read_bytes()
        (whole,) = [StateFolder(copy_of(tmp_path / "state"), r.gateway.sessions.folder.identity)]
        count = lambda: len(list(LogFile(whole, path).read()))  # noqa: E731
        path = whole.path / file.name
        expected = [lines[:end].count(b"\n") for end in range(len(lines))]
        for end in range(len(lines) - 1, lines.index(b"\n"), -1):
            os.truncate(path, end)
            assert count() == expected[end]
        for end in (size, size + 1, size + 200):
            file.write_bytes(lines[:end])
            async with restarted(tmp_path / "state", r.session, completion("Two.")) as later:
                assert alike(later.session) == before
                await later.chat([USER, {"role": "assistant", "content": "One."}, USER])
                assert later.prompts == r.prompts[1:] and trained_once(later.session)
                async with restarted(later.gateway.sessions.folder.path, r.session) as last:
                    assert alike(last.session) == alike(later.session)
        for end in range(0, lines.index(b"\n")):  # nobody was given the session
            file.write_bytes(lines[:end])
            folder = StateFolder(copy_of(tmp_path / "state"), r.gateway.sessions.folder.identity)
            table = SessionTable(Gateway._make_session, folder)
            await table.restore()
            assert not table and not list(folder.path.glob("*.jsonl"))
            folder.close()
            shutil.rmtree(folder.path)
            if end > 3:
                break


def _sample(recorder: int) -> Any:
    """Replies that nobody else gives, each recorded before it is given."""

    async def answer(*_: Any) -> Any:
        await asyncio.sleep(random.random() * 0.02)
        reply = completion(f"{os.urandom(8).hex()}{CALL if random.random() < 0.5 else ''}")
        os.write(recorder, json.dumps(reply.ids).encode() + b"\n")
        return reply

    return answer


def _serve(state: Path, listener: socket.socket, recorder: int) -> None:
    async def serve() -> None:
        client = Replay([_sample(recorder)], cycle=True)
        async with Gateway(client=client, tokenizer=tokenizer(), state=state, listener=listener):
            await asyncio.Event().wait()

    asyncio.run(serve())


async def _client(http: aiohttp.ClientSession, url: str, turns: int) -> tuple[str, list[list[int]]]:
    """A session's id, and the ids of every answer that was read; whatever fails is asked again."""

    async def ask(path: str, body: Any, headers: Any = None) -> Any:
        while True:
            try:
                async with http.post(url + path, json=body, headers=headers) as response:
                    if response.status < 300:
                        return await response.json()
                    assert response.status == 503, await response.text()
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)

    session = await ask("/sessions", {})
    headers, history, read = {"Authorization": f"Bearer {session['key']}"}, [USER], list[list[int]]()
    before: list[int] = []
    for _ in range(turns):
        body = {"model": "m", "messages": history, "tools": CHAT_TOOLS, "return_token_ids": True}
        answer = await ask(f"/s/{session['id']}/v1/chat/completions", body, headers)
        choice = answer["choices"][0]
        prompt, ids = answer["prompt_token_ids"], choice["token_ids"]
        assert prompt[: len(before)] == before  # the prefix law, over all restarts
        before = prompt + ids
        read.append(ids)
        message = choice["message"]
        history = [*history, message, *(results_of(message) or [USER])]
    return session["id"], read


async def test_kills_in_a_storm_lose_no_answer_that_was_read_and_train_every_token_once(tmp_path: Path) -> None:
    tokenizer()
    record = os.open(tmp_path / "record", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    context, state = multiprocessing.get_context("fork"), tmp_path / "state"
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def start() -> Any:
            process = context.Process(target=_serve, args=(state, listener.dup(), record))
            process.start()
            return process

        async with aiohttp.ClientSession() as http:
            process = start()
            storm = asyncio.gather(*[_client(http, url, 12) for _ in range(6)])
            for _ in range(4):
                await asyncio.wait({storm}, timeout=0.1)
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                process = start()
            read = await storm
            os.kill(process.pid, signal.SIGKILL)
            process.join()
    sampled = {tuple(json.loads(line)) for line in (tmp_path / "record").read_text().splitlines()}
    async with Gateway(client=Replay([]), tokenizer=tokenizer(), state=state) as gateway:
        for name, answers in read:
            session = gateway.sessions[name]
            trained = [run for t in session.trajectories for run in trained_runs(t)]
            assert len(trained) == len(set(trained)) and sampled.issuperset(trained)
            used = {run for t in session.trajectories if not t.is_discarded for run in trained_runs(t)}
            assert {tuple(ids) for ids in answers} <= used and trained_once(session)


# ---- what is refused ------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("version", r"version '0.0.0 \(numbered lines\)', and this one has"),
        ("form", r"version '\S+', and this one has '\S+ \(numbered lines\)'"),
        ("model", "model 'default', and this one has 'other'"),
        ("tokenizer", "tokenizer"),
        ("template", "chat template"),
        ("used", "another gateway uses"),
        ("file", "cannot be used"),
    ],
)
async def test_a_folder_of_something_else_is_refused_and_left_alone(
    change: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, options = tmp_path / "state", dict[str, Any](client=Replay([]), tokenizer=tokenizer())
    with monkeypatch.context() as patched:
        if change == "version":
            patched.setattr("strands_sglang.gateway.server.metadata.version", lambda name: "0.0.0")
        async with Gateway(state=folder, **options) as gateway:
            gateway.open()
            if change == "used":
                with pytest.raises(StateError, match=words):
                    Gateway(state=folder, **options)
                return
    if change == "model":
        options["model_name"] = "other"
    elif change == "tokenizer":
        options["tokenizer"] = OtherTokenizer()
    elif change == "template":
        options["chat_template"] = tokenizer().chat_template + "{# another #}"
    elif change == "form":  # whose lines had no numbers
        (file,) = folder.glob("*.jsonl")
        body = re.sub(rb'"line":\d+,|,"crc".*| \(numbered lines\)', b"", file.read_bytes().strip())
        file.write_bytes(finish_line(body))
    elif change == "file":
        folder = folder / "lock"
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(StateError, match=words):
        async with Gateway(state=folder, **options):
            pass
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


async def test_a_refused_session_leaves_nothing(tmp_path: Path) -> None:
    async with rig([], state=tmp_path / "state") as r:
        before = sorted((tmp_path / "state").iterdir())
        for wrong in (
            {"sampling": {"tempreature": 1}},
            {"sampling": {"temperature": "hot"}},
            {"sampling": {"top_p": 7}},
            {"sampling": {"stop_regex": "("}},
            {"limits": {"max_sampled_tokens": -1}},
            {"limits": {"context_window_limit": 0}},
            {"limits": {"max_requests": 0}},
            {"limits": {"tokens": 1}},
            {"limit": {}},
        ):
            await r.call("POST", "/sessions/foo", json=wrong, status=400)
            with pytest.raises((TypeError, ValueError)):
                r.gateway.open(name="foo", **wrong)
            assert sorted((tmp_path / "state").iterdir()) == before, wrong
        await r.call("POST", "/sessions/foo", json={}, status=201)
        async with restarted(tmp_path / "state", r.session) as later:
            assert set(later.gateway.sessions) == {r.session.id, "foo"}


def test_the_command_refuses_the_folder_of_another_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def load(*_: Any) -> Any:
        return Replay([]), tokenizer(), "tiny"

    monkeypatch.setattr(command, "_model", load)
    folder = StateFolder(tmp_path, {})
    assert command_line(["gateway", "--model", "tiny", "--state", str(tmp_path)]) == 3
    assert "another gateway uses" in capsys.readouterr().err
    folder.close()


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
async def test_a_folder_belongs_to_the_model_that_the_server_names_and_not_to_a_path(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def connect(url: str, name: str, *, plain: str) -> Connection:
        make, address = client_class(url, plain)
        return Connection(make(address), tokenizer(), name)

    async def start(model: str | None, tokenizer_path: str, state: str) -> str:
        """The model that the gateway prints, with a server that serves this one, from a folder of an update."""

        def ask(url: str, headers: Any) -> Any:
            if url.endswith("/v1/models") and kind == "vllm":
                return {"data": [{"id": model}]}
            if url.endswith("/get_server_info") and model is not None:
                return {"served_model_name": model, "model_path": f"/checkpoints/{time.monotonic()}"}
            raise HTTPError(url, 404, "Not Found", Headers(), None)

        async def use() -> str:
            while not (printed := capsys.readouterr().out):
                await asyncio.sleep(0.005)
            async with aiohttp.ClientSession() as http, http.post(f"{url_of(listener)}/sessions") as response:
                assert response.status == 201
            os.kill(os.getpid(), signal.SIGTERM)
            return str(printed.split()[-1])

        monkeypatch.setattr("strands_sglang.backends.clients.connect", connect)
        monkeypatch.setattr("strands_sglang.backends.http.served._ask", ask)
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        address = ["--base-url", f"{kind}+http://localhost:1", "--tokenizer", tokenizer_path, "--state", state]
        with bind("127.0.0.1", 0) as listener:
            using = asyncio.create_task(use())
            try:
                await command.serve(parser.parse_args(address), listener)
                return await using
            finally:
                using.cancel()

    for path in ("./tiny", "/absolute/tiny"):
        assert await start("policy", path, "named") == "policy"
    with pytest.raises(StateError, match="model 'policy', and this one has 'other'"):
        await start("other", "./tiny", "named")
    for path in ("./tiny", "/absolute/tiny"):  # the tokenizer's content alone
        assert await start(None, path, "nameless") == path


async def test_a_damaged_log_is_one_sessions_trouble_which_a_delete_ends(tmp_path: Path) -> None:
    async with rig([completion("One."), completion("Two.")], state=tmp_path / "state", admin_key="admin") as r:
        await r.chat([USER])
        r.gateway.open(name="other")
        file = tmp_path / "state" / f"{r.session.id}.jsonl"
        data = bytearray(file.read_bytes())
        data[-100] ^= 1
        file.write_bytes(data)
        path, admin = f"/sessions/{r.session.id}", {"headers": {"Authorization": "Bearer admin"}}
        async with Gateway(
            client=Replay([]), tokenizer=tokenizer(), state=copy_of(tmp_path / "state"), admin_key="admin"
        ) as gateway:
            later = Rig(gateway, r.session, r.client, r.http)
            listing = await later.call("GET", "/sessions", **admin)
            listed = {each["id"]: each for each in listing["sessions"]}
            assert "damaged" in listed[r.session.id]["error"] and listed["other"]["counters"]
            file = gateway.sessions.folder.path / file.name
            assert listing["state"]["bytes"] == sum(each.stat().st_size for each in file.parent.glob("*.jsonl"))
            for method, more in (("GET", ""), ("POST", ""), ("GET", "/trajectories"), ("POST", "/close")):
                refused = (await later.call(method, path + more, status=500, **admin))["error"]
                assert refused["code"] == "session_damaged" and "line" in refused["message"]
                assert refused["message"].endswith(f"DELETE {path} removes it")
            url = f"{gateway.url}/s/{r.session.id}/v1/chat/completions"
            async with r.http.post(url, json={"messages": [USER]}, headers=r.headers) as response:
                assert (await response.json())["error"]["code"] == "session_damaged"
            async with r.http.post(url, json={"messages": [USER]}) as response:  # a stranger is told nothing
                assert response.status == 401 and str(tmp_path) not in await response.text()
            await later.call("DELETE", path, status=401, headers=r.headers)
            assert file.read_bytes() == data  # nothing was written to it
            assert await later.call("DELETE", path, **admin) == {"id": r.session.id, "deleted": True}
            assert not file.exists() and list(gateway.sessions) == ["other"]
            listing = await later.call("GET", "/sessions", **admin)
            assert listing["state"]["bytes"] == file.with_name("other.jsonl").stat().st_size
            await later.call("DELETE", path, status=404, **admin)
            await later.call("POST", path, json={}, status=201, **admin)


async def test_whatever_is_wrong_with_a_log_is_its_sessions_trouble(tmp_path: Path) -> None:
    async with rig([completion("One."), completion("Two.")], state=tmp_path / "state") as r:
        first = (await r.chat([USER]))["choices"][0]["message"]
        r.session.set_reward(0.5)
        await r.chat([USER, first, USER])
        r.gateway.open(name="other")
        folder = copy_of(tmp_path / "state")
    file = folder / f"{r.session.id}.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    wrong: dict[str, list[bytes]] = {f"{n} missing": lines[:n] + lines[n + 1 :] for n in range(len(lines) - 1)}
    wrong |= {f"{n} twice": lines[: n + 1] + lines[n:] for n in range(len(lines))}
    wrong |= {f"bit {n} of the first": [lines[0][:n], bytes([lines[0][n] ^ 1]), lines[0][n + 1 :]] for n in (0, 60, -1)}
    body = re.sub(rb'"turn":\{"parent":null', b'"turn":{"parent":7', lines[2][: lines[2].rindex(b',"crc"')])
    wrong["whole, and nonsense"] = [*lines[:2], finish_line(body)]
    for what, parts in wrong.items():
        file.write_bytes(b"".join(parts) if "bit" not in what else b"".join([*parts, *lines[1:]]))
        async with Gateway(client=Replay([]), tokenizer=tokenizer(), state=folder, port=0) as gateway:
            assert set(gateway.sessions) == {"other"} and set(gateway.sessions.damaged) == {r.session.id}, what
            assert "line" in gateway.sessions.damaged[r.session.id][1]
    file.write_bytes(b"".join(lines))
    shutil.copy(file, folder / "copy.jsonl")
    (folder / "foreign.jsonl").write_text('{"id": 1}\n')
    (folder / "folder.jsonl").mkdir()
    async with restarted(folder, r.session) as later:
        assert set(later.gateway.sessions) == {r.session.id, "other"}
        assert set(later.gateway.sessions.damaged) == {"copy", "foreign", "folder"}
        await later.call("DELETE", "/sessions/copy")
        assert "cannot be removed" in (await later.call("DELETE", "/sessions/folder", status=500))["error"]["message"]


async def test_a_key_opens_its_newest_session_after_a_restart_too(tmp_path: Path) -> None:
    async with rig([], state=tmp_path / "state") as r:
        await r.gateway.open(name="zzz", key="k").close()
        newest = r.gateway.open(name="aaa", key="k")
        assert r.gateway.sessions.by_key("k") is newest
        async with restarted(tmp_path / "state", r.session) as later:
            assert later.gateway.sessions.by_key("k") is later.gateway.sessions["aaa"]


async def test_sessions_of_an_earlier_process_are_closed_too_when_nobody_uses_them(tmp_path: Path) -> None:
    async with rig([completion("One.")], state=tmp_path / "state") as r:
        await r.chat([USER])
        folder = copy_of(tmp_path / "state")
    async with Gateway(client=Replay([]), tokenizer=tokenizer(), state=folder, session_ttl=0.02) as gateway:
        await until(lambda: all(session.is_sealed for session in gateway.sessions.values()) and gateway.sessions)
    async with Gateway(client=Replay([]), tokenizer=tokenizer(), state=folder) as gateway:
        assert gateway.sessions[r.session.id].is_sealed


@pytest.mark.parametrize("how", ["device", "limit"])
async def test_a_full_folder_takes_no_calls_and_gives_everything_out(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes, offset: int) -> None:
        os.pwrite(fd, data[:10], offset)
        raise OSError(28, "No space left on device")

    async with rig([completion("One."), slow("Two.", 0.2), completion("Three.")], state=tmp_path / "state") as r:
        first = (await r.chat([USER]))["choices"][0]["message"]
        asking = asyncio.create_task(r.chat([USER, first, USER], status=507))  # in flight when it gets full
        await until(lambda: len(r.prompts) == 2)
        folder = r.gateway.sessions.folder
        limit = folder.limit
        if how == "device":
            monkeypatch.setattr("strands_sglang.lines.write_at", full)
        else:
            folder.limit = folder.size
        refused = await asking
        assert refused["error"]["code"] == "state_full"
        assert (await r.chat([USER], status=507))["error"]["message"].count(".") == 0 and len(r.prompts) == 2
        await r.call("POST", "/sessions", json={}, status=507)
        rows = await r.call("GET", f"/sessions/{r.session.id}/trajectories")
        assert [row["is_discarded"] for row in rows] == [False, True]
        folder.limit = limit
        monkeypatch.undo()
        again = await r.chat([USER, first, USER])
        assert again["choices"][0]["message"]["content"] == "Two." and len(r.prompts) == 2
        async with restarted(tmp_path / "state", r.session) as later:
            assert alike(later.session) == alike(r.session)
            assert [t.is_discarded for t in later.session.trajectories] == [False]
