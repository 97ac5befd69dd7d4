"""The launch of a training with slime, verl or SkyRL: the files it needs and its command line, as text to paste."""

from __future__ import annotations

import inspect
import json
from importlib import resources
from pathlib import Path
from string import Template

from strands_env.commands.recipe.names import HOOK, load_object, path_of_reward, split_path
from strands_env.core import Environment
from strands_env.core.jsonable import shown
from strands_env.eval.errors import EvalError
from strands_env.eval.options import COLUMNS, EvalOptions, TrainOptions
from strands_sglang.backends.engine.own_models import is_own_model

LENGTH = 4096
"""Tokens of a whole response where `max_new_tokens` is not given."""


def launch_text(options: EvalOptions, training: TrainOptions) -> str:
    """The files and the command line of a training; nothing is written.

    Raises:
        EvalError: An option that these trainers need is missing, or of no use to them.
    """
    given = options.model_id or "smollm2"
    if is_own_model(given):
        raise EvalError(f"{training.trainer} trains a model of a hub or a folder, got {given!r}: give --model ID")
    data, question, answer = _data(options, training.trainer)
    sampling = options.sampling or {}
    values = {
        "rollouts": _rollouts(options, training.trainer),
        "model": options.model_id,
        "data": data,
        "question": question,
        "answer": answer,
        "data_text": json.dumps(data),
        "question_text": json.dumps(question),
        "answer_text": json.dumps(answer),
        "output": str(options.output_path),
        "steps": training.steps,
        "prompts": training.prompts,
        "group": training.group,
        "batch": training.prompts * training.group,
        "save_every": training.save_every,
        "lr": f"{training.lr:g}",
        "temperature": f"{sampling.get('temperature', 1.0):g}",
        "length": sampling.get("max_new_tokens", LENGTH),
    }
    name = f"launch_{training.trainer}.txt"
    text = resources.files("strands_env.commands").joinpath("scaffold", name).read_text(encoding="utf-8")
    return Template(text).substitute(values)


def _data(options: EvalOptions, trainer: str) -> tuple[str, str, str]:
    """The file of the tasks, and its columns of question and answer."""
    if options.data_path is None or Path(options.data_path).suffix != ".jsonl":
        raise EvalError(f"{trainer} reads tasks from a file of JSON lines: give --data FILE.jsonl")
    with Path(options.data_path).open(encoding="utf-8") as file:
        row = json.loads(next((line for line in file if line.strip()), "{}"))
    found = []
    for kind in ("question", "answer"):
        name = (options.columns or {}).get(kind) or next((name for name in COLUMNS[kind] if name in row), None)
        if name is None:
            raise EvalError(f"{str(options.data_path)!r} has no {kind} column: name it with --columns {kind}=NAME")
        found.append(name)
    return str(options.data_path), found[0], found[1]


def _rollouts(options: EvalOptions, trainer: str) -> str:
    """The function that makes the environment of a rollout, for a module that the trainer's workers import."""
    if options.env is None:
        raise EvalError(f"{trainer} makes environments on its own workers: name yours with --env module:attribute")
    (module, attribute), hook = split_path(options.env, HOOK), load_object(options.env, HOOK)
    is_class = inspect.isclass(hook) and issubclass(hook, Environment)
    call = "(model_factory=model_factory, **OPTIONS)" if is_class else "(model_factory, **OPTIONS)()"
    modules, body = [module], [f"    env = {module}.{attribute}{call}"]
    if options.reward is not None:
        path = path_of_reward(options.reward)
        reward_module, name = split_path(path, "reward")
        made = "()" if inspect.isclass(load_object(path, "reward")) else ""
        modules.append(reward_module)
        body.append(f"    env.reward_fn = {reward_module}.{name}{made}")
    imports = [f"import {name}" for name in dict.fromkeys(modules)]
    arguments = f"OPTIONS = {shown(dict(options.env_config or {}))!r}"
    return "\n".join([*imports, "", arguments, "", "", "def make_env(model_factory):", *body, "    return env", ""])
