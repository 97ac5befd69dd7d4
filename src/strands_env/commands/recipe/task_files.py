"""Tasks without a class: a file of questions and answers, or a function that returns them, as a benchmark."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, ClassVar

from strands_env.core import Action, TaskContext
from strands_env.eval import Benchmark, DatasetError, EvalError
from strands_env.eval.options import COLUMNS
from strands_env.eval.run.benchmark import Row, field
from strands_env.eval.run.tasks import Tasks, stream
from strands_env.rewards import ExactMatchReward
from strands_sglang.exceptions import did_you_mean

logger = logging.getLogger(__name__)


class DataBenchmark(Benchmark):
    """Tasks of a local file with columns for question and answer."""

    benchmark_name = "data"
    reward_class = partial(ExactMatchReward, ignore_case=True)

    def action(self, row: Row, index: int) -> Action | None:
        """The question; other columns go into the task context, each under its own name."""
        columns = self.options.columns or {}
        used: dict[str, str | None] = {}
        for kind, names in COLUMNS.items():
            given = columns.get(kind)
            if given is not None and given not in row:
                row = {**row, given: _inside(row, given)}
            used[kind] = given or next((name for name in names if name in row), None)
        question = used["question"]
        if question is None:
            raise DatasetError(
                f"{self.place(index)} has no column for the question; there are {', '.join(row)}: name it with "
                "--columns question=NAME,answer=NAME"
            )
        if row[question] in (None, ""):
            return None
        fields: dict[str, Any] = {"ground_truth": None if used["answer"] is None else row[used["answer"]]}
        given = columns.get("id")
        # Null is no id: such a task is known by its content.
        if (name := field(row, *([given] if given is not None else COLUMNS["id"]))) is not None:
            fields["id"] = name
        context = {name: value for name, value in row.items() if name not in used.values()}
        for name, value in fields.items():
            if context.get(name, value) not in (value, None):
                chosen = used["id" if name == "id" else "answer"]
                raise DatasetError(
                    f"{self.place(index)} has the column {name!r} beside {chosen!r}, and one of them would be lost: "
                    "rename it, or choose it with --columns"
                )
        return Action(message=row[question], task_context=TaskContext(**context | fields))


def _inside(row: Row, path: str) -> Any:
    """The value at `reward_model.ground_truth`: columns of verl and others hold objects."""
    value: Any = row
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            names = value if isinstance(value, Mapping) else ()
            raise DatasetError(
                f"there is no column {path!r}{did_you_mean(name, names)}; for {name!r} there are {', '.join(names)}"
            )
        value = value[name]
    return value


class FunctionBenchmark(Benchmark):
    """A benchmark whose tasks come from a function; `benchmark_of` makes a subclass of it for one."""

    function: ClassVar[Callable[[], Any]]

    # Sync tasks stay sync: they can be recorded, and are read off the event loop.
    def load_dataset(self) -> Tasks:
        """The function's tasks; it is called when they are read."""
        function = type(self).function
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            return self._later()
        return super().load_dataset()

    def known_tasks(self) -> tuple[()]:
        """None: the function may take long, and is called once."""
        return ()

    def _actions(self) -> Iterator[Action]:
        name = self.benchmark_name
        with name_errors(f"the tasks of {name!r}", DatasetError):
            tasks = type(self).function()
            if not isinstance(tasks, Iterable):
                raise DatasetError(f"{name!r} must return an iterable of Actions, got {tasks!r}")
            for place, action in enumerate(tasks):
                if not isinstance(action, Action):
                    raise DatasetError(
                        f"item {place} of {name!r} must be an Action(message=..., task_context=...), got {action!r}"
                    )
                yield action

    async def _later(self) -> AsyncIterator[Action]:
        with name_errors(f"the tasks of {self.benchmark_name!r}", DatasetError):
            tasks = type(self).function()
            tasks = await tasks if inspect.isawaitable(tasks) else tasks
            async with aclosing(stream(tasks)) as actions:  # which takes iterables of both kinds
                place = 0
                async for action in actions:
                    yield action
                    place += 1
                    if place == self.limit:
                        return


def benchmark_of(name: str, function: Callable[[], Any]) -> type[Benchmark]:
    """The benchmark of a function at a dotted path.

    The function returns an iterable of tasks; it may be a generator, async, or an async generator.
    """
    attributes = {"benchmark_name": name, "function": staticmethod(function), "__doc__": function.__doc__}
    return type("FunctionBenchmark", (FunctionBenchmark,), {**attributes, "__module__": __name__})


@contextmanager
def name_errors(what: str, kind: type[EvalError], *passing: type[Exception]) -> Iterator[None]:
    """Turn errors of a user's code into errors of a kind that name it; ours pass."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (EvalError, *passing)):
            raise
        logger.warning("what=<%s> | it raised", what, exc_info=True)
        raise kind(f"{what} cannot be made: {type(error).__name__}: {error} (-v shows where)") from error
