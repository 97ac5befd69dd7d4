"""One call of `generate`: its arguments, its prompt, and how failures can end the run."""

from __future__ import annotations

import copy
import importlib
import logging
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from strands_env.core import Action, TaskContext
from strands_env.core.chat import ChatPrompt, UnsupportedPromptError
from strands_env.core.termination import ErrorRecord, Outcome, TerminationReason
from strands_env.training.slime.settings import METADATA_KEY, Needs, SlimeConfigError, SlimeSettings, Trainer

logger = logging.getLogger(__name__)

_PATHS = 4
"""Responses of full length that a rollout may sample in all, by default."""


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """The arguments that slime passed, unchanged, and the settings derived from them.

    Attributes:
        state: slime's `GenerateState`, or None outside slime.
        partial: Rollouts that are aborted wait to be resumed.
        fanout: Every path becomes a sample, and the rollout a list of them.
        failure: Why the last attempt failed; None where it did not.
    """

    args: Any
    sample: Any
    sampling_params: Mapping[str, Any]
    evaluation: bool
    settings: SlimeSettings
    trainer: Trainer
    state: Any
    needs: Needs
    partial: bool
    fanout: bool
    failure: Failure | None = None

    @classmethod
    def of(
        cls, args: Any, sample: Any, sampling_params: Mapping[str, Any], *, evaluation: bool, state: Any = None
    ) -> Call:
        """Read the arguments; the state is looked up unless it came with the call."""
        _refuse_printed_prompts(args, evaluation)
        for option in ("log_reward_category", "eval_reward_key"):
            if getattr(args, option, None) and not getattr(args, "reward_key", None):
                name = option.replace("_", "-")
                # Where all rewards of a group are equal slime rounds them, which it cannot do with a dict.
                raise SlimeConfigError(f"--{name} needs --reward-key: slime reads a number under it in every reward")
        settings = SlimeSettings.from_args(args)
        trainer = Trainer.of(sample)
        return cls(
            args=args,
            sample=sample,
            sampling_params=sampling_params,
            evaluation=evaluation,
            settings=settings,
            trainer=trainer,
            state=_generate_state(trainer, args) if state is None else state,
            needs=Needs.of(args, trainer, evaluation=evaluation),
            partial=bool(getattr(args, "partial_rollout", False)) and not evaluation,
            fanout=not evaluation and _fans_out(args, settings),
        )

    @property
    def key(self) -> Any:
        """Key of this sample among suspended rollouts."""
        return self.routing_key or (self.sample.group_index, self.sample.index)

    def count_failure(self) -> None:
        """Count what may end the run: no evaluation, which ends by itself, and no time-out of a rollout that waited."""
        failure = self.failure
        if failure is None or self.evaluation or (failure.has_waited and failure.reason is TerminationReason.TIMEOUT):
            return
        STREAK.add(self, failure.error, self.settings.max_failures)

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

    @property
    def sampled_limit(self) -> int | None:
        """Tokens that all paths and agents of the rollout sample together; None for no limit."""
        per_path = self.sampling_params.get("max_new_tokens")
        return self.settings.max_sampled_tokens or (None if per_path is None else _PATHS * int(per_path))


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
    one_sample = "the fully asynchronous worker" if is_swallowed() else None
    for option in ("partial_rollout", "group_rm"):
        if getattr(args, option, False):
            one_sample = "--" + option.replace("_", "-")
    if settings.fanout and one_sample:
        raise SlimeConfigError(f"strands_env_fanout: {one_sample} takes one sample of a rollout, not a list")
    path = str(getattr(args, "custom_reward_post_process_path", None) or "")
    wanted = path.startswith("strands_env.training.slime.") if settings.fanout is None else settings.fanout
    return wanted and not one_sample


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


