"""The options of a run: ours out of slime's arguments, and what slime or its fork needs of every sample."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, StrictBool, ValidationError

from strands_env.core.termination import message_of
from strands_env.training.slime.session import SESSION

logger = logging.getLogger(__name__)

METADATA_KEY = "strands_env"
"""Key in a sample's `metadata` of termination reason, final answer, error, metrics and reward information."""

_PREFIX = "strands_env_"


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning that every rollout would repeat."""
    logger.warning(message)


class SlimeConfigError(ValueError):
    """The configuration of the rollout function is wrong; every rollout would fail the same way, so the run stops."""


class SlimeSettings(BaseModel):
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
        fanout: Return every path of a rollout as a sample, always in a list. Otherwise only the main agent's
            last path, which then trains every token sampled on it. None is true where slime's arguments name
            `reward_post_process`, which counts the paths of a rollout once, and slime takes lists: not with
            `--partial-rollout`, `--group-rm` or the fully asynchronous worker.
        processor: Folder or hub id of the image processor; None is `--hf-checkpoint`, where slime finds one there.
        client_options: Options of `SGLangClient`.
        model_options: Further options of `SGLangModel`.
        log_dir: Folder for the rollout logger's files; none are written without it.
        log_messages: Number of rollouts whose conversation the logger keeps at each step.
        max_failures: Number of training rollouts in a row that fail, after which the run ends with
            `FailureStreakError`; 0 for no limit. A failure counts if no rollout of this process has succeeded since
            it began.
        retries: Further attempts of a rollout that failed, each in a fresh environment. A time-out is not tried again.
        min_usable: Usable rollouts that a group must have, or none of it is trained.
        max_sampled_tokens: Tokens that all paths and agents of a rollout sample together. None is four times
            `max_new_tokens`, which limits each path.
        max_suspension: Seconds that a suspended rollout (`--partial-rollout`) waits for slime to ask again before
            it is ended; 0 for no limit.
        proof_seconds: Seconds for the proof of the reward, on a sample of the data in the first step and on each new
            task. A task that fails is left out of training. 0 for no proof.
    """

    model_config = ConfigDict(frozen=True, protected_namespaces=())

    factory: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    reward: str | None = None
    tool_parser: str | None = None
    system_prompt: str | None = None
    fanout: StrictBool | None = None
    processor: str | None = None
    client_options: dict[str, Any] = Field(default_factory=dict)
    model_options: dict[str, Any] = Field(default_factory=dict)
    log_dir: str | None = None
    log_messages: NonNegativeInt = 4
    max_failures: NonNegativeInt = 64
    retries: NonNegativeInt = 2
    min_usable: NonNegativeInt = 2
    max_sampled_tokens: NonNegativeInt | None = None
    max_suspension: NonNegativeFloat = 7200.0
    proof_seconds: NonNegativeFloat = 10.0

    @classmethod
    def from_args(cls, args: Any, *, factory_required: bool = True) -> SlimeSettings:
        """Read the settings.

        Raises:
            SlimeConfigError: The factory is missing, an option is unknown, or a value is invalid.
        """
        options = {key.removeprefix(_PREFIX): value for key, value in vars(args).items() if key.startswith(_PREFIX)}
        if unknown := sorted(_PREFIX + name for name in set(options) - set(cls.model_fields)):
            names = sorted(_PREFIX + name for name in cls.model_fields)
            raise SlimeConfigError(f"unknown options {unknown!r}; known are {names!r}")
        values = {name: value for name, value in options.items() if value is not None}
        for name in ("factory", "reward", "tool_parser", "log_dir"):
            if name not in values and (value := os.environ.get((_PREFIX + name).upper())):
                values[name] = value
        if factory_required and "factory" not in values:
            raise SlimeConfigError(
                "no environment: set strands_env_factory in the --custom-config-path YAML (or the variable "
                "STRANDS_ENV_FACTORY) to the import path of an Environment class or of a function that makes one"
            )
        try:
            settings = cls(**values)
        except ValidationError as error:
            raise SlimeConfigError(f"{_PREFIX}{message_of(error)}") from error
        if settings.model_options.get("return_logprob") is False:
            raise SlimeConfigError(
                "strands_env_model_options: return_logprob must stay on, slime trains on log-probabilities"
            )
        return settings

    def make_environment(self, *, model_factory: Any, args: Any, sample: Any, evaluation: bool) -> Any:
        """A fresh environment for one rollout.

        Raises:
            SlimeConfigError: The factory cannot be imported, cannot be called with these arguments, or makes something
                else. A `TypeError` from inside it (from a class: a `ValueError` too) counts as such until an
                environment was made.
        """
        factory = load(self.factory)
        wrong: tuple[type[Exception], ...] = (TypeError,)
        if isinstance(factory, type):
            system_prompt = {} if self.system_prompt is None else {"system_prompt": self.system_prompt}
            arguments = {"model_factory": model_factory, **system_prompt, **self.options}
            wrong = (TypeError, ValueError)
        elif callable(factory):
            arguments = {"model_factory": model_factory, "args": args, "sample": sample, "evaluation": evaluation}
            arguments["options"] = dict(self.options)
            parameters = inspect.signature(factory).parameters
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
                arguments = {name: value for name, value in arguments.items() if name in parameters}
        else:
            raise SlimeConfigError(f"{self.factory!r} is a {type(factory).__name__}, expected a class or a function")
        try:
            environment = factory(**arguments)
        except wrong as error:
            # It has worked before, so this task is at fault and not the configuration.
            if repr(self) in SESSION.working_settings:
                raise
            raise SlimeConfigError(
                f"{self.factory!r} makes no environment with strands_env_options {dict(self.options)!r}: {error}"
            ) from error
        if not callable(getattr(environment, "rollout", None)):
            if inspect.iscoroutine(environment):
                environment.close()  # or Python warns that it was never awaited
            raise SlimeConfigError(
                f"{self.factory!r} returned {type(environment).__name__!r}, expected an Environment; a factory is a "
                "plain function, and move whatever must be awaited to Environment.reset()"
            )
        SESSION.working_settings.add(repr(self))
        return environment


