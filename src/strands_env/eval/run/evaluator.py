"""`Evaluator`: runs an environment over a data set, and loses nothing."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Collection, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, ClassVar, Never

from strands_env.core import Action
from strands_env.core.jsonable import name_of
from strands_env.core.overrides import warn_of_misspelt_overrides
from strands_env.core.rollout import EnvFactory, LocalExecutor, takes_action
from strands_env.eval.metrics import MetricFunction, ScoreTable, flat_metrics
from strands_env.eval.run.groups import Grouping, GroupPolicy
from strands_env.eval.run.progress import Progress
from strands_env.eval.run.run import CollectedResults, Run
from strands_env.eval.run.sampling import Executor, RetryPolicy, SampleRunner, fixed_seed
from strands_env.eval.run.tasks import Tasks, catch_exits
from strands_env.eval.sample import EvalSample
from strands_env.eval.store import Entry, LazySamples, ResultReader, RunConfig, StorePaths
from strands_env.rewards.proof import RewardOf, RewardProof, gold_text, prove_reward, reward_of
from strands_sglang.exceptions import refuse_unknown

logger = logging.getLogger(__name__)


class Evaluator:
    """Evaluates an environment on the tasks of a data set.

    Subclass it for a benchmark: set `benchmark_name`, override `load_dataset`. Every finished sample is appended to
    `output_path`; a second run over the same data continues where the first ended, however it ended.

    Args:
        env_factory: Makes a fresh environment for every sample: sync or async, with the action as argument or without.
        n_samples_per_prompt: Samples of each task, the n of pass@k.
        max_concurrency: Rollouts at a time.
        keep_tokens: Keep token ids, masks and log-probabilities: in the samples, and in the results file.
        metrics_fns: Further metrics: functions of `{prompt id: [EvalSample, ...]}` that return `{name: number}`.
        metric_fns: Another name for `metrics_fns`.
        output_path: A `.jsonl` file, or a folder for `results.jsonl`, from which the next run continues. None keeps
            results in memory only.
        config: Fields that must match to resume: model, sampling parameters, environment. JSON values.
        about: Metadata saved beside the results, such as seeds and the command line.
        sampling_seed: Seed of the run, from which every sample gets its own; it reaches models of the embedded engine,
            and of `sglang_model_factory(seeded=True)`. Recorded where it was used. None draws one for a new run, so
            that two runs are independent, and takes the recorded one to continue.
        executor: Where rollouts run, instead of `env_factory` in this process; see `strands_env.distributed`.
        max_failures: Samples lost for good after which the run is given up; None for no limit.
        max_same_failures: The run is given up when this many first samples all fail in the same way, as with an
            environment that cannot be set up or a reward function that raises; None never.
        sample_timeout: Seconds for one rollout up to its cleanup, beside the environment's own deadlines. A rollout cut
            off in its loop has no tokens and, with a reward function, reward 0: prefer `step_timeout`.
        reward_threshold: A sample passes with at least this reward.
        keep_results: Keep samples in memory and return them; with False `run` returns `{}`, and results are read from
            the file, for runs of any size.
        fsync_interval: Seconds between forced writes to the device: 0 after every batch, None never.
        proof_seconds: Budget of `prove` before a run; 0 for no proof.

    Attributes:
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

    def __init__(
        self,
        env_factory: EnvFactory | None = None,
        *,
        n_samples_per_prompt: int = 1,
        max_concurrency: int = 10,
        keep_tokens: bool = False,
        metrics_fns: Sequence[MetricFunction] | None = None,
        metric_fns: Sequence[MetricFunction] | None = None,
        output_path: str | Path | None = "results.jsonl",
        config: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
        sampling_seed: int | None = None,
        executor: Executor | None = None,
        retry: RetryPolicy | None = None,
        group_policy: GroupPolicy | str = GroupPolicy.KEEP,
        max_failures: int | None = None,
        max_same_failures: int | None = 10,
        sample_timeout: float | None = None,
        reward_threshold: float = 1.0,
        keep_results: bool = True,
        fsync_interval: float | None = 0.0,
        progress: Progress | None = None,
        proof_seconds: float = 2.0,
        **unknown: Never,
    ) -> None:
        if unknown:
            if "save_interval" in unknown:  # of strands-env
                raise TypeError("Evaluator() has no save_interval: each sample is saved when it ends")
            names = inspect.signature(Evaluator.__init__).parameters.keys() - {"self", "unknown"}
            refuse_unknown(f"{type(self).__name__}()", unknown, names)
        warn_of_misspelt_overrides(type(self), Evaluator, self._overrides)
        if env_factory is not None:
            takes_action(env_factory)  # refuses anything but a factory
        if (env_factory is None) == (executor is None):
            raise ValueError("give exactly one of env_factory (rollouts in this process) and executor (elsewhere)")
        if metrics_fns is not None and metric_fns is not None:
            raise ValueError("metrics_fns and metric_fns are two names of one option: give one of them")
        for name, value in (("n_samples_per_prompt", n_samples_per_prompt), ("max_concurrency", max_concurrency)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if max_failures is not None and max_failures < 0:
            raise ValueError(f"max_failures must be None or at least 0, got {max_failures!r}")
        if sample_timeout is not None and not sample_timeout > 0:
            raise ValueError(f"sample_timeout must be a positive number of seconds or None, got {sample_timeout!r}")
        if sampling_seed is not None and (type(sampling_seed) is not int or abs(sampling_seed) >= 2**63):
            raise ValueError(f"sampling_seed must be None or an integer of at most 63 bits, got {sampling_seed!r}")
        if not 0 <= proof_seconds < math.inf:
            raise ValueError(f"proof_seconds must be a number of seconds, 0 for no proof, got {proof_seconds!r}")
        if wrong := fixed_seed((config or {}).get("model"), n_samples_per_prompt):
            raise ValueError(wrong)
        if not keep_results and output_path is None:
            raise ValueError("keep_results=False with output_path=None would keep results nowhere: give output_path")
        self.env_factory = env_factory
        self.executor = executor
        self.n_samples_per_prompt = n_samples_per_prompt
        self.max_concurrency = max_concurrency
        self.keep_tokens = keep_tokens
        for function in metrics_fns or metric_fns or ():
            if not callable(function):
                raise TypeError(f"metrics_fns must be functions of the results, got {function!r}")
        self.metrics_fns: list[MetricFunction] = list(metrics_fns or metric_fns or ())
        self.paths = None if output_path is None else StorePaths.of(output_path)
        self.config = dict(config or {})
        self.about = dict(about or {})
        self.sampling_seed = sampling_seed
        self.retry = retry or RetryPolicy()
        self.group_policy = GroupPolicy(group_policy)
        self.max_failures = max_failures
        self.max_same_failures = max_same_failures
        self.sample_timeout = sample_timeout
        self.reward_threshold = reward_threshold
        self.keep_results = keep_results
        self.fsync_interval = fsync_interval
        self.progress = progress
        self.proof_seconds = proof_seconds
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

    def count(self) -> int | None:
        """Number of tasks of `load_dataset`, for displays; None where only reading them would tell."""
        return None

    def validate_sample(self, sample: EvalSample) -> bool:
        """Accept or refuse a finished sample. Metrics leave a refused one out, and a resume tries it again."""
        return True

    def known_tasks(self) -> Sequence[Action]:
        """Tasks that can be read before the run at no cost, for the proof of the reward; by default none."""
        return ()

    # ---- running -----------------------------------------------------------------------------------------------------

    async def prove(self, actions: Tasks | None = None) -> RewardProof | None:
        """Prove the reward of `env_factory` on a sample of tasks, within `proof_seconds`; no model is asked.

        `run` does so first and warns of tasks that fail; the results are the same with and without. Tasks are those of
        a list, else `known_tasks()`. Not proven is a reward that asks a model, and where environments are made by an
        executor or each for its task.
        """
        if self.env_factory is None or not self.proof_seconds:
            return None
        given = actions if isinstance(actions, list | tuple) else self.known_tasks() if actions is None else ()
        tasks = [task for task in given if isinstance(task, Action)]
        if not any(map(gold_text, tasks)):
            return None
        try:
            reward_fn = await reward_of(self.env_factory)
            if reward_fn is not None and not isinstance(reward_fn, RewardOf):
                self.proof = await prove_reward(tasks, reward_fn, seconds=self.proof_seconds)
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
            known = len(tasks) if isinstance(tasks, Sized) else self.count() if actions is None else None
        if self.proof is None:
            await self.prove(tasks if isinstance(tasks, list | tuple) else actions)
        run = Run(self, tasks, known, self.run_config())
        executor = self.executor or LocalExecutor(self.env_factory, run.check_environment)  # type: ignore[arg-type]
        self._run = run
        try:
            self.results = await run.run(SampleRunner(evaluator=self, executor=executor))
        finally:
            self.lost, self.last_loss, self._run = run.state.lost, run.state.last_loss, None
            self._asked = run.namer.ids
            self.note = None
            if found := run.namer.renamed:
                names = ", ".join([*found[:3], *(("...",) if len(found) > 3 else ())])
                self.note = f"{len(found)} tasks have the id of another one, and count as {names}"
                logger.warning("benchmark=<%s> | %s", self.benchmark_name, self.note)
        return self.results

    def stop(self) -> None:
        """Take no new samples; `run` returns when those under way are finished. For a first Ctrl-C."""
        if self._run is not None:
            self._run.stop()

    async def evaluate_sample(self, action: Action) -> EvalSample:
        """Run one sample of one task, tried again as `retry` says; nothing is saved."""
        executor = self.executor or LocalExecutor(self.env_factory)  # type: ignore[arg-type]
        return await SampleRunner(evaluator=self, executor=executor).sample(action)

    # ---- results -----------------------------------------------------------------------------------------------------

    def run_config(self) -> RunConfig:
        """The configuration that identifies this evaluator's samples."""
        config: dict[str, Any] = {"benchmark": self.benchmark_name, "evaluator": name_of(type(self))}
        made_by = getattr(self.executor, "env_factory_name", None)
        if self.env_factory is not None or made_by is not None:
            config["env_factory"] = made_by or name_of(self.env_factory)
        about = {**self.about, **self._grouping.to_about()}
        return RunConfig(None if self.paths is None else self.paths.run, {**config, **self.config}, about)

    @property
    def _grouping(self) -> Grouping:
        return Grouping(policy=self.group_policy, n_samples=self.n_samples_per_prompt)

    def load_results(self) -> CollectedResults:
        """Samples in the results file by prompt id, read when they are used; none without a file; also in `results`.

        After a run only those that it asked for: the file may hold tasks and samples of others.
        """
        if self.paths is None or not self.paths.results.exists():
            return CollectedResults()
        found: dict[str, list[Entry]] = {}
        reader = ResultReader(self.paths.results)
        for entry in sorted(reader.entries, key=lambda entry: entry.index):
            if self._asked is None or (entry.prompt_id in self._asked and entry.index < self.n_samples_per_prompt):
                found.setdefault(entry.prompt_id, []).append(entry)
        self.results = CollectedResults(
            {name: LazySamples(items, reader, with_tokens=self.keep_tokens) for name, items in found.items()}
        )
        return self.results

    def compute_metrics(self, results: Mapping[str, Sequence[EvalSample]] | None = None) -> dict[str, float]:
        """Metrics as `{name: number}`; what rests on no scored sample is NaN.

        pass@k and pass^k for every k up to `n_samples_per_prompt`, the mean reward with its 95% interval, counts,
        tokens, and what `metrics_fns` return. Unscored samples, and prompts that `group_policy` leaves out (lost or
        missing samples), are counted and take no other part. Without `results` those of the last
        run count, or of the results file.
        """
        if results is None:
            results = self.results or self.load_results()
        table = self._grouping.apply(ScoreTable.from_results(results))
        metrics = flat_metrics(table, n=self.n_samples_per_prompt, reward_threshold=self.reward_threshold)
        without = [name for name, value in metrics.items() if name.startswith("pass@") and math.isnan(value)]
        if without and metrics["scored"]:
            logger.warning("metrics=<%s> | NaN, as no prompt has so many scored samples", ", ".join(without))
        plain = self._grouping.counting(results)
        for function in self.metrics_fns:
            metrics.update(function(plain))
        return metrics
