"""What a rollout's end means for slime's sample."""

from __future__ import annotations

import copy
import functools
import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from strands_env.core import StepResult
from strands_env.core.termination import ErrorRecord, Phase, TerminationReason
from strands_env.training.build import samples_from_step
from strands_env.training.export import with_all_sampled_tokens
from strands_env.training.sample import InvalidSampleError, SampleStatus, TrainingSample
from strands_env.training.slime import fill as _fill
from strands_env.training.slime.episode import Episode
from strands_env.training.slime.failures import STREAK, Failure
from strands_env.training.slime.fill import kept_of_sample
from strands_env.training.slime.prompt import Pictures
from strands_env.training.slime.settings import Call, SlimeConfigError
from strands_env.training.slime.suspended import SUSPENDED

logger = logging.getLogger(__name__)


def suspended(call: Call, episode: Episode) -> Any:
    """Slime is stopping, and the rollout waits: one sample, whatever the number of paths, with what is held so far."""
    sample = call.sample
    SUSPENDED.put(call.key, episode)
    _fill.clear(sample)
    sources = [path for model in episode.models for path in model.trajectories if not path.is_discarded]
    if sources:
        held = max(sources, key=len)
        start = held.initial_prompt_length
        sample.tokens = held.token_ids
        sample.response_length = len(held) - start
        sample.loss_mask = held.loss_mask[start:]
        sample.rollout_log_probs = [value or 0.0 for value in held.logprobs[start:]]
        sample.response = _text(episode, held.token_ids[start:], "")
    _fill.set_status(sample, SampleStatus.ABORTED)
    return sample


def aborted(call: Call) -> Any:
    """Slime is stopping, and the rollout is over: an empty sample that may be run again."""
    _fill.clear(call.sample)
    _fill.set_status(call.sample, SampleStatus.ABORTED)
    return call.sample


def finished(call: Call, result: StepResult, episode: Episode) -> Any:
    """The samples of a rollout that ended, well or not."""
    sample = call.sample
    _count(sample, result, episode)
    sources = samples_from_step(result, rollout_id=str(sample.index), experts_shape=call.needs.experts_shape)
    reason = result.termination_reason
    if reason.is_failure:
        if episode.control.is_aborted():  # the end of the step is what broke it
            return aborted(call)
        return failed(call, episode, sources[-1] if sources else None, result.error, reason)
    if not sources and reason.is_limit:
        return _empty(call, result, episode)
    if not sources:
        return failed(call, episode, None, _nothing_to_train(), reason)
    if not call.fanout:
        if len(sources) > 1 and not call.evaluation:
            _warn_of_other_paths()
        sources = [with_all_sampled_tokens(_main_path(sources, result))]
    sources = [_completed_data(source, call, episode) for source in sources]
    _check_sources(call, sources)
    samples = [sample, *(_fill.sibling_of(sample) for _ in sources[1:])]
    reward = sources[0].reward
    scored = result.reward is not None or episode.scores
    for target, source in zip(samples, sources, strict=True):
        try:
            response = _text(episode, source.token_ids[source.prompt_length :].tolist(), _final_text(result))
            _fill.fill(target, source, call.needs, response=response)
            if source.media and (pictures := Pictures.of(call)) is not None:
                target.multimodal_train_inputs = pictures.train_inputs(source)
        except (InvalidSampleError, ValueError) as error:
            return failed(call, episode, source, ErrorRecord.from_exception(error, Phase.LOOP), reason)
        target.remove_sample = scored and reward is None  # the reward function abstains, or was not to score this end
        if target.remove_sample:
            target.reward = _fill.unusable_reward(call.args, target, "unscored", evaluation=call.evaluation)
        elif scored and not _fill.is_distilled(call.args, evaluation=call.evaluation):
            info = result.reward.info if result.reward is not None else {}
            target.reward = _fill.reward_value(call.args, reward, info, evaluation=call.evaluation)
        else:  # left to --custom-rm-path
            target.reward = None
        _fill.note(target, _notes(call, result, episode, source.agent_name))
    if not call.evaluation:
        STREAK.reset()
    return _returned(call, samples)


