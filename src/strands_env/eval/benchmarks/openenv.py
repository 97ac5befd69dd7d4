"""Servers of OpenEnv by address: `strands-env eval openenv:URL`. See `docs/environments-of-others.md`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from strands_env.core import Action, Environment, ModelFactory, TaskContext
from strands_env.environments.openenv import OpenEnvEnvironment, OpenEnvSession
from strands_env.eval.run.benchmark import SourceBenchmark

PROMPT = "Act in the environment with your tools until it is done."


class OpenEnvEvaluator(SourceBenchmark):
    """Episodes of an OpenEnv server: `--env-config` has `prompt` and `resets`, a list of arguments for its `reset`."""

    @classmethod
    def environment(cls, model_factory: ModelFactory, **options: Any) -> Callable[[], Environment]:
        """`OpenEnvEnvironment` of this server."""
        options = {name: value for name, value in options.items() if name not in ("prompt", "resets")}
        return lambda: OpenEnvEnvironment(url=cls.source(), model_factory=model_factory, **options)

    def check(self) -> None:
        """Read the address and the options."""
        OpenEnvSession(self.source())
        resets = self._config.get("resets", [{}])
        if not (isinstance(resets, list) and resets and all(isinstance(each, Mapping) for each in resets)):
            raise ValueError(f"resets={resets!r:.100}: expected a list of objects, such as [{{'seed': 0}}]")

    def rows(self) -> Iterable[Any]:
        """A task for each of `resets`; without them, for each seed from 0 to the option `limit`, or one."""
        resets = self._config.get("resets") or [{"seed": seed} for seed in range(self.limit or 1)]
        for index, reset in enumerate(resets):
            context = TaskContext(id=f"{self.benchmark_name}/{index}", reset=reset)
            yield Action(message=self._config.get("prompt", PROMPT), task_context=context)

    @property
    def _config(self) -> Mapping[str, Any]:
        return self.options.env_config or {}
