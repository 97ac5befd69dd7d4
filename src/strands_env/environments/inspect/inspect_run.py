"""The one run of inspect_ai in this process: samples are added while it goes on, and each is an episode.

inspect evaluates once at a time in a process, so the samples of every environment are fed into one run, which begins
with the first episode and ends with the last that is under way. All of it is inspect's public interface: a `TaskSource`
of tasks, each with a `SampleSource`; a solver around the task's own; and a scorer that runs the task's own when the
reward is asked for, so that the sandbox of the sample lives until then.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import importlib
import logging
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import anyio
from inspect_ai import SampleSource, Task, TaskSource, enqueue_sample, enqueue_task, eval_async, task_with
from inspect_ai.dataset import Sample
from inspect_ai.event import SampleLimitEvent
from inspect_ai.log import EvalLog, EvalSample, transcript
from inspect_ai.model import Model, get_model, model_roles
from inspect_ai.model._model import init_model_roles
from inspect_ai.scorer import Score, Scorer, Target, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import LimitExceededError, registry_info, sandbox
from inspect_ai.util._display import display_type_initialized, init_display_type

from strands_env.core import ModelFactory
from strands_env.sandbox import SandboxLostError

from .inspect_provider import PROVIDER, Seat, current_seat, sampled_in

logger = logging.getLogger(__name__)

PROBE_SECONDS = 60
"""Time in which a sandbox has to answer, or is taken for lost."""
ENDING_SECONDS = 10
"""Time in which a run without episodes has to end."""
_KEY = "strands_rollout"


class InspectSampleError(RuntimeError):
    """inspect ended a sample with an error outside its solver and its scorers, or ended its run."""


@dataclass(slots=True, eq=False, kw_only=True)
class InspectEpisode:
    """A sample of a task, from its start to the end of its sandbox.

    Attributes:
        seat: The policy's place.
        grading: Makes the model that scorers ask for and nobody named; it is not trained.
        play: Runs in place of the task's solver; None for that.
        solved: Set when the solver has ended, with the limit that ended it, or None.
        state: The sample's state, once its solver has begun.
    """

    sample: Sample
    seat: Seat
    grading: Callable[[], Seat]
    play: Callable[[TaskState], Awaitable[TaskState]] | None = None
    state: TaskState | None = None
    solved: asyncio.Future[str | None] = field(init=False)
    scores: asyncio.Future[dict[str, Score]] = field(init=False)
    done: asyncio.Future[None] = field(init=False)
    _is_scored: asyncio.Future[bool] = field(init=False)
    _scope: anyio.CancelScope | None = None
    _is_stopped: bool = False

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.solved, self.scores = loop.create_future(), loop.create_future()
        self.done, self._is_scored = loop.create_future(), loop.create_future()

    def stop(self) -> None:
        """End the solver where it is."""
        self._is_stopped = True
        if self._scope is not None:
            self._scope.cancel()

    async def score(self) -> dict[str, Score]:
        """Have the task's scorers score the sample.

        Raises:
            Exception: Raised by a scorer.
        """
        _settle(self._is_scored, True)
        return await asyncio.shield(self.scores)

    async def close(self) -> None:
        """End the sample and its sandbox."""
        self.stop()
        _settle(self._is_scored, False)
        await asyncio.shield(self.done)

    # ---- inside the sample ------------------------------------------------

    async def solve(self, state: TaskState, own: Solver, generate: Generate) -> TaskState:
        """Run the solver."""
        self.state = state
        with anyio.CancelScope() as self._scope, sampled_in(lambda: self.seat):
            if self._is_stopped:
                self._scope.cancel()
            init_model_roles(_NamedRoles(model_roles()))
            try:
                self.state = await (own(state, generate) if self.play is None else self.play(state))
            except LimitExceededError:  # the sample is scored for what was done
                raise
            except Exception as error:
                self.end(error, is_over=False)
                raise
        return self.state

    async def grade(self, state: TaskState, target: Target, scorers: Mapping[str, Scorer]) -> None:
        """Report the end of the solver, and run the scorers once the reward is asked for."""
        self.state = state
        limits = [event.type for event in transcript().events if isinstance(event, SampleLimitEvent)]
        _settle(self.solved, limits[-1] if limits else None)
        if not await self._is_scored:
            return
        scores: dict[str, Score] = dict(state.scores or {})
        try:
            await _probe()
            with sampled_in(functools.cache(self.grading)):
                for name, score in scorers.items():
                    if (value := await score(state, target)) is not None:
                        scores[name] = value
        except Exception as failure:
            try:
                await _probe()
                _settle(self.scores, failure)
            except SandboxLostError as lost:
                _settle(self.scores, lost)
        else:
            _settle(self.scores, scores)

    def end(self, error: BaseException, *, is_over: bool = True) -> None:
        """Report the end of the sample, or of its solver, with the error that cut it short."""
        _settle(self.solved, error)
        _settle(self.scores, error)
        if is_over:
            _settle(self.done, None)


def _settle(future: asyncio.Future[Any], outcome: Any) -> None:
    """Give a future its outcome, unless it has one."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
        future.exception()  # nobody need ask for it
    else:
        future.set_result(outcome)


