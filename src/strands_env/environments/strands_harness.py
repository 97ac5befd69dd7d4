"""`StrandsHarnessEnv`: the agent that `strands_harness.create_harness` makes, in a sandbox and within limits."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date
from typing import Any, Unpack

from strands import Agent
from strands.agent.agent_result import AgentResult
from strands.handlers.callback_handler import null_callback_handler
from strands.hooks import AfterModelCallEvent, AgentInitializedEvent, HookOrder, HookProvider, HookRegistry
from strands.sandbox import StreamChunk

from strands_env.core import Environment, ModelFactory, TerminationReason
from strands_env.core.episode import Episode, fail_step, limit_tool
from strands_env.core.loop_records import EpisodeLimiter, watch_agent
from strands_env.core.sdk_patches import memory_saves
from strands_env.core.termination import Phase
from strands_env.rewards import ExactMatchReward
from strands_env.sandbox import (
    BubblewrapSandbox,
    ExecOptions,
    ExecResult,
    Sandbox,
    SandboxCapabilities,
    SandboxError,
    SandboxLostError,
)
from strands_sglang.exceptions import install_command, refuse_unknown

try:
    from strands_harness import create_harness
    from strands_harness.plugins import environment as environment_plugin
except ModuleNotFoundError as error:
    if error.name != "strands_harness":
        raise
    raise ModuleNotFoundError(
        f"StrandsHarnessEnv needs the package strands-harness: {install_command('strands-harness')}", name=error.name
    ) from None

_today: ContextVar[date | None] = ContextVar("strands_env_today", default=None)


class _Date(date):
    """The dates of the plug-in `environment`, which has no option for them."""

    @classmethod
    def today(cls) -> date:  # type: ignore[override]
        """The day of the step, where it has one."""
        return _today.get() or date.today()


if hasattr(environment_plugin, "date"):
    environment_plugin.date = _Date

SUBAGENT = "subagent"
"""Name of sub-agents in trajectories."""
_OFF: Mapping[str, Any] = dict.fromkeys(("session", "memory", "skills", "context_manager", "caching"), False)
"""Plug-ins that would write to this machine, read from it, change the history, or concern the server."""
_NO_NETWORK: Mapping[str, Any] = {"web_fetch": False, "web_search": False}
_PLACES = {
    "model": "model_factory",
    "messages": "the task's conversation_history",
    "system_prompt": "system_prompt",
    "sandbox": "sandbox",
    "name": "agent_name",
    "callback_handler": "verbose",
    "conversation_manager": "get_conversation_manager()",
    "trace_attributes": "the task's trace_attributes",
    "agent_id": "nothing: each step has its own",
    "retry_strategy": "nothing: the model retries inside a call",
}
"""Arguments of an agent that an environment gives itself, with their sources."""


class StrandsHarnessEnv(Environment):
    """An agent of strands-harness, with its shell, files, todo list and sub-agents, in a sandbox for each episode.

    Its tools work in the sandbox. Session, memory, skills, web tools and context manager are off unless `harness` asks
    for them. Sub-agents sample from the step's model and have the environment's limits, each counted on its own; their
    trajectories have the agent name `subagent`. A step waits for background tasks; one that a limit or a deadline ends
    also ends them. Failures of the sandbox, or of a sub-agent's model, fail the step.

    Args:
        sandbox: Any `Sandbox`; the environment closes it. None makes a `BubblewrapSandbox`.
        harness: Further arguments of `create_harness`, which are also those of `strands.Agent`: `{"builtin_tools":
            ["shell"], "instructions": "..."}`. Its `tools`, `plugins` and `hooks` are those of sub-agents, too.
        today: The day that the plug-in `environment` shows, as in `"2026-01-31"`; None for the real one. Times and
            ids in results of background tasks stay the SDK's.
        **options: Further arguments of `Environment`. A `system_prompt` replaces that of the harness.

    Raises:
        TypeError: An unknown argument in `harness`, or one that the environment gives itself.
        ValueError: `today` is no day.
        RuntimeError: The day cannot be fixed with this version of strands-harness.
        SandboxUnavailableError: Isolation is unavailable on this machine; the message says how to get it.
    """

    def __init__(
        self,
        *,
        sandbox: Sandbox | None = None,
        harness: Mapping[str, Any] | None = None,
        today: date | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        try:
            self.today = None if today is None else date.fromisoformat(str(today))
        except ValueError:
            raise ValueError(f"today={today!r}: expected a day, as in '2026-01-31'") from None
        if today is not None and getattr(environment_plugin, "date", None) is not _Date:
            raise RuntimeError(f"today={today!r}: this strands-harness takes its date from elsewhere; leave it out")
        if not isinstance(harness, Mapping | None):
            raise TypeError(f"harness={harness!r:.200}: expected arguments of create_harness by name")
        self.harness = dict(harness or {})
        for name in _PLACES.keys() & self.harness.keys():
            raise TypeError(f"harness has {name!r}, which the environment makes from {_PLACES[name]}: leave it out")
        names = {*inspect.signature(create_harness).parameters, *inspect.signature(Agent).parameters}
        refuse_unknown("harness", self.harness, names - {"agent_kwargs", *_PLACES})
        if not isinstance(sandbox, Sandbox | None):  # the SDK's own have no end, and no limits
            raise TypeError(f"sandbox={sandbox!r:.200}: expected a Sandbox of strands_env.sandbox")
        self.sandbox: Sandbox = BubblewrapSandbox() if sandbox is None else sandbox

    def make_agent(self, **options: Any) -> Agent:
        """The agent of `create_harness`."""
        given = {**_OFF, **self.harness}
        chosen = given.get("builtin_tools")
        if chosen is None or isinstance(chosen, Mapping):  # a list says which there are, and no others
            given["builtin_tools"] = {**_NO_NETWORK, **(chosen or {})}
        handler = options["callback_handler"] or null_callback_handler
        team = _Team(self, options["hooks"], handler)
        options["hooks"] = [team, *(given.pop("hooks", None) or ())]
        options["tools"] = [*options["tools"], *(given.pop("tools", None) or ())]
        if options["system_prompt"] is None:
            del options["system_prompt"]
        if given["context_manager"]:
            del options["conversation_manager"]  # the SDK takes one of them, and warns of both
        agent: Agent = create_harness(sandbox=_WatchedSandbox(self.sandbox), **options, **given)
        return agent

    async def reset(self) -> None:
        """Start a sandbox with nothing of the last episode."""
        await self.sandbox.close()
        await self.sandbox.start()

    async def invoke(self, agent: Agent, prompt: str | list[Any] | None) -> AgentResult:
        """Invoke the agent, on the environment's day, and wait until its memory is saved."""
        token = _today.set(self.today)
        try:
            result = await super().invoke(agent, prompt)
            await asyncio.gather(*memory_saves(agent), return_exceptions=True)
            return result
        finally:
            _today.reset(token)

    async def cleanup(self) -> None:
        """End the sandbox and everything in it."""
        await self.sandbox.close()


