"""A user's function that returns tasks, as a benchmark."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from strands_env.core import Action
from strands_env.eval import Benchmark, DatasetError, EvalError
from strands_env.eval.source import Tasks

logger = logging.getLogger(__name__)


class FunctionBenchmark(Benchmark):
    """A benchmark whose tasks come from a function; `benchmark_of` makes a subclass of it for one."""

    function: ClassVar[Callable[[], Any]]

    def load_dataset(self) -> Tasks:
        """The function's tasks; it is called when they are read."""
        function = type(self).function
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            return self._later()
        return super().load_dataset()

    def _actions(self) -> Iterator[Action]:
        name = self.benchmark_name
        with _named(name):
            yield from _checked(name, type(self).function())

    async def _later(self) -> AsyncIterator[Action]:
        taken, name = 0, self.benchmark_name
        with _named(name):
            async for action in _each(name, type(self).function()):
                yield action
                taken += 1
                if taken == self.limit:
                    return


def benchmark_of(name: str, function: Callable[[], Any]) -> type[Benchmark]:
    """The benchmark of a function.

    Args:
        name: Its dotted path.
        function: Returns an iterable of tasks; may be a generator, async, or an async generator.
    """
    attributes = {"benchmark_name": name, "function": staticmethod(function), "__doc__": function.__doc__}
    return type("FunctionBenchmark", (FunctionBenchmark,), {**attributes, "__module__": __name__})


async def _each(name: str, made: Any) -> AsyncIterator[Action]:
    if inspect.isawaitable(made):
        made = await made
    if not hasattr(made, "__aiter__"):
        for action in _checked(name, made):
            yield action
        return
    count = 0
    async for action in made:
        yield _action(name, count, action)
        count += 1
    _some(name, count)


def _checked(name: str, made: Any) -> Iterator[Action]:
    if not isinstance(made, Iterable):
        if inspect.iscoroutine(made):
            made.close()
        raise DatasetError(f"{name!r} must return an iterable of Actions, got {made!r}")
    count = 0
    for action in made:
        yield _action(name, count, action)
        count += 1
    _some(name, count)


def _action(name: str, place: int, action: object) -> Action:
    if not isinstance(action, Action):
        raise DatasetError(f"item {place} of {name!r} must be an Action(message=..., task_context=...), got {action!r}")
    return action


def _some(name: str, count: int) -> None:
    if not count:
        raise DatasetError(f"{name!r} returned no tasks")


@contextmanager
def _named(name: str) -> Iterator[None]:
    """What the user's function raises, as an error that names it."""
    try:
        yield
    except EvalError:
        raise
    except Exception as error:
        logger.warning("tasks=<%s> | the function raised", name, exc_info=True)
        raise DatasetError(
            f"the tasks of {name!r} cannot be made: {type(error).__name__}: {error} (-v shows where)"
        ) from error
