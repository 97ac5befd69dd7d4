"""Google's dialect over HTTP: answers, streams, results without ids, schemas, keys in the address."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from strands_sglang.gateway.canonical import Readings
from strands_sglang.gateway.dialects import GOOGLE
from tests.provider_support import completion
from tests.unit.gateway_support import CALL, GOOGLE_TOOLS, Rig, assert_prefix, rig, trained_once

PATH = "/v1beta/models/policy:generateContent"
STREAM = "/v1beta/models/policy:streamGenerateContent?alt=sse"
THOUGHT = "<think>\nLet me add.\n</think>\n\nI will add."
USER = {"role": "user", "parts": [{"text": "1+2?"}]}


def parts_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of an answer's candidate."""
    (candidate,) = answer["candidates"]
    parts: list[dict[str, Any]] = candidate["content"]["parts"]
    return parts


def results(*values: Any, **more: Any) -> dict[str, Any]:
    """A content with results of `add` without ids."""
    return {
        "role": "user",
        "parts": [{"functionResponse": {"name": "add", "response": {"output": value}, **more}} for value in values],
    }


async def ask(r: Rig, *contents: Any, status: int = 200, **more: Any) -> Any:
    """The answer to a history."""
    return await r.post(PATH, {"contents": list(contents), "tools": GOOGLE_TOOLS, **more}, status=status)


async def test_a_tool_round_extends_and_the_signature_is_the_receipt() -> None:
    said = completion(f"{THOUGHT}\n{CALL}{CALL}", cached=3)
    async with rig([said, completion("3 and 4."), said]) as r:
        first = await ask(r, USER)
        thought, text, *calls = parts_of(first)
        assert thought == {"text": "Let me add.", "thought": True} and text == {"text": "I will add."}
        assert [call["functionCall"]["args"] for call in calls] == [{"a": 1, "b": 2}] * 2
        assert [part for part in parts_of(first) if "thoughtSignature" in part] == calls[:1]
        assert first["candidates"][0]["finishReason"] == "STOP"
        usage = first["usageMetadata"]
        assert (usage["promptTokenCount"], usage["cachedContentTokenCount"]) == (len(r.prompts[0]), 3)
        assert usage["candidatesTokenCount"] + usage["thoughtsTokenCount"] == len(r.sampled()[0])
        second = await ask(r, USER, first["candidates"][0]["content"], results("3", "4"))
        assert parts_of(second)[0]["text"] == "3 and 4."
        assert_prefix(r)
        shown = r.gateway.tokenizer.decode(r.prompts[1])
        assert shown.index("<tool_response>3") < shown.index("<tool_response>4")
        assert r.session.counters.receipts == 1 and r.session.counters.extension_rate == 1.0
        (event,) = await r.events(STREAM, {"contents": [USER], "tools": GOOGLE_TOOLS})
        assert [sorted(part) for part in parts_of(event)] == [sorted(part) for part in parts_of(first)]
        assert trained_once(r.session)
        refused = await r.post(STREAM.partition("?")[0], {"contents": [USER]}, status=400)
        assert "?alt=sse" in refused["error"]["message"]


def without(value: Any, name: str) -> Any:
    """The value without one key, wherever it stands."""
    if isinstance(value, dict):
        return {key: without(item, name) for key, item in value.items() if key != name}
    return [without(item, name) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "change",
    [
        lambda content: [{"role": "model", "parts": [part]} for part in content["parts"]],
        lambda content: [{**content, "parts": [part for part in content["parts"] if not part.get("thought")]}],
        lambda content: [without(content, "thoughtSignature")],
        lambda content: [without(content, "id")],
    ],
    ids=["in pieces", "without thoughts", "without signature", "without ids"],
)
async def test_a_reply_in_another_shape_extends(change: Any) -> None:
    async with rig([completion(f"{THOUGHT}\n{CALL}{CALL}"), completion("Done."), completion("Bye.")]) as r:
        reply = change((await ask(r, USER))["candidates"][0]["content"])
        history = [USER, *reply, results("3", "4")]
        answer = (await ask(r, *history))["candidates"][0]["content"]
        await ask(r, *history, answer, {"parts": [{"text": "Bye"}]})
        assert_prefix(r)
        assert r.session.counters.extension_rate == 1.0 and trained_once(r.session)


