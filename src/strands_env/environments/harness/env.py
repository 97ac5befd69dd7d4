"""`HarnessEnvironment`: an episode is a command that talks to a session of the gateway."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strands import Agent
from strands.agent.agent_result import AgentResult

from strands_env.core import Action, Environment
from strands_env.sandbox import BubblewrapSandbox, Isolation, Outcome, SandboxLimits, SandboxSlots

from .recipes import Harness

if TYPE_CHECKING:
    from strands_sglang.gateway import Session

_PORT = 8080  # in the sandbox's own network, where every port is free
_OUTPUT_BYTES = 200_000
_HOME = "\0home\0"  # known in the sandbox only
DEFAULT_LIMITS = SandboxLimits(
    wall_seconds=3600.0, cpu_seconds=3600.0, memory_bytes=4 << 30, processes=512, open_files=4096
)
"""What a harness may use if nothing else is said: agent programs are large."""


class HarnessFailedError(RuntimeError):
    """The command did not get as far as a model call, or its sandbox failed.

    Attributes:
        exit_code: Its exit code, or None.
    """

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message, exit_code)
        self.exit_code = exit_code

    def __str__(self) -> str:
        return str(self.args[0])


class HarnessEnvironment(Environment):
    """An agent program of any make as an environment: its model calls go through a gateway session of the step's model.

    The step's model decides sampling, budgets and seeds, and holds the trajectories, so evaluators, reports and
    trainers see what they see of any environment. The program brings its own loop, tools and system prompt.

    Args:
        harness: How the program is started, or a function from action to that.
        max_requests: Most model calls of an episode; the program is refused further ones.
        max_new_tokens: Most tokens of one reply, whatever the program asks for.
        limits: What the program may use; `DEFAULT_LIMITS` if None. `wall_seconds` bounds the run.
        isolation: What stands between the program and this machine; `none-i-accept-the-risk` turns it off.
        read_only: Files and folders of this machine to show in the sandbox, such as the program's.
        environment: Environment variables beside those of the harness.
        python: Interpreter of the sandbox, see `BubblewrapSandbox`.
        slots: Bound on running sandboxes, see `BubblewrapSandbox`.
        gateway_options: Options of `Gateway`, e.g. `{"client_sampling": True}`.
        **options: Further arguments of `Environment`. Limits on tools do not apply: the program runs its own.

    Raises:
        SandboxUnavailableError: Isolation is unavailable on this machine; the message says how to get it.
        ValueError: An option that has no meaning here, or a wrong value.
    """

    def __init__(
        self,
        *,
        harness: Harness | Callable[[Action], Harness],
        max_requests: int | None = None,
        max_new_tokens: int | None = None,
        limits: SandboxLimits | None = None,
        isolation: Isolation | str = Isolation.BUBBLEWRAP,
        read_only: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        python: str | None = None,
        slots: SandboxSlots | None = None,
        gateway_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        foreign = ("system_prompt", "max_tool_iters", "max_tool_calls", "max_parallel_tool_calls")
        if given := [name for name in foreign if options.get(name) is not None]:
            raise ValueError(f"{', '.join(given)}: the program has its own prompt and tools; max_requests bounds it")
        super().__init__(**options)
        self.harness = harness
        self.max_requests, self.max_new_tokens = max_requests, max_new_tokens
        self._gateway_options = dict(gateway_options or {})
        # Short: the path of a socket has at most 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="gw-"))
        self._folder.chmod(0o755)
        self.sandbox = BubblewrapSandbox(
            limits=limits or DEFAULT_LIMITS,
            isolation=isolation,
            python=python,
            read_only=[*read_only, str(self._folder)],
            environment=environment,
            slots=slots,
        )
        self._isolated = Isolation(isolation) is Isolation.BUBBLEWRAP

    async def reset(self) -> None:
        """Start an episode in an empty sandbox. Override `prepare` to put a task's files into it."""
        await self.sandbox.close()
        self._folder.mkdir(mode=0o755, exist_ok=True)

    async def cleanup(self) -> None:
        """End the sandbox and everything in it."""
        await self.sandbox.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def prepare(self, action: Action) -> None:
        """Put what the task needs into `self.sandbox`, before the program starts. The default does nothing."""

    async def interact(self, agent: Agent, action: Action) -> AgentResult:
        """Run the program against a session of the agent's model."""
        from strands_sglang.gateway import Gateway

        conversation = getattr(agent.model, "conversation", None)
        if conversation is None:
            raise TypeError(
                f"a harness needs a model with exact tokens (SGLangModel), got {type(agent.model).__name__}"
            )
        if action.task_context.conversation_history:
            raise ValueError("a harness starts with an empty history; put what went before into the message")
        await self.prepare(action)
        path = str(self._folder / "gateway") if self._isolated else None
        options = {"unix_path": path, "model_name": "policy", **self._gateway_options}
        async with Gateway(client=conversation.client, tokenizer=conversation.tokenizer, **options) as gateway:
            limits = {"max_requests": self.max_requests, "max_new_tokens": self.max_new_tokens}
            session = gateway.open(conversation=conversation, limits=limits)
            end = await self._launch(session, action)
            await session.close()
        self._conclude(agent, session, end)
        if session.failure is not None:  # the program ended because of it, whatever its exit code
            raise session.failure
        if not session.counters.sampled:
            output = (end["stderr"] or end["stdout"]).strip()[-2000:]
            raise HarnessFailedError(f"the program made no model call (exit {end['exit']}): {output}", end["exit"])
        return AgentResult(
            stop_reason="end_turn",
            message=agent.messages[-1],
            metrics=agent.event_loop_metrics,
            state={"harness": end},
        )

    async def _launch(self, session: Session, action: Action) -> dict[str, Any]:
        """Run the command; its exit code and the ends of its output."""
        message = action.message
        if not isinstance(message, str):
            raise TypeError(f"a harness is given its task as text, got {type(message).__name__}")
        origin = f"http://127.0.0.1:{_PORT}" if self._isolated else session.anthropic_url.partition("/s/")[0]
        url = f"{origin}/s/{session.id}"
        values = {
            "prompt": message, "base_url": f"{url}/v1", "anthropic_url": url, "key": session.key, "home": _HOME,
        }  # fmt: skip
        harness = (self.harness(action) if callable(self.harness) else self.harness).filled(values)
        job = {
            "command": harness.command,
            "environment": dict(harness.environment),
            "files": dict(harness.files),
            "home": _HOME,
            "socket": str(self._folder / "gateway") if self._isolated else None,
            "port": _PORT,
        }
        code = Path(__file__).with_name("launch.py").read_text(encoding="utf-8")
        # JSON in a Python string literal: null and true are not Python.
        call = f"{code}\nlaunch(json.loads({json.dumps(json.dumps(job))}))\n"
        result = await self.sandbox.run_trusted(
            call, timeout=self.sandbox.limits.wall_seconds, output_bytes=_OUTPUT_BYTES
        )
        if result.outcome is Outcome.OK:
            end: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
            return end
        if result.outcome in (Outcome.SANDBOX_LOST, Outcome.DIED, Outcome.ERROR, Outcome.REFUSED):
            raise HarnessFailedError(f"the sandbox failed ({result.outcome}): {result.note} {result.stderr[-2000:]}")
        return {"exit": None, "stdout": "", "stderr": f"{result.outcome}: {result.note}"}

    def _conclude(self, agent: Agent, session: Session, end: Mapping[str, Any]) -> None:
        """Give the step the session's messages, tokens used, and counts."""
        agent.messages.extend(session.history)  # type: ignore[arg-type]
        if session.last_turn is not None:  # titles and sub-agents may have come after it
            session.conversation.forest.show(session.last_turn)
        metrics = agent.event_loop_metrics
        for turn in session.conversation.forest.turns:
            prompt, sampled = turn.start + len(turn.prompt_ids), len(turn.completion.output_ids)
            for name, tokens in (("inputTokens", prompt), ("outputTokens", sampled), ("totalTokens", prompt + sampled)):
                metrics.accumulated_usage[name] += tokens  # type: ignore[literal-required]
        metrics.cycle_count = session.counters.sampled
        self._last = {"exit_code": end["exit"], **session.counters.to_json()}

    def compute_metrics(
        self, event_loop_metrics: Any, tool_parse_errors: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """The usual metrics, and under `gateway` the session's counters with the program's exit code."""
        counts = getattr(self, "_last", None)
        return {
            **super().compute_metrics(event_loop_metrics, tool_parse_errors),
            **({} if counts is None else {"gateway": counts}),
        }
