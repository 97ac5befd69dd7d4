"""Environments of verifiers by name: `strands-env eval verifiers:NAME`. See `docs/environments-of-others.md`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from strands_env.core import Environment, ModelFactory
from strands_env.eval.run.benchmark import SourceBenchmark
from strands_sglang.exceptions import install_command


class VerifiersEvaluator(SourceBenchmark):
    """An environment of verifiers: its tasks, its loop or our agent, its rewards."""

    @classmethod
    def environment(cls, model_factory: ModelFactory, **options: Any) -> Callable[[], Environment]:
        """`VerifiersEnvironment` of this name."""
        make = _verifiers().VerifiersEnvironment
        return lambda: make(taskset=cls.source(), model_factory=model_factory, **options)

    def check(self) -> None:
        """Make the configuration."""
        _verifiers().config_of(self.source(), self._config)

    def rows(self) -> Iterable[Any]:
        """The tasks."""
        tasks: Iterable[Any] = _verifiers().actions_of(self.source(), self._config)
        return tasks

    @property
    def _config(self) -> Any:
        return (self.options.env_config or {}).get("config")


def _verifiers() -> Any:
    try:
        return import_module("strands_env.environments.verifiers_env")
    except ImportError as error:
        raise ImportError(f"environments of verifiers need its package: {install_command('verifiers')}") from error
