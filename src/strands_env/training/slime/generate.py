"""`generate`: the rollout function slime calls, from slime's sample to the filled one."""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from strands_env.core import StepResult
from strands_env.core.termination import ErrorRecord, Phase, TerminationReason
from strands_env.training.build import samples_from_step
from strands_env.training.export import with_all_sampled_tokens
from strands_env.training.sample import InvalidSampleError, SampleStatus, TrainingSample
from strands_env.training.slime import sample as _sample
from strands_env.training.slime.episode import SUSPENDED, Episode, RolloutBackend, RolloutControl
from strands_env.training.slime.sample import Pictures, action_of, has_media, kept_of_sample, prompt_images
from strands_env.training.slime.settings import (
    STREAK,
    Call,
    Failure,
    FailureStreakError,
    SlimeConfigError,
    is_swallowed,
    raise_in_the_run,
    sampling_params_of,
)

logger = logging.getLogger(__name__)

RETRY_PAUSE = 1.0
"""Seconds before the first further attempt of a rollout, twice as long before each next one."""

_WRONG_CONFIGURATION = (TypeError, ValueError, AttributeError, KeyError, ImportError)


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """Run one rollout and fill slime's sample. For `--custom-generate-function-path`.

    Statuses: COMPLETED and TRUNCATED are trained; ABORTED only while slime is stopping; whatever else happened is
    FAILED, with `remove_sample` and a reward of 0 that `reward_post_process` leaves out of all statistics.

    Args:
        args: slime's arguments; our own are `SlimeSettings`.
        sample: slime's sample. Its prompt is a text or a list of messages, not one that a chat template has printed.
        sampling_params: Sampling parameters, never changed; `max_new_tokens` is the budget of the whole response.
        evaluation: Whether slime evaluates.

    Returns:
        The sample; with `strands_env_fanout` a list of samples with one `rollout_id`, one per path. An ABORTED rollout
        is always one sample.

    Raises:
        SlimeConfigError: The configuration is wrong.
        FailureStreakError: Too many rollouts in a row failed. Everything else is data.
    """
    try:
        call = Call.of(args, sample, sampling_params, evaluation)
        with STREAK.running(call):
            return await _run_attempts(call)
    except (SlimeConfigError, FailureStreakError) as error:
        if is_swallowed():
            return raise_in_the_run(sample, error)
        raise


async def _run_attempts(call: Call) -> Any:
    """Run the rollout, and again where it failed: a server that was away, a sandbox that did not start."""
    for attempt in range(1 + call.settings.retries):
        call.failures.clear()
        samples = await _run(call)
        failed = bool(call.failures) and call.failures[-1].is_worth_another_attempt
        if not failed or attempt == call.settings.retries or _is_stopping(call):
            break
        logger.warning(
            "sample=<%s>, attempt=<%d>, error=<%s> | rollout failed, trying again",
            getattr(call.sample, "index", None),
            attempt + 1,
            call.failures[-1].error.message,
        )
        await asyncio.sleep(RETRY_PAUSE * 2**attempt)
    for failure in call.failures:
        _count_failure(call, failure)
    return samples


async def _run(call: Call) -> Any:
    sample = call.sample
    episode = _resumed(call)
    try:
        if episode is None:
            images = await asyncio.to_thread(prompt_images, sample, Pictures.of(call)) if has_media(sample) else ()
            _sample.clear(sample)
            episode = _start(call, images)
        result = await episode.run()
        if episode.config_error is not None:
            raise episode.config_error
        if result is None:
            return _suspended(call, episode) if call.partial else _aborted(call)
        if any(path.images for model in episode.models for path in model.trajectories):
            return await asyncio.to_thread(_finished, call, result, episode)  # processes them for the trainer
        return _finished(call, result, episode)
    except (SlimeConfigError, FailureStreakError):
        raise
    except Exception as error:  # boundary: slime lets an exception of one rollout end the whole step
        logger.warning("sample=<%s>, error=<%s> | rollout failed", getattr(sample, "index", None), error, exc_info=True)
        if _is_stopping(call):
            return _aborted(call)
        record = ErrorRecord.from_exception(error, Phase.LOOP)
        return _failed(call, episode, None, record, TerminationReason.UNCLASSIFIED_ERROR)


def _is_stopping(call: Call) -> bool:
    return bool(getattr(call.state, "aborted", False))


def _resumed(call: Call) -> Episode | None:
    """The rollout that waits for this call; none where it broke meanwhile, for then it starts over."""
    episode = SUSPENDED.take(call.key) if call.partial else None
    SUSPENDED.expire(call.settings.max_suspension)
    if episode is None or episode.has_failed:
        return None
    episode.control.is_aborted = lambda: _is_stopping(call)  # slime may have replaced its state
    episode.control.sample = call.sample
    return episode


