"""One rollout of an environment with a made-up answer instead of a sampled one, and the problems it reveals."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from strands import Agent
from strands.models import Model
from strands.tools.tool_provider import ToolProvider
from strands.types.tools import AgentTool

from strands_env.core import Action, Environment, ErrorRecord, ModelFactory, StepResult, TaskContext
from strands_env.core.models import sglang_model_factory
from strands_env.core.rollout import EnvFactory, make_environment, run_environment, takes_action
from strands_env.eval import EvalError
from strands_env.eval.run.benchmark import Benchmark
from strands_env.eval.run.tasks import catch_exits, stream
from strands_env.recipe.models import check_named_models
from strands_env.recipe.objects import load_evaluator
from strands_env.recipe.tasks import DataBenchmark, columns_of
from strands_env.testing.scripted import ScriptedCall, ScriptedModel, call, reply
from strands_sglang.backends import BackendInfo, GenerateRequest, PromptIds, client_class
from strands_sglang.backends.engine.own_models import ModelLoadError
from strands_sglang.backends.http.served import SERVERS
from strands_sglang.exceptions import did_you_mean
from strands_sglang.testing import ScriptedClient

logger = logging.getLogger(__name__)

ANSWER = "This is a dry run."

TOOL_SECONDS = 30.0
"""Time for a tool that has no limit of its own."""
_ASYNC = ("step", "rollout", "interact")
_WITHOUT_ARGUMENTS = ("reset", "cleanup", "get_tools", "get_hooks", "get_conversation_manager")
_MISTAKES = (TypeError, ValueError, NameError, AttributeError, LookupError, ImportError, AssertionError)
"""Errors that a constructor raises every time; a missing connection or running loop may only be missing now."""
_SYNC = ("get_tools", "get_hooks", "get_conversation_manager", "compute_metrics", "is_scored")


class Level(StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """A run would fail, or not do what was intended."""
    WARNING = "warning"
    """A run would work, but perhaps not as intended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something to change in an environment."""

    level: Level
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledTool:
    """A tool that was called, its arguments, and the text that the model would have been given."""

    name: str
    input: Mapping[str, Any]
    text: str


@dataclass(slots=True, kw_only=True)
class DryRun:
    """Outcome of a dry rollout.

    `prompt` is the first one as the model reads it; None where nothing was asked, or the provider has no tokens.
    """

    findings: list[Finding] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    prompt: str | None = None
    prompt_tokens: int = 0
    result: StepResult | None = None
    calls: list[CalledTool] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        """There are no errors; warnings may be left."""
        return all(finding.level is not Level.ERROR for finding in self.findings)


def _error(what: str) -> Finding:
    return Finding(level=Level.ERROR, what=what)


def _warning(what: str) -> Finding:
    return Finding(level=Level.WARNING, what=what)


def shape_findings(env: Any) -> list[Finding]:
    """Problems of an environment that show without running it: overrides of the wrong kind, a missing reward."""
    found = []
    kind = type(env)
    if not hasattr(env, "rollout") and not hasattr(env, "step"):
        return [_error(f"the factory must make an Environment, got {kind.__name__}")]
    if isinstance(env, Environment) and not hasattr(env, "model_factory"):
        found.append(
            _error(f"{kind.__name__}.__init__() must call super().__init__(model_factory=model_factory, ...) first")
        )
    for name in _ASYNC:
        method = getattr(kind, name, None)
        if method is not None and not inspect.iscoroutinefunction(inspect.unwrap(method)):
            found.append(_error(f"{kind.__name__}.{name}() must be async: write 'async def {name}(self, ...)'"))
    for name in _SYNC:
        method = getattr(kind, name, None)
        if method is not None and inspect.iscoroutinefunction(inspect.unwrap(method)):
            hint = "; do what awaits in reset()" if name == "get_tools" else ""
            found.append(_error(f"{kind.__name__}.{name}() must not be async: write 'def {name}(self, ...)'{hint}"))
    for name in _WITHOUT_ARGUMENTS:
        method = getattr(env, name, None)
        needed = _list_required(method) if callable(method) else []
        if len(needed) > (name == "reset"):  # which gets the action where it takes one
            given = ", ".join(needed)
            found.append(_error(f"{kind.__name__}.{name}() is called without arguments, but needs {given}: drop them"))
    reward = getattr(env, "reward_fn", None)
    compute = getattr(reward, "compute", None)
    if compute is not None and not inspect.iscoroutinefunction(inspect.unwrap(compute)):
        found.append(_error(f"{type(reward).__name__}.compute() must be async: write 'async def compute(...)'"))
    return found


def _list_required(method: Any) -> list[str]:
    """Names of the arguments a bound method cannot be called without."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in variadic]


