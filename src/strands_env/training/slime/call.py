"""One call of `generate`: the arguments that slime passed, and what follows from them."""

from __future__ import annotations

import copy
import importlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strands_env.training.slime.settings import SlimeConfigError, SlimeSettings, TokenRequirements, Trainer

_PATHS = 4
"""Responses of full length that a rollout may sample in all, by default."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutCall:
    """The arguments that slime passed, unchanged, and the settings derived from them.

    Attributes:
        state: slime's `GenerateState`, or None outside slime.
        sampled_limit: Tokens that all paths and agents of the rollout sample together; None for no limit.
        partial: Rollouts that are aborted wait to be resumed.
        fanout: Every path becomes a sample, and the rollout a list of them.
    """

    args: Any
    sample: Any
    sampling_params: Mapping[str, Any]
    evaluation: bool
    settings: SlimeSettings
    trainer: Trainer
    state: Any
    requirements: TokenRequirements
    sampled_limit: int | None
    partial: bool
    fanout: bool

    @classmethod
    def from_arguments(
        cls, args: Any, sample: Any, sampling_params: Mapping[str, Any], *, evaluation: bool, state: Any = None
    ) -> RolloutCall:
        """Read the arguments; the state is looked up unless it came with the call.

        Raises:
            SlimeConfigError: Options are wrong, or exclude each other.
        """
        _refuse_printed_prompts(args, evaluation)
        for option in ("log_reward_category", "eval_reward_key"):
            if getattr(args, option, None) and not getattr(args, "reward_key", None):
                name = option.replace("_", "-")
                # Where all rewards of a group are equal slime rounds them, which it cannot do with a dict.
                raise SlimeConfigError(f"--{name} needs --reward-key: slime reads a number under it in every reward")
        settings = SlimeSettings.from_args(args)
        trainer = Trainer.of_sample(sample)
        per_path = sampling_params.get("max_new_tokens")
        return cls(
            args=args,
            sample=sample,
            sampling_params=sampling_params,
            evaluation=evaluation,
            settings=settings,
            trainer=trainer,
            state=_generate_state(trainer, args) if state is None else state,
            requirements=TokenRequirements.from_args(args, trainer, evaluation=evaluation),
            sampled_limit=settings.max_sampled_tokens or (None if per_path is None else _PATHS * int(per_path)),
            partial=bool(getattr(args, "partial_rollout", False)) and not evaluation,
            fanout=not evaluation and _fans_out(args, settings),
        )

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


def _refuse_printed_prompts(args: Any, evaluation: bool) -> None:
    """A prompt that a chat template has printed would become the text of a user message."""
    option = "--apply-chat-template" if getattr(args, "apply_chat_template", False) else None
    for dataset in (getattr(args, "eval_datasets", None) or ()) if evaluation else ():
        if getattr(dataset, "apply_chat_template", None):
            option = f"apply_chat_template of the evaluation data {getattr(dataset, 'name', None)!r}"
    if option:
        raise SlimeConfigError(
            f"leave out {option}: the agent renders the conversation itself, and the prompt must be messages or plain "
            "text"
        )


def _fans_out(args: Any, settings: SlimeSettings) -> bool:
    """True if a rollout becomes a list of samples: where slime counts rollouts with our function, unless set.

    Raises:
        SlimeConfigError: It is set, and slime reads a rollout as one sample in this mode.
    """
    one_sample = "the fully asynchronous worker" if drops_exceptions() else None
    for option in ("partial_rollout", "group_rm"):
        if getattr(args, option, False):
            one_sample = "--" + option.replace("_", "-")
    if settings.fanout and one_sample:
        raise SlimeConfigError(f"strands_env_fanout: {one_sample} takes one sample of a rollout, not a list")
    path = str(getattr(args, "custom_reward_post_process_path", None) or "")
    fans_out = path.startswith("strands_env.training.slime.") if settings.fanout is None else settings.fanout
    return fans_out and not one_sample


def _generate_state(trainer: Trainer, args: Any) -> Any:
    """The trainer's process-wide state; None outside it (the package's own tests, a dry run)."""
    if trainer.states is None:
        raise SlimeConfigError(
            f"{trainer.name} hands its state over with the call alone: name strands_env.training.slime.generate_miles "
            "in --custom-generate-function-path"
        )
    try:
        module = importlib.import_module(trainer.states)
    except ImportError:
        return None
    return module.GenerateState(args)


def drops_exceptions() -> bool:
    """An exception of this call would be logged and forgotten: slime's fully asynchronous worker does that."""
    return threading.current_thread().name == "fully-async-rollout"
