"""`SGLangModel` inside a real Strands agent: what is sent, what is recorded, what the SDK sees."""

from __future__ import annotations

import json
from typing import Any

import pytest
from provider_support import Replay, assert_prefix_law, call, completion, make, make_agent, tokenizer, user
from strands import tool
from strands.hooks import BeforeToolCallEvent
from strands.types.exceptions import ContextWindowOverflowException, MaxTokensReachedException, ModelThrottledException

from strands_sglang import SGLangClient, SGLangContextLengthError, ToolParserError
from strands_sglang.backends import GenerateAnswer, GenerateRequest
from strands_sglang.backends.wrapper import BackendWrapper
from strands_sglang.model import SGLangModel
from strands_sglang.testing import Reply
from strands_sglang.tool_parsers import HermesToolParser
from tests.servers import FaultyServer


async def events_of(model: SGLangModel, messages: list[Any], **kwargs: Any) -> list[Any]:
    return [event async for event in model.stream(messages, **kwargs)]


# ---- the normal case ------------------------------------------------------------


async def test_a_tool_rollout_is_one_exact_trajectory() -> None:
    first = completion("thinking aloud\n" + call(1, 2), split=True)
    params = {"max_new_tokens": 99, "temperature": 0.5}
    model, client = make([first, call(3, 3) + call(4, 4), "The answer is 6."], sampling_params=params)
    agent = make_agent(model)
    result = await agent.invoke_async("What is 1 + 2?")
    assert str(result).strip() == "The answer is 6."
    assert_prefix_law(client, model)
    manager = model.token_manager
    assert len(manager.token_ids) == len(manager.loss_mask) == len(manager.logprobs)
    assert [is_output for is_output, _ in manager.segment_info] == [False, True, False, True, False, True]
    start, length = len(client.prompts[0]), len(first.ids)
    assert manager.token_ids[start : start + length] == list(first.ids)  # as sampled, not as the tokenizer has it
    assert [lp is not None for lp in manager.logprobs] == [False] * start + [True] * (len(manager) - start)
    text = tokenizer().decode(manager.token_ids)
    assert text.count("<|im_start|>assistant") == 3
    assert text.count("<tool_response>3</tool_response>") == 1
    assert "<tool_response>6</tool_response>\n<tool_response>8</tool_response>" in text
    assert len(model.trajectories) == 1
    request = client.requests[0].fields
    assert (request["return_logprob"], request["logprob_start_len"]) == (True, -1)  # the prefix cache stays usable
    assert (request["sampling_params"]["max_new_tokens"], request["return_routed_experts"]) == (99, False)
    assert request["sampling_params"]["skip_special_tokens"] is False


async def test_memory_of_the_backend_lasts_as_long_as_an_invocation() -> None:
    found: list[dict[str, Any]] = []

    class Remembering(BackendWrapper):
        async def ask(self, request: GenerateRequest) -> GenerateAnswer:
            found.append(dict(request.scratch))
            request.scratch["calls"] = len(found)
            return await self.inner.ask(request)

    agent = make_agent(SGLangModel(tokenizer=tokenizer(), client=Remembering(Replay([call(1, 2), "3", "Again 3"]))))
    await agent.invoke_async("What is 1 + 2?")
    await agent.invoke_async("And again?")
    assert found == [{}, {"calls": 1}, {}]


async def test_one_delta_per_block_and_every_block_is_closed() -> None:
    model, _ = make([completion("<think>hm</think>\n\nI add. " + call(1, 2), cached=3, latency=0.25)])
    specs = make_agent(model).tool_registry.get_all_tool_specs()
    events = await events_of(model, [user("q")], tool_specs=specs)
    kinds = [next(iter(event)) for event in events]
    block = ["contentBlockDelta", "contentBlockStop"]
    assert kinds == ["messageStart", *block, *block, "contentBlockStart", *block, "messageStop", "metadata"]
    deltas = [event["contentBlockDelta"]["delta"] for event in events if "contentBlockDelta" in event]
    assert deltas[0] == {"reasoningContent": {"text": "hm"}}
    assert deltas[1] == {"text": "I add."}
    assert json.loads(deltas[2]["toolUse"]["input"]) == {"a": 1, "b": 2}
    assert events[-2]["messageStop"]["stopReason"] == "tool_use"
    usage = events[-1]["metadata"]["usage"]
    assert usage["inputTokens"] == model.token_manager.segment_info[0][1]
    assert usage["outputTokens"] == model.token_manager.segment_info[1][1]
    assert usage["totalTokens"] == usage["inputTokens"] + usage["outputTokens"]
    assert usage["cacheReadInputTokens"] == 3
    assert events[-1]["metadata"]["metrics"]["latencyMs"] == 250


