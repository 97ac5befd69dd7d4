"""BFCL, several turns: requests that build on each other, on simulated file systems, cars, brokers and the like.

The simulators, the checker and the data are those of the package bfcl-eval: after each request the simulators must be
in the expected state, and the expected results must have been read. The rules are the leaderboard's for native calls:
a request ends with the first reply without a call, and more than 20 replies with calls to one request
fail the task. One difference: a malformed call is answered with its error, where the leaderboard ends the request.

The package evaluates calls as Python text. A call is only given to it under the name of a function of the task and with
names of arguments that are identifiers, so that nothing a model writes is run as code.

`pip install --no-deps bfcl-eval mpmath`: the package pins old versions of what others need.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from keyword import iskeyword
from typing import Any, ClassVar

from strands import Agent
from strands.agent.agent_result import AgentResult
from strands.hooks import BeforeToolCallEvent, MessageAddedEvent
from strands.tools.executors import SequentialToolExecutor
from strands.types.tools import ToolUse

from strands_env.core import (
    Action,
    Environment,
    ModelFactory,
    RewardFunction,
    RewardResult,
    StepResult,
    TerminationReason,
)
from strands_env.core.threads import default_threads
from strands_env.eval.benchmarks.bfcl import as_tool, data_folder, rows_with_answers
from strands_env.eval.errors import DatasetError
from strands_env.eval.run.benchmark import Benchmark, Row, read_lines
from strands_env.tools.results import text_result
from strands_sglang import MaxToolIterationsReachedError
from strands_sglang.conversation.messages import MALFORMED_KEY

INSTALL = "pip install --no-deps bfcl-eval mpmath"
CATEGORIES = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")


def _package(module: str) -> Any:
    """A module of bfcl-eval; a `DatasetError` where the package is absent, or lacks what it needs."""
    try:
        return import_module(f"bfcl_eval.{module}")
    except ImportError as error:
        raise DatasetError(f"bfcl-multi-turn needs its simulators and checker ({error}): {INSTALL}") from None


@dataclass(slots=True, kw_only=True)
class _World:
    """The simulators of one episode, under a name of their own: the package keeps them in a module."""

    entry: Mapping[str, Any]
    name: str = field(default_factory=lambda: f"rollout_{uuid.uuid4().hex}")
    replies: int = 0

    async def simulate(self, tool_use: ToolUse) -> dict[str, Any]:
        """Run a call of the model; its result is worded by the package."""
        call = as_python(tool_use["name"], tool_use["input"], _functions(self.entry))
        if call is None:
            return text_result("Error during execution: the names of the arguments are not valid")
        results, _ = await default_threads.run(
            _package("eval_checker.multi_turn_eval.multi_turn_utils").execute_multi_turn_func_call,
            func_call_list=[call],
            initial_config=self.entry["initial_config"],
            involved_classes=self.entry["involved_classes"],
            model_name=self.name,
            test_entry_id=self.entry["id"],
            long_context="long_context" in self.entry["id"],
            is_evaL_run=False,  # spelt so in the package
        )
        return text_result(str(results[0]))


def _forget(name: str) -> None:
    # The package keeps simulators for good, as globals of its module that begin with this name.
    kept = vars(_package("eval_checker.multi_turn_eval.multi_turn_utils"))
    for key in [key for key in kept if key.startswith(name)]:
        del kept[key]


def as_python(name: str, arguments: Any, functions: Sequence[Mapping[str, Any]]) -> str | None:
    """A call as the package's text, or None where it must not be run: see the module's first lines."""
    known = any(function["name"] == name for function in functions)
    if not known or not isinstance(arguments, dict) or MALFORMED_KEY in arguments:
        return None
    if not all(key.isidentifier() and not iskeyword(key) for key in arguments):
        return None
    return f"{name}({','.join(f'{key}={value!r}' for key, value in arguments.items())})"


class MultiTurnEnv(Environment):
    """The requests of a task, one after the other, with the functions of its simulators."""

    _world: _World | None = None

    async def reset(self, action: Action) -> None:
        """Make the simulators."""
        await self.cleanup()
        self._world = _World(entry=action.task_context.model_dump()["entry"])

    async def cleanup(self) -> None:
        """Forget the simulators."""
        if self._world is not None:
            _forget(self._world.name)
            self._world = None

    @property
    def world(self) -> _World:
        """The simulators; a `RuntimeError` before `reset`."""
        if self._world is None:
            raise RuntimeError("the simulators of the task are not made: call reset(action), or rollout(action)")
        return self._world

    def get_tools(self) -> list[Any]:
        """The functions that are not held back."""
        return [as_tool(function, self.world.simulate) for function in self.world.entry["function"]]

    def get_hooks(self) -> list[Any]:
        """The limit of replies to one request, and functions that are not yet offered: the package runs them, too."""
        world, limit = self.world, _package("constants.default_prompts").MAXIMUM_STEP_LIMIT

        def count_replies(event: MessageAddedEvent) -> None:
            world.replies += any("toolResult" in block for block in event.message["content"])
            if world.replies > limit:
                event.agent.cancel(after_current_tools=True)  # behind the tool results, with no message of its own

        def find_function(event: BeforeToolCallEvent) -> None:
            known = {function["name"]: function for function in _functions(world.entry)}
            if event.selected_tool is None and (function := known.get(event.tool_use["name"])) is not None:
                event.selected_tool = as_tool(function, world.simulate)

        return [count_replies, find_function]

    async def interact(self, agent: Agent, action: Action) -> AgentResult:
        """Put the requests."""
        world = self.world
        agent.tool_executor = SequentialToolExecutor()  # calls of one reply change one world, in their order
        texts = _package("constants.default_prompts")
        held_back = world.entry.get("missed_function", {})
        for turn, messages in enumerate(world.entry["question"]):
            for function in held_back.get(str(turn), ()):
                agent.tool_registry.register_tool(self._limit_tool(as_tool(function, world.simulate)))
            prompt = "\n\n".join(message["content"] for message in messages)
            world.replies = 0
            result = await self.invoke(agent, prompt or texts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC)
            if world.replies > texts.MAXIMUM_STEP_LIMIT:
                raise MaxToolIterationsReachedError(texts.MAXIMUM_STEP_LIMIT, world.replies)
            if result.stop_reason != "end_turn":
                return result
        return result


class MultiTurnReward(RewardFunction):
    """The package's checker: 1.0 where every request left the expected state and results, else 0.0 with the reason."""

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Run the calls again, beside the expected ones, and compare."""
        entry = action.task_context.model_dump()["entry"]
        expected = action.task_context.ground_truth
        calls = calls_by_request(step_result.observation.messages, _functions(entry))
        info: dict[str, Any] = {"category": entry["id"].rpartition("_")[0]}
        if len(calls) != len(expected) or step_result.termination_reason is not TerminationReason.TASK_COMPLETE:
            ended = step_result.termination_reason.value
            info["reason"] = f"ended early: {ended}, in request {len(calls)} of {len(expected)}"
            return RewardResult(reward=0.0, info=info)

        def check() -> dict[str, Any]:
            name = f"check_{uuid.uuid4().hex}"
            module = _package("eval_checker.multi_turn_eval.multi_turn_checker")
            try:
                verdict: dict[str, Any] = module.multi_turn_checker(calls, expected, entry, info["category"], name)
            finally:
                _forget(name)
            return verdict

        verdict = await default_threads.run(check)
        info["reason"] = None if verdict["valid"] else str(verdict.get("error_message"))
        return RewardResult(reward=float(verdict["valid"]), info={**info, "error_type": verdict.get("error_type")})


def calls_by_request(
    messages: Sequence[Mapping[str, Any]], functions: Sequence[Mapping[str, Any]]
) -> list[list[list[str]]]:
    """Replies with calls, by request: each reply a list of calls as Python text."""
    requests: list[list[list[str]]] = []
    for message in messages:
        if message["role"] == "user":
            if not any("toolResult" in block for block in message["content"]):
                requests.append([])
            continue
        uses = [block["toolUse"] for block in message["content"] if "toolUse" in block]
        texts = [as_python(use["name"], use["input"], functions) for use in uses]
        if requests and (runnable := [text for text in texts if text is not None]):
            requests[-1].append(runnable)
    return requests


def _functions(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The functions of a task, those that are held back at first among them."""
    return [*entry["function"], *(item for items in entry.get("missed_function", {}).values() for item in items)]


