"""Tasks of inspect_ai: its solvers and agents on exact trajectories, and their ends in our table of outcomes."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="the package inspect-ai is not installed (extra 'inspect')")

from benchmarks import others_readers
from inspect_ai import Task, eval_async
from inspect_ai.agent import AgentState, agent, as_tool, handoff, react
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageUser,
    CompactionSummary,
    ContentImage,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ResponseSchema,
    get_model,
)
from inspect_ai.scorer import Score, accuracy, includes, model_graded_qa, scorer
from inspect_ai.scorer import choice as choice_scorer
from inspect_ai.solver import fork, generate, multiple_choice, solver, use_tools
from inspect_ai.tool import ToolFunction, tool
from inspect_ai.util import JSONSchema, SandboxEnvironment, sandbox, sandboxenv

from strands_env.commands.cli import main as command_line
from strands_env.core import Action, Outcome, TaskContext, TerminationReason
from strands_env.environments import InspectEnvironment
from strands_env.environments.inspect import InspectReward, InspectTaskError
from strands_env.eval import read_results
from strands_env.training import samples_from_step
from strands_sglang import SGLangModel
from strands_sglang.exceptions import BackendConnectionError
from strands_sglang.testing import Reply, ScriptedClient
from tests.conftest import ROOT
from tests.provider_support import completion, tokenizer
from tests.slime_support import Sample as SlimeRow
from tests.slime_support import check, rig

__all__ = ["rig"]


class Recorder(ScriptedClient):
    """A client that notes what it was asked and what it sampled, apart from any trajectory."""

    def __init__(self, replies: Any) -> None:
        super().__init__(replies, tokenizer=tokenizer())
        self.calls: list[tuple[list[int], list[int]]] = []

    async def generate(self, input_ids: Any, **fields: Any) -> dict[str, Any]:
        answer = await super().generate(input_ids, **fields)
        self.calls.append((list(input_ids), list(answer["output_ids"])))
        return answer


def check_exact(client: Recorder, models: list[Any]) -> list[Any]:
    """Each call is a stretch of one path, and each sampled token is trained in exactly one."""
    paths = [path for model in models for path in model.trajectories]
    for prompt, sampled in client.calls:
        whole = [*prompt, *sampled]
        assert any(list(path.tokens.token_ids[: len(whole)]) == whole for path in paths)
    assert sum(sum(path.tokens.loss_mask) for path in paths) == sum(len(sampled) for _, sampled in client.calls)
    return [path for path in paths if any(path.tokens.loss_mask)]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@solver
def waiting() -> Any:
    async def solve(state: Any, generate: Any) -> Any:
        await asyncio.sleep(3600)
        return state

    return solve


@tool
def add() -> Any:
    async def execute(a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: one number
            b: another
        """
        await asyncio.sleep(0.01 if a > b else 0)  # the first of two calls ends last
        return str(a + b)

    return execute


def task_of(solver: Any, score: Any = None, **options: Any) -> Task:
    sample = Sample(input="What is 20 + 22?", target="42", id="sum")
    return Task(dataset=[sample], solver=solver, scorer=score or includes(), name="sums", **options)


async def evaluate(
    task: Task, replies: Any, folder: Path, *, results: str | None = None, **options: Any
) -> tuple[Any, Recorder, list[Any]]:
    """inspect's own evaluation of a task with our provider."""
    client, models = Recorder(replies), []

    def make() -> SGLangModel:
        models.append(SGLangModel(client=client, tokenizer=tokenizer()))
        return models[-1]

    model = get_model("strands-rollout/policy", memoize=False, model_factory=make, results=results)
    (log,) = await eval_async(
        task, model, log_dir=str(folder), score_display=False, log_level="critical", ctl_server=False, **options
    )
    return log, client, models


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Any:
    """inspect's own evaluation sets level and handlers of the root logger for the whole process."""
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    yield
    root.setLevel(level)
    for handler in [*root.handlers]:
        if handler not in handlers and type(handler).__module__.startswith("inspect_ai"):
            root.removeHandler(handler)