async def test_results_in_another_order_are_told_apart_by_their_ids() -> None:
    async with rig([completion(f"{CALL}{CALL}"), completion("Done."), completion("Done.")]) as r:
        content = (await ask(r, USER))["candidates"][0]["content"]
        ids = [part["functionCall"]["id"] for part in content["parts"]]
        late, early = results("second", id=ids[1])["parts"], results("first")["parts"]
        await ask(r, USER, content, {"role": "user", "parts": [*late, *early]})
        shown = r.gateway.tokenizer.decode(r.prompts[1])
        assert shown.index("first") < shown.index("second")
        refused = await ask(r, USER, content, results("3", "3", "3"), status=400)
        words = "a functionResponse of 'add' answers no call of this history: send the whole history"
        assert refused["error"]["message"] == words
        made_up = {"role": "user", "parts": [*results("3", id="add-1")["parts"], *results("4", id="add-2")["parts"]]}
        await ask(r, USER, without(content, "id"), made_up)  # gemini-cli's, where calls have none
        assert r.session.counters.extended == 2


async def test_an_error_and_an_image_in_a_result_reach_the_core() -> None:
    async with rig([completion(CALL), completion("Done."), completion("Done.")]) as r:
        content = (await ask(r, USER))["candidates"][0]["content"]
        result = {"functionResponse": {"name": "add", "response": {"error": "no such number"}}}
        await ask(r, USER, content, {"role": "function", "parts": [result]})
        assert "no such number" in r.gateway.tokenizer.decode(r.prompts[1])
        picture = {**result["functionResponse"], "parts": [{"inlineData": {"mimeType": "image/png", "data": "_-8="}}]}
        await ask(r, USER, content, {"parts": [{"functionResponse": picture}]})
        assert "image cannot be shown: this model takes text only" in r.gateway.tokenizer.decode(r.prompts[2])


async def test_googles_schemas_become_json_schemas() -> None:
    own = {
        "type": "OBJECT",
        "properties": {"n": {"type": "INTEGER", "nullable": True}, "l": {"type": "ARRAY", "minItems": "1"}},
        "propertyOrdering": ["n"],
    }
    plain = {
        "type": "object",
        "properties": {"n": {"type": ["integer", "null"]}, "l": {"type": "array", "minItems": 1}},
    }
    async with rig([completion("{}")] * 3) as r:
        for schema in ({"parameters": own}, {"parameters_json_schema": plain}):
            await ask(r, USER, tools=[{"functionDeclarations": [{"name": "f", **schema}]}, {"googleSearch": {}}])
        assert r.prompts[0] == r.prompts[1]
        assert r.session.counters.unknown_tools == {"google_search": 2}
        config = {"responseMimeType": "application/json", "responseSchema": own, "maxOutputTokens": 50}
        await ask(r, USER, generationConfig=config)
        sent = r.client.requests[2].fields["sampling_params"]
        assert sent["max_new_tokens"] == 50 and '"integer"' in sent["json_schema"]


def test_modes_of_tool_calls_are_choices() -> None:
    for mode, choice, ignored in (
        ("NONE", "none", ()), ("ANY", "f", ()), ("VALIDATED", "auto", ("toolConfig.functionCallingConfig.mode",)),
    ):  # fmt: skip
        config = {"functionCallingConfig": {"mode": mode, "allowedFunctionNames": ["f"]}}
        wire = GOOGLE.read({"contents": [USER], "toolConfig": config}, Readings(lambda receipt: None))
        assert (wire.tool_choice, wire.ignored) == (choice, ignored)


