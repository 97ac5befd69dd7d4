"""A rollout in slime's `Sample`s: the trained, the failed and the waiting, and what our hooks read of them."""

from __future__ import annotations

import base64
import copy
import functools
import math
import uuid
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from strands_env.core import StepResult
from strands_env.core.termination import ErrorRecord, Outcome, Phase, TerminationReason
from strands_env.training.export import image_tensors
from strands_env.training.sample import InvalidSampleError, SampleStatus, TrainingSample
from strands_env.training.slime.call import STREAK, Call, Failure
from strands_env.training.slime.rollout import Episode
from strands_env.training.slime.settings import METADATA_KEY, Needs, SlimeConfigError, warn_once
from strands_sglang.exceptions import MediaError
from strands_sglang.trajectory import SamplingMask
from strands_sglang.trajectory.media import ProcessorExpander

# ---- a rollout ------------------------------------------------------------------------------------------------------


def write(
    call: Call, episode: Episode, result: StepResult, sources: Sequence[TrainingSample], tokens: Mapping[str, int]
) -> Any:
    """The samples of a rollout that ended, well or not.

    Args:
        sources: Its paths that are trained, the main one first.
        tokens: Number of sampled tokens, and of those not trained, by reason.
    """
    reason = result.termination_reason
    # The clock of the step ran on while the rollout was suspended: that time is not the policy's.
    waited = reason is TerminationReason.TIMEOUT and episode.suspensions > 0
    if waited or result.outcome is not Outcome.POLICY:
        return write_failed(call, episode, reason, result.error, sources[-1] if sources else None)
    notes: dict[str, Any] = {
        "termination_reason": reason.value,
        "final_response": result.observation.final_response or "",
        "evaluation": call.evaluation,
        "metrics": result.observation.metrics,
        "suspensions": episode.suspensions,
        "tokens": dict(tokens),
    }
    if result.reward is not None:
        notes["reward_info"] = copy.copy(result.reward.info)
    if result.cleanup_error is not None:
        notes["cleanup_error"] = result.cleanup_error.message
    if sources and not len(sources[0]):  # the policy's outcome, before a token came: nothing failed
        message = "no room for a single token: raise rollout_max_response_len or rollout_max_context_len, or shorten "
        error = ErrorRecord(type=reason.value, message=f"{message}prompt and tools", traceback="", where=Phase.MODEL)
        error, notes = result.error or error, {**notes, "agent_name": "agent"}
        made = _write_untrained(call, episode, reason, error, notes, category="no_tokens")
        if (reward := sources[0].reward) is not None and not is_distilled(call.args, evaluation=call.evaluation):
            info = {} if result.reward is None else result.reward.info  # it counts in the statistics of its group
            call.sample.reward = reward_value(call.args, reward, info, evaluation=call.evaluation)
            call.sample.remove_sample = False
        return made
    if not sources:
        nothing = InvalidSampleError("the rollout sampled no tokens, or none that are to be trained")
        return write_failed(call, episode, reason, ErrorRecord.from_exception(nothing, Phase.LOOP))
    expander = image_expander(call)
    if expander is None and any(source.media for source in sources):
        raise SlimeConfigError(
            f"rollout {sources[0].rollout_id!r} has images, and nothing gives them to the trainer: slime found no "
            "processor in --hf-checkpoint, or its family is not proved; strands_env_processor names another folder"
        )
    clear(call.sample)
    _count(call.sample, episode, result)
    samples = [call.sample, *(sibling_of(call.sample) for _ in sources[1:])]
    text_of = episode.text_of if episode.models else lambda ids: notes["final_response"]
    reward, scored = sources[0].reward, result.reward is not None or episode.scores
    for target, source in zip(samples, sources, strict=True):
        try:
            fill(target, source, call.needs, text_of)
            if source.media and expander is not None:
                target.multimodal_train_inputs = image_tensors(source, expander)
        except (InvalidSampleError, ValueError) as error:
            return write_failed(call, episode, reason, ErrorRecord.from_exception(error, Phase.LOOP), source)
        target.remove_sample = scored and reward is None  # the reward function abstains, or was not to score this end
        if target.remove_sample:
            target.reward = unusable_reward(call.args, target, "unscored", evaluation=call.evaluation)
        elif scored and not is_distilled(call.args, evaluation=call.evaluation):
            info = result.reward.info if result.reward is not None else {}
            target.reward = reward_value(call.args, reward, info, evaluation=call.evaluation)
        own = {**notes, "agent_name": source.agent_name}
        note(target, own if target is call.sample else copy.deepcopy(own))  # siblings share no container
    if not call.evaluation:
        STREAK.reset()
    return _as_return_value(call, samples)


