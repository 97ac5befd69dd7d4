"""What slime's arguments say about our rollouts."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

_PREFIX = "strands_env_"


class SlimeConfigError(ValueError):
    """The configuration of the rollout function is wrong; every rollout would fail the same way, so the run stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimeSettings:
    """Our options.

    Each is read from slime's arguments (any key of `--custom-config-path`) with the prefix `strands_env_`. `factory`,
    `reward`, `tool_parser` and `log_dir` may be environment variables instead (`STRANDS_ENV_FACTORY`).

    Attributes:
        factory: Import path of what makes an environment for each rollout: an `Environment` class, called with
            `model_factory` and `options`; or a function, called with those of `model_factory`, `args`, `sample`,
            `evaluation` and `options` that its signature names.
        options: Keyword arguments of the environment class.
        reward: Import path of a `RewardFunction` class or a plain function for `reward_func`, where the environment
            has no reward.
        tool_parser: Name of the tool parser; None chooses one that fits the chat template.
        system_prompt: System prompt of the environment; a system message in the data replaces it.
        fanout: Return every path of a rollout as a sample of its own. Otherwise only the main agent's last.
        client_options: Options of `SGLangClient`.
        model_options: Further options of `SGLangModel`.
        log_dir: Folder for the rollout logger's files; none are written without it.
        log_messages: Number of rollouts whose conversation the logger keeps at each step.
    """

    factory: str
    options: Mapping[str, Any] = field(default_factory=dict)
    reward: str | None = None
    tool_parser: str | None = None
    system_prompt: str | None = None
    fanout: bool = True
    client_options: Mapping[str, Any] = field(default_factory=dict)
    model_options: Mapping[str, Any] = field(default_factory=dict)
    log_dir: str | None = None
    log_messages: int = 4

    @classmethod
    def from_args(cls, args: Any, *, factory_required: bool = True) -> SlimeSettings:
        """Read the settings.

        Raises:
            SlimeConfigError: There is no factory, or an option that does not exist.
        """
        names = {item.name for item in fields(cls)}
        given = {key.removeprefix(_PREFIX): value for key, value in vars(args).items() if key.startswith(_PREFIX)}
        if unknown := sorted(set(given) - names):
            raise SlimeConfigError(
                f"unknown options {[_PREFIX + name for name in unknown]!r}; known are "
                f"{[_PREFIX + name for name in sorted(names)]!r}"
            )
        values = {name: value for name, value in given.items() if value is not None}
        for name in ("factory", "reward", "tool_parser", "log_dir"):
            if name not in values and (value := os.environ.get((_PREFIX + name).upper())):
                values[name] = value
        if "factory" not in values:
            if factory_required:
                raise SlimeConfigError(
                    "no environment: set strands_env_factory in the --custom-config-path YAML (or the variable "
                    "STRANDS_ENV_FACTORY) to the import path of an Environment class or of a function that makes one"
                )
            values["factory"] = ""
        return cls(**values)

    def make_environment(self, *, model_factory: Any, args: Any, sample: Any, evaluation: bool) -> Any:
        """A fresh environment for one rollout.

        Raises:
            SlimeConfigError: The factory cannot be imported.
        """
        made = load(self.factory)
        available = {
            "model_factory": model_factory,
            "args": args,
            "sample": sample,
            "evaluation": evaluation,
            "options": dict(self.options),
        }
        if isinstance(made, type):
            system_prompt = {} if self.system_prompt is None else {"system_prompt": self.system_prompt}
            return made(model_factory=model_factory, **system_prompt, **self.options)
        parameters = inspect.signature(made).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return made(**available)
        return made(**{name: value for name, value in available.items() if name in parameters})


def load(path: str) -> Any:
    """The object at an import path.

    Raises:
        SlimeConfigError: There is none.
    """
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SlimeConfigError(
            f"cannot import {path!r} ({error}); expected 'package.module.name' on the PYTHONPATH of slime's workers"
        ) from error


def sampling_params_of(params: Mapping[str, Any]) -> tuple[dict[str, Any], int | None]:
    """Sampling parameters of one model call, and the budget of the whole response. The given ones are not touched.

    slime's own are `None` where unset. Special tokens stay in the text, for the tool parser.
    """
    import copy

    own = {key: copy.deepcopy(value) for key, value in params.items() if value is not None}
    own.pop("skip_special_tokens", None)
    budget = own.get("max_new_tokens")
    return own, None if budget is None else int(budget)