# ---- the provider ----------------------------------------------------------------------------------------------------


@agent
def helper() -> Any:
    async def execute(state: AgentState) -> AgentState:
        """Helps with sums."""
        state.output = await get_model().generate(state.messages)
        state.messages.append(state.output.message)
        return state

    return execute


@solver
def ask_thrice() -> Any:
    """The same question three times, of which the second answer is kept, then a question more."""

    async def solve(state: Any, generate: Any) -> Any:
        outputs = [await get_model().generate(state.messages) for _ in range(3)]
        state.messages.append(outputs[1].message)
        state.messages.append(ChatMessageUser(content="Are you sure?"))
        return await generate(state)

    return solve


@solver
def fork_twice() -> Any:
    async def solve(state: Any, generate: Any) -> Any:
        state = await generate(state)
        states = await fork(state, [generate_more("x"), generate_more("y")])
        return states[1]

    return solve


@solver
def generate_more(text: str) -> Any:
    async def solve(state: Any, generate: Any) -> Any:
        state.messages.append(ChatMessageUser(content=text))
        return await generate(state)

    return solve


@solver
def cached() -> Any:
    async def solve(state: Any, generate: Any) -> Any:
        state = await generate(state, cache=True)
        state.messages.append(ChatMessageUser(content="Once more."))
        return await generate(state)

    return solve


SUBMIT = call("submit", answer="42")
SOLVERS: dict[str, tuple[Any, list[str], list[tuple[str | None, str, bool]]]] = {
    "a loop": ([use_tools(add()), generate()], [call("add", a=20, b=22), "42"], [(None, "main", True)]),
    "parallel calls": (
        [use_tools(add()), generate()],
        [call("add", a=3, b=2) + "\n" + call("add", a=1, b=2), "42"],
        [(None, "main", True)],
    ),
    "an agent": (react(tools=[add()]), [call("add", a=20, b=22), SUBMIT], [("react", "main", True)]),
    "a malformed call": (
        react(tools=[add()]), ['<tool_call>\n{"name": "add", "arg</tool_call>', SUBMIT], [("react", "main", True)],
    ),
    "a sub-agent": (
        react(tools=[as_tool(helper())]), [call("helper", input="20 + 22?"), "It is 42.", SUBMIT],
        [("helper", "subagent", True), ("react", "main", True)],
    ),
    "a handoff": (
        # The history of the first agent goes on with the words of the second: a new path.
        react(tools=[handoff(helper())]), [call("transfer_to_helper"), "It is 42.", SUBMIT],
        [("helper", "subagent", True), ("react", "main", True), ("react", "main", True)],
    ),
    "retries": (ask_thrice(), ["41", "42", "43", "42"], [(None, "main", True)] * 3),
    "forks": (fork_twice(), ["one", "42", "42"], [(None, "main", True)] * 2),
}  # fmt: skip


@pytest.mark.parametrize("name", SOLVERS)
async def test_any_solver_gives_exact_paths_with_names(name: str, tmp_path: Path) -> None:
    solver, replies, expected = SOLVERS[name]
    log, client, models = await evaluate(task_of(solver), replies, tmp_path)
    assert log.status == "success" and log.samples[0].error is None
    assert log.samples[0].scores["includes"].value == "C" and len(client.calls) == len(replies)
    paths = check_exact(client, models)
    assert sorted(map(str, expected)) == sorted(
        str((path.agent_name, str(path.role), path.trainable)) for path in paths
    )


async def test_a_summary_is_recorded_and_not_trained(tmp_path: Path) -> None:
    long = "word " * 1500
    solver = react(tools=[add()], compaction=CompactionSummary(threshold=1500, memory=False))
    replies = [call("add", a=20, b=22) + long, "A summary.", SUBMIT]
    log, client, models = await evaluate(task_of(solver), replies, tmp_path)
    assert log.samples[0].error is None, log.samples[0].error.traceback[-1500:]
    assert log.samples[0].scores["includes"].value == "C" and len(client.calls) == 3
    paths = check_exact(client, models)
    assert {str(path.role): path.trainable for path in paths} == {"main": True, "summary": False}


