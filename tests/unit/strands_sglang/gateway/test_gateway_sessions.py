"""Sessions of the gateway: who is let in, what is repeated or sampled, what is counted, and what is exported."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import gzip
import json
import os
import queue
import random
import signal
import socket
import struct
import sys
import urllib.request
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from strands_sglang.__main__ import main as command_line
from strands_sglang.commands import gateway as command
from strands_sglang.conversation.history_reader import HistoryReader
from strands_sglang.exceptions import SGLangThrottledError
from strands_sglang.gateway import Gateway, session_log
from strands_sglang.gateway.canonical import Canon, MessagePlacement
from strands_sglang.gateway.delivery import Connection
from strands_sglang.gateway.dialects import anthropic_messages
from strands_sglang.gateway.session_table import SessionTable
from strands_sglang.trajectory import Call, Message, Result, history
from strands_sglang.trajectory.history import Follower
from tests.provider_support import Replay, completion, tokenizer
from tests.unit.gateway_support import (
    ANTHROPIC_TOOLS,
    CALL,
    CHAT_TOOLS,
    Rig,
    assert_prefix,
    rig,
    slow,
    trained_once,
    until,
)  # fmt: skip

USER = {"role": "user", "content": "Hi"}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


# ---- histories ------------------------------------------------


async def test_a_request_looks_its_history_up_once_and_handles_its_new_messages_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Counted in the tenth request as in the third, with a log: read, arranged, followed, written down."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return plain(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    for owner, name in (
        (HistoryReader, "read_items"), (anthropic_messages, "_read_message"), (Canon, "_add_reply"),
        (Canon, "_add_user"), (history, "digest_after"), (Follower, "_turns_at"), (session_log, "to_json"),
    ):  # fmt: skip
        count(owner, name)
    async with rig(Replay([completion(f"So.{CALL}")], cycle=True), state=tmp_path) as r:
        messages: list[Any] = [USER]
        for number in range(10):
            counts.clear()
            content = (await r.messages(messages, tools=ANTHROPIC_TOOLS))["content"]
            result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "3"}
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
            if number == 2:
                third = counts.copy()
        assert_prefix(r)
    assert counts == third
    assert (counts["read_items"], counts["_read_message"]) == (1, 2)
    assert (counts["_add_reply"], counts["_add_user"], counts["_turns_at"]) == (1, 1, 1)


# ---- repeated requests ------------------------------------------------


async def test_a_retry_gets_the_answer_again_unless_two_could_be_meant() -> None:
    async with rig([completion(CALL), completion("Two."), completion("Three.")]) as r:
        first = await r.chat([USER], tools=CHAT_TOOLS, headers={"x-stainless-retry-count": "0"})
        retried = {"x-stainless-retry-count": "1"}
        again = await r.chat([USER], tools=CHAT_TOOLS, headers=retried)  # ids of calls included
        assert again == first and first["choices"][0]["message"]["tool_calls"] and len(r.prompts) == 1
        await r.chat([USER], tools=CHAT_TOOLS)
        assert (r.session.counters.replayed, r.session.counters.siblings) == (1, 1)
        again = await r.chat([USER], tools=CHAT_TOOLS, headers=retried)
        assert again["choices"][0]["message"]["content"] == "Three."
        assert [t.is_discarded for t in r.session.trajectories] == [False] * 3 and trained_once(r.session)


async def test_a_gateway_serves_on_event_loops_that_are_not_asyncios(monkeypatch: pytest.MonkeyPatch) -> None:
    class Foreign:
        """A transport of none of asyncio's classes, as uvloop's are."""

        def __init__(self, transport: asyncio.Transport) -> None:
            self._transport = transport

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

    made, limits = Connection.connection_made, []

    def connection_made(self: Connection, transport: asyncio.Transport) -> None:
        made(self, Foreign(transport))
        limits.append(transport.get_write_buffer_limits())

    monkeypatch.setattr(Connection, "connection_made", connection_made)
    async with rig([completion("Hello.")]) as r:
        await r.chat([USER])
        assert limits == [(0, 0)]


async def test_a_client_that_goes_away_aborts_upstream() -> None:
    async with rig([slow("Never.", 30), completion("Hello.")]) as r:
        asking = asyncio.create_task(r.chat([USER]))
        await until(lambda: r.prompts)
        asking.cancel()
        await until(lambda: r.client.cancelled)
        assert not r.session.conversation.forest.turns
        await r.chat([USER])
        assert r.session.counters.sampled == 1


async def test_a_slow_stream_is_pinged_and_an_early_error_keeps_its_status() -> None:
    async with rig([slow("Hello.", 0.15)], hold=0.02, ping_interval=0.02) as r:
        url, body = f"{r.session.anthropic_url}/v1/messages", {"model": "m", "messages": [USER], "stream": True}
        async with r.http.post(url, json=body, headers=r.headers) as response:
            text = await response.text()
        assert text.startswith("event: ping") and text.count("event: ping") > 1
        assert text.rstrip().endswith('data: {"type":"message_stop"}')
    async with rig([SGLangThrottledError("busy", status=503)]) as r:
        url = f"{r.session.anthropic_url}/v1/messages"
        async with r.http.post(url, json=body, headers=r.headers) as response:
            assert response.status == 503 and response.headers["retry-after"] == "1"
            assert (await response.json())["error"]["type"] == "overloaded_error"


# ---- histories ------------------------------------------------


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("histories", "roots"),
    [
        ([[USER], [USER, assistant("One!"), USER]], {"first": 1, "edited": 1}),
        ([[USER], [USER, said("You made no call.")]], {"first": 2}),
        (
            [[USER], [USER, assistant("One."), said("Sum up.")], [said("Sum."), assistant("One."), USER]],
            {"first": 1, "history": 1},
        ),
    ],
    ids=["one character edited", "reply left out", "compaction"],
)
async def test_a_changed_history_is_a_new_root_and_counted(histories: list[Any], roots: dict[str, int]) -> None:
    async with rig([completion("One."), completion("Two."), completion("Three.")]) as r:
        for history in histories:
            await r.messages(history)
        assert r.session.counters.roots == roots and trained_once(r.session)
        assert len(r.session.trajectories) == 2 and r.session.counters.edited == roots.get("edited", 0)


async def test_a_removed_call_is_an_edit() -> None:
    async with rig([completion(f"Adding.{CALL}{CALL}"), completion("3.")]) as r:
        message = (await r.chat([USER], tools=CHAT_TOOLS))["choices"][0]["message"]
        message["tool_calls"].pop()
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "3"}
        await r.chat([USER, message, result], tools=CHAT_TOOLS)
        assert r.session.counters.edited == 1


@pytest.mark.parametrize("change", ["whitespace", "arguments", "reasoning", "extras", "parts"])
async def test_what_clients_do_to_a_reply_does_not_break_it(change: str) -> None:
    async with rig([completion(f"<think>\nHm.\n</think>\n\nAdding.\n{CALL}"), completion("3.")]) as r:
        message = (await r.chat([USER], tools=CHAT_TOOLS))["choices"][0]["message"]
        call = message["tool_calls"][0]
        if change == "whitespace":
            message["content"] = f"\n  {message['content']} \n"
        elif change == "arguments":
            call["function"]["arguments"] = '{"b" :  2.0 , "a": 1}'
        elif change == "reasoning":
            del message["reasoning_content"]
        elif change == "extras":
            message |= {"provider_specific_fields": {"refusal": None}, "annotations": [], "audio": None}
        else:
            message["content"] = [{"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "3"}
        await r.chat([USER, message, result], tools=CHAT_TOOLS)
        assert_prefix(r)
        counters = r.session.counters
        assert (counters.extension_rate, counters.ids_rewritten) == (1.0, 0)
        assert counters.reasoning_dropped == (change == "reasoning")


async def test_parallel_results_count_in_any_order_and_number_of_messages() -> None:
    async with rig([completion(f"{CALL}{CALL}"), completion("3 and 4."), completion("Bye.")]) as r:
        first = await r.messages([USER], tools=ANTHROPIC_TOOLS)
        calls = first["content"]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": text}
            for call, text in zip(calls, "34", strict=True)
        ]
        history = [USER, {"role": "assistant", "content": calls}]
        await r.messages([*history, {"role": "user", "content": results[::-1]}], tools=ANTHROPIC_TOOLS)
        assert tokenizer().decode(r.prompts[1]).index("3</tool") < tokenizer().decode(r.prompts[1]).index("4</tool")
        apart = [{"role": "user", "content": [result]} for result in results]
        await r.messages([*history, *apart, assistant("3 and 4."), USER], tools=ANTHROPIC_TOOLS)
        assert_prefix(r)


async def test_a_client_that_rewrites_call_ids_is_recognised_by_position() -> None:
    async with rig([completion(f"{CALL}{CALL}"), completion("3.")]) as r:
        message = (await r.chat([USER], tools=CHAT_TOOLS))["choices"][0]["message"]
        results = []
        for index, call in enumerate(message["tool_calls"]):
            call["id"] = f"abcdefgh{index}"
            results.append({"role": "tool", "tool_call_id": call["id"], "content": str(index)})
        await r.chat([USER, message, *results], tools=CHAT_TOOLS)
        assert_prefix(r)
        assert r.session.counters.extension_rate == 1.0 and r.session.counters.ids_rewritten == 1


async def test_billing_lines_are_taken_out_by_a_named_rule() -> None:
    def system(version: str) -> list[dict[str, str]]:
        line = f"x-anthropic-billing-header: cc_version=2.1.330.{version}; cch={version};"
        return [{"type": "text", "text": line}, {"type": "text", "text": "You are an agent."}]

    async with rig([completion("Hello."), completion("Again.")]) as r:
        await r.messages([USER], system=system("a1"))
        await r.messages([USER, assistant("Hello."), USER], system=system("b2"))
        assert_prefix(r)
        assert r.session.counters.volatile == {"claude-code-billing": 2}
        assert "cch" not in tokenizer().decode(r.prompts[0])


STRICT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system must be first') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


async def test_a_system_message_in_the_middle_is_shown_as_a_reminder_where_the_template_refuses_it() -> None:
    async with rig([completion("Hello.")] * 12, chat_template=STRICT_TEMPLATE) as r:
        history: list[Any] = []
        for turn in range(12):
            history += [{"role": "user", "content": f"Step {turn}"}, {"role": "system", "content": f"Note {turn}"}]
            await r.messages(history)
            history.append(assistant("Hello."))
        assert_prefix(r)
        text = tokenizer().decode(r.prompts[-1])
        assert text.count("<system-reminder>\nNote ") == 12 and "<|im_start|>system" not in text


async def test_a_system_message_in_the_middle_stays_where_the_template_prints_it() -> None:
    async with rig([completion("Hello.")]) as r:
        await r.messages([USER, {"role": "system", "content": "Note"}])
        assert "<|im_start|>system\nNote<|im_end|>" in tokenizer().decode(r.prompts[0])


def test_a_reminder_in_a_tool_result_leaves_the_history_before_it_as_it_was() -> None:
    canon = Canon(placement=MessagePlacement(lambda chat: ""))
    call = Message(role="assistant", calls=(Call("a", "add", {}),))
    before = canon.arrange([call, Message(role="user", results=(Result("a", ("3",)),))])
    held = copy.deepcopy(before.history.messages)
    after = canon.arrange([Message(role="system", parts=("Note",))], before)
    assert "Note" in str(after.history.messages) and before.history.messages == held


async def test_a_receipt_tells_equal_siblings_apart_and_a_forged_one_is_ignored() -> None:
    same = "<think>\nHm.\n</think>\n\nHello."
    async with rig([completion(same), completion(same, split=True), *[completion("Again.")] * 2]) as r:
        first = await r.messages([USER])
        await r.messages([USER])
        thinking, text = first["content"]
        forged = {**thinking, "signature": "A" + thinking["signature"][1:][::-1]}
        for signed, receipts in ((thinking, 1), (forged, 1)):
            await r.messages([USER, {"role": "assistant", "content": [signed, text]}, USER])
            assert r.session.counters.receipts == receipts
        held = [*r.prompts[0], *r.sampled()[0]]
        assert r.prompts[2][: len(held)] == held
        assert r.session.counters.extension_rate == 1.0


async def test_sub_agents_with_one_prompt_at_once_have_trees_of_their_own() -> None:
    async with rig(lambda *_: completion("Done."), join_equal=True) as r:

        async def run(agent: str | None) -> None:
            headers = {} if agent is None else {"x-claude-code-agent-id": agent}
            history: list[Any] = [USER]
            for _ in range(3):
                await r.messages(history, headers=headers)
                history += [assistant("Done."), {"role": "user", "content": "Next"}]

        await asyncio.gather(run(None), run("a1"), run("a2"))
        assert sorted(str(t.agent_name) for t in r.session.trajectories) == ["None", "a1", "a2"]
        assert r.session.counters.extension_rate == 1.0 and trained_once(r.session)


# ---- who is let in ------------------------------------------------


async def test_keys_open_their_own_session_only() -> None:
    async with rig([completion("Hello.")] * 2) as r:
        other = r.gateway.open()
        path = "/v1/chat/completions"
        for key, status in ((other.key, 403), ("wrong", 401), ("", 401)):
            await r.post(path, {"messages": [USER]}, headers={"Authorization": f"Bearer {key}"}, status=status)
        await r.call("POST", path, json={"messages": [USER]}, headers={"x-api-key": r.session.key})
        assert r.session.counters.sampled == 1 and not other.counters.requests


async def test_session_routes_need_the_admin_key_where_one_is_set() -> None:
    async with rig([completion("Hello.")], admin_key="root") as r:
        await r.call("POST", "/sessions", headers=r.headers, status=401)
        body = {"labels": {"task": 1}, "sampling": {"temperature": 0.5}, "limits": {"max_sampled_tokens": 100}}
        url = r.gateway.url.replace("127.0.0.1", "localhost")  # as the name of a service before 0.0.0.0
        async with r.http.post(f"{url}/sessions", json=body, headers={"Authorization": "Bearer root"}) as response:
            made = await response.json()
        assert response.status == 201 and r.gateway.sessions[made["id"]].key == made["key"]
        address = f"{url}/s/{made['id']}"  # by which the caller reaches the gateway
        assert made["base_urls"] == {"openai": f"{address}/v1", "anthropic": address, "google": address}


async def test_a_gateway_without_admin_routes_serves_its_open_session_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "gw")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    client = Replay([completion("Hello.")])
    async with (
        Gateway(client=client, tokenizer=tokenizer(), listener=listener, admin=False) as gateway,
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as http,
    ):
        session = gateway.open(limits={"max_requests": 1})
        headers, name = {"Authorization": f"Bearer {session.key}"}, session.id
        for method, route in (
            ("POST", "/sessions"), ("GET", "/sessions"), ("GET", f"/sessions/{name}"), ("DELETE", f"/sessions/{name}"),
            ("GET", f"/sessions/{name}/trajectories"), ("POST", f"/sessions/{name}/close"),
        ):  # fmt: skip
            async with http.request(method, gateway.url + route, headers=headers, json={}) as response:
                assert response.status == 404
        for content, status in (("Hi", 200), ("More", 400)):
            body = {"messages": [{"role": "user", "content": content}]}
            async with http.post(f"{session.base_url}/chat/completions", headers=headers, json=body) as response:
                assert response.status == status


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"admin": False, "admin_key": "k"}, "session routes"),
        ({"admin": False, "auto_sessions": True}, "session routes"), ({"host": "0.0.0.0"}, "admin_key"),
    ],
)  # fmt: skip
def test_a_gateway_refuses_options_that_contradict_each_other(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Gateway(client=Replay([]), tokenizer=tokenizer(), **options)


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}],
)
async def test_web_pages_and_foreign_hosts_are_kept_away(headers: dict[str, str]) -> None:
    async with rig([]) as r:
        await r.post("/v1/chat/completions", {"messages": [USER]}, headers=headers, status=403)
        await r.call("POST", "/sessions", headers=headers, status=403)


async def test_auto_sessions_are_named_by_the_key() -> None:
    async with rig([completion("Hello.")], auto_sessions=True) as r:
        headers = {"Authorization": "Bearer mine"}
        await r.call("POST", "/v1/chat/completions", json={"messages": [USER]}, headers=headers)
        assert r.gateway.sessions["mine"].counters.sampled == 1


async def test_bodies_are_bounded_and_packed_ones_unpacked() -> None:
    async with rig([completion("Hello.")] * 4, max_body=4000) as r:
        packed = gzip.compress(json.dumps({"messages": [USER]}).encode())
        bomb = gzip.compress(b'{"messages": "' + b"x" * 10**6 + b'"}')
        for data, encoding, kind, status in (
            (packed, "gzip", "application/json", 200),
            (bomb, "gzip", "application/json", 413),
            (b"(\xb5/\xfd", "snappy", "application/json", 415),
            (b"(\xb5/\xfd", "zstd", "application/json", 415),
            (packed[:-9], "gzip", "application/json", 400),
            (packed[:9] + bytes(9) + packed[18:], "GZIP", "application/json", 400),
            (gzip.compress(packed), "gzip", "application/json", 400),
            (zlib.compress(gzip.decompress(packed)), "deflate", "application/json", 200),
            (zlib.compress(gzip.decompress(packed), wbits=-15), "deflate", "application/json", 200),
            (packed + gzip.compress(b" "), "gzip", "application/json", 200),
            (b"", "gzip", "application/json", 400),
            (b"{", "identity", "application/json", 400),
            (b"{}", "identity", "text/plain", 415),
            (b"not packed", "gzip", "application/json", 400),
        ):
            headers = {**r.headers, "Content-Encoding": encoding, "Content-Type": kind}
            told = await r.call("POST", "/v1/chat/completions", data=data, headers=headers, status=status)
            assert status == 200 or told["error"]["message"]
            google, headers = "/v1beta/models/m:generateContent", {**headers, "x-goog-api-key": r.session.key}
            if status != 200:
                told = await r.call("POST", google, data=data, headers=headers, status=status)
                assert told["error"]["code"] == status  # in the dialect's words


@pytest.mark.parametrize(
    ("body", "closes"), [(gzip.compress(b"{}", mtime=0)[:-4], False), (b"x" * 9000, True)], ids=["cut", "not packed"]
)
async def test_a_connection_closes_only_where_that_is_announced(body: bytes, closes: bool) -> None:
    async with rig([], max_body=4000) as r:
        encoding = "identity" if closes else "gzip"
        head = (
            f"POST /s/{r.session.id}/v1/messages HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {r.session.key}\r\nContent-Type: application/json\r\n"
            f"Content-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", int(r.gateway.url.rpartition(":")[2]))
        for _ in range(1 if closes else 2):
            writer.write(head.encode() + body)
            told = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert told.startswith(b"http/1.1 4") and (b"connection: close" in told) == closes
            await reader.readexactly(int(told.partition(b"content-length: ")[2].partition(b"\r")[0]))
        writer.close()


async def test_system_messages_alone_are_answered_and_nothing_at_all_is_called_that() -> None:
    async with rig([completion("Hello."), completion("More.")]) as r:
        system = {"role": "system", "content": "Greet the user."}
        said = await r.chat([system])
        await r.chat([system, said["choices"][0]["message"], USER])
        assert_prefix(r)
        told = await r.chat([], status=400)
        assert told["error"]["message"] == "there is no message to answer; send one"
        told = await r.chat([USER, assistant("Hel")], status=400)
        assert "never prefilled" in told["error"]["message"]


# ---- life ------------------------------------------------


async def test_a_closed_session_refuses_requests_and_keeps_its_trajectories_until_it_is_deleted() -> None:
    async with rig([slow("Hello.")]) as r:
        asking = asyncio.create_task(r.chat([USER]))
        await until(lambda: r.prompts)
        closed = await r.call("POST", f"/sessions/{r.session.id}/close")
        assert (await asking)["choices"] and closed["closed"] and closed["counters"]["sampled"] == 1
        assert (await r.chat([USER], status=409))["error"]["code"] == "session_closed"
        assert len(r.session.trajectories) == 1
        await r.call("DELETE", f"/sessions/{r.session.id}")
        await r.call("GET", f"/sessions/{r.session.id}", status=404)
        assert (await r.chat([USER], status=409))["error"]["message"] == "the session of this key is closed"


async def test_idle_sessions_are_sealed_not_dropped() -> None:
    async with rig([], session_ttl=0.02) as r:
        await until(lambda: r.session.is_sealed)
        assert r.session.id in r.gateway.sessions


async def test_requests_that_sample_nothing_are_uses_of_a_session() -> None:
    async with rig([]) as r:
        for path, status in (("/v1/messages/count_tokens", 200), ("/v1/messages", 400)):
            r.session.last_used = before = r.session.last_used - 3600
            await r.post(path, {"model": "m", "messages": [USER] if status == 200 else []}, status=status)
            assert r.session.last_used > before + 3000


async def test_a_session_that_samples_is_not_idle_and_holds_up_no_other() -> None:
    async with rig([slow("Hello.", 0.3)], session_ttl=0.02) as r:
        r.session.last_used += 3600  # not before the first request
        asking = asyncio.create_task(r.chat([USER]))
        await until(lambda: r.prompts)
        other = r.gateway.open()
        await until(lambda: other.is_sealed)
        assert not r.session.is_sealed and not asking.done()
        assert (await asking)["choices"]
        await until(lambda: r.session.is_sealed)


async def test_a_key_opens_one_session_at_a_time_and_a_new_one_after_it() -> None:
    async with rig([completion("Hello.")]) as r:
        key = r.session.key
        with pytest.raises(ValueError, match="the key belongs to the open session"):
            r.gateway.open(key=key)
        await r.call("DELETE", f"/sessions/{r.session.id}")
        headers = {"Authorization": f"Bearer {key}"}
        path = "/v1/chat/completions"
        await r.call("POST", path, json={"messages": [USER]}, headers=headers, status=409)
        second = r.gateway.open(key=key)
        await r.call("POST", path, json={"messages": [USER]}, headers=headers)
        assert second.counters.sampled == 1
        await second.close()
        third = r.gateway.open(key=key)  # a sealed one gives its key away
        await r.gateway.delete(second)
        assert await r.call("POST", path, json={}, headers=headers, status=400)
        assert third.is_idle


async def test_an_automatic_session_that_was_deleted_is_made_anew() -> None:
    async with rig([completion("Hello.")] * 2, auto_sessions=True) as r:
        for _ in range(2):
            await r.call(
                "POST", "/v1/chat/completions", json={"messages": [USER]}, headers={"Authorization": "Bearer me"}
            )
            await r.call("DELETE", "/sessions/me")
        assert len(r.prompts) == 2


async def test_a_session_deleted_in_mid_call_refuses_the_call() -> None:
    async with rig([slow("Never.", 30)]) as r:
        asking = asyncio.create_task(r.chat([USER], status=409))
        await until(lambda: r.prompts)
        await r.call("DELETE", f"/sessions/{r.session.id}")
        await asking


async def test_trajectories_are_exported_as_json() -> None:
    async with rig([completion("Hello."), completion("Bye.")]) as r:
        await r.chat([USER])
        await r.chat([USER, assistant("Hello."), USER])
        (row,) = await r.call("GET", f"/sessions/{r.session.id}/trajectories")
        (held,) = r.session.trajectories
        assert (row["token_ids"], row["loss_mask"], row["logprobs"]) == (held.token_ids, held.loss_mask, held.logprobs)
        assert row["extension_rate"] == 1.0


async def test_counters_are_kept_by_client() -> None:
    async with rig([completion("Hello.")] * 2) as r:
        await r.chat([USER], headers={"User-Agent": "claude-cli/2.1.330 (external)"})
        await r.chat([USER, USER], headers={"User-Agent": "codex_exec/0.169.0"})
        shown = await r.call("GET", f"/sessions/{r.session.id}")
        assert {name: c["requests"] for name, c in shown["clients"].items()} == {"claude-cli": 1, "codex_exec": 1}
        assert shown["counters"]["roots"] == {"first": 2}


async def test_the_greeting_of_claude_code_is_answered() -> None:
    async with rig([]) as r, r.http.head(f"{r.session.anthropic_url}/api/hello") as response:
        assert response.status == 200


@asynccontextmanager
async def raw_request(r: Rig, path: str, body: dict[str, Any]) -> AsyncIterator[socket.socket]:
    """A socket of our own on which a request has been sent."""
    loop, data = asyncio.get_running_loop(), json.dumps(body).encode()
    head = (
        f"POST /s/{r.session.id}{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {r.session.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", int(r.gateway.url.rpartition(":")[2])))
        await loop.sock_sendall(sock, head.encode() + data)
        yield sock


async def read_until(sock: socket.socket, end: bytes) -> bytes:
    """Read up to and including `end`, byte by byte, so that everything behind it stays unread."""
    found = b""
    while not found.endswith(end):
        byte = await asyncio.get_running_loop().sock_recv(sock, 1)
        if not byte:
            break
        found += byte
    return found


STREAMED = {
    "/v1/chat/completions": ({"messages": [USER]}, b"data: [DONE]"),
    "/v1/messages": ({"messages": [USER]}, b"event: message_stop"),
    "/v1/responses": ({"input": "Hi"}, b"event: response.completed"),
}


@pytest.mark.parametrize("linger", [False, True])
@pytest.mark.parametrize("path", STREAMED)
async def test_an_answer_read_to_its_terminal_event_is_used_though_the_connection_is_reset(path, linger):
    body, last = STREAMED[path]
    async with rig([completion("Hello.")]) as r:
        async with raw_request(r, path, {"model": "m", "stream": True, **body}) as sock:
            await read_until(sock, last)
            await read_until(sock, b"\n\n")
            if linger:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await asyncio.sleep(0.1)  # a reset may still come
        assert [t.is_discarded for t in r.session.trajectories] == [False]
        assert r.session.counters.undelivered == 0 and trained_once(r.session)


@pytest.mark.parametrize("stream", [False, True], ids=["before the answer", "in mid stream"])
async def test_an_answer_that_its_client_did_not_read_is_owed(stream: bool) -> None:
    async with rig([slow("Hello.", 0.2)]) as r:
        body = {"messages": [USER], "max_tokens": 512, "stream": stream}
        async with raw_request(r, "/v1/messages", body) as sock:
            await until(lambda: r.prompts)
            if stream:
                await asyncio.get_running_loop().sock_recv(sock, 1)
        if not stream:  # what is written to a stream may lie unread on its way
            await until(lambda: r.session.counters.undelivered)
            assert [t.is_discarded for t in r.session.trajectories] == [True]
        await asyncio.sleep(0.05)
        answer = await r.messages([USER])
        assert answer["content"][0]["text"] == "Hello." and len(r.prompts) == 1
        assert r.session.counters.replayed == 1
        assert [t.is_discarded for t in r.session.trajectories] == [False]


@pytest.mark.parametrize("path", STREAMED)
async def test_a_stream_is_used_once_its_last_event_is_flushed_and_what_is_cut_is_counted(path: str) -> None:
    body, _ = STREAMED[path]
    for text, flushed in (("Hello.", True), ("a" * 4 * 10**5, False)):
        async with rig([completion(text)], context_window_limit=10**7) as r:
            r.gateway._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            async with raw_request(r, path, {"model": "m", "stream": True, **body}) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                await read_until(sock, b"\n\n")
            await until(lambda r=r: r.session.counters.cut or r.session.counters.undelivered)
            counters = r.session.counters
            assert (counters.cut, counters.undelivered) == (int(flushed), int(not flushed))
            assert [t.is_discarded for t in r.session.trajectories] == [not flushed]


async def test_a_client_that_closes_its_sending_side_has_gone_away() -> None:
    async with rig([slow("Hello.", 0.4)]) as r:
        async with raw_request(r, "/v1/messages", {"messages": [USER], "max_tokens": 512}) as sock:
            await until(lambda: r.prompts)
            sock.shutdown(socket.SHUT_WR)
            assert await read_until(sock, b"nothing ends like this") == b""
        assert (await r.messages([USER]))["content"][0]["text"] == "Hello." and len(r.prompts) == 1


async def test_a_quick_repeat_of_a_broken_off_request_joins_the_call_in_flight() -> None:
    async with rig([slow("Hello.", 0.4)]) as r:
        async with raw_request(r, "/v1/messages", {"messages": [USER], "max_tokens": 512}):
            await until(lambda: r.prompts)
        answer = await r.messages([USER])
        assert answer["content"][0]["text"] == "Hello." and len(r.prompts) == 1
        counters, (trajectory,) = r.session.counters, r.session.trajectories
        assert (counters.joined, counters.sampled, counters.replayed, counters.siblings) == (1, 1, 0, 0)
        assert not r.client.cancelled and not trajectory.is_discarded
        assert len(r.session.conversation.forest.turns) == 1 and trained_once(r.session)


async def test_a_request_broken_off_before_it_is_served_samples_nothing() -> None:
    async with rig([slow("Hello.", 0.4)]) as r:
        async with raw_request(r, "/v1/messages", {"messages": [USER], "max_tokens": 512}):
            pass
        answer = await r.messages([USER])
        assert answer["content"][0]["text"] == "Hello." and len(r.prompts) == 1 and trained_once(r.session)


async def test_a_broken_off_request_that_then_fails_is_sampled_when_it_is_repeated() -> None:
    async def fail(*_: Any) -> Any:
        await asyncio.sleep(0.2)
        raise SGLangThrottledError("busy", status=503)

    async with rig([fail, completion("Hello.")]) as r:
        async with raw_request(r, "/v1/messages", {"messages": [USER], "max_tokens": 512}):
            await until(lambda: r.prompts)
        await until(lambda: not r.session.to_json()["in_flight"])
        answer = await r.messages([USER])
        assert answer["content"][0]["text"] == "Hello." and len(r.prompts) == 2


async def test_a_retry_does_not_get_an_answer_that_is_being_aborted() -> None:
    async def abort_slowly(*_: Any) -> Any:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)  # the server is told
            raise

    async with rig([abort_slowly, completion("Hello.")]) as r:
        asking = asyncio.create_task(r.chat([USER]))
        await until(lambda: r.prompts)
        asking.cancel()
        await until(lambda: any(task.cancelling() for task in r.session._tasks))
        answer = await r.chat([USER], headers={"x-stainless-retry-count": "1"})
        assert answer["choices"][0]["message"]["content"] == "Hello." and len(r.prompts) == 2


async def test_one_repeat_takes_over_a_broken_off_request_and_further_ones_are_siblings() -> None:
    async with rig([slow("Cut.", 0.4), completion("Sibling."), completion("Sibling.")]) as r:
        async with raw_request(r, "/v1/messages", {"messages": [USER], "max_tokens": 512}):
            await until(lambda: r.prompts)
        answers = await asyncio.gather(*(r.messages([USER]) for _ in range(3)))
        assert sorted(answer["content"][0]["text"] for answer in answers) == ["Cut.", "Sibling.", "Sibling."]
        assert r.session.counters.joined == 1 and trained_once(r.session)


async def test_the_history_is_that_of_the_agent_that_began_whatever_its_name() -> None:
    async with rig([completion("One."), completion("Two."), completion("Three.")]) as r:
        for agent, content in (("/root", "Task"), ("/root/helper", "Part"), ("/root", "More")):
            metadata = json.dumps({"agent_name": agent})
            await r.chat([{"role": "user", "content": content}], headers={"x-codex-turn-metadata": metadata})
        assert r.session.history == [
            {"role": "user", "content": [{"text": "More"}]}, {"role": "assistant", "content": [{"text": "Three."}]},
        ]  # fmt: skip
        helper = r.session.trajectories[1]
        assert (helper.agent_name, helper.role, helper.parent) == ("/root/helper", "subagent", "/root")
        assert {path.role for path in r.session.trajectories} == {"main", "subagent"}


async def test_equal_requests_in_flight_share_a_sample_but_no_answer() -> None:
    async with rig([slow("Hello.", 0.3)]) as r:
        refused = await r.call("POST", "/sessions", json={"join_equal": "yes"}, status=400)
        assert "join_equal must be true or false" in str(refused)
        made = await r.call("POST", "/sessions", json={"join_equal": True}, status=201)
        r.session = r.gateway.sessions[made["id"]]
        gone = asyncio.create_task(r.chat([USER], max_tokens=512))
        await until(lambda: r.prompts)
        in_parts = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
        asking = asyncio.gather(
            r.chat([in_parts], model="one", max_tokens=512),
            r.chat([USER], model="two", max_tokens=512, return_token_ids=True, logprobs=True),
            r.messages([USER], model="three"),
        )
        await until(lambda: r.session.counters.joined == 3)
        gone.cancel()  # and leaves the others their answer
        plain, detailed, other = await asking
        assert len(r.prompts) == 1 and not r.client.cancelled
        assert (plain["model"], detailed["model"], other["model"]) == ("one", "two", "three")
        assert "prompt_token_ids" not in plain and plain["choices"][0]["logprobs"] is None
        assert detailed["prompt_token_ids"] == r.prompts[0]
        assert detailed["choices"][0]["logprobs"]["content"]
        assert plain["choices"][0]["message"] == detailed["choices"][0]["message"]


async def test_many_sessions_through_faults_grow_the_trees_of_a_run_without_any() -> None:
    async def run(faulty: bool) -> list[list[Any]]:
        chance = random.Random(7)

        def policy(ids: list[int], _: Any) -> Any:
            if faulty and chance.random() < 0.2:
                return SGLangThrottledError("busy", status=503)
            reply = completion(f"Reply {zlib.crc32(bytes(i % 256 for i in ids)) % 1000}.")
            return dataclasses.replace(reply, delay=0.004)

        async with Gateway(client=Replay([policy], cycle=True), tokenizer=tokenizer()) as gateway:
            sessions = [gateway.open() for _ in range(12)]

            async def client(number: int, http: aiohttp.ClientSession) -> None:
                session, history = sessions[number], [{"role": "user", "content": f"Task {number}"}]
                headers = {"x-api-key": session.key}
                while len(history) < 10:
                    timeout = 0.003 if faulty and chance.random() < 0.2 else None
                    body = {"model": "m", "messages": history}
                    try:
                        async with asyncio.timeout(timeout):
                            url = f"{session.anthropic_url}/v1/messages"
                            async with http.post(url, json=body, headers=headers) as response:
                                if response.status == 503:
                                    continue
                                assert response.status == 200, await response.text()
                                answer = await response.json()
                    except TimeoutError:  # the socket may have had the answer already: say so, as real clients do
                        headers["x-stainless-retry-count"] = "1"
                        continue
                    headers.pop("x-stainless-retry-count", None)
                    history += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "On"}]

            async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
                for number in range(12):
                    group.create_task(client(number, http))
            for session in sessions:
                await session.close()
                assert trained_once(session)
            return [[t.token_ids for t in session.trajectories if not t.is_discarded] for session in sessions]

    assert await run(faulty=True) == await run(faulty=False)


@pytest.mark.parametrize("name", ["a/b", ".", "..", "", " ", "a?b", "ä", "x" * 129])
async def test_a_name_that_no_address_can_hold_is_refused(name: str) -> None:
    async with rig([completion("Hi.")]) as r:
        if name:  # without one it is random
            with pytest.raises(ValueError, match="cannot stand in an address: give 1 to 128 letters"):
                r.gateway.open(name=name)
        session = r.gateway.open(name=".a..~_-9")
        shown = await r.call("GET", f"/sessions/{session.id}")
        assert shown["id"] == ".a..~_-9"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_command_complains_of_a_used_port_before_it_loads_anything(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def load(*_: Any) -> Any:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(command, "_model", load)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status = command_line(["gateway", "--model", "tiny", "--host", host, "--port", port])
    complaint = capsys.readouterr().err
    assert status == 1 and "in use" in complaint and "--port 0 takes a free one" in complaint


def test_no_connection_is_taken_before_it_can_be_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client that is let in waits as long as its time limit says; one that is refused knows at once."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def load(*_: Any) -> Any:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        raise ValueError("the model was asked for")

    monkeypatch.setattr(command, "_model", load)
    assert command_line(["gateway", "--model", "tiny", "--port", str(port)]) == 2
    assert "the model was asked for" in capsys.readouterr().err


async def test_a_gateway_that_takes_sessions_up_takes_no_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def restore(table: SessionTable) -> None:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2])))
        await as_it_is(table)

    as_it_is = SessionTable.restore
    monkeypatch.setattr(SessionTable, "restore", restore)
    gateway = Gateway(client=Replay([]), tokenizer=tokenizer(), state=tmp_path / "state")
    async with gateway, aiohttp.ClientSession() as http, http.get(f"{gateway.url}/health") as response:
        assert response.status == 200


def test_the_command_prints_its_address_first_and_serves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    lines: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=lines.put, flush=lambda: None))

    def use() -> tuple[str, Any]:
        try:
            url = lines.get().removeprefix("listening on ").partition(" ")[0]
            with urllib.request.urlopen(urllib.request.Request(f"{url}/sessions", method="POST")) as response:
                return url, json.load(response)
        finally:
            if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
                os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor() as pool:
        using = pool.submit(use)
        assert command_line(["gateway", "--model", "tiny"]) == 0
        url, made = using.result()
    assert url.startswith("http://127.0.0.1:") and made["base_urls"]["anthropic"] == f"{url}/s/{made['id']}"
    assert capsys.readouterr().err.startswith("1 session with 0 sampled tokens end here")
