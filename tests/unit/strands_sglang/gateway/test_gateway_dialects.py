"""The three dialects of the gateway over HTTP: answers, streams, errors, and exact trajectories under each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strands_sglang.gateway.dialects.reading import read_choice
from strands_sglang.testing import Reply
from tests.provider_support import completion, make, make_agent, tokenizer
from tests.unit.gateway_support import ANTHROPIC_TOOLS, CALL, CHAT_TOOLS, RESPONSES_TOOLS, assert_prefix, rig

USER = {"role": "user", "content": "1+2?"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
THOUGHT = "<think>\nLet me add.\n</think>\n\nI will add."


async def test_chat_completions_hold_the_answer_whole_and_in_a_stream() -> None:
    async with rig([completion(f"{THOUGHT}\n{CALL}{CALL}")] * 2) as r:
        body = {"model": "m", "messages": [USER], "tools": CHAT_TOOLS}
        answer = await r.post("/v1/chat/completions", body)
        message = answer["choices"][0]["message"]
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        assert (message["content"], message["reasoning_content"]) == ("I will add.", "Let me add.")
        assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [{"a": 1, "b": 2}] * 2
        assert answer["usage"]["prompt_tokens"] == len(r.prompts[0])
        body["stream_options"] = {"include_usage": True}
        *chunks, usage, done = await r.events("/v1/chat/completions", body)
        assert done == "[DONE]" and usage["choices"] == [] and usage["usage"] == answer["usage"]
        assert usage["usage"]["completion_tokens"] == len(r.sampled()[0])
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        for name in ("content", "reasoning_content"):
            assert "".join(delta.get(name) or "" for delta in deltas) == message[name]
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert [(call["index"], call["function"]) for call in calls] == [
            (index, call["function"]) for index, call in enumerate(message["tool_calls"])
        ]
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_messages_hold_the_answer_whole_and_in_a_stream() -> None:
    async with rig([completion(f"{THOUGHT}\n{CALL}")] * 2) as r:
        body = {"model": "m", "max_tokens": 99, "messages": [USER], "tools": ANTHROPIC_TOOLS}
        answer = await r.post("/v1/messages", body)
        assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use"]
        assert answer["stop_reason"] == "tool_use" and answer["content"][-1]["input"] == {"a": 1, "b": 2}
        events = await r.events("/v1/messages", body)
        kinds = [event["type"] for event in events]
        assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        assert [delta["type"] for delta in deltas] == [
            "thinking_delta", "signature_delta", "text_delta", "input_json_delta",
        ]  # fmt: skip
        assert json.loads(deltas[-1]["partial_json"]) == {"a": 1, "b": 2}
        assert events[-2]["delta"]["stop_reason"] == "tool_use"
        assert events[-2]["usage"]["output_tokens"] == answer["usage"]["output_tokens"] == len(r.sampled()[0])


async def test_responses_hold_the_answer_whole_and_in_a_stream() -> None:
    async with rig([completion(f"{THOUGHT}\n{CALL}")] * 2) as r:
        body = {"model": "m", "input": "1+2?", "tools": RESPONSES_TOOLS}
        answer = await r.post("/v1/responses", body)
        assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "function_call"]
        assert answer["status"] == "completed" and answer["output"][1]["content"][0]["text"] == "I will add."
        events = await r.events("/v1/responses", body)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[0]["type"] == "response.created" and events[-1]["type"] == "response.completed"
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done == events[-1]["response"]["output"]
        assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]


async def test_a_known_previous_response_is_continued() -> None:
    async with rig([completion(CALL), completion("3.")]) as r:
        first = await r.responses("1+2?", tools=RESPONSES_TOOLS)
        output = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "3"}
        await r.responses([output], tools=RESPONSES_TOOLS, previous_response_id=first["id"])
        assert_prefix(r)
        refused = await r.responses("x", previous_response_id="resp_unknown", status=400)
        assert refused["error"]["code"] == "previous_response_not_found"


async def test_an_overflow_is_told_in_each_dialects_words() -> None:
    async with rig([], context_window_limit=20) as r:
        long = "word " * 50
        told = (await r.messages([{"role": "user", "content": long}], status=400))["error"]
        assert told["type"] == "invalid_request_error"
        tokens = int(told["message"].split()[4])
        assert tokens > 20 and told["message"] == f"prompt is too long: {tokens} tokens > 17 maximum"
        error = (await r.chat([{"role": "user", "content": long}], status=400))["error"]
        assert error["code"] == "context_length_exceeded"
        (failed,) = await r.events("/v1/responses", {"model": "m", "input": long})
        assert failed["type"] == "response.failed"
        assert failed["response"]["error"]["code"] == "context_length_exceeded"
        contents = {"contents": [{"parts": [{"text": long}]}]}
        error = (await r.post("/v1beta/models/m:generateContent", contents, status=400))["error"]
        assert error["message"].startswith("The input token count (") and error["status"] == "INVALID_ARGUMENT"
        assert error["details"][0]["reason"] == "context_length_exceeded"


async def test_count_tokens_is_exact_and_records_nothing() -> None:
    async with rig([completion("Hi.")]) as r:
        user = {"role": "user", "content": "Hello there"}
        body = {"model": "m", "system": "Be brief.", "messages": [user], "tools": ANTHROPIC_TOOLS}
        counted = await r.post("/v1/messages/count_tokens", body)
        assert not r.prompts
        await r.messages([user], system="Be brief.", tools=ANTHROPIC_TOOLS)
        assert counted["input_tokens"] == len(r.prompts[0])


@pytest.mark.parametrize(
    ("text", "finish", "matched", "told"),
    [
        ("I will wri", "length", None, ("max_tokens", None, "I will wri")),
        ("A. Observation: B", "stop", "Observation:", ("stop_sequence", "Observation:", "A.")),
    ],
)
async def test_what_cut_a_reply_is_told_and_its_tokens_are_kept(
    text: str, finish: Any, matched: str | None, told: Any
) -> None:
    ids = tokenizer().encode(text, add_special_tokens=False)
    async with rig([Reply(ids=ids, finish=finish, matched=matched), completion("Done.")]) as r:
        first = await r.messages([USER], stop_sequences=["Observation:"])
        assert (first["stop_reason"], first["stop_sequence"], first["content"][0]["text"]) == told
        await r.messages([USER, {"role": "assistant", "content": told[2]}, {"role": "user", "content": "On"}])
        assert r.prompts[1][: len(r.prompts[0]) + len(ids)] == [*r.prompts[0], *ids]
        assert r.session.counters.extension_rate == 1.0


async def test_logprobs_and_token_ids_are_those_of_the_trajectory() -> None:
    async with rig([completion("Hello.")] * 2) as r:
        asked = {"messages": [USER], "logprobs": True, "return_token_ids": True}
        body = await r.post("/v1/chat/completions", asked)
        turn = r.session.conversation.forest.turns[0]
        choice = body["choices"][0]
        assert body["prompt_token_ids"] == list(turn.prompt_ids) == r.prompts[0]
        assert choice["token_ids"] == list(turn.completion.output_ids)
        given = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert given == list(turn.completion.output_logprobs or ())
        *_, last, _ = await r.events("/v1/chat/completions", asked)
        assert last["prompt_token_ids"] == r.prompts[0] and last["choices"][0]["token_ids"] == choice["token_ids"]


async def test_a_structured_format_becomes_a_grammar() -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    async with rig([completion('{"title": "x"}')] * 3) as r:
        user = {"role": "user", "content": "Title?"}
        named = {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}}
        await r.chat([user], response_format=named)
        await r.responses([user], text={"format": {"type": "json_schema", "name": "t", "schema": schema}})
        await r.messages([user], output_config={"format": {"type": "json_schema", "schema": schema}})
        sent = [json.loads(q.fields["sampling_params"]["json_schema"]) for q in r.client.requests]
        assert sent == [schema] * 3
        assert all(turn.is_constrained for turn in r.session.conversation.forest.turns)
        assert r.session.counters.constrained == 3


@pytest.mark.parametrize(
    ("said", "options", "malformed"),
    [
        (f"Adding. {CALL.replace(': 2', '')}", {}, 1),
        (f"Adding.\n{CALL.removeprefix('<tool_call>').strip()}", {}, 1),
        (CALL, {"tool_choice": "none"}, 0),
    ],
    ids=["malformed", "no begin marker", "not allowed"],
)
async def test_a_call_that_cannot_run_goes_out_as_the_text_that_was_sampled(
    said: str, options: dict[str, Any], malformed: int
) -> None:
    async with rig([completion(said), completion("Sorry.")]) as r:
        first = (await r.chat([USER], tools=CHAT_TOOLS, **options))["choices"][0]
        assert first["finish_reason"] == "stop" and "tool_calls" not in first["message"]
        assert first["message"]["content"] == said
        await r.chat([USER, first["message"], {"role": "user", "content": "Go on"}], tools=CHAT_TOOLS)
        assert_prefix(r)
        assert r.session.counters.malformed == malformed


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"n": 2}, "one sample per request"),
        ({"input_ids": [1, 2]}, "holds the ids"),
        ({"functions": [{"name": "f"}]}, "use tools"),
        ({"max_tokens": -1}, "positive integer"),
        ({"stop": [""]}, "empty string"),
        ({"response_format": {"type": "grammar"}}, "json_schema"),
        ({"messages": [{"role": "system", "content": [IMAGE]}, USER]}, "holds text only"),
        ({"messages": [USER, {"role": "assistant", "content": "Sure,"}]}, "prefilled"),
        ({"tools": [*CHAT_TOOLS, {"type": "function", "function": {"name": "add"}}]}, "add"),
    ],
)
async def test_what_cannot_be_served_is_refused_with_the_reason(extra: dict[str, Any], words: str) -> None:
    async with rig([]) as r:
        error = (await r.post("/v1/chat/completions", {"messages": [USER], **extra}, status=400))["error"]
        assert words in error["message"] and error["type"] == "invalid_request_error"
        assert not r.prompts


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        (None, "auto"),
        ("none", "none"),
        ({"type": "none"}, "none"),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "f"}, "f"),
        ({"type": "function", "function": {"name": "f"}}, "f"),
    ],
)
def test_tool_choices_of_openai_and_anthropic_mean_the_same(given: Any, choice: str) -> None:
    assert read_choice(given) == choice


async def test_forced_choice_and_unknown_tools_are_counted_and_named() -> None:
    async with rig([completion("Hi.")] * 2) as r:
        tools = [*RESPONSES_TOOLS, {"type": "web_search"}, {"type": "namespace", "name": "n", "tools": []}]
        url = f"{r.session.base_url}/responses"
        body = {"model": "m", "input": "Hi", "tools": tools, "tool_choice": "required", "temperature": 0}
        async with r.http.post(url, json=body, headers=r.headers) as response:
            assert response.headers["x-strands-ignored"] == "temperature, tool_choice"
        assert r.session.counters.unknown_tools == {"web_search": 1, "namespace": 1}
        assert r.session.counters.ignored == {"tool_choice": 1, "temperature": 1}
        assert "temperature" not in r.client.requests[0].fields["sampling_params"]


async def test_a_strict_gateway_refuses_them() -> None:
    async with rig([], strict=True) as r:
        await r.responses("Hi", tools=[{"type": "web_search"}], status=400)
        await r.responses("Hi", tools=RESPONSES_TOOLS, tool_choice="required", status=400)


async def test_sampling_and_limits_of_the_session_win() -> None:
    async with rig(
        [completion("Hi.")] * 2,
        sampling={"temperature": 0.7},
        limits={"max_new_tokens": 40, "max_requests": 2},
        client_sampling=True,
    ) as r:
        user = [{"role": "user", "content": "Hi"}]
        await r.chat(user, temperature=0, top_p=0.5, max_tokens=4000)
        params = r.client.requests[0].fields["sampling_params"]
        assert (params["temperature"], params["top_p"], params["max_new_tokens"]) == (0.7, 0.5, 40)
        await r.chat(user, max_tokens=10)
        assert r.client.requests[1].fields["sampling_params"]["max_new_tokens"] == 10
        refused = await r.chat([*user, *user], status=400)
        assert refused["error"]["code"] == "rollout_limit"


async def test_max_tokens_beyond_the_context_is_clipped() -> None:
    async with rig([completion("Hi.")], context_window_limit=400) as r:
        await r.chat([{"role": "user", "content": "Hi"}], max_tokens=128_000)
        assert r.client.requests[0].fields["sampling_params"]["max_new_tokens"] < 400


async def test_the_models_route_serves_both_vendors() -> None:
    async with rig([], model_name="qwen") as r:
        async with r.http.get(f"{r.session.base_url}/models", headers=r.headers) as response:
            (card,) = (await response.json())["data"]
        assert (card["id"], card["object"], card["type"]) == ("qwen", "model", "model")


async def test_the_sdks_model_and_the_gateway_grow_the_same_forest() -> None:
    texts = [f"{THOUGHT}\n{CALL}{CALL}", "3 and 3.", "Bye."]
    model, _ = make(texts)
    agent = make_agent(model, system_prompt="Be brief.")
    for question in ("1+2?", "Bye"):
        await agent.invoke_async(question)
    spec = agent.tool_registry.get_all_tool_specs()[0]
    described = {"name": spec["name"], "description": spec["description"], "parameters": spec["inputSchema"]["json"]}
    async with rig(texts) as r:
        history: list[Any] = [{"role": "system", "content": "Be brief."}]
        for question in ("1+2?", "Bye"):
            history.append({"role": "user", "content": question})
            while history[-1]["role"] != "assistant":
                answer = await r.chat(history, tools=[{"type": "function", "function": described}])
                history.append(answer["choices"][0]["message"])
                calls = history[-1].get("tool_calls", ())
                history += [{"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in calls]
        ours, theirs = (
            [
                (t.prompt_ids, t.completion.output_ids, t.completion.output_logprobs,
                 t.parent and t.parent.index, [call.id for call in t.calls])
                for t in forest.turns
            ]
            for forest in (r.session.conversation.forest, model.forest)
        )  # fmt: skip
        assert ours == theirs and len(ours) == 3


async def test_ids_of_messages_and_calls_are_never_used_twice() -> None:
    async with rig(lambda *_: completion(CALL)) as r:
        answers = [await r.messages([{"role": "user", "content": "Hi"}], tools=ANTHROPIC_TOOLS) for _ in range(3)]
        assert len({answer["id"] for answer in answers}) == 3
        assert len({answer["content"][0]["id"] for answer in answers}) == 3