@pytest.mark.parametrize(("reply", "sampled"), [(completion(""), 1), (Reply(ids=[], finish="stop"), 0)])
async def test_an_empty_reply_stays_empty_and_can_be_continued(reply: Reply, sampled: int) -> None:
    model, client = make([reply, "second"])
    agent = make_agent(model)
    result = await agent.invoke_async("q")
    assert (result.message["content"], sum(model.token_manager.loss_mask)) == ([], sampled)
    await agent.invoke_async("go on")
    assert_prefix_law(client, model)
    assert len(model.trajectories) == 1


async def test_logprobs_that_did_not_come_are_none() -> None:
    model, _ = make(["hi"], return_logprob=False)
    await make_agent(model).invoke_async("q")
    assert set(model.token_manager.logprobs) == {None}


# ---- tools ------------------------------------------------------------


def deleting(ran: list[str]) -> Any:
    """A tool that would run whatever the arguments are."""

    @tool
    async def delete(path: str = "everything") -> None:
        """Delete a path, or by default all of them."""
        ran.append(path)

    return delete


@pytest.mark.parametrize(
    "markup",
    [
        '<tool_call>{"name": "delete", "arguments": {"path": }}</tool_call>',
        "<tool_call>not json</tool_call>",
        'I do.\n{"name": "delete", "arguments": {"path": "a"}}\n</tool_call>',
        'I do: {"name": "delete", "arguments": {"path": "a"}}',
    ],
    ids=["bad arguments", "no name", "no begin marker", "no marker"],
)
async def test_a_malformed_call_never_runs_and_is_answered_alike_in_messages_and_tokens(markup: str) -> None:
    ran: list[str] = []
    model, client = make([markup, "sorry"])
    agent = make_agent(model, tools=[deleting(ran)])
    await agent.invoke_async("q")
    assert ran == []
    result = agent.messages[2]["content"][0]["toolResult"]
    assert result["status"] == "error"
    assert "malformed tool call" in result["content"][0]["text"]
    assert result["content"][0]["text"] in tokenizer().decode(client.prompts[1])
    assert_prefix_law(client, model)
    assert sum(model.tool_parse_errors.values()) == 1
    assert len(model.trajectories) == 1


async def test_what_is_wrong_with_a_call_is_told_without_control_tokens() -> None:
    parser = HermesToolParser(tool_call_tokens=("<tool_call>", "<|endoftext|>"))
    model, client = make(['<tool_call>{"name": "add"', "sorry"], tool_parser=parser)
    await make_agent(model).invoke_async("q")
    (control,) = tokenizer().encode("<|endoftext|>")
    assert control not in client.prompts[1]
    assert "the call is not closed: endoftext is missing" in tokenizer().decode(client.prompts[1])


async def test_a_malformed_call_does_not_run_without_a_provable_agent_either() -> None:
    model, _ = make(['<tool_call>{"name": "add", "arguments": {]}</tool_call>'])
    specs = make_agent(model).tool_registry.get_all_tool_specs()
    events = await events_of(model, [user("q")], tool_specs=specs)
    start = next(e["contentBlockStart"]["start"]["toolUse"] for e in events if "contentBlockStart" in e)
    assert start["name"].startswith("add: ")  # no valid tool name: the SDK answers it with an error by itself


async def test_a_malformed_call_does_not_run_in_an_agent_that_takes_it_over_either() -> None:
    ran: list[str] = []

    def ask_a_human(event: BeforeToolCallEvent) -> None:
        event.interrupt("approval")

    model, _ = make(["ready", '<tool_call>{"name": "delete", "arguments": {]}</tool_call>', "done"])
    first, second = (make_agent(model, tools=[deleting(ran)], hooks=[ask_a_human]) for _ in range(2))
    await second.invoke_async("are you there?")
    interrupted = await first.invoke_async("clean up")
    second.load_snapshot(first.take_snapshot(preset="session"))
    answer = {"interruptId": interrupted.interrupts[0].id, "response": "yes"}
    await second.invoke_async([{"interruptResponse": answer}])
    assert ran == []


