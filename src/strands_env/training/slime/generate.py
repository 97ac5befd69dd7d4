"""`generate`: the rollout function slime calls, from its sample's prompt to the filled sample. Read from the top."""

from __future__ import annotations

import asyncio
import importlib
import logging
from functools import partial
from typing import Any

from strands_env.core import StepResult
from strands_env.core.chat import is_image
from strands_env.core.termination import ErrorRecord, Phase, TerminationReason
from strands_env.training.build import samples_from_step
from strands_env.training.export import with_all_sampled_tokens
from strands_env.training.slime.call import (
    STREAK,
    Call,
    FailureStreakError,
    is_swallowed,
    raise_in_the_run,
    read_prompt,
)
from strands_env.training.slime.proof import why_left_out
from strands_env.training.slime.rollout import SUSPENDED, Episode, RolloutBackend
from strands_env.training.slime.sample import (
    expand_prompt,
    image_expander,
    write,
    write_aborted,
    write_failed,
    write_left_out,
)
from strands_env.training.slime.settings import SlimeConfigError, warn_once
from strands_sglang import SGLangModel, get_client_from_slime_args, get_tokenizer
from strands_sglang.trajectory.media import ImageEncoding, ProcessorExpander, as_rgb, encode

logger = logging.getLogger(__name__)

RETRY_PAUSE = 1.0
"""Seconds before the first further attempt of a rollout, twice as long before each next one."""


class TaskLeftOutError(Exception):
    """A task that fails the proof of its reward: nothing is sampled for it."""


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """Run one rollout and fill slime's sample. For `--custom-generate-function-path`.

    Statuses: COMPLETED and TRUNCATED are trained; ABORTED only while slime is stopping; whatever else happened is
    FAILED, with `remove_sample` and a reward of 0 that `reward_post_process` leaves out of all statistics.

    Args:
        args: slime's; our own are `SlimeSettings`.
        sample: slime's. Its prompt is a text or a list of messages, not one that a chat template has printed.
        sampling_params: Never changed; `max_new_tokens` is the budget of the whole response.

    Returns:
        The sample; with `strands_env_fanout` a list of samples with one `rollout_id`, one per path. An ABORTED rollout
        is always one sample.

    Raises:
        SlimeConfigError: The configuration is wrong.
        FailureStreakError: Too many rollouts in a row failed. Everything else is data.
    """
    return await _generate(args, sample, sampling_params, evaluation=evaluation)


async def generate_miles(input: Any) -> Any:
    """`generate` for miles: from its `GenerateFnInput`, which holds its state, to its `GenerateFnOutput`."""
    given = {"evaluation": input.evaluation, "state": input.state}
    samples = await _generate(input.args, input.sample, input.sampling_params, **given)
    return importlib.import_module("miles.rollout.base_types").GenerateFnOutput(samples=samples)


async def _generate(args: Any, sample: Any, sampling_params: Any, *, evaluation: bool, state: Any = None) -> Any:
    """Attempts of a rollout until one does not fail. The state is looked up where the trainer did not give it."""
    try:
        call = Call.of(args, sample, sampling_params, evaluation=evaluation, state=state)
        with STREAK.running(call):
            for attempt in range(1 + call.settings.retries):
                samples = await _run(call)
                failure = call.failure
                if failure is None or failure.is_final or attempt == call.settings.retries or call.is_stopping:
                    break
                words = "sample=<%s>, attempt=<%d>, error=<%s> | rollout failed, trying again"
                logger.warning(words, getattr(sample, "index", None), attempt + 1, failure.error.message)
                await asyncio.sleep(RETRY_PAUSE * 2**attempt)
            call.count_failure()
            return samples
    except (SlimeConfigError, FailureStreakError) as error:
        if is_swallowed():
            return raise_in_the_run(sample, error)
        raise


