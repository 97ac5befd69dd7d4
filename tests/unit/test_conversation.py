"""`Conversation` without the SDK's agents: a second shell."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from provider_support import Replay, add, call, completion, tokenizer, user
from strands import Agent

from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.conversation import Conversation, TurnRequest
from strands_sglang.conversation.options import MalformedCalls
from strands_sglang.conversation.reply import ModelReply
from strands_sglang.conversation.tokenizer import Codec
from strands_sglang.model import SGLangModel
from strands_sglang.testing import Reply as Scripted
from strands_sglang.trajectory import TrajectoryForest

SCRIPT = ["<think>hm</think>\n\nI add. " + call(1, 2) + call(3, 4), call(5, 6), "<tool_call>{]</tool_call>", "Done."]
OPTIONS: dict[str, Any] = {"sampling_params": {"max_new_tokens": 64, "sampling_seed": 3}}


def make(script: list[Any], **options: Any) -> tuple[Conversation, Replay]:
    client = Replay(script)
    return Conversation(tokenizer=tokenizer(), client=client, **options), client


def message_of(reply: ModelReply) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if reply.reasoning:
        content.append({"reasoningContent": {"reasoningText": {"text": reply.reasoning}}})
    if reply.text:
        content.append({"text": reply.text})
    content += [{"toolUse": {"toolUseId": c.id, "name": c.name, "input": c.input}} for c in reply.calls]
    return {"role": "assistant", "content": content}


def add_result(reply_call: Any) -> dict[str, Any]:
    if reply_call.error is not None:
        text, status = f"Error: malformed tool call, the tool was not run: {reply_call.error}", "error"
    else:
        text, status = str(reply_call.input["a"] + reply_call.input["b"]), "success"
    return {"toolResult": {"toolUseId": reply_call.id, "status": status, "content": [{"text": text}]}}


async def plain_loop(conversation: Conversation, prompt: str, tools: list[Any]) -> None:
    """The least of a shell: ask, run the calls, ask again."""
    messages = [user(prompt)]
    while True:
        request = TurnRequest(
            messages=json.loads(json.dumps(messages)),  # a fresh copy, as any client sends it
            system="Be brief.",
            tools=tools,
            malformed_calls=MalformedCalls.KEEP,
        )
        reply = (await conversation.turn(request)).reply
        messages.append(message_of(reply))
        if not reply.calls:
            return
        messages.append({"role": "user", "content": [add_result(c) for c in reply.calls]})


def tokens_of(forest: TrajectoryForest) -> list[tuple[Any, ...]]:
    return [
        (
            turn.index,
            None if turn.parent is None else turn.parent.index,
            turn.prompt_ids.tolist(),
            turn.completion.output_ids.tolist(),
            turn.completion.output_logprobs,
            turn.calls,
            turn.reply,
        )
        for turn in forest.turns
    ]


async def test_a_second_shell_builds_the_same_forest() -> None:
    client = Replay(SCRIPT)
    model = SGLangModel(tokenizer=tokenizer(), client=client, **OPTIONS)
    agent = Agent(model=model, tools=[add], system_prompt="Be brief.", callback_handler=None, context_manager=False)
    await agent.invoke_async("What is it?")
    conversation, other_client = make(SCRIPT, **OPTIONS)
    await plain_loop(conversation, "What is it?", agent.tool_registry.get_all_tool_specs())
    assert len(conversation.forest.turns) == len(SCRIPT)
    assert tokens_of(conversation.forest) == tokens_of(model.forest)
    assert other_client.prompts == client.prompts
    assert model.rollout.token_ids == model.token_manager.token_ids == conversation.rollout.token_ids


async def test_a_prepared_turn_leaves_no_trace_until_it_is_sampled() -> None:
    conversation, client = make(["yes"])
    prepared = conversation.prepare(TurnRequest(messages=[user("q")]))
    assert (client.prompts, conversation.forest.turns) == ([], ())
    sampled = await conversation.sample(prepared)
    assert prepared.prompt_length == sampled.prompt_length == len(client.prompts[0])


async def test_sampling_parameters_of_one_turn_take_precedence_and_are_checked() -> None:
    conversation, client = make(["yes"], sampling_params={"max_new_tokens": 64, "temperature": 0.5})
    await conversation.turn(TurnRequest(messages=[user("q")], params={"max_new_tokens": 7}))
    sent = client.requests[0].fields["sampling_params"]
    assert (sent["max_new_tokens"], sent["temperature"]) == (7, 0.5)
    with pytest.raises(ValueError, match="temprature"):
        await conversation.turn(TurnRequest(messages=[user("q")], params={"temprature": 1.0}))


SPECS = [{"name": "add", "description": "Adds.", "inputSchema": {"json": {"type": "object", "properties": {}}}}]


@pytest.mark.parametrize(
    ("sampled", "text", "names"),
    [
        ("Look: <tool_call>{]</tool_call>", "Look: <tool_call>{]</tool_call>", []),
        ("Look: <tool_call>{]</tool_call>" + call(1, 2), "Look: <tool_call>{]</tool_call>", ["add"]),
    ],
)
async def test_a_malformed_call_can_stay_text(sampled: str, text: str, names: list[str]) -> None:
    conversation, _ = make([completion(sampled)])
    request = TurnRequest(messages=[user("q")], tools=SPECS, malformed_calls=MalformedCalls.TEXT)
    turn = await conversation.turn(request)
    assert (turn.reply.text, [c.name for c in turn.reply.calls]) == (text, names)
    assert turn.reply.stop_reason == ("tool_use" if names else "end_turn")
    assert sum(record.error is not None for record in turn.turn.calls) == 1
    assert sum(conversation.tool_parse_errors.values()) == 1


async def test_a_history_that_changes_every_turn_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    conversation, _ = make([f"answer {i}" for i in range(8)])
    messages = [user("q")]
    for i in range(8):
        messages = messages[i % 2 :]  # a trim now and then
        reply = (await conversation.turn(TurnRequest(messages=messages))).reply
        messages += [message_of(reply), user("go on")]
    assert caplog.records == []
    conversation, _ = make([f"answer {i}" for i in range(6)])
    messages = [user("q")]
    for i in range(6):
        reply = (await conversation.turn(TurnRequest(messages=[user(f"status {i}"), *messages]))).reply
        messages += [message_of(reply), user("go on")]
    (record,) = caplog.records
    assert "context_manager=False" in record.getMessage()
    assert all(turn.parent is None for turn in conversation.forest.turns)


def test_copying_a_model_says_what_to_do_instead() -> None:
    model = SGLangModel(tokenizer=tokenizer(), client=Replay([]))
    with pytest.raises(TypeError, match=r"make another one.*take_snapshot"):
        copy.deepcopy(model)


def test_one_conversation_serves_several_threads() -> None:
    client = Replay([lambda *_: completion(call(1, 2))], cycle=True)
    conversation, interval = Conversation(tokenizer=tokenizer(), client=client), sys.getswitchinterval()

    def work(name: int) -> None:
        for number in range(25):
            request = TurnRequest(messages=[user(f"{name} {number}")], tools=SPECS, agent=str(name))
            asyncio.run(conversation.turn(request))

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(interval)
    turns = conversation.forest.turns
    assert [turn.index for turn in turns] == list(range(100))
    assert len({called.id for turn in turns for called in turn.calls}) == 100
    assert Counter(turn.agent for turn in turns) == dict.fromkeys("0123", 25)
    assert conversation.forest.sampled_tokens == 100 * len(completion(call(1, 2)).ids or ())


async def test_a_stop_string_can_be_cut_and_calls_can_be_left_unread() -> None:
    conversation, _ = make([Scripted(text="one STOP", matched="STOP"), completion(call(1, 2))])
    sampled = await conversation.turn(TurnRequest(messages=[user("q")], trim_stop=True))
    assert (sampled.reply.text, sampled.reply.stop_string) == ("one", "STOP")
    messages = [user("q"), message_of(sampled.reply), user("next")]
    assert conversation.prepare(TurnRequest(messages=messages)).location.parent is sampled.turn
    sampled = await conversation.turn(TurnRequest(messages=messages, tools=SPECS, read_calls=False))
    assert (sampled.reply.text, sampled.reply.calls, sampled.reply.stop_reason) == (call(1, 2), (), "end_turn")


async def test_results_may_refer_to_calls_by_ids_of_the_client() -> None:
    shows_ids = HERMES_TEMPLATE.replace("<tool_response>' +", "<tool_response>' + message.tool_call_id + ' ' +")
    assert shows_ids != HERMES_TEMPLATE
    prompts = []
    for rewritten in (False, True):
        conversation, client = make([call(1, 2) + call(3, 4), "done"], chat_template=shows_ids)
        reply = (await conversation.turn(TurnRequest(messages=[user("q")], tools=SPECS))).reply
        message = message_of(reply)
        ids = [f"mine{i}" if rewritten else c.id for i, c in enumerate(reply.calls)]
        for block, call_id in zip(message["content"], ids, strict=True):
            block["toolUse"]["toolUseId"] = call_id
        results = [
            {"toolResult": {"toolUseId": call_id, "status": "success", "content": [{"text": str(i)}]}}
            for i, call_id in enumerate(ids)
        ]
        messages = [user("q"), message, {"role": "user", "content": results[::-1]}]
        sampled = await conversation.turn(TurnRequest(messages=messages, tools=SPECS))
        assert sampled.turn.parent is not None
        assert reply.calls[0].id in tokenizer().decode(client.prompts[-1])
        prompts.append(client.prompts[-1])
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize(
    ("characters", "is_parallel", "off_loop"), [(50, True, True), (50, False, False), (49, True, False)]
)
async def test_long_new_texts_are_prepared_on_a_thread(characters, is_parallel, off_loop, monkeypatch):
    monkeypatch.setattr("strands_sglang.conversation.conversation.LONG_TEXT", 50)
    threads: list[int] = []
    prepare = Conversation.prepare

    def noted(self: Conversation, request: TurnRequest) -> Any:
        threads.append(threading.get_ident())
        return prepare(self, request)

    monkeypatch.setattr(Conversation, "prepare", noted)
    monkeypatch.setattr(Codec, "is_parallel", is_parallel)
    messages = [user("Short."), {"role": "assistant", "content": [{"text": "Ok. " * 50}]}]
    result = {"toolUseId": "1", "status": "success", "content": [{"text": "a" * 20}, {"json": {"b": 1}}]}
    new = [{"role": "user", "content": [{"toolResult": result}]}, user("a" * (characters - 20))]
    request = TurnRequest(messages=[*messages, *new])
    conversation, client = make(["Fine."])
    expected = Conversation(tokenizer=tokenizer(), client=client).prepare(request).prompt.ids.tolist()
    threads.clear()
    await conversation.turn(request)
    assert client.requests[0].input_ids == expected
    assert [thread != threading.get_ident() for thread in threads] == [off_loop]


async def test_a_turn_of_another_conversation_is_recalled_and_extended_but_not_trained_again() -> None:
    first, seen = make([completion("One.", split=True), completion("Two.", split=True)])
    asked = [user("1")]
    one = (await first.turn(TurnRequest(messages=asked))).turn
    both = [*asked, {"role": "assistant", "content": [{"text": "One."}]}, user("2")]
    await first.turn(TurnRequest(messages=both))

    other, client = make([completion("Other.")])
    recalled = other.recall(TurnRequest(messages=asked), one.completion)
    assert recalled.prompt_ids == one.prompt_ids and other.forest.sampled_tokens == 0
    await other.turn(TurnRequest(messages=both, agent="agent", agent_id="a"))
    assert client.prompts == [seen.prompts[1]]
    (path,) = other.trajectories
    assert sum(path.tokens.loss_mask) == len(completion("Other.").ids or ())
    assert sum(path.tokens.output_mask) == sum(path.tokens.loss_mask) + len(one.completion.output_ids)
    assert other.rollout.sequence == path.tokens  # the linear view has the same rule