def _start(call: Call, images: Sequence[bytes]) -> Episode:
    params = sampling_params_of(call.sampling_params)
    control = RolloutControl(
        is_aborted=lambda: _is_stopping(call),
        suspends=call.partial,
        sampled_limit=call.sampled_limit,
        sample=call.sample,
    )
    episode = Episode(task=None, control=control, successes=call.successes)  # type: ignore[arg-type]
    environment = call.settings.make_environment(
        model_factory=model_factory(call, episode, params),
        args=call.args,
        sample=call.sample,
        evaluation=call.evaluation,
    )
    episode.scores = getattr(environment, "reward_fn", None) is not None
    episode.task = asyncio.ensure_future(environment.rollout(action_of(call.sample, environment, images)))
    return episode


# ---- models -------------------------------------------------------------------------------------------------------


def model_factory(call: Call, episode: Episode, params: Mapping[str, Any]) -> Callable[[], Any]:
    """A factory of models for this rollout. Client and tokenizer are looked up when a model is made.

    A model that cannot be made for its options is noted in `Episode.config_error`: it would fail in every rollout.
    """

    def factory() -> Any:
        tokenizer = _tokenizer(call)
        try:
            model = _make(call, episode, params, tokenizer)
        except _WRONG_CONFIGURATION as error:
            episode.config_error = SlimeConfigError(
                f"the model cannot be made with strands_env_tool_parser, strands_env_model_options, "
                f"strands_env_client_options and slime's own arguments: {error}"
            )
            episode.config_error.__cause__ = error
            raise
        episode.models.append(model)
        return model

    return factory


def _make(call: Call, episode: Episode, params: Mapping[str, Any], tokenizer: Any) -> Any:
    from strands_sglang import SGLangModel, get_client_from_slime_args

    args, sample, settings = call.args, call.sample, call.settings
    by_key = getattr(args, "router_policy", None) == "consistent_hashing"
    pictures = Pictures.of(call)
    client = RolloutBackend(
        get_client_from_slime_args(args, **settings.client_options),
        episode.control,
        episode.records if call.needs.top_p else None,
        episode.counters,
        pictures,
    )
    options: dict[str, Any] = {
        "sampling_params": dict(params),
        "max_sampled_tokens": call.sampled_limit or None,
        "max_response_tokens": params.get("max_new_tokens"),
        "return_prompt_logprobs": False,  # slime gets 0.0 where no loss is
        "context_window_limit": call.context_limit,
        "chat_template_kwargs": {
            **(getattr(args, "apply_chat_template_kwargs", None) or {}),
            **(getattr(sample, "apply_chat_template_kwargs", None) or {}),
        },
        "return_routed_experts": call.needs.experts_shape is not None,
        "require_routed_experts": True,
        "routing_key": getattr(sample, "session_id", None) if by_key else None,
        **({} if pictures is None else {"processor": pictures.expander}),
        **settings.model_options,
    }
    return SGLangModel(tokenizer=tokenizer, client=client, tool_parser=settings.tool_parser or None, **options)


def router_model_factory(
    args: Any, name: str, *, tokenizer: Any, tool_parser: str | None = None, **options: Any
) -> Callable[[], Any]:
    """A factory of models behind one of slime's named routers (`--sglang-config`), for judges and simulated users.

    Their tokens belong to no rollout: the models are for reward functions and `Environment.interact`, not for the
    agent that is trained.

    Args:
        args: slime's arguments, which factories of environments are given.
        name: Name of the model in `--sglang-config`.
        tokenizer: Tokenizer of that model, or its path.
        tool_parser: Name of the tool parser; None chooses one that fits the chat template.
        **options: Options of `SGLangModel`.

    Raises:
        SlimeConfigError: slime has no router of that name.
    """
    from strands_sglang import SGLangModel, get_client, get_tokenizer

    routers = getattr(args, "sglang_model_routers", None) or {}
    if name not in routers:
        raise SlimeConfigError(f"slime has no router for the model {name!r}; --sglang-config names {sorted(routers)!r}")
    host, port = routers[name]
    client = get_client(f"http://{host}:{port}")
    tokens = get_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    options = {"return_prompt_logprobs": False, **options}

    def factory() -> Any:
        return SGLangModel(tokenizer=tokens, client=client, tool_parser=tool_parser or None, **options)

    return factory


def _tokenizer(call: Call) -> Any:
    tokenizer = getattr(call.state, "tokenizer", None)
    if tokenizer is not None:
        return tokenizer
    from strands_sglang import get_tokenizer

    return get_tokenizer(call.args.hf_checkpoint)


# ---- how a rollout ends ---------------------------------------------------------------------------------------------


