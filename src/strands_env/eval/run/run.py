"""One run of an evaluator: a fixed set of workers between a stream of tasks and the results file."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any, NamedTuple

from strands_env.core import Action, Outcome, StepResult, TerminationReason
from strands_env.core.garbage import rare_collections
from strands_env.core.seeds import FIELD as SEED_FIELD
from strands_env.core.threads import short_turns
from strands_env.eval.errors import ConfigMismatchError, EvalError, SameFailureError, StoreError, TooManyFailuresError
from strands_env.eval.options import EvalOptions
from strands_env.eval.run.progress import GuardedProgress, Progress, ProgressState
from strands_env.eval.run.sampling import SampleRunner, fixed_seed
from strands_env.eval.run.tasks import (
    NamedTask,
    TaskNamer,
    Tasks,
    copy_of,
    sample_id,
    sample_seed,
    stream,
    with_context,
)
from strands_env.eval.sample import EvalSample
from strands_env.eval.store import Entry, LazySamples, ResultLog, ResultReader, ResultWriter, RunConfig, StorePaths

logger = logging.getLogger(__name__)

# Seconds after which the wall time is saved first, and then at most between two times.
TIME_SAVED_FROM, TIME_SAVED_EVERY = 1.0, 30.0
SHOWN_EVERY = 1.0  # seconds after which a display is told of a run in which nothing ended
# Jobs of a list that wait for a worker, at most. More are read when half of them are gone: each reading costs a turn of
# the event loop. Any other source is read one job ahead.
READ_AHEAD = 64
PASSED_AT_ONCE = 64  # finished samples that a resumed run passes over before it lets others have the event loop


class CollectedResults(dict[str, Sequence[EvalSample]]):
    """Samples by prompt id; shown in one line."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(prompts={len(self)}, samples={sum(map(len, self.values()))})"


class Job(NamedTuple):
    """A sample to run."""

    prompt: NamedTask
    index: int  # type: ignore[assignment]  # the field, not the method of tuples
    id: str


