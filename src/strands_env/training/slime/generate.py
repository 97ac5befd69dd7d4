"""`generate`: the rollout function slime calls, from its sample's prompt to the filled sample. Read from the top."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

from strands_env.core import Outcome, StepResult, TerminationReason
from strands_env.training.build import samples_from_step
from strands_env.training.driver import FailureStreakError, drive_rollout
from strands_env.training.export import image_tensors, with_all_sampled_tokens
from strands_env.training.sample import TrainingSample
from strands_env.training.slime.live_rollout import Episode, RolloutBackend
from strands_env.training.slime.prompt import (
    NO_PROCESSOR,
    expand_prompt,
    has_images,
    image_expander,
    prompt_images,
    read_prompt,
)
from strands_env.training.slime.rows import STOPPED, SlimeRollout, check_tokens, fields_that_stop_the_run, put, write
from strands_env.training.slime.settings import (
    RolloutCall,
    SlimeConfigError,
    SlimeSettings,
    load,
    warn_once,
)
from strands_env.training.slime.shared_state import SESSION
from strands_sglang import Limits, SGLangModel, get_client_from_slime_args, get_tokenizer


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """Run one rollout and fill slime's sample. For `--custom-generate-function-path`.

    Statuses: COMPLETED and TRUNCATED are trained; ABORTED only while slime is stopping; any other end is
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
        FailureStreakError: Too many rollouts in a row failed. All other errors are data.
    """
    return await generate_with(None, args, sample, sampling_params, evaluation)


async def generate_with(state: Any, args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool) -> Any:
    """`generate` with this `GenerateState`; None is the process-wide one."""
    # Run the rollout, compute the fields of its samples, count it, and only then write them.
    try:
        call = RolloutCall(args, sample, sampling_params, evaluation=evaluation, state=state)
        with SESSION.rollout_failures.running(call):
            rollout = await drive_rollout(
                partial(_attempt, call),
                SlimeRollout,
                retries=call.settings.retries,
                is_stopping=lambda: call.is_stopping,
                fatal=(SlimeConfigError,),
            )
            if call.is_stopping and rollout.end.outcome.is_lost and rollout.end != STOPPED:
                rollout = SlimeRollout(end=STOPPED)  # slime asks again for rollouts that the end of its step broke
            try:
                rows = write(call, rollout)
            except Exception as error:  # the boundary of a rollout, such as facts of a reward that cannot be copied
                rollout = SlimeRollout(error=error)
                rows = write(call, rollout)
            _count(call, rollout)
    except (SlimeConfigError, FailureStreakError) as error:
        rows = [fields_that_stop_the_run(error)]
    return put(sample, rows)


def _count(call: RolloutCall, rollout: SlimeRollout) -> None:
    """Count a failure in a row, or begin again. Evaluations end by themselves."""
    if call.evaluation or rollout.end == STOPPED:
        return
    has_waited = rollout.episode is not None and rollout.episode.suspensions > 0
    if rollout.has_rows:
        SESSION.rollout_failures.reset()
    elif has_waited and rollout.end.reason is TerminationReason.TIMEOUT:
        return  # the time was not the rollout's own
    elif (error := rollout.end.error) is not None:
        SESSION.rollout_failures.add(call, error, call.settings.max_failures)


async def _attempt(call: RolloutCall) -> SlimeRollout:
    """An attempt: the rollout that waits for this call or a new one, to its end or to the end of slime's step.

    Raises:
        SlimeConfigError: The prompt cannot be sent, the factory makes no environment, or no model can be made.
    """
    episode = _resume(call) or await _start(call)
    result = await episode.run()
    if episode.config_error is not None:
        raise episode.config_error
    if result is not None:
        has_pictures = any(path.images for path in result.trajectories)  # which are processed for the trainer
        collect = partial(_collect, call, episode, result)
        rollout = await asyncio.to_thread(collect) if has_pictures else collect()
    else:
        rollout = SlimeRollout(episode=episode, end=STOPPED)
        if call.partial:
            SESSION.suspended.put(call.key, episode)
    return rollout


def _resume(call: RolloutCall) -> Episode | None:
    """The rollout that waits for this call; None if it failed meanwhile, and starts over."""
    episode = SESSION.suspended.take(call.key) if call.partial else None
    SESSION.suspended.expire(call.settings.max_suspension)
    if episode is None or episode.has_failed:
        return None
    episode.call = call  # slime may have replaced its state
    return episode


async def _start(call: RolloutCall) -> Episode:
    """A new rollout: the environment of the factory, on the prompt of the sample."""
    sample = call.sample
    # Encoding takes long enough to be felt by the rollouts beside it.
    images = await asyncio.to_thread(prompt_images, sample, image_expander(call)) if has_images(sample) else ()
    action = read_prompt(sample, images)
    episode = Episode(call=call)
    environment = make_environment(
        call.settings, partial(_make_model, episode), args=call.args, sample=sample, evaluation=call.evaluation
    )
    reward_fn = getattr(environment, "reward_fn", None)
    episode.scores = reward_fn is not None
    if not call.evaluation:
        await SESSION.prove_data(call.args, call.settings, reward_fn)
    episode.task = asyncio.ensure_future(environment.rollout(action))
    return episode


def make_environment(settings: SlimeSettings, model_factory: Any, *, args: Any, sample: Any, evaluation: bool) -> Any:
    """A fresh environment of the settings' factory for one rollout.

    Raises:
        SlimeConfigError: The factory cannot be imported, cannot be called with these arguments, or does not make
            one. A `TypeError` from inside it (from a class: a `ValueError` too) counts as such until an environment
            was made.
    """
    factory = load(settings.factory)
    wrong: tuple[type[Exception], ...] = (TypeError, ValueError) if isinstance(factory, type) else (TypeError,)
    try:
        if isinstance(factory, type):
            system_prompt = {} if settings.system_prompt is None else {"system_prompt": settings.system_prompt}
            arguments = {"model_factory": model_factory, **system_prompt, **settings.options}
        else:
            arguments = {"model_factory": model_factory, "args": args, "sample": sample, "evaluation": evaluation}
            arguments["options"] = dict(settings.options)
            parameters = inspect.signature(factory).parameters
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
                arguments = {name: value for name, value in arguments.items() if name in parameters}
        environment = factory(**arguments)
    except wrong as error:
        # It has worked before, so this task is at fault and not the configuration.
        if repr(settings) in SESSION.working_settings:
            raise
        raise SlimeConfigError(
            f"{settings.factory!r} makes no environment with strands_env_options {dict(settings.options)!r}: {error}"
        ) from error
    if not callable(getattr(environment, "rollout", None)):
        if inspect.iscoroutine(environment):
            environment.close()  # or Python warns that it was never awaited
        raise SlimeConfigError(
            f"{settings.factory!r} returned {type(environment).__name__!r}, expected an Environment; a factory is a "
            "plain function, and move awaited code to Environment.reset()"
        )
    SESSION.working_settings.add(repr(settings))
    return environment


def _make_model(episode: Episode) -> Any:
    """A model of this rollout. One that cannot be made for its options would fail in every rollout."""
    call = episode.call
    args, trainer, settings, params = call.args, call.trainer, call.settings, call.model_params
    tokenizer = getattr(call.state, "tokenizer", None) or get_tokenizer(args.hf_checkpoint)
    try:
        expander = image_expander(call)
        client = get_client_from_slime_args(args, **settings.client_options)
        options: dict[str, Any] = {
            "sampling_params": params,
            "limits": Limits(
                max_sampled_tokens=call.sampled_limit or None,
                max_response_tokens=params.get("max_new_tokens"),
                context_window_limit=call.context_limit,
            ),
            "return_prompt_logprobs": False,  # slime gets 0.0 where no loss is
            "chat_template_kwargs": {
                **(getattr(args, "apply_chat_template_kwargs", None) or {}),
                **(getattr(call.sample, "apply_chat_template_kwargs", None) or {}),
            },
            "return_routed_experts": call.experts_shape is not None,
            "require_routed_experts": True,
            "return_sampling_mask": call.keeps_top_p,
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


def _collect(call: RolloutCall, episode: Episode, result: StepResult) -> SlimeRollout:
    """A rollout that ended: its samples, checked for the fields slime needs, and the pixels of their images."""
    index = call.sample.index
    samples = samples_from_step(
        result,
        rollout_id=None if index is None else str(index),  # None: a random one
        experts_shape=call.experts_shape,
        placement=None,
    )
    sampled = sum(sample.trained_tokens for sample in samples)
    if samples and not call.fanout:  # one sample stands for the rollout, so it trains all that was sampled on it
        main = result.main_trajectory  # of the final answer; a sample holds the very array of its trajectory
        of_main = (each for each in samples if main is not None and each.token_ids is main.tokens.token_ids_array)
        samples = [with_all_sampled_tokens(next(of_main, samples[-1]))]
    exported = sum(sample.trained_tokens for sample in samples)
    if exported < sampled and not call.evaluation:
        warn_once(
            "fanout=<False> | a rollout has several paths and only its last is trained: name reward_post_process in "
            "--custom-reward-post-process-path, or set strands_env_fanout; log_rollout gives the share of sampled "
            "tokens that is lost (untrained/other_paths)"
        )
    if call.partial and getattr(call.args, "mask_offpolicy_in_partial_rollout", False):
        samples = [episode.take_loss_off_policy(sample) for sample in samples]
    trained = sum(sample.trained_tokens for sample in samples)
    pixels: list[Any] = []
    error = None
    try:
        pixels = _check_and_process(call, episode, result, samples)
    except SlimeConfigError:
        raise
    except (TimeoutError, ValueError) as problem:
        error = problem
    counts = {"sampled": sampled, "other_paths": sampled - exported, "off_policy": exported - trained}
    return SlimeRollout(
        samples=samples, result=result, error=error, episode=episode, pixels=pixels, token_counts=counts
    )


def _check_and_process(
    call: RolloutCall, episode: Episode, result: StepResult, samples: Sequence[TrainingSample]
) -> list[Any]:
    """Check the samples that slime trains, and process their images: tensors for each sample, None without images.

    Raises:
        SlimeConfigError: There are images, and nothing processes them.
        InvalidSampleError: A sample lacks something that the trainer needs.
        TimeoutError: The step ran out of time, and some of it passed while the rollout was suspended.
    """
    expander = image_expander(call)
    if expander is None and any(sample.media for sample in samples):
        raise SlimeConfigError(
            f"rollout {samples[0].rollout_id!r} has images, and nothing gives them to the trainer: {NO_PROCESSOR}"
        )
    if result.outcome is not Outcome.POLICY:
        return []  # it is not trained
    if episode.suspensions and result.termination_reason is TerminationReason.TIMEOUT:
        # The clock of the step ran on while the rollout was suspended: that time is not the policy's.
        raise TimeoutError("the deadline of the step passed, and the rollout was suspended meanwhile")
    if not any(map(len, samples)):
        return []  # the policy's outcome before the first token
    for sample in samples:
        check_tokens(call, sample)
    return [image_tensors(sample, expander) if sample.media and expander is not None else None for sample in samples]