class _NamedRoles(dict[str, Any]):
    """The roles that have a model. In inspect another one is played by the policy itself, and would be trained."""

    def get(self, role: str, default: Any = None) -> Any:
        if role not in self:
            raise ValueError(f"the task asks for a model in the role {role!r}: name one, model_roles={{{role!r}: ...}}")
        return self[role]


async def _probe() -> None:
    """Raise `SandboxLostError` where the sample has a sandbox that does not answer."""
    try:
        box = sandbox()
    except Exception:  # inspect has no other way to say that there is none
        return
    try:
        await box.exec(["true"], timeout=PROBE_SECONDS)
    except Exception as error:
        raise SandboxLostError(f"the sandbox of the sample does not answer: {error}") from error


# ---- the run ---------------------------------------------------------------------------------------------------------


@solver
def rollout_solver(feed: Feed) -> Solver:
    """The task's own solver, or an episode's substitute."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        return await feed.episode(state).solve(state, feed.own_solver, generate)

    return solve


@scorer(metrics=[])
def rollout_scorer(feed: Feed) -> Scorer:
    """The task's own scorers, once an episode asks for them."""

    async def score(state: TaskState, target: Target) -> Score | None:
        await feed.episode(state).grade(state, target, feed.scorers)
        return None

    return score


class Feed(SampleSource):
    """The episodes of one task."""

    def __init__(self, key: str, task: Task, model_roles: Mapping[str, str | Model | ModelFactory]) -> None:
        self.own_solver: Solver = task.solver
        self.scorers: dict[str, Scorer] = {}
        for each in task.scorer or ():
            name = registry_info(each).name.rpartition("/")[2]
            self.scorers[name if name not in self.scorers else f"{name}{len(self.scorers)}"] = each
        roles = {**(task.model_roles or {}), **{name: _model(name, given) for name, given in model_roles.items()}}
        self.task = task_with(
            copy.copy(task),
            dataset=self,
            solver=rollout_solver(self),
            scorer=rollout_scorer(self),
            metrics=None,
            headline_metric=None,
            epochs=1,
            model_roles=roles or None,
            metadata={**(task.metadata or {}), _KEY: key},
        )
        self.episodes: dict[tuple[Any, int], InspectEpisode] = {}
        self.is_closed = False
        self._waiting: list[Callable[[], None]] = []
        self._epochs: Counter[Any] = Counter()
        self._context: contextvars.Context | None = None
        self._wake = asyncio.Event()

    def add(self, episode: InspectEpisode) -> None:
        """Start an episode. An epoch of a sample runs once, so each has the next one."""
        self._epochs[episode.sample.id] += 1
        epoch = self._epochs[episode.sample.id]
        self.episodes[episode.sample.id, epoch] = episode
        self.when_running(functools.partial(enqueue_sample, episode.sample, epoch=epoch))
        self._wake.set()

    def when_running(self, add: Callable[[], None]) -> None:
        """Call in the context of the running task, where tasks and samples can be added."""
        if self._context is None:
            self._waiting.append(add)
        else:
            self._context.run(add)

    def episode(self, state: TaskState) -> InspectEpisode:
        """The episode of a sample."""
        return self.episodes[state.sample_id, state.epoch]

    def close(self) -> None:
        """End the task."""
        self.is_closed = True
        self._wake.set()

    def end_all(self, error: BaseException) -> None:
        """End the remaining episodes, with an error."""
        while self.episodes:
            self.episodes.popitem()[1].end(error)

    async def next_samples(self) -> list[Sample] | None:
        """Wait for episodes; None at the end."""
        if self._context is None:
            self._context = contextvars.copy_context()  # in which samples can be added from elsewhere
            for add in self._waiting:
                add()
        else:
            await self._wake.wait()
        self._wake.clear()
        return None if self.is_closed else []

    async def sample_complete(self, sample: EvalSample) -> None:
        """Note the end of a sample and of its sandbox."""
        error = "its scorer was not asked" if sample.error is None else sample.error.message
        self.episodes.pop((sample.id, sample.epoch)).end(InspectSampleError(error))

    async def sample_abandoned(self, sample: Sample, epoch: int) -> None:
        """Note that a sample never began."""
        self.episodes.pop((sample.id, epoch)).end(InspectSampleError("inspect abandoned the sample"))