async def test_both_spellings_and_any_case_of_a_method_are_served() -> None:
    async with rig([completion("Hi.")] * 2) as r:
        image = {"system_instruction": {"parts": [{"text": "Be brief."}]}, "generation_config": {"top_k": 5.0}}
        for path, body in (
            ("/v1/models/a/b:GENERATECONTENT", {"contents": [USER], **image}),
            (PATH, {"contents": [USER], "systemInstruction": {"parts": [{"text": "Be brief."}]}}),
        ):
            await r.post(path, body)
        assert r.prompts[0] == r.prompts[1]
        counted = await r.post(
            "/v1beta/models/m:counttokens", {"generateContentRequest": {"contents": [USER], **image}}
        )
        assert counted == {"totalTokens": len(r.prompts[0])}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"generationConfig": {"candidateCount": 2}}, "one sample per request"),
        ({"cachedContent": "cachedContents/1"}, "send the whole history"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "application/json"),
        ({"contents": [{"role": "user", "parts": [{"fileData": {"fileUri": "gs://x"}}]}]}, "'file_data' part"),
        ({"contents": [{"role": "model", "parts": [{"text": "Sure,"}]}]}, "never prefilled"),
        ({"contents": {"text": "Hi"}}, "contents[0] has no field 'text': what it says stands in parts"),
        ({"contents": [{"role": "user", "content": "Hi"}]}, "has no field 'content'"),
        ({"system_instruction": {"text": "S"}}, "systemInstruction has no field 'text'"),
        ({"contents": [{"role": "tool", "parts": []}]}, "expected function, user or model"),
    ],
)
async def test_what_cannot_be_served_is_refused_in_googles_words(more: dict[str, Any], words: str) -> None:
    async with rig([]) as r:
        error = (await r.post(PATH, {"contents": [USER], **more}, status=400))["error"]
        assert words in error["message"] and (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")


async def test_a_key_in_the_address_opens_the_session_and_is_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with rig([completion("Hi."), RuntimeError("boom")]) as r:
        key, url, told = r.session.key, r.session.google_url, ""
        body = {"contents": [USER]}
        for path, sent, status in (
            (f"{PATH}?key={key}", body, 200),
            (f"{PATH}?key={key}x", body, 401),
            (f"{PATH}?key={key}", body, 500),
            (f"{PATH}?key={key}", [], 400),
            (f"{STREAM.partition('?')[0]}?key={key}", body, 400),
            (f"/v1beta/models/m:unknown?key={key}", body, 404),
            (f"/v1/chat/completions?key={key}", {"messages": []}, 401),  # Google's alone
        ):
            async with r.http.post(f"{url}{path}", json=sent) as response:
                told += await response.text() + str(response.headers)
                assert response.status == status, (path, told)
        async with r.http.get(f"{r.gateway.url}/sessions?key={key}") as response:
            told += await response.text()
        for line in (
            b"POST %s?key=%s HTTP/9.9",
            b"P\x01ST %s?key=%s HTTP/1.1",
            b"POST %s?key=%s\x00 HTTP/1.1",
            b"POST %s HTTP/1.1\r\nAuthorization: Bearer %s\x00",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(r.gateway.url.rpartition(":")[2]))
            writer.write(line % (PATH.encode(), key.encode()) + b"\r\nHost: localhost\r\n\r\n")
            told += (await reader.read()).decode("latin-1")
            writer.close()
        ours = [record for record in caplog.records if record.name != "asyncio"]
        assert key not in told + "".join(record.getMessage() + str(record.exc_info) for record in ours)


async def test_a_single_object_stands_for_a_list_of_it() -> None:
    async with rig([completion("Hello."), completion("Hello.")]) as r:
        declared = {"functionDeclarations": GOOGLE_TOOLS[0]["functionDeclarations"][0]}
        single = {
            "contents": {"parts": {"text": "Hi"}},
            "system_instruction": {"parts": {"text": "S"}},
            "tools": declared,
        }
        lists = {
            "contents": [{"parts": [{"text": "Hi"}]}], "systemInstruction": {"parts": [{"text": "S"}]},
            "tools": GOOGLE_TOOLS,
        }  # fmt: skip
        for body in (single, lists):
            await r.post(PATH, body)
        assert r.prompts[0] == r.prompts[1]
        await r.post(PATH, {"contents": 5}, status=400)
