"""Environment factories that workers import by name."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from strands_env.core import Action, Environment
from strands_env.testing import ScriptedModel
from tests.unit.eval_support import FakeEnv, outcome, with_tokens


def plain(text: str = "answer", delay: float = 0.01) -> Any:
    """Answers with the worker's process id."""

    def answer(action: Action) -> Any:
        made = with_tokens(outcome(text=f"{text} {action.task_context.id}"))
        made.observation.metrics["pid"] = os.getpid()
        return made

    return lambda action: FakeEnv(answer, delay=delay)


def poisoned() -> Any:
    """The task `p1` ends the process that runs it, every time."""

    def answer(action: Action) -> Any:
        return os._exit(7) if action.task_context.id.startswith("p1_") else outcome()

    return lambda: FakeEnv(answer, delay=0.05)


class LoudEnv(FakeEnv):
    """Leaves a file behind when it is cleaned up."""

    def __init__(self, folder: str) -> None:
        super().__init__(delay=60.0)
        self._folder = folder

    async def step(self, action: Action) -> Any:
        Path(self._folder, f"started-{action.task_context.id}").touch()
        return await super().step(action)

    async def cleanup(self) -> None:
        await asyncio.sleep(0.05)
        Path(self._folder, "cleaned").touch()


def loud(folder: str) -> Any:
    return lambda: LoudEnv(folder)


class Panic(BaseException):
    """As extensions in Rust raise it: no `Exception`."""


def broken() -> Any:
    logging.getLogger(__name__).warning("no sandbox here")
    raise Panic("no such sandbox")


class UnpicklableError(Exception):
    def __init__(self) -> None:
        super().__init__("held")
        self.held = lambda: None


class OddError(Exception):
    """Pickles, and cannot be made again from its arguments."""

    def __init__(self, first: str, second: int) -> None:
        super().__init__(f"{first} {second}")


class Unreadable:
    """Pickles, and raises where it is read."""

    def __reduce__(self) -> Any:
        return (_raise, ())


def _raise() -> None:
    raise ValueError("cannot be read")


def _unreadable() -> Any:
    made = outcome()
    made.observation.metrics["held"] = Unreadable()
    return made


class LostConnectionError(ConnectionError):
    """Pickles, and cannot be made again from its arguments."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host} {port}")


FAULTS: dict[str, Any] = {
    "value": lambda: ValueError("bad task"),
    "unpicklable": UnpicklableError,
    "panic": lambda: Panic("in rust"),
    "keyboard": KeyboardInterrupt,
    "lost": lambda: LostConnectionError("a", 2),
    "cancel": asyncio.CancelledError,
    "odd": lambda: OddError("a", 2),
    "exit": lambda: SystemExit(3),
    "unreadable": _unreadable,
}


def faulty() -> Any:
    """Environments in which the name of a task is its fate."""
    return lambda: FakeEnv(lambda action: FAULTS.get(action.task_context.id.split("_")[0], outcome)(), delay=0.05)


def prompted(prompt: str, for_task: bool = False) -> Any:
    """Its model factory has a configuration of more than JSON."""
    models = partial(ScriptedModel, ["x"])
    models.config = {"bias": np.arange(3), "of": lambda: 1, "api_key": "s3cret"}  # type: ignore[attr-defined]
    make = partial(Environment, model_factory=models, system_prompt=prompt)
    return (lambda action: make()) if for_task else lambda: make()


def dies_at_start(folder: str) -> Any:
    """Kills its worker while it starts, once."""
    mark = Path(folder, "died")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return FakeEnv


def stuck() -> Any:
    """Hangs in its setup."""
    return type("StuckEnv", (FakeEnv,), {"reset": lambda self: asyncio.sleep(60)})


def forking(folder: str) -> Any:
    """Dies while a child of it lives on."""

    def answer(action: Action) -> Any:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        with Path(folder, "child").open("a") as file:
            file.write(f"{child} ")
        os.kill(os.getpid(), signal.SIGKILL)

    return lambda: FakeEnv(answer)


def holding(folder: str = "") -> Any:
    """The task `stuck` never gives the interpreter back, as a regular expression that backtracks for ever."""

    def answer(action: Action) -> Any:
        if action.task_context.id.startswith("stuck"):
            if folder:
                Path(folder, f"stuck-{os.getpid()}").touch()
            re.match(r"(a+)+$", "a" * 60 + "b")
        return outcome()

    return lambda: FakeEnv(answer, delay=0.05)
