"""`CodeSandboxEnv`: agents that run Python and shell code in a sandbox, on this machine or hosted."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from strands import Agent
from strands.agent.agent_result import AgentResult

from strands_env.core import Action, Environment
from strands_env.sandbox import BubblewrapSandbox, Isolation, Sandbox, SandboxLimits, SandboxLostError, SandboxSlots
from strands_env.sandbox.agentcore import AgentCoreSandbox
from strands_env.tools.code import DEFAULT_MAX_OUTPUT_CHARS, CodeTools
from strands_sglang.exceptions import check_choice


class CodeMode(StrEnum):
    """The tools of a `CodeSandboxEnv`."""

    CODE = "code"
    """`execute_code`: Python."""
    TERMINAL = "terminal"
    """`execute_command`: shell."""
    CODE_AND_TERMINAL = "code_and_terminal"
    """Both."""


class CodeSandboxEnv(Environment):
    """Code with state that lasts an episode: from `reset` to `cleanup`, over all steps between.

    The sandbox starts with the first tool call. Any behaviour of the code gives a tool result. A sandbox that cannot be
    started or reached ends the step as `TOOL_ERROR` without a reward. One that ends under the code it runs
    (`sandbox_lost`) is a tool result, and the agent goes on in a new one: `score_lost` says whether that counts.
    `limits`, `python` and `slots` are those of `BubblewrapSandbox`.

    Args:
        sandbox: Any `Sandbox`; the environment closes it. With `execute_code` its Python interpreter must last.
        client: boto3 client of `bedrock-agentcore`: code runs in an `AgentCoreSandbox` on it.
        isolation: Its isolation; `none-i-accept-the-risk` turns it off.
        max_output_chars: Characters of each output stream in a tool result.
        score_lost: Score an episode whose sandbox was lost as any other, so that no code can take its episode out of
            training. False ends it as `TOOL_ERROR` without a reward: for machines that lose sandboxes by themselves.
        **options: Further arguments of `Environment`.

    Raises:
        SandboxUnavailableError: Isolation is unavailable on this machine; the message says how to get it.
        ValueError: An option does not fit another, or is out of range.
    """

    default_system_prompt_path = Path(__file__).parents[1] / "prompts" / "code_sandbox.md"

    def __init__(
        self,
        *,
        mode: CodeMode | str = CodeMode.CODE,
        sandbox: Sandbox | None = None,
        client: Any = None,
        limits: SandboxLimits | None = None,
        isolation: Isolation | str = Isolation.BUBBLEWRAP,
        python: str | None = None,
        slots: SandboxSlots | None = None,
        max_output_chars: int | None = DEFAULT_MAX_OUTPUT_CHARS,
        score_lost: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_choice(CodeMode, mode=mode)
        self.mode = CodeMode(mode)
        options_given = {"limits": limits, "python": python, "slots": slots}
        local = sorted(name for name, value in options_given.items() if value is not None)
        if sum((sandbox is not None, client is not None, bool(local))) > 1:
            raise ValueError(f"give a sandbox, a client, or options of a local sandbox, not several: {local!r}")
        if client is not None:
            sandbox = AgentCoreSandbox(client, session_name="strands-env-code-sandbox")
        if sandbox is None:
            sandbox = BubblewrapSandbox(limits=limits, isolation=isolation, python=python, slots=slots)
        self.sandbox: Sandbox = sandbox
        self.score_lost = score_lost
        self._tools = CodeTools(sandbox, max_output_chars=max_output_chars)
        if self.mode is not CodeMode.TERMINAL and not self._tools.has_python:
            raise ValueError(
                f"mode={self.mode.value!r} needs a sandbox with a lasting Python interpreter, and "
                f"{type(sandbox).__name__} has none: use mode='terminal'"
            )

    def get_tools(self) -> list[Any]:
        """The tools of the mode."""
        tools = {CodeMode.CODE: self._tools.execute_code, CodeMode.TERMINAL: self._tools.execute_command}
        return [tools[self.mode]] if self.mode in tools else list(tools.values())

    async def reset(self) -> None:
        """Start an episode with nothing of the last one."""
        self._tools.forget()
        await self.sandbox.close()

    async def interact(self, agent: Agent, action: Action) -> AgentResult:
        """Run the agent; an episode whose sandbox was lost may be left unscored."""
        self._tools.forget()  # its counts are those of one step; the sandbox lasts over several
        result = await super().interact(agent, action)
        if self._tools.lost and not self.score_lost:
            raise SandboxLostError(f"the sandbox was lost in {self._tools.lost} calls, and score_lost is False")
        return result

    def compute_metrics(
        self, event_loop_metrics: Any, tool_parse_errors: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """The usual metrics, and `sandbox_lost`: calls under which the sandbox ended."""
        return {**super().compute_metrics(event_loop_metrics, tool_parse_errors), "sandbox_lost": self._tools.lost}

    async def cleanup(self) -> None:
        """End the sandbox and everything in it."""
        await self.sandbox.close()
