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
from provider_support import GO, Replay, add, call, completion, tokenizer, user
from strands import Agent

from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.conversation import Conversation, TurnRequest
from strands_sglang.conversation.messages import to_strands
from strands_sglang.conversation.model_options import MalformedCalls
from strands_sglang.exceptions import MessageConversionError
from strands_sglang.model import SGLangModel
from strands_sglang.testing import Reply as Scripted
from strands_sglang.tokenizer import Codec
from strands_sglang.tool_parsers import get_tool_parser
from strands_sglang.trajectory import TrajectoryForest

SCRIPT = ["<think>hm</think>\n\nI add. " + call(1, 2) + call(3, 4), call(5, 6), "<tool_call>{]</tool_call>", "Done."]
TOOLS: Any = [add.tool_spec]
OPTIONS: dict[str, Any] = {"sampling_params": {"max_new_tokens": 64, "sampling_seed": 3}}


def make(script: list[Any], **options: Any) -> tuple[Conversation, Replay]:
    client = Replay(script)
    return Conversation(tokenizer=tokenizer(), client=client, **options), client


def add_result(reply_call: Any, error: str | None) -> dict[str, Any]:
    if error is not None:
        text, status = f"Error: malformed tool call, the tool was not run: {error}", "error"
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
        sampled = await conversation.turn(request)
        messages.append(to_strands(sampled.reply))
        if not sampled.reply.calls:
            return
        errors = {call.id: call.error for call in sampled.turn.calls}
        messages.append({"role": "user", "content": [add_result(c, errors[c.id]) for c in sampled.reply.calls]})


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
    assert turn.stop_reason == ("tool_use" if names else "end_turn")
    assert sum(record.error is not None for record in turn.turn.calls) == 1
    assert sum(conversation.tool_parse_errors.values()) == 1


async def test_a_history_that_changes_every_turn_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    conversation, _ = make([f"answer {i}" for i in range(8)])
    messages = [user("q")]
    for i in range(8):
        messages = messages[i % 2 :]  # a trim now and then
        reply = (await conversation.turn(TurnRequest(messages=messages))).reply
        messages += [to_strands(reply), user("go on")]
    assert caplog.records == []
    conversation, _ = make([f"answer {i}" for i in range(6)])
    messages = [user("q")]
    for i in range(6):
        reply = (await conversation.turn(TurnRequest(messages=[user(f"status {i}"), *messages]))).reply
        messages += [to_strands(reply), user("go on")]
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
    assert (sampled.reply.text, sampled.stop_string) == ("one", "STOP")
    messages = [user("q"), to_strands(sampled.reply), user("next")]
    assert conversation.prepare(TurnRequest(messages=messages)).location.parent is sampled.turn
    sampled = await conversation.turn(TurnRequest(messages=messages, tools=SPECS, read_calls=False))
    assert (sampled.reply.text, sampled.reply.calls, sampled.stop_reason) == (call(1, 2), (), "end_turn")


TAGS = [
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<mm:think>", "</mm:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<my_reasoning>", "</my_reasoning>"),
    ("<scratchpad>", "</scratchpad>"),
    ("[PLAN]", "[/PLAN]"),
]
LISTED = TAGS[:-3]


def opened(tag: str) -> str:
    """A template whose prompts end with these words."""
    header = "<|im_start|>assistant\\n"
    assert f"{header}' }}}}" in HERMES_TEMPLATE
    return HERMES_TEMPLATE.replace(f"{header}' }}}}", f"{header}{tag}' }}}}")


