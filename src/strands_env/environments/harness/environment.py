"""`HarnessEnvironment`: an episode is a program that talks to a session of the gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strands import Agent
from strands.agent.agent_result import AgentResult

from strands_env.core import Action, Environment, RewardResult, StepResult, TerminationReason
from strands_env.core.types import Trajectory
from strands_env.rewards.turns import turns_of_calls
from strands_env.sandbox import BubblewrapSandbox, Isolation, Network, Sandbox, SandboxLimits, SandboxSlots

from .program import ProgramRun
from .recipes import Harness

DEFAULT_LIMITS = SandboxLimits(
    wall_seconds=3600.0,
    cpu_seconds=3600.0,
    memory_bytes=4 << 30,
    processes=512,
    open_files=4096,
    flood_bytes=256 << 20,
)
"""The limits of a harness if nothing else is said: agent programs are large."""


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
        sandbox: Where it runs; the environment closes it. It needs a network that reaches this machine, or sockets
            inside to listen on. None makes a `BubblewrapSandbox` of the options below.
        max_requests: Most model calls of an episode; the program is refused further ones.
        max_new_tokens: Most tokens of one reply, whatever the program asks for.
        max_seconds: Seconds from the first model call, after which the program is refused further ones.
        max_parallel: Most replies that are sampled at a time; further calls wait.
        final_answer: Ask for a final answer, without tool calls, before a limit or the model's `max_sampled_tokens`
            leads to a refusal: True, or the words to ask with. It is one of the calls of `max_requests`.
        program_reward: Score an episode by what the program itself sends, with `{reward_key}`, to
            `{anthropic_url}/reward`, for programs that bring their own grader. Whatever runs in the sandbox can then
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
        if given := [name for name in foreign if options.get(name) is not None]:
            raise ValueError(f"{', '.join(given)}: the program has its own prompt and tools; max_requests bounds it")
        if program_reward and options.get("reward_fn") is not None:
            raise ValueError("program_reward and reward_fn both score the episode: give one")
        super().__init__(**({**options, "reward_fn": self.sent_reward} if program_reward else options))
        if isinstance(trained_agents, str):
            raise ValueError(f"trained_agents must be a list of names or roles, got {trained_agents!r}")
        self.trained_agents = trained_agents
        self.program = ProgramRun(
            harness,
            limits={
                "max_requests": max_requests, "max_new_tokens": max_new_tokens, "max_seconds": max_seconds,
                "max_parallel": max_parallel, "final_answer": final_answer,
            },
            sends_reward=program_reward,
            score_failures=score_failures,
            environment=environment,
        )  # fmt: skip
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
        """Put what the task needs into `self.sandbox`, before the program starts. The default does nothing."""

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
