"""Episodes of programs that talk to a session of the gateway: `HarnessEnvironment`, and `ProgramRun` for others."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from strands import Agent
from strands.agent.agent_result import AgentResult

from strands_env.core import Action, Environment, RewardResult, StepResult, TerminationReason
from strands_env.core.types import Trajectory
from strands_env.rewards.turns import turns_of_calls
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
from strands_sglang.limits import Limits

from ..outside_agents import conversation_of, result_of, session_of, take_over
from .recipes import Harness

if TYPE_CHECKING:
    from strands_sglang.gateway import Session
    from strands_sglang.gateway.reward import Reward

logger = logging.getLogger(__name__)

DEFAULT_LIMITS = SandboxLimits(
    wall_seconds=3600.0,
    cpu_seconds=3600.0,
    memory_bytes=4 << 30,
    processes=512,
    open_files=4096,
    flood_bytes=256 << 20,
)
"""The default limits of a harness: agent programs are large."""
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
        limits: Limits of the session.
        sends_reward: `program_reward` of `HarnessEnvironment`.

    The other arguments are those of `HarnessEnvironment`.

    Attributes:
        ended: End of the last run, with the session's counters.
        reward: The reward that its session was sent, or None.
    """

    harness: Harness | Callable[[Action], Harness]
    _: KW_ONLY
    limits: Limits = field(default_factory=Limits)
    sends_reward: bool = False
    score_failures: bool = True
    environment: Mapping[str, str] | None = None
    ended: dict[str, Any] | None = field(default=None, init=False)
    reward: Reward | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.limits.set_ones("calls", owner="the session of a program")

    async def run(
        self, agent: Agent, action: Action, sandbox: Sandbox, *, prompt: str, home: str | None = None
    ) -> AgentResult:
        """Run the program and give the step the session's messages, tokens used, and counts.

        Args:
            prompt: The program's task.
            home: Its home folder, where its configuration lies; the work directory if None.
        """
        self.ended = self.reward = None
        conversation = conversation_of(agent.model)
        first_turn = len(conversation.forest.turns)
        home = home or (await sandbox.exec("pwd")).stdout.strip()
        served, address = await self._serve(sandbox)
        session: Session | None = None
        try:
            async with session_of(conversation, served, limits=self.limits) as session:
                place, _, path = session.anthropic_url.partition("/s/")
                port = place.rpartition(":")[2]
                url = f"{place if address is None else address.format(port=port)}/s/{path}"
                values = {"base_url": f"{url}/v1", "anthropic_url": url, "google_url": url, "key": session.key}
                values |= {"prompt": prompt, "home": home, "session": session.id}
                if self.sends_reward:  # otherwise nothing in the sandbox ever holds it
                    values["reward_key"] = session.reward_key
                done = await self._launch(action, sandbox, values)
        except asyncio.CancelledError:  # the episode's time is over
            if session is not None:
                self.ended = {"outcome": "cancelled", **session.counters.to_json()}
            raise
        finally:
            if session is not None:
                take_over(agent, conversation, first_turn, session.history, session.last_turn)
                self.reward = session.reward
        return self._conclude(agent, session, done)

    async def _serve(self, sandbox: Sandbox | None) -> tuple[dict[str, Any], str | None]:
        """Options of a gateway that the sandbox, or this process, reaches, and its address in there, if another."""
        host = getattr(sandbox, "gateway_host", None)
        if sandbox is not None and sandbox.capabilities.network is Network.NONE:
            return {"listener": await sandbox.listen(_PORT)}, f"http://127.0.0.1:{_PORT}"
        if host is not None:
            return {"host": "0.0.0.0", "hosts": [host]}, f"http://{host}:{{port}}"
        return {}, None

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
        return result_of(agent, "program_failed" if failed else "end_turn", harness=dict(self.ended))


def _explain(done: ExecResult) -> str:
    """The end of a program: its cause in the first line, the end of its output below."""
    how = done.outcome.value if done.exit_code is None else f"{done.outcome.value}, exit code {done.exit_code}"
    output = (done.stderr or done.stdout).strip()[-_SHOWN_CHARS:]
    named = [line.strip() for line in output.splitlines() if not _NAMES_NO_CAUSE.fullmatch(line)]
    return f"{how}: {' '.join(filter(None, [done.note, *named[-1:]]))}\n{output}".strip()


