"""Names of upstream's strands-env; see `strands_sglang.compat`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar

from strands_sglang.compat import Names

_CACHE = "strands_env.tools.cached(tool, path): one file that all workers share"
_WEB = "strands_env.environments.SearchEnv with provider=WebSearch('serper')"
_LOGGER = "slime's hooks strands_env.training.slime.log_rollout and log_eval_rollout write the same"
_WORLD = "AgentWorldModelEnv runs the world in its sandbox, and takes its options by name"
_ACTORS = "Evaluator(executor=RayExecutor(...)) of strands_env.distributed"
_HOOKS = "give --env module:function, or Evaluator(env_factory=)"
_TAU2 = "strands_env.eval.benchmarks.tau2_bench"
_FACTS = "strands_env.eval.benchmarks.facts"
_MATHS = "strands_env.eval.benchmarks.mathematics"
_JUDGE = "the benchmark's evaluator makes its reward; a judge of your own is strands_env.rewards.LLMJudgeReward"
_CONTEXT = "the fields are in the context of the Action"
_FACTORY = "strands_env.core.models has a factory for each backend (sglang_model_factory, ...), with options by name"
_HARBOR = "strands_env.environments.harbor.HarborEnv takes task_dir=, backend= and other options by name"
_COMMAND = "strands-env eval is the command, and python -m strands_env.eval takes upstream's options"
_CLIENT = "await client.health(), and (await client.get_model_info())['model_path']"

TaskT = TypeVar("TaskT")
P = ParamSpec("P")
R = TypeVar("R")


class EnvironmentConfig(TypedDict, total=False):
    """Options of an `Environment` that are plain values, as upstream types them."""

    system_prompt: str | None
    max_tool_iters: int | None
    max_tool_calls: int | None
    max_parallel_tool_calls: int | None
    max_messages: int | None
    verbose: bool


def _gone(names: str, reason: str) -> Names:
    return dict.fromkeys(names.split(), reason)


_CORE: Names = {
    "Task": "strands_env.core.types:Task",
    "TaskT": "strands_env.compat:TaskT",
    "RolloutResult": "strands_env.core.types:StepResult",
    "LLMJudgeReward": "strands_env.rewards:LLMJudgeReward",
    "AsyncEnvFactory": "strands_env.core.rollout:EnvFactory",
    "EnvironmentConfig": "strands_env.compat:EnvironmentConfig",
    "extract_message_text": "strands_env.compat:extract_message_text",
    "MCPToolAdapter": "strands_env.environments:MCPEnv takes MCP servers",
    "JudgmentFormat": "strands_env.rewards.LLMJudgeReward reads a judgment of any pydantic model",
}

_METRICS: Names = {
    "pass_at_k_metric": "strands_env.eval.metrics.summary:compute_pass_at_k",
    "compute_pass_power_k": "strands_env.eval.metrics.summary:compute_pass_hat_k",
}

_EVAL: Names = {
    "AsyncEnvFactory": _CORE["AsyncEnvFactory"],
    "EvalReporter": "strands-env report and --track show a run",
}

_MATH: Names = {
    "MathEnv": "strands_env.environments.math:MathEnv",
    "MathVerifyReward": "strands_env.rewards:MathRewardFunction",
}

_TAU2_ENVIRONMENT: Names = {
    "Tau2BenchEnv": f"{_TAU2}:Tau2Env",
    "Tau2BenchReward": f"{_TAU2}:Tau2Reward",
    "Tau2BenchConfig": "Tau2Env takes its options by name",
    "Tau2BenchTask": "Tau2Evaluator.load_dataset makes an Action whose context has the package's task",
    **_gone("Tau2BenchTool Tau2BenchUserSimulator Tau2BenchTerminationReason", "Tau2Env makes the tools and the user"),
    **_gone("NLAssertion NLJudgment Tau2BenchNLAssertionReward", "Tau2Reward judges as the package does"),
}

_ATLAS: Names = {
    "MCPAtlasEnv": "strands_env.eval.benchmarks.mcp_atlas:MCPAtlasEnv",
    "MCPAtlasReward": "strands_env.eval.benchmarks.mcp_atlas:ClaimsReward",
    "MCPAtlasConfig": "MCPAtlasEnv takes its options by name",
    "MCPAtlasTask": "an Action whose context has enabled_tools, and the claims as ground_truth",
    "MCPAtlasTool": "MCPAtlasEnv makes the tools",
    "ClaimJudgment": "MCPAtlasReward(judge_model) judges each claim",
}

_WORLDS: Names = {
    "AgentWorldModelEnv": "strands_env.environments:AgentWorldModelEnv",
    "AgentWorldModelReward": "strands_env.environments.agent_world_model:AgentWorldModelReward",
    "AgentWorldModelTask": "strands_env.core.types:Task",
    **_gone("AgentWorldModelConfig AgentWorldModelTool kill_server start_server wait_for_server", _WORLD),
    "write_server_script": _WORLD,
}

_CODE: Names = {
    "AgentCoreCodeEnv": "strands_env.environments:AgentCoreCodeEnv",
    "AgentCoreCodeConfig": "AgentCoreCodeEnv takes its options by name",
    "CodeInterpreterQuotas": "strands_env.tools.code_interpreter:CodeInterpreterQuotas",
    "CodeInterpreterToolkit": "strands_env.tools.code_interpreter:CodeInterpreterToolkit",
}

_HARBOR_ENVIRONMENT: Names = {
    "HarborEnv": "strands_env.environments.harbor:HarborEnv",
    "HarborReward": "HarborEnv grades by itself, with the task's verifier",
    **_gone("HarborConfig HarborTask SWE_SYSTEM_PROMPT_PATH", _HARBOR),
}

_SEARCH: Names = _gone(
    "WebSearchConfig WebSearchEnv WebSearchToolkit WebSearchAPIProvider WebScraperToolkit WebPageSummary "
    "RESULT_TEMPLATE SUMMARY_PROMPT_TEMPLATE TOKEN_ENCODING",
    _WEB,
)

NAMES: dict[str, Names] = {
    "core": _CORE,
    "core.types": _CORE,
    "core.environment": _CORE,
    "core.models": {
        **_gone("ModelConfig build_model_factory bedrock_mantle_model_factory", _FACTORY),
        **_gone("check_server_health get_model_id", _CLIENT),
        "prompt_cache_config": "bedrock_model_factory(cache_config=) takes the SDK's CacheConfig",
    },
    "environments.agent_world_model": _WORLDS,
    "environments.harbor": _HARBOR_ENVIRONMENT,
    "environments.math": _MATH,
    "eval": _EVAL,
    "eval.metrics": _METRICS,
    "eval.benchmarks.browsecomp": _gone("BrowseCompReward BrowseCompJudgment", _JUDGE),
    "eval.benchmarks.gpqa": {"GPQAReward": "ChoiceReward compares the letter with ground_truth", "GPQATask": _CONTEXT},
    "eval.benchmarks.ifeval": {
        "IFEvalReward": "InstructionReward reads instructions and arguments of the context",
        "IFEvalTask": _CONTEXT,
    },
    "eval.benchmarks.tau2_bench": {
        f"Tau2Bench{domain}Evaluator": f"{_TAU2}:Tau2{domain}Evaluator"
        for domain in ("", "Airline", "Retail", "Telecom")
    },
}
"""Old names of modules that are here."""

MODULES: dict[str, Names] = {
    "cli": {"cli": _COMMAND},
    "core.distributed": _gone("EnvironmentActor EnvironmentActorPool", _ACTORS),
    "core.llm_judge_reward": {"LLMJudgeReward": _CORE["LLMJudgeReward"]},
    "core.mcp_tool": {"MCPToolAdapter": _CORE["MCPToolAdapter"]},
    "core.tool_cache": _gone(
        "CacheLevel CacheOutcome CachedTool RayToolCache ToolCache ToolCacheAccess ToolCacheActor ToolReservation "
        "get_shared_tool_cache get_tool_cache",
        _CACHE,
    ),
    "environments.calculator.reward": _MATH,
    "environments.web_search": _SEARCH,
    "environments.web_search.tools": _SEARCH,
    "environments.web_search.tools.scrape": _SEARCH,
    "environments.web_search.tools.search": _SEARCH,
    "environments.tau2_bench": _TAU2_ENVIRONMENT,
    "environments.mcp_atlas": _ATLAS,
    "environments.agentcore_code": _CODE,
    "environments.harbor.e2b": _gone(
        "PrebakedE2BConfig PrebakedE2BEnvironment validate_api_key",
        "HarborEnv(backend='e2b', backend_options=...) starts the environment of Harbor's own",
    ),
    "eval.evaluator": {
        "Evaluator": "strands_env.eval:Evaluator",
        "EvalSample": "strands_env.eval:EvalSample",
        **_EVAL,
    },
    "eval.cli": _gone("JsonType eval_cmd", _COMMAND),
    "eval.benchmarks.aime": {
        name: f"{_MATHS}:{name}"
        for name in ("AIMEEvaluator", "AIME2024Evaluator", "AIME2025Evaluator", "AIME2026Evaluator")
    },
    "eval.benchmarks.hmmt": {
        name: f"{_MATHS}:{name}"
        for name in ("HMMTEvaluator", "HMMTFeb2025Evaluator", "HMMTNov2025Evaluator", "HMMTFeb2026Evaluator")
    },
    "eval.benchmarks.hle_verified": {
        "HLEVerifiedEvaluator": "strands_env.eval.benchmarks.hle:HLEVerifiedGoldEvaluator",
        "HLEVerifiedGoldEvaluator": "strands_env.eval.benchmarks.hle:HLEVerifiedGoldEvaluator",
        "HLEVerifiedGoldTextEvaluator": "strands_env.eval.benchmarks.hle:HLEVerifiedGoldTextEvaluator",
        "HLEVerifiedTask": _CONTEXT,
        "HLEReward": _JUDGE,
        "HLEJudgment": _JUDGE,
    },
    "eval.benchmarks.frames": {
        "FramesEvaluator": f"{_FACTS}:FramesEvaluator",
        "FramesReward": _JUDGE,
        "FramesJudgment": _JUDGE,
    },
    "eval.benchmarks.simpleqa_verified": {
        "SimpleQAVerifiedEvaluator": f"{_FACTS}:SimpleQAVerifiedEvaluator",
        "SimpleQAReward": _JUDGE,
        "SimpleQAJudgment": _JUDGE,
    },
    "eval.benchmarks.sealqa": {
        "SealQAEvaluator": f"{_FACTS}:SealQA0Evaluator",
        "Seal0Evaluator": f"{_FACTS}:SealQA0Evaluator",
        "SealHardEvaluator": f"{_FACTS}:SealQAHardEvaluator",
    },
    "eval.benchmarks.swebench": {
        "SWEBenchVerifiedEvaluator": "strands_env.eval.benchmarks.harbor:SWEBenchVerifiedEvaluator"
    },
    "eval.benchmarks.terminal_bench": {
        "TerminalBenchEvaluator": "strands_env.eval.benchmarks.harbor:HarborEvaluator",
        "TerminalBench2Evaluator": "strands_env.eval.benchmarks.harbor:TerminalBench2Evaluator",
        "TerminalBench21Evaluator": "strands_env.eval.benchmarks.harbor:TerminalBench21Evaluator",
        "TerminalBench1Evaluator": "the benchmark 'harbor' with the folder of its tasks",
    },
    "rewards.math_verify_reward": {"MathVerifyReward": _MATH["MathVerifyReward"]},
    "tools.web_scraper": _SEARCH,
    "tools.web_search": _SEARCH,
    "utils.aws": {
        "boto3": "boto3",
        "BotoClient": "botocore.client:BaseClient",
        "BotoClientConfig": "botocore.config:Config",
        "get_assumed_role_session": "strands_env.compat:get_assumed_role_session",
        "get_session": "strands_env.compat:get_session",
        "get_boto3_session": "strands_env.compat:get_boto3_session",
        "get_client": "strands_env.compat:get_boto3_client",
        "get_boto3_client": "strands_env.compat:get_boto3_client",
        "create_assumed_role_session": "strands_env.compat:get_assumed_role_session",
        "check_credentials": "strands_env.compat:check_credentials",
        "clear_sessions": "strands_env.compat:clear_sessions",
        "clear_session_cache": "strands_env.compat:clear_sessions",
        "resolve_region_name": "strands_env.compat:resolve_region_name",
    },
    "utils.sglang": {
        "get_cached_client": "strands_sglang:get_client",
        "get_client": "strands_sglang:get_client",
        "get_cached_client_from_slime_args": "strands_sglang:get_client_from_slime_args",
        "get_cached_tokenizer": "strands_sglang:get_tokenizer",
        "get_tokenizer": "strands_sglang:get_tokenizer",
        "check_server_health": "await client.health()",
        "get_model_id": "(await client.get_model_info())['model_path']",
    },
    "utils.loader": _gone(
        "EnvFactoryCreator load_class load_env_factory_hook load_evaluator_hook load_function load_module", _HOOKS
    ),
    "utils.decorators": {
        "cache_by": "strands_env.compat:cache_by",
        "requires_env": "strands_env.compat:requires_env",
        **_gone("with_timeout TimeoutInterrupt", "tool_timeout= of the environment"),
    },
    "utils.slime_logger": {"RolloutLogger": _LOGGER},
}
for _package, _parts in {
    "agent_world_model": "env reward server task tool",
    "agentcore_code": "env quotas tool",
    "harbor": "env reward task",
    "math": "env reward",
    "mcp_atlas": "env reward task tool",
    "tau2_bench": "env nl_judge reward simulator task tool",
    "web_search": "env",
}.items():
    _name = f"environments.{_package}"
    MODULES |= dict.fromkeys((f"{_name}.{part}" for part in _parts.split()), (NAMES | MODULES)[_name])


class StepResultNames:
    """Names of upstream's `RolloutResult`, for rewards and trainers written for it."""

    if TYPE_CHECKING:
        observation: Any
        reward: Any

    @property
    def messages(self) -> list[dict[str, Any]]:
        """`observation.messages`."""
        return self.observation.messages  # type: ignore[no-any-return]

    @property
    def metrics(self) -> dict[str, Any]:
        """`observation.metrics`."""
        return self.observation.metrics  # type: ignore[no-any-return]

    @property
    def rollout(self) -> Any:
        """`observation.tokens`."""
        return self.observation.tokens

    @property
    def reward_result(self) -> Any:
        """`reward`."""
        return self.reward

    @property
    def final_response(self) -> str | None:
        """`observation.final_response`."""
        return self.observation.final_response  # type: ignore[no-any-return]

    def get_final_response(self, *, raw: bool = False) -> str | None:
        """`final_response`; `raw` keeps a thinking part before it."""
        return self.observation.get_final_response(self.messages, raw=raw)  # type: ignore[no-any-return]


