"""`Evaluator`: runs an environment over a data set, and loses nothing."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any, ClassVar

from strands_env.core import Action, ModelFactory
from strands_env.core.attempts import RetryPolicy
from strands_env.core.jsonable import name_of
from strands_env.core.overrides import warn_of_misspelt_overrides
from strands_env.core.rollout import EnvFactory, LocalExecutor, takes_action
from strands_env.eval.metrics import MetricFunction, ScoreTable, flat_metrics
from strands_env.eval.options import GROUPS, EvalOptions
from strands_env.eval.run.progress import Progress
from strands_env.eval.run.run import CollectedResults, Run
from strands_env.eval.run.sampling import Executor, SampleRunner, fixed_seed
from strands_env.eval.run.tasks import Tasks, catch_exits, with_names
from strands_env.eval.sample import EvalSample
from strands_env.eval.store import Entry, LazySamples, ResultReader, RunConfig, StorePaths
from strands_env.rewards.proof import RewardOf, RewardProof, prove_reward, reward_of
from strands_sglang.exceptions import refuse_unknown

logger = logging.getLogger(__name__)


class Evaluator:
    """Evaluates an environment on the tasks of a data set.

    Subclass it for a benchmark: set `benchmark_name`, override `load_dataset`. Every finished sample is appended to
    `output_path`; a second run over the same data continues where the first ended, however it ended.

    Args:
        env_factory: Makes a fresh environment for every sample: sync or async, with the action as argument or without.
        options: Options as one value; `settings` replace single ones.
        executor: Where rollouts run, instead of `env_factory` in this process; see `strands_env.eval.executors`.
        retry: Retries of samples lost to infrastructure; by default `max_attempts` with a growing pause.
        metrics_fns: Further metrics: functions of `{prompt id: [EvalSample, ...]}` that return `{name: number}`.
        metric_fns: Another name for `metrics_fns`.
        config: Fields that must match to resume: model, sampling parameters, environment. JSON values.
        about: Metadata saved beside the results, such as the command line.
        **settings: Options of the group `run` of `strands_env.eval.options.EvalOptions`, such as
            `n_samples_per_prompt`, `max_concurrency`, `keep_tokens`, `output_path`,
            `sampling_seed`, `reward_threshold`.

    Attributes:
        options: The options, all of them.
        proof: The result of the last `prove`; None where there was nothing to prove.
        lost: Number of samples that the last run asked for and did not get.
        last_loss: The reason the last of them was lost, in words; None without one.
        note: Tasks of the last run that share an id, in words; None where each has its own.

    Raises:
        TypeError: An unknown option, or an `env_factory` that cannot be called.
        ValueError: An option is out of range, or two contradict each other.
    """

    benchmark_name: str = ""
    _overrides: ClassVar[tuple[str, ...]] = ("load_dataset", "validate_sample", "compute_metrics")
    _groups: ClassVar[tuple[str, ...]] = ("run",)
    """Groups of options that the constructor takes."""

    def __init__(
        self,
        env_factory: EnvFactory | None = None,
        *,
        options: EvalOptions | None = None,
        executor: Executor | None = None,
        retry: RetryPolicy | None = None,
        metrics_fns: Sequence[MetricFunction] | None = None,
        metric_fns: Sequence[MetricFunction] | None = None,
        config: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        **settings: Any,
    ) -> None:
        if "save_interval" in settings:  # of strands-env
            raise TypeError("Evaluator() has no save_interval: each sample is saved when it ends")
        names = [name for group in self._groups for name in GROUPS[group]]
        own = inspect.signature(Evaluator.__init__).parameters.keys() - {"self", "settings"}
        refuse_unknown(f"{type(self).__name__}()", settings.keys() - names, {*names, *own})
        warn_of_misspelt_overrides(type(self), Evaluator, self._overrides)
        if env_factory is not None:
            takes_action(env_factory)  # refuses anything but a factory
        if (env_factory is None) == (executor is None):
            raise ValueError("give exactly one of env_factory (rollouts in this process) and executor (elsewhere)")
        if metrics_fns is not None and metric_fns is not None:
            raise ValueError("metrics_fns and metric_fns are two names of one option: give one of them")
        self.options = replace(options or EvalOptions(), **settings)
        if wrong := fixed_seed((config or {}).get("model"), self.options.n_samples_per_prompt):
            raise ValueError(wrong)
        self.env_factory = env_factory
        self.executor = executor
        self.retry = retry or RetryPolicy(max_attempts=self.options.max_attempts)
        self.metrics_fns: list[MetricFunction] = list(metrics_fns or metric_fns or ())
        for function in self.metrics_fns:
            if not callable(function):
                raise TypeError(f"metrics_fns must be functions of the results, got {function!r}")
        self.paths = None if self.options.output_path is None else StorePaths.of(self.options.output_path)
        self.config = dict(config or {})
        self.about = dict(about or {})
        self.displays = [] if progress is None else [progress]
        self.proof: RewardProof | None = None
        self.results = CollectedResults()
        self.lost = 0
        self.last_loss: str | None = None
        self.note: str | None = None
        self._run: Run | None = None
        self._asked: Collection[str] | None = None  # ids of the tasks of the last run

    # ---- what a subclass overrides -----------------------------------------------------------------------------------

    def load_dataset(self) -> Tasks:
        """The tasks of the benchmark, as an iterable or async iterable of actions, read as the run goes on."""
        raise NotImplementedError(f"{type(self).__name__} has no data set: override load_dataset(), or run(actions)")

    @classmethod
    def environment(cls, model_factory: ModelFactory, **options: Any) -> Callable[..., Any]:
        """The environment to evaluate a bare model with, when the user names none; there is none by default."""
        name = cls.benchmark_name or cls.__name__
        raise NotImplementedError(f"{name!r} has no environment of its own: name one (--env module:function)")

    def count(self) -> int | None:
        """Number of tasks of `load_dataset`, for displays; None where only reading them would tell."""
        return None

    def validate_sample(self, sample: EvalSample) -> bool:
        """Accept or refuse a finished sample. Metrics leave a refused one out, and a resume tries it again."""
        return True

    def known_tasks(self) -> Sequence[Action]:
        """Tasks that can be read before the run at no cost, for checks and the proof of the reward; by default none."""
        return ()

    # ---- running -----------------------------------------------------------------------------------------------------

    async def prove(self, actions: Tasks | None = None) -> RewardProof | None:
        """Prove the reward of `env_factory` on a sample of tasks, within `proof_seconds`; no model is asked.

        `run` does so first and warns of tasks that fail; the results are the same with and without. Tasks are those of
        a list, else `known_tasks()`. Not proven is a reward that asks a model, and where environments are made by an
        executor or each for its task.
        """
        if self.env_factory is None or not self.options.proof_seconds:
            return None
        listed_tasks: Any = actions if isinstance(actions, list | tuple) else ()
        if actions is None and self.options.data_path is not None:
            listed_tasks = self.known_tasks()
        tasks = [task for task in listed_tasks if isinstance(task, Action)]
        if all(task.task_context.ground_truth is None for task in tasks):
            return None
        try:
            reward_fn = await reward_of(self.env_factory)
            if reward_fn is not None and not isinstance(reward_fn, RewardOf):
                self.proof = await prove_reward(with_names(tasks), reward_fn, seconds=self.options.proof_seconds)
                self.proof.warn("found before the run")
        except Exception as error:  # whatever it is, the run says it where it matters
            logger.debug("error=<%s> | the reward is not proven", error, exc_info=True)
        return self.proof

    async def run(self, actions: Tasks | None = None) -> CollectedResults:
        """Evaluate tasks (`load_dataset()` by default), `n_samples_per_prompt` times each; all samples by prompt id.

        Samples that are in the results file already are taken from there. When the calling task is cancelled, running
        environments are cleaned up and everything finished is saved before the cancellation goes on.

        Raises:
            ConfigMismatchError: The results file holds samples of another configuration.
            StoreError: Results cannot be written.
            TooManyFailuresError: More than `max_failures` samples were lost for good.
            SameFailureError: The first `max_same_failures` samples failed alike.
        """
        if self._run is not None:
            raise RuntimeError("this evaluator is running already: make another one, with another output path")
        if isinstance(actions, Action):
            raise TypeError("run() takes several actions: write run([action])")
        with catch_exits():
            tasks = self.load_dataset() if actions is None else actions
            count = len(tasks) if isinstance(tasks, Sized) else self.count() if actions is None else None
        if self.proof is None:
            await self.prove(tasks if isinstance(tasks, list | tuple) else actions)
        run = Run(self.options, tasks, count, self.run_config(), name=self.benchmark_name, displays=self.displays)
        self._run = run
        try:
            self.results = await run.run(self._sampler(run.check_environment))
        finally:
            self.lost, self.last_loss, self._run = run.state.lost, run.state.last_loss, None
            self._asked = run.namer.ids
            self.note = None
            if renamed := run.namer.renamed:
                names = ", ".join([*renamed[:3], *(("...",) if len(renamed) > 3 else ())])
                self.note = f"{len(renamed)} tasks have the id of another one, and count as {names}"
                logger.warning("benchmark=<%s> | %s", self.benchmark_name, self.note)
        return self.results

    def stop(self) -> None:
        """Take no new samples; `run` returns when those under way are finished. For a first Ctrl-C."""
        if self._run is not None:
            self._run.stop()

    async def evaluate_sample(self, action: Action) -> EvalSample:
        """Run one sample of one task, tried again as `retry` says; nothing is saved."""
        return await self._sampler().sample(action)

    def _sampler(self, on_environment: Callable[[dict[str, Any]], Awaitable[None]] | None = None) -> SampleRunner:
        executor = self.executor
        if executor is None:
            assert self.env_factory is not None
            executor = LocalExecutor(self.env_factory, on_environment)
        return SampleRunner(
            executor=executor, options=self.options, retry=self.retry, validate_sample=self.validate_sample
        )

    # ---- results -----------------------------------------------------------------------------------------------------

    def run_config(self) -> RunConfig:
        """The configuration that identifies this evaluator's samples."""
        config: dict[str, Any] = {"benchmark": self.benchmark_name, "evaluator": name_of(type(self))}
        made_by = getattr(self.executor, "env_factory_name", None)
        if self.env_factory is not None or made_by is not None:
            config["env_factory"] = made_by or name_of(self.env_factory)
        about = {**self.about, "options": self.options.to_saved()}
        return RunConfig(None if self.paths is None else self.paths.run, {**config, **self.config}, about)

    def load_results(self) -> CollectedResults:
        """Samples in the results file by prompt id, read when they are used; none without a file; also in `results`.

        After a run only those that it asked for: the file may hold tasks and samples of others.
        """
        if self.paths is None or not self.paths.results.exists():
            return CollectedResults()
        entries: dict[str, list[Entry]] = {}
        reader = ResultReader(self.paths.results)
        task_ids, n_samples = self._asked, self.options.n_samples_per_prompt
        for entry in sorted(reader.entries, key=lambda entry: entry.index):
            if task_ids is None or (entry.prompt_id in task_ids and entry.index < n_samples):
                entries.setdefault(entry.prompt_id, []).append(entry)
        self.results = CollectedResults(
            {name: LazySamples(items, reader, with_tokens=self.options.keep_tokens) for name, items in entries.items()}
        )
        return self.results

    def compute_metrics(self, results: Mapping[str, Sequence[EvalSample]] | None = None) -> dict[str, float]:
        """Metrics as `{name: number}`; what rests on no scored sample is NaN.

        pass@k and pass^k for every k up to `n_samples_per_prompt`, the mean reward with its 95% interval, counts,
        tokens, and what `metrics_fns` return. Unscored samples are counted and take no other part. Without `results`
        those of the last run count, or of the results file.
        """
        if results is None:
            results = self.results or self.load_results()
        table = ScoreTable.from_results(results, self.options)
        metrics = flat_metrics(table)
        without = [name for name, value in metrics.items() if name.startswith("pass@") and math.isnan(value)]
        if without and metrics["scored"]:
            logger.warning("metrics=<%s> | NaN, as no prompt has so many scored samples", ", ".join(without))
        counting = {name: samples for name, samples in results.items() if samples}
        for function in self.metrics_fns:
            metrics.update(function(counting))
        return metrics
