"""The arguments of a call of `generate`, and the options, fork, limits and modes that follow from them."""

from __future__ import annotations

import copy
import functools
import importlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, StrictBool, ValidationError

from strands_env.core.termination import message_of

logger = logging.getLogger(__name__)

METADATA_KEY = "strands_env"
"""Key in a sample's `metadata` of termination reason, final answer, error, metrics and reward information."""

_PREFIX = "strands_env_"
_PATHS = 4
"""Responses of full length that a rollout may sample in all, by default."""


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
        factory: Import path of the class or function that makes an environment for each rollout: an `Environment`
            class, called with `model_factory` and `options`; or a function, called with those of
            `model_factory`, `args`, `sample`, `evaluation` and `options` that its signature names.
        options: Keyword arguments of the environment class.
        reward: Import path of a `RewardFunction` class or a plain function for `reward_func`, where the environment
            has no reward.
        tool_parser: Name of the tool parser; None chooses one that fits the chat template.
        system_prompt: System prompt of the environment; a system message in the data takes its place.
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
        proof_seconds: Seconds for the proof of the reward on a sample of the data, once, at the first call. Tasks that
            fail are named in a warning, and the run ends where all of them do. 0 for no proof.
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
    def from_args(cls, args: Any) -> SlimeSettings:
        """Read the settings.

        Raises:
            SlimeConfigError: An option is unknown, or a value is invalid.
        """
        options = {key.removeprefix(_PREFIX): value for key, value in vars(args).items() if key.startswith(_PREFIX)}
        if unknown := sorted(_PREFIX + name for name in set(options) - set(cls.model_fields)):
            names = sorted(_PREFIX + name for name in cls.model_fields)
            raise SlimeConfigError(f"unknown options {unknown!r}; known are {names!r}")
        values = {name: value for name, value in options.items() if value is not None}
        for name in ("factory", "reward", "tool_parser", "log_dir"):
            if name not in values and (value := os.environ.get((_PREFIX + name).upper())):
                values[name] = value
        try:
            return cls(**values)
        except ValidationError as error:
            raise SlimeConfigError(f"{_PREFIX}{message_of(error)}") from error


