"""Functions that users have already written for these names run as they stand, and what they fill trains."""

from __future__ import annotations

import importlib
import types
import warnings
from typing import Any

import numpy as np
import pytest
from provider_support import Replay, add, call, completion, tokenizer
from strands import Agent

import strands_sglang
from strands_env.core import Action, Environment, TaskContext
from strands_env.core.models import sglang_model_factory
from strands_sglang import SGLangModel, decode_routed_experts
from strands_sglang.compat import warn_of_upstream

LAYERS, TOP_K = 2, 2
ARGS = types.SimpleNamespace(num_layers=LAYERS, moe_router_topk=TOP_K)
SCRIPT = (completion(call(1, 2)), completion(call(3, 3) + call(4, 4)), completion("The answer is 6."))


def with_experts(reply: Any) -> Any:
    """The reply with routed experts of what is new, as an SGLang server with the flag gives them."""

    def answer(ids: list[int], fields: dict[str, Any]) -> Any:
        rows = len(ids) + len(reply.ids) - 1 - fields["routed_experts_start_len"]
        data = np.ones((rows, LAYERS, TOP_K), dtype="<i4").tobytes()
        encoded = importlib.import_module("base64").b64encode(data).decode()
        return type(reply)(ids=reply.ids, meta={"routed_experts": encoded})

    return answer


# fmt: off
# ruff: noqa: E501, E702
def fill_from_model(model: Any, args: Any) -> Any:
    """The first function of many users, word for word."""
    sample, tm = types.SimpleNamespace(), model.token_manager
    prompt_len = len(tm.segments[0]); sample.tokens = tm.token_ids; sample.loss_mask = tm.loss_mask[prompt_len:]
    sample.rollout_log_probs = tm.logprobs[prompt_len:]; sample.response_length = len(sample.tokens) - prompt_len
    if model.routed_experts is not None:
        sample.routed_experts = decode_routed_experts(model.routed_experts, seq_len=len(tm.token_ids), num_layers=args.num_layers, top_k=args.moe_router_topk)
    return sample


def fill_from_step(step_result: Any) -> Any:
    """The second."""
    sample = types.SimpleNamespace()
    token_obs = step_result.observation.tokens; sample.tokens = token_obs.token_ids; sample.loss_mask = token_obs.rollout_loss_mask
    sample.rollout_log_probs = token_obs.rollout_logprobs; sample.response_length = len(token_obs.rollout_token_ids)
    return sample
# fmt: on


def assert_trains(sample: Any) -> None:
    """A trainer's use of it."""
    assert sample.response_length == len(sample.loss_mask) == len(sample.rollout_log_probs) < len(sample.tokens)
    values = np.array(sample.rollout_log_probs, dtype=np.float32)  # raises for None in a list, as torch does
    assert np.isfinite(values).all()
    assert {0, 1} == set(sample.loss_mask)


class AddEnv(Environment):
    def get_tools(self) -> list[Any]:
        return [add]


@pytest.mark.parametrize("experts", [False, True])
async def test_the_function_over_the_model_fills_a_sample_that_trains(experts: bool) -> None:
    script = [with_experts(reply) if experts else reply for reply in SCRIPT]
    model = SGLangModel(tokenizer=tokenizer(), client=Replay(script), return_routed_experts=experts)
    await Agent(model=model, tools=[add], callback_handler=None).invoke_async("What is 1 + 2, and so on?")
    sample = fill_from_model(model, ARGS)
    assert_trains(sample)
    assert not experts or sample.routed_experts.shape == (len(sample.tokens) - 1, LAYERS, TOP_K)


async def test_the_function_over_the_environment_fills_a_sample_that_trains() -> None:
    factory = sglang_model_factory(tokenizer=tokenizer(), client=Replay(list(SCRIPT)))
    env = AddEnv(model_factory=factory, reward_fn=lambda action, result: 1.0)
    result = await env.step(Action(message="What is 1 + 2?", task_context=TaskContext(ground_truth="6")))
    assert_trains(fill_from_step(result))


async def test_what_no_server_scored_stays_none_beside_it() -> None:
    script = [completion(call(1, 2)), completion("3")]
    model = SGLangModel(tokenizer=tokenizer(), client=Replay(script), return_prompt_logprobs=False)
    await Agent(model=model, tools=[add], callback_handler=None).invoke_async("What is 1 + 2?")
    assert [value is not None for value in model.token_manager.logprobs] == model.token_manager.output_mask


async def test_additions_are_scored_up_to_the_limit_and_first_prompts_never() -> None:
    client = Replay(list(SCRIPT))
    model = SGLangModel(tokenizer=tokenizer(), client=client)
    await Agent(model=model, tools=[add], callback_handler=None).invoke_async("What is 1 + 2?")
    held = [turn.start for turn in model.forest.turns]
    assert [request.fields["logprob_start_len"] for request in client.requests] == [-1, held[1] - 1, held[2] - 1]
    assert set(model.token_manager.logprobs[: len(client.prompts[0])]) == {None}

    client = Replay(list(SCRIPT))
    model = SGLangModel(tokenizer=tokenizer(), client=client, prompt_logprobs_limit=2)
    await Agent(model=model, tools=[add], callback_handler=None).invoke_async("What is 1 + 2?")
    assert [request.fields["logprob_start_len"] for request in client.requests] == [-1, -1, -1]


async def test_experts_that_the_server_does_not_have_are_none_and_one_warning(caplog: Any) -> None:
    model = SGLangModel(tokenizer=tokenizer(), client=Replay(list(SCRIPT)), return_routed_experts=True)
    await Agent(model=model, tools=[add], callback_handler=None).invoke_async("What is 1 + 2?")
    assert model.routed_experts is None
    assert sum("enable-return-routed-experts" in record.getMessage() for record in caplog.records) == 1
    assert_trains(fill_from_model(model, ARGS))


def test_names_of_later_versions_are_the_same_classes() -> None:
    assert strands_sglang.Rollout is strands_sglang.TokenManager
    assert strands_sglang.LoopLimiter is strands_sglang.ToolLimiter
    assert issubclass(strands_sglang.MaxToolCallsReachedError, strands_sglang.LoopLimitReachedError)
    model = SGLangModel(tokenizer=tokenizer(), client=Replay([]))
    assert model.rollout is model.token_manager


def test_both_distributions_in_one_environment_are_a_warning_that_says_what_to_do(tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_upstream()
    (tmp_path / "strands_sglang-0.6.2.dist-info").mkdir()
    (tmp_path / "strands_sglang-0.6.2.dist-info" / "METADATA").write_text("Name: strands-sglang\nVersion: 0.6.2\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(RuntimeWarning, match=r"strands-sglang 0\.6\.2 and strands-rollout .* pip uninstall"):
        warn_of_upstream()
