"""`HarborEnv`: tasks in Harbor's format, with our agent, or any program, in the task's container."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harbor.agents.factory import AgentFactory
from harbor.agents.installed.base import BaseInstalledAgent
from harbor.models.trial.config import AgentConfig
from strands import Agent
from strands.agent.agent_result import AgentResult
from strands.hooks import BeforeModelCallEvent

from strands_env.core import (
    Action,
    Environment,
    RewardFunction,
    RewardResult,
    StepResult,
    TaskContext,
    TerminationReason,
)
from strands_env.core.termination import TaskTimeLimitReachedError
from strands_env.environments.harness import Harness, HarnessFailedError, ProgramRun, claude_code
from strands_env.sandbox import ExecResult, Outcome, Sandbox, SandboxError
from strands_env.sandbox.images.work import check_work
from strands_env.tools.code import DEFAULT_MAX_OUTPUT_CHARS, ContainerTools
from strands_sglang.exceptions import check_choice, refuse_unknown
from strands_sglang.limits import Limits

from .checkpoints import Checkpoint, CheckpointError
from .container import HarborSandbox
from .outcome import Part, choose_reward, read_work
from .trial import VERIFIERS, TaskTrial

_OPENAI: dict[str, Any] = {
    "model_name": "openai/policy",
    "env": {"OPENAI_API_KEY": "{key}", "OPENAI_BASE_URL": "{base_url}", "OPENAI_API_BASE": "{base_url}"},
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "terminus-2": {
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
    },
    "claude-code": {
        "model_name": "anthropic/policy",
        "env": {"ANTHROPIC_API_KEY": "{key}", **claude_code().environment, "ANTHROPIC_MODEL": "policy"},
    },
}  # fmt: skip
"""How an agent of Harbor's reaches the session; `_OPENAI` for all others."""