class InspectRun(TaskSource):
    """The run of one event loop: it begins with an episode, and ends when none is under way."""

    _runs: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, InspectRun]] = WeakKeyDictionary()
    _holder: ClassVar[asyncio.AbstractEventLoop | None] = None
    """The loop of the run that inspect takes for the only one."""
    _logging: ClassVar[tuple[int, list[logging.Handler]]] = logging.NOTSET, []
    """Level and handlers of the root logger before inspect changes them."""

    def __init__(self) -> None:
        self._feeds: dict[str, Feed] = {}
        self._first: Feed | None = None
        self._under_way = 0
        self._is_closing = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    @classmethod
    def current(cls) -> InspectRun:
        """The run of this event loop."""
        loop = asyncio.get_running_loop()
        if loop not in cls._runs:
            cls._runs[loop] = cls()
        return cls._runs[loop]

    async def start(self, key: str, make_feed: Callable[[], Feed], episode: InspectEpisode) -> None:
        """Start an episode of a task; the task is made where the run has none under this key."""
        await self.settle()
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = make_feed()
            if self._first is None:
                self._first = feed
                # In a new context: it goes on after the step that begins it.
                self._work = asyncio.create_task(self._evaluate(), context=contextvars.Context())
            else:
                self._first.when_running(functools.partial(enqueue_task, feed.task))
        self._under_way += 1
        episode.done.add_done_callback(self._release)
        feed.add(episode)

    async def settle(self) -> None:
        """Wait for the end of a run that is ending."""
        if self._is_closing.is_set() and self._work is not None:
            await asyncio.wait([self._work], timeout=ENDING_SECONDS)

    def _release(self, done: asyncio.Future[None]) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._is_closing.set()
            for feed in self._feeds.values():
                feed.close()

    async def _evaluate(self) -> None:
        error: BaseException = InspectSampleError("the run of inspect ended before the sample")
        if not display_type_initialized():
            init_display_type("none")
        policy = get_model(f"{PROVIDER}/policy", memoize=False, seat=current_seat)
        options: dict[str, Any] = {"log_samples": False, "log_realtime": False, "score_display": False}
        options |= {"ctl_server": False, "acp_server": False, "fail_on_error": False, "log_level": "critical"}
        # Episodes are bounded by who starts them.
        options |= dict.fromkeys(("max_samples", "max_connections"), 1_000_000)
        if InspectRun._holder is not None and InspectRun._holder.is_closed():
            # The loop was closed under its run, which inspect would wait for in vain, as it knows no loops.
            importlib.import_module("inspect_ai._eval.eval")._eval_async_running = False  # type: ignore[attr-defined]
        else:
            root = logging.getLogger()
            InspectRun._logging = root.level, [*root.handlers]
        InspectRun._holder = loop = asyncio.get_running_loop()
        try:
            with tempfile.TemporaryDirectory() as folder:
                await eval_async(self, policy, log_dir=folder, max_tasks=1000, **options)
        except Exception as failure:
            error = InspectSampleError(f"inspect cannot run: {type(failure).__name__}: {failure}")
            error.__cause__ = failure
        finally:
            if not loop.is_closed():
                InspectRun._holder = None
            feeds, self._feeds, self._first = [*self._feeds.values()], {}, None
            for feed in feeds:
                feed.end_all(error)
            self._work, self._is_closing = None, asyncio.Event()

    def initial_tasks(self) -> list[Task]:
        """The task of the first episode. inspect has begun then, so its changes to the root logger are undone."""
        root, (level, handlers) = logging.getLogger(), self._logging
        root.setLevel(level)
        for handler in [*root.handlers]:
            if handler not in handlers and type(handler).__module__.startswith("inspect_ai"):
                root.removeHandler(handler)
        assert self._first is not None
        return [self._first.task]

    async def next_tasks(self) -> None:
        """Wait for the end: tasks are added by `start`."""
        await self._is_closing.wait()

    async def task_complete(self, log: EvalLog) -> None:
        """End what is left of a task, which has failed if that is any."""
        feed = self._feeds.pop((log.eval.metadata or {})[_KEY])
        feed.end_all(InspectSampleError(log.error.message if log.error else "the task ended"))


def _model(name: str, given: str | Model | ModelFactory) -> str | Model:
    """The model of a role, which no episode trains."""
    if isinstance(given, str | Model):
        return given
    return get_model(f"{PROVIDER}/{name}", memoize=False, model_factory=given)