class HarnessEnvironment(Environment):
    """An agent program of any make as an environment: its model calls go through a gateway session of the step's model.

    The step's model decides sampling, budgets and seeds, and holds the trajectories, so evaluators, reports and
    trainers see the same as of any environment. The program brings its own loop, tools and system prompt.

    A program answers for its own failure once it has sampled: a crash, an exit code other than 0, a limit of its
    sandbox, a sandbox that it brings down. Such an episode ends as `PROGRAM_FAILED`, is scored like any other, and
    `metrics["gateway"]` says how it ended.
    `python` and `slots` are those of `BubblewrapSandbox`.

    Args:
        harness: The way the program is started, or a function from action to that.
        sandbox: Where it runs; the environment closes it. It needs a network that reaches this machine, or sockets
            inside to listen on. None makes a `BubblewrapSandbox` of the options below.
        session_limits: `Limits` on the program's calls.
        max_requests, max_new_tokens, max_seconds, max_parallel, final_answer: See `Limits`.
        program_reward: Score an episode by the reward that the program itself sends, with `{reward_key}`, to
            `{anthropic_url}/reward`, for programs that bring their own grader. Any process in the sandbox can then
            send a reward, the policy's commands too. A program that fails, or is refused at a limit, before it has sent
            one scores 0; one that ends well without is an error of the reward.
        trained_agents: Names or roles (`main`, `subagent`) of the program's agents that are trained; all if None.
        score_failures: Score the episode of a program that failed. False ends it as a failure, without a reward and
            out of training; a policy can then hide its bad episodes by crashing.
        limits: The program's limits; `DEFAULT_LIMITS` if None. `wall_seconds` bounds the run.
        isolation: The barrier between the program and this machine; `none-i-accept-the-risk` turns it off.
        read_only: Files and folders of this machine to show in the sandbox, such as the program's.
        environment: Environment variables beside those of the harness.
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
        session_limits: Limits | Mapping[str, Any] | None = None,
        max_requests: int | None = None,
        max_new_tokens: int | None = None,
        max_seconds: float | None = None,
        max_parallel: int | None = None,
        final_answer: bool | str = False,
        program_reward: bool = False,
        trained_agents: Sequence[str] | None = None,
        score_failures: bool = True,
        limits: SandboxLimits | None = None,
        isolation: Isolation | str = Isolation.BUBBLEWRAP,
        read_only: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        python: str | None = None,
        slots: SandboxSlots | None = None,
        **options: Any,
    ) -> None:
        foreign = ("system_prompt", "max_tool_iters", "max_tool_calls", "max_parallel_tool_calls", "max_messages")
        wrong = ""
        if given := [name for name in foreign if options.get(name) is not None]:
            wrong = f"{', '.join(given)}: the program has its own prompt and tools; max_requests bounds it"
        elif program_reward and options.get("reward_fn") is not None:
            wrong = "program_reward and reward_fn both score the episode: give one"
        elif isinstance(trained_agents, str):
            wrong = f"trained_agents must be a list of names or roles, got {trained_agents!r}"
        if wrong:
            raise ValueError(wrong)
        super().__init__(**({**options, "reward_fn": self.sent_reward} if program_reward else options))
        self.trained_agents = trained_agents
        self.program = ProgramRun(
            harness,
            limits=Limits.of(
                session_limits,
                max_requests=max_requests,
                max_new_tokens=max_new_tokens,
                max_seconds=max_seconds,
                max_parallel=max_parallel,
                final_answer=final_answer,
            ),
            sends_reward=program_reward,
            score_failures=score_failures,
            environment=environment,
        )
        own: dict[str, Any] = {"limits": limits, "python": python, "slots": slots}
        if sandbox is None:
            own["limits"] = limits or DEFAULT_LIMITS
            sandbox = BubblewrapSandbox(isolation=isolation, read_only=read_only, **own)
        elif given := [name for name, value in own.items() if value is not None]:
            raise ValueError(f"{', '.join(given)}: give them to the sandbox, or give no sandbox")
        elif sandbox.capabilities.network is Network.NONE and not sandbox.capabilities.listens:
            raise ValueError(
                f"a program in {type(sandbox).__name__} cannot reach the gateway: the sandbox needs a network, or "
                "sockets inside to listen on"
            )
        self.sandbox: Sandbox = sandbox

    async def reset(self) -> None:
        """Start an episode in an empty sandbox. Override `prepare` to put a task's files into it."""
        await self.cleanup()

    async def cleanup(self) -> None:
        """End the sandbox and everything in it."""
        await self.sandbox.close()

    async def prepare(self, action: Action) -> None:
        """Put the task's files into `self.sandbox`, before the program starts. The default does nothing."""

    async def interact(self, agent: Agent, action: Action) -> AgentResult:
        """Run the program against a session of the agent's model."""
        if not isinstance(action.message, str):
            raise TypeError(f"a harness is given its task as text, got {type(action.message).__name__}")
        if action.task_context.conversation_history:
            raise ValueError("a harness starts with an empty history; put what went before into the message")
        await self.prepare(action)
        return await self.program.run(agent, action, self.sandbox, prompt=action.message)

    def is_trained(self, trajectory: Trajectory) -> bool:
        """Decides which trajectories are meant to be trained: those of `trained_agents`."""
        wanted = self.trained_agents
        is_wanted = wanted is None or trajectory.agent_name in wanted or trajectory.role in wanted
        return is_wanted and super().is_trained(trajectory)

    async def sent_reward(self, action: Action, result: StepResult) -> RewardResult:
        """The reward that the program sent; those of other agents' turns stay in `info`."""
        sent = self.program.reward
        if sent is None:
            if result.termination_reason is TerminationReason.TASK_COMPLETE:
                raise ValueError("the program sent no reward: it POSTs one to {anthropic_url}/reward with {reward_key}")
            return RewardResult(reward=0.0, info={"reason": "the program ended before it sent a reward"})
        turns, info = turns_of_calls(result) if sent.turns else {}, dict(sent.info)
        if others := {str(call): value for call, value in sent.turns.items() if call not in turns}:
            info["turns_of_others"] = others
        own = {turns[call]: value for call, value in sent.turns.items() if call in turns}
        return RewardResult(reward=sent.value, turn_rewards=own, info=info)

    def compute_metrics(
        self, event_loop_metrics: Any, tool_parse_errors: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """The usual metrics, the program's tool calls, and under `gateway` the session's counters with its end."""
        metrics = super().compute_metrics(event_loop_metrics, tool_parse_errors)
        if (ended := self.program.ended) is not None:
            metrics |= {"tool_calls": ended["calls"], "gateway": ended}
        return metrics
