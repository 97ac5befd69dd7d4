"""`generate` and `reward_func`: the two functions slime calls."""

from __future__ import annotations

import asyncio
import importlib
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from strands_env.core import Action, Observation, StepResult, TaskContext
from strands_env.core.result import as_reward_function, as_reward_result
from strands_env.core.termination import ErrorRecord, Phase, TerminationReason
from strands_env.training.build import samples_from_step
from strands_env.training.sample import InvalidSampleError, SampleStatus, TrainingSample
from strands_env.training.slime import _fill
from strands_env.training.slime._client import RolloutClient, RolloutControl, kept_of_sample
from strands_env.training.slime._episode import SUSPENDED, Episode
from strands_env.training.slime._settings import SlimeConfigError, SlimeSettings, load, sampling_params_of

logger = logging.getLogger(__name__)

METADATA_KEY = "strands_env"
"""Where a sample's `metadata` holds termination reason, error, metrics and reward information."""


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
        The sample, or a list of samples with one `rollout_id` when the rollout has several paths.

    Raises:
        SlimeConfigError: The configuration is wrong. Everything else is data.
    """
    settings = SlimeSettings.from_args(args)
    if getattr(args, "apply_chat_template", False):
        raise SlimeConfigError(
            "leave out --apply-chat-template: the agent renders the conversation itself, and the prompt must be "
            "messages or plain text"
        )
    partial = bool(getattr(args, "partial_rollout", False)) and not evaluation
    needs = _fill.Needs.of(args, evaluation=evaluation)
    state = _generate_state(args)
    episode = SUSPENDED.take(_key(sample)) if partial else None
    try:
        if episode is None:
            _fill.clear(sample)
            episode = _start(args, sample, sampling_params, evaluation, settings, state, partial, needs)
        result = await episode.run()
        if result is None:
            return _aborted(args, sample, episode, partial)
        return _finished(args, sample, result, episode, evaluation, settings, needs)
    except SlimeConfigError:
        raise
    except Exception as error:  # boundary: slime lets an exception of one rollout end the whole step
        logger.warning("sample=<%s>, error=<%s> | rollout failed", getattr(sample, "index", None), error, exc_info=True)
        record = ErrorRecord.from_exception(error, Phase.LOOP)
        return _failed(args, sample, None, record, TerminationReason.UNCLASSIFIED_ERROR.value, needs)


async def reward_func(args: Any, sample: Any, **kwargs: Any) -> Any:
    """The reward of a sample, or of a list of samples. For `--custom-rm-path`.

    `generate` sets the reward of its environment, and then slime does not call this. It scores where the environment
    has no reward: with `strands_env_reward`, on the response's text and the label alone.

    Raises:
        SlimeConfigError: There is neither a reward of the environment nor `strands_env_reward`.
    """
    if isinstance(sample, Sequence):
        return [await reward_func(args, one, **kwargs) for one in sample]
    if sample.reward is not None:
        return sample.reward
    path = SlimeSettings.from_args(args, factory_required=False).reward
    if path is None:
        raise SlimeConfigError(
            "nothing scores this rollout: give the environment a reward_fn, or set strands_env_reward to the import "
            "path of a reward function"
        )
    made = load(path)
    function = as_reward_function(made() if isinstance(made, type) else made)
    messages = [{"role": "assistant", "content": [{"text": sample.response}]}]
    result = StepResult(observation=Observation(messages=messages), termination_reason=TerminationReason.TASK_COMPLETE)
    try:
        reward = as_reward_result(await function.compute(action=_action(sample), step_result=result)).reward
    except Exception as error:
        logger.warning("sample=<%s>, error=<%s> | reward failed", getattr(sample, "index", None), error, exc_info=True)
        reward = None
    if reward is None:
        sample.remove_sample = True
    return _fill.reward_value(args, reward or 0.0)


# ---- before the rollout ----------------------------------------------------------------------------------------------


def _generate_state(args: Any) -> Any:
    """Slime's process-wide state; None outside slime (the package's own tests, a dry run)."""
    try:
        module = importlib.import_module("slime.rollout.sglang_rollout")
    except ImportError:
        return None
    return module.GenerateState(args)


def _key(sample: Any) -> Any:
    return getattr(sample, "session_id", None) or (sample.group_index, sample.index)


def _start(
    args: Any,
    sample: Any,
    sampling_params: Mapping[str, Any],
    evaluation: bool,
    settings: SlimeSettings,
    state: Any,
    partial: bool,
    needs: _fill.Needs,
) -> Episode:
    params, budget = sampling_params_of(sampling_params)
    control = RolloutControl(is_aborted=lambda: bool(getattr(state, "aborted", False)), suspends=partial, budget=budget)
    episode = Episode(task=None, control=control)  # type: ignore[arg-type]
    factory = _model_factory(args, sample, params, settings, state, episode, needs)
    environment = settings.make_environment(model_factory=factory, args=args, sample=sample, evaluation=evaluation)
    action = _action(sample, environment)
    episode.task = asyncio.ensure_future(environment.rollout(action))
    return episode


def _model_factory(
    args: Any,
    sample: Any,
    params: Mapping[str, Any],
    settings: SlimeSettings,
    state: Any,
    episode: Episode,
    needs: _fill.Needs,
) -> Callable[[], Any]:
    """A factory of models for this rollout. Client and tokenizer are looked up when a model is made."""
    budget = episode.control.budget
    context = getattr(args, "rollout_max_context_len", None)
    template_kwargs = {
        **(getattr(args, "apply_chat_template_kwargs", None) or {}),
        **(getattr(sample, "apply_chat_template_kwargs", None) or {}),
    }
    by_key = getattr(args, "router_policy", None) == "consistent_hashing"

    def factory() -> Any:
        from strands_sglang import SGLangModel, get_client_from_slime_args, get_tool_parser

        client = RolloutClient(
            get_client_from_slime_args(args, **settings.client_options),
            episode.control,
            episode.records,
            episode.counters,
        )
        options: dict[str, Any] = {
            "sampling_params": dict(params),
            "max_sampled_tokens": budget or None,
            "context_window_limit": context or None,
            "chat_template_kwargs": template_kwargs,
            "return_routed_experts": needs.experts_shape is not None,
            "routing_key": getattr(sample, "session_id", None) if by_key else None,
            **settings.model_options,
        }
        parser = get_tool_parser(settings.tool_parser) if settings.tool_parser else None
        model = SGLangModel(tokenizer=_tokenizer(args, state), client=client, tool_parser=parser, **options)
        episode.models.append(model)
        return model

    return factory


def _tokenizer(args: Any, state: Any) -> Any:
    tokenizer = getattr(state, "tokenizer", None)
    if tokenizer is not None:
        return tokenizer
    from strands_sglang import get_tokenizer

    return get_tokenizer(args.hf_checkpoint)


def _action(sample: Any, environment: Any = None) -> Action:
    """Slime's prompt as an action: the last message, the ones before as history, a system message for the agent."""
    context: dict[str, Any] = {
        "id": str(sample.index) if sample.index is not None else uuid.uuid4().hex,
        "ground_truth": sample.label,
        "metadata": {key: value for key, value in (sample.metadata or {}).items() if key != METADATA_KEY},
    }
    if isinstance(sample.prompt, str):
        return Action(message=sample.prompt, task_context=TaskContext(**context))
    messages = [_message(message) for message in sample.prompt]
    system = [block["text"] for role, blocks in messages if role == "system" for block in blocks if "text" in block]
    if system and environment is not None:
        environment.system_prompt = "\n".join(system)
    turns = [{"role": role, "content": blocks} for role, blocks in messages if role != "system"]
    if not turns or turns[-1]["role"] != "user":
        raise ValueError(f"the prompt must end with a user message, got roles {[role for role, _ in messages]!r}")
    return Action(message=turns[-1], task_context=TaskContext(**context, conversation_history=turns[:-1]))


