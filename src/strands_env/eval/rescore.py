"""Rescoring: another reward for saved rollouts, as a new run. Nothing is sampled again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from strands_env.core import Environment, ErrorRecord, Phase, RewardResult, TerminationReason
from strands_env.core.jsonable import name_of
from strands_env.core.rollout import EnvFactory, make_environment, takes_action
from strands_env.eval.run.progress import GuardedProgress, Progress, ProgressState
from strands_env.eval.sample import EvalSample
from strands_env.eval.saved import SavedRun
from strands_env.eval.store import ResultLog, ResultReader, ResultWriter, RunConfig, StorePaths

PREVIOUS = "previous_reward"  # key of the old reward in the info of a new one


@dataclass(slots=True, kw_only=True)
class Rescored:
    """The outcome of rescoring.

    Attributes:
        changed: Samples with another reward, or with one where there was none, or the other way round.
        failed: Samples that the new reward could not score; `error` is its first error.
    """

    samples: int = 0
    changed: int = 0
    failed: int = 0
    error: ErrorRecord | None = None

    def add(self, before: EvalSample, after: EvalSample) -> None:
        """Count a sample."""
        self.samples += 1
        self.changed += before.reward != after.reward
        error = after.step_result.error
        if error is not None and error.where is Phase.REWARD and not after.aborted:
            self.failed += 1
            self.error = self.error or error


async def rescore(
    source: SavedRun,
    target: StorePaths,
    env_factory: EnvFactory,
    *,
    reward: str | None = None,
    max_concurrency: int = 10,
    progress: Progress | None = None,
) -> Rescored:
    """Score every sample of a saved run again; each keeps its old reward as `info["previous_reward"]`.

    Args:
        target: The files of the new run. A run that is given up leaves a part of it there.
        reward: The name of the reward for the configuration; that of the factory's if None.
    """
    display, outcome = GuardedProgress(progress), Rescored()
    name = reward or name_of(getattr(env_factory, "reward_fn", None) or env_factory)
    # The old digest is part of the new configuration: a resume of the old run must not take these scores for its own.
    config = {**source.config, "rescored": {"of": source.document.get("digest"), "reward": name}}
    about = {**source.about, "rescored": {"from": str(source.paths.results), "reward": name}}
    run = RunConfig(target.run, config, about)
    if source.environment:
        run.environment = {**source.environment, "reward_fn": name}
        for part in ("reward", "task"):  # of the reward it was sampled with
            run.environment.pop(part, None)
    with_action = takes_action(env_factory)
    with ResultReader(source.paths.results) as reader:
        state = ProgressState(name=f"rescore {source.name}", total=len(reader.entries))
        writer = ResultWriter(ResultLog(target))
        samples = (reader.read(entry, with_tokens=True) for entry in reader.entries)

        async def work() -> None:
            for sample in samples:
                scored = sample if sample.aborted else await _score_again(sample, env_factory, with_action)
                outcome.add(sample, scored)
                state.done += 1
                state.count(scored)
                await writer.append(scored)
                display("update", state)

        display("start", state)
        try:
            await writer.run(lambda: run.check(has_results=False))
            async with asyncio.TaskGroup() as group:
                for _ in range(max_concurrency):
                    group.create_task(work())
        finally:
            await writer.close()
            display("finish", state)
    return outcome


def remove_score(sample: EvalSample) -> EvalSample:
    """A copy of a sample as it was before it was scored."""
    result = sample.step_result.model_copy(update={"reward": None})
    result.observation = result.observation.model_copy(update={"metrics": dict(result.observation.metrics)})
    ended, error = (result.observation.metrics.pop(f"loop_{name}", None) for name in ("termination_reason", "error"))
    if result.error is not None and result.error.where is Phase.REWARD:
        result.error = None if error is None else ErrorRecord(**{**error, "where": Phase(error["where"])})
        result.termination_reason = TerminationReason(ended or TerminationReason.TASK_COMPLETE)
    return sample.model_copy(update={"step_result": result})


async def _score_again(sample: EvalSample, env_factory: EnvFactory, with_action: bool) -> EvalSample:
    scored = remove_score(sample)
    action = scored.action.model_copy(deep=True)
    env: Environment = await make_environment(env_factory, action, with_action)
    await env.score(action, scored.step_result)
    reward = scored.step_result.reward
    if isinstance(reward, RewardResult):
        scored.step_result.reward = reward.model_copy(update={"info": {**reward.info, PREVIOUS: sample.reward}})
    return scored
