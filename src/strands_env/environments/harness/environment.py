"""`HarnessEnvironment`: an episode is a program that talks to a session of the gateway."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strands import Agent
from strands.agent.agent_result import AgentResult

from strands_env.core import Action, Environment
from strands_env.sandbox import (
    BubblewrapSandbox,
    ExecLimits,
    ExecResult,
    Isolation,
    Network,
    Outcome,
    Sandbox,
    SandboxLimits,
    SandboxSlots,
)
from strands_sglang.exceptions import BackendRequestError, MessageConversionError, TemplateError

from .recipes import Harness

if TYPE_CHECKING:
    from strands_sglang.gateway import Session

logger = logging.getLogger(__name__)

# Requests refused for what is in them: a program must not be able to end its episode unscored by sending one.
_OWN_REQUEST = (TemplateError, MessageConversionError, BackendRequestError)
_PORT = 8080  # in the sandbox's own network, where every port is free
_OUTPUT_BYTES = 200_000
_SHOWN_CHARS = 2_000
DEFAULT_LIMITS = SandboxLimits(
    wall_seconds=3600.0,
    cpu_seconds=3600.0,
    memory_bytes=4 << 30,
    processes=512,
    open_files=4096,
    flood_bytes=256 << 20,
)
"""The limits of a harness if nothing else is said: agent programs are large."""


class HarnessFailedError(RuntimeError):
    """The program made no model call, or failed and `score_failures` is False."""

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message, exit_code)
        self.exit_code = exit_code

    def __str__(self) -> str:
        return str(self.args[0])


def _is_own_request(failure: BaseException | None) -> bool:
    """True if a request failed for what the program put into it, whoever refused it: the template or the gateway."""
    from strands_sglang.gateway.dialects.wire import Refused

    return isinstance(failure, _OWN_REQUEST) or (isinstance(failure, Refused) and failure.status < 500)


class HarnessEnvironment(Environment):
    """An agent program of any make as an environment: its model calls go through a gateway session of the step's model.

    The step's model decides sampling, budgets and seeds, and holds the trajectories, so evaluators, reports and
    trainers see what they see of any environment. The program brings its own loop, tools and system prompt.

    Whatever a program does to itself once it has sampled is its own: a crash, an exit code other than 0, a limit of its
    sandbox, a sandbox that it brings down. Such an episode ends as `PROGRAM_FAILED`, is scored like any other, and
    `metrics["gateway"]` says how it ended.
    `python` and `slots` are those of `BubblewrapSandbox`.

    Args:
        harness: The way the program is started, or a function from action to that.
        sandbox: Where it runs; the environment closes it. It needs a network that reaches this machine, or a
            `shared_folder` for the gateway's socket. None makes a `BubblewrapSandbox` of the options below.
        max_requests: Most model calls of an episode; the program is refused further ones.
        max_new_tokens: Most tokens of one reply, whatever the program asks for.
        max_seconds: Seconds from the first model call, after which the program is refused further ones.
        max_parallel: Most replies that are sampled at a time; further calls wait.
        final_answer: Ask for a final answer, without tool calls, before a limit or the model's `max_sampled_tokens`
            leads to a refusal: True, or the words to ask with. It is one of the calls of `max_requests`.
        score_failures: Score the episode of a program that failed. False ends it as a failure, without a reward and
            out of training; a policy can then hide its bad episodes by crashing.
        limits: The program's limits; `DEFAULT_LIMITS` if None. `wall_seconds` bounds the run.
        isolation: The barrier between the program and this machine; `none-i-accept-the-risk` turns it off.
        read_only: Files and folders of this machine to show in the sandbox, such as the program's.
        environment: Environment variables beside those of the harness.
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
        sandbox: Sandbox | None = None,
        max_requests: int | None = None,
        max_new_tokens: int | None = None,
        max_seconds: float | None = None,
        max_parallel: int | None = None,
        final_answer: bool | str = False,
        score_failures: bool = True,
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
        self.session_limits = {
            "max_requests": max_requests, "max_new_tokens": max_new_tokens, "max_seconds": max_seconds,
            "max_parallel": max_parallel, "final_answer": final_answer,
        }  # fmt: skip
        from strands_sglang.gateway.limits import Limits

        Limits.of(self.session_limits)  # a wrong one fails here
        self.score_failures = score_failures
        self._gateway_options = dict(gateway_options or {})
        self._environment = dict(environment or {})
        self._folder: Path | None = None
        if sandbox is None:
            # Short: the path of a socket has at most 107 bytes.
            self._folder = Path(tempfile.mkdtemp(prefix="gw-"))
            self._folder.chmod(0o755)
            sandbox = BubblewrapSandbox(
                limits=limits or DEFAULT_LIMITS,
                isolation=isolation,
                python=python,
                read_only=read_only,
                shared_folder=self._folder,
                slots=slots,
            )
        elif given := [
            name for name, value in (("limits", limits), ("python", python), ("slots", slots)) if value is not None
        ]:
            raise ValueError(f"{', '.join(given)}: give them to the sandbox, or give no sandbox")
        elif sandbox.capabilities.network is Network.NONE and sandbox.capabilities.shared_folder is None:
            raise ValueError(
                f"a program in {type(sandbox).__name__} cannot reach the gateway: the sandbox needs a network, or a "
                "shared_folder for the gateway's socket"
            )
        self.sandbox: Sandbox = sandbox
        self._ended: dict[str, Any] | None = None

    async def reset(self) -> None:
        """Start an episode in an empty sandbox. Override `prepare` to put a task's files into it."""
        await self.sandbox.close()
        if self._folder is not None:
            self._folder.mkdir(mode=0o755, exist_ok=True)

    async def cleanup(self) -> None:
        """End the sandbox and everything in it."""
        await self.sandbox.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def prepare(self, action: Action) -> None:
        """Put what the task needs into `self.sandbox`, before the program starts. The default does nothing."""

    async def interact(self, agent: Agent, action: Action) -> AgentResult:
        """Run the program against a session of the agent's model."""
        from strands_sglang.gateway import Gateway

        self._ended = None
        conversation = getattr(agent.model, "conversation", None)
        if conversation is None:
            raise TypeError(
                f"a harness needs a model with exact tokens (SGLangModel), got {type(agent.model).__name__}"
            )
        if not isinstance(action.message, str):
            raise TypeError(f"a harness is given its task as text, got {type(action.message).__name__}")
        if action.task_context.conversation_history:
            raise ValueError("a harness starts with an empty history; put what went before into the message")
        await self.prepare(action)
        way = self.sandbox.capabilities
        path: str | None = None
        if way.network is Network.NONE:
            path = os.path.join(str(way.shared_folder), f"gateway-{secrets.token_hex(4)}")
        # The program sees one session and nothing that makes or closes others.
        options = {"host": None if path else "127.0.0.1", "model_name": "policy", **self._gateway_options}
        options |= {"unix_path": path, "admin": False}
        async with Gateway(client=conversation.client, tokenizer=conversation.tokenizer, **options) as gateway:
            session = gateway.open(conversation=conversation, limits=self.session_limits)
            done = await self._launch(session, action, path)
            await session.close()
        self._conclude(agent, session, done)
        refused = _is_own_request(session.failure) and agent.messages
        if session.failure is not None and not refused:  # the program ended because of it, whatever its exit code
            raise session.failure
        if not session.counters.sampled or not agent.messages:
            raise HarnessFailedError(f"the program made no model call: {_explained(done)}", done.exit_code)
        if refused:
            logger.warning("error=<%s> | the program's last request was refused", session.failure)
        failed = done.outcome is not Outcome.OK
        if failed and not self.score_failures:
            raise HarnessFailedError(f"the program failed: {_explained(done)}", done.exit_code)
        return AgentResult(
            stop_reason="program_failed" if failed else "end_turn",  # type: ignore[arg-type]
            message=agent.messages[-1],
            metrics=agent.event_loop_metrics,
            state={"harness": dict(self._ended or {})},
        )

    async def _launch(self, session: Session, action: Action, socket_path: str | None) -> ExecResult:
        """Write the harness' files and run its command."""
        origin = f"http://127.0.0.1:{_PORT}" if socket_path else session.anthropic_url.partition("/s/")[0]
        url = f"{origin}/s/{session.id}"
        home = (await self.sandbox.exec("pwd")).stdout.strip()
        values = {
            "prompt": str(action.message), "base_url": f"{url}/v1", "anthropic_url": url, "google_url": url,
            "key": session.key, "home": home,
        }  # fmt: skip
        harness = (self.harness(action) if callable(self.harness) else self.harness).filled(values)
        for name, text in harness.files.items():
            await self.sandbox.write_file(os.path.join(home, name), text)
        command: list[str] = list(harness.command)
        if socket_path is not None:
            relay = Path(__file__).with_name("relay.py").read_text(encoding="utf-8")
            command = [self.sandbox.capabilities.python, "-I", "-c", relay, socket_path, str(_PORT), *command]
        return await self.sandbox.exec(
            command,
            cwd=home,
            env={"HOME": home, **self._environment, **harness.environment},
            limits=ExecLimits(output_bytes=_OUTPUT_BYTES),
        )

    def _conclude(self, agent: Agent, session: Session, done: ExecResult) -> None:
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
        self._ended = {"outcome": done.outcome.value, "exit_code": done.exit_code, **session.counters.to_json()}
        if done.outcome is not Outcome.OK:
            self._ended["failure"] = _explained(done)
        if session.failure is not None:
            self._ended["last_request"] = f"{type(session.failure).__name__}: {session.failure}"[:_SHOWN_CHARS]

    def compute_metrics(
        self, event_loop_metrics: Any, tool_parse_errors: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """The usual metrics, and under `gateway` the session's counters with the program's end."""
        return {
            **super().compute_metrics(event_loop_metrics, tool_parse_errors),
            **({} if self._ended is None else {"gateway": self._ended}),
        }


def _explained(done: ExecResult) -> str:
    how = done.outcome.value if done.exit_code is None else f"{done.outcome.value}, exit code {done.exit_code}"
    return f"{how}: {done.note} {(done.stderr or done.stdout).strip()[-_SHOWN_CHARS:]}".strip()