def step_result_fields(data: Any, tokens_of: Callable[[Any], Any]) -> Any:
    """The fields of a `StepResult` out of those of upstream's `RolloutResult`; a live rollout becomes its tokens."""
    if not isinstance(data, dict) or "observation" in data:
        return data
    from strands_sglang.trajectory import TokenManager

    fields = dict(data)
    seen = {name: fields.pop(name) for name in ("messages", "metrics") if name in fields}
    reward, rollout = fields.pop("reward_result", None), fields.pop("rollout", None)
    if isinstance(rollout, TokenManager):
        rollout = tokens_of(rollout)
    return {"reward": reward, **fields, "observation": {**seen, "tokens": rollout}}


class RewardFunctionNames:
    """Upstream's `RewardFunction` is generic."""

    __class_getitem__ = classmethod(lambda cls, item: cls)


class EvalSampleNames:
    """Names of upstream's `EvalSample`."""

    if TYPE_CHECKING:
        action: Any
        step_result: Any

    @property
    def task(self) -> Any:
        """`action`."""
        return self.action

    @property
    def result(self) -> Any:
        """`step_result`."""
        return self.step_result


def eval_sample_fields(data: Any) -> Any:
    """The fields of an `EvalSample` under their names here."""
    names = {"task": "action", "result": "step_result"}
    return {names.get(name, name): value for name, value in data.items()} if isinstance(data, dict) else data


