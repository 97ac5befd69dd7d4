"""`generate`: the rollout function slime calls, from slime's sample to the filled one."""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
from typing import Any

from strands_env.core import StepResult
from strands_env.core.termination import ErrorRecord, Phase, TerminationReason
from strands_env.training.build import samples_from_step
from strands_env.training.export import with_all_sampled_tokens
from strands_env.training.slime.episode import SUSPENDED, Episode, resumed, started
from strands_env.training.slime.sample import write, write_aborted, write_unusable
from strands_env.training.slime.settings import (
    STREAK,
    Call,
    FailureStreakError,
    SlimeConfigError,
    is_swallowed,
    raise_in_the_run,
)

logger = logging.getLogger(__name__)

RETRY_PAUSE = 1.0
"""Seconds before the first further attempt of a rollout, twice as long before each next one."""


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
    sample = sample[0] if isinstance(sample, list) else sample  # a failed rollout of several, asked for again
    try:
        call = Call.of(args, sample, sampling_params, evaluation=evaluation, state=state)
        with STREAK.running(call):
            for attempt in range(1 + call.settings.retries):
                call.failures.clear()
                samples = await _run(call)
                failed = bool(call.failures) and call.failures[-1].is_worth_another_attempt
                if not failed or attempt == call.settings.retries or call.is_stopping:
                    break
                logger.warning(
                    "sample=<%s>, attempt=<%d>, error=<%s> | rollout failed, trying again",
                    getattr(sample, "index", None),
                    attempt + 1,
                    call.failures[-1].error.message,
                )
                await asyncio.sleep(RETRY_PAUSE * 2**attempt)
            call.count_failures()
            return samples
    except (SlimeConfigError, FailureStreakError) as error:
        if is_swallowed():
            return raise_in_the_run(sample, error)
        raise


async def _run(call: Call) -> Any:
    """One attempt: the rollout that waits for this call or a new one, to its end, into slime's sample."""
    episode = None
    try:
        episode = resumed(call) or await started(call)
        result = await episode.run()
        if episode.config_error is not None:
            raise episode.config_error
        if result is None:
            if call.partial:
                SUSPENDED.put(call.key, episode)
            return write_aborted(call, episode.control)
        if any(path.images for path in result.trajectories):
            return await asyncio.to_thread(_finished, call, episode, result)  # processes them for the trainer
        return _finished(call, episode, result)
    except (SlimeConfigError, FailureStreakError):
        raise
    except Exception as error:  # boundary: slime lets an exception of one rollout end the whole step
        index = getattr(call.sample, "index", None)
        logger.warning("sample=<%s>, error=<%s> | rollout failed", index, error, exc_info=True)
        record = ErrorRecord.from_exception(error, Phase.LOOP)
        control = None if episode is None else episode.control
        return write_unusable(call, control, None, record, TerminationReason.UNCLASSIFIED_ERROR)


def _finished(call: Call, episode: Episode, result: StepResult) -> Any:
    """The samples of a rollout that ended, well or not."""
    sources = samples_from_step(result, rollout_id=str(call.sample.index), experts_shape=call.needs.experts_shape)
    sampled = sum(source.trained_tokens for source in sources)
    if sources and not call.fanout:
        main = result.main_trajectory  # of the final answer; a sample holds the very array of its trajectory
        of_main = (each for each in sources if main is not None and each.token_ids is main.tokens.token_ids_array)
        sources = [with_all_sampled_tokens(next(of_main, sources[-1]))]
    exported = sum(source.trained_tokens for source in sources)
    if exported < sampled and not call.evaluation:
        _warn_of_other_paths()
    sources = [episode.completed(source, call) for source in sources]
    trained = sum(source.trained_tokens for source in sources)
    tokens = {"sampled": sampled, "other_paths": sampled - exported, "off_policy": exported - trained}
    return write(call, episode.control, result, sources, tokens)


@functools.cache
def _warn_of_other_paths() -> None:
    logger.warning(
        "fanout=<False> | a rollout has several paths and only its last is trained: name reward_post_process in "
        "--custom-reward-post-process-path, or set strands_env_fanout; log_rollout gives the share of sampled tokens "
        "that is lost (untrained/other_paths)"
    )