def write_failed(
    call: Call,
    episode: Episode | None,
    reason: TerminationReason,
    error: ErrorRecord | None,
    source: TrainingSample | None = None,
) -> Any:
    """A rollout that failed: a sample that trains nothing. One that the end of slime's step broke may be run again."""
    if call.is_stopping and reason.is_failure:
        return write_aborted(call, None)
    if error is None:
        message = f"the rollout ended with {reason.value}"
        error = ErrorRecord(type=reason.value, message=message, traceback="", where=Phase.LOOP)
    described = {"type": error.type, "message": error.message, "where": error.where.value}
    notes = {"termination_reason": reason.value, "evaluation": call.evaluation, "error": described}
    return _write_untrained(call, episode, reason, error, notes, source)


def write_aborted(call: Call, episode: Episode | None) -> Any:
    """Slime is stopping: one sample that may be run again. It is empty, unless the rollout waits to be resumed.

    Args:
        episode: The rollout; None where it is over.
    """
    sample = call.sample
    clear(sample)
    set_status(sample, SampleStatus.ABORTED)
    if episode is None or not call.partial:
        return sample
    paths = [path for model in episode.models for path in model.trajectories if not path.is_discarded]
    if paths:  # the longest of them; slime looks whether anything is held
        held = max(paths, key=len)
        start = held.initial_prompt_length
        sample.tokens = held.token_ids
        sample.response_length = len(held) - start
        sample.loss_mask = held.loss_mask[start:]
        sample.rollout_log_probs = [value or 0.0 for value in held.logprobs[start:]]
        sample.response = episode.text_of(held.token_ids[start:])
    return sample


def write_left_out(call: Call, why: str) -> Any:
    """A task that is not trained, for its reward cannot be trusted: no failure, and no rollout."""
    sample = call.sample
    clear(sample)
    fill_unusable(sample, None, call.needs)
    sample.reward = unusable_reward(call.args, sample, "left_out", evaluation=call.evaluation)
    set_status(sample, SampleStatus.FAILED)
    note(sample, {"left_out": why, "evaluation": call.evaluation})
    return _as_return_value(call, [sample])


def _write_untrained(
    call: Call,
    episode: Episode | None,
    reason: TerminationReason,
    error: ErrorRecord,
    notes: dict[str, Any],
    source: TrainingSample | None = None,
    category: str = "failed",
) -> Any:
    """A sample that trains nothing: FAILED, or TRUNCATED where no token came in time. Both may end the run."""
    sample = call.sample
    clear(sample)
    if episode is not None:
        _count(sample, episode)
    fill_unusable(sample, source, call.needs)
    sample.reward = unusable_reward(call.args, sample, category, evaluation=call.evaluation)
    set_status(sample, SampleStatus.TRUNCATED if category == "no_tokens" else SampleStatus.FAILED)
    note(sample, notes)
    call.failure = Failure(error=error, reason=reason, has_waited=episode is not None and episode.suspensions > 0)
    return _as_return_value(call, [sample])


def _as_return_value(call: Call, samples: list[Any]) -> Any:
    """The return value of `generate` for a finished rollout: a sample, or with fan-out always a list.

    slime flattens a batch by its first element, and fails on one that mixes samples and lists.
    """
    first = samples[0]
    if not call.fanout:
        return first
    # slime counts rollouts by this id; without one it would count paths.
    shared = first.rollout_id if getattr(first, "rollout_id", None) is not None else first.index
    if shared is None:
        shared = uuid.uuid4().int >> 65
    for sample in samples:
        sample.rollout_id = shared
    return samples