class Run:
    """State of one `Evaluator.run`."""

    def __init__(
        self,
        options: EvalOptions,
        tasks: Tasks,
        count: int | None,
        config: RunConfig,
        *,
        name: str,
        displays: Sequence[Progress],
    ) -> None:
        self._options = options
        self._paths = None if options.output_path is None else StorePaths.of(options.output_path)
        self._tasks = tasks
        self._config = config
        self._seed = secrets.randbits(48) if options.sampling_seed is None else options.sampling_seed
        self._writer: ResultWriter | None = None
        self.state = ProgressState(name=name)
        self._progress = GuardedProgress(*displays)
        self._results: dict[str, list[EvalSample | Entry | None]] = {}  # by prompt and index
        self.namer = TaskNamer()
        self._same_failures: tuple[str, int] | None = ("", 0)  # of the first samples; None once one went otherwise
        self._has_said_no_tokens = False
        self._time_due = TIME_SAVED_FROM
        self._checked = 0
        self._reader: asyncio.Task[None] | None = None
        self._queue: asyncio.Queue[Job | None] = asyncio.Queue()
        self._read_ahead = READ_AHEAD if isinstance(tasks, list | tuple) else 1
        self._is_wanted = asyncio.Event()  # another job
        if count is not None:
            self.state.total = count * options.n_samples_per_prompt
            config.about["tasks"] = count

    def stop(self) -> None:
        """Take no new samples, nor wait for the next task, however long its source blocks."""
        self.state.stopping = True
        if self._reader is not None:
            self._reader.cancel()
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(None)
        self._show()

    async def run(self, sampler: SampleRunner) -> CollectedResults:
        """Run everything that is not done yet; all samples by prompt id."""
        self._describe = getattr(sampler.executor, "describe", None)
        async with AsyncExitStack() as ending:  # each part of it whatever the others raise
            ending.callback(self._forget_owners)
            ending.callback(self._progress, "finish", self.state)
            ending.enter_context(rare_collections())
            await self._open_log(ending)
            if self._config.environment is not None and not self._config.environment.get("task"):
                await self._compare_environment(None)
            self._progress("start", self.state)
            ending.callback(asyncio.create_task(self._keep_showing()).cancel)
            try:
                async with asyncio.TaskGroup() as group:
                    if not self.state.stopping:
                        self._reader = group.create_task(self._feed(group, sampler))
            except BaseExceptionGroup as failures:
                # The first of them as it is, not in the group; its own cause stays.
                first: BaseException = failures
                while isinstance(first, BaseExceptionGroup):
                    first = first.exceptions[0]
                raise first from first.__cause__
        if self.state.total == 0:  # no error: what a program leaves over for a run may be nothing
            logger.warning("benchmark=<%s> | there are no tasks: nothing was run", self.state.name)
        return self._collect()

    def _forget_owners(self) -> None:
        """No cycle leads to the samples, which are freed when the caller drops them: core/garbage.py."""
        self._writer = self._describe = None

    def _collect(self) -> CollectedResults:
        reader: ResultReader | None = None
        collected = CollectedResults()
        for prompt_id, items in self._results.items():
            present: Any = [item for item in items if item is not None]
            if Entry in map(type, present):
                assert self._paths is not None
                reader = reader or ResultReader(self._paths.results)
                present = LazySamples(present, reader, with_tokens=self._options.keep_tokens)
            collected[prompt_id] = present
        return collected

    async def _open_log(self, ending: AsyncExitStack) -> None:
        paths = self._paths
        if paths is None:
            return
        log = await asyncio.to_thread(ResultLog, paths, fsync_interval=self._options.fsync_interval)
        ending.enter_context(short_turns())  # the writer's thread has five for each batch
        self._writer = ResultWriter(log, self._count_saved)
        ending.push_async_callback(self._writer.close)
        await self._writer.run(lambda: self._config.check(has_results=len(log) > 0))
        recorded, now = (self._config.environment or {}).get("sampling_seed"), self._options.sampling_seed
        if now is None and recorded is not None:
            self._seed = now = recorded
        if recorded not in (None, now):
            raise ConfigMismatchError(str(paths.run), (f"sampling_seed: {recorded} in the file, now {now}",))
        ending.push_async_callback(self._save_time, self._writer)
        if len(log):
            # A warning: without `output_path` two programs in one folder share a file, and nobody asked for that.
            logger.warning("path=<%s>, samples=<%d> | continuing a saved run", paths.results, len(log))

    async def check_environment(self, description: dict[str, Any]) -> None:
        """Compare an environment with the one of the saved results, before a sample of it is saved."""
        if wrong := fixed_seed(description.get("model"), self._options.n_samples_per_prompt):
            raise EvalError(wrong)
        if (description.get("model") or {}).get("seeded"):
            description = {**description, "sampling_seed": self._seed}
        if self._writer is not None:
            await self._writer.run(lambda: self._config.check_environment(description))

    async def _compare_environment(self, action: Action | None) -> None:
        """Compare one that is only made, for there may be no sample left to run."""
        if self._describe is not None and (description := await self._describe(action)) is not None:
            await self.check_environment(description)

    # ---- the stream of jobs ------------------------------------------------------------------------------------------

    async def _jobs(self) -> AsyncGenerator[Job, None]:
        """Samples that are not done, in the order of the data set; those that are go into the results on the way."""
        namer = self.namer
        prompts = passed = 0
        # If the saved environment was made for one task, all earlier samples wait until the environment of that same
        # task has been made again and compared; in the data this is one of the first.
        sample = str(((self._config.environment or {}).get("task") or {}).get("id", ""))
        recorded, _, recorded_index = sample.rpartition("_")
        last_waiting = -1 if self._writer is None else self._writer.log.place_of(recorded)
        config_digest, find = self._config.digest.encode(), None if self._writer is None else self._writer.log.find
        indices = range(self._options.n_samples_per_prompt)
        waiting: list[Job] = []
        async with aclosing(stream(self._tasks)) as actions:
            async for action in actions:
                prompt = namer.name(action)
                prompts += 1
                self._check_task(prompt)
                if self._options.keep_results:
                    # A place for each, for samples finish in any order and results keep that of their index.
                    self._results[prompt.id] = [None] * len(indices)
                if prompt.id == recorded:
                    seed = {SEED_FIELD: sample_seed(self._seed, prompt, int(recorded_index))}
                    await self._compare_environment(copy_of(with_context(prompt.action, id=sample, **seed)))
                for index in indices:
                    name = sample_id(config_digest, prompt, index)
                    if find is not None and self._is_done(prompt.id, index, find(name)):
                        passed += 1
                        if passed % PASSED_AT_ONCE == 0:
                            await asyncio.sleep(0)
                    else:
                        waiting.append(Job(prompt, index, name))
                if waiting and prompt.place >= last_waiting:
                    for job in waiting:
                        yield job
                    waiting.clear()
        for job in waiting:
            yield job
        self.state.total = prompts * self._options.n_samples_per_prompt  # now known, whatever was said before

    def _check_task(self, prompt: NamedTask) -> None:
        if self._writer is None:
            return
        digest = self._writer.log.tasks.get(prompt.id)
        if digest is not None and digest != prompt.digest:
            raise ConfigMismatchError(
                str(self._writer.log.paths.results),
                (f"task {prompt.id!r}: its message, ground truth or context is another than in the file",),
            )

    def _is_done(self, prompt_id: str, index: int, stored: Entry | None) -> bool:
        if stored is None or stored.aborted:
            return False
        self.state.resumed += 1
        if self._options.keep_results:
            self._results[prompt_id][index] = stored
        if stored.reward is not None:
            self.state.scored += 1
            self.state.reward_sum += stored.reward
        return True

    # ---- workers -----------------------------------------------------------------------------------------------------

    async def _feed(self, group: asyncio.TaskGroup, sampler: SampleRunner) -> None:
        workers = 0
        async with aclosing(self._jobs()) as jobs:
            async for job in jobs:
                self._queue.put_nowait(job)
                # A worker for each place, not a task for each sample: a data set may be endless.
                if workers < self._options.max_concurrency:
                    group.create_task(self._work(sampler))
                    workers += 1
                if self._queue.qsize() >= self._read_ahead:
                    self._is_wanted.clear()
                    await self._is_wanted.wait()
        self._queue.put_nowait(None)  # behind the last

    async def _work(self, sampler: SampleRunner) -> None:
        while (job := await self._queue.get()) is not None:
            if self._queue.qsize() <= self._read_ahead // 2:
                self._is_wanted.set()
            prompt, index = job.prompt, job.index
            self.state.running += 1
            try:
                sample = await sampler.sample(
                    with_context(prompt.action, id=f"{prompt.id}_{index}"),
                    self._count_retry,
                    seed=sample_seed(self._seed, prompt, index),
                    id=job.id,
                    prompt_id=prompt.id,
                    task_digest=prompt.digest,
                    index=index,
                    place=prompt.place,
                )
                described = getattr(sampler.executor, "environments", ())  # those that it made elsewhere
                while self._checked < len(described):
                    checked = self._checked + 1
                    await self.check_environment(described[self._checked])
                    self._checked = max(self._checked, checked)  # another worker may have checked it meanwhile
                await self._finish(sample)
            finally:
                self.state.running -= 1
            if not self._queue.empty():  # an environment that never waits shares the event loop all the same
                await asyncio.sleep(0)
        if self._queue.empty():
            self._queue.put_nowait(None)  # for the next worker

    def _count_retry(self) -> None:
        self.state.retries += 1
        self._show()

    async def _finish(self, sample: EvalSample) -> None:
        # Saved before it may end the run: what was paid for is kept, whatever the limits say of it.
        if self._options.keep_results:
            self._results[sample.prompt_id][sample.index] = sample
        if self._options.keep_tokens and not self._has_said_no_tokens:
            self._check_tokens(sample)
        self.state.count(sample)
        self.state.finished += 1
        self.state.busy_s += sample.duration_s
        if self._writer is not None:
            await self._writer.append(sample)
            if (elapsed := self.state.elapsed) >= self._time_due:  # a killed run does not get to its end
                self._time_due = elapsed + min(max(elapsed, TIME_SAVED_FROM), TIME_SAVED_EVERY)
                await self._save_time(self._writer)
        else:
            self._count_saved(1)
        if sample.aborted:
            self.state.lost += 1
            self.state.last_loss = str(sample.step_result.end)
            limit = self._options.max_failures
            if limit is not None and self.state.lost > limit:
                raise TooManyFailuresError(self.state.lost, limit, self.state.last_loss)
        self._count_same(sample.step_result)

    async def _save_time(self, writer: ResultWriter) -> None:
        """Save the time spent so far, and the number of tasks as far as it is known."""
        if self.state.total is not None:
            self._config.about["tasks"] = self.state.total // self._options.n_samples_per_prompt
        try:
            await writer.run(partial(self._config.spend, self.state.elapsed))
        except StoreError as error:
            logger.warning("error=<%s> | the wall time of the run is not saved", error)

    def _check_tokens(self, sample: EvalSample) -> None:
        result = sample.step_result
        if result.reward is not None and result.observation.tokens is None and not result.trajectories:
            self._has_said_no_tokens = True
            logger.warning(
                "prompt=<%s> | keep_tokens=True, but a scored sample has no tokens: its model provider records none "
                "(SGLangModel does), so none are saved",
                sample.prompt_id,
            )

    def _count_same(self, result: StepResult) -> None:
        limit = self._options.max_same_failures
        if limit is None or self._same_failures is None:
            return
        (first_kind, times), self._same_failures = self._same_failures, None
        end, text = result.end, str(result.end)
        kind = re.sub(r"[0-9a-fA-F]*\d[0-9a-fA-F]*", "#", text)  # without what differs from sample to sample
        # A deadline depends on the sampled text.
        is_policys = end.reason.outcome(end.error) is Outcome.POLICY  # such as what the evaluator refused
        if is_policys or end.reason is TerminationReason.TIMEOUT or (times and kind != first_kind):
            return
        # Counted from the first sample on: after one success the cause is not the set-up.
        self._same_failures = (kind, times + 1)
        if times + 1 >= limit:
            raise SameFailureError(times + 1, text)

    def _count_saved(self, samples: int) -> None:
        self.state.done += samples
        self._show()

    async def _keep_showing(self) -> None:
        """The first sample may take minutes."""
        while True:
            await asyncio.sleep(SHOWN_EVERY)
            self._show()

    def _show(self) -> None:
        self._progress("update", self.state)