def _suspended(call: Call, episode: Episode) -> Any:
    """Slime is stopping, and the rollout waits: one sample, whatever the number of paths, with what is held so far."""
    sample = call.sample
    SUSPENDED.put(call.key, episode)
    _sample.clear(sample)
    sources = [path for model in episode.models for path in model.trajectories if not path.is_discarded]
    if sources:
        held = max(sources, key=len)
        start = held.initial_prompt_length
        sample.tokens = held.token_ids
        sample.response_length = len(held) - start
        sample.loss_mask = held.loss_mask[start:]
        sample.rollout_log_probs = [value or 0.0 for value in held.logprobs[start:]]
        sample.response = _text(episode, held.token_ids[start:], "")
    _sample.set_status(sample, SampleStatus.ABORTED)
    return sample


def _aborted(call: Call) -> Any:
    """Slime is stopping, and the rollout is over: an empty sample that may be run again."""
    _sample.clear(call.sample)
    _sample.set_status(call.sample, SampleStatus.ABORTED)
    return call.sample


def _finished(call: Call, result: StepResult, episode: Episode) -> Any:
    """The samples of a rollout that ended, well or not."""
    sample = call.sample
    _count(sample, result, episode)
    sources = samples_from_step(result, rollout_id=str(sample.index), experts_shape=call.needs.experts_shape)
    reason = result.termination_reason
    if reason.is_failure:
        if episode.control.is_aborted():  # the end of the step is what broke it
            return _aborted(call)
        return _failed(call, episode, sources[-1] if sources else None, result.error, reason)
    if not sources and reason.is_limit:
        return _empty(call, result, episode)
    if not sources:
        return _failed(call, episode, None, _nothing_to_train(), reason)
    if not call.fanout:
        if len(sources) > 1 and not call.evaluation:
            _warn_of_other_paths()
        sources = [with_all_sampled_tokens(_main_path(sources, result))]
    sources = [_completed_data(source, call, episode) for source in sources]
    _check_sources(call, sources)
    samples = [sample, *(_sample.sibling_of(sample) for _ in sources[1:])]
    reward = sources[0].reward
    scored = result.reward is not None or episode.scores
    for target, source in zip(samples, sources, strict=True):
        try:
            _sample.fill(target, source, call.needs, lambda ids: _text(episode, ids, _final_text(result)))
            if source.media and (pictures := Pictures.of(call)) is not None:
                target.multimodal_train_inputs = pictures.train_inputs(source)
        except (InvalidSampleError, ValueError) as error:
            return _failed(call, episode, source, ErrorRecord.from_exception(error, Phase.LOOP), reason)
        target.remove_sample = scored and reward is None  # the reward function abstains, or was not to score this end
        if target.remove_sample:
            target.reward = _sample.unusable_reward(call.args, target, "unscored", evaluation=call.evaluation)
        elif scored and not _sample.is_distilled(call.args, evaluation=call.evaluation):
            info = result.reward.info if result.reward is not None else {}
            target.reward = _sample.reward_value(call.args, reward, info, evaluation=call.evaluation)
        else:  # left to --custom-rm-path
            target.reward = None
        _sample.note(target, _notes(call, result, episode, source.agent_name))
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


def _failed(
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
    _sample.fill_unusable(call.sample, source, call.needs)
    call.sample.reward = _sample.unusable_reward(call.args, call.sample, "failed", evaluation=call.evaluation)
    _sample.set_status(call.sample, SampleStatus.FAILED)
    described = {"type": error.type, "message": error.message, "where": error.where.value}
    _sample.note(call.sample, {"termination_reason": reason.value, "evaluation": call.evaluation, "error": described})
    _note_failure(call, episode, error, reason)
    return _returned(call, [call.sample])


def _note_failure(call: Call, episode: Episode | None, error: ErrorRecord, reason: TerminationReason) -> None:
    successes = None if episode is None else episode.successes
    waited = episode is not None and episode.suspensions > 0
    call.failures.append(Failure(error=error, reason=reason, successes=successes, has_waited=waited))


def _count_failure(call: Call, failure: Failure) -> None:
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
    _sample.fill_unusable(call.sample, None, call.needs)
    call.sample.reward = _sample.unusable_reward(call.args, call.sample, "no_room", evaluation=call.evaluation)
    _sample.set_status(call.sample, SampleStatus.TRUNCATED)
    _sample.note(call.sample, _notes(call, result, episode, "agent"))
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
        # Of this sample alone; only a list of samples shares the result.
        "metrics": copy.deepcopy(result.observation.metrics) if call.fanout else result.observation.metrics,
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
    return episode.models[0].conversation.text_of(ids) if episode.models else fallback


def _final_text(result: StepResult) -> str:
    return result.observation.final_response or ""
