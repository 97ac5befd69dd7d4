"""`generate`: the rollout function slime calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strands_env.core.termination import ErrorRecord, Phase, TerminationReason
from strands_env.training.slime import fill, outcome
from strands_env.training.slime.episode import Episode, RolloutBackend, RolloutControl
from strands_env.training.slime.failures import STREAK, FailureStreakError, is_swallowed, raise_in_the_run
from strands_env.training.slime.prompt import Pictures, action_of, has_media, prompt_images
from strands_env.training.slime.settings import Call, SlimeConfigError, sampling_params_of
from strands_env.training.slime.suspended import SUSPENDED

logger = logging.getLogger(__name__)

RETRY_PAUSE = 1.0
"""Seconds before the first further attempt of a rollout, twice as long before each next one."""

_WRONG_CONFIGURATION = (TypeError, ValueError, AttributeError, KeyError, ImportError)


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
        episode.records,
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
        outcome.count_failure(call, failure)
    return samples


async def _run(call: Call) -> Any:
    sample = call.sample
    episode = _resumed(call)
    try:
        if episode is None:
            images = await asyncio.to_thread(prompt_images, sample, Pictures.of(call)) if has_media(sample) else ()
            fill.clear(sample)
            episode = _start(call, images)
        result = await episode.run()
        if episode.config_error is not None:
            raise episode.config_error
        if result is None:
            return outcome.suspended(call, episode) if call.partial else outcome.aborted(call)
        if any(path.images for model in episode.models for path in model.trajectories):
            return await asyncio.to_thread(outcome.finished, call, result, episode)  # processes them for the trainer
        return outcome.finished(call, result, episode)
    except (SlimeConfigError, FailureStreakError):
        raise
    except Exception as error:  # boundary: slime lets an exception of one rollout end the whole step
        logger.warning("sample=<%s>, error=<%s> | rollout failed", getattr(sample, "index", None), error, exc_info=True)
        if _is_stopping(call):
            return outcome.aborted(call)
        record = ErrorRecord.from_exception(error, Phase.LOOP)
        return outcome.failed(call, episode, None, record, TerminationReason.UNCLASSIFIED_ERROR)


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