class HarborEnv(Environment):
    """A task in Harbor's format: its container, its instruction, its tests.

    The agent is ours, with a shell and an editor in the container; with `harness` it is a program in there, whose model
    calls go through a session of the gateway. The reward is the verifier's, or none:
    a broken, silent or slow verifier ends the step as `REWARD_ERROR`, with the error and without a reward. An agent
    that uses up the task's time is graded for its work so far, and the step ends as `TASK_TIME_LIMIT_REACHED`.

    Args:
        task_dir: Folder of the task; None takes `task_dir` of the action's context.
        backend: Where containers run: `bubblewrap`, on this machine and without a daemon, or a backend of Harbor's,
            such as `docker`.
        backend_options: Options of that backend: arguments of `BubblewrapEnvironment`, or fields of Harbor's
            `EnvironmentConfig`.
        verifier: "task" runs the tests in a fresh container of the image, over which only the agent's work is laid,
            unless the task asks for "separate": another container, to which only declared artifacts are copied.
            "in-place" runs them in the agent's own, for tasks that need the whole disk: the agent can forge the reward.
            Harbor's backends have no other way.
        keep_processes: Let the agent's processes live on while the tests run, in place, for tasks that ask for a
            server: forgeable too.
        work: Paths that count as the agent's work beside the work directory, such as `/etc/nginx`; or the folder that
            `strands-env check -o` wrote. None takes those of the action's context, those the task declares, or the
            default ones.
        reward_key: Name of the reward, where the verifier gives several.
        max_output_chars: Characters of each output stream in a tool result.
        command_seconds: Seconds of a command for which the agent names none.
        harness: A program to do the task, in the container; see `HarnessEnvironment`, also for `score_failures` and
            `environment`.
        agent: `strands-harness` for the agent of `StrandsHarnessEnv`, in this process, with its tools in the container;
            or an agent of Harbor's, by its name, such as `terminus-2`, or as `module:Class`.
        agent_options: For `strands-harness` its `harness` and `today`, as `StrandsHarnessEnv` has them. For an agent of
            Harbor's its `model_name`, `kwargs` and `env`, over ours; `{base_url}` and `{key}` are the session's.
        session_limits: `Limits` on the program's model calls, as such or by name.
        checkpoints: Folder to keep the episode in before each model call but the first, as `EPISODE/turn-K`, to go on
            from there; for our agent on the backend `bubblewrap`, and tasks of one step.
        start_from: Checkpoint to start from, or its folder: the same files, history and tokens.
        gateway_host: Name under which a program in a container of Harbor's backends reaches this machine, such as
            `host.docker.internal`. The backend `bubblewrap` needs none.
        **options: Further arguments of `Environment`. With `reward_fn` that function scores instead of the verifier.

    Raises:
        ValueError: An option is out of range.
    """

    default_system_prompt_path = Path(__file__).parents[1] / "prompts" / "harbor.md"

    def __init__(
        self,
        *,
        task_dir: str | Path | None = None,
        backend: str = "bubblewrap",
        backend_options: Mapping[str, Any] | None = None,
        verifier: str = "task",
        keep_processes: bool = False,
        work: Sequence[str] | str | Path | None = None,
        reward_key: str | None = None,
        max_output_chars: int | None = DEFAULT_MAX_OUTPUT_CHARS,
        command_seconds: float = 180.0,
        harness: Harness | Callable[[Action], Harness] | None = None,
        agent: str | None = None,
        agent_options: Mapping[str, Any] | None = None,
        session_limits: Limits | Mapping[str, Any] | None = None,
        score_failures: bool = True,
        environment: Mapping[str, str] | None = None,
        checkpoints: str | Path | None = None,
        start_from: Checkpoint | str | Path | None = None,
        gateway_host: str | None = None,
        **options: Any,
    ) -> None:
        check_choice(VERIFIERS, verifier=verifier)
        if harness is not None and agent is not None:
            raise ValueError("give a harness or an agent, not both")
        if harness is not None or agent is not None:
            options = {"system_prompt": "", **options}
        options = {"reward_fn": _VerifierReward(self), "tool_timeout": None, "cleanup_timeout": 300.0, **options}
        super().__init__(**options)
        keeps = checkpoints is not None or start_from is not None
        if keeps and (backend != "bubblewrap" or harness is not None or agent is not None):
            raise ValueError(
                "episodes are kept and continued with our own agent on the backend 'bubblewrap': no other has snapshots"
            )
        self.checkpoints = None if checkpoints is None else Path(checkpoints)
        if isinstance(start_from, str | Path):
            start_from = Checkpoint.load(start_from)
        self.start_from = start_from
        if start_from is not None:
            backend_options = {**(backend_options or {}), "snapshot": start_from.files}
        self.task_dir = None if task_dir is None else Path(task_dir)
        self.reward_key = reward_key
        self._trial_options: dict[str, Any] = {
            "backend": backend,
            "backend_options": backend_options,
            "verifier": verifier,
            "keep_processes": keep_processes,
        }
        self._work: Mapping[str, Sequence[str] | None] | Sequence[str] | None = None
        if work is not None:
            self._work = read_work(work) if isinstance(work, str | Path) else check_work(work)
        session: dict[str, Any] = {"limits": Limits.of(session_limits), "score_failures": score_failures}
        session["environment"] = environment
        self.sandbox = HarborSandbox(None, gateway_host=gateway_host)
        self.program: ProgramRun | None = None
        self._strands: Environment | None = None
        if agent == "strands-harness":
            from strands_env.environments import StrandsHarnessEnv  # needs its package

            refuse_unknown("agent_options", agent_options or (), ("harness", "today"))
            self._strands = StrandsHarnessEnv(sandbox=self.sandbox, **options, **(agent_options or {}))
        elif agent is not None:
            self.program = NamedAgentRun(agent, agent_options, **session)
        elif harness is not None:
            self.program = ProgramRun(harness, **session)
        self._tools = ContainerTools(self.sandbox, max_output_chars=max_output_chars, command_seconds=command_seconds)
        self.trial: TaskTrial | None = None
        self._seconds: dict[str, float] = {}
        self._context = TaskContext()
        self._episode = ""

    def get_tools(self) -> list[Any]:
        """A shell and an editor in the container; nothing for a program or a harness, which have their own."""
        if self.program is not None or self._strands is not None:
            return []
        return [self._tools.execute_command, self._tools.edit_file]

    def get_hooks(self) -> list[Any]:
        """The keeper of checkpoints."""
        return [] if self.checkpoints is None else [self.keep_checkpoint]

    def make_agent(self, **options: Any) -> Agent:
        """Our agent, or that of strands-harness."""
        if self._strands is None:
            return super().make_agent(**options)
        return self._strands.make_agent(**{**options, "system_prompt": options["system_prompt"] or None})

    async def keep_checkpoint(self, event: BeforeModelCallEvent) -> None:
        """Keep the episode before a model call, unless nothing was sampled since it began."""
        assert self.checkpoints is not None and self.trial is not None
        place = self.checkpoints / self._episode
        checkpoint = Checkpoint.of(event.agent, place, self.trial.task_folder.name)
        if checkpoint.turn == (0 if self.start_from is None else self.start_from.turn):
            return  # it would be the start once more
        checkpoint = replace(checkpoint, path=str(place / f"turn-{checkpoint.turn}"))
        await self.trial.snapshot(checkpoint.files)
        await asyncio.to_thread(checkpoint.save)

    async def reset(self) -> None:
        """Start the task's container."""
        await self.cleanup()
        self._tools.forget()
        if self.task_dir is not None:
            await self._start(self.task_dir)

    async def cleanup(self) -> None:
        """End the trial and its container."""
        trial, self.trial = self.trial, None
        if trial is not None:
            await trial.close()

    async def _start(self, task_dir: Path) -> TaskTrial:
        started = time.perf_counter()
        work = self._work.get(task_dir.name) if isinstance(self._work, Mapping) else self._work
        self.trial = TaskTrial(task_dir, work=work, **self._trial_options)
        self._episode = f"{task_dir.name}-{uuid.uuid4().hex[:8]}"
        if self.start_from is not None and self.start_from.task != task_dir.name:
            raise CheckpointError(f"the checkpoint is of the task {self.start_from.task!r}, got {task_dir.name!r}")
        await self.trial.start()
        if self.trial.steps > 1 and (self.checkpoints is not None or self.start_from is not None):
            raise CheckpointError("tasks of several steps have no checkpoints")
        self._seconds = {"start_s": round(time.perf_counter() - started, 4)}
        return self.trial

    async def interact(self, agent: Agent, action: Action) -> AgentResult:
        """Do the task: one conversation over all its steps."""
        trial, self._context = self.trial, action.task_context
        if trial is None:
            task_dir = getattr(action.task_context, "task_dir", None)
            if task_dir is None:
                raise ValueError("HarborEnv needs a task: give task_dir, or an action whose context has it")
            trial = await self._start(Path(task_dir))
        result: AgentResult | None = None
        limit: Exception | None = None
        failure: Exception | None = None

        async def act(part: Part) -> None:
            nonlocal result, limit, failure
            # A limit ends the agent, not the trial: Harbor still asks for its other steps, and grades what is there.
            if limit is not None:
                return
            self.sandbox.bind(part.environment)
            try:
                result = await self.act(agent, part)
            except asyncio.CancelledError:
                limit = TaskTimeLimitReachedError("the task's time for the agent is over")
                if self.program is None or self.program.ended is None or self.program.ended["sampled"]:
                    raise
                failure = HarnessFailedError(
                    "the program made no model call in the task's time: run its command in the container by hand, and "
                    "see what it waits for"
                )
            except Exception as error:
                if TerminationReason.from_error(error).is_limit:
                    limit = error
                else:
                    failure = error
            # A lost container is the cause of what follows it.
            failure = self._tools.failure or getattr(agent.sandbox, "failure", None) or failure
            if failure is not None:
                raise failure

        await trial.run_parts(act)
        if failure is not None or limit is not None:
            raise failure or limit  # type: ignore[misc]
        if result is None:
            await trial.reward()  # raises why there was nothing to do
            raise RuntimeError("the task had no part for the agent")
        return result

    async def act(self, agent: Agent, part: Part) -> AgentResult:
        """Follow one instruction: ask the agent, or run the program. Override it for another way to act."""
        if self.start_from is not None:
            self.start_from.recall(agent)
            return await self.invoke(agent, None)
        if self._strands is not None:
            return await self._strands.invoke(agent, part.instruction)
        if self.program is None:
            return await self.invoke(agent, part.instruction)
        if isinstance(self.program, NamedAgentRun):
            self.program.part = part
        action = Action(message=part.instruction, task_context=self._context)
        # The image says where it is; this process' own home means nothing in there.
        home = (await self.sandbox.exec('printf %s "$HOME"')).stdout or "/"
        return await self.program.run(agent, action, self.sandbox, prompt=part.instruction, home=home)

    def compute_metrics(
        self, event_loop_metrics: Any, tool_parse_errors: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """The usual metrics, and `container`: seconds to start it; for a program also `gateway`."""
        metrics = super().compute_metrics(event_loop_metrics, tool_parse_errors)
        ended = {} if self.program is None or self.program.ended is None else {"gateway": self.program.ended}
        start = self.start_from
        continued = {} if start is None else {"continued_from": {"checkpoint": start.path, "turn": start.turn}}
        return {**metrics, "container": dict(self._seconds), "episode": self._episode, **ended, **continued}


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

    async def _serve(self, sandbox: Sandbox | None) -> tuple[dict[str, Any], str | None]:
        # An agent that runs in this process reaches the gateway's own port, and the container only by its commands.
        return await super()._serve(sandbox if self._is_inside else None)

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


class _VerifierReward(RewardFunction):
    """The reward of the task's verifier."""

    def __init__(self, env: HarborEnv) -> None:
        self._env = env

    def identity(self) -> dict[str, Any]:
        """The key of the reward; tests and their digest are the task's."""
        return {"reward_key": self._env.reward_key}

    def examples(self, action: Action) -> None:
        """None: `validate` proves a task in a container."""

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        trial = self._env.trial
        assert trial is not None
        rewards = await trial.reward()
        return RewardResult(reward=choose_reward(rewards, self._env.reward_key), info=trial.reward_info(rewards))