def _message(message: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    content = message["content"]
    if isinstance(content, str):
        return message["role"], [{"text": content}]
    blocks = []
    for part in content:
        if "text" not in part:
            raise ValueError(f"only text prompts are supported, got a part {part!r}; give images in the environment")
        blocks.append({"text": part["text"]})
    return message["role"], blocks


# ---- after the rollout -----------------------------------------------------------------------------------------------


def _aborted(args: Any, sample: Any, episode: Episode, partial: bool) -> Any:
    """Slime is stopping: one sample, whatever the number of paths, with what is held so far."""
    if partial:
        for model in episode.models:
            episode.control.held.extend(list(path.token_ids) for path in model.trajectories)
        sources = [path for model in episode.models for path in model.trajectories if not path.is_discarded]
        if sources:
            held = max(sources, key=len)
            start = held.initial_prompt_length
            sample.tokens = held.token_ids
            sample.response_length = len(held) - start
            sample.loss_mask = held.loss_mask[start:]
            sample.rollout_log_probs = [value or 0.0 for value in held.logprobs[start:]]
            sample.response = _text(episode, held.token_ids[start:], "")
        SUSPENDED.put(_key(sample), episode)
    _fill.set_status(sample, SampleStatus.ABORTED)
    return sample


def _finished(
    args: Any,
    sample: Any,
    result: StepResult,
    episode: Episode,
    evaluation: bool,
    settings: SlimeSettings,
    needs: _fill.Needs,
) -> Any:
    _count(sample, episode)
    sources = samples_from_step(
        result, rollout_id=str(sample.index), models=episode.models, experts_shape=needs.experts_shape
    )
    sources = [_completed_data(source, args, episode) for source in sources]
    reason = result.termination_reason.value
    if not sources or sources[0].status in (SampleStatus.FAILED, SampleStatus.ABORTED):
        if sources and sources[0].status is SampleStatus.ABORTED and episode.control.is_aborted():
            return _aborted(args, sample, episode, partial=False)
        return _failed(args, sample, sources[-1] if sources else None, result.error, reason, needs)
    if evaluation or not settings.fanout:
        sources = [_main_path(sources, result)]
    samples = [sample, *(_fill.sibling_of(sample) for _ in sources[1:])]
    reward = sources[0].reward
    scored = result.reward is not None
    for target, source in zip(samples, sources, strict=True):
        try:
            response = _text(episode, source.token_ids[source.prompt_length :].tolist(), _final_text(result))
            _fill.fill(target, source, needs, response=response)
        except (InvalidSampleError, ValueError) as error:
            record = ErrorRecord.from_exception(error, Phase.LOOP)
            return _failed(args, sample, source, record, reason, needs)
        target.remove_sample = scored and reward is None  # the reward function abstains
        target.reward = _fill.reward_value(args, reward or 0.0) if scored else None
        target.metadata = {**(target.metadata or {}), METADATA_KEY: _notes(result, episode, source.agent_name)}
    if len(samples) == 1:
        return sample
    shared = sample.rollout_id if getattr(sample, "rollout_id", None) is not None else sample.index
    for target in samples:
        target.rollout_id = uuid.uuid4().int >> 65 if shared is None else shared
    return samples


def _main_path(sources: Sequence[TrainingSample], result: StepResult) -> TrainingSample:
    """The path of the final answer."""
    tokens = result.observation.tokens
    if tokens is not None:
        for source in sources:
            if np.array_equal(source.token_ids, tokens.token_ids_array):
                return source
    return sources[-1]


def _completed_data(source: TrainingSample, args: Any, episode: Episode) -> TrainingSample:
    """With top-p data of the answers, and without loss on what was sampled before a resumption if slime wants that."""
    if source.kept is None and episode.records:
        source = replace(source, kept=kept_of_sample(source.token_ids, episode.records))
    if getattr(args, "mask_offpolicy_in_partial_rollout", False) and episode.control.held:
        old = max(_common_prefix(source.token_ids, ids) for ids in episode.control.held)
        mask = source.loss_mask.copy()
        mask[:old] = 0
        source = replace(source, loss_mask=mask)
    return source


def _common_prefix(one: Any, other: Sequence[int]) -> int:
    length = min(len(one), len(other))
    different = np.flatnonzero(np.asarray(one[:length]) != np.asarray(other[:length]))
    return int(different[0]) if len(different) else length


def _failed(
    args: Any,
    sample: Any,
    source: TrainingSample | None,
    error: ErrorRecord | None,
    reason: str,
    needs: _fill.Needs,
) -> Any:
    _fill.fill_unusable(sample, source, args, needs)
    _fill.set_status(sample, SampleStatus.FAILED)
    notes: dict[str, Any] = {"termination_reason": reason}
    if error is not None:
        notes["error"] = {"type": error.type, "message": error.message, "where": error.where.value}
    sample.metadata = {**(sample.metadata or {}), METADATA_KEY: notes}
    return sample


def _notes(result: StepResult, episode: Episode, agent_name: str) -> dict[str, Any]:
    notes = {
        "termination_reason": result.termination_reason.value,
        "agent_name": agent_name,
        "metrics": result.observation.metrics,
        "suspensions": episode.suspensions,
    }
    if result.reward is not None:
        notes["reward_info"] = result.reward.info
    if result.cleanup_error is not None:
        notes["cleanup_error"] = result.cleanup_error.message
    return notes


def _count(sample: Any, episode: Episode) -> None:
    """Cache and speculative counters, once for the rollout."""
    counters = episode.counters
    meta = {name: getattr(counters, name) for name in counters.__dataclass_fields__}
    if hasattr(sample, "prefix_cache_info"):
        sample.prefix_cache_info.add(meta)
    if hasattr(sample, "spec_info") and counters.spec_verify_ct:
        sample.spec_info.add(meta)


def _text(episode: Episode, ids: Sequence[int], fallback: str) -> str:
    """The response as text, for logs and text rewards; nothing is ever encoded again from it."""
    for model in episode.models:
        return str(model.tokenizer.decode(list(ids), skip_special_tokens=False))
    return fallback


def _final_text(result: StepResult) -> str:
    return result.observation.final_response or ""