async def test_a_cached_reply_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSPECT_CACHE_DIR", str(tmp_path / "cache"))
    sizes = []
    for replies in (["It is 42.", "42"], ["42"]):
        log, client, models = await evaluate(task_of(cached()), replies, tmp_path)
        assert log.samples[0].scores["includes"].value == "C" and len(client.calls) == len(replies)
        sizes.append(len(check_exact(client, models)))
    assert sizes == [1, 1]


async def generate_once(messages: Any, replies: Any, tools: Any = (), choice: Any = None, **config: Any) -> Any:
    client = Recorder(replies)
    model = get_model(
        "strands-rollout/policy",
        memoize=False,
        model_factory=lambda: SGLangModel(client=client, tokenizer=tokenizer()),
    )
    return await model.generate(messages, list(tools), choice, GenerateConfig(**config)), client


async def test_options_of_a_call_reach_the_backend_or_are_refused() -> None:
    output, client = await generate_once(
        "Hi", ["Hello STOP"], temperature=0.5, seed=7, max_tokens=9, stop_seqs=["STOP"]
    )
    params = client.requests[0].fields["sampling_params"]
    assert {name: params[name] for name in ("temperature", "sampling_seed", "max_new_tokens", "stop")} == {
        "temperature": 0.5, "sampling_seed": 7, "max_new_tokens": 9, "stop": ["STOP"]
    }  # fmt: skip
    output, _ = await generate_once("Hi", [Reply(text="Hello", finish="length")], logprobs=True)
    assert output.stop_reason == "max_tokens" and len(output.choices[0].logprobs.content) == output.usage.output_tokens
    schema = ResponseSchema(name="s", json_schema=JSONSchema(type="object"))
    output, client = await generate_once("Hi", ["{}"], response_schema=schema)
    assert json.loads(client.requests[0].fields["sampling_params"]["json_schema"]) == {"type": "object"}
    refused: dict[str, Any] = {
        "num_choices": 2, "best_of": 3, "logit_bias": {1: 2.0}, "top_logprobs": 2, "modalities": ["image"],
        "parallel_tool_calls": False, "reasoning_effort": "high", "extra_headers": {"a": "b"},
    }  # fmt: skip
    for name, value in refused.items():
        with pytest.raises(Exception, match=f"{name}=.* is not supported: "):
            await generate_once("Hi", ["Hello"], **{name: value})


async def test_a_forced_call_is_a_grammar_or_refused_and_none_leaves_calls_in_the_text() -> None:
    for choice in ("any", ToolFunction(name="add")):
        output, client = await generate_once("Hi", [call("add", a=1, b=2)], [add()], choice)
        assert "ebnf" in client.requests[0].fields["sampling_params"] and output.stop_reason == "tool_calls"
        with pytest.raises(Exception, match=r"tool_choice=.* cannot be enforced"):
            await forced_without_grammars(choice)
    output, client = await generate_once("Hi", [call("add", a=1, b=2)], [add()], "none")
    assert not output.message.tool_calls and "add" in output.completion


async def forced_without_grammars(choice: Any) -> None:
    model = get_model(
        "strands-rollout/policy",
        memoize=False,
        model_factory=lambda: SGLangModel(
            client=Recorder(["x"]), tokenizer=tokenizer(), sampling_params={"regex": "x+"}
        ),
    )
    await model.generate("Hi", [add()], choice)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([ContentImage(image="data:image/png;base64,aGk=")], "the template takes only text"),
        ([ContentReasoning(reasoning="?", redacted=True)], "redacted reasoning"),
    ],
)
async def test_content_that_cannot_be_shown_is_refused(content: Any, sentence: str) -> None:
    message = ChatMessageUser if isinstance(content[0], ContentImage) else ChatMessageAssistant
    with pytest.raises(Exception, match=sentence):
        await generate_once(
            [ChatMessageUser(content="Hi"), message(content=content), ChatMessageUser(content="So?")], ["x"]
        )