def quick_findings(env_factory: Any) -> list[Finding]:
    """Problems that one environment of a factory shows without a rollout. One that needs a task is not made."""
    env_factory = getattr(env_factory, "inner", env_factory)
    if takes_action(env_factory):
        return []
    try:
        env = env_factory()
    except _MISTAKES as error:
        logger.warning("error=<%s> | making an environment raised", type(error).__name__, exc_info=True)
        return [_error(f"making an environment raised {type(error).__name__}: {error} (-v shows where)")]
    except Exception:  # it says so in the run, where what it needs may be there
        return []
    if inspect.iscoroutine(env):
        env.close()
        return []
    findings = shape_findings(env)
    if not isinstance(env, Environment) or findings:
        return findings
    try:
        given = env.get_tools()
    except Exception:  # tools may need `reset` and a running step
        return findings
    return tool_findings(given)


def tool_findings(given: Any) -> list[Finding]:
    """Problems of the value that `get_tools` returned."""
    if inspect.iscoroutine(given):
        given.close()
        return []  # said of its shape
    if given is None:
        return [_error("get_tools() returned None: write 'return [...]', a list of tools")]
    if not isinstance(given, list | tuple):
        one = getattr(given, "tool_name", None) or getattr(given, "__name__", None) or type(given).__name__
        return [_error(f"get_tools() must return a list of tools, got {one!r}: write 'return [{one}]'")]
    names = Counter(tool.tool_name for tool in given if isinstance(tool, AgentTool))
    found = [
        _error(f"{count} tools are named {name!r}, of which the agent keeps only the last: rename the others")
        for name, count in names.items()
        if count > 1
    ]
    for tool in given:
        if isinstance(tool, AgentTool | ToolProvider | Agent | str | dict | list | tuple) or inspect.ismodule(tool):
            continue
        name = getattr(tool, "__name__", None) or repr(tool)
        if inspect.isclass(tool) and issubclass(tool, AgentTool | ToolProvider):
            found.append(_error(f"the tool {name!r} is a class: give an instance of it"))
        elif callable(tool):
            found.append(_error(f"the tool {name!r} is a plain function, which the SDK drops: decorate it with @tool"))
        else:
            found.append(_error(f"{name} is not a tool, and the SDK drops it: make one with @tool"))
    return found