@pytest.mark.parametrize("parser", [None, "hermes", "glm", "mistral"])
@pytest.mark.parametrize("has_tools", [True, False])
@pytest.mark.parametrize(("opening", "closing"), TAGS)
@pytest.mark.parametrize("rest", ["", "I have 512 tokens. "])
async def test_a_reply_is_split_by_the_tag_that_the_prompt_opened(
    opening: str, closing: str, rest: str, has_tools: bool, parser: str | None
) -> None:
    if rest and (opening, closing) not in LISTED:
        return  # a tag that is not known is seen at the end only
    template = opened(opening + rest)
    script = [f"Hm.{closing}\n\nSo.", f"<b>Hm</b>{closing}So.", "Hm."]
    conversation, client = make(script, chat_template=template, tool_parser=parser)
    for text, reasoning in (("So.", "Hm."), ("So.", "<b>Hm</b>"), ("", "Hm.")):
        sampled = await conversation.turn(TurnRequest(messages=GO, tools=TOOLS if has_tools else []))
        assert (sampled.reply.text, sampled.reply.reasoning) == (text, reasoning)
        ids = sampled.turn.completion.output_ids
        thought = tokenizer().decode(ids[: conversation.reasoning_tokens(sampled)])
        assert thought.removesuffix("<|im_end|>") == reasoning + closing * bool(text)
    assert tokenizer().decode(client.prompts[0]).endswith(opening + rest)


@pytest.mark.parametrize("tag", ["<bot>", "<answer>"])
async def test_a_tag_of_the_role_or_the_answer_opens_no_reasoning(tag: str) -> None:
    template = opened(tag) if tag == "<answer>" else HERMES_TEMPLATE.replace("assistant\\n'", f"assistant\\n{tag}\\n'")
    conversation, client = make([f"Hi.{tag[0]}/{tag[1:]}"], chat_template=template)
    sampled = await conversation.turn(TurnRequest(messages=GO))
    assert (sampled.reply.text, sampled.reply.reasoning) == (f"Hi.{tag[0]}/{tag[1:]}", "")
    assert tokenizer().decode(client.prompts[0]).rstrip().endswith(tag)


async def test_calls_are_found_behind_whatever_tag_the_prompt_opened() -> None:
    for opening, closing in TAGS:
        conversation, _ = make([f"Hm {call(9, 9)}{closing}So. {call(1, 2)}"], chat_template=opened(opening))
        reply = (await conversation.turn(TurnRequest(messages=GO, tools=TOOLS))).reply
        assert [each.input for each in reply.calls] == [{"a": 1, "b": 2}]
        assert (reply.text, reply.reasoning) == ("So.", f"Hm {call(9, 9)}")


async def test_a_parser_that_the_user_named_reads_replies_without_tools_too() -> None:
    said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So."
    conversation, _ = make([said, "[R]Hm.[/R]So.", "<think>Hm.</think>So."], tool_parser="gpt_oss")
    assert (await conversation.turn(TurnRequest(messages=GO))).reply.text == "So."
    for parser, shown in (
        ({"think_tokens": ("[R]", "[/R]")}, "So."),
        ({"think_tokens": None}, "<think>Hm.</think>So."),
    ):
        other, _ = make([], tool_parser=get_tool_parser("hermes", **parser))
        other.client = conversation.client
        assert (await other.turn(TurnRequest(messages=GO))).reply.text == shown