async def test_reasoning_goes_out_and_comes_back_as_the_same_turn(tmp_path: Path) -> None:
    replies = ["<think>\nHard.\n</think>\n\n41", "42"]
    log, client, models = await evaluate(task_of([generate(), generate_more("Again.")]), replies, tmp_path)
    first = next(message for message in log.samples[0].messages if message.role == "assistant")
    assert [type(part) for part in first.content] == [ContentReasoning, ContentText]
    assert len(check_exact(client, models)) == 1


# ---- the environment -------------------------------------------------------------------------------------------------


def make_env(task: Any, replies: Any, **options: Any) -> InspectEnvironment:
    client = Recorder(replies)
    models: list[Any] = []

    def make() -> SGLangModel:
        models.append(SGLangModel(client=client, tokenizer=tokenizer()))
        return models[-1]

    env = InspectEnvironment(model_factory=make, task=task, **options)
    env.client, env.models = client, models  # type: ignore[attr-defined]
    return env


async def roll(env: InspectEnvironment, action: Action | None = None) -> Any:
    result = await env.rollout(action or next(env.task.actions()))
    assert result.cleanup_error is None
    return result


@pytest.mark.parametrize("name", ["a loop", "an agent", "a sub-agent"])
async def test_a_task_is_an_environment(name: str) -> None:
    solver, replies, expected = SOLVERS[name]
    result = await roll(env := make_env(task_of(solver), replies))
    assert (result.termination_reason, result.reward.reward) == (TerminationReason.TASK_COMPLETE, 1.0)
    assert result.observation.final_response == "42"
    assert len(check_exact(env.client, env.models)) == len(expected)
    assert {str(path.role) for path in result.trajectories} == {role for _, role, _ in expected}
    assert result.observation.metrics["model_calls"] == len(replies)


@scorer(metrics=[accuracy()])
def failing() -> Any:
    async def score(state: Any, target: Any) -> Any:
        raise ValueError("no grader here")

    return score


@scorer(metrics=[accuracy()])
def giving(value: Any, **more: Any) -> Any:
    async def score(state: Any, target: Any) -> Any:
        return Score(value=value, **more)

    return score


@scorer(metrics=[accuracy()])
def by_sandbox() -> Any:
    async def score(state: Any, target: Any) -> Any:
        done = await sandbox().exec(["true"])
        return Score(value="C" if done.success else "I")

    return score


@solver
def raising() -> Any:
    async def solve(state: Any, generate: Any) -> Any:
        raise KeyError("broken")

    return solve


@solver
def swallowing() -> Any:
    async def solve(state: Any, generate: Any) -> Any:
        try:
            return await generate(state)
        except Exception:
            return state

    return solve


@solver
def endless() -> Any:
    async def solve(state: Any, generate: Any) -> Any:
        state = await generate(state)
        await asyncio.sleep(60)
        return state

    return solve


@solver
def asking_user() -> Any:
    async def solve(state: Any, generate: Any) -> Any:
        state.output = await get_model(role="user").generate(state.messages)
        return state

    return solve


@solver
def silent() -> Any:
    async def solve(state: Any, generate: Any) -> Any:
        return state

    return solve


@sandboxenv(name="dying")
class DyingSandbox(SandboxEnvironment):
    """A sandbox that answers no more."""

    async def exec(self, cmd: Any, **options: Any) -> Any:
        raise RuntimeError("the container is gone")

    async def write_file(self, file: str, contents: Any) -> None:
        raise RuntimeError("the container is gone")

    async def read_file(self, file: str, text: bool = True) -> Any:
        raise RuntimeError("the container is gone")

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: Any) -> Any:
        if metadata.get("cannot_start"):
            raise RuntimeError("no room for a container")
        return {"default": cls()}

    @classmethod
    async def sample_cleanup(cls, task_name: str, config: Any, environments: Any, interrupted: bool) -> None:
        return None