async def _run(call: Call) -> Any:
    """One attempt: the rollout that waits for this call or a new one, to its end, into slime's sample."""
    call.failure = None  # of an earlier attempt, which this one makes good
    episode = None
    try:
        episode = _resume(call) or await _start(call)
        result = await episode.run()
        if episode.config_error is not None:
            raise episode.config_error
        if result is None:
            if call.partial:
                SUSPENDED.put(call.key, episode)
            return write_aborted(call, episode)
        if any(path.images for path in result.trajectories):
            return await asyncio.to_thread(_finish, call, episode, result)  # processes them for the trainer
        return _finish(call, episode, result)
    except (SlimeConfigError, FailureStreakError):
        raise
    except TaskLeftOutError as error:
        return write_left_out(call, str(error))
    except Exception as error:  # boundary: slime lets an exception of one rollout end the whole step
        index = getattr(call.sample, "index", None)
        logger.warning("sample=<%s>, error=<%s> | rollout failed", index, error, exc_info=True)
        record = ErrorRecord.from_exception(error, Phase.LOOP)
        return write_failed(call, episode, TerminationReason.UNCLASSIFIED_ERROR, record)


def _resume(call: Call) -> Episode | None:
    """The rollout that waits for this call; none where it broke meanwhile, for then it starts over."""
    episode = SUSPENDED.take(call.key) if call.partial else None
    SUSPENDED.expire(call.settings.max_suspension)
    if episode is None or episode.has_failed:
        return None
    episode.is_aborted = lambda: call.is_stopping  # slime may have replaced its state
    episode.sample = call.sample
    return episode


async def _start(call: Call) -> Episode:
    """A new rollout: the environment of the factory, on the prompt of the sample.

    Raises:
        SlimeConfigError: The prompt cannot be sent, or the factory makes no environment.
        TaskLeftOutError: The task fails the proof of its reward.
    """
    sample = call.sample
    has_media = bool(getattr(sample, "multimodal_inputs", None)) or any(map(is_image, _parts(sample.prompt)))
    # Encoding takes long enough to be felt by the rollouts beside it.
    images = await asyncio.to_thread(prompt_images, sample, image_expander(call)) if has_media else ()
    action, system = read_prompt(sample, images)
    episode = Episode(
        is_aborted=lambda: call.is_stopping,
        suspends=call.partial,
        sampled_limit=call.sampled_limit,
        sample=sample,
        trainer=call.trainer,
        keeps_top_p=call.needs.top_p,
    )
    environment = call.settings.make_environment(
        model_factory=lambda: _make_model(call, episode),
        args=call.args,
        sample=sample,
        evaluation=call.evaluation,
    )
    if system is not None:
        environment.system_prompt = system
    reward_fn = getattr(environment, "reward_fn", None)
    if not call.evaluation and (why := await why_left_out(call.args, call.settings, reward_fn, action)) is not None:
        raise TaskLeftOutError(why)
    episode.scores = reward_fn is not None
    episode.task = asyncio.ensure_future(environment.rollout(action))
    return episode


def prompt_images(sample: Any, expander: ProcessorExpander | None) -> list[bytes]:
    """The images of slime's prompt as PNG, in the order of their parts; for a thread.

    slime has loaded them (`--multimodal-keys`), one for every image part of the messages.

    Raises:
        SlimeConfigError: Nothing expands them, they do not fit the messages, or there are videos or audio.
    """
    inputs = getattr(sample, "multimodal_inputs", None) or {}
    # By length where there is one, for the truth value of a tensor is an error.
    given = sorted(
        name
        for name, value in inputs.items()
        if value is not None and not (hasattr(value, "__len__") and not len(value))
    )
    if others := [name for name in given if name != "images"]:
        raise SlimeConfigError(
            f"the data has multimodal inputs {others!r}: only images can be sent exactly, for with video or audio in a "
            "request SGLang decodes the ids and tokenises them again"
        )
    places = sum(map(is_image, _parts(sample.prompt)))
    if not given and not places:
        return []
    if expander is None:
        raise SlimeConfigError(
            f"the data has multimodal inputs {given or ['images']!r}, and nothing expands them: slime found no "
            "processor in --hf-checkpoint, or its family is not proved; strands_env_processor names another folder"
        )
    images = list(inputs.get("images") or ()) if given else []
    if len(images) != places:
        raise SlimeConfigError(
            f"the prompt has {places} image parts, and the data's multimodal inputs have {len(images)} images: give "
            "images with --multimodal-keys, and the prompt as messages"
        )
    return [encode(as_rgb(image), ImageEncoding.PNG) for image in images]