def _count(sample: Any, episode: Episode, result: StepResult | None = None) -> None:
    """Cache and speculative counters and the time of tools, once for the rollout."""
    counters = episode.counters
    if hasattr(sample, "prefix_cache_info"):
        sample.prefix_cache_info.add(counters)
    if hasattr(sample, "spec_info") and counters["spec_verify_ct"]:
        sample.spec_info.add(counters)
    seconds = None if result is None else result.observation.metrics.get("tool_s")
    if isinstance(seconds, int | float):
        sample.non_generation_time = float(seconds)


# ---- one sample -----------------------------------------------------------------------------------------------------


def set_status(sample: Any, status: SampleStatus) -> None:
    """Set slime's status."""
    sample.status = getattr(type(sample).Status, status.name)


def fill(sample: Any, source: TrainingSample, needs: Needs, text_of: Callable[[list[int]], str]) -> None:
    """Write a training sample into slime's sample. Which fields are set depends on `needs` alone.

    Args:
        text_of: Decodes the response, for logs: nothing is ever encoded again from it.

    Raises:
        InvalidSampleError: Something needed is missing: a log-probability, experts, top-p data of a trained token.
    """
    source.validate(logprobs_required=True)
    logprobs, start = source.response_logprobs(), source.prompt_length
    experts = None if needs.experts_shape is None else source.experts_array()
    # All is checked before anything is set: a sample is written whole or not at all.
    if needs.experts_shape is not None and experts is None:
        raise InvalidSampleError("the trainer replays routed experts and the rollout has none")
    if needs.top_p and source.sampling_mask is None:
        raise InvalidSampleError("rollout_top_p is not 1, and the server returned no top-p token ids")
    sample.tokens = source.token_ids.tolist()
    sample.response_length = source.response_length
    sample.loss_mask = list(source.loss_mask[start:].tobytes())
    sample.rollout_log_probs = logprobs
    if experts is not None:
        sample.rollout_routed_experts = experts.copy()  # slime makes a tensor of its memory
    if needs.top_p and source.sampling_mask is not None:
        survivors = source.sampling_mask.part(start, len(source))
        sample.rollout_top_p_token_ids = survivors.ids.tolist()
        sample.rollout_top_p_token_offsets = survivors.offsets.tolist()
    sample.response = text_of(sample.tokens[start:])
    # One version per call; two for a call that was resumed with other weights.
    sample.weight_versions = [span.version for span in source.weight_versions if span.version is not None]
    set_status(sample, source.status)


def fill_unusable(sample: Any, source: TrainingSample | None, needs: Needs) -> None:
    """Make a sample that slime can carry and that trains nothing: mask 0, removed.

    The fields are those that every sample of the run has, for slime decides by the first sample of a batch. A rollout
    that sampled nothing is given one masked token, since slime's tensors cannot be empty.
    """
    if source is not None and source.media:
        source = None  # its image tokens without pixels would break the trainer's forward pass
    if source is None or not source.response_length:
        prompt = ([] if source is None else source.token_ids.tolist()) or [0]
        ids = np.array([*prompt, prompt[-1]], dtype=np.int32)
        source = TrainingSample(token_ids=ids, prompt_length=len(prompt), loss_mask=np.zeros(len(ids), np.uint8))
    count, experts = len(source), None
    if needs.experts_shape is not None:  # placeholders in which no layer is all 0, as slime checks
        layers, top_k = needs.experts_shape
        row = np.arange(top_k, dtype="<i4") if top_k > 1 else np.ones(1, dtype="<i4")
        experts = np.broadcast_to(row, (count - 1, layers, top_k)).tobytes()
    untrained = TrainingSample(
        token_ids=source.token_ids,
        prompt_length=source.prompt_length,
        loss_mask=np.zeros(count, dtype=np.uint8),
        logprobs=np.zeros(count),
        weight_versions=source.weight_versions,
        routed_experts=experts,
        experts_shape=needs.experts_shape,
        sampling_mask=SamplingMask(ids=np.zeros(0, dtype=np.int32), offsets=np.zeros(count + 1, dtype=np.int64)),
    )
    fill(sample, untrained, needs, lambda ids: "")
    sample.remove_sample = True


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


def unusable_reward(args: Any, sample: Any, category: str, *, evaluation: bool = False) -> Any:
    """A reward for a removed sample that slime's own functions can read. Nothing is learnt from it."""
    reward: Any = 0.0
    if is_distilled(args, evaluation=evaluation):
        scores = [[None if place == 0 else 0.0, token, None] for place, token in enumerate(sample.tokens)]
        # No two are equal: slime rounds rewards that are, which it cannot with answers of a teacher.
        reward = {"meta_info": {"id": uuid.uuid4().hex, "input_token_logprobs": scores}}
    return reward_value(args, reward, evaluation=evaluation, category=category)


