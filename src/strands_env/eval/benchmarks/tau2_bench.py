"""tau2-bench (Barres et al. 2025): an agent serves a simulated user under a policy, with tools that change a database.

Tasks, policies, tools, the user's instructions and the evaluator are those of the package the user installs; the agent
and the user are Strands agents. What the package's own runner counts (steps, tool errors) ends an episode here, too, so
the reward is the published one for the same model of the user. Not covered: voice, solo mode and `banking_knowledge`.

The package `tau2` of PyPI is another project; see `INSTALL`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module, util
from typing import Any, ClassVar

from strands import Agent
from strands.agent.agent_result import AgentResult
from strands.hooks import BeforeToolCallEvent, MessageAddedEvent
from strands.tools.executors import SequentialToolExecutor
from strands.types.tools import AgentTool, ToolUse

from strands_env.core import Action, Environment, ModelFactory, RewardFunction, RewardResult, StepResult
from strands_env.core.backends import model_factory_from_args
from strands_env.core.chat_messages import spoken_text
from strands_env.core.types import check_factory
from strands_env.environments.chat import ask, user_agent
from strands_env.eval.errors import DatasetError
from strands_env.eval.run.benchmark import Benchmark, Row
from strands_env.tools.results import make_tool, text_result
from strands_sglang import MaxToolIterationsReachedError
from strands_sglang.conversation.messages import MALFORMED_KEY

INSTALL = "git clone https://github.com/sierra-research/tau2-bench && pip install -e ./tau2-bench"
# Limits of the package's command line for an episode: messages (a batch of tool results counts as one), and tool calls
# that may fail.
MAX_STEPS, MAX_ERRORS = 200, 10


def _tau2(module: str) -> Any:
    """A module of tau2; a `DatasetError` where it is absent, the other package of that name, or lacks what it needs."""
    if util.find_spec("loguru") is not None:  # it logs every message of every episode to stderr
        import_module("loguru").logger.disable("tau2")
    try:
        return import_module(f"tau2.{module}")
    except ImportError as error:
        raise DatasetError(
            f"tau2-bench is not installed: {INSTALL} ({error}; where the package 'tau2' of PyPI is, which is another "
            "project, uninstall that first)"
        ) from error


class Tau2Episode:
    """A conversation: the database, and the messages in the package's form."""

    def __init__(self, domain: str, task: Mapping[str, Any]) -> None:
        self._forms = _tau2("data_model.message")
        self.domain = domain
        self.task = _tau2("data_model.tasks").Task.model_validate(task)
        self.steps = 0
        self.errors = 0
        self.end: str | None = None
        self.messages = list(_opening(self.task))
        self.database = _tau2("registry").registry.get_env_constructor(domain)()
        state = self.task.initial_state
        self.database.set_state(
            initialization_data=getattr(state, "initialization_data", None),
            initialization_actions=getattr(state, "initialization_actions", None),
            message_history=list(getattr(state, "message_history", None) or ()),
        )
        self._results: dict[str, Any] = {}  # of the calls that ran, by id
        self._calls: list[str] = []  # ids of the calls that wait for their results
        self._text = ""  # said beside them

    def tools(self, requestor: str) -> list[AgentTool]:
        """The tools of the agent (`assistant`) or of the user."""
        if requestor == "assistant":
            offered = self.database.get_tools()
        elif self.database.user_tools is None:
            return []
        else:
            offered = self.database.get_user_tools(include=self.task.user_tools)
        functions = [tool.openai_schema["function"] for tool in offered]
        return [self.tool(each["name"], requestor, each["description"], each["parameters"]) for each in functions]

    def tool(self, name: str, requestor: str, description: str = "", schema: Any = None) -> AgentTool:
        """A tool of the database, or of a name that was not offered: both answer with the text of the package."""

        async def run(tool_use: ToolUse) -> dict[str, Any]:
            arguments = dict(tool_use["input"])
            call = self._forms.ToolCall(id=tool_use["toolUseId"], name=name, arguments=arguments, requestor=requestor)
            result = self.database.get_response(call)
            self._results[call.id] = call, result
            return text_result(str(result.content))

        return make_tool(name, description or name, schema or {}, run)

    def hooks(self, requestor: str) -> list[Any]:
        """Hooks of an agent: the episode gets its messages, and its calls of tools that do not exist."""

        def add_message(event: MessageAddedEvent) -> None:
            self.add(event.message, requestor)
            if self.end is not None:
                event.agent.cancel(after_current_tools=True)  # behind the tool results, with no message of its own

        def find_tool(event: BeforeToolCallEvent) -> None:
            if event.selected_tool is None and MALFORMED_KEY not in (event.tool_use.get("input") or {}):
                event.selected_tool = self.tool(event.tool_use["name"], requestor)

        return [add_message, find_tool]

    def add(self, message: Mapping[str, Any], requestor: str) -> None:
        """Take a message of the agent or of the user, and the results of their tools, into the episode."""
        content = message["content"]
        form = self._forms.AssistantMessage if requestor == "assistant" else self._forms.UserMessage
        if message["role"] == "assistant":
            self.steps += 1
            self._calls = [block["toolUse"]["toolUseId"] for block in content if "toolUse" in block]
            self._text = spoken_text(message).strip()
            if not self._calls:
                self.messages.append(form(role=requestor, content=self._text or None, tool_calls=None))
        elif self._calls and any("toolResult" in block for block in content):
            self.steps += 1
            ran = [self._results.pop(key) for key in self._calls if key in self._results]
            # A malformed call never reached the database.
            self.errors += len(self._calls) - sum(not result.error for _, result in ran)
            if ran:
                calls = [call for call, _ in ran]
                self.messages.append(form(role=requestor, content=self._text or None, tool_calls=calls))
                self.messages += [result for _, result in ran]
            self._calls = []
            self.check()

    def check(self) -> None:
        """End the episode where it has had its steps or errors."""
        if self.end is None and self.errors >= MAX_ERRORS:
            self.end = "too_many_errors"
        elif self.end is None and self.steps >= MAX_STEPS:
            self.end = "max_steps"

    def evaluate(self) -> Any:
        """The verdict of the package's evaluator; an episode that the user did not end is worth 0."""
        now = _tau2("utils.utils").get_now()
        messages = [message.model_copy(update={"turn_idx": turn}) for turn, message in enumerate(self.messages)]
        simulation = _tau2("data_model.simulation").SimulationRun(
            id=self.task.id,
            task_id=self.task.id,
            start_time=now,
            end_time=now,
            duration=0.0,
            termination_reason=self.end or "agent_error",
            messages=messages,
        )
        evaluator = _tau2("evaluator.evaluator")
        return evaluator.evaluate_simulation(
            simulation=simulation,
            task=self.task,
            evaluation_type=evaluator.EvaluationType.ALL,
            solo_mode=False,
            domain=self.domain,
        )


