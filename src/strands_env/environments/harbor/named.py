"""Agents of Harbor's own by name, such as `terminus-2`: their model calls go through a session of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from harbor.agents.factory import AgentFactory
from harbor.agents.installed.base import BaseInstalledAgent
from harbor.models.trial.config import AgentConfig

from strands_env.core import Action
from strands_env.environments.harness import Harness, ProgramRun
from strands_env.environments.harness.recipes import claude_code
from strands_env.sandbox import ExecResult, Outcome, Sandbox, SandboxError

from .results import Part

_TERMINUS: dict[str, Any] = {
    "model_name": "hosted_vllm/policy",
    "kwargs": {
        "api_base": "{base_url}",
        "llm_kwargs": {"api_key": "{key}"},
        "enable_summarize": False,
        "proactive_summarization_threshold": 0,
        "record_terminal_session": False,
        "model_info": {
            "max_input_tokens": 1_000_000, "max_output_tokens": 100_000,
            "input_cost_per_token": 0.0, "output_cost_per_token": 0.0,
        },
    },
}  # fmt: skip
_CLAUDE_CODE: dict[str, Any] = {
    "model_name": "anthropic/policy",
    "env": {"ANTHROPIC_API_KEY": "{key}", **claude_code().environment, "ANTHROPIC_MODEL": "policy"},
}
_OPENAI: dict[str, Any] = {
    "model_name": "openai/policy",
    "env": {"OPENAI_API_KEY": "{key}", "OPENAI_BASE_URL": "{base_url}", "OPENAI_API_BASE": "{base_url}"},
}
_OPTIONS = {"terminus-2": _TERMINUS, "claude-code": _CLAUDE_CODE}


class NamedAgentRun(ProgramRun):
    """Runs an agent of Harbor's against a gateway session of the step's model.

    Args:
        name: Its name, or `module:Class`.
        options: `model_name`, `kwargs` and `env` of Harbor's `AgentConfig`, over ours for this agent; texts in them
            have the placeholders of a `Harness`.
        **program: Further arguments of `ProgramRun`.

    Raises:
        ValueError: Harbor has no such agent.
    """

    def __init__(self, name: str, options: Mapping[str, Any] | None = None, **program: Any) -> None:
        super().__init__(Harness(command=(name,)), **program)
        ours, given = _OPTIONS.get(name, _OPENAI), dict(options or {})
        merged = {key: {**ours.get(key, {}), **given.pop(key, {})} for key in ("kwargs", "env")}
        self._fields: dict[str, Any] = {"name": name, **ours, **merged, **given}
        kind = AgentFactory.get_agent_class_from_config(AgentConfig(**self._fields))
        self._is_inside = issubclass(kind, BaseInstalledAgent)
        self.part: Part | None = None

    def _gateway(self, conversation: Any, sandbox: Sandbox | None) -> Any:
        # An agent that runs in this process reaches the gateway's own port, and the container only by its commands.
        return super()._gateway(conversation, sandbox if self._is_inside else None)

    async def _launch(self, action: Action, sandbox: Sandbox, values: Mapping[str, str]) -> ExecResult:
        """Set the agent up and have it follow the instruction."""
        part = self.part
        assert part is not None
        config = AgentConfig(**_fill(self._fields, values))
        logs = part.environment.trial_paths.agent_dir
        try:
            agent = await asyncio.to_thread(AgentFactory.create_agent_from_config, config, logs_dir=logs)
            agent.session_id = values["session"]
            await agent.setup(part.environment)
            await agent.run(values["prompt"], part.environment, part.context)
        except SandboxError:
            raise
        except Exception as error:  # of the agent's own code: a run that failed, as of any other program
            return ExecResult(outcome=Outcome.ERROR, exit_code=1, stderr=f"{type(error).__name__}: {error}")
        return ExecResult(outcome=Outcome.OK, exit_code=0)


def _fill(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return Harness(command=(value,)).fill(values).command[0]
    if isinstance(value, dict):
        return {name: _fill(inner, values) for name, inner in value.items()}
    return [_fill(inner, values) for inner in value] if isinstance(value, list) else value
