"""Evaluators of strands-agents-evals as rewards, its cases as tasks, and its simulated user in a conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from provider_support import add, tokenizer

from strands_env.core import Action, Environment, Outcome, Phase, StepResult, TerminationReason
from strands_env.core.identity import identify_reward
from strands_env.environments import ActorUser, ChatEnv
from strands_env.eval import Evaluator as Evaluation
from strands_env.rewards import actions_from_cases, from_evaluator, prove_reward
from strands_env.testing import ScriptedModel, call
from strands_sglang import SGLangModel
from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.testing import ScriptedClient

strands_evals = pytest.importorskip("strands_evals", reason="the extra strands-evals is not installed")
evaluators = strands_evals.evaluators
from strands_evals.evaluators.deterministic import Contains, Equals, StateEquals, ToolCalled  # noqa: E402
from strands_evals.types import EvaluationOutput  # noqa: E402
from strands_evals.types.simulation import ActorProfile  # noqa: E402

CASE = strands_evals.Case(
    name="sum",
    input="What is 1 + 2?",
    expected_output="3",
    expected_assertion="adds once",
    expected_trajectory=["add"],
    metadata={"level": 1},
)
[TASK] = actions_from_cases([CASE])
VERDICT = {"score": 0.75, "test_pass": True, "reason": "good enough"}


class Sums(Environment):
    def get_tools(self) -> list[Any]:
        return [add]


async def episode(evaluator: Any, *script: Any, **options: Any) -> StepResult:
    model = list(script) or [call("add", a=1, b=2), "3"]
    env = Sums(model_factory=lambda: ScriptedModel(list(model)), reward_fn=from_evaluator(evaluator, **options))
    return await env.rollout(TASK)


class Outputs(evaluators.Evaluator):
    """Gives these outputs, or raises; keeps what it was given."""

    def __init__(self, *outputs: Any) -> None:
        super().__init__()
        self.outputs = outputs

    def evaluate(self, evaluation_case: Any) -> Any:
        self.case = evaluation_case
        if isinstance(self.outputs[0], Exception):
            raise self.outputs[0]
        return None if self.outputs[0] == "nothing" else list(self.outputs)


@pytest.mark.parametrize(
    ("evaluator", "reward"),
    [
        (Equals(), 1.0),
        (Equals("4"), 0.0),
        (Contains("3"), 1.0),
        (ToolCalled("add"), 1.0),
        (ToolCalled("subtract"), 0.0),
    ],
    ids=["expected", "another", "contains", "called", "not-called"],
)
async def test_deterministic_evaluators_are_rewards(evaluator: Any, reward: float) -> None:
    result = await episode(evaluator)
    assert result.reward is not None and result.reward.reward == reward, result.error
    info = result.reward.info
    assert info["pass"] is bool(reward) and info["reason"] and info["evaluator"] == type(evaluator).__name__


async def test_an_evaluator_sees_the_case_and_the_whole_conversation() -> None:
    evaluator = Outputs(EvaluationOutput(**VERDICT))
    await episode(evaluator)
    seen = evaluator.case
    assert (seen.input, seen.actual_output, seen.expected_output, seen.name) == ("What is 1 + 2?", "3", "3", "sum")
    assert (seen.expected_assertion, seen.expected_trajectory, seen.metadata) == ("adds once", ["add"], {"level": 1})
    called, answered = seen.actual_trajectory.traces[0].spans
    assert (called.tool_call.name, called.tool_call.arguments) == ("add", {"a": 1, "b": 2})
    assert (called.tool_result.content, called.tool_result.error) == ("3", None)
    assert (answered.user_prompt, answered.agent_response) == ("What is 1 + 2?", "3")
    assert [each.name for each in answered.available_tools] == ["add"]


async def test_a_field_that_an_evaluator_needs_is_given() -> None:
    state = [{"name": "cart", "state": ["lamp"]}]
    result = await episode(
        StateEquals("cart", ["lamp"]), fields=lambda action, step: {"actual_environment_state": state}
    )
    assert result.reward is not None and result.reward.reward == 1.0


@pytest.mark.parametrize(
    ("outputs", "reward"),
    [
        ([{"score": 1.0, "test_pass": True}, {"score": 0.5, "test_pass": False}], 0.75),
        ([{"score": 1.0, "test_pass": True}, {"score": 0.0, "test_pass": True, "label": "not_applicable"}], 1.0),
        ([{"score": 0.0, "test_pass": True, "label": "not_applicable"}], None),
    ],
    ids=["mean", "one-applies", "none-applies"],
)
async def test_several_outputs_are_one_score_of_those_that_judge(outputs: list[Any], reward: float | None) -> None:
    result = await episode(Outputs(*(EvaluationOutput(**output) for output in outputs)))
    assert result.reward is not None and result.reward.reward == reward
    assert len(result.reward.info["outputs"]) == len(outputs)
    assert result.termination_reason is TerminationReason.TASK_COMPLETE  # to abstain is no failure


@pytest.mark.parametrize(
    "output",
    [ValueError("no judge"), AttributeError("'NoneType' object has no attribute 'score'"), None, "nothing"],
    ids=["raises", "none-inside", "no-output", "no-list"],
)
@pytest.mark.parametrize("answer", ["3", ""], ids=["answered", "silent"])
async def test_an_evaluator_that_fails_is_the_graders_failure(output: Any, answer: str) -> None:
    result = await episode(Outputs(output), answer)
    assert result.reward is None and result.outcome is Outcome.GRADER
    assert result.error is not None and result.error.where is Phase.REWARD and result.error.message


def scripted_model(script: list[str]) -> SGLangModel:
    client = ScriptedClient(script, tokenizer=tokenizer())
    return SGLangModel(
        client=client, tokenizer=tokenizer(), tool_parser="hermes", chat_template=HERMES_TEMPLATE, vocab_size=1024
    )


def hermes(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    ("make", "verdict", "reward"),
    [
        (
            lambda model: evaluators.OutputEvaluator("correct?", model=model),
            hermes("EvaluationOutput", **VERDICT),
            0.75,
        ),
        (
            lambda model: evaluators.HelpfulnessEvaluator(model=model),
            hermes("HelpfulnessRating", reasoning="r", score="Very helpful"),
            0.833,
        ),
        (
            lambda model: evaluators.GoalSuccessRateEvaluator(model=model),
            hermes("GoalSuccessAssertionRating", reasoning="r", verdict="SUCCESS"),
            1.0,
        ),
    ],
    ids=["output", "trace", "session-in-a-thread"],
)
async def test_an_evaluator_asks_our_model_and_its_tokens_are_in_no_row(make: Any, verdict: str, reward: float) -> None:
    judges: list[SGLangModel] = []

    def evaluator() -> Any:
        judges.append(scripted_model([verdict, "done"]))
        return make(judges[-1])

    env = Sums(
        model_factory=lambda: scripted_model([hermes("add", a=1, b=2), "It is 3."]), reward_fn=from_evaluator(evaluator)
    )
    result = await env.rollout(TASK)
    assert result.reward is not None and result.reward.reward == reward, result.error
    [judge] = judges
    assert judge.trajectories  # it was asked
    [row] = result.trajectories
    assert row.agent_name == "agent" and row.tokens == result.observation.tokens


async def test_a_proof_asks_no_judge_unasked() -> None:
    judge = from_evaluator(evaluators.OutputEvaluator("correct?", model=ScriptedModel([])))
    assert (await prove_reward([TASK], judge)).skipped
    proof = await prove_reward([TASK], from_evaluator(Equals()))
    assert proof.wins and proof.loses


async def test_cases_are_the_tasks_of_an_evaluation() -> None:
    cases = [CASE, strands_evals.Case(input=[{"text": "What is 2 + 2?"}], expected_output="4")]
    tasks = actions_from_cases(cases)
    assert [task.task_context.id for task in tasks] == ["sum", "case-1"]
    assert tasks[1].text == "What is 2 + 2?" and tasks[1].task_context.ground_truth == "4"
    run = Evaluation(
        lambda: Environment(model_factory=lambda: ScriptedModel(["3"]), reward_fn=from_evaluator(Equals())),
        output_path=None,
    )
    results = await run.run(tasks)
    assert {name: samples[0].reward for name, samples in results.items()} == {"sum": 1.0, "case-1": 0.0}


def test_another_evaluator_is_another_reward_for_a_resumed_run() -> None:
    one, same, other = (identify_reward(from_evaluator(Contains(value))) for value in ("a", "a", "b"))
    assert one == same != other and not one["unknown"]


async def test_what_is_no_evaluator_is_refused() -> None:
    with pytest.raises(TypeError, match="evaluator must be an Evaluator, or a function that makes one, got 'exact'"):
        from_evaluator("exact")  # type: ignore[arg-type]
    result = await episode(lambda: None, "")  # also where the policy gave no answer
    assert result.outcome is Outcome.GRADER and result.error is not None
    assert result.error.message == "the function given to from_evaluator must return an Evaluator, got None"
    scored = await episode(Equals)
    assert scored.reward is not None and scored.reward.reward == 1.0


def test_what_is_no_case_and_no_maker_of_actors_is_refused() -> None:
    with pytest.raises(TypeError, match=r"cases\[0\] is 'sum', expected a Case of strands_evals"):
        actions_from_cases(["sum"])  # type: ignore[list-item]
    actor = strands_evals.ActorSimulator(PROFILE, "hello", model=ScriptedModel([]))
    with pytest.raises(TypeError, match=r"make_actor=<.*>: expected a function that makes an actor from the task"):
        ActorUser(actor)


PROFILE = ActorProfile(traits={"mood": "terse"}, context="a shop", actor_goal="a refund")


def says(message: str | None = None) -> Any:
    return call("ActorResponse", reasoning="r", stop=message is None, message=message)


async def chat(actor_says: list[Any], answers: list[str], **options: Any) -> StepResult:
    def make_actor(action: Action) -> Any:
        return strands_evals.ActorSimulator(PROFILE, action.text, model=ScriptedModel(actor_says), **options)

    env = ChatEnv(model_factory=lambda: ScriptedModel(answers), user=ActorUser(make_actor))
    return await env.rollout(Action(message="hello"))


@pytest.mark.parametrize(
    ("actor_says", "options", "spoken"),
    [
        ([says("order 7"), says()], {}, ["hello", "Which order?", "order 7", "Done."]),
        ([says("order 7")], {"max_turns": 1}, ["hello", "Which order?"]),
        ([says("")], {}, ["hello", "Which order?"]),
    ],
    ids=["until-it-stops", "until-its-last-turn", "until-it-says-nothing"],
)
async def test_the_actor_talks_and_only_the_assistant_is_in_the_rows(
    actor_says: list[Any], options: dict[str, Any], spoken: list[str]
) -> None:
    result = await chat(actor_says, ["Which order?", "Done."], **options)
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, result.error
    assert [message["content"][0]["text"] for message in result.observation.messages] == spoken
    assert [row.agent_name for row in result.trajectories] == ["agent"]


async def test_an_actor_that_fails_is_not_the_policys_failure() -> None:
    result = await chat([], ["Which order?"])
    assert result.outcome is Outcome.INFRASTRUCTURE and result.error is not None
