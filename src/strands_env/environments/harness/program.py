"""`ProgramRun`: an agent program in a sandbox, against a session of the step's model."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from strands import Agent
from strands.agent.agent_result import AgentResult
from strands.telemetry.metrics import EventLoopCycleMetric
from strands.types.event_loop import Usage

from strands_env.core import Action
from strands_env.sandbox import ExecLimits, ExecResult, Network, Outcome, Sandbox
from strands_sglang.exceptions import BackendRequestError, MessageConversionError, TemplateError

from .recipes import Harness

if TYPE_CHECKING:
    from strands_sglang.gateway import Gateway, Session
    from strands_sglang.gateway.reward import Reward

logger = logging.getLogger(__name__)

# Requests refused for what is in them: a program must not be able to end its episode unscored by sending one.
_OWN_REQUEST = (TemplateError, MessageConversionError, BackendRequestError)
_PORT = 8080  # in the sandbox's own network, where every port is free
_OUTPUT_BYTES = 200_000
_SHOWN_CHARS = 2_000
# Lines at the end of a failed program's output: marks below code, the stack of Node, and its version.
_NAMES_NO_CAUSE = re.compile(r"[\s^~]*|\s+at .*|Node\.js v.*")


class HarnessFailedError(RuntimeError):
    """The program made no model call, or failed and `score_failures` is False."""


@dataclass(eq=False)
class ProgramRun:
    """Runs an agent program whose model calls go through a gateway session of the step's model.

    Args:
        limits: Limits of the session, by the names that `HarnessEnvironment` has for them.
        sends_reward: `program_reward` of `HarnessEnvironment`.

    The other arguments are those of `HarnessEnvironment`.

    Attributes:
        ended: End of the last run, with the session's counters.
        reward: The reward that its session was sent, or None.
    """

    harness: Harness | Callable[[Action], Harness]
    _: KW_ONLY
    limits: Mapping[str, Any] = field(default_factory=dict)
    sends_reward: bool = False
    score_failures: bool = True
    environment: Mapping[str, str] | None = None
    ended: dict[str, Any] | None = field(default=None, init=False)
    reward: Reward | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        from strands_sglang.gateway.options import SessionOptions

        SessionOptions().with_limits(self.limits)  # a wrong one fails here

    async def run(
        self, agent: Agent, action: Action, sandbox: Sandbox, *, prompt: str, home: str | None = None
    ) -> AgentResult:
        """Run the program and give the step the session's messages, tokens used, and counts.

        Args:
            prompt: The program's task.
            home: Its home folder, where its configuration lies; the work directory if None.
        """
        self.ended = self.reward = None
        conversation = getattr(agent.model, "conversation", None)
        if conversation is None:
            raise TypeError(
                f"a harness needs a model with exact tokens (SGLangModel), got {type(agent.model).__name__}"
            )
        seen = len(conversation.forest.turns)
        home = home or (await sandbox.exec("pwd")).stdout.strip()
        async with self._gateway(conversation, sandbox) as (gateway, origin):
            # The model's own conversation: what the program samples are trajectories of the step.
            session = gateway.open(conversation=conversation, limits=self.limits)
            url = f"{origin or session.anthropic_url.partition('/s/')[0]}/s/{session.id}"
            values = {"base_url": f"{url}/v1", "anthropic_url": url, "google_url": url, "key": session.key}
            values |= {"prompt": prompt, "home": home, "session": session.id}
            if self.sends_reward:  # else nothing in the sandbox ever holds it
                values["reward_key"] = session.reward_key
            try:
                done = await self._launch(action, sandbox, values)
            except asyncio.CancelledError:  # the episode's time is over
                await session.drop()
                self._take_over(agent, session, seen)
                self.ended = {"outcome": "cancelled", **session.counters.to_json()}
                raise
            await session.close()
        self._take_over(agent, session, seen)
        return self._conclude(agent, session, done)

    @contextlib.asynccontextmanager
    async def _gateway(self, conversation: Any, sandbox: Sandbox | None) -> AsyncIterator[tuple[Gateway, str | None]]:
        """A gateway that the sandbox, or this process, reaches, and its address there, where that is another."""
        from strands_sglang.gateway import Gateway

        origin, host = None, getattr(sandbox, "gateway_host", None)
        # The program sees one session and nothing that makes or closes others.
        options: dict[str, Any] = {"host": "127.0.0.1", "model_name": "policy", "admin": False}
        if sandbox is not None and sandbox.capabilities.network is Network.NONE:
            origin = f"http://127.0.0.1:{_PORT}"
            options |= {"host": None, "listener": await sandbox.listen(_PORT)}
        elif host is not None:
            options |= {"host": "0.0.0.0", "hosts": [host]}
        async with Gateway(client=conversation.client, tokenizer=conversation.tokenizer, **options) as gateway:
            if host is not None:
                origin = f"http://{host}:{gateway.url.rpartition(':')[2]}"
            yield gateway, origin

    async def _launch(self, action: Action, sandbox: Sandbox, values: Mapping[str, str]) -> ExecResult:
        """Write the harness' files and run its command."""
        launch = (self.harness(action) if callable(self.harness) else self.harness).fill(values)
        if not self.sends_reward and "{reward_key}" in str(launch):
            raise ValueError("the harness names {reward_key}: that needs an environment with program_reward=True")
        for name, text in launch.files.items():
            await sandbox.write_file(os.path.join(values["home"], name), text)
        return await sandbox.exec(
            launch.command,
            env={"HOME": values["home"], **(self.environment or {}), **launch.environment},
            limits=ExecLimits(output_bytes=_OUTPUT_BYTES),
        )

    def _take_over(self, agent: Agent, session: Session, seen: int) -> None:
        """Give the agent the session's messages, tokens used, and counts."""
        self.reward = session.reward
        agent.messages.extend(session.history)  # type: ignore[arg-type]
        if session.last_turn is not None:  # titles and sub-agents may have come after it
            session.conversation.forest.show(session.last_turn)
        metrics = agent.event_loop_metrics
        metrics.reset_usage_metrics()  # the agent itself was never invoked
        for turn in session.conversation.forest.turns[seen:]:
            prompt, sampled = turn.start + len(turn.prompt_ids), len(turn.completion.output_ids)
            usage = Usage(inputTokens=prompt, outputTokens=sampled, totalTokens=prompt + sampled)
            if turn.completion.cached_tokens is not None:
                usage["cacheReadInputTokens"] = turn.completion.cached_tokens
            zero = Usage(inputTokens=0, outputTokens=0, totalTokens=0)
            metrics.agent_invocations[-1].cycles.append(EventLoopCycleMetric(f"turn-{turn.index}", zero))
            metrics.update_usage(usage)
            metrics.cycle_count += 1

    def _conclude(self, agent: Agent, session: Session, done: ExecResult) -> AgentResult:
        self.ended = {"outcome": done.outcome.value, "exit_code": done.exit_code, **session.counters.to_json()}
        failed, failure = done.outcome is not Outcome.OK, session.failure
        if failed:
            self.ended["failure"] = _explain(done)
        if failure is not None:
            self.ended["last_request"] = f"{type(failure).__name__}: {failure}"[:_SHOWN_CHARS]
        from strands_sglang.gateway.dialects.wire import Refused

        # Refused for what the program put into its request, by the template or by the gateway.
        is_own = isinstance(failure, _OWN_REQUEST) or (isinstance(failure, Refused) and failure.status < 500)
        refused = is_own and agent.messages
        if failure is not None and not refused:  # the program ended because of it, whatever its exit code
            raise failure
        if not session.counters.sampled or not agent.messages:
            raise HarnessFailedError(f"the program made no model call: {_explain(done)}")
        if refused:
            logger.warning("error=<%s> | the program's last request was refused", failure)
        if failed and not self.score_failures:
            raise HarnessFailedError(f"the program failed: {_explain(done)}")
        return AgentResult(
            stop_reason="program_failed" if failed else "end_turn",  # type: ignore[arg-type]
            message=agent.messages[-1],
            metrics=agent.event_loop_metrics,
            state={"harness": dict(self.ended)},
        )


def _explain(done: ExecResult) -> str:
    """How a program ended: its cause in the first line, the end of its output below."""
    how = done.outcome.value if done.exit_code is None else f"{done.outcome.value}, exit code {done.exit_code}"
    output = (done.stderr or done.stdout).strip()[-_SHOWN_CHARS:]
    named = [line.strip() for line in output.splitlines() if not _NAMES_NO_CAUSE.fullmatch(line)]
    return f"{how}: {' '.join(filter(None, [done.note, *named[-1:]]))}\n{output}".strip()
