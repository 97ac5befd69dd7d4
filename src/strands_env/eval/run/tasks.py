"""The tasks of a run: read from any iterable without blocking the event loop, and identified by content.

Every machine computes the same identity for a task and for each of its samples. The seed of a sample follows from it,
not from when the sample runs, and travels in the task context to every executor.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, NamedTuple, TypeVar

from strands_env.core import Action, TaskContext
from strands_env.core.deadline import is_closing
from strands_env.core.jsonable import copy_data, digest, identity
from strands_env.core.seeds import derive_seed
from strands_env.core.threads import OneThread
from strands_env.eval.errors import DatasetError

M = TypeVar("M", Action, TaskContext)

_END: Any = object()

Tasks = Iterable[Action] | AsyncIterable[Action]


async def stream(tasks: Tasks) -> AsyncGenerator[Action, None]:
    """The tasks in order, each as soon as it is there. Closing it leaves a blocked iterable behind."""
    if isinstance(tasks, list | tuple):
        for action in tasks:
            yield _check_action(action)
        return
    # A thread for the source alone, and one context: it may block, open files or hold what is bound to a thread.
    thread, context = OneThread(), copy_context()
    is_async = isinstance(tasks, AsyncIterable)
    try:
        with catch_exits():
            items: Any = aiter(tasks) if is_async else await thread.run(context.run, iter, tasks)  # type: ignore[arg-type]
        while True:
            with catch_exits():
                item = await (anext(items, _END) if is_async else thread.run(context.run, next, items, _END))
            if item is _END:
                return
            yield _check_action(item)
    finally:
        thread.close()


@contextmanager
def catch_exits() -> Iterator[None]:
    """Surrounds the reading of a data set: `sys.exit` in it fails the run with a `DatasetError`, not the program."""
    try:
        yield
    except (Exception, asyncio.CancelledError, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise DatasetError(f"the data source called sys.exit({error.code!r})") from error
    except BaseException as error:
        if is_closing(error):
            raise
        raise DatasetError(f"the data source raised {type(error).__name__}: {error}") from error


def _check_action(action: object) -> Action:
    if not isinstance(action, Action):
        raise TypeError(
            "a data set must give Action(message=..., task_context=TaskContext(...)), "
            f"got {type(action).__name__}: {action!r}"
        )
    return action


# ---- identity -------------------------------------------------------------------------------------------------------


def task_digest(action: Action) -> str:
    """Hash of a task's content. An id the user did not give is random, and so left out."""
    context = action.task_context
    try:
        if type(action) is Action and type(context) is TaskContext:  # what a dump would give, at a part of its cost
            fields = {**context.__dict__, **(context.__pydantic_extra__ or {})}
            content: dict[str, Any] = {"message": action.message, "task_context": fields}
        else:
            content = action.model_dump()
        if not _is_named(action):
            del content["task_context"]["id"]
        if content["task_context"].get("task_content"):  # a task that is a folder is what is in it, wherever it lies
            content["task_context"].pop("task_dir", None)
        return digest(identity(content, "action"))
    except (TypeError, ValueError, RecursionError) as error:
        raise DatasetError(
            f"the task {_name(action)} cannot be recognised when the run is resumed: {error}; keep such objects out "
            "of the task, and make them in the environment from plain values"
        ) from error


def with_context(action: Action, **fields: Any) -> Action:
    """A copy of a task with other fields of its context; the rest is shared."""
    copied = _copy(action)
    copied.__dict__["task_context"] = _copy(action.task_context)
    set_context(copied, **fields)
    return copied


def _copy(model: M, copy_values: Callable[[Any], Any] = dict.copy) -> M:
    """A copy of a task or its context, at a part of the cost of pydantic's."""
    if type(model) is not Action and type(model) is not TaskContext:
        return copy.copy(model)  # a class of the user's may have a copying of its own
    copied = type(model).__new__(type(model))
    assign = object.__setattr__  # pydantic's own validates
    assign(copied, "__dict__", copy_values(model.__dict__))
    extra = model.__pydantic_extra__
    assign(copied, "__pydantic_extra__", None if extra is None else copy_values(extra))
    assign(copied, "__pydantic_fields_set__", model.__pydantic_fields_set__.copy())
    assign(copied, "__pydantic_private__", None)
    return copied


def set_context(action: Action, **fields: Any) -> None:
    """Set fields of a task's context, without a validation."""
    declared, extra = action.task_context.__dict__, action.task_context.__pydantic_extra__
    for name, value in fields.items():
        (declared if extra is None or name in declared else extra)[name] = value


def copy_of(action: Action) -> Action:
    """A deep copy of a task."""
    try:
        if type(action) is not Action or type(action.task_context) is not TaskContext:
            return copy.deepcopy(action)
        copied = _copy(action)
        copied.__dict__["message"] = copy_data(action.message)
        copied.__dict__["task_context"] = _copy(action.task_context, copy_data)
        return copied
    except Exception as error:  # of any object's own copying
        raise DatasetError(
            f"the task {_name(action)} cannot be copied for a rollout: {type(error).__name__}: {error}; keep such "
            "objects out of the task, and make them in the environment from plain values"
        ) from error


def _is_named(action: Action) -> bool:
    return "id" in action.task_context.__pydantic_fields_set__


def _name(action: Action) -> str:
    return repr(action.task_context.id) if _is_named(action) else f"with the message {action.text[:60]!r}"


class NamedTask(NamedTuple):
    """A task of the run.

    Its id is the user's, or the hash of its content; `#2`, `#3`, ... behind it where the id comes again. `place` is its
    position in the data.
    """

    action: Action
    id: str
    digest: str
    place: int = 0


class TaskNamer:
    """Gives every task of a run its id, the same in every run over the same data."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self.renamed: list[str] = []
        """New ids of tasks whose own an earlier one has."""

    @property
    def ids(self) -> Collection[str]:
        """All ids that were given."""
        return self._next.keys()

    def name(self, action: Action) -> NamedTask:
        """Name the next task; `DatasetError` where it, or its id, cannot be stored."""
        content, is_named = task_digest(action), _is_named(action)
        base = action.task_context.id if is_named else content
        try:
            base.encode()
        except UnicodeEncodeError:
            raise DatasetError(f"the id {base!r} of a task cannot be stored: it holds half a surrogate pair") from None
        name = base
        while name in self._next:  # also where a user's own ids look like ours
            name = f"{base}#{self._next[base]}"
            self._next[base] += 1
        self._next[name] = 2
        if name != base and is_named:  # the same task twice without an id is no accident
            self.renamed.append(name)
        return NamedTask(action, name, content, len(self._next) - 1)


def with_names(actions: Iterable[Action]) -> list[Action]:
    """The tasks with the ids that they have in every run; of an id that is none, the hash of their content."""
    namer = TaskNamer()
    return [with_context(action, id=namer.name(action).id) for action in actions]


def sample_id(config_digest: bytes, prompt: NamedTask, index: int) -> str:
    """Identity of one sample: configuration, task and index."""
    return digest(config_digest, prompt.digest.encode(), prompt.id.encode(), index.to_bytes(8, "little"))


def sample_seed(seed: int, prompt: NamedTask, index: int) -> int:
    """The seed of one sample: the same in every run over the same data, here and on every executor."""
    return derive_seed(seed, prompt.digest, prompt.id, index)