def _parts(prompt: Any) -> list[Any]:
    if isinstance(prompt, str):
        return []
    contents = [message.get("content") for message in prompt]
    return [part for content in contents if not isinstance(content, str) for part in content or ()]


def _make_model(call: Call, episode: Episode) -> Any:
    """A model of this rollout. One that cannot be made for its options would fail in every rollout."""
    args, trainer, settings, params = call.args, call.trainer, call.settings, call.model_params
    tokenizer = getattr(call.state, "tokenizer", None) or get_tokenizer(args.hf_checkpoint)
    try:
        expander = image_expander(call)
        client = get_client_from_slime_args(args, **settings.client_options)
        options: dict[str, Any] = {
            "sampling_params": params,
            "max_sampled_tokens": call.sampled_limit or None,
            "max_response_tokens": params.get("max_new_tokens"),
            "return_prompt_logprobs": False,  # slime gets 0.0 where no loss is
            "context_window_limit": call.context_limit,
            "chat_template_kwargs": {
                **(getattr(args, "apply_chat_template_kwargs", None) or {}),
                **(getattr(call.sample, "apply_chat_template_kwargs", None) or {}),
            },
            "return_routed_experts": call.needs.experts_shape is not None,
            "require_routed_experts": True,
            "return_sampling_mask": call.needs.top_p,
            "routing_key": call.routing_key if getattr(args, trainer.policy, None) in trainer.by_key else None,
            **({} if expander is None else {"processor": expander}),
            **settings.model_options,
        }
        backend = RolloutBackend(client, episode, None if expander is None else partial(expand_prompt, expander))
        model = SGLangModel(tokenizer=tokenizer, client=backend, tool_parser=settings.tool_parser or None, **options)
    except (TypeError, ValueError, AttributeError, KeyError, ImportError) as error:
        episode.config_error = SlimeConfigError(
            f"the model cannot be made with strands_env_tool_parser, strands_env_model_options, "
            f"strands_env_client_options and slime's own arguments: {error}"
        )
        episode.config_error.__cause__ = error
        raise
    episode.models.append(model)
    return model


def _finish(call: Call, episode: Episode, result: StepResult) -> Any:
    """The samples of a rollout that ended, well or not."""
    shape = call.needs.experts_shape
    index = call.sample.index
    rollout_id = None if index is None else str(index)  # None: one of its own
    sources = samples_from_step(result, rollout_id=rollout_id, experts_shape=shape, placement=None)
    sampled = sum(source.trained_tokens for source in sources)
    if sources and not call.fanout:  # one sample stands for the rollout, so it trains all that was sampled on it
        main = result.main_trajectory  # of the final answer; a sample holds the very array of its trajectory
        of_main = (each for each in sources if main is not None and each.token_ids is main.tokens.token_ids_array)
        sources = [with_all_sampled_tokens(next(of_main, sources[-1]))]
    exported = sum(source.trained_tokens for source in sources)
    if exported < sampled and not call.evaluation:
        warn_once(
            "fanout=<False> | a rollout has several paths and only its last is trained: name reward_post_process in "
            "--custom-reward-post-process-path, or set strands_env_fanout; log_rollout gives the share of sampled "
            "tokens that is lost (untrained/other_paths)"
        )
    if call.partial and getattr(call.args, "mask_offpolicy_in_partial_rollout", False):
        sources = [episode.take_loss_off_policy(source) for source in sources]
    trained = sum(source.trained_tokens for source in sources)
    tokens = {"sampled": sampled, "other_paths": sampled - exported, "off_policy": exported - trained}
    return write(call, episode, result, sources, tokens)