def read_prompt(sample: Any, images: Sequence[bytes] | None = None) -> tuple[Action, str | None]:
    """Slime's prompt, one of messages in the format of chat completions, as an action and the system message.

    Args:
        images: PNGs of the image parts, in order; None leaves the parts out.

    Raises:
        SlimeConfigError: A part is neither text nor an image.
        ValueError: It does not end with a user message, or a message cannot be understood.
    """
    context: dict[str, Any] = {
        "id": str(sample.index) if sample.index is not None else uuid.uuid4().hex,
        "ground_truth": sample.label,
        "metadata": {key: value for key, value in (sample.metadata or {}).items() if key != METADATA_KEY},
    }
    if isinstance(sample.prompt, str):
        return Action(message=sample.prompt, task_context=TaskContext(**context)), None
    try:
        chat = ChatPrompt.of(sample.prompt, images)
    except UnsupportedPromptError as error:
        raise SlimeConfigError(str(error)) from error
    context["conversation_history"] = chat.turns[:-1]
    return Action(message=chat.turns[-1], task_context=TaskContext(**context)), chat.system


# ---- failures -----------------------------------------------------------------------------------------------------


class FailureStreakError(RuntimeError):
    """Too many rollouts in a row failed, the last with `error`; the run ends instead of sampling forever."""

    def __init__(self, count: int, error: ErrorRecord) -> None:
        super().__init__(count, error)
        self.count = count
        self.error = error

    def __str__(self) -> str:
        return (
            f"{self.count} rollouts in a row failed, the last with {self.error.type} in {self.error.where.value}: "
            f"{self.error.message!r}; fix the cause, or raise strands_env_max_failures (0 for no limit)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A rollout that cannot be trained; `has_waited` if it was suspended meanwhile."""

    error: ErrorRecord
    reason: TerminationReason
    has_waited: bool = False

    @property
    def is_final(self) -> bool:
        """It is not run again: it is the policy's or the grader's outcome, and not an answer whose data is missing."""
        is_lost = self.reason.outcome(self.error) is Outcome.INFRASTRUCTURE
        return not is_lost and self.reason is not TerminationReason.TASK_COMPLETE


class FailureStreak:
    """Counts failures of rollouts that began after the last good one.

    Rollouts run concurrently and failures come fast. So a failure does not count if another rollout has succeeded
    since it began, and the run does not end before all rollouts that ran beside the first failure have ended.
    """

    def __init__(self) -> None:
        self._successes = 0
        self._count = 0
        self._running: dict[object, int] = {}  # with the number of successes at its start
        self._beside_first: set[object] = set()

    @contextmanager
    def running(self, rollout: object) -> Iterator[None]:
        """A rollout runs for the length of a `with` block."""
        self._running[rollout] = self._successes
        try:
            yield
        finally:
            del self._running[rollout]
            self._beside_first.discard(rollout)

    def reset(self) -> None:
        """A rollout succeeded."""
        self._successes += 1
        self._count = 0

    def add(self, rollout: object, error: ErrorRecord, limit: int) -> None:
        """Count the failure of a running rollout; at `limit` in a row (0 for none) `FailureStreakError`.

        Then the count starts again.
        """
        if self._running[rollout] != self._successes:
            return
        if not self._count:  # those that run beside it may yet succeed, which starts the count again
            self._beside_first = set(self._running)
        self._count += 1
        self._beside_first.discard(rollout)
        if limit and self._count >= limit and not self._beside_first:
            count, self._count = self._count, 0
            raise FailureStreakError(count, error)


STREAK = FailureStreak()
"""The streak of this process's training rollouts."""

SCORING = FailureStreak()
"""The streak of `reward_func` calls in training, which follow successful rollouts."""


def is_swallowed() -> bool:
    """An exception of this call would be logged and forgotten: slime's fully asynchronous worker does that."""
    return threading.current_thread().name == "fully-async-rollout"


def raise_in_the_run(sample: Any, error: Exception) -> Any:
    """A finished sample at which slime's run, not its worker, stops.

    The worker logs an exception and goes on, so that the run would wait for the group forever. The run reads
    `int(sample.index)` of each finished group: the text of the error is no number, and the `ValueError` quotes it.
    """
    logger.error("error=<%s> | the run cannot go on", error)
    sample.status, sample.reward = type(sample).Status.COMPLETED, 0.0
    sample.index = f"{type(error).__name__}: {error}"
    return sample
