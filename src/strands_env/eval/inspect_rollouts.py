"""`inspect eval ... -M results=FOLDER`: rollouts of our provider as a run for `strands-env export` and `report`.

inspect loads this module where it looks for model providers.
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import cache
from pathlib import Path
from typing import cast

from inspect_ai.hooks import Hooks, SampleEnd, hooks
from inspect_ai.log import EvalSample as InspectSample
from inspect_ai.log import transcript
from strands.models import Model

from strands_env.core import (
    Action,
    End,
    ErrorRecord,
    Observation,
    Phase,
    StepResult,
    TaskContext,
    TerminationReason,
)
from strands_env.core.loop_records import TrackedModel, decide_training, trajectories_of_step
from strands_env.environments.inspect.inspect_env import LIMITS, read_scores
from strands_env.environments.inspect.inspect_provider import Seat, to_be_saved, when_saved
from strands_env.eval.sample import EvalSample
from strands_env.eval.store.config import StorePaths
from strands_env.eval.store.results import ResultLog
from strands_sglang.conversation.messages import to_strands

R = TerminationReason
_STOPS = {"max_tokens": R.MAX_TOKENS_REACHED, "model_length": R.CONTEXT_WINDOW_OVERFLOW}


class SavedRollouts(Hooks):  # type: ignore[misc]
    """Appends each finished sample to its run."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def on_sample_end(self, data: SampleEnd) -> None:
        """Save a sample whose provider was told where."""
        if (found := to_be_saved.pop(transcript(), None)) is None:
            return
        seat, folder = found
        sample = saved_sample(seat, data.sample)
        async with self._lock:  # one log of a file at a time
            await asyncio.to_thread(_append, Path(folder), sample)


@cache
def _register() -> None:
    hooks(name="strands_rollout", description="Saves rollouts of strands-rollout models where -M results= says.")(
        SavedRollouts
    )


when_saved.append(_register)  # not before: inspect prints a banner with the hooks there are, in every run


def _append(folder: Path, sample: EvalSample) -> None:
    log = ResultLog(StorePaths.of(folder))
    try:
        log.append([sample])
    finally:
        log.close()


def saved_sample(seat: Seat, sample: InspectSample) -> EvalSample:
    """A finished sample of inspect as one of an evaluation of ours."""
    model = cast(Model, seat.conversation)  # a model of ours is its conversation
    models = [TrackedModel(model=model, agent_name="policy", trainable=True, is_main=True)]
    paths = trajectories_of_step(models)
    untrained = decide_training(paths, lambda path: path.trainable)
    messages = [] if seat.main is None else list(map(to_strands, seat.main.history))
    observation = Observation(
        messages=messages,
        tokens=models[0].observe(paths),
        metrics=untrained,
        system_prompt=None if seat.main is None else seat.main.system or None,
    )
    result = StepResult(observation=observation, trajectories=paths, end=_end_of(sample))
    if sample.error is None:
        try:
            result.reward = read_scores(sample.scores or {})
        except Exception as error:
            result.end = End(R.REWARD_ERROR, error=ErrorRecord.from_exception(error, Phase.REWARD))
    text = sample.input if isinstance(sample.input, str) else "\n\n".join(each.text for each in sample.input)
    name = str(sample.id)
    return EvalSample(
        action=Action(message=text, task_context=TaskContext(id=name, ground_truth=sample.target)),
        step_result=result,
        id=hashlib.blake2b(str(sample.uuid).encode(), digest_size=16).hexdigest(),
        prompt_id=name,
        index=sample.epoch - 1,
    )


def _end_of(sample: InspectSample) -> End:
    if sample.error is not None:
        error = RuntimeError(sample.error.message)
        return End(R.UNCLASSIFIED_ERROR, error=ErrorRecord.from_exception(error, Phase.LOOP))
    if sample.limit is not None:
        return End(LIMITS[sample.limit.type])
    stop = None if sample.output.empty else sample.output.stop_reason
    return End(_STOPS.get(stop or "", R.TASK_COMPLETE))
