"""Names of upstream's strands-env; see `strands_sglang.compat`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strands_sglang.compat import Names

_CACHE = "wrap the tool's function in a cache of your own; workers share nothing but files"
_WEB = "strands_env.environments:SearchEnv with a SearchProvider of your own"
_LOGGER = "slime's hooks strands_env.training.slime.log_rollout and log_eval_rollout write the same"
_MCP_ATLAS = "strands_env.environments:MCPEnv serves MCP tools; the benchmark's containers are not started"
_WORLD = "strands_env.environments:MCPEnv serves MCP tools; the generated worlds are not started"
_ACTORS = "Evaluator(executor=RayExecutor(...)) of strands_env.distributed"
_HOOKS = "give --env module:function, or Evaluator(env_factory=)"
_FACTS = "strands_env.eval.benchmarks.facts"
_MATHS = "strands_env.eval.benchmarks.mathematics"
_JUDGE = "the benchmark's evaluator makes its reward; a judge of your own is strands_env.rewards.LLMJudgeReward"

CORE: Names = {
    "Task": "strands_env.core.types:Task",
    "RolloutResult": "strands_env.core.types:StepResult",
    "LLMJudgeReward": "strands_env.rewards:LLMJudgeReward",
    "AsyncEnvFactory": "strands_env.core.rollout:EnvFactory",
    "EnvironmentConfig": "give Environment its options by name",
    "MCPToolAdapter": "strands_env.environments:MCPEnv takes MCP servers",
    "JudgmentFormat": "strands_env.rewards.LLMJudgeReward reads a judgment of any pydantic model",
}
"""Names of `strands_env.core` and of its modules `types` and `environment`."""

METRICS: Names = {
    "pass_at_k_metric": "strands_env.eval.metrics.summary:compute_pass_at_k",
    "compute_pass_power_k": "strands_env.eval.metrics.summary:compute_pass_hat_k",
}
"""Names of `strands_env.eval.metrics`."""

MODULES: Mapping[str, Names] = {
    "core.distributed": dict.fromkeys(("EnvironmentActor", "EnvironmentActorPool"), _ACTORS),
    "core.llm_judge_reward": {"LLMJudgeReward": CORE["LLMJudgeReward"]},
    "core.mcp_tool": {"MCPToolAdapter": CORE["MCPToolAdapter"]},
    "core.tool_cache": dict.fromkeys(
        (
            *("CacheLevel", "CacheOutcome", "CachedTool", "RayToolCache", "ToolCache", "ToolCacheAccess"),
            *("ToolCacheActor", "ToolReservation", "get_shared_tool_cache", "get_tool_cache"),
        ),
        _CACHE,
    ),
    "environments.math.env": {"MathEnv": "strands_env.environments.math:MathEnv"},
    "environments.math.reward": {"MathVerifyReward": "strands_env.rewards:MathRewardFunction"},
    "environments.web_search": dict.fromkeys(("WebSearchConfig", "WebSearchEnv"), _WEB),
    "environments.web_search.env": dict.fromkeys(("WebSearchConfig", "WebSearchEnv"), _WEB),
    "environments.tau2_bench": {"Tau2BenchEnv": "strands_env.eval.benchmarks.tau2_bench:Tau2Env"},
    "environments.mcp_atlas": dict.fromkeys(
        ("MCPAtlasConfig", "MCPAtlasEnv", "MCPAtlasReward", "MCPAtlasTask", "MCPAtlasTool"), _MCP_ATLAS
    ),
    "environments.agent_world_model": dict.fromkeys(
        tuple(f"AgentWorldModel{name}" for name in ("Config", "Env", "Reward", "Task", "Tool")), _WORLD
    ),
    "eval.evaluator": {
        "Evaluator": "strands_env.eval:Evaluator",
        "EvalSample": "strands_env.eval:EvalSample",
        "AsyncEnvFactory": CORE["AsyncEnvFactory"],
        "EvalReporter": "strands-env report and --track show a run",
    },
    "eval.benchmarks.aime": {
        name: f"{_MATHS}:{name}"
        for name in ("AIMEEvaluator", "AIME2024Evaluator", "AIME2025Evaluator", "AIME2026Evaluator")
    },
    "eval.benchmarks.hmmt": {
        name: f"{_MATHS}:{name}"
        for name in ("HMMTEvaluator", "HMMTFeb2025Evaluator", "HMMTNov2025Evaluator", "HMMTFeb2026Evaluator")
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
    "utils.aws": {
        "get_session": "strands_env.compat:get_boto3_session",
        "get_boto3_session": "strands_env.compat:get_boto3_session",
        "get_client": "strands_env.compat:get_boto3_client",
        "get_boto3_client": "strands_env.compat:get_boto3_client",
        "create_assumed_role_session": "name the role in a profile of ~/.aws/config, and give profile_name=",
        "check_credentials": "session.client('sts').get_caller_identity() of boto3",
        "resolve_region_name": "boto3 reads AWS_REGION and the profile itself",
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
    "utils.loader": dict.fromkeys(
        (
            *("EnvFactoryCreator", "load_class", "load_env_factory_hook", "load_evaluator_hook"),
            *("load_function", "load_module"),
        ),
        _HOOKS,
    ),
    "utils.decorators": {
        "cache_by": "functools.lru_cache of Python",
        "requires_env": "os.environ of Python",
        "with_timeout": "tool_timeout= of the environment",
        "TimeoutInterrupt": "tool_timeout= of the environment",
    },
    "utils.slime_logger": {"RolloutLogger": _LOGGER},
}


def get_boto3_session(
    region_name: str | None = None, profile_name: str | None = None, role_arn: str | None = None
) -> Any:
    """A boto3 session (extra `aws`)."""
    if role_arn is not None:
        raise ValueError(
            f"role_arn={role_arn!r}: name the role in a profile of ~/.aws/config (role_arn, source_profile), and give "
            "profile_name="
        )
    import boto3

    return boto3.Session(region_name=region_name, profile_name=profile_name)


def get_boto3_client(service_name: str, region_name: str | None = None, profile_name: str | None = None) -> Any:
    """A boto3 client of a session of its own."""
    return get_boto3_session(region_name, profile_name).client(service_name)