def load(path: str) -> Any:
    """The object at an import path.

    Raises:
        SlimeConfigError: It cannot be imported.
    """
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SlimeConfigError(
            f"cannot import {path!r} ({error}); expected 'package.module.name' on the PYTHONPATH of slime's workers"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """slime or one of its forks: their names for the same things.

    Attributes:
        states: Module of `GenerateState`; None where the state comes with the call.
        seed: Sampling parameter with the seed of a call.
        meta: Field of a raw answer that holds what spans and counters are made of; None for the answer itself.
        asks_for_top_p: Its server returns the survivors of top-p only where it is asked to.
        policy: Argument with the policy of the router.
        by_key: Policies that keep the requests of a sample on one worker.
        key: Field of the sample with the key for that.
        traces: Module of its spans; None where it has none.
        span: Name of the span of a request.
        attributes: Function of that module which makes the attributes of the span out of an answer.
        replays_top_p: Its samples hold the survivors of top-p.
    """

    name: str
    states: str | None
    seed: str = "sampling_seed"
    meta: str | None = "meta_info"
    asks_for_top_p: bool = False
    policy: str = "router_policy"
    by_key: frozenset[str] = frozenset({"consistent_hashing"})  # slime sends its routing header with this policy only
    key: str = "session_id"
    traces: str | None = None
    span: str = "sglang_generate"
    attributes: str = "build_sglang_meta_trace_attrs"
    replays_top_p: bool = True

    @classmethod
    def of_sample(cls, sample: Any) -> Trainer:
        """The trainer whose sample it is; slime for one of any other class."""
        return _FORKS.get(type(sample).__module__.partition(".")[0], SLIME)

    def meta_of(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part of a raw answer that spans and counters are made of."""
        return payload if self.meta is None else payload.get(self.meta) or {}


SLIME = Trainer(name="slime", states="slime.rollout.sglang_rollout", traces="slime.observability.trace_utils")
_FORKS = {
    "miles": Trainer(
        name="miles",
        states=None,
        policy="sglang_router_policy",
        by_key=frozenset({"consistent_hashing", "manual"}),
        key="routing_key",
        replays_top_p=False,
    ),
    "vime": Trainer(
        name="vime",
        states="vime.rollout.vllm_rollout",
        seed="seed",
        meta=None,
        asks_for_top_p=True,
        by_key=frozenset({"consistent_hash"}),
        traces="vime.utils.trace_utils",
        span="vllm_generate",
        attributes="build_vllm_meta_trace_attrs",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequirements:
    """The optional data that every sample of a run must have, by its arguments alone.

    Attributes:
        experts_shape: `(layers, top_k)` where the trainer replays routed experts, else None.
        top_p: It replays the survivors of top-p.
    """

    experts_shape: tuple[int, int] | None = None
    top_p: bool = False

    @classmethod
    def from_args(cls, args: Any, trainer: Trainer, *, evaluation: bool) -> TokenRequirements:
        """Those of training. An evaluation has none: it samples with its own parameters."""
        if evaluation:
            return cls()
        # slime reads off the first sample which optional fields a batch has, so arguments decide, not answers.
        shape = None
        if getattr(args, "use_rollout_routing_replay", False):
            layers, top_k = getattr(args, "num_layers", None), getattr(args, "moe_router_topk", None)
            if not (layers and top_k):
                raise SlimeConfigError(
                    f"--use-rollout-routing-replay needs --num-layers and --moe-router-topk, got {layers!r}, {top_k!r}"
                )
            shape = (int(layers), int(top_k))
        return cls(
            experts_shape=shape,
            # With any other top-p slime requires the survivors on every sample.
            top_p=trainer.replays_top_p and float(getattr(args, "rollout_top_p", None) or 1.0) != 1.0,
        )
