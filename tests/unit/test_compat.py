"""Names of the upstream packages: they run, or an error says what to use instead."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

import pytest

import strands_env.environments
import strands_sglang
from strands_env import compat as env_compat
from strands_env.core import Action, Environment, RewardResult, StepResult
from strands_env.eval import EvalSample, Evaluator
from strands_env.eval.__main__ import translated
from strands_env.testing import ScriptedModel, call
from strands_sglang import exceptions, tool_limiter

TABLES = [
    *((f"strands_env.{module}", names) for module, names in env_compat.MODULES.items()),
    *((f"strands_env.{module}", names) for module, names in env_compat.NAMES.items()),
]


@pytest.mark.parametrize(("module", "names"), TABLES, ids=[module for module, _ in TABLES])
def test_every_old_name_runs_or_says_what_to_use(module: str, names: dict[str, str]) -> None:
    found = importlib.import_module(module)
    for name, target in names.items():
        if " " in target:
            with pytest.raises(
                ImportError, match=re.escape(f"{name} is a name of upstream that is not here: {target}")
            ):
                getattr(found, name)()
        elif "harbor" not in target:  # its package may be absent
            assert getattr(found, name) is not None
    with pytest.raises(AttributeError):
        found.never_was  # noqa: B018


def subclassed(base: Any) -> type:
    class Mine(base): ...

    return Mine


@pytest.mark.parametrize(
    "use",
    [
        lambda left_out: left_out(top_k=3),
        lambda left_out: left_out.from_env,
        lambda left_out: left_out[str],
        lambda left_out: isinstance("", left_out),
        lambda left_out: issubclass(str, left_out),
        subclassed,
        Path,
    ],
    ids=["call", "attribute", "item", "isinstance", "issubclass", "subclass", "path"],
)
def test_a_name_that_is_left_out_imports_and_says_what_to_use_where_it_is_used(use: Callable[[Any], object]) -> None:
    from strands_env.environments.web_search.tools.search import WebSearchToolkit

    assert "WebSearch" in repr(WebSearchToolkit)
    assert not hasattr(WebSearchToolkit, "__wrapped__")
    with pytest.raises(
        ImportError, match=r"search.WebSearchToolkit is .*SearchEnv with provider=WebSearch\('serper'\)"
    ):
        use(WebSearchToolkit)


def test_submodules_of_upstream_have_the_names_of_their_package() -> None:
    from strands_env.environments.agentcore_code.env import AgentCoreCodeEnv
    from strands_env.environments.mcp_atlas.reward import MCPAtlasReward

    assert AgentCoreCodeEnv is strands_env.environments.AgentCoreCodeEnv
    assert MCPAtlasReward is importlib.import_module("strands_env.eval.benchmarks.mcp_atlas").ClaimsReward


def test_an_imported_module_of_upstream_is_an_attribute_of_its_parents() -> None:
    names = (
        "strands_sglang.limiter.LoopLimiter",
        "strands_env.utils.aws.get_client",
        "strands_env.environments.math.env.MathEnv",
        "strands_env.environments.agentcore_code.env.AgentCoreCodeEnv",
        "strands_env.environments.calculator.reward.MathVerifyReward",
    )
    lines = [f"import {name.rpartition('.')[0]}; {name}" for name in names]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_old_names_are_the_same_objects() -> None:
    from strands_env.core import RolloutResult
    from strands_env.utils import aws  # noqa: F401 - it imports
    from strands_sglang.client import SGLangClient
    from strands_sglang.limiter import LoopLimiter, MaxToolCallsReachedError
    from strands_sglang.utils import get_client, get_tokenizer

    assert (SGLangClient, get_client) == (strands_sglang.SGLangClient, strands_sglang.get_client)
    assert get_tokenizer is strands_sglang.utils.get_tokenizer is strands_sglang.get_tokenizer
    assert LoopLimiter is tool_limiter.ToolLimiter
    assert MaxToolCallsReachedError is exceptions.MaxToolCallsReachedError
    assert RolloutResult is StepResult


def test_a_task_is_an_action_with_its_fields_in_the_context() -> None:
    from strands_env.core import Task

    made = Task(message="2+2?", ground_truth="4", level=3)
    assert isinstance(made, Action)
    assert (made.task_context.ground_truth, made.task_context.level) == ("4", 3)


def test_options_of_upstream_name_the_new_ones() -> None:
    with pytest.raises(TypeError, match="max_tool_iters"):
        Environment(model_factory=lambda: None, max_tool_iterations=3)


async def test_an_environment_and_a_reward_written_for_upstream_run() -> None:
    from strands_env.core import EnvironmentConfig, RewardFunction, RewardResult, RolloutResult, Task

    class Sum(Task):
        level: int
        kind: str = "sum"

    class Reward(RewardFunction[Sum]):
        async def compute(self, task: Sum, result: RolloutResult) -> RewardResult:
            right = result.final_response == task.ground_truth and task.level == 3 and len(result.messages) == 2
            return RewardResult(reward=float(right), info={"calls": result.metrics["model_calls"]})

    class Upstreams(Environment[Sum]):
        def __init__(self, **config: Unpack[EnvironmentConfig]) -> None:
            super().__init__(model_factory=lambda: ScriptedModel(["4"]), reward_fn=Reward(), **config)

        async def reset(self, task: Sum) -> None:
            self.given = task

    env = Upstreams(max_messages=9)
    task = Sum(id="a", message="2+2?", ground_truth="4", level=3)
    result = await env.rollout(task)
    assert env.given is task
    assert (result.reward_result.reward, result.reward_result.info) == (1.0, {"calls": 1})
    read = Action.model_validate_json(task.model_dump_json())
    assert (task.id, read.task_context.level, read.kind) == ("a", 3, "sum")
    assert await Reward().compute(read, result) == result.reward
    assert env.task_cls is Upstreams.task_cls is Sum
    again = Sum.model_validate_json(task.model_dump_json())
    assert (type(again), again.level, again.kind, again.task_context) == (Sum, 3, "sum", task.task_context)
    with pytest.raises(AttributeError, match="never_was"):
        task.never_was  # noqa: B018


def test_a_result_is_made_with_the_fields_of_upstream() -> None:
    said = [{"role": "assistant", "content": [{"text": "4"}]}]
    made = StepResult(messages=said, metrics={"turns": 1}, reward_result=RewardResult(reward=1.0))
    thought = StepResult(messages=[{"role": "assistant", "content": [{"text": "<think>2</think>4"}]}])
    assert (thought.get_final_response(), thought.get_final_response(raw=True)) == ("4", "<think>2</think>4")
    assert (made.final_response, made.metrics, made.reward) == ("4", {"turns": 1}, RewardResult(reward=1.0))
    sample = EvalSample(task=Action(message="2+2?"), result=made)
    assert (sample.reward, sample.task.message, sample.result) == (1.0, "2+2?", made)


async def test_messages_are_limited() -> None:
    env = Environment(model_factory=lambda: ScriptedModel([call("add", a=1, b=2)] * 5), max_messages=4)
    result = await env.rollout(Action(message="on"))
    assert result.termination_reason == "max_messages_reached"
    assert len(result.observation.messages) == 5


async def test_an_object_with_only_a_rollout_of_its_own_is_evaluated(tmp_path: Path) -> None:
    class Mine:
        async def rollout(self, task: Action) -> StepResult:
            return StepResult(messages=[{"role": "assistant", "content": [{"text": task.message}]}])

    results = await Evaluator(env_factory=lambda: Mine(), output_path=tmp_path / "r.jsonl").run([Action(message="hi")])
    assert [sample.result.final_response for (sample,) in results.values()] == ["hi"]


async def test_trace_attributes_of_a_task_reach_its_agent() -> None:
    from strands_env.core import Task

    class Seen(Environment):
        async def interact(self, agent: Any, action: Action) -> Any:
            self.seen = agent.trace_attributes
            return await super().interact(agent, action)

    env = Seen(model_factory=lambda: ScriptedModel(["4"]))
    await env.rollout(Task(message="2+2?", trace_attributes={"step": "7"}))
    assert env.seen == {"step": "7"}


async def test_decorators_of_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    from strands_env.utils.decorators import cache_by, requires_env

    calls = []

    @cache_by("name", "region")
    def client(name: str, region: str = "here", **options: object) -> str:
        calls.append(name)
        return f"{name} {region}"

    assert client("a", options=[1]) == client("a", "here") == client(name="a") == "a here"
    client.cache_clear()
    assert (client("a"), calls) == ("a here", ["a", "a"])

    async def search(query: str) -> str:
        return query

    needs_key = requires_env("SOME_KEY", "PATH")
    monkeypatch.delenv("SOME_KEY", raising=False)
    assert await needs_key(search)("x") == "Error: missing required environment variable(s): SOME_KEY"
    with pytest.raises(OSError, match="SOME_KEY"):
        needs_key(str)("x")
    monkeypatch.setenv("SOME_KEY", "k")
    assert (await needs_key(search)("x"), needs_key(str)("x")) == ("x", "x")


def test_sessions_of_aws_are_made_once_where_upstream_does_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    from strands_env.utils.aws import clear_sessions, get_boto3_session, get_client, get_session

    session = get_boto3_session(region="eu-west-1")
    assert session.region_name == "eu-west-1"
    assert get_boto3_session(region="eu-west-1") is session is not get_session(region_name="eu-west-1")
    assert get_client("s3", region_name="eu-west-1") is get_client("s3", region_name="eu-west-1")
    clear_sessions()
    assert get_boto3_session(region="eu-west-1") is not session


def test_a_role_is_refused_with_the_way_that_works() -> None:
    from strands_env.utils.aws import get_session

    with pytest.raises(ValueError, match="profile_name="):
        get_session(role_arn="arn:aws:iam::1:role/x")


def test_the_command_line_of_upstream() -> None:
    given = ["--benchmark", "aime-2024", "--backend=sglang", "--max-tokens", "9", "--max-samples=3", "--keep-rollout"]
    server = ["--base-url", "http://localhost:30000"]
    after = ["--max-new-tokens", "9", "--limit=3", *server, "aime-2024"]
    assert translated(given) == ["eval", "--backend", "sglang", *after]
    found = translated(["--n-actors-per-node", "2", "--debug", "--base-url=http://x"])
    assert found == ["eval", "--backend", "sglang", "--executor", "ray", "--workers", "2", "-v", "--base-url=http://x"]
    assert translated(["-b", "bedrock", "-e", "mine"]) == ["eval", "--backend", "bedrock", "--env", "mine"]
    assert translated(["--list"]) == ["list"]
    with pytest.raises(SystemExit, match="set AWS_PROFILE"):
        translated(["--profile-name", "x"])


UPSTREAM_MODULES = {
    "client": "SGLangClient",
    "exceptions": "SGLangHTTPError",
    "limiter": "LoopLimiter LoopLimitReachedError MaxMessagesReachedError MaxToolCallsReachedError",
    "rollout": "Rollout",
    "sglang": "SGLangModel",
    "token": "Token TokenManager",
    "tool_limiter": "ToolLimiter MaxToolCallsReachedError MaxToolIterationsReachedError",
    "tool_parsers.base": "ToolParser ToolParseResult get_tool_parser register_tool_parser",
    "tool_parsers.glm": "GLMToolParser",
    "tool_parsers.hermes": "HermesToolParser",
    "tool_parsers.kimi_k2": "KimiK2ToolParser",
    "tool_parsers.qwen_xml": "QwenXMLToolParser",
    "utils": "decode_routed_experts get_client get_client_from_slime_args get_tokenizer",
}
"""Modules of strands-sglang 0.3 to 0.6."""


@pytest.mark.parametrize(("module", "names"), UPSTREAM_MODULES.items(), ids=UPSTREAM_MODULES)
def test_modules_of_the_provider_upstream_have_their_names(module: str, names: str) -> None:
    found = importlib.import_module(f"strands_sglang.{module}")
    for name in names.split():
        facade = strands_sglang if name in strands_sglang.__all__ else strands_sglang.tool_parsers
        assert getattr(found, name) is getattr(facade, name)


def test_arguments_of_upstream_have_their_names() -> None:
    tokenizer = strands_sglang.get_tokenizer(tokenizer_path="tiny")
    assert tokenizer is strands_sglang.get_tokenizer("tiny")
    with pytest.raises(strands_sglang.tool_parsers.UnknownToolParserError, match="no-such"):
        strands_sglang.SGLangModel(tokenizer=tokenizer, base_url="http://x", tool_call_parser="no-such")