def load(path: str) -> Any:
    """The object at an import path.

    Raises:
        SlimeConfigError: It cannot be imported.
    """
    try:
        return resolve_name(path)
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
        meta: Field of a raw answer that holds the values of spans and counters; None for the answer itself.
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
        return _trainer_of(type(sample).__module__.partition(".")[0])

    def meta_of(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part of a raw answer that spans and counters are made of."""
        return payload if self.meta is None else payload.get(self.meta) or {}


SLIME = Trainer(name="slime", states="slime.rollout.sglang_rollout", traces="slime.observability.trace_utils")


@functools.cache
def _trainer_of(package: str) -> Trainer:
    """The fork of this name, if a module beside this one describes it; otherwise slime."""
    name = f"{__package__}.{package}"
    return getattr(importlib.import_module(name), "TRAINER", SLIME) if find_spec(name) else SLIME


class RolloutCall:
    """A call of `generate`: the arguments that slime passed, unchanged, and the limits and modes that follow.

    Args:
        state: slime's `GenerateState`; looked up unless it came with the call.

    Attributes:
        state: None outside slime.
        experts_shape: `(layers, top_k)` where the trainer replays routed experts, otherwise None. An evaluation has
            none: it samples with its own parameters.
        keeps_top_p: The trainer replays the survivors of top-p.
        sampled_limit: Tokens that all paths and agents of the rollout sample together; None for no limit.
        partial: Rollouts that are aborted wait to be resumed.
        fanout: Every path becomes a sample, and the rollout a list of them.

    Raises:
        SlimeConfigError: Options are wrong, or exclude each other.
    """

    def __init__(
        self, args: Any, sample: Any, sampling_params: Mapping[str, Any], *, evaluation: bool, state: Any = None
    ) -> None:
        self.args, self.sample, self.sampling_params, self.evaluation = args, sample, sampling_params, evaluation
        self.settings = SlimeSettings.from_args(args)
        self.trainer = Trainer.of_sample(sample)
        for problem in _problems(args, self.settings, self.trainer, state, evaluation=evaluation):
            raise SlimeConfigError(problem)
        self.state = _generate_state(self.trainer, args) if state is None else state
        # slime reads off the first sample which optional fields a batch has, so arguments decide, not answers.
        replays_experts = getattr(args, "use_rollout_routing_replay", False) and not evaluation
        self.experts_shape = (int(args.num_layers), int(args.moe_router_topk)) if replays_experts else None
        # With any other top-p slime requires the survivors on every sample.
        top_p = float(getattr(args, "rollout_top_p", None) or 1.0)
        self.keeps_top_p = not evaluation and self.trainer.replays_top_p and top_p != 1.0
        per_path = sampling_params.get("max_new_tokens")
        self.sampled_limit = self.settings.max_sampled_tokens or (None if per_path is None else _PATHS * int(per_path))
        self.partial = bool(getattr(args, "partial_rollout", False)) and not evaluation
        # slime counts the rollouts of a batch with our function, unless the setting says otherwise.
        fanout = _counts_rollouts(args) if self.settings.fanout is None else self.settings.fanout
        self.fanout = fanout and not evaluation and _takes_one_sample(args) is None

    @property
    def key(self) -> Any:
        """Key of this sample among suspended rollouts."""
        return self.routing_key or (self.sample.group_index, self.sample.index)

    @property
    def routing_key(self) -> str | None:
        """The key that keeps its requests on one worker, whether the router looks at it or not."""
        key: str | None = getattr(self.sample, self.trainer.key, None)
        return key

    @property
    def is_stopping(self) -> bool:
        """Slime has asked to stop."""
        return bool(getattr(self.state, "aborted", False))

    @property
    def model_params(self) -> dict[str, Any]:
        """Sampling parameters of one model call: a copy without slime's that are unset, special tokens kept."""
        # Deep, since slime gives the same dictionary to every rollout of an evaluation.
        params = {key: copy.deepcopy(value) for key, value in self.sampling_params.items() if value is not None}
        params.pop("skip_special_tokens", None)
        if self.trainer.seed in params:
            params["sampling_seed"] = params.pop(self.trainer.seed)
        return params

    @property
    def context_limit(self) -> int | None:
        """Tokens of prompt and response together; None for the server's own limit."""
        limit = getattr(self.args, "rollout_max_context_len", None)
        if self.evaluation:
            return getattr(self.args, "eval_max_context_len", None) or limit or None
        return limit or None


def _problems(args: Any, settings: SlimeSettings, trainer: Trainer, state: Any, *, evaluation: bool) -> Iterator[str]:
    """The reasons why every rollout of this configuration would fail, or train other tokens than slime expects."""
    if state is None and trainer.states is None:
        yield (
            f"{trainer.name} hands its state over with the call alone: name "
            f"{__package__}.{trainer.name}.generate in --custom-generate-function-path"
        )
    if not settings.factory:
        yield (
            "no environment: set strands_env_factory in the --custom-config-path YAML (or the variable "
            "STRANDS_ENV_FACTORY) to the import path of an Environment class or of a function that makes one"
        )
    if settings.model_options.get("return_logprob") is False:
        yield "strands_env_model_options: return_logprob must stay on, slime trains on log-probabilities"
    printed = ["--apply-chat-template"] if getattr(args, "apply_chat_template", False) else []
    printed += [
        f"apply_chat_template of the evaluation data {getattr(dataset, 'name', None)!r}"
        for dataset in (evaluation and getattr(args, "eval_datasets", None)) or ()
        if getattr(dataset, "apply_chat_template", None)
    ]
    for option in printed:  # a printed prompt would become the text of a user message
        yield (
            f"leave out {option}: the agent renders the conversation itself, and the prompt must be messages or plain "
            "text"
        )
    for option in ("log_reward_category", "eval_reward_key"):
        if getattr(args, option, None) and not getattr(args, "reward_key", None):
            name = option.replace("_", "-")
            # Where all rewards of a group are equal slime rounds them, which it cannot do with a dict.
            yield f"--{name} needs --reward-key: slime reads a number under it in every reward"
    if evaluation:
        return
    layers, top_k = getattr(args, "num_layers", None), getattr(args, "moe_router_topk", None)
    if getattr(args, "use_rollout_routing_replay", False) and not (layers and top_k):
        yield f"--use-rollout-routing-replay needs --num-layers and --moe-router-topk, got {layers!r}, {top_k!r}"
    if settings.fanout and (reader := _takes_one_sample(args)):
        yield f"strands_env_fanout: {reader} takes one sample of a rollout, not a list"


def _takes_one_sample(args: Any) -> str | None:
    """The mode in which slime reads a rollout as one sample; None where it takes a list."""
    for option in ("group_rm", "partial_rollout"):
        if getattr(args, option, False):
            return "--" + option.replace("_", "-")
    return "the fully asynchronous worker" if drops_exceptions() else None


def _counts_rollouts(args: Any) -> bool:
    path = str(getattr(args, "custom_reward_post_process_path", None) or "")
    return path.startswith("strands_env.training.slime.")


def _generate_state(trainer: Trainer, args: Any) -> Any:
    """The trainer's process-wide state; None outside it (the package's own tests, a dry run)."""
    try:
        return importlib.import_module(str(trainer.states)).GenerateState(args)
    except ImportError:
        return None


def drops_exceptions() -> bool:
    """An exception of this call would be logged and forgotten: slime's fully asynchronous worker does that."""
    return threading.current_thread().name == "fully-async-rollout"