class BFCLMultiTurnEvaluator(Benchmark):
    """BFCL, several turns: 800 tasks of four categories; needs bfcl-eval, its data or --data FOLDER."""

    benchmark_name = "bfcl-multi-turn"
    env_class = MultiTurnEnv
    env_options: ClassVar[Mapping[str, Any]] = {"max_tool_output_chars": None}
    reward_class = MultiTurnReward
    has_local_rows = True

    @classmethod
    def environment(cls, model_factory: ModelFactory, **options: Any) -> Callable[[], Environment]:
        """The requests of a task, checked by the package."""
        _package("eval_checker.multi_turn_eval.multi_turn_checker")
        return super().environment(model_factory, **options)

    def rows(self) -> Iterator[Row]:
        """The tasks of all categories that the folder has, with their functions and expected calls."""
        folder = data_folder(self.data_path, INSTALL)
        files = _package("constants.executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING
        described: dict[str, list[Row]] = {}
        for row in rows_with_answers(folder, CATEGORIES):
            for used in row["involved_classes"]:
                if used not in described:
                    described[used] = list(read_lines(folder / "multi_turn_func_doc" / files[used]))
            offered = [function for used in row["involved_classes"] for function in described[used]]
            yield _without_missed(row, offered)

    def action(self, row: Row, index: int) -> Action | None:
        """The task; its message is the first request."""
        if row["ground_truth"] is None or not row["question"]:
            return None
        kept = ("id", "question", "initial_config", "involved_classes", "function", "missed_function")
        entry = {key: row[key] for key in kept if key in row}
        first = [message["content"] for message in row["question"][0]]
        return self.task(row["id"], "\n\n".join(first), row["ground_truth"], entry=entry)


def _without_missed(row: Row, offered: list[Row]) -> dict[str, Any]:
    """The row with its functions, and those that are only offered from a later request on apart from them."""
    names = {name for missed in row.get("missed_function", {}).values() for name in missed}
    by_name = {function["name"]: function for function in offered}
    at_first: dict[str, Any] = {**row, "function": [item for item in offered if item["name"] not in names]}
    if names:
        missed = row["missed_function"].items()
        at_first["missed_function"] = {turn: [by_name[name] for name in wanted] for turn, wanted in missed}
    return at_first
