"""One rollout of an environment with a made-up answer instead of a sampled one, and the mistakes it reveals."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from strands import Agent
from strands.models import Model

from strands_env.commands.recipe.factories import load_evaluator
from strands_env.core import Action, Environment, ErrorRecord, Outcome, StepResult, TaskContext
from strands_env.core.environment import OVERRIDES
from strands_env.core.models import sglang_model_factory
from strands_env.core.overrides import flatten_tools, tool_mistakes
from strands_env.core.rollout import EnvFactory, LocalExecutor, make_environment, takes_action
from strands_env.eval import EvalError
from strands_env.eval.options import EvalOptions
from strands_env.eval.run.tasks import catch_exits, stream, with_names
from strands_env.rewards.proof import RewardProof, prove_reward, reward_of
from strands_env.testing.scripted import ScriptedModel, call, reply
from strands_sglang import Limits, get_tokenizer
from strands_sglang.backends.engine.loader import default_model_cached
from strands_sglang.backends.engine.own_models import ModelLoadError
from strands_sglang.backends.engine.own_tokenizer import own_tokenizer
from strands_sglang.testing import ScriptedClient

logger = logging.getLogger(__name__)

ANSWER = "This is a trial."
FILE_TASKS, OTHER_TASKS = 10_000, 100
"""Tasks that are read of a file, and of a hub or a function, for the proof of the reward."""
NAMED = 5
"""Tasks that one finding names."""
TOOL_SECONDS = 30.0
"""Seconds for a tool that has no limit."""
REWARD_SECONDS = 30.0
"""Seconds for a reward that has no limit."""
BLOCKED_SECONDS = 30.0
"""Time for which code may hold up the event loop."""
_MISTAKES = (TypeError, ValueError, NameError, AttributeError, LookupError, ImportError, AssertionError)
"""Errors that a constructor raises every time; a missing connection or running loop may only be missing now."""


@dataclass(slots=True, kw_only=True)
class Trial:
    """Outcome of a trial.

    Attributes:
        errors: Reasons why a run would fail, or not do what was intended.
        warnings: Reasons why it would work, but perhaps not as intended.
        prompt: The first one as the model reads it; None where nothing was asked, or there is no tokenizer.
        calls: The name of every tool that was called, and the text that the model would have been given.
        proof: That of the reward; None where there is no reward or there are no tasks.
    """

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    prompt: str | None = None
    prompt_tokens: int = 0
    result: StepResult | None = None
    calls: list[dict[str, str]] = field(default_factory=list)
    proof: RewardProof | None = None


# ---- without running it ----------------------------------------------------------------------------------------------


def find_mistakes(env_factory: Any) -> list[str]:
    """Mistakes that one environment of a factory shows without a rollout. One that needs a task is not made."""
    env_factory = getattr(env_factory, "inner", env_factory)
    if takes_action(env_factory):
        return []
    try:
        env = env_factory()
    except _MISTAKES as error:
        logger.warning("error=<%s> | making an environment raised", type(error).__name__, exc_info=True)
        return [f"making an environment raised {type(error).__name__}: {error} (-v shows where)"]
    except Exception:  # the run reports it, where its needs may be met
        return []
    if inspect.iscoroutine(env):
        env.close()
        return []
    mistakes = list(_wrong_overrides(env))
    if not isinstance(env, Environment) or mistakes:
        return mistakes
    try:
        tools: Any = env.get_tools()
    except Exception:  # tools may need `reset` and a running step
        return []
    if not isinstance(tools, Iterable):
        return [f"get_tools() must return a list, got {tools!r:.100}: write 'def get_tools(self): return [...]'"]
    return list(tool_mistakes(list(flatten_tools(tools))))


def _wrong_overrides(env: Any) -> Iterator[str]:
    kind = type(env).__name__
    if not isinstance(env, Environment):
        if not hasattr(env, "rollout") and not hasattr(env, "step"):
            yield f"the factory must make an Environment, got {kind}"
        return
    if not hasattr(env, "model_factory"):
        yield f"{kind}.__init__() must call super().__init__(model_factory=model_factory, ...) first"
        return
    for name in sorted(OVERRIDES - {"reset", "get_state", "cleanup"}):  # these may be either
        is_async = inspect.iscoroutinefunction(getattr(Environment, name))
        if inspect.iscoroutinefunction(inspect.unwrap(getattr(env, name))) is not is_async:
            must, write = ("must", "async def") if is_async else ("must not", "def")
            yield f"{kind}.{name}() {must} be async: write '{write} {name}(self, ...)'"
    compute = getattr(env.reward_fn, "compute", None)
    if compute is not None and not inspect.iscoroutinefunction(inspect.unwrap(compute)):
        yield f"{type(env.reward_fn).__name__}.compute() must be async: write 'async def compute(...)'"


# ---- a rollout without a model --------------------------------------------------------------------------------------


def tasks_to_try(options: EvalOptions) -> list[Action]:
    """The first tasks of the benchmark, as many as its data is cheap to read; any task without a benchmark."""
    if not options.benchmark:
        return [Action(message="Hello", task_context=TaskContext(id="check", ground_truth="an answer"))]
    evaluator = load_evaluator(options.benchmark)(dict, options=options)
    count = FILE_TASKS if options.data_path is not None else OTHER_TASKS

    async def read() -> list[Action]:
        actions_read: list[Action] = []
        async with aclosing(stream(evaluator.load_dataset())) as actions:
            async for action in actions:
                actions_read.append(action)
                if len(actions_read) == count:
                    break
        return actions_read

    with catch_exits():
        tasks = asyncio.run(read())
    if not tasks:
        raise EvalError(f"{options.benchmark!r} has no tasks")
    return with_names(tasks)


class TrialModels:
    """A model factory that asks no model. Prompts are rendered by a chat template where there is a tokenizer.

    Raises:
        EvalError: The tokenizer cannot be loaded.
    """

    def __init__(self, tokenizer: str | None) -> None:
        self.tokenizer = None
        if tokenizer != "none":
            try:
                name = tokenizer or ("smollm2" if default_model_cached() else "tiny")
                self.tokenizer = own_tokenizer(name) or get_tokenizer(name)
            except ImportError:
                if tokenizer is not None:  # without the extra, a rollout still shows the rest
                    raise
            except ModelLoadError as error:
                raise EvalError(str(error)) from error
        self.client = ScriptedClient(lambda ids, fields: ANSWER, tokenizer=self.tokenizer)

    def __call__(self) -> Model:
        """A model."""
        if self.tokenizer is None:
            return ScriptedModel(lambda messages: ANSWER)
        return sglang_model_factory(tokenizer=self.tokenizer, client=self.client)()


async def try_environment(factory: EnvFactory, action: Action, models: TrialModels, trial: Trial) -> None:
    """A rollout of one environment, and calls of its tools in another.

    Raises:
        EvalError: The environment cannot be made.
    """
    try:
        env, other = [await make_environment(factory, action, takes_action(factory)) for _ in range(2)]
    except Exception as error:
        raise EvalError(f"the environment cannot be made: {type(error).__name__}: {error}") from error
    trial.errors += _wrong_overrides(env)
    if trial.errors:
        return
    await _run(env, action, models, trial)
    if not trial.errors and isinstance(other, Environment):
        await _call_tools(other, action, trial)


async def prove(factory: EnvFactory, tasks: list[Action], trial: Trial, *, is_asked: bool, **options: Any) -> None:
    """Prove the reward of a factory on tasks; a failure is an error.

    Args:
        is_asked: The user named the reward. One of an environment may read more than the answer, such as its database;
            that no gold wins is then no error.
        **options: Of `prove_reward`.
    """
    trial.proof = proof = await prove_reward(tasks, await reward_of(factory), **options)
    failed = proof.ids()
    if proof.is_late:
        trial.errors.append(
            f"no task was proven within {options['seconds']:g} s, so nothing is known of the reward: raise "
            "--proof-seconds, or make the reward faster"
        )
    elif failed and (proof.decides or is_asked):
        names = ", ".join(failed[:NAMED]) + (", ..." if len(failed) > NAMED else "")
        trial.errors.append(f"{len(failed)} of {len(proof.rows)} tasks fail the proof of the reward: {names}")
    elif failed:
        trial.warnings.append(
            "no gold wins by an answer alone, so the reward is not proven: where it reads more (calls, a database), "
            "give it a method examples(action)"
        )


async def _run(env: Any, action: Action, models: TrialModels, trial: Trial) -> None:
    """Run an environment once: `reset`, one answer, the reward, `cleanup`."""
    env.model_factory = models
    if isinstance(env, Environment):
        env.reward_timeout = env.reward_timeout or REWARD_SECONDS
        interact = env.interact

        async def look(agent: Agent, action: Action) -> Any:
            trial.tools = [dict(spec) for spec in agent.tool_registry.get_all_tool_specs()]
            return await interact(agent, action)

        env.interact = look  # type: ignore[method-assign]
    try:
        result = trial.result = await LocalExecutor(lambda: env).rollout(action)
    except Exception as error:  # of something that only looks like an Environment, or overrides `rollout`
        trial.errors.append(f"the rollout raised {type(error).__name__}: {error}")
        return
    for spec in trial.tools:
        if str(spec.get("description") or "").strip() in ("", spec["name"]):
            trial.warnings.append(f"the tool {spec['name']!r} has no docstring: the model knows nothing but its name")
    if models.tokenizer is not None and models.client.requests:
        ids = models.client.requests[0].input_ids
        trial.prompt_tokens, trial.prompt = len(ids), str(models.tokenizer.decode(ids, skip_special_tokens=False))
    if result.error is not None:
        trial.errors.append(f"the {result.error.where.value} failed: {_describe(result.error)}")
    elif result.outcome is not Outcome.POLICY:
        trial.errors.append(f"the episode ended with {result.termination_reason.value}")
    if result.cleanup_error is not None:
        trial.errors.append(f"cleanup() failed: {_describe(result.cleanup_error)}")
    if getattr(env, "reward_fn", None) is None and result.reward is None:
        trial.warnings.append("no reward function: nothing would be scored")
    elif result.error is None and (result.reward is None or result.reward.reward is None):
        trial.warnings.append("the reward function abstained from the made-up answer")


async def _call_tools(env: Environment, action: Action, trial: Trial) -> None:
    """Call the tools without required arguments in a rollout, without limits on calls and without a reward."""
    schemas = {spec["name"]: spec.get("inputSchema") or {} for spec in trial.tools}
    calls = [call(name) for name, schema in schemas.items() if not schema.get("json", schema).get("required")]
    if not calls:
        return
    replies = iter([reply("", *calls)])  # all calls in one reply, then the answer
    env.model_factory = lambda: ScriptedModel(lambda messages: next(replies, ANSWER), token_data=False)
    # All tools are tried, beyond the limits of a rollout.
    env.reward_fn, env.limits = None, Limits(**env.limits.set_ones("tokens"))
    env.tool_timeout = env.tool_timeout or TOOL_SECONDS
    result = await env.rollout(action)
    blocks = [block for message in result.observation.messages for block in message.get("content") or ()]
    names = {block["toolUse"]["toolUseId"]: block["toolUse"]["name"] for block in blocks if "toolUse" in block}
    raised = {record.tool_use_id: record.error for record in result.tool_errors}
    for answer in (block["toolResult"] for block in blocks if "toolResult" in block):
        name = names[answer["toolUseId"]]
        text = " ".join(str(part.get("text", part.get("json", ""))) for part in answer.get("content") or ())
        trial.calls.append({"name": name, "text": text})
        if (error := raised.get(answer["toolUseId"])) is not None:
            trial.errors.append(f"the tool {name!r} raised {_describe(error)}")
        elif answer.get("status") == "error":
            trial.errors.append(f"the tool {name!r} gave an error: {text}")
    if result.error is not None and not trial.calls:
        trial.errors.append(f"no tool could be called: {_describe(result.error)}")


def _describe(error: ErrorRecord) -> str:
    return f"{error}{f', at {error.raised_at}' if error.raised_at else ''}"