class Tau2Env(Environment):
    """A conversation of tau2-bench in one step: agent and simulated user, each with tools of one database.

    The agent's tokens are the main trajectory; the user's are another, which is not trained.

    Args:
        domain: `airline`, `retail`, `telecom` or `mock`.
        user_model: Makes the user's model, or options of `model_factory_from_args` for it, such as
            `{"backend": "openai", "model_id": "gpt-4.1-2025-04-14"}`, the published one. None lets the evaluated model
            play the user, whose scores compare with nothing published.
        **options: Further arguments of `Environment`.

    Raises:
        DatasetError: tau2-bench is not installed.
    """

    def __init__(
        self,
        *,
        domain: str,
        user_model: ModelFactory | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        defaults = {"reward_fn": Tau2Reward(self), "tool_timeout": None, "max_tool_output_chars": None}
        super().__init__(**{"system_prompt": system_prompt(domain), **defaults, **options})
        self.domain = domain
        if user_model is not None and not isinstance(user_model, Mapping):
            check_factory(user_model, "user_model")
        self.user_model = model_factory_from_args(**user_model) if isinstance(user_model, Mapping) else user_model
        self._episode: Tau2Episode | None = None

    async def reset(self, action: Action) -> None:
        """Set the database up."""
        self._episode = None
        task = action.task_context.model_dump()["task"]
        self._episode = await asyncio.to_thread(Tau2Episode, self.domain, task)

    @property
    def episode(self) -> Tau2Episode:
        """The one that runs, or has just ended; a `RuntimeError` without one."""
        if self._episode is None:
            raise RuntimeError("no episode of tau2-bench is running: its reward cannot score a saved rollout")
        return self._episode

    def get_tools(self) -> list[Any]:
        """The agent's tools."""
        return list(self.episode.tools("assistant"))

    def get_hooks(self) -> list[Any]:
        """The recorder of the episode."""
        return self.episode.hooks("assistant")

    async def interact(self, agent: Agent, action: Action) -> AgentResult:
        """Let the two talk until the user ends it."""
        episode = self.episode
        agent.tool_executor = SequentialToolExecutor()  # calls of one reply change one database, in their order
        user = self._user(episode)
        result = AgentResult("end_turn", {"role": "assistant", "content": []}, agent.event_loop_metrics, {})
        message = str(episode.messages[-1].content)
        while True:
            reply = await ask(user, message)
            self._check(episode)
            if not reply:
                raise RuntimeError("the simulated user said nothing")
            if _tau2("user.user_simulator").UserSimulator.is_stop(episode.messages[-1]):
                episode.end = "user_stop"
                return result
            result = await self.invoke(agent, reply)
            self._check(episode)
            message = spoken_text(result.message).strip()
            if result.stop_reason != "end_turn":
                return result
            if not message:
                episode.end = "agent_error"
                return result

    def _check(self, episode: Tau2Episode) -> None:
        episode.check()
        if episode.end is not None:
            raise MaxToolIterationsReachedError(MAX_STEPS, episode.steps)

    def _user(self, episode: Tau2Episode) -> Agent:
        tools = episode.tools("user")
        instructions = str(episode.task.user_scenario)
        simulator = _tau2("user.user_simulator").UserSimulator
        return user_agent(
            self.model_for("user", trainable=False, model_factory=self.user_model),
            simulator(llm="", instructions=instructions, tools=tools or None).system_prompt,
            messages=_history(episode.messages[:-1], "user"),
            tools=list(tools),
            hooks=episode.hooks("user"),
            tool_executor=SequentialToolExecutor(),
            name="user",
        )


class Tau2Reward(RewardFunction):
    """The package's evaluator: the final database, and what a task asks for besides.

    Tasks with assertions in natural language are judged by the model that the package names (gpt-4.1), which needs its
    key. `info` has the package's `reward_info`, how the episode ended (`end`), and its `steps` and `errors`.
    """

    def __init__(self, env: Tau2Env) -> None:
        self._env = env

    def identity(self) -> dict[str, Any]:
        """Nothing: the task and the package decide."""
        return {}

    def examples(self, action: Action) -> None:
        """None: the database decides, not the answer."""

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Evaluate the environment's last episode; a saved rollout lacks its database."""
        episode = self._env.episode
        verdict = await asyncio.to_thread(episode.evaluate)
        info = {"end": episode.end or "agent_error", "steps": episode.steps, "errors": episode.errors}
        info["reward_info"] = verdict.model_dump(mode="json", exclude_none=True)
        return RewardResult(reward=verdict.reward, info=info)


def system_prompt(domain: str) -> str:
    """The agent's instructions and the policy of a domain, as the package puts them."""
    texts = _tau2("agent.llm_agent")
    policy = _tau2("registry").registry.get_env_constructor(domain)().get_policy()
    return str(texts.SYSTEM_PROMPT.format(agent_instruction=texts.AGENT_INSTRUCTION, domain_policy=policy))


def _opening(task: Any) -> list[Any]:
    """The messages that a task begins with: its own, or the agent's greeting."""
    greeting = _tau2("orchestrator.orchestrator").DEFAULT_FIRST_AGENT_MESSAGE
    return getattr(task.initial_state, "message_history", None) or [greeting.model_copy()]


def _history(messages: Sequence[Any], requestor: str) -> list[Any]:
    """Messages of the package as Strands messages, as the agent (`assistant`) or the user sees them."""
    seen: list[Any] = []
    for message in messages:
        calls = getattr(message, "tool_calls", None) or ()
        content: list[Any]
        if message.role == "tool":
            if message.requestor != requestor:
                continue
            result = {"toolUseId": message.id, "status": "success", "content": [{"text": str(message.content)}]}
            role, content = "user", [{"toolResult": result}]
        elif message.role == requestor:
            uses = [{"toolUseId": call.id, "name": call.name, "input": call.arguments} for call in calls]
            text = [{"text": message.content}] if message.content else []
            role, content = "assistant", [*text, *({"toolUse": use} for use in uses)]
        elif calls:
            continue
        else:
            role, content = "user", [{"text": str(message.content)}]
        # Strands takes the results of one batch of calls as one message.
        if seen and role == "user" == seen[-1]["role"] and message.role == "tool":
            seen[-1]["content"] += content
        else:
            seen.append({"role": role, "content": content})
    return seen


class Tau2Evaluator(Benchmark):
    """A domain of tau2-bench; needs tau2-bench from GitHub, and a model for the user."""

    has_local_rows = True
    domain: ClassVar[str]

    @classmethod
    def environment(cls, model_factory: ModelFactory, **options: Any) -> Callable[[], Environment]:
        """The domain, with a user played by `user_model`."""
        options = {"system_prompt": system_prompt(cls.domain), **options}
        return lambda: Tau2Env(model_factory=model_factory, domain=cls.domain, **options)

    def rows(self) -> Iterator[Row]:
        """The tasks of the split `base`, which is the published one.

        Raises:
            DatasetError: tau2-bench is not installed, or its data is not where it looks.
        """
        load = _tau2("registry").registry.get_tasks_loader(self.domain)
        try:
            tasks = load("base")
        except OSError as error:
            raise DatasetError(
                f"tau2-bench has no tasks for {self.domain!r}: {error}; install it from a clone, which has the data "
                f"({INSTALL}), or set TAU2_DATA_DIR"
            ) from error
        for task in tasks:
            yield dict(task.model_dump(mode="json"))

    def action(self, row: Row, index: int) -> Action | None:
        """The task; its message is the user's scenario, which the agent never sees."""
        task = _tau2("data_model.tasks").Task.model_validate(row)
        opening = _opening(task)
        if opening[-1].role != "assistant" or opening[-1].tool_calls:
            return None  # neither of the two would speak next
        history = _history(opening, "assistant")
        return self.task(task.id, str(task.user_scenario), conversation_history=history, task=dict(row))


class Tau2AirlineEvaluator(Tau2Evaluator):
    """tau2-bench, airline: 50 tasks; needs tau2-bench from GitHub, and a model for the user."""

    benchmark_name = "tau2-airline"
    domain = "airline"


class Tau2RetailEvaluator(Tau2Evaluator):
    """tau2-bench, retail: 114 tasks; needs tau2-bench from GitHub, and a model for the user."""

    benchmark_name = "tau2-retail"
    domain = "retail"


class Tau2TelecomEvaluator(Tau2Evaluator):
    """tau2-bench, telecom: 114 tasks, the user has tools; needs tau2-bench from GitHub, and a model for the user."""

    benchmark_name = "tau2-telecom"
    domain = "telecom"


class Tau2MockEvaluator(Tau2Evaluator):
    """tau2-bench, the package's domain for trying things: ten tasks; needs tau2-bench from GitHub."""

    benchmark_name = "tau2-mock"
    domain = "mock"