def create_env_factory(model_factory: ModelFactory, **options: Any) -> Callable[[], StrandsHarnessEnv]:
    """The factory for `--env strands-harness`: it scores as data without `--env` is scored."""
    options = {"reward_fn": ExactMatchReward(ignore_case=True), **options}
    return lambda: StrandsHarnessEnv(model_factory=model_factory, **options)


class _Team(HookProvider):
    """The agents of a step. The harness registers the hooks of the first with each sub-agent as well."""

    def __init__(self, env: Environment, hooks: Sequence[Any], callback_handler: Callable[..., Any]) -> None:
        self._env = env
        self._hooks: Sequence[Any] | None = hooks
        self._callback_handler = callback_handler

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Register with an agent: the hooks of the environment with the first, limits of its own with a sub-agent."""
        if self._hooks is None:
            registry.add_hook(EpisodeLimiter(self._env.limits))
            registry.add_callback(AgentInitializedEvent, self._subagent_made)
            registry.add_callback(AfterModelCallEvent, self._after_model, order=HookOrder.SDK_LAST)  # after retries
            return
        hooks, self._hooks = self._hooks, None
        for hook in hooks:
            if isinstance(hook, HookProvider):
                registry.add_hook(hook)
            else:
                registry.add_callback(None, hook)

    def _subagent_made(self, event: AgentInitializedEvent) -> None:
        if (episode := Episode.current()) is not None:
            episode.add_agent(event.agent)
        event.agent.name = SUBAGENT
        event.agent.callback_handler = self._callback_handler  # its default prints
        watch_agent(event.agent)
        registry = event.agent.tool_registry.registry
        registry.update({name: limit_tool(self._env, tool) for name, tool in registry.items()})

    def _after_model(self, event: AfterModelCallEvent) -> None:
        # The harness gives the parent no more than a tool result.
        error = event.exception
        if error is None or event.retry:
            return
        if TerminationReason.from_error(error, default=TerminationReason.MODEL_ERROR).is_failure:
            fail_step(error, Phase.MODEL)


class _WatchedSandbox(Sandbox):
    """A sandbox whose failures fail the step, also where a tool makes text of them.

    One that is lost does not: no code can take its episode out of training.

    Attributes:
        failure: The last failure, also of one that was lost.
    """

    def __init__(self, inner: Sandbox) -> None:
        self._inner = inner
        self.failure: SandboxError | None = None

    @contextmanager
    def _failing_the_step(self) -> Iterator[None]:
        try:
            yield
        except SandboxError as error:
            self.failure = error
            if not isinstance(error, SandboxLostError):
                fail_step(error)
            raise

    @property
    def capabilities(self) -> SandboxCapabilities:
        return self._inner.capabilities

    async def exec(self, command: str | Sequence[str], **options: Unpack[ExecOptions]) -> ExecResult:
        with self._failing_the_step():
            return await self._inner.exec(command, **options)

    async def exec_streaming(
        self, command: str | Sequence[str], on_output: Callable[[StreamChunk], None], **options: Unpack[ExecOptions]
    ) -> ExecResult:
        with self._failing_the_step():
            return await self._inner.exec_streaming(command, on_output, **options)

    async def read_file(self, path: str, **options: Any) -> bytes:
        with self._failing_the_step():
            return await self._inner.read_file(path, **options)

    async def write_file(self, path: str, content: str | bytes, **options: Any) -> None:
        with self._failing_the_step():
            await self._inner.write_file(path, content, **options)

    async def close(self) -> None:
        await self._inner.close()

    def sibling(self) -> Sandbox:
        return self._inner.sibling()
