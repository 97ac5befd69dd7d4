"""One `Limits` for the loop, the tokens and the calls of an episode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from provider_support import Replay, completion, tokenizer

from strands_env.core import Action, Environment, TerminationReason
from strands_env.core.models import sglang_model_factory
from strands_env.core.rollout import describe
from strands_env.environments.harness import ProgramRun
from strands_env.testing import ScriptedModel
from strands_sglang import Limits, SGLangModel
from strands_sglang.gateway.session_options import SessionOptions

EACH = Limits(max_tool_iters=3, max_trajectory_tokens=500, max_sampled_tokens=40)


def scripted() -> ScriptedModel:
    return ScriptedModel(["done"])


def test_old_names_are_parts_of_the_limits_of_an_environment_and_win() -> None:
    env = Environment(model_factory=scripted, limits=EACH, max_total_tokens=100)
    assert env.limits == replace(EACH, max_trajectory_tokens=100)
    assert (env.max_tool_iters, env.max_total_tokens, env.max_messages) == (3, 100, None)
    env.max_messages, env.max_tool_iters = 7, None
    assert env.limits == Limits(max_trajectory_tokens=100, max_sampled_tokens=40, max_messages=7)
    assert describe(Environment(model_factory=scripted, max_total_tokens=5))["max_total_tokens"] == 5
    assert "max_sampled_tokens" in describe(env)  # which decides results as the others do


async def test_a_model_has_the_budgets_of_its_environment_or_the_step_says_that_it_has_none() -> None:
    made: list[SGLangModel] = []

    def factory() -> SGLangModel:
        client = Replay([completion("3."), completion("4.")])
        made.append(SGLangModel(tokenizer=tokenizer(), client=client, limits=Limits(max_response_tokens=9)))
        return made[-1]

    result = await Environment(model_factory=factory, limits=EACH).step(Action(message="?"))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    assert Limits.of({name: made[0].config[name] for name in EACH.set_ones("tokens")}) == replace(
        EACH, max_tool_iters=None
    )
    assert made[0].config["max_response_tokens"] == 9
    made[0].update_config(limits=Limits(max_response_tokens=4), max_sampled_tokens=None)
    assert (made[0].config["max_response_tokens"], made[0].config["max_sampled_tokens"]) == (4, None)

    result = await Environment(model_factory=scripted, limits=EACH).step(Action(message="?"))
    assert result.termination_reason is TerminationReason.SETUP_ERROR and result.error is not None
    assert result.error.message == "ScriptedModel keeps no max_sampled_tokens: SGLangModel does"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Environment(model_factory=scripted, limits=Limits(max_requests=3)),
            "max_requests: .*Harness",
        ),
        (
            lambda: sglang_model_factory(tokenizer=1, client=1, limits=Limits(max_tool_calls=3)),
            "max_tool_calls: ",
        ),
        (
            lambda: SGLangModel(tokenizer=tokenizer(), client=Replay([]), limits=Limits(max_seconds=3)),
            "max_seconds: ",
        ),
        (lambda: ProgramRun(lambda action: None, limits=Limits(max_sampled_tokens=3)), "no limit max_sampled_tokens"),
        (
            lambda: Limits.of({"max_request": 1}),
            r"'max_request' \(did you mean 'max_requests'\?\)",
        ),
        (lambda: Limits(max_seconds=float("inf")), "max_seconds must be finite"),
        (lambda: Limits(max_messages=True), "max_messages must be a whole number, at least 0 or None, got True"),
    ],
)
def test_a_limit_that_nobody_would_keep_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_options_of_a_state_folder_of_before_are_read() -> None:
    stored = {"volatile_rules": [], "strict": True, "max_requests": 4, "max_seconds": None, "final_answer": "Now."}
    options = SessionOptions.read(stored)
    assert options == SessionOptions(strict=True, limits=Limits(max_requests=4, final_answer="Now."))
