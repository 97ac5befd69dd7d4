"""The three dialects of the gateway over HTTP: answers, streams, errors, and exact trajectories under each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strands_sglang.gateway.dialects.reading import read_choice
from tests.provider_support import completion, tokenizer
from tests.unit.gateway_support import (
    ANTHROPIC_TOOLS,
    CALL,
    CHAT_TOOLS,
    RESPONSES_TOOLS,
    assert_prefix,
    rig,
    trained_once,
)

THOUGHT = "<think>\nLet me add.\n</think>\n\nI will add."


async def test_chat_completions_extends_over_a_tool_round() -> None:
    async with rig([completion(f"{THOUGHT}\n{CALL}{CALL}"), completion("3 and 3.")]) as r:
        user = {"role": "user", "content": "1+2?"}
        first = await r.chat([user], tools=CHAT_TOOLS)
        message = first["choices"][0]["message"]
        assert first["choices"][0]["finish_reason"] == "tool_calls"
        assert (message["content"], message["reasoning_content"]) == ("I will add.", "Let me add.")
        assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [{"a": 1, "b": 2}] * 2
        results = [{"role": "tool", "tool_call_id": c["id"], "content": "3"} for c in message["tool_calls"]]
        second = await r.chat([user, message, *results], tools=CHAT_TOOLS)
        assert second["choices"][0]["message"]["content"] == "3 and 3."
        assert_prefix(r)
        assert second["usage"]["prompt_tokens"] == len(r.prompts[1])
        assert trained_once(r.session)
        assert r.session.counters.extension_rate == 1.0


async def test_messages_extends_over_a_tool_round() -> None:
    async with rig([completion(f"{THOUGHT}\n{CALL}"), completion("3.")]) as r:
        user = {"role": "user", "content": [{"type": "text", "text": "1+2?", "cache_control": {"type": "ephemeral"}}]}
        first = await r.messages([user], tools=ANTHROPIC_TOOLS)
        assert [block["type"] for block in first["content"]] == ["thinking", "text", "tool_use"]
        assert first["stop_reason"] == "tool_use"
        call = first["content"][-1]
        assert call["input"] == {"a": 1, "b": 2}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "3", "is_error": False}
        history = [
            {"role": "user", "content": "1+2?"},
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [result]},
        ]
        second = await r.messages(history, tools=ANTHROPIC_TOOLS)
        assert second["content"] == [{"type": "text", "text": "3."}]
        assert second["stop_reason"] == "end_turn"
        assert_prefix(r)
        assert r.session.counters.receipts == 1
        assert r.session.counters.extension_rate == 1.0


async def test_responses_extends_over_a_tool_round() -> None:
    async with rig([completion(f"{THOUGHT}\n{CALL}"), completion("3.")]) as r:
        user = {"role": "user", "content": "1+2?"}
        first = await r.responses([user], tools=RESPONSES_TOOLS, instructions="Be brief.")
        assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call"]
        call = first["output"][-1]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "3"}
        second = await r.responses([user, *first["output"], output], tools=RESPONSES_TOOLS, instructions="Be brief.")
        assert second["output"][0]["content"][0]["text"] == "3."
        assert second["status"] == "completed"
        assert_prefix(r)
        assert r.session.counters.receipts == 1
        assert r.session.counters.extension_rate == 1.0


async def test_a_known_previous_response_is_continued() -> None:
    async with rig([completion(CALL), completion("3.")]) as r:
        first = await r.responses("1+2?", tools=RESPONSES_TOOLS)
        output = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "3"}
        await r.responses([output], tools=RESPONSES_TOOLS, previous_response_id=first["id"])
        assert_prefix(r)
        refused = await r.responses("x", previous_response_id="resp_unknown", status=400)
        assert refused["error"]["code"] == "previous_response_not_found"


async def test_chat_stream_holds_what_the_answer_holds() -> None:
    async with rig([completion(f"{THOUGHT}\n{CALL}")]) as r:
        body = {"model": "m", "messages": [{"role": "user", "content": "1+2?"}], "tools": CHAT_TOOLS}
        *chunks, usage, done = await r.events(
            "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}
        )
        assert done == "[DONE]"
        assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == len(r.sampled()[0])
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert "".join(delta.get("content") or "" for delta in deltas) == "I will add."
        assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Let me add."
        (calls,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
        assert calls[0]["index"] == 0 and calls[0]["function"]["name"] == "add"
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_messages_stream_holds_what_the_answer_holds() -> None:
    async with rig([completion(f"{THOUGHT}\n{CALL}")]) as r:
        user = {"role": "user", "content": "1+2?"}
        events = await r.events(
            "/v1/messages", {"model": "m", "max_tokens": 99, "messages": [user], "tools": ANTHROPIC_TOOLS}
        )
        kinds = [event["type"] for event in events]
        assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        assert [delta["type"] for delta in deltas] == [
            "thinking_delta", "signature_delta", "text_delta", "input_json_delta",
        ]  # fmt: skip
        assert json.loads(deltas[-1]["partial_json"]) == {"a": 1, "b": 2}
        assert events[-2]["delta"]["stop_reason"] == "tool_use"
        assert events[-2]["usage"]["output_tokens"] == len(r.sampled()[0])


async def test_responses_stream_holds_what_the_answer_holds() -> None:
    async with rig([completion(f"{THOUGHT}\n{CALL}")]) as r:
        events = await r.events("/v1/responses", {"model": "m", "input": "1+2?", "tools": RESPONSES_TOOLS})
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[0]["type"] == "response.created" and events[-1]["type"] == "response.completed"
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done == events[-1]["response"]["output"]


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


async def test_count_tokens_is_exact_and_records_nothing() -> None:
    async with rig([completion("Hi.")]) as r:
        user = {"role": "user", "content": "Hello there"}
        body = {"model": "m", "system": "Be brief.", "messages": [user], "tools": ANTHROPIC_TOOLS}
        counted = await r.post("/v1/messages/count_tokens", body)
        assert not r.prompts
        await r.messages([user], system="Be brief.", tools=ANTHROPIC_TOOLS)
        assert counted["input_tokens"] == len(r.prompts[0])


async def test_a_length_cut_is_told_and_extended() -> None:
    async with rig([completion("I will wri", stop=False), completion("te it.")]) as r:
        user = {"role": "user", "content": "Write."}
        first = await r.messages([user])
        assert first["stop_reason"] == "max_tokens"
        resume = {"role": "user", "content": "Output token limit hit. Resume directly."}
        await r.messages([user, {"role": "assistant", "content": first["content"]}, resume], max_tokens=1024)
        assert_prefix(r)
        assert r.session.counters.extension_rate == 1.0


async def test_logprobs_and_token_ids_are_those_of_the_trajectory() -> None:
    async with rig([completion("Hello.")]) as r:
        body = await r.chat([{"role": "user", "content": "Hi"}], logprobs=True, return_token_ids=True)
        turn = r.session.conversation.forest.turns[0]
        choice = body["choices"][0]
        assert body["prompt_token_ids"] == list(turn.prompt_ids) == r.prompts[0]
        assert choice["token_ids"] == list(turn.completion.output_ids)
        given = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert given == list(turn.completion.output_logprobs or ())


async def test_a_stop_string_is_named_and_left_out_of_the_text() -> None:
    ids = tokenizer().encode("A. Observation: B", add_special_tokens=False)
    from strands_sglang.testing import Reply

    script = [Reply(ids=ids, finish="stop", matched="Observation:"), completion("Done.")]
    async with rig(script) as r:
        user = {"role": "user", "content": "Go"}
        first = await r.messages([user], stop_sequences=["Observation:"])
        assert (first["stop_reason"], first["stop_sequence"]) == ("stop_sequence", "Observation:")
        assert first["content"] == [{"type": "text", "text": "A."}]
        await r.messages([user, {"role": "assistant", "content": "A."}, {"role": "user", "content": "On"}])
        assert r.prompts[1][: len(r.prompts[0]) + len(ids)] == [*r.prompts[0], *ids]


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


async def test_malformed_calls_go_out_as_the_text_that_was_sampled() -> None:
    broken = '<tool_call>{"name": "add", "arguments": {"a": 1,</tool_call>'
    async with rig([completion(f"Adding. {broken}"), completion("Sorry.")]) as r:
        user = {"role": "user", "content": "1+2?"}
        first = (await r.chat([user], tools=CHAT_TOOLS))["choices"][0]
        assert first["finish_reason"] == "stop" and "tool_calls" not in first["message"]
        assert broken in first["message"]["content"]
        nudge = {"role": "user", "content": "No valid call found."}
        await r.chat([user, first["message"], nudge], tools=CHAT_TOOLS)
        assert_prefix(r)
        assert r.session.counters.malformed == 1


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"n": 2}, "one sample per request"),
        ({"input_ids": [1, 2]}, "holds the ids"),
        ({"functions": [{"name": "f"}]}, "use tools"),
        ({"max_tokens": -1}, "positive integer"),
        ({"stop": [""]}, "empty string"),
        ({"response_format": {"type": "grammar"}}, "json_schema"),
    ],
)
async def test_what_cannot_be_served_is_refused_with_the_reason(extra: dict[str, Any], words: str) -> None:
    async with rig([]) as r:
        error = (await r.chat([{"role": "user", "content": "Hi"}], status=400, **extra))["error"]
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


async def test_content_that_no_template_prints_is_refused() -> None:
    async with rig([]) as r:
        audio = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
        await r.chat([{"role": "user", "content": [audio]}], status=400)
        remote = {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}
        await r.chat([{"role": "user", "content": [remote]}], status=400)
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
        hidden = [{"role": "system", "content": [image]}, {"role": "user", "content": "Hi"}]
        assert "holds text only" in (await r.chat(hidden, status=400))["error"]["message"]
        prefill = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Sure,"}]
        refused = await r.messages(prefill, status=400)
        assert "prefilled" in refused["error"]["message"]
        twice = [*CHAT_TOOLS, {"type": "function", "function": {"name": "add", "parameters": {}}}]
        await r.chat([{"role": "user", "content": "Hi"}], tools=twice, status=400)


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


async def test_tool_choice_none_keeps_the_tools_and_returns_calls_as_text() -> None:
    async with rig([completion(CALL), completion("Ok.")]) as r:
        user = {"role": "user", "content": "1+2?"}
        first = (await r.chat([user], tools=CHAT_TOOLS, tool_choice="none"))["choices"][0]
        assert first["finish_reason"] == "stop" and first["message"]["content"] == CALL
        await r.chat([user, first["message"], {"role": "user", "content": "Go on"}], tools=CHAT_TOOLS)
        assert_prefix(r)


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


async def test_the_models_route_serves_both_vendors() -> None:
    async with rig([], model_name="qwen") as r:
        async with r.http.get(f"{r.session.base_url}/models", headers=r.headers) as response:
            (card,) = (await response.json())["data"]
        assert (card["id"], card["object"], card["type"]) == ("qwen", "model", "model")


async def test_the_sdks_model_and_the_gateway_grow_the_same_forest() -> None:
    from strands import Agent, tool

    from strands_sglang import SGLangModel
    from tests.provider_support import Replay

    @tool
    def add(a: int, b: int) -> str:
        """Add."""
        return "3"

    texts = [f"{THOUGHT}\n{CALL}{CALL}", "3 and 3.", "Bye."]
    model = SGLangModel(client=Replay([completion(text) for text in texts]), tokenizer=tokenizer())
    agent = Agent(model=model, tools=[add], system_prompt="Be brief.", callback_handler=None)
    await agent.invoke_async("1+2?")
    await agent.invoke_async("Bye")
    spec = agent.tool_registry.get_all_tool_specs()[0]
    schema = spec["inputSchema"]["json"]
    tools = [{"type": "function", "function": {**spec, "parameters": schema}}]
    del tools[0]["function"]["inputSchema"]
    async with rig([completion(text) for text in texts]) as r:
        history: list[Any] = [{"role": "system", "content": "Be brief."}]
        for question in ("1+2?", "Bye"):
            history.append({"role": "user", "content": question})
            while True:
                message = (await r.chat(history, tools=tools))["choices"][0]["message"]
                history.append(message)
                if "tool_calls" not in message:
                    break
                history += [{"role": "tool", "tool_call_id": c["id"], "content": "3"} for c in message["tool_calls"]]
        ours, theirs = r.session.conversation.forest.turns, model.forest.turns
        assert [t.prompt_ids for t in ours] == [t.prompt_ids for t in theirs]
        assert [t.completion.output_ids for t in ours] == [t.completion.output_ids for t in theirs]
        assert [t.completion.output_logprobs for t in ours] == [t.completion.output_logprobs for t in theirs]
        assert [t.parent and t.parent.index for t in ours] == [t.parent and t.parent.index for t in theirs]
        assert [[c.id for c in t.calls] for t in ours] == [[c.id for c in t.calls] for t in theirs]


async def test_max_tokens_beyond_the_context_is_clipped() -> None:
    async with rig([completion("Hi.")], context_window_limit=400) as r:
        await r.chat([{"role": "user", "content": "Hi"}], max_tokens=128_000)
        assert r.client.requests[0].fields["sampling_params"]["max_new_tokens"] < 400


async def test_ids_of_messages_and_calls_are_never_used_twice() -> None:
    async with rig(lambda *_: completion(CALL)) as r:
        answers = [await r.messages([{"role": "user", "content": "Hi"}], tools=ANTHROPIC_TOOLS) for _ in range(3)]
        assert len({answer["id"] for answer in answers}) == 3
        assert len({answer["content"][0]["id"] for answer in answers}) == 3
