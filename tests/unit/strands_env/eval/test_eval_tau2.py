"""tau2-bench: on a stand-in for the package (`fakes/tau2`), and on the package itself where it is installed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strands_env.core import Action, TerminationReason
from strands_env.eval import DatasetError
from strands_env.eval.benchmarks import tau2_bench
from strands_env.eval.benchmarks.tau2_bench import Tau2Env, Tau2MockEvaluator, Tau2Reward, _tau2
from strands_env.testing import ScriptedModel, call, reply
from strands_env.training import samples_from_step
from strands_sglang import SGLangModel
from tests.provider_support import Replay, completion, tokenizer

FAKES = Path(__file__).parents[2] / "fakes"


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the package is looked for: the stand-in."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "tau2"}
    monkeypatch.syspath_prepend(FAKES)
    yield FAKES
    for name in [name for name in sys.modules if name.partition(".")[0] == "tau2"]:
        del sys.modules[name]
    sys.modules.update(kept)


def task() -> Action:
    (action,) = Tau2MockEvaluator(lambda: None).load_dataset()
    return action


def talk(agent: Any, user: Any, **options: Any) -> Any:
    models = {"user_model": lambda: ScriptedModel(user), **options}
    env = Tau2MockEvaluator.environment(lambda: ScriptedModel(agent), **models)()
    return asyncio.run(env.step(task()))


SOLVED = [reply("", call("pay", amount=5), call("double")), "<think>now what</think>Done."]


@pytest.mark.usefixtures("package")
def test_episode_begins_as_the_packages_and_is_scored_by_its_evaluator() -> None:
    agent = ScriptedModel(SOLVED)
    user = ScriptedModel([reply("", call("look")), "I pay 5.", "Thanks. ###STOP###"])
    env = Tau2MockEvaluator.environment(lambda: agent, user_model=lambda: user)()
    result = asyncio.run(env.step(task()))
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    assert result.reward.reward == 1.0
    assert {"end": "user_stop", "steps": 7, "errors": 0}.items() <= result.reward.info.items()
    assert env.system_prompt == "Serve the user.\nTake no cheques."
    assert agent.last_messages[0]["content"] == [{"text": "Hi! How can I help you today?"}]
    blocks = [block for message in user.last_messages for block in message["content"]]
    heard = ["Hi! How can I help you today?", "I pay 5.", "Done."]  # not what the agent thought
    assert [block["text"] for block in blocks if "text" in block] == heard
    assert {(item.agent_name, item.trainable) for item in result.trajectories} == {("agent", True), ("user", False)}
    with pytest.raises(RuntimeError, match="cannot score a saved rollout"):
        asyncio.run(Tau2Reward(Tau2Env(domain="mock", model_factory=lambda: agent)).compute(task(), result))


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("agent", "user", "limits", "end", "steps"),
    [
        (lambda messages: call("double"), ["Go.", ""], {"MAX_STEPS": 9}, "max_steps", 9),
        (lambda messages: "Hm.", lambda messages: "What?", {"MAX_STEPS": 8}, "max_steps", 8),
        (lambda messages: call("refund"), ["Go."], {"MAX_ERRORS": 3}, "too_many_errors", 7),
        ([reply(" ")], ["Go."], {}, "agent_error", 2),
    ],
)
def test_what_ends_an_episode_early_makes_it_worth_nothing(agent, user, limits, end, steps, monkeypatch):
    for name, value in limits.items():
        monkeypatch.setattr(tau2_bench, name, value)
    result = talk(agent, user)
    assert result.reward.reward == 0.0
    assert (result.reward.info["end"], result.reward.info["steps"]) == (end, steps)
    assert result.error is None


@pytest.mark.usefixtures("package")
def test_a_failing_user_is_an_error_and_no_score() -> None:
    for user in ([""], [RuntimeError("the key is wrong")]):
        result = talk(SOLVED, user)
        assert result.reward is None
        assert result.error is not None
    with pytest.raises(ValueError, match="unknown backend 'nothing'"):  # its model may be options
        Tau2MockEvaluator.environment(lambda: ScriptedModel([]), user_model={"backend": "nothing"})()


@pytest.mark.usefixtures("package")
def test_call_of_an_unknown_tool_gets_the_packages_answer_and_counts_as_an_error() -> None:
    result = talk([call("refund"), "Sorry."], ["Pay me.", "###STOP###"])
    (answer,) = (block["toolResult"] for block in result.observation.messages[2]["content"])
    assert answer["content"] == [{"text": "Error: Tool 'refund' not found."}]
    assert (result.reward.reward, result.reward.info["errors"]) == (0.0, 1)


def test_an_absent_package_or_another_of_its_name_is_one_sentence_with_the_line_that_installs_it(
    package, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", [item for item in sys.path if not (Path(item) / "tau2").is_dir()])
    with pytest.raises(DatasetError, match=r"^tau2-bench is not installed: git clone https://github.com/sierra-res"):
        list(Tau2MockEvaluator(lambda: None).load_dataset())
    (tmp_path / "tau2").mkdir()
    (tmp_path / "tau2" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DatasetError, match="which is another project"):
        Tau2MockEvaluator.environment(lambda: ScriptedModel([]))


@pytest.mark.usefixtures("package")
def test_an_episode_becomes_a_sample_that_holds_the_agents_tokens_and_its_reward() -> None:
    calls = '<tool_call>{"name": "pay", "arguments": {"amount":5}}</tool_call><tool_call>{"name": "double"}</tool_call>'
    agent = Replay([completion(calls, split=True), completion("Done.", split=True)])
    user = Replay([completion("I pay 5."), completion("###STOP###")])
    models = [SGLangModel(client=client, tokenizer=tokenizer()) for client in (agent, user)]
    env = Tau2MockEvaluator.environment(lambda: models[0], user_model=lambda: models[1])()
    result = asyncio.run(env.step(task()))
    (sample,) = samples_from_step(result)
    trained = [i for i, mask in zip(sample.token_ids, sample.loss_mask, strict=True) if mask]
    sampled = [turn.completion.output_ids for turn in models[0].conversation.forest.turns]
    assert trained == [i for ids in sampled for i in ids]
    assert [*agent.prompts[1], *sampled[1]] == list(sample.token_ids)
    assert (sample.reward, sample.end) == (1.0, result.end)


# ---- the package itself ----------------------------------------------------------------------------------------------

AGENT = [
    reply("", call("create_task", user_id="user_1", title="Important Meeting"), call("no_such", x=1)),
    reply("", call("create_task", user_id="nobody", title="x")),
    "Done.",
]
USER = ["Please create the task 'Important Meeting'.", "###STOP###"]


@pytest.fixture
def real() -> Any:
    try:
        return _tau2("orchestrator.orchestrator")
    except DatasetError as error:
        pytest.skip(str(error))


def played_by_the_package(real: Any, task_fields: dict[str, Any], **limits: int) -> Any:
    """The same script, run by the package's own orchestrator."""
    forms = _tau2("data_model.message")
    turns, said = iter(AGENT), iter(USER)

    class Script(_tau2("agent.base_agent").HalfDuplexAgent):  # type: ignore[misc]
        def get_init_state(self, message_history: Any = None) -> Any:
            return None

        def generate_next_message(self, message: Any, state: Any) -> Any:
            item: Any = next(turns)
            made = () if isinstance(item, str) else item.calls
            calls = [forms.ToolCall(id=f"{id(one)}", name=one.name, arguments=one.input) for one in made]
            content = item if isinstance(item, str) else None
            return forms.AssistantMessage(role="assistant", content=content, tool_calls=calls or None), state

    class User(_tau2("user.user_simulator").UserSimulator):  # type: ignore[misc]
        def _generate_next_message(self, message: Any, state: Any) -> Any:
            return forms.UserMessage(role="user", content=next(said))

    database = _tau2("registry").registry.get_env_constructor("mock")()
    orchestrator = real.Orchestrator(
        domain="mock",
        agent=Script(tools=[], domain_policy=""),
        user=User(llm="", instructions="x"),
        environment=database,
        task=_tau2("data_model.tasks").Task.model_validate(task_fields),
        **limits,
    )
    return _tau2("runner.simulation").run_simulation(orchestrator), orchestrator


@pytest.mark.parametrize("limits", [{"max_steps": 200, "max_errors": 10}, {"max_steps": 200, "max_errors": 2}])
def test_script_ends_as_in_the_packages_own_runner(real: Any, limits: dict[str, int], monkeypatch: Any) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(tau2_bench, name.upper(), value)
    action = next(iter(Tau2MockEvaluator(lambda: None).load_dataset()))
    user = {"user_model": lambda: ScriptedModel(USER)}
    env = Tau2MockEvaluator.environment(lambda: ScriptedModel(AGENT), **user)()
    ours = asyncio.run(env.step(action)).reward
    theirs, orchestrator = played_by_the_package(real, action.task_context.model_dump()["task"], **limits)
    assert ours.reward == theirs.reward_info.reward
    assert ours.info["end"] == theirs.termination_reason.value
    assert (ours.info["steps"], ours.info["errors"]) == (orchestrator.step_count, orchestrator.num_errors)
    assert ours.info["reward_info"] == theirs.reward_info.model_dump(mode="json", exclude_none=True)
