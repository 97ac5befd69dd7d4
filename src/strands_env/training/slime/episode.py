"""One rollout as a separate task, so that it can outlive slime's call: its start, its abort, its suspension."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from strands_env.core import StepResult
from strands_env.training.sample import TrainingSample
from strands_env.training.slime.backend import RolloutBackend, RolloutControl, sampling_mask_of_path
from strands_env.training.slime.prompt import Pictures, prompt_of
from strands_env.training.slime.settings import Call, SlimeConfigError

logger = logging.getLogger(__name__)

_WRONG_CONFIGURATION = (TypeError, ValueError, AttributeError, KeyError, ImportError)


# ---- its start ------------------------------------------------------------------------------------------------------


def resumed(call: Call) -> Episode | None:
    """The rollout that waits for this call; none where it broke meanwhile, for then it starts over."""
    episode = SUSPENDED.take(call.key) if call.partial else None
    SUSPENDED.expire(call.settings.max_suspension)
    if episode is None or episode.has_failed:
        return None
    episode.control.is_aborted = lambda: call.is_stopping  # slime may have replaced its state
    episode.control.sample = call.sample
    return episode


async def started(call: Call) -> Episode:
    """A new rollout: the environment of the factory, on the prompt of the sample.

    Raises:
        SlimeConfigError: The prompt cannot be sent, or the factory makes no environment.
    """
    prompt = await prompt_of(call)
    control = RolloutControl(
        is_aborted=lambda: call.is_stopping,
        suspends=call.partial,
        sampled_limit=call.sampled_limit,
        sample=call.sample,
        trainer=call.trainer,
        records=[] if call.needs.top_p else None,
        successes=call.successes,
    )
    episode = Episode(task=None, control=control)  # type: ignore[arg-type]
    environment = call.settings.make_environment(
        model_factory=lambda: episode.make_model(call),
        args=call.args,
        sample=call.sample,
        evaluation=call.evaluation,
    )
    if prompt.system is not None:
        environment.system_prompt = prompt.system
    control.scores = getattr(environment, "reward_fn", None) is not None
    episode.task = asyncio.ensure_future(environment.rollout(prompt.action))
    return episode


def _model(call: Call, episode: Episode, tokenizer: Any) -> Any:
    from strands_sglang import SGLangModel, get_client_from_slime_args

    args, trainer, params, pictures = call.args, call.trainer, call.model_params, Pictures.of(call)
    client = RolloutBackend(
        get_client_from_slime_args(args, **call.settings.client_options),
        episode.control,
        None if pictures is None else pictures.expanded,
    )
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
        "return_sampling_mask": call.needs.top_p and trainer.server == "vllm",  # slime's own server needs no asking
        "routing_key": call.routing_key if getattr(args, trainer.policy, None) in trainer.by_key else None,
        **({} if pictures is None else {"processor": pictures.expander}),
        **call.settings.model_options,
    }
    return SGLangModel(tokenizer=tokenizer, client=client, tool_parser=call.settings.tool_parser or None, **options)


def router_model_factory(
    args: Any, name: str, *, tokenizer: Any, tool_parser: str | None = None, **options: Any
) -> Callable[[], Any]:
    """A factory of models behind one of slime's named routers (`--sglang-config`), for judges and simulated users.

    Their tokens belong to no rollout: the models are for reward functions and `Environment.interact`, not for the
    agent that is trained.

    Args:
        args: slime's, as factories of environments are given them.
        name: Name of the model in `--sglang-config`.
        tokenizer: Tokenizer of that model, or its path.
        tool_parser: Name of the tool parser; None chooses one that fits the chat template.
        **options: Options of `SGLangModel`.

    Raises:
        SlimeConfigError: slime has no router of that name.
    """
    from strands_sglang import SGLangModel, get_client, get_tokenizer

    server = "vllm" if hasattr(args, "vllm_router_ip") else "sglang"
    routers = getattr(args, f"{server}_model_routers", None) or {}
    if name not in routers:
        raise SlimeConfigError(
            f"slime has no router for the model {name!r}; --{server}-config names {sorted(routers)!r}"
        )
    host, port = routers[name]
    client = get_client(f"{'vllm+' if server == 'vllm' else ''}http://{host}:{port}")
    tokens = get_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    options = {"return_prompt_logprobs": False, **options}

    def factory() -> Any:
        return SGLangModel(tokenizer=tokens, client=client, tool_parser=tool_parser or None, **options)

    return factory


# ---- its life -------------------------------------------------------------------------------------------------------

POLL_SECONDS = 0.2
"""Interval at which the flag is read while rollouts run."""


class AbortWatch:
    """Sets `stopping` of every rollout it watches once slime is stopping; one task, whatever their number."""

    def __init__(self) -> None:
        self._watched: set[RolloutControl] = set()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def of_running_loop(cls) -> AbortWatch:
        """The watch of the running event loop."""
        return _WATCHES.setdefault(asyncio.get_running_loop(), cls())

    @contextmanager
    def watching(self, control: RolloutControl) -> Iterator[None]:
        """Watch a rollout for the length of a `with` block."""
        self._watched.add(control)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._poll())
        try:
            yield
        finally:
            self._watched.discard(control)
            if not self._watched and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _poll(self) -> None:
        while True:
            for control in tuple(self._watched):
                try:
                    if control.is_aborted():
                        control.stopping.set()
                except Exception as error:  # boundary: what one rollout cannot read must not keep others from stopping
                    logger.warning("error=<%r> | abort flag cannot be read", error)
            await asyncio.sleep(POLL_SECONDS)


_WATCHES: WeakKeyDictionary[asyncio.AbstractEventLoop, AbortWatch] = WeakKeyDictionary()


@dataclass(slots=True, kw_only=True, eq=False)
class Episode:
    """A rollout in progress.

    Attributes:
        task: Runs `Environment.rollout`.
        config_error: The reason why every rollout of this configuration fails, if one was found.
    """

    task: asyncio.Task[StepResult]
    control: RolloutControl
    config_error: Exception | None = None

    def make_model(self, call: Call) -> Any:
        """A model of this rollout. One that cannot be made for its options would fail in every rollout.

        Client and tokenizer are looked up when a model is made.
        """
        tokenizer = getattr(call.state, "tokenizer", None)
        if tokenizer is None:
            from strands_sglang import get_tokenizer

            tokenizer = get_tokenizer(call.args.hf_checkpoint)
        try:
            model = _model(call, self, tokenizer)
        except _WRONG_CONFIGURATION as error:
            self.config_error = SlimeConfigError(
                f"the model cannot be made with strands_env_tool_parser, strands_env_model_options, "
                f"strands_env_client_options and slime's own arguments: {error}"
            )
            self.config_error.__cause__ = error
            raise
        self.control.models.append(model)
        return model

    def completed(self, source: TrainingSample, call: Call) -> TrainingSample:
        """A sample with the top-p data that the trainer needs, and without loss on off-policy tokens if slime asks."""
        if not call.needs.top_p:
            source = replace(source, sampling_mask=None)
        elif source.sampling_mask is None and self.control.records:
            source = replace(source, sampling_mask=sampling_mask_of_path(source.token_ids, self.control.records))
        if call.partial and getattr(call.args, "mask_offpolicy_in_partial_rollout", False):
            mask = source.loss_mask.copy()
            mask[: self._off_policy(source)] = 0
            source = replace(source, loss_mask=mask)
        return source

    def _off_policy(self, source: TrainingSample) -> int:
        """Tokens up to the last that is older than a resumption, or that other weights sampled than the last ones.

        Weights change under a rollout where slime does not stop it for that (fully asynchronous).
        """
        held = max((_common_prefix(source.token_ids, ids) for ids in self.control.held), default=0)
        spans = [span for span in source.weight_versions if span.version is not None]
        older = max((span.end for span in spans if span.version != spans[-1].version), default=0)
        return max(held, older)

    @property
    def has_failed(self) -> bool:
        """It has ended in failure."""
        if not self.task.done():
            return False
        if self.task.cancelled() or self.task.exception() is not None:
            return True
        return self.task.result().termination_reason.is_failure

    async def run(self) -> StepResult | None:
        """Wait for the end; None when the rollout was suspended or stopped because slime is stopping.

        Cancelling this call ends the rollout, its cleanup included.
        """
        if self.control.suspensions:  # whatever is sampled by now is older than this call
            self.control.held.extend(
                list(path.token_ids) for model in self.control.models for path in model.trajectories
            )
        try:
            with AbortWatch.of_running_loop().watching(self.control):
                while not self.task.done():
                    if self.control.is_aborted():
                        await self._stop()
                        return None
                    self.control.go_on()
                    waiter = asyncio.ensure_future(self.control.stopping.wait())
                    try:
                        await asyncio.wait({self.task, waiter}, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        waiter.cancel()
        except asyncio.CancelledError:
            await self.cancel()
            raise
        return self.task.result()

    async def _stop(self) -> None:
        if not self.control.suspends:
            await self.cancel()
            return
        self.control.paused = True  # until slime asks for the rollout again, whatever its flag says until then
        self.control.suspensions += 1

    async def cancel(self) -> None:
        """End the rollout; its environment cleans up."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def _common_prefix(one: Any, other: Sequence[int]) -> int:
    length = min(len(one), len(other))
    different = np.flatnonzero(np.asarray(one[:length]) != np.asarray(other[:length]))
    return int(different[0]) if len(different) else length


