"""A rollout as the fields of slime's `Sample`s, and the facts our hooks read from them. Only `put` changes a sample."""

from __future__ import annotations

import copy
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from strands_env.core.termination import End, ErrorRecord, Outcome, Phase, TerminationReason
from strands_env.training.advantages import finite_number
from strands_env.training.driver import Rollout
from strands_env.training.export import one_row, status_of
from strands_env.training.sample import InvalidSampleError, TrainingSample
from strands_env.training.slime.live_rollout import Episode
from strands_env.training.slime.settings import METADATA_KEY, RolloutCall, drops_exceptions
from strands_sglang.trajectory import SamplingMask

Fields: TypeAlias = dict[str, Any]
"""Fields of a slime `Sample` and their values."""

_NO_ROOM = (
    "no room for a single token: raise rollout_max_response_len or rollout_max_context_len, or shorten prompt and tools"
)
_NO_PATH = "no path of the rollout is meant to be trained: see the environment's is_trained()"
STOPPED = End(
    TerminationReason.ABORTED,
    error=ErrorRecord(type="aborted", message="slime ended its rollout step", traceback="", where=Phase.LOOP),
)
"""The end of a rollout for which slime asks again."""


@dataclass(frozen=True, kw_only=True)
class SlimeRollout(Rollout):
    """A rollout after an attempt, with the data slime needs beside its samples.

    Attributes:
        episode: Its models and counters; None where it was not started.
        pixels: Tensors of the images of each sample; None for one without.
        token_counts: Number of sampled tokens, and of those not trained, by reason.
    """

    episode: Episode | None = None
    pixels: Sequence[Mapping[str, Any] | None] = ()
    token_counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.has_rows and self.end.error is None:
            has_paths = self.result is not None and self.result.recorded_trajectories
            hint = _NO_PATH if has_paths else _NO_ROOM
            error = ErrorRecord(type=self.end.reason.value, message=hint, traceback="", where=Phase.MODEL)
            object.__setattr__(self, "end", replace(self.end, error=error))

    @property
    def has_rows(self) -> bool:
        """Its samples can be trained: the end is the policy's, and a token came before it."""
        return self.end.outcome is Outcome.POLICY and any(map(len, self.samples))


# ---- writing ---------------------------------------------------------------------------------------------------------


def write(call: RolloutCall, rollout: SlimeRollout) -> list[Fields]:
    """The fields of slime's samples: one dict for each path that is exported, with every field a rollout may set."""
    if rollout.end == STOPPED:
        return [_blank_fields(call.sample) | _held_fields(call, rollout)]
    paths: Sequence[TrainingSample] = rollout.samples if rollout.end.outcome is Outcome.POLICY else ()
    if not rollout.has_rows:  # slime's tensors cannot be empty
        paths = [one_row(paths, experts_shape=call.experts_shape)]
    notes = _notes(call, rollout)
    rows = []
    for number, path in enumerate(paths):
        row = _blank_fields(call.sample) | token_fields(call, path) | {"status": status_of(path.end)}
        row |= _reward_fields(call, rollout, path.reward, row["tokens"])
        own = copy.deepcopy(notes) if number else notes  # siblings share no container
        row["metadata"][METADATA_KEY] = {
            **own,
            **{name: getattr(path, name) for name in ("agent_name", "agent_id", "role", "parent")},
        }
        if rollout.has_rows:
            row["response"] = _response_text(rollout, row["tokens"][path.prompt_length :])
        if rollout.pixels and rollout.pixels[number] is not None:
            row["multimodal_train_inputs"] = rollout.pixels[number]
        rows.append(row)
    rows[0] |= _counter_fields(call.sample, rollout)
    if call.fanout:  # slime counts rollouts by this id; without one it would count paths
        shared = rollout_key(call.sample, uuid.uuid4().int >> 65)
        rows = [row | {"rollout_id": shared} for row in rows]
    return rows


def put(sample: Any, rows: Sequence[Fields]) -> Any:
    """Write fields into slime's sample, and those of further paths into siblings of it.

    Returns:
        The sample, or with fan-out always a list: slime flattens a batch by its first element, and fails on one that
        mixes samples and lists.
    """
    samples = [sample, *(copy.copy(sample) for _ in rows[1:])]
    for target, fields in zip(samples, rows, strict=True):
        for name, value in fields.items():
            setattr(target, name, getattr(type(sample).Status, value.upper()) if name == "status" else value)
    for sibling in samples[1:]:
        if hasattr(sibling, "trace"):
            sibling.trace = None  # its requests are counted on the first
    return samples if "rollout_id" in rows[0] else sample


def fields_that_stop_the_run(error: Exception) -> Fields:
    """A finished sample at which slime's run, not its worker, stops; the error itself where slime lets it through.

    The fully asynchronous worker logs an exception and goes on, so that the run would wait for the group forever. The
    run reads `int(sample.index)` of each finished group: the error's text is not a number, and the
    `ValueError` quotes it.
    """
    if not drops_exceptions():
        raise error
    return {"status": "completed", "reward": 0.0, "index": f"{type(error).__name__}: {error}"}