ADDING = [use_tools(add()), generate()]
ADDS = [call("add", a=1, b=2)] * 9
R = TerminationReason
ENDS: dict[str, tuple[Task, list[Any], dict[str, Any], TerminationReason, Outcome, float | None]] = {
    "an answer": (task_of(generate()), ["42"], {}, R.TASK_COMPLETE, Outcome.POLICY, 1.0),
    "a wrong answer": (task_of(generate()), ["41"], {}, R.TASK_COMPLETE, Outcome.POLICY, 0.0),
    "a scorer that raises": (task_of(generate(), failing()), ["42"], {}, R.REWARD_ERROR, Outcome.GRADER, None),
    "a grader without a verdict": (
        task_of(generate(), giving(0.0, reason="grader_failed")), ["42"], {}, R.REWARD_ERROR, Outcome.GRADER, None,
    ),
    "a score that is none": (task_of(generate(), giving(math.nan)), ["42"], {}, R.TASK_COMPLETE, Outcome.POLICY, None),
    "several values": (task_of(generate(), giving({"a": 1, "b": 0})), ["42"], {}, R.REWARD_ERROR, Outcome.GRADER, None),
    "one of them": (
        task_of(generate(), giving({"a": 0.25, "b": 0})), ["42"], {"score": "giving.a"},
        R.TASK_COMPLETE, Outcome.POLICY, 0.25,
    ),
    "messages": (task_of(ADDING, message_limit=4), ADDS, {}, R.MAX_MESSAGES_REACHED, Outcome.POLICY, 0.0),
    "tokens": (task_of(ADDING, token_limit=100), ADDS, {}, R.TOKEN_BUDGET_REACHED, Outcome.POLICY, 0.0),
    "turns": (task_of(ADDING, turn_limit=2), ADDS, {}, R.MAX_TOOL_ITERATIONS_REACHED, Outcome.POLICY, 0.0),
    "time of the task": (task_of(endless(), time_limit=1), ["42"], {}, R.TASK_TIME_LIMIT_REACHED, Outcome.POLICY, 1.0),
    "time of the step": (task_of(endless()), ["42"], {"step_timeout": 0.2}, R.TIMEOUT, Outcome.POLICY, 1.0),
    "our budget": (task_of(ADDING), ADDS, {"max_total_tokens": 400}, R.TOKEN_BUDGET_REACHED, Outcome.POLICY, 0.0),
    "a reply cut": (task_of(generate(max_tokens=1)), ["42 is it"], {}, R.MAX_TOKENS_REACHED, Outcome.POLICY, 0.0),
    "a solver that raises": (task_of(raising()), [], {}, R.UNCLASSIFIED_ERROR, Outcome.INFRASTRUCTURE, None),
    "no server": (
        task_of(generate()), [BackendConnectionError("refused")], {}, R.CONNECTION_ERROR, Outcome.INFRASTRUCTURE, None,
    ),
    "no server, unseen": (
        task_of(swallowing()), [BackendConnectionError("refused")], {},
        R.CONNECTION_ERROR, Outcome.INFRASTRUCTURE, None,
    ),
    "nothing sampled": (task_of(silent()), [], {}, R.UNCLASSIFIED_ERROR, Outcome.INFRASTRUCTURE, None),
    "a sandbox that dies": (
        task_of(generate(), by_sandbox(), sandbox="dying"), ["42"], {}, R.TOOL_ERROR, Outcome.INFRASTRUCTURE, None,
    ),
    "a sandbox of another name": (
        task_of(generate(), sandbox="nowhere"), ["42"], {}, R.UNCLASSIFIED_ERROR, Outcome.INFRASTRUCTURE, None,
    ),
    "a role that nobody named": (
        task_of(asking_user()), ["42"], {}, R.UNCLASSIFIED_ERROR, Outcome.INFRASTRUCTURE, None,
    ),
    "our agent": (task_of(raising()), ["42"], {"own_agent": True}, R.TASK_COMPLETE, Outcome.POLICY, 1.0),
    "our agent with the task's tools": (
        task_of(raising(), setup=use_tools(add())), [call("add", a=20, b=22), "42"], {"own_agent": True},
        R.TASK_COMPLETE, Outcome.POLICY, 1.0,
    ),
    "our agent's limit": (
        task_of(raising(), setup=use_tools(add())), ADDS, {"own_agent": True, "max_tool_iters": 2},
        R.MAX_TOOL_ITERATIONS_REACHED, Outcome.POLICY, 0.0,
    ),
    "our reward": (
        task_of(generate(), failing()), ["42"], {"reward_fn": lambda action, result: 0.5}, R.TASK_COMPLETE,
        Outcome.POLICY, 0.5,
    ),
}  # fmt: skip