def read_reward(args: Any, sample: Any) -> float | None:
    """The reward of a sample as a number, whoever set it; None if it is missing, NaN or infinite."""
    value = getattr(sample, "reward", None)
    if isinstance(value, dict):
        keys = [getattr(args, "reward_key", None), getattr(args, "eval_reward_key", None)]
        value = next((value[key] for key in keys if key and key in value), None)
    if value is None or isinstance(value, str | bytes):
        return None
    try:
        number = float(value)  # numbers of numpy and torch too
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def rollout_key(sample: Any, position: int) -> Any:
    """The key that samples of one rollout share within a group."""
    for name in ("rollout_id", "index"):
        value = getattr(sample, name, None)
        if value is not None:
            return value
    return ("position", position)


def note(sample: Any, notes: dict[str, Any]) -> None:
    """Leave our notes in the sample's metadata, which is replaced and not changed."""
    sample.metadata = {**(sample.metadata or {}), METADATA_KEY: notes}


def notes_of(sample: Any) -> dict[str, Any]:
    """Our notes, possibly empty."""
    notes = (getattr(sample, "metadata", None) or {}).get(METADATA_KEY)
    return notes if isinstance(notes, dict) else {}


def clear(sample: Any) -> None:
    """Forget an earlier attempt, so that nothing is doubled."""
    sample.tokens, sample.response, sample.response_length = [], "", 0
    sample.loss_mask = sample.rollout_log_probs = sample.reward = None
    sample.weight_versions = []
    sample.remove_sample = False
    if sample.metadata and METADATA_KEY in sample.metadata:
        sample.metadata = {key: value for key, value in sample.metadata.items() if key != METADATA_KEY}
    optional = ("rollout_routed_experts", "rollout_top_p_token_ids", "rollout_top_p_token_offsets")
    for name in (*optional, "multimodal_train_inputs"):
        if hasattr(sample, name):
            setattr(sample, name, None)
    _reset_counters(sample)


def sibling_of(sample: Any) -> Any:
    """Another sample of the same rollout; containers are its own."""
    sibling = copy.copy(sample)
    sibling.metadata = copy.copy(sample.metadata)
    if hasattr(sample, "trace"):
        sibling.trace = None  # its requests are counted on the first
    _reset_counters(sibling)  # counted once, on the first
    return sibling


def _reset_counters(sample: Any) -> None:
    for name in ("spec_info", "prefix_cache_info"):
        if hasattr(sample, name):
            setattr(sample, name, type(getattr(sample, name))())
    sample.non_generation_time = 0.0


# ---- its images -----------------------------------------------------------------------------------------------------


_load_expander = functools.cache(ProcessorExpander.of_model)


def image_expander(call: Call) -> ProcessorExpander | None:
    """What expands images as the trained model does; None if it takes no images, or its family is not proved.

    Raises:
        SlimeConfigError: The processor that `strands_env_processor` names cannot be used.
    """
    if (named := call.settings.processor) is not None:
        try:
            return _load_expander(named)
        except MediaError as error:
            raise SlimeConfigError(f"strands_env_processor: {error}") from error
    if getattr(call.state, "processor", None) is None:
        return None  # slime itself found none
    try:
        return _load_expander(call.args.hf_checkpoint)
    except MediaError as error:
        warn_once(f"error=<{error}> | the model is trained without images")
        return None


def expand_prompt(expander: ProcessorExpander, ids: Sequence[int], images: Sequence[str]) -> array[int]:
    """A prompt with every placeholder replaced by what its image expands to."""
    spans = iter(images)
    out: array[int] = array("i")
    for token in ids:
        if token == expander.placeholder_id:
            out += _span(expander, next(spans))
        else:
            out.append(token)
    return out


@functools.lru_cache(maxsize=1024)  # every turn of every rollout of a group has the same images
def _span(expander: ProcessorExpander, url: str) -> array[int]:
    return expander.enter(base64.b64decode(url.partition(",")[2])).span
