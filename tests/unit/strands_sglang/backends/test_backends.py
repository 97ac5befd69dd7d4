"""The contract of backends: what a conversation asks for, what it refuses, and how clients are adapted."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from provider_support import Replay, completion, tokenizer

from strands_sglang import SGLangClient
from strands_sglang.backends import (
    CONSTRAINTS,
    Backend,
    BackendInfo,
    BackendWrapper,
    Capabilities,
    GenerateAnswer,
    GenerateRequest,
    LogprobKind,
    PromptScoring,
    as_backend,
    token_array,
)
from strands_sglang.backends.sglang.request import wire_fields
from strands_sglang.conversation import Conversation, SampledTurn, TurnRequest
from strands_sglang.exceptions import BackendRequestError
from strands_sglang.trajectory import Finish, FinishType

GO: list[Any] = [{"role": "user", "content": [{"text": "go"}]}]


class Plain(Backend):
    """Answers with a text, and can do what the test says."""

    def __init__(self, text: str = "yes", *, stop: bool = True, **can: Any) -> None:
        self.can = Capabilities(**can)
        self.reply = completion(text, stop=stop)
        self.requests: list[GenerateRequest] = []

    @property
    def capabilities(self) -> Capabilities:
        return self.can

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        self.requests.append(request)
        ids = array("i", list(self.reply.ids or ())[: request.max_new_tokens])
        whole = len(ids) == len(self.reply.ids or ()) and self.reply.finish == "stop"
        finish = Finish(type=FinishType.STOP, matched=ids[-1]) if whole else Finish(type=FinishType.LENGTH)
        return GenerateAnswer(output_ids=ids, finish=finish)


def conversation(client: Any, **options: Any) -> Conversation:
    return Conversation(client=client, tokenizer=tokenizer(), **options)


async def two_turns(talk: Conversation) -> SampledTurn:
    first = await talk.turn(TurnRequest(messages=GO))
    await talk.turn(TurnRequest(messages=[*GO, {"role": "assistant", "content": [{"text": first.reply.text}]}, *GO]))
    return first


async def test_a_conversation_asks_for_nothing_that_a_backend_cannot_do() -> None:
    backend = Plain()
    talk = conversation(backend, return_routed_experts=True)
    first = await two_turns(talk)
    for request in backend.requests:
        assert (request.logprobs, request.score_from, request.experts_from) == (False, None, None)
    (trajectory,) = talk.trajectories
    assert set(trajectory.logprobs) == {None} and sum(trajectory.loss_mask) == 2 * len(first.turn.completion.output_ids)


@pytest.mark.parametrize(
    ("scoring", "wanted", "scored"),
    [("cached", "appended", [None, 1]), ("uncached", "appended", [None, None]), ("uncached", True, [0, 1])],
)
async def test_prompts_are_scored_where_it_is_cheap_or_asked_for(scoring: str, wanted: Any, scored: list[Any]) -> None:
    backend = Plain(logprobs=LogprobKind.SAMPLED, prompt_scoring=PromptScoring(scoring))
    await two_turns(conversation(backend, return_prompt_logprobs=wanted))
    first, second = backend.requests
    sampled = len(first.prompt) + len(backend.reply.ids or ())
    assert [first.score_from, second.score_from] == [{None: None, 0: 0, 1: sampled}[each] for each in scored]


@pytest.mark.parametrize(
    ("options", "request_", "words"),
    [
        ({"return_sampling_mask": True}, {}, "return_sampling_mask=True.*: switch it on"),
        ({"return_routed_experts": True, "require_routed_experts": True}, {}, "require_routed_experts=True"),
        ({"return_sampling_mask": True, "return_prompt_logprobs": True}, {}, "switch it on; .*scores no prompts"),
        ({}, {"constraints": {"regex": "a+"}}, "cannot constrain output by 'regex'"),
    ],
)
async def test_options_that_need_more_are_refused(options: Any, request_: Any, words: str) -> None:
    backend = Plain(logprobs=LogprobKind.RAW, hints={"sampling_mask": "switch it on"})
    with pytest.raises(BackendRequestError, match=words):
        await conversation(backend, **options).turn(TurnRequest(messages=GO, **request_))
    assert backend.requests == []


def test_fields_and_sampling_parameters_are_the_backends_to_check() -> None:
    with pytest.raises(BackendRequestError, match="the backend has no such fields"):
        conversation(Plain(), request_fields={"priority": 1})
    with pytest.raises(BackendRequestError, match="has no 'beam_width'"):
        conversation(Plain(), sampling_params={"beam_width": 2})
    conversation(Replay(["yes"]), request_fields={"priority": 1}, sampling_params={"beam_width": 2})


async def test_a_client_with_generate_alone_gets_lists_and_the_fields_of_a_server() -> None:
    client = Replay([completion("yes")])
    talk = conversation(client, return_routed_experts=True)
    await talk.turn(TurnRequest(messages=GO))
    (request,) = client.requests
    assert isinstance(request.input_ids, list)
    assert request.fields["return_logprob"] is True and request.fields["logprob_start_len"] == -1
    assert request.fields["routed_experts_start_len"] == 0
    assert request.fields["sampling_params"]["skip_special_tokens"] is False


async def test_a_generate_that_was_replaced_is_called() -> None:
    client = SGLangClient("http://nowhere.invalid")
    assert as_backend(client) is client
    ids = list(completion("yes").ids or ())
    meta = {"finish_reason": {"type": "stop", "matched": ids[-1]}}
    talk = conversation(client, context_window_limit=1000, vocab_size=1024)
    client.generate = AsyncMock(return_value={"output_ids": ids, "meta_info": meta})  # type: ignore[method-assign]
    assert (await talk.turn(TurnRequest(messages=GO))).reply.text == "yes"
    assert client.generate.await_count == 1


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a Backend"):
        conversation(object())


async def test_a_wrapper_asks_the_inner_backend_for_everything_but_what_it_overrides() -> None:
    class Shorter(BackendWrapper):
        async def ask(self, request: GenerateRequest) -> GenerateAnswer:
            return await self.inner.ask(request.limited_to(1))

    inner = Plain(constraints=CONSTRAINTS)
    wrapped = Shorter(inner)
    sampled = await conversation(wrapped).turn(TurnRequest(messages=GO))
    assert len(sampled.turn.completion.output_ids) == 1
    assert wrapped.capabilities is inner.capabilities and await wrapped.info() == BackendInfo()


def test_a_limit_bounds_the_least_length_too() -> None:
    request = GenerateRequest(prompt=token_array([1]), sampling_params={"max_new_tokens": 9, "min_new_tokens": 5})
    assert request.limited_to(3).sampling_params == {"max_new_tokens": 3, "min_new_tokens": 3}
    assert request.limited_to(20).sampling_params == {"max_new_tokens": 9, "min_new_tokens": 5}


def test_a_request_in_the_names_of_sglang() -> None:
    request = GenerateRequest(prompt=token_array([1, 2, 3]), score_from=2, experts_from=1, constrain_answer_only=True)
    fields = wire_fields(replace(request, images=("data:,",), show_prompt=True, fields={"priority": 1}))
    assert fields == {
        "priority": 1, "sampling_params": {"skip_special_tokens": False}, "return_logprob": True,
        "logprob_start_len": 1, "return_routed_experts": True, "routed_experts_start_len": 1, "image_data": ["data:,"],
        "return_prompt_token_ids": True, "require_reasoning": True,
    }  # fmt: skip