SAID = {
    "a scorer that raises": "no grader here",
    "a grader without a verdict": "could not grade: grader_failed",
    "several values": "gives the scores giving.a, giving.b, several: name one with score=",
    "a solver that raises": "broken",
    "nothing sampled": "the task sampled nothing from the policy",
    "a sandbox that dies": "does not answer: the container is gone",
    "a sandbox of another name": "'nowhere' not recognized",
    "a role that nobody named": "the task asks for a model in the role 'user': name one",
}
"""What the errors say."""


@pytest.mark.parametrize("name", ENDS)
async def test_ends_are_those_of_our_table(name: str) -> None:
    task, replies, options, reason, outcome, reward = ENDS[name]
    result = await roll(env := make_env(task, replies, **options))
    assert (result.termination_reason, result.outcome) == (reason, outcome)
    assert (None if result.reward is None else result.reward.reward) == reward
    if (said := SAID.get(name)) is not None:
        assert said in result.end.error.message
    check_exact(env.client, env.models)


async def test_episodes_of_several_tasks_run_at_once_and_one_that_is_cancelled_leaves_the_others() -> None:
    logging.getLogger().setLevel(before := logging.getLogger().level)
    handlers = [*logging.getLogger().handlers]
    envs = [make_env(task_of(generate()), [answer]) for answer in ("42", "41", "42")]
    stopped = asyncio.ensure_future(roll(make_env(task_of(endless()), ["42"])))
    running = asyncio.gather(*map(roll, envs))
    await asyncio.sleep(0.5)
    stopped.cancel()
    assert [result.reward.reward for result in await running] == [1.0, 0.0, 1.0]
    with pytest.raises(asyncio.CancelledError):
        await stopped
    assert (logging.getLogger().level, logging.getLogger().handlers) == (before, handlers)


async def test_the_policy_as_grader_and_a_named_grader_are_not_trained() -> None:
    graded = task_of(generate(), model_graded_qa())
    result = await roll(env := make_env(graded, ["42", "GRADE: C"]))
    assert result.reward.reward == 1.0 and len(env.client.calls) == 2 and len(result.trajectories) == 1
    other = Recorder(["GRADE: I"])
    roles = {"grader": lambda: SGLangModel(client=other, tokenizer=tokenizer())}
    result = await roll(make_env(task_of(generate(), model_graded_qa()), ["42"], model_roles=roles))
    assert result.reward.reward == 0.0 and len(other.calls) == 1


async def test_sampling_parameters_of_the_model_come_before_those_of_the_task() -> None:
    task = task_of(generate(), config=GenerateConfig(temperature=0.25, top_p=0.5))
    env = make_env(task, ["42"])
    make = env.model_factory
    env.model_factory = lambda: with_temperature(make())
    await roll(env)
    params = env.client.requests[0].fields["sampling_params"]
    assert (params["temperature"], params["top_p"]) == (1.0, 0.5)


def with_temperature(model: Any) -> Any:
    model.update_config(sampling_params={"temperature": 1.0})
    return model