_OPTIONAL = (
    *("rollout_routed_experts", "rollout_top_p_token_ids", "rollout_top_p_token_offsets"),
    "multimodal_train_inputs",
)
_COUNTERS = {"spec_info": "spec_verify_ct", "prefix_cache_info": "prompt_tokens"}
"""Counters of a sample, each with the number without which it is not added to."""


def _blank_fields(sample: Any) -> Fields:
    """A sample without a rollout."""
    metadata = {key: value for key, value in (sample.metadata or {}).items() if key != METADATA_KEY}
    return {
        **{"tokens": [], "response": "", "response_length": 0, "loss_mask": None, "rollout_log_probs": None},
        **{"weight_versions": [], "reward": None, "remove_sample": False, "metadata": metadata},
        **{name: None for name in _OPTIONAL if hasattr(sample, name)},
        **{name: type(getattr(sample, name))() for name in _COUNTERS if hasattr(sample, name)},
        "non_generation_time": 0.0,
    }


def _held_fields(call: RolloutCall, rollout: SlimeRollout) -> Fields:
    """Slime is stopping: a sample that it asks for again. It is empty, unless the rollout waits to be resumed."""
    fields: Fields = {"status": "aborted"}
    if not call.partial or rollout.episode is None:
        return fields
    held = (path for model in rollout.episode.models for path in model.trajectories)
    paths = [path for path in held if path.trainable and not path.is_discarded]
    if paths:  # the longest of them; slime looks whether anything is held
        path = max(paths, key=len)
        start = path.initial_prompt_length
        fields["tokens"] = path.token_ids
        fields["response_length"] = len(path) - start
        fields["loss_mask"] = path.loss_mask[start:]
        fields["rollout_log_probs"] = [value or 0.0 for value in path.logprobs[start:]]
        fields["response"] = rollout.episode.text_of(path.token_ids[start:])
    return fields


def token_fields(call: RolloutCall, path: TrainingSample) -> Fields:
    """The tokens of a path. Which optional fields there are depends on the call alone."""
    start = path.prompt_length
    fields: Fields = {
        "tokens": path.token_ids.tolist(),
        "response_length": path.response_length,
        "loss_mask": list(path.loss_mask[start:].tobytes()),
        "rollout_log_probs": path.response_logprobs(),
        # One version per call; two for a call that was resumed with other weights.
        "weight_versions": [span.version for span in path.weight_versions if span.version is not None],
    }
    if call.experts_shape is not None and (experts := path.experts_array()) is not None:
        fields["rollout_routed_experts"] = experts.copy()  # slime makes a tensor of its memory
    if call.keeps_top_p:
        survivors = (path.sampling_mask or SamplingMask.empty(len(path))).part(start, len(path))
        fields["rollout_top_p_token_ids"] = survivors.ids.tolist()
        fields["rollout_top_p_token_offsets"] = survivors.offsets.tolist()
    return fields


def check_tokens(call: RolloutCall, path: TrainingSample) -> None:
    """`InvalidSampleError` where a path lacks something that slime needs of every trained token."""
    path.validate(logprobs_required=True)
    if call.experts_shape is not None:
        path.required_experts()
    if call.keeps_top_p and path.sampling_mask is None:
        raise InvalidSampleError("rollout_top_p is not 1, and the server returned no top-p token ids")


def _response_text(rollout: SlimeRollout, ids: list[int]) -> str:
    """The response for logs: nothing is ever encoded again from it."""
    if rollout.episode is not None and rollout.episode.models:
        return rollout.episode.text_of(ids)
    # Models of another provider decode nothing.
    return (rollout.result.observation.final_response or "") if rollout.result is not None else ""


def _notes(call: RolloutCall, rollout: SlimeRollout) -> dict[str, Any]:
    """The notes that we leave in a sample's metadata, for our hooks and for whoever looks at it."""
    notes: dict[str, Any] = {"evaluation": call.evaluation, "termination_reason": rollout.end.reason.value}
    if rollout.end.outcome is not Outcome.POLICY and (error := rollout.end.error) is not None:
        return notes | {"error": {"type": error.type, "message": error.message, "where": error.where.value}}
    if (result := rollout.result) is not None and rollout.episode is not None:
        notes["final_response"] = result.observation.final_response or ""
        notes["metrics"] = result.observation.metrics
        notes["suspensions"] = rollout.episode.suspensions
        notes["tokens"] = dict(rollout.token_counts)
        if result.reward is not None:
            notes["reward_info"] = copy.copy(result.reward.info)
        if result.cleanup_error is not None:
            notes["cleanup_error"] = result.cleanup_error.message
    return notes