# ---- rollouts that wait to be resumed -----------------------------------------------------------------------------

MAX_SUSPENDED = 4096
"""Suspended rollouts that are kept; beyond that the oldest are ended."""

EXIT_SECONDS = 30.0
"""Longest wait at exit for their cleanups."""


class SuspendedEpisodes:
    """Rollouts that wait, by the key of their sample, the longest waiting first."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Any, tuple[Episode, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, key: Any, episode: Episode) -> None:
        """Keep a rollout; another one of that key is ended, and the oldest if there are too many."""
        if earlier := self._waiting.pop(key, None):
            _end(earlier[0])
        self._waiting[key] = (episode, time.monotonic())
        while len(self._waiting) > MAX_SUSPENDED:
            self._drop_oldest("there are too many")

    def take(self, key: Any) -> Episode | None:
        """Remove and return the rollout of that key; one of another event loop is ended there, and None returned."""
        episode, _ = self._waiting.pop(key, (None, 0.0))
        if episode is None or episode.task.get_loop() is asyncio.get_running_loop():
            return episode
        _end(episode)
        return None

    def expire(self, seconds: float) -> None:
        """End what has waited for longer; 0 for no limit."""
        while seconds and self._waiting and time.monotonic() - next(iter(self._waiting.values()))[1] > seconds:
            self._drop_oldest(f"it waited for more than {seconds:g} s (strands_env_max_suspension)")

    async def close(self) -> None:
        """End all, and wait for their cleanups."""
        ends = [asyncio.wrap_future(end) for end in self._end_all()]
        await asyncio.gather(*ends, return_exceptions=True)

    def close_at_exit(self) -> None:
        """End those whose event loops run in other threads, and wait for their cleanups for a while."""
        concurrent.futures.wait(list(self._end_all()), timeout=EXIT_SECONDS)

    def _drop_oldest(self, reason: str) -> None:
        key, (episode, _) = self._waiting.popitem(last=False)
        logger.warning("sample=<%s> | suspended rollout ended, %s", key, reason)
        _end(episode)

    def _end_all(self) -> Iterator[concurrent.futures.Future[None]]:
        while self._waiting:
            episode, _ = self._waiting.popitem()[1]
            loop = episode.task.get_loop()
            if loop.is_running():
                yield asyncio.run_coroutine_threadsafe(episode.cancel(), loop)


def _end(episode: Episode) -> None:
    """Cancel a rollout on its own event loop, unless that is closed."""
    with contextlib.suppress(RuntimeError):
        episode.task.get_loop().call_soon_threadsafe(episode.task.cancel)


SUSPENDED = SuspendedEpisodes()
"""The suspended rollouts of this process."""

atexit.register(SUSPENDED.close_at_exit)


async def close() -> None:
    """End the rollouts that wait for slime to resume them (`--partial-rollout`), their cleanups included."""
    await SUSPENDED.close()
