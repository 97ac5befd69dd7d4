"""`HarnessEnvironment`: a program of any make, in the sandbox, against a session of the step's model."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import pytest

from strands_env.core import Action, TaskContext, TerminationReason
from strands_env.core.models import sglang_model_factory
from strands_env.environments import Harness, HarnessEnvironment
from strands_env.environments.harness import claude_code, codex, mini_swe_agent, opencode
from strands_env.sandbox import Isolation, SandboxUnavailableError
from strands_env.training import samples_from_step
from strands_sglang.exceptions import SGLangConnectionError
from tests.provider_support import Replay, completion, tokenizer
from tests.unit.gateway_support import CHAT_TOOLS

# An agent of two turns, with the standard library alone.
AGENT = """
import json, os, sys, urllib.request
history = []
for text in sys.argv[1:]:
    history.append({"role": "user", "content": text})
    body = json.dumps({"model": "policy", "messages": history}).encode()
    request = urllib.request.Request(os.environ["BASE_URL"] + "/chat/completions", body, {
        "Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"})
    history.append(json.load(urllib.request.urlopen(request))["choices"][0]["message"])
open("answer.txt", "w").write(history[-1]["content"])
"""
HARNESS = Harness(
    command=("python3", "agent.py", "{prompt}", "Sure?"),
    environment={"BASE_URL": "{base_url}", "KEY": "{key}"},
    files={"agent.py": AGENT},
)


def environment(script: list[Any], **options: Any) -> HarnessEnvironment:
    options = {"harness": HARNESS, "isolation": Isolation.NONE, "python": sys.executable, **options}
    factory = sglang_model_factory(client=Replay(script), tokenizer=tokenizer())
    try:
        return HarnessEnvironment(model_factory=factory, **options)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))


async def test_the_step_holds_the_sessions_trajectory_messages_and_counts() -> None:
    env = environment([completion("Four."), completion("Yes.")])
    result = await env.rollout(Action(message="2+2?", task_context=TaskContext(id="t")))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, result.error
    assert result.observation.final_response == "Yes."
    assert [m["role"] for m in result.observation.messages] == ["user", "assistant"] * 2
    (trajectory,) = result.trajectories
    tokens = result.observation.tokens
    assert tokens is not None and trajectory.tokens.token_ids == tokens.token_ids
    assert sum(tokens.loss_mask) == len(completion("Four.").ids or ()) + len(completion("Yes.").ids or ())
    gateway = result.observation.metrics["gateway"]
    assert gateway["extension_rate"] == 1.0 and gateway["exit_code"] == 0


async def test_a_program_in_the_sandbox_reaches_the_gateway_and_its_files_can_be_scored() -> None:
    env = environment([completion("Four."), completion("Yes.")], isolation=Isolation.BUBBLEWRAP, python=None)

    async def reward(action: Action, result: Any) -> float:
        return float((await env.sandbox.exec("cat answer.txt")).stdout == "Yes.")

    env = environment(
        [completion("Four."), completion("Yes.")], isolation=Isolation.BUBBLEWRAP, python=None, reward_fn=reward
    )
    result = await env.rollout(Action(message="2+2?", task_context=TaskContext(id="t")))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, result.error
    assert result.reward is not None and result.reward.reward == 1.0


# The main agent with tools, then a request without any, as for a title.
TITLED = (
    AGENT.replace('"messages": history}', '"messages": history, "tools": json.loads(os.environ["TOOLS"])}')
    + """
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "A title?"}]}).encode()
urllib.request.urlopen(urllib.request.Request(os.environ["BASE_URL"] + "/chat/completions", body, {
    "Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"})).read()
"""
)


async def test_a_title_asked_for_at_the_end_is_not_the_main_conversation() -> None:
    harness = dataclasses.replace(
        HARNESS, files={"agent.py": TITLED}, environment={**HARNESS.environment, "TOOLS": json.dumps(CHAT_TOOLS)}
    )
    env = environment([completion("Four."), completion("Yes."), completion("Sums")], harness=harness)
    result = await env.rollout(Action(message="2+2?", task_context=TaskContext(id="t")))
    assert result.observation.final_response == "Yes." and len(result.trajectories) == 2
    main = result.main_trajectory
    assert main is not None and tokenizer().decode(main.tokens.token_ids).endswith("Yes.<|im_end|>")
    samples = samples_from_step(result)
    sampled = sum(len(completion(text).ids or ()) for text in ("Four.", "Yes.", "Sums"))
    assert sum(sum(sample.loss_mask) for sample in samples) == sampled


async def test_a_failing_model_ends_the_step_as_what_it_is() -> None:
    result = await environment([SGLangConnectionError("gone")]).rollout(
        Action(message="x", task_context=TaskContext(id="t"))
    )
    assert result.termination_reason is TerminationReason.CONNECTION_ERROR and not result.trajectories


async def test_a_program_that_asks_nothing_is_a_failure_with_its_words() -> None:
    broken = Harness(command=("python3", "-c", "import sys; sys.exit('no such option')"))
    result = await environment([], harness=broken).rollout(Action(message="x", task_context=TaskContext(id="t")))
    assert result.termination_reason.is_failure
    assert result.error is not None and "no such option" in result.error.message


async def test_max_requests_is_a_limit_and_keeps_what_was_sampled() -> None:
    env = environment([completion("Four.")], max_requests=1)
    result = await env.rollout(Action(message="2+2?", task_context=TaskContext(id="t")))
    assert result.termination_reason is TerminationReason.MAX_TOOL_ITERATIONS_REACHED
    assert len(result.trajectories) == 1


@pytest.mark.parametrize("recipe", [claude_code, codex, opencode, mini_swe_agent])
def test_recipes_fill_in_address_key_and_prompt(recipe: Any) -> None:
    values = {
        "prompt": "{do} it",
        "base_url": "http://h/s/x/v1",
        "anthropic_url": "http://h/s/x",
        "key": "k",
        "home": "/h",
    }
    filled = recipe().filled(values)
    told = " ".join([*filled.environment.values(), *filled.files.values()])
    assert "{do} it" in filled.command and "http://h/s/x" in told and "k" in told
    assert "{key}" not in told and "{model}" not in told


def test_options_of_the_agent_loop_are_refused() -> None:
    with pytest.raises(ValueError, match="max_tool_calls"):
        environment([], max_tool_calls=3)