def _counter_fields(sample: Any, rollout: SlimeRollout) -> Fields:
    """Cache and speculative counters and the time of tools, once for the rollout."""
    fields: Fields = {}
    counters: Counter[str] = Counter() if rollout.episode is None else rollout.episode.counters
    for name, needed in _COUNTERS.items():
        if hasattr(sample, name) and counters[needed]:
            fields[name] = type(getattr(sample, name))()
            fields[name].add(counters)
    seconds = None if rollout.result is None else rollout.result.observation.metrics.get("tool_s")
    if isinstance(seconds, int | float):
        fields["non_generation_time"] = float(seconds)
    return fields


# ---- rewards ---------------------------------------------------------------------------------------------------------


def _reward_fields(call: RolloutCall, rollout: SlimeRollout, reward: float | None, tokens: Sequence[int]) -> Fields:
    """Slime's reward of a path, None where slime is to ask for it. A path that must not count is removed."""
    category = "unscored" if rollout.end.outcome is Outcome.POLICY else "failed"
    result = None if rollout.result is None else rollout.result.reward
    is_scored = result is not None or (rollout.episode is not None and rollout.episode.scores)
    if reward is None and (is_scored or category != "unscored"):  # a reward function may abstain
        value = unusable_reward(call.args, tokens, category, evaluation=call.evaluation)
        return {"reward": value, "remove_sample": True}
    if reward is None or is_distilled(call.args, evaluation=call.evaluation):
        return {"reward": None}
    info = {} if result is None else result.info
    return {"reward": reward_value(call.args, reward, info, evaluation=call.evaluation)}


def reward_value(
    args: Any, reward: Any, info: Mapping[str, Any] | None = None, *, evaluation: bool = False, category: str = "none"
) -> Any:
    """A reward as slime reads it: a number, or a dict where `reward_key` or `eval_reward_key` is set.

    Args:
        info: The `info` of a `RewardResult`, which may hold the category (`log_reward_category`).
        evaluation: In evaluations slime reads `reward_key` beside `eval_reward_key`.
        category: Category where `info` has none.
    """
    names = ("reward_key", "eval_reward_key") if evaluation else ("reward_key",)
    keys = [key for name in names if (key := getattr(args, name, None))]
    if not keys:
        return reward
    value: dict[str, Any] = dict.fromkeys(keys, reward)
    if category_key := getattr(args, "log_reward_category", None):
        value[category_key] = str((info or {}).get(category_key, category))
    return value


def is_distilled(args: Any, *, evaluation: bool = False) -> bool:
    """True if rewards are answers of a teacher (on-policy distillation), which slime asks for itself."""
    path = str(getattr(args, "custom_reward_post_process_path", None) or "")
    return path.endswith("on_policy_distillation.post_process_rewards") and not evaluation


def unusable_reward(args: Any, tokens: Sequence[int], category: str, *, evaluation: bool = False) -> Any:
    """A reward for a removed sample that slime's own functions can read. Nothing is learnt from it."""
    reward: Any = 0.0
    if is_distilled(args, evaluation=evaluation):
        scores = [[None if place == 0 else 0.0, token, None] for place, token in enumerate(tokens)]
        # No two are equal: slime rounds rewards that are, which it cannot with answers of a teacher.
        reward = {"meta_info": {"id": uuid.uuid4().hex, "input_token_logprobs": scores}}
    return reward_value(args, reward, evaluation=evaluation, category=category)


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_reward(args: Any, sample: Any) -> float | None:
    """The reward of a sample as a number, whoever set it; None if it is missing, NaN or infinite."""
    value = getattr(sample, "reward", None)
    if isinstance(value, dict):
        keys = [getattr(args, "reward_key", None), getattr(args, "eval_reward_key", None)]
        value = next((value[key] for key in keys if key and key in value), None)
    try:
        return finite_number(value)
    except ValueError:
        return None


def counted_reward(args: Any, sample: Any) -> float | None:
    """The reward of a sample that counts in statistics: None for one that was removed, too."""
    return None if getattr(sample, "remove_sample", False) else read_reward(args, sample)


def flatten(samples: Iterable[Any]) -> Iterator[Any]:
    """The samples of a step, whose elements may be lists of samples."""
    for sample in samples:
        if isinstance(sample, list | tuple):
            yield from flatten(sample)
        else:
            yield sample


def rollout_key(sample: Any, default: Any) -> Any:
    """The key that samples of one rollout share within a group."""
    keys = (getattr(sample, name, None) for name in ("rollout_id", "index"))
    return next((key for key in keys if key is not None), default)


def group_rollouts(samples: Iterable[Any]) -> dict[Any, list[Any]]:
    """The samples of each rollout, in order."""
    rollouts: dict[Any, list[Any]] = {}
    for position, sample in enumerate(flatten(samples)):
        key = getattr(sample, "group_index", None), rollout_key(sample, ("position", position))
        rollouts.setdefault(key, []).append(sample)
    return rollouts


def notes_of(sample: Any) -> dict[str, Any]:
    """Our notes, possibly empty."""
    notes = (getattr(sample, "metadata", None) or {}).get(METADATA_KEY)
    return notes if isinstance(notes, dict) else {}