def _check_sources(call: Call, sources: Sequence[TrainingSample]) -> None:
    """Refuse images that nothing expands, and warn of micro batches that are too small for a rollout.

    Raises:
        SlimeConfigError: A path has images, and the model that is trained has no processor that is proved.
    """
    limit, response = call.micro_batch_tokens, call.sampling_params.get("max_new_tokens")
    for source in sources:
        if source.media and Pictures.of(call) is None:
            raise SlimeConfigError(
                f"rollout {source.rollout_id!r} has images, and nothing gives them to the trainer: slime found no "
                "processor in --hf-checkpoint, or its family is not proved; strands_env_processor names another folder"
            )
        if limit and response and source.prompt_length + response > limit and not call.evaluation:
            _warn_of_long_rollouts(limit)


@functools.cache
def _warn_of_long_rollouts(limit: int) -> None:
    logger.warning(
        "max_tokens_per_gpu * context_parallel_size=<%d> | prompt and rollout_max_response_len together may be longer: "
        "such a sample is a micro batch alone and may not fit the GPU; raise the one, or set rollout_max_context_len",
        limit,
    )


def _returned(call: Call, samples: list[Any]) -> Any:
    """What slime gets for a rollout that ended: a sample, or with fan-out always a list.

    slime flattens a batch by its first element, and fails on one that mixes samples and lists.
    """
    if not call.fanout:
        return samples[0]
    first = samples[0]
    shared = first.rollout_id if getattr(first, "rollout_id", None) is not None else first.index
    if shared is None:
        shared = uuid.uuid4().int >> 65
    for sample in samples:
        sample.rollout_id = shared
    return samples


@functools.cache
def _warn_of_other_paths() -> None:
    logger.warning("fanout=<False> | a rollout has several paths, its last is trained: see strands_env_fanout")


def failed(
    call: Call,
    episode: Episode | None,
    source: TrainingSample | None,
    error: ErrorRecord | None,
    reason: TerminationReason,
) -> Any:
    """A sample that trains nothing."""
    if error is None:
        message = f"the rollout ended with {reason.value}"
        error = ErrorRecord(type=reason.value, message=message, traceback="", where=Phase.LOOP)
    _fill.fill_unusable(call.sample, source, call.needs)
    call.sample.reward = _fill.unusable_reward(call.args, call.sample, "failed", evaluation=call.evaluation)
    _fill.set_status(call.sample, SampleStatus.FAILED)
    described = {"type": error.type, "message": error.message, "where": error.where.value}
    _fill.note(call.sample, {"termination_reason": reason.value, "evaluation": call.evaluation, "error": described})
    _note_failure(call, episode, error, reason)
    return _returned(call, [call.sample])


def _note_failure(call: Call, episode: Episode | None, error: ErrorRecord, reason: TerminationReason) -> None:
    successes = None if episode is None else episode.successes
    waited = episode is not None and episode.suspensions > 0
    call.failures.append(Failure(error=error, reason=reason, successes=successes, has_waited=waited))


def count_failure(call: Call, failure: Failure) -> None:
    """Count what may end the run: not an evaluation, which ends by itself, and not a time-out of a rollout that waited.

    Raises:
        FailureStreakError: The limit is reached.
    """
    if call.evaluation or (failure.has_waited and failure.reason is TerminationReason.TIMEOUT):
        return
    successes = call.successes if failure.successes is None else failure.successes
    STREAK.add(call, failure.error, call.settings.max_failures, successes=successes)