async def test_results_may_refer_to_calls_by_ids_of_the_client() -> None:
    shows_ids = HERMES_TEMPLATE.replace("<tool_response>' +", "<tool_response>' + message.tool_call_id + ' ' +")
    assert shows_ids != HERMES_TEMPLATE
    prompts = []
    for rewritten in (False, True):
        conversation, client = make([call(1, 2) + call(3, 4), "done"], chat_template=shows_ids)
        reply = (await conversation.turn(TurnRequest(messages=[user("q")], tools=SPECS))).reply
        message = to_strands(reply)
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
    ("characters", "is_parallel", "off_loop"), [(400, True, True), (400, False, False), (40, True, False)]
)
async def test_long_new_texts_are_prepared_on_a_thread(characters, is_parallel, off_loop, monkeypatch):
    monkeypatch.setattr("strands_sglang.conversation.conversation.LONG_TEXT", 300)
    threads: list[int] = []
    render = Conversation._render

    def noted(self: Conversation, *args: Any) -> Any:
        threads.append(threading.get_ident())
        return render(self, *args)

    monkeypatch.setattr(Conversation, "_render", noted)
    monkeypatch.setattr(Codec, "is_parallel", is_parallel)
    conversation, client = make(["Ok. " * 50, "Fine.", "Fine."])
    messages: list[Any] = [user("Short.")]
    await conversation.turn(TurnRequest(messages=messages))
    messages.append({"role": "assistant", "content": [{"text": "Ok. " * 50}]})  # held, so it does not count
    result = {"toolUseId": "1", "status": "success", "content": [{"text": "a" * 20}, {"json": {"b": 1}}]}
    messages += [{"role": "user", "content": [{"toolResult": result}]}, user("a" * (characters - 20))]
    await conversation.turn(TurnRequest(messages=messages))
    await conversation.turn(TurnRequest(messages=messages, system="Another root, rendered whole."))
    assert [thread != threading.get_ident() for thread in threads] == [False, off_loop, is_parallel]
    expected = Conversation(tokenizer=tokenizer(), client=client)
    asked = TurnRequest(messages=messages, system="Another root, rendered whole.")
    assert client.requests[2].input_ids == expected.prepare(asked).prompt.ids.tolist()


async def test_the_loop_never_waits_for_a_thread_that_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_sglang.conversation.conversation.LONG_TEXT", 50)
    conversation, _ = make(["Ok."] * 3)
    entered, go_on, render = threading.Event(), threading.Event(), Conversation._render

    def noted(self: Conversation, request: TurnRequest, *rest: Any) -> Any:
        if request.messages[0]["content"] == [{"text": "a" * 60}]:
            entered.set()
            go_on.wait()
        return render(self, request, *rest)

    monkeypatch.setattr(Conversation, "_render", noted)
    long = asyncio.create_task(conversation.turn(TurnRequest(messages=[user("a" * 60)])))
    while not entered.is_set():
        await asyncio.sleep(0.001)
    short = asyncio.create_task(conversation.turn(TurnRequest(messages=[user("b")])))
    await asyncio.sleep(0.05)  # a loop that waits for the thread would never come back
    go_on.set()
    await asyncio.gather(long, short)


def test_options_that_change_while_a_call_is_prepared_count_from_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation, _ = make([])
    render = Conversation._render

    def change_first(self: Conversation, *args: Any) -> Any:
        self.update_config(chat_template_kwargs={"later": 1})
        return render(self, *args)

    monkeypatch.setattr(Conversation, "_render", change_first)
    kwargs = [conversation.prepare(TurnRequest(messages=GO)).format.renderer.template_kwargs for _ in range(2)]
    assert kwargs == [{}, {"later": 1}]


UNFORMED: dict[str, list[Any]] = {
    "messages": [
        "hello", None, 5, [5], ["hi"], [None], [{"content": "x"}], [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": ["x"]}], [{"role": "user", "content": [{"toolResult": {}}]}],
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"toolUse": {}}]}, user("x")],
        [user("x"), {"role": "assistant"}, user("x")], [{"role": "user", "content": [{"text": None}]}],
        [{"role": ["x"], "content": "x"}], [{"role": "user", "content": {"text": "x"}}],
    ],
    "tools": [5, "x", ["x"], [None], [{"name": "x"}], [{"inputSchema": {}}]],
    "system": [5, [5], [{"x": 1}], {"text": "a"}],
}  # fmt: skip


@pytest.mark.parametrize(("field", "value"), [(name, value) for name, values in UNFORMED.items() for value in values])
async def test_a_request_of_another_form_is_refused_with_its_reason(field: str, value: Any) -> None:
    conversation, client = make([])
    request = TurnRequest(**{"messages": [user("x")], field: value})
    for ask in (conversation.turn, conversation.prepare):
        with pytest.raises(MessageConversionError):
            await ask(request)  # type: ignore[misc]
    assert client.requests == []


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