def get_assumed_role_session(role_arn: str, **options: Any) -> Any:
    """Refuses a role, with the way that works."""
    return get_session(role_arn=role_arn)


def extract_message_text(message: Mapping[str, Any], *, raw: bool = False) -> str:
    """The last text block of a message, empty without one; `raw` keeps a thinking part before it."""
    texts = [block["text"] for block in message.get("content") or () if isinstance(block, dict) and "text" in block]
    text: str = texts[-1] if texts else ""
    _, mark, answer = text.rpartition("</think>")
    return answer.lstrip() if mark and not raw else text


def cache_by(*key_args: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: results are kept by the named arguments alone; `cache_clear()` of the function forgets them."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        results: dict[tuple[object, ...], R] = {}
        signature = inspect.signature(function)

        @wraps(function)
        def cached(*args: P.args, **kwargs: P.kwargs) -> R:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            key = tuple(given.arguments[name] for name in key_args)
            if key not in results:
                results[key] = function(*args, **kwargs)
            return results[key]

        cached.cache_clear = results.clear  # type: ignore[attr-defined]
        return cached

    return decorate


def requires_env(*names: str) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """Decorator: where an environment variable is missing, an async function returns the error as text, for the model.

    Raises:
        OSError: From a function that is not async.
    """

    def error() -> str:
        missing = ", ".join(name for name in names if not os.environ.get(name))
        return f"Error: missing required environment variable(s): {missing}" if missing else ""

    def decorate(function: Callable[P, Any]) -> Callable[P, Any]:
        @wraps(function)
        async def checked_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            return error() or await function(*args, **kwargs)

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> Any:
            if said := error():
                raise OSError(said)
            return function(*args, **kwargs)

        return checked_async if inspect.iscoroutinefunction(function) else checked

    return decorate


def get_session(
    region_name: str | None = None,
    profile_name: str | None = None,
    role_arn: str | None = None,
    *,
    region: str | None = None,
) -> Any:
    """A new boto3 session (extra `aws`); `region` is the name that strands-env 0.1 and 0.2 gave the first argument."""
    if role_arn is not None:
        raise ValueError(
            f"role_arn={role_arn!r}: name the role in a profile of ~/.aws/config (role_arn, source_profile), and give "
            "profile_name="
        )
    import boto3

    return boto3.Session(region_name=region_name or region, profile_name=profile_name)


get_boto3_session = cache(get_session)


def check_credentials(session: Any) -> bool:
    """True where AWS accepts the credentials of a boto3 session."""
    try:
        session.client("sts").get_caller_identity()
    except Exception:
        return False
    return True


def clear_sessions() -> None:
    """Forget the sessions of `get_boto3_session`."""
    get_boto3_session.cache_clear()


def resolve_region_name(region_name: str | None = None, profile_name: str | None = None) -> str:
    """The region given, of the environment, or of the profile; `us-east-1` where none says one."""
    named = region_name or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if named:
        return named
    import boto3

    return boto3.Session(profile_name=profile_name).region_name or "us-east-1"


@cache
def get_boto3_client(
    service_name: str,
    region_name: str | None = None,
    profile_name: str | None = None,
    role_arn: str | None = None,
    config: Any = None,
) -> Any:
    """A boto3 client of a session of its own, one for all calls with the same arguments."""
    session = get_session(region_name, profile_name, role_arn)
    return session.client(service_name, region_name=region_name, config=config)
