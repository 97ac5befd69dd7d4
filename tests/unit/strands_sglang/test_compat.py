"""Names of the upstream packages, and code that was written for them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from provider_support import GO, add, make

import strands_env.core
import strands_env.environments
import strands_env.eval
import strands_sglang
from strands_env.core import Action, Environment, StepResult, TaskContext
from strands_env.eval import Evaluator
from strands_env.testing import ScriptedModel, call

UPSTREAM_MODULES = {
    "strands_sglang.client": "SGLangClient",
    "strands_sglang.exceptions": "SGLangHTTPError",
    "strands_sglang.limiter": "LoopLimiter LoopLimitReachedError MaxMessagesReachedError MaxToolCallsReachedError",
    "strands_sglang.rollout": "Rollout",
    "strands_sglang.sglang": "SGLangModel",
    "strands_sglang.token": "Token TokenManager",
    "strands_sglang.tool_limiter": "ToolLimiter MaxToolCallsReachedError MaxToolIterationsReachedError",
    "strands_sglang.tool_parsers.base": "ToolParser ToolParseResult get_tool_parser register_tool_parser",
    "strands_sglang.tool_parsers.glm": "GLMToolParser",
    "strands_sglang.tool_parsers.hermes": "HermesToolParser",
    "strands_sglang.tool_parsers.kimi_k2": "KimiK2ToolParser",
    "strands_sglang.tool_parsers.qwen_xml": "QwenXMLToolParser",
    "strands_sglang.utils": "decode_routed_experts get_client get_client_from_slime_args get_tokenizer",
    "strands_env.core.environment": "Environment",
    "strands_env.core.models": "bedrock_model_factory openai_model_factory sglang_model_factory",
    "strands_env.core.types": "Action Observation RewardFunction RewardResult StepResult TaskContext TerminationReason "
    "TokenObservation",
    "strands_env.environments.calculator": "CalculatorEnv",
    "strands_env.environments.calculator.env": "CalculatorEnv",
    "strands_env.environments.code_sandbox": "CodeMode CodeSandboxEnv",
    "strands_env.environments.code_sandbox.env": "CodeMode CodeSandboxEnv",
    "strands_env.eval": "AIMEEvaluator EvalSample Evaluator MetricFn pass_at_k_metric",
    "strands_env.eval.aime": "AIMEEvaluator",
    "strands_env.eval.evaluator": "EvalSample Evaluator",
    "strands_env.eval.metrics": "MetricFn pass_at_k_metric",
    "strands_env.rewards.math_reward": "MathRewardFunction",
    "strands_env.tools.code_interpreter": "CodeInterpreterToolkit",
    "strands_env.utils": "clear_clients clear_sessions get_assumed_role_session get_boto3_session get_cached_client "
    "get_cached_client_from_slime_args",
    "strands_env.utils.aws": "clear_sessions get_assumed_role_session get_boto3_session",
    "strands_env.utils.sglang": "clear_clients get_cached_client get_cached_client_from_slime_args",
}
"""Modules and public names of strands-sglang 0.3.8 and strands-env 0.1.1, as `scripts/upstream_names.py` reads them."""


@pytest.mark.parametrize(("module", "names"), UPSTREAM_MODULES.items(), ids=UPSTREAM_MODULES)
def test_modules_of_upstream_have_their_names(module: str, names: str) -> None:
    found = importlib.import_module(module)
    faces = [strands_sglang, strands_sglang.tool_parsers, strands_env.core, strands_env.environments, strands_env.eval]
    for name in names.split():
        mine = getattr(found, name)
        assert all(mine is getattr(face, name) for face in faces if name in face.__all__)


def test_arguments_of_upstream_have_their_names() -> None:
    tokenizer = strands_sglang.get_tokenizer(tokenizer_path="tiny")
    assert tokenizer is strands_sglang.get_tokenizer("tiny")
    with pytest.raises(strands_sglang.tool_parsers.UnknownToolParserError, match="no-such"):
        strands_sglang.SGLangModel(tokenizer=tokenizer, base_url="http://x", tool_call_parser="no-such")


class OnlyParse:
    """Upstream asked for no more of a parser."""

    def parse(self, text: str) -> list[Any]:
        if "CALL" not in text:
            return []
        return [strands_sglang.ToolParseResult(id="x", name="add", input={"a": 1, "b": 2})]


class OnlyParseToo(OnlyParse, strands_sglang.ToolParser):
    """The same as a subclass."""


@pytest.mark.parametrize("parser", [OnlyParse(), OnlyParseToo()])
@pytest.mark.parametrize("argument", ["tool_parser", "tool_call_parser"])
async def test_a_parser_of_upstream_has_parse_alone(parser: Any, argument: str) -> None:
    arguments: dict[str, Any] = {argument: parser}
    model, _ = make(["<think>CALL</think>So: CALL"], **arguments)
    events = [event async for event in model.stream(GO, [add.tool_spec])]
    starts = [event["contentBlockStart"]["start"] for event in events if "contentBlockStart" in event]
    assert [start["toolUse"]["name"] for start in starts if "toolUse" in start] == ["add"]
    with pytest.raises(TypeError, match="expected a ToolParser"):
        make([], **{argument: OnlyParse})


def test_options_of_upstream_name_the_new_ones() -> None:
    with pytest.raises(TypeError, match="max_tool_iters"):
        Environment(model_factory=lambda: None, max_tool_iterations=3)


def test_clients_of_upstream_are_shared() -> None:
    from strands_env.utils import clear_clients, get_cached_client

    client = get_cached_client("http://one:30000", 7)
    assert client is get_cached_client(base_url="http://one:30000", max_connections=7)
    assert client is strands_sglang.get_client("http://one:30000", max_connections=7)
    clear_clients()
    assert get_cached_client("http://one:30000", 7) is not client


def test_sessions_of_aws_are_shared_and_a_role_is_refused_with_the_way_that_works() -> None:
    pytest.importorskip("boto3")
    from strands_env.utils import clear_sessions, get_assumed_role_session, get_boto3_session

    session = get_boto3_session(region="eu-west-1")
    assert session.region_name == "eu-west-1"
    assert get_boto3_session(region="eu-west-1") is session
    clear_sessions()
    assert get_boto3_session(region="eu-west-1") is not session
    with pytest.raises(ValueError, match="profile_name="):
        get_assumed_role_session(role_arn="arn:aws:iam::1:role/x")


async def test_upstreams_metric_is_that_of_the_evaluator(tmp_path: Path) -> None:
    from strands_env.eval import pass_at_k_metric

    def factory() -> Environment:
        return Environment(model_factory=lambda: ScriptedModel(["4"]), reward_fn=lambda action, result: 1.0)

    evaluator = Evaluator(factory, n_samples_per_prompt=2, output_path=tmp_path / "r.jsonl")
    results = await evaluator.run([Action(message="2+2?")])
    assert pass_at_k_metric(results, k_values=[1, 2], reward_threshold=1.0) == {"pass@1": 1.0, "pass@2": 1.0}


async def test_messages_are_limited() -> None:
    env = Environment(model_factory=lambda: ScriptedModel([call("add", a=1, b=2)] * 5), max_messages=4)
    result = await env.rollout(Action(message="on"))
    assert result.termination_reason == "max_messages_reached"
    assert len(result.observation.messages) == 5


async def test_an_object_with_only_a_rollout_of_its_own_is_evaluated(tmp_path: Path) -> None:
    class Mine:
        async def rollout(self, task: Action) -> StepResult:
            return StepResult(observation={"messages": [{"role": "assistant", "content": [{"text": task.message}]}]})

    results = await Evaluator(env_factory=lambda: Mine(), output_path=tmp_path / "r.jsonl").run([Action(message="hi")])
    assert [sample.step_result.observation.final_response for (sample,) in results.values()] == ["hi"]


async def test_trace_attributes_of_a_task_reach_its_agent() -> None:
    class Seen(Environment):
        async def interact(self, agent: Any, action: Action) -> Any:
            self.seen = agent.trace_attributes
            return await super().interact(agent, action)

    env = Seen(model_factory=lambda: ScriptedModel(["4"]))
    await env.rollout(Action(message="2+2?", task_context=TaskContext(trace_attributes={"step": "7"})))
    assert env.seen == {"step": "7"}
