"""Tasks of inspect_ai by name, and their samples as actions."""

from __future__ import annotations

import copy
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from inspect_ai import Task
from inspect_ai._eval.loader import load_tasks
from inspect_ai._util.registry import registry_find
from inspect_ai.dataset import Sample
from inspect_ai.util import registry_info
from pydantic_core import to_jsonable_python

from strands_env.core import Action, TaskContext
from strands_sglang.hints import did_you_mean

from .inspect_run import Feed, InspectEpisode, InspectRun


class InspectTaskError(ValueError):
    """A task of inspect_ai does not exist, or cannot be made here; the message says what to type or install."""


class InspectTask:
    """A task with the models of its roles; `of` makes it.

    Attributes:
        name: As the user named it, or the task's own name.
        key: Equal for equal tasks of this process.
    """

    def __init__(self, name: str, key: str, make: Callable[[], Task]) -> None:
        self.name, self.key, self._make = name, key, make
        self.model_roles: Mapping[str, Any] = {}

    @classmethod
    def of(cls, task: str | Task, args: Mapping[str, Any], model_roles: Mapping[str, Any]) -> InspectTask:
        """The task of a name and its arguments, which is loaded once in a process, or of a `Task`."""
        if isinstance(task, Task):
            made = cls(task.name, f"{task.name} {id(task)}", lambda: task)
        elif isinstance(task, str) and task:
            made = _named(task, json.dumps(to_jsonable_python(dict(args), fallback=str), sort_keys=True))
        else:
            raise TypeError(f"task={task!r:.100}: expected the name of a task of inspect_ai, or a Task")
        if model_roles:
            made = copy.copy(made)
            made.model_roles = model_roles
            made.key += (
                f" {[(name, each if isinstance(each, str) else id(each)) for name, each in model_roles.items()]}"
            )
        return made

    @cached_property
    def task(self) -> Task:
        """The task; it is made once, with its data set."""
        return self._make()

    @cached_property
    def samples(self) -> dict[str, Sample]:
        """The samples by the id of their action, in the order of the data."""
        found: dict[str, Sample] = {}
        for index, sample in enumerate(self.task.dataset, 1):
            if sample.id is None:
                sample = sample.model_copy(update={"id": index})
            found[f"{self.name}/{sample.id}"] = sample
        return found

    async def start(self, episode: InspectEpisode) -> None:
        """Start an episode in this process's run of inspect."""
        await InspectRun.current().start(self.key, lambda: Feed(self.key, self.task, self.model_roles), episode)

    async def finish(self, episode: InspectEpisode) -> None:
        """End an episode, and the run of inspect with the last one: an event loop may close behind it."""
        await episode.close()
        await InspectRun.current().settle()

    def actions(self) -> Iterator[Action]:
        """The samples as tasks of ours."""
        for name, sample in self.samples.items():
            text = sample.input if isinstance(sample.input, str) else "\n\n".join(each.text for each in sample.input)
            more: dict[str, Any] = {"choices": sample.choices} if sample.choices else {}
            if sample.metadata:
                more["metadata"] = to_jsonable_python(sample.metadata, fallback=str)
            yield Action(message=text, task_context=TaskContext(id=name, ground_truth=sample.target, **more))

    def sample_of(self, action: Action) -> Sample:
        """The sample of an action: of the data set by its id (or `metadata.id`), otherwise made from the action."""
        context = action.task_context
        extra = context.model_extra or {}
        metadata = extra.get("metadata") or {}
        for name in (context.id, metadata.get("id")):  # trainers number their rows themselves
            if (sample := self.samples.get(str(name))) is not None:
                return sample
        if not isinstance(action.message, str):
            raise TypeError(f"the task {context.id!r} is none of {self.name!r}, and its message is not text")
        truth = context.ground_truth
        return Sample(
            input=action.message,
            target="" if truth is None else [str(each) for each in truth] if isinstance(truth, list) else str(truth),
            choices=extra.get("choices"),
            metadata=metadata or None,
            id=context.id,
        )


@functools.lru_cache(maxsize=64)
def _named(name: str, args: str) -> InspectTask:
    return InspectTask(name, f"{name} {args}", lambda: _load(name, json.loads(args)))


def _load(name: str, args: Mapping[str, Any]) -> Task:
    # inspect takes no absolute path of a file without the name of its task.
    spelt = os.path.relpath(name) if os.path.isabs(name) and "@" not in name else name
    tasks: list[Task] = []
    try:
        tasks = load_tasks([spelt], dict(args)) if _is_there(name) else []
    except Exception as error:
        raise InspectTaskError(_explain_error(name, error)) from error
    if len(tasks) != 1:
        raise InspectTaskError(_explain_number(name, tasks))
    return tasks[0]


def _is_there(name: str) -> bool:
    file = name.partition("@")[0]
    return not file.endswith(".py") or Path(file).is_file()


def _explain_error(name: str, error: Exception) -> str:
    """The reason why a task cannot be made, and the remedy."""
    if isinstance(error, ModuleNotFoundError):
        return f"the task {name!r} needs a package: pip install {error.name}"
    chain = [error, error.__cause__, error.__context__]
    if any(type(link).__module__.startswith(("huggingface_hub", "datasets", "requests")) for link in chain) or any(
        isinstance(link, ConnectionError) for link in chain
    ):
        return (
            f"the task {name!r} reads its data from the hub, which gave none ({error}): run where the hub can be "
            "reached ('hf auth login' where it asks for a licence), or set HF_HUB_OFFLINE=1 where it is cached"
        )
    return f"the task {name!r} cannot be made: {type(error).__name__}: {error}"


def _explain_number(name: str, tasks: list[Task]) -> str:
    """The reason why a name has no task, or several, and the remedy."""
    file, package = name.partition("@")[0], name.partition("/")[0]
    if tasks:
        names = ", ".join(f"{name}@{task.name}" for task in tasks)
        return f"{name!r} has {len(tasks)} tasks: name one of {names}"
    if not _is_there(name):
        return f"there is no file {file!r}: a task of inspect_ai is named as file.py, or package/task"
    if "/" in name and not file.endswith(".py") and find_spec(package) is None:
        return f"the task {name!r} needs a package: pip install {package.replace('_', '-')}"
    known = [registry_info(each).name for each in registry_find(lambda info: info.type == "task")]
    hint = did_you_mean(name, known) or did_you_mean(f"inspect_evals/{name}", known)
    return f"there is no task {name!r} of inspect_ai{hint}: name a file.py, or package/task"