def _empty(call: Call, result: StepResult, episode: Episode) -> Any:
    """A limit left no room for a single token (a prompt as long as the context, no budget): nothing to train."""
    _fill.fill_unusable(call.sample, None, call.needs)
    call.sample.reward = _fill.unusable_reward(call.args, call.sample, "no_room", evaluation=call.evaluation)
    _fill.set_status(call.sample, SampleStatus.TRUNCATED)
    _fill.note(call.sample, _notes(call, result, episode, "agent"))
    reason = result.termination_reason
    message = (
        "no room for a single token: raise rollout_max_response_len or rollout_max_context_len, or shorten prompt and "
        "tools"
    )
    error = ErrorRecord(type=reason.value, message=message, traceback="", where=Phase.MODEL)
    _note_failure(call, episode, error, reason)
    return _returned(call, [call.sample])


def _nothing_to_train() -> ErrorRecord:
    error = InvalidSampleError("the rollout sampled no tokens, or none that are to be trained")
    return ErrorRecord.from_exception(error, Phase.LOOP)


def _main_path(sources: Sequence[TrainingSample], result: StepResult) -> TrainingSample:
    """The path of the final answer; a sample holds the very array of its trajectory."""
    main = result.main_trajectory
    if main is not None:
        for source in sources:
            if source.token_ids is main.tokens.token_ids_array:
                return source
    return sources[-1]


def _completed_data(source: TrainingSample, call: Call, episode: Episode) -> TrainingSample:
    """Add top-p data where needed, and take the loss off off-policy tokens if slime asks for it."""
    if not call.needs.top_p:
        source = replace(source, sampling_mask=None)
    elif source.sampling_mask is None and episode.records:
        source = replace(source, sampling_mask=kept_of_sample(source.token_ids, episode.records))
    if call.partial and getattr(call.args, "mask_offpolicy_in_partial_rollout", False):
        mask = source.loss_mask.copy()
        mask[: _off_policy(source, episode)] = 0
        source = replace(source, loss_mask=mask)
    return source


def _off_policy(source: TrainingSample, episode: Episode) -> int:
    """Tokens up to the last that is older than a resumption, or that other weights sampled than the last ones.

    Weights change under a rollout where slime does not stop it for that (fully asynchronous).
    """
    held = max((_common_prefix(source.token_ids, ids) for ids in episode.control.held), default=0)
    spans = [span for span in source.weight_versions if span.version is not None]
    older = max((span.end for span in spans if span.version != spans[-1].version), default=0)
    return max(held, older)


def _common_prefix(one: Any, other: Sequence[int]) -> int:
    length = min(len(one), len(other))
    different = np.flatnonzero(np.asarray(one[:length]) != np.asarray(other[:length]))
    return int(different[0]) if len(different) else length


def _notes(call: Call, result: StepResult, episode: Episode, agent_name: str) -> dict[str, Any]:
    notes = {
        "termination_reason": result.termination_reason.value,
        "agent_name": agent_name,
        "final_response": _final_text(result),
        "evaluation": call.evaluation,
        "metrics": copy.deepcopy(result.observation.metrics),  # of this sample alone
        "suspensions": episode.suspensions,
    }
    if result.reward is not None:
        notes["reward_info"] = copy.copy(result.reward.info)
    if result.cleanup_error is not None:
        notes["cleanup_error"] = result.cleanup_error.message
    return notes


def _count(sample: Any, result: StepResult, episode: Episode) -> None:
    """Cache and speculative counters and the time of tools, once for the rollout."""
    counters = episode.counters
    if hasattr(sample, "prefix_cache_info"):
        sample.prefix_cache_info.add(counters)
    if hasattr(sample, "spec_info") and counters["spec_verify_ct"]:
        sample.spec_info.add(counters)
    seconds = result.observation.metrics.get("tool_s")
    if isinstance(seconds, int | float):
        sample.non_generation_time = float(seconds)


def _text(episode: Episode, ids: Sequence[int], fallback: str) -> str:
    """The response as text, for logs; nothing is ever encoded again from it."""
    for model in episode.models:
        return str(model.tokenizer.decode(list(ids), skip_special_tokens=False))
    return fallback


def _final_text(result: StepResult) -> str:
    return result.observation.final_response or ""