async def test_a_malformed_call_in_a_re_rendered_history_is_an_object_and_keeps_its_text() -> None:
    model, client = make(["<tool_call>{]</tool_call>", "sorry", "bye"])
    agent = make_agent(model)
    await agent.invoke_async("q")
    agent.messages[0]["content"][0]["text"] = "edited"
    await agent.invoke_async("more")
    assert '"arguments": {"malformed_call": "{]"}' in tokenizer().decode(client.prompts[-1])


@pytest.mark.parametrize("how", ["reset", "other model"])
async def test_an_old_malformed_call_does_not_answer_a_later_call(how: str) -> None:
    model, _ = make(["<tool_call>{]</tool_call>", "sorry", call(1, 2), "3"])
    agent = make_agent(model)
    await agent.invoke_async("q")
    if how == "reset":
        model.token_manager.reset()
        agent = make_agent(model)
    else:
        agent.messages.clear()
        agent.model, _ = make([call(1, 2), "3"])
    await agent.invoke_async("q")
    result = agent.messages[2]["content"][0]["toolResult"]
    assert (result["status"], result["content"][0]["text"]) == ("success", "3")


async def test_a_stop_token_that_ends_the_call_is_part_of_the_call() -> None:
    end = tokenizer().convert_tokens_to_ids("</tool_call>")
    ids = list(completion(call(1, 2), stop=False).ids or ())
    assert ids[-1] == end
    model, client = make([Reply(ids=ids, matched=end), "3"], sampling_params={"stop_token_ids": [end]})
    agent = make_agent(model)
    await agent.invoke_async("q")
    assert agent.messages[2]["content"][0]["toolResult"]["status"] == "success"
    assert_prefix_law(client, model)


async def test_a_valid_call_beside_a_malformed_one_runs_and_hooks_read_the_arguments_of_both() -> None:
    model, client = make([call(1, 2) + "<tool_call>{]</tool_call>", "ok"])
    agent = make_agent(model)
    seen: list[Any] = []
    agent.add_hook(lambda event: seen.append(event.tool_use["input"].get("a")), BeforeToolCallEvent)
    await agent.invoke_async("q")
    results = [block["toolResult"] for block in agent.messages[2]["content"]]
    assert sorted(r["status"] for r in results) == ["error", "success"] and set(seen) == {1, None}
    text = tokenizer().decode(client.prompts[1])
    assert text.index("<tool_response>3") < text.index("malformed tool call")
    assert_prefix_law(client, model)


# ---- what becomes of a thrown-away or failed call ------------------------------------------------------------


async def test_a_failed_call_leaves_no_trace_and_its_retry_is_exact() -> None:
    from strands.event_loop._retry import ModelRetryStrategy

    model, client = make([call(1, 2), ModelThrottledException("busy"), ModelThrottledException("busy"), "3"])
    strategy = ModelRetryStrategy(max_attempts=4, initial_delay=0, max_delay=0)
    await make_agent(model, retry_strategy=strategy).invoke_async("q")
    assert client.prompts[1] == client.prompts[2] == client.prompts[3]
    assert [is_output for is_output, _ in model.token_manager.segment_info] == [False, True, False, True]
    assert len(model.trajectories) == 1
    assert_prefix_law(client, model)


async def test_max_tokens_ends_the_loop_and_the_cut_turn_is_closed_by_context() -> None:
    model, client = make([completion("a long ans" + call(1, 2), stop=False), "second"])
    agent = make_agent(model)
    with pytest.raises(MaxTokensReachedException):
        await agent.invoke_async("q")
    assert model.trajectories[0].finish_reason == "length"
    await agent.invoke_async("go on")
    assert_prefix_law(client, model)
    assert len(model.trajectories) == 1
    delta = model.token_manager.segments[2]
    assert delta[0].token_id == tokenizer().eos_token_id
    assert delta[0].loss_mask is False


async def test_a_context_overflow_of_the_server_is_the_exception_the_sdk_knows() -> None:
    model, _ = make([call(1, 2), SGLangContextLengthError(400, "longer than the model's context length")])
    with pytest.raises(ContextWindowOverflowException) as caught:
        await make_agent(model).invoke_async("q")
    assert isinstance(caught.value.__cause__, SGLangContextLengthError)
    assert [is_output for is_output, _ in model.token_manager.segment_info] == [False, True]


async def test_a_prompt_that_fills_the_context_is_not_sent() -> None:
    model, client = make(["never"], context_window_limit=10)
    with pytest.raises(ContextWindowOverflowException):
        await make_agent(model).invoke_async("q")
    assert client.prompts == []


# ---- a new episode ------------------------------------------------------------


