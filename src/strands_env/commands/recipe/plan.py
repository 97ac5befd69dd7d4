"""The plan of a run, for `--dry-run`: its resolved options, and the most it can cost. Nothing is sampled or written."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from strands_env.commands.recipe.run_file import run_file_text
from strands_env.core import Environment
from strands_env.core.backends import BACKENDS
from strands_env.core.rollout import takes_action
from strands_env.eval import Evaluator
from strands_env.eval.options import EvalOptions, TrainOptions
from strands_env.eval.run.benchmark import KNOWN_ROWS

_CALLS = ("max_tool_iters", "max_tool_calls", "max_messages")
"""Limits of an environment that bound the model calls of a rollout, each by its own number."""
_LIMITS = (*_CALLS, "max_parallel_tool_calls", "max_total_tokens", "setup_timeout", "step_timeout", "reward_timeout",
           "cleanup_timeout", "tool_timeout")  # fmt: skip


def plan_of(evaluator: Evaluator, options: EvalOptions, training: TrainOptions | None = None) -> dict[str, Any]:
    """The plan of a run as JSON values; None stands for unknown or unbounded.

    `calls` and `tokens` (sampled ones) are upper bounds without the repeats of rollouts that were lost.
    """
    tasks = evaluator.count() or _read_tasks(evaluator, options)
    if tasks is not None and options.limit is not None:
        tasks = min(tasks, options.limit)
    if training is not None:
        rollouts = None if tasks is None else training.steps * training.group * min(training.prompts, tasks)
    else:
        rollouts = None if tasks is None else tasks * options.n_samples_per_prompt
    env = _environment(evaluator)
    limits = {name: value for name in _LIMITS if (value := getattr(env, name, None)) is not None}
    limits |= {} if options.sample_timeout is None else {"sample_timeout": options.sample_timeout}
    # An override of `interact` may run the agent's loop again and again.
    bounds = [max(1, limits[name]) for name in _CALLS if name in limits]
    is_bounded = env is not None and type(env).interact is Environment.interact and bounds
    calls_each = min(bounds) if is_bounded else None
    reply = (options.sampling or {}).get("max_new_tokens")
    tokens_each = None if calls_each is None or reply is None else calls_each * reply
    if "max_total_tokens" in limits:
        tokens_each = min(tokens_each or limits["max_total_tokens"], limits["max_total_tokens"])
    return {
        "options": run_file_text(replace(options, sampling_seed=None), training),
        "tasks": tasks,
        "rollouts": rollouts,
        "model": options.model_id or ("smollm2" if options.backend == "local" else None),
        "backend": options.backend,
        "server": options.base_url,
        "limits": limits,
        "calls": _times(rollouts, calls_each),
        "tokens": _times(rollouts, tokens_each),
        "calls_per_rollout": calls_each,
        "tokens_per_call": reply,
        "output": str(options.output_path),
    }


def _read_tasks(evaluator: Evaluator, options: EvalOptions) -> int | None:
    """Number of tasks of a local file; None where only the first tasks were read."""
    is_file = options.data_path is not None and Path(options.data_path).is_file()
    known = len(evaluator.known_tasks())  # of other data too: a wrong row is told here
    return known if is_file and 0 < known < KNOWN_ROWS else None


def _times(count: int | None, each: int | None) -> int | None:
    return None if count is None or each is None else count * each


def _environment(evaluator: Evaluator) -> Environment | None:
    """An environment of the run; None where one needs a task, a loaded model or another process."""
    factory: Any = evaluator.env_factory
    factory = getattr(factory, "inner", factory)  # with the reward that was named
    if factory in (None, dict) or takes_action(factory):
        return None
    env = factory()
    if inspect.iscoroutine(env):
        env.close()
    return env if isinstance(env, Environment) else None


def plan_lines(plan: dict[str, Any]) -> Iterator[str]:
    """The options as a file of a run, and the rest of the plan as comments below it."""
    yield plan["options"].rstrip()
    each = f"{plan['calls_per_rollout']} a rollout"
    limits = ", ".join(f"{name} {value:g}" for name, value in plan["limits"].items())
    in_process = {"local": "in this process", "scripted": "none: replies are scripted"}
    facts = {
        "tasks": _number(plan["tasks"], "not known before they are read"),
        "rollouts": _number(plan["rollouts"], "as many as there are tasks, for each sample"),
        "model": plan["model"] or ("none" if plan["backend"] == "scripted" else "the server's"),
        "server": plan["server"] or in_process.get(plan["backend"], f"that of {plan['backend']}"),
        "limits": limits or "none",
        "calls": f"at most {plan['calls']:,}, {each}" if plan["calls"] else "not bounded: give max_tool_iters",
        "tokens": f"at most {plan['tokens']:,} sampled" if plan["tokens"] else "not bounded: give max_new_tokens too",
        "output": plan["output"],
    }
    if not BACKENDS[plan["backend"]].has_tokens:
        facts["exact"] = "no token ids: this backend gives none"
    for name, fact in facts.items():
        yield f"# {name:<11}{fact}"


def _number(value: int | None, otherwise: str) -> str:
    return otherwise if value is None else f"{value:,}"