async def test_actions_have_the_samples_of_the_data_and_others_can_be_asked() -> None:
    task = Task(
        dataset=[Sample(input="Which?", target="B", choices=["x", "y"], id="q", metadata={"level": 3})],
        solver=multiple_choice(), scorer=choice_scorer(), name="choices",
    )  # fmt: skip
    (action,) = (env := make_env(task, ["ANSWER: B", "ANSWER: A"])).task.actions()
    assert (action.task_context.id, action.task_context.ground_truth, action.choices) == ("choices/q", "B", ["x", "y"])
    assert (await roll(env, action)).reward.reward == 1.0
    other = Action(message="And?", task_context=TaskContext(ground_truth="B", choices=["x", "y"]))
    assert (await roll(env, other)).reward.reward == 0.0


async def test_a_single_reply_is_scored_again_without_its_episode_and_more_are_not() -> None:
    env = make_env(task_of(generate()), ["42"])
    reward, action = env.reward_fn, next(env.task.actions())
    assert isinstance(reward, InspectReward)
    result = await roll(env)
    assert (await reward.compute(action, result)).reward == 1.0
    used = await roll(make_env(task_of(ADDING), [call("add", a=1, b=2), "42"]))
    assert (again := await reward.compute(action, used)).reward is None and "several turns" in again.info["reason"]


FILE = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample

@task
def one():
    return Task(dataset=[Sample(input="?")])

@task
def two():
    raise ValueError("bad data")

@task
def three():
    import no_such_package

@task
def four():
    raise ConnectionError("no hub")
"""


def test_a_task_that_cannot_be_had_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "two.py"
    file.write_text(FILE)
    for name, sentence in {
        "missing.py": "there is no file 'missing.py'",
        "no_such_package/task": "needs a package: pip install no-such-package",
        "inspect_ai/nothing": "there is no task 'inspect_ai/nothing'",
        f"{file}@two": "cannot be made: ValueError: bad data",
        f"{file}@three": "needs a package: pip install no_such_package",
        f"{file}@four": "reads its data from the hub, which gave none",
    }.items():
        with pytest.raises(InspectTaskError, match=sentence):
            list(make_env(name, []).task.actions())
    assert len(list(make_env(f"{file}@one", []).task.actions())) == 1


# ---- who takes environments ------------------------------------------------------------------------------------------


SUMS = str(ROOT / "examples" / "inspect_sums.py")


async def test_slime_takes_a_task_as_any_environment(rig: Any) -> None:
    rig.environment, rig.options = InspectEnvironment, {"task": SUMS}
    rig.serve(completion(call("add", a=7, b=13)), completion("It is 20"))
    sample = await rig.run(SlimeRow(prompt="The prompt of the row", label="20", metadata={"id": f"{SUMS}/1"}))
    check(sample)
    assert sample.reward == 1.0 and "What is 7 + 13?" in tokenizer().decode(sample.tokens)
    rig.serve(completion("It is 20"))
    sample = await rig.run(SlimeRow(prompt="What is 1 + 2?", label="3"))
    assert sample.reward == 0.0 and "What is 1 + 2?" in tokenizer().decode(sample.tokens)


def test_a_task_is_evaluated_saved_checked_scored_again_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # the name of a task is part of its samples' ids
    name, run = "inspect:examples/inspect_sums.py", str(tmp_path / "run")
    tiny = ["--backend", "local", "--model-id", "tiny", "--max-new-tokens", "8", "-q"]
    arguments = ["eval", name, *tiny, "--limit", "3", "--env-config", '{"task_args": {"count": 4}}', "-o", run]
    assert command_line(arguments) == 0
    assert "3 of 3 prompts, 3 scored" in capsys.readouterr().out
    assert [each.prompt_id for each in read_results(run)] == [f"examples/inspect_sums.py/{n}" for n in (1, 2, 3)]
    assert command_line(["export", run, "-o", str(tmp_path / "rows.parquet"), "--format", "samples"]) == 0
    assert command_line(["rescore", run, "-q"]) == 0 and "changed     0 of 3" in capsys.readouterr().out
    assert command_line(["check", name, "--reward", "number", "--proof-seconds", "5"]) == 0, capsys.readouterr().out


async def test_inspect_eval_saves_a_run_from_which_training_samples_are_exported(tmp_path: Path) -> None:
    """What `inspect eval ... -M results=FOLDER` does."""
    run = tmp_path / "run"
    ends = (R.TASK_COMPLETE, 1.0), (R.MAX_MESSAGES_REACHED, 0.0), (R.REWARD_ERROR, None)
    tasks = [task_of(generate()), task_of(ADDING, message_limit=4), task_of(generate(), giving({"a": 1, "b": 0}))]
    for number, (task, replies) in enumerate(zip(tasks, (["42"], ADDS, ["42"]), strict=True)):
        task.dataset[0].id = f"sum {number}"
        _, client, models = await evaluate(task, replies, tmp_path, results=str(run))
        check_exact(client, models)
    samples = list(read_results(run, with_tokens=True))
    assert [(each.step_result.end.reason, each.reward) for each in samples] == [*ends]
    assert [each.prompt_id for each in samples] == ["sum 0", "sum 1", "sum 2"]
    for each in samples[:2]:
        assert all(sum(row.loss_mask) for row in samples_from_step(each.step_result))
    assert samples[0].step_result.observation.final_response == "42"
    await asyncio.to_thread(command_line, ["export", str(run), "-o", str(tmp_path / "rows.parquet")])
    assert (tmp_path / "rows.parquet").exists() or find_spec("pyarrow") is None


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("inspect:", "write inspect:NAME"),
        ("inspect:gone.py", "there is no file 'gone.py'"),
        ("inspect:no_such_package/task", "needs a package: pip install no-such-package"),
    ],
)
def test_a_wrong_name_is_told_before_anything_is_made(
    name: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line(["eval", name, "--backend", "scripted", "-o", str(tmp_path / "run")]) != 0
    assert sentence in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_loop_that_was_closed_under_an_episode_bars_no_later_one() -> None:
    """In a process of its own: nothing ends what such a loop has begun."""
    program = f"""
