"""Tasks of inspect_ai by name: `strands-env eval inspect:NAME`. See `docs/environments-of-others.md`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from strands_env.core import Environment, ModelFactory
from strands_env.environments.inspect import check_inspect
from strands_env.eval.run.benchmark import SourceBenchmark

if TYPE_CHECKING:
    from strands_env.environments.inspect.inspect_tasks import InspectTask


class InspectEvaluator(SourceBenchmark):
    """A task of inspect_ai: its data set, its solver or our agent, its scorer."""

    @classmethod
    def environment(cls, model_factory: ModelFactory, **options: Any) -> Callable[[], Environment]:
        """`InspectEnvironment` of this name."""
        from strands_env.environments.inspect import InspectEnvironment

        return lambda: InspectEnvironment(task=cls.source(), model_factory=model_factory, **options)

    def check(self) -> None:
        """Make the task, with its data."""
        _ = self._task.task

    def rows(self) -> Iterable[Any]:
        """The samples."""
        return self._task.actions()

    def count(self) -> int | None:
        """Number of samples."""
        size: int = len(self._task.samples)
        return size if self.limit is None else min(size, self.limit)

    @property
    def _task(self) -> InspectTask:
        check_inspect()
        from strands_env.environments.inspect.inspect_tasks import InspectTask

        return InspectTask.of(self.source(), (self.options.env_config or {}).get("task_args") or {}, {})