async def test_reset_starts_an_episode() -> None:
    model, _ = make([call(1, 2), "three", call(1, 2), "three"])
    await make_agent(model).invoke_async("q")
    first = model.token_manager.token_ids
    model.reset()
    assert (len(model.token_manager), model.trajectories) == (0, [])
    await make_agent(model).invoke_async("q")
    assert model.token_manager.token_ids == first


# ---- configuration ------------------------------------------------------------


def test_exactly_one_of_client_and_base_url() -> None:
    with pytest.raises(TypeError, match="exactly one"):
        SGLangModel(tokenizer=tokenizer())
    with pytest.raises(TypeError, match="exactly one"):
        SGLangModel(tokenizer=tokenizer(), client=Replay([]), base_url="http://127.0.0.1:1")


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(TypeError, match="did you mean 'sampling_params'"):
        make([], sampling_param={})
    model, _ = make([])
    with pytest.raises(TypeError, match="unknown option 'temprature'"):
        model.update_config(temprature=1)


@pytest.mark.parametrize(
    "options",
    [
        {"return_logprob": 1}, {"context_window_limit": 0}, {"max_sampled_tokens": True}, {"enable_thinking": "yes"},
        {"reasoning_policy": "forget"}, {"abort_policy": "ignore"}, {"sampling_params": {"max_tokens": 5}},
        {"injected_context": "drop"}, {"request_fields": {"input_ids": []}},
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        make([], **options)


def test_sampling_params_are_copied() -> None:
    params = {"temperature": 0.5, "stop": ["x"]}
    model, _ = make([], sampling_params=params)
    params["stop"].append("y")
    assert model.get_config()["sampling_params"]["stop"] == ["x"]


async def test_changing_template_arguments_or_tools_starts_a_new_path() -> None:
    model, client = make(["one", "two", "three"])
    agent = make_agent(model)
    await agent.invoke_async("a")
    model.update_config(chat_template_kwargs={"anything": 1})
    await agent.invoke_async("b")
    assert len(model.trajectories) == 2
    agent.tool_registry.process_tools([tool(name="another")(lambda a: a)])
    await agent.invoke_async("c")
    assert len(model.trajectories) == 3 and "another" in tokenizer().decode(client.prompts[-1])


async def test_count_tokens_is_exact_for_what_is_held() -> None:
    model, _ = make(["one"])
    agent = make_agent(model)
    await agent.invoke_async("a question")
    specs = agent.tool_registry.get_all_tool_specs()
    assert await model.count_tokens(agent.messages, specs) == len(model.token_manager)
    longer = await model.count_tokens([*agent.messages, user("x" * 400)], specs)
    assert longer > len(model.token_manager)


async def test_tools_may_be_edited_by_hooks_without_touching_the_sample() -> None:
    model, client = make([call(1, 2), "ok"])
    agent = make_agent(model)

    async def rewrite(event: BeforeToolCallEvent) -> None:
        event.tool_use["input"]["b"] = 40

    agent.add_hook(rewrite, BeforeToolCallEvent)
    await agent.invoke_async("q")
    assert_prefix_law(client, model)
    text = tokenizer().decode(model.token_manager.token_ids)
    assert '"b": 2' in text and "<tool_response>41" in text


async def test_sampling_parameters_that_the_client_lets_through_reach_the_server() -> None:
    async with (
        FaultyServer() as server,
        SGLangClient(server.url, extra_sampling_keys=["key_of_tomorrow"]) as client,
    ):
        model = SGLangModel(tokenizer=tokenizer(), client=client, sampling_params={"key_of_tomorrow": 1})
        await events_of(model, [user("go")])
        model.update_config(sampling_params={"key_of_tomorrow": 2, "max_new_tokens": 8})
        await events_of(model, [user("go")])
    sent = [request.body["sampling_params"]["key_of_tomorrow"] for request in server.requests]
    assert sent == [1, 2]


async def test_another_client_serves_the_next_call() -> None:
    model, first = make(["one"])
    model.client = second = Replay(["two"])
    await events_of(model, [user("go")])
    assert (len(first.requests), len(second.requests)) == (0, 1)


@pytest.mark.parametrize(
    ("parser", "error", "message"),
    [
        ("hermess", ToolParserError, "did you mean 'hermes'"),
        (HermesToolParser, TypeError, "write HermesToolParser"),
        (3, TypeError, "got tool_parser=3, expected a ToolParser or the name of one"),
    ],
)
def test_another_tool_parser_is_refused_at_once(parser: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make([], tool_parser=parser)