import asyncio, logging
from {__name__} import Sample, Task, generate, includes, make_env, roll, waiting
def task(solver): return Task(dataset=[Sample("2+2?", target="4")], solver=solver, scorer=includes())
loop = asyncio.new_event_loop()
left = loop.create_task(roll(make_env(task(waiting()), ["4"])))
loop.run_until_complete(asyncio.wait({{left}}, timeout=1.0))
loop.close()
result = asyncio.run(roll(make_env(task(generate()), ["4"])))
print(result.termination_reason, result.reward.reward, logging.getLogger().level)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.stdout.splitlines()[-1:] == [f"task_complete 1.0 {logging.WARNING}"], done.stderr


async def test_the_readers_that_stand_in_for_those_of_inspect_take_no_wrong_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The figures of the documentation come from `benchmarks/others_readers.py`."""
    await others_readers.main(["--quick"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [row["ours"].partition(" / ")[0] for row in rows] == ["0", "0"] and all(row["answers"] for row in rows)


@pytest.mark.skipif(find_spec("inspect_evals") is None, reason="the package inspect-evals is not installed")
async def test_an_evaluation_of_others_with_its_own_data_runs_and_its_user_is_not_trained() -> None:
    user = Recorder(["I want to cancel my flight EHGLP3.", "Thanks. ###STOP###"])
    judge = Recorder(lambda ids, fields: "GRADE: C")
    roles = {
        name: lambda client=client: SGLangModel(client=client, tokenizer=tokenizer())
        for name, client in (("user", user), ("grader", judge))
    }
    env = make_env("inspect_evals/tau2_airline", ["It cannot be cancelled."], model_roles=roles)
    result = await roll(env)
    assert (result.termination_reason, len(user.calls)) == (R.TASK_COMPLETE, 2) and result.reward.reward in (0.0, 1.0)
    assert result.observation.final_response == "It cannot be cancelled."
    (path,) = check_exact(env.client, env.models)
    assert path.agent_name == "user_simulator_agent"