class _Looking:
    """Models of a dry rollout: the environment's own, with a client that answers for the server."""

    def __init__(self, factory: Any, seen: DryRun) -> None:
        self._factory = factory
        self._seen = seen
        self._is_first = True
        self.clients: list[ScriptedClient] = []
        self.tokenizer: Any = None
        config = getattr(factory, "config", None)
        if config is not None:
            self.config = config

    def __call__(self) -> Model:
        made: Any = self._factory()
        if hasattr(made, "client") and hasattr(made, "tokenizer"):
            client = ScriptedClient(lambda ids, fields: ANSWER, tokenizer=made.tokenizer)
            made.client = client
            self.clients.append(client)
            self.tokenizer = made.tokenizer
        elif not isinstance(made, ScriptedModel):  # another provider would be asked, and paid
            made = ScriptedModel(lambda messages: ANSWER, token_data=False)
        if self._is_first:
            self._is_first = False
            self._watch(made)
        model: Model = made
        return model

    def _watch(self, model: Any) -> None:
        stream = model.stream

        def watched(messages: Any, tool_specs: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not self._seen.tools:
                self._seen.tools = [dict(spec) for spec in tool_specs or ()]
            return stream(messages, tool_specs, *args, **kwargs)

        model.stream = watched


def task_to_try(
    benchmark: str,
    message: str | None = None,
    ground_truth: str | None = None,
    *,
    data: str | None = None,
    columns: str | None = None,
) -> Action:
    """The message as a task, else the first task of the benchmark or its data, else any."""
    if message is not None:
        return Action(message=message, task_context=TaskContext(id="check", ground_truth=ground_truth))
    if not benchmark:
        return Action(message="Hello", task_context=TaskContext(id="check", ground_truth=ground_truth or "an answer"))
    kind = load_evaluator(benchmark)
    options: dict[str, Any] = {}
    if issubclass(kind, Benchmark):
        options = {"data_path": data, "limit": 1}
    if issubclass(kind, DataBenchmark):
        options["columns"] = columns_of(columns)
    evaluator = kind(dict, **options)

    async def first() -> Action | None:
        async with aclosing(stream(evaluator.load_dataset())) as actions:
            return await anext(actions, None)

    with catch_exits():
        found = asyncio.run(first())
    if found is None:
        raise EvalError(f"{benchmark!r} has no tasks: give one with --message")
    return found


def try_server(base_url: str, kind: str, tokenizer: str | None) -> str:
    """Sample one token of a server at temperature 0.7, as training would; a line on the server."""
    from strands_sglang import get_tokenizer

    make_client, address = client_class(base_url, kind)
    client = make_client(address, max_retries=2, retry_delay=0.2)
    name = tokenizer if tokenizer not in (None, "none") else str(client.served_tokenizer())
    try:
        loaded = get_tokenizer(name)
    except ModelLoadError as error:
        raise EvalError(f"the tokenizer {name!r} cannot be loaded, --tokenizer names another: {error}") from error
    client.check_tokenizer(loaded, name)

    async def sample() -> BackendInfo:
        async with client:
            prompt = PromptIds.of(loaded.encode("Hello", add_special_tokens=False))
            params = {"max_new_tokens": 1, "temperature": 0.7}
            await client.ask(GenerateRequest(prompt=prompt, sampling_params=params))
            return await client.info()

    info = asyncio.run(sample())
    room = info.context_length or "unknown"
    return f"{SERVERS[client.kind]}, tokenizer {name}, context {room}; sampled a token with its log-probability"


def models_of(tokenizer: str | None) -> ModelFactory:
    """Models of a dry run: prompts are rendered by a chat template where there is a tokenizer, and no model is asked.

    Raises:
        EvalError: The tokenizer cannot be loaded.
    """
    if tokenizer == "none":
        return lambda: ScriptedModel(lambda messages: ANSWER)
    from strands_sglang import get_tokenizer
    from strands_sglang.backends.engine.loader import default_model_cached

    check_named_models("", None, tokenizer)
    name = tokenizer or ("smollm2" if default_model_cached() else "tiny")
    try:
        loaded = get_tokenizer(name)
    except ImportError:
        if tokenizer is None:
            return lambda: ScriptedModel(lambda messages: ANSWER)
        raise
    except ModelLoadError as error:
        raise EvalError(str(error)) from error
    client = ScriptedClient(lambda ids, fields: ANSWER, tokenizer=loaded)
    return sglang_model_factory(tokenizer=loaded, client=client)


async def try_environment(
    factory: EnvFactory, action: Action, calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
) -> DryRun:
    """A dry run of one environment, and these calls of tools, by name and input, in another.

    Raises:
        EvalError: The environment cannot be made, or has no such tool.
    """
    seen = await dry_run(await _made(factory, action), action)
    known = [spec["name"] for spec in seen.tools]
    for name, _ in calls:
        if name not in known and known:
            raise EvalError(f"there is no tool {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")
    env = await _made(factory, action)
    if seen.is_ok and isinstance(env, Environment):
        await call_tools(env, action, [ScriptedCall(name=name, input=dict(given)) for name, given in calls], seen)
    return seen


async def _made(factory: EnvFactory, action: Action) -> Any:
    try:
        return await make_environment(factory, action, takes_action(factory))
    except Exception as error:
        raise EvalError(f"the environment cannot be made: {type(error).__name__}: {error}") from error


async def dry_run(env: Any, action: Action) -> DryRun:
    """Run an environment once: `reset`, one answer, the reward, `cleanup`. No model is asked."""
    seen = DryRun(findings=shape_findings(env))
    if not seen.is_ok:
        return seen
    tools = _tools_of(env)
    models = _Looking(env.model_factory, seen) if hasattr(env, "model_factory") else None
    if models is not None:
        env.model_factory = models
    try:
        seen.result = await run_environment(env, action)
    except Exception as error:  # of something that only looks like an Environment, or overrides `rollout`
        seen.findings.append(_error(f"the rollout raised {type(error).__name__}: {error}"))
    for given in tools[:1]:
        seen.findings += tool_findings(given)
    for spec in seen.tools:
        if str(spec.get("description") or "").strip() in ("", spec["name"]):
            what = f"the tool {spec['name']!r} has no docstring: the model knows nothing but its name"
            seen.findings.append(_warning(what))
    clients = [] if models is None else models.clients
    first = next((client.requests[0] for client in clients if client.requests), None)
    if models is not None and first is not None:
        seen.prompt_tokens = len(first.input_ids)
        seen.prompt = str(models.tokenizer.decode(first.input_ids, skip_special_tokens=False))
    if seen.result is not None:
        seen.findings += result_findings(env, seen.result)
    return seen


async def call_tools(env: Environment, action: Action, calls: Iterable[ScriptedCall], seen: DryRun) -> None:
    """Call tools in a rollout of a fresh environment, without limits on calls and without a reward; adds to `seen`.

    Tools without required arguments are called too.
    """
    given = list(calls)
    named = {one.name for one in given}
    schemas = {spec["name"]: spec.get("inputSchema") or {} for spec in seen.tools}
    names = [name for name, schema in schemas.items() if not schema.get("json", schema).get("required")]
    asked = [*(call(name) for name in names if name not in named), *given]
    if not asked:
        return
    replies = iter([reply("", *asked)])
    env.model_factory = lambda: ScriptedModel(lambda messages: next(replies, ANSWER), token_data=False)
    env.reward_fn = env.max_tool_iters = env.max_tool_calls = env.max_parallel_tool_calls = env.max_messages = None
    env.tool_timeout = env.tool_timeout or TOOL_SECONDS
    result = await env.rollout(action)
    blocks = [block for message in result.observation.messages for block in message.get("content") or ()]
    uses = {block["toolUse"]["toolUseId"]: block["toolUse"] for block in blocks if "toolUse" in block}
    raised = {record.tool_use_id: record.error for record in result.tool_errors}
    for answer in (block["toolResult"] for block in blocks if "toolResult" in block):
        use = uses[answer["toolUseId"]]
        text = " ".join(str(part.get("text", part.get("json", ""))) for part in answer.get("content") or ())
        seen.calls.append(CalledTool(name=use["name"], input=use["input"], text=text))
        if (error := raised.get(answer["toolUseId"])) is not None:
            seen.findings.append(_error(f"the tool {use['name']!r} raised {_described_error(error)}"))
        elif answer.get("status") == "error":
            seen.findings.append(_error(f"the tool {use['name']!r} gave an error: {text}"))
    if result.error is not None and not seen.calls:
        seen.findings.append(_error(f"no tool could be called: {_described_error(result.error)}"))


def _described_error(error: ErrorRecord) -> str:
    place = f", at {error.raised_at}" if error.raised_at else ""
    return f"{error.type}: {error.message}{place}"


def _tools_of(env: Any) -> list[Any]:
    """List that receives the value of `get_tools` once it has been called."""
    returned: list[Any] = []
    if not isinstance(env, Environment):
        return returned
    original = env.get_tools

    def get_tools() -> Any:
        returned.append(original())
        return returned[-1]

    env.get_tools = get_tools  # type: ignore[method-assign]
    return returned


def result_findings(env: Any, result: StepResult) -> Iterable[Finding]:
    """Problems that the result of a dry rollout shows."""
    if result.error is not None:
        where, error = result.error.where.value, result.error
        yield _error(f"the {where} failed: {_described_error(error)}")
    elif result.termination_reason.is_failure:
        yield _error(f"the episode ended with {result.termination_reason.value}")
    if result.cleanup_error is not None:
        yield _error(f"cleanup() failed: {_described_error(result.cleanup_error)}")
    if getattr(env, "reward_fn", None) is None and result.reward is None:
        yield _warning("no reward function: nothing would be scored")
    elif result.error is None and (result.reward is None or result.reward.reward is None):
        yield _warning("the reward function abstained from the dry answer")
