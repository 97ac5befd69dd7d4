"""BFCL, the Berkeley Function Calling Leaderboard: single turns whose calls are compared, and several turns.

Single turns are eleven categories for Python: simple, multiple, parallel, parallel-multiple and irrelevance, and their
live versions. The rules of comparison are the published ones (the leaderboard's `ast_checker`), for models that call
tools natively: a dot in the name of a function is an underscore. A system message of a task is put before its question.
Not covered: Java and JavaScript, memory, web search, and format sensitivity, so the average is not the leaderboard's
overall accuracy; `category` in the context of a task tells the parts apart.

Several turns are requests that build on each other, on simulated file systems, cars, brokers and the like. Simulators,
checker and data are those of the package bfcl-eval: after each request the simulators must be in the expected state,
and the expected results must have been read. The rules are the leaderboard's for native calls: a request ends with the
first reply without a call, and more than 20 replies with calls to one request fail the task. One difference: a
malformed call is answered with its error, where the leaderboard ends the request. The package evaluates calls as Python
text. A call is only given to it under the name of a function of the task and with names of arguments that are
identifiers, so that nothing a model writes is run as code.

The package pins old versions of what others need, so install it alone: `pip install --no-deps bfcl-eval`, for several
turns with `mpmath`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from importlib import import_module, util
from keyword import iskeyword
from pathlib import Path
from typing import Any, ClassVar

from strands import Agent
from strands.agent.agent_result import AgentResult
from strands.hooks import BeforeToolCallEvent, MessageAddedEvent
from strands.tools.executors import SequentialToolExecutor
from strands.types.tools import AgentTool, ToolUse

from strands_env.core import (
    Action,
    Environment,
    ModelFactory,
    RewardFunction,
    RewardResult,
    StepResult,
    TerminationReason,
)
from strands_env.core.episode import limit_tool
from strands_env.core.threads import default_threads
from strands_env.eval.errors import DatasetError
from strands_env.eval.run.benchmark import Benchmark, Row, field, read_lines
from strands_env.rewards.turns import exchanges_of, turns_of
from strands_env.tools.results import make_tool, text_result
from strands_sglang import MaxToolIterationsReachedError
from strands_sglang.conversation.messages import MALFORMED_KEY

CATEGORIES = (
    *("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance", "live_relevance"),
)

# Text that the leaderboard appends to the description of every function of these categories.
SYNTAX = " Note that the provided function is in Python 3 syntax."

_TYPES: dict[str, type] = {
    **{"string": str, "any": str, "integer": int, "float": float, "boolean": bool},
    **{"array": list, "tuple": list, "dict": dict},
}
_SCHEMA_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
_IGNORED = re.compile(r"[ ,./\-_*^]")


def as_tool(function: Mapping[str, Any], answer: Callable[[ToolUse], Awaitable[dict[str, Any]]]) -> AgentTool:
    """A tool for one of the leaderboard's functions (`name`, `description`, `parameters`), answered by `answer`."""
    schema = json_schema(function["parameters"])
    return make_tool(tool_name(function["name"]), function["description"] + SYNTAX, schema, answer)


async def _note_call(tool_use: ToolUse) -> dict[str, Any]:
    return text_result("The call was noted.")


def tool_name(function: str) -> str:
    """A function's name as a tool's."""
    return function.replace(".", "_")


def json_schema(parameters: Any) -> Any:
    """The leaderboard's parameters as a JSON schema: its type names are Python's."""
    if isinstance(parameters, list):
        return [json_schema(item) for item in parameters]
    if not isinstance(parameters, dict):
        return parameters
    schema = {}
    for key, value in parameters.items():
        is_type = key == "type" and isinstance(value, str)
        schema[key] = _SCHEMA_TYPES.get(value, value) if is_type else json_schema(value)
    return schema


class FunctionCallEnv(Environment):
    """A reply of the model to a question and the functions of the task; calls are noted and not run."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"max_tool_iters": 1, **options})

    def get_tools(self, action: Action) -> list[Any]:
        """The functions of the task."""
        return [as_tool(function, _note_call) for function in action.task_context.model_dump()["functions"]]


class FunctionCallReward(RewardFunction):
    """1.0 where the calls of the first reply are the accepted ones, else 0.0, with the reason in `info`."""

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        """Compare the calls."""
        context = action.task_context.model_dump()
        turns = turns_of(step_result.observation.messages)
        calls = [(call["name"], call["input"]) for call in (turns[0].calls if turns else [])]
        reason = mismatch(context["category"], context["functions"], calls, context["ground_truth"])
        return RewardResult(reward=float(reason is None), info={"category": context["category"], "reason": reason})


FunctionCall = tuple[str, Any]


def mismatch(
    category: str, functions: list[dict[str, Any]], calls: list[FunctionCall], accepted: list[dict[str, Any]]
) -> str | None:
    """The reason the calls are not the accepted ones; None if they are.

    Args:
        accepted: For each expected call the function's name, and for each parameter the values that are accepted;
            an empty text among them says that it may be left out.
    """
    if category.endswith("irrelevance"):
        return "there is a call" if calls else None
    if category.endswith("relevance"):
        return None if calls else "no call"
    if len(calls) != len(accepted):
        return f"{len(calls)} calls, expected {len(accepted)}"
    unmatched = list(calls)
    for expected in accepted:  # in any order: each takes the first call that fits
        ((name, values),) = expected.items()
        parameters = next(function["parameters"] for function in functions if function["name"] == name)
        reasons = [_call_mismatch(call, name, parameters, values) for call in unmatched]
        if None not in reasons:
            return reasons[0] if len(accepted) == 1 else f"no call fits {name}: {reasons}"
        del unmatched[reasons.index(None)]
    return None


def _call_mismatch(
    call: FunctionCall, name: str, parameters: Mapping[str, Any], accepted: Mapping[str, Any]
) -> str | None:
    called, arguments = call
    if called != tool_name(name):
        return f"called {called}, expected {tool_name(name)}"
    if not isinstance(arguments, dict):
        return "the arguments are not an object"
    if missing := [parameter for parameter in parameters.get("required", ()) if parameter not in arguments]:
        return f"{missing[0]} is missing"
    for parameter, value in arguments.items():
        if parameter not in parameters["properties"] or parameter not in accepted:
            return f"{parameter} is unexpected"
        if not _is_accepted(value, parameters["properties"][parameter], accepted[parameter]):
            return f"{parameter}={value!r} is not accepted"
    left_out = [key for key, values in accepted.items() if key not in arguments and "" not in values]
    return f"{left_out[0]} is missing" if left_out else None


def _is_accepted(value: Any, schema: Mapping[str, Any], accepted: list[Any]) -> bool:
    """Check that a value has its type and is one of those that are accepted.

    A value of another type counts where the accepted ones have that type, too: then it stands for a variable.
    """
    expected: Any = _TYPES[schema["type"]]
    # As the leaderboard: an integer is a float, and a float is no integer.
    if expected is float and type(value) is int:
        value = float(value)
    kind = next((type(item) for item in accepted if item != ""), None)
    if type(value) is not expected:
        return type(value) is kind and value in accepted
    if kind is not None and kind is not expected:
        return value in accepted
    if expected is dict:
        return any(_same_object(value, item) for item in accepted if item != "")
    if expected is not list:
        return _plain(value) in [_plain(item) for item in accepted]
    inner: Any = _TYPES.get(schema.get("items", {}).get("type", ""))
    lists: list[list[Any]] = [item for item in accepted if isinstance(item, list)]
    if inner is dict:
        return any(len(value) == len(item) and all(map(_same_object, value, item)) for item in lists)
    if inner is not None and not all(
        type(item) is inner or any(type(item) is type(other) for items in lists for other in items) for item in value
    ):
        return False
    return [_plain(item) for item in value] in [[_plain(item) for item in items] for items in lists]


def _same_object(value: Any, accepted: Any) -> bool:
    """Every field has one of its accepted values; a field may be missing where an empty text is accepted."""
    if not isinstance(value, dict) or not isinstance(accepted, dict):
        return False
    fits = all(
        key in accepted and _plain(item) in [_plain(one) for one in accepted[key]] for key, item in value.items()
    )
    return fits and all(key in value or "" in values for key, values in accepted.items())


def _plain(value: Any) -> Any:
    """Text without spaces, punctuation and capitals, which do not count; anything else as it is."""
    return _IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def data_folder(data_path: str | Path | None, install: str) -> Path:
    """The folder of the leaderboard's data: the one given (--data), or that of the package that `install` installs."""
    if data_path is not None:
        return Path(data_path)
    spec = util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise DatasetError(
            f"bfcl needs its data: {install}, or give that package's folder 'data' as data_path (--data)"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def rows_with_answers(folder: Path, categories: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The questions of those categories that the folder has, each with its `category` and accepted `ground_truth`."""
    present = [name for name in categories if (folder / f"BFCL_v4_{name}.json").is_file()]
    if not present:
        raise DatasetError(f"{str(folder)!r} has no file BFCL_v4_{categories[0]}.json")
    for name in present:
        answers = folder / "possible_answer" / f"BFCL_v4_{name}.json"
        known = {row["id"]: row["ground_truth"] for row in read_lines(answers)} if answers.is_file() else {}
        for row in read_lines(folder / f"BFCL_v4_{name}.json"):
            if field(row, "id") is None:  # the answer is found by it
                raise DatasetError(f"a question of BFCL_v4_{name}.json has no id, and so no answer: {str(row)[:80]}")
            yield {**row, "category": name, "ground_truth": known.get(row["id"])}


class BFCLEvaluator(Benchmark):
    """BFCL, single turns: 3,491 questions of eleven categories; data from bfcl-eval or --data FOLDER."""

    benchmark_name = "bfcl"
    env_class = FunctionCallEnv
    reward_class = FunctionCallReward
    has_local_rows = True

    def rows(self) -> Iterator[Row]:
        """The questions of all categories that the folder has, each with its accepted calls."""
        folder = data_folder(self.data_path, "pip install --no-deps bfcl-eval")
        return rows_with_answers(folder, CATEGORIES)

    def action(self, row: Row, index: int) -> Action | None:
        """The question with its functions; earlier messages of it are the history."""
        messages = [message for message in row["question"][0] if message["role"] != "system"]
        system = [message["content"] for message in row["question"][0] if message["role"] == "system"]
        if not messages or (row["ground_truth"] is None and "relevance" not in row["category"]):
            return None
        history = [{"role": item["role"], "content": [{"text": item["content"]}]} for item in messages[:-1]]
        hidden: dict[str, Any] = {"category": row["category"], "functions": row["function"]}
        message = "\n\n".join([*system, messages[-1]["content"]])
        return self.task(row["id"], message, row["ground_truth"] or [], conversation_history=history, **hidden)


# ---- several turns ---------------------------------------------------------------------------------------------------


INSTALL = "pip install --no-deps bfcl-eval mpmath"
MULTI_TURN_CATEGORIES = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")


def _package(module: str) -> Any:
    """A module of bfcl-eval; a `DatasetError` where the package is absent, or lacks what it needs."""
    try:
        return import_module(f"bfcl_eval.{module}")
    except ImportError as error:
        raise DatasetError(f"bfcl-multi-turn needs its simulators and checker ({error}): {INSTALL}") from None


class _World:
    """The simulators of one episode, under a name of their own: the package keeps them in a module."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.entry = entry
        self.name = f"rollout_{uuid.uuid4().hex}"
        self.replies = 0

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
        self._world = _World(action.task_context.model_dump()["entry"])

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
                agent.tool_registry.register_tool(limit_tool(self, as_tool(function, world.simulate)))
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
    messages: Sequence[dict[str, Any]], functions: Sequence[Mapping[str, Any]]
) -> list[list[list[str]]]:
    """Replies with calls, by request: each reply a list of calls as Python text."""
    requests = []
    for exchange in exchanges_of(messages):
        replies = (
            [as_python(use["name"], use["input"], functions) for use in turn.calls] for turn in turns_of(exchange)
        )
        runnable = ([text for text in texts if text is not None] for texts in replies)
        requests.append([texts for texts in runnable if texts])
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
        for row in rows_with_answers(folder, MULTI_TURN_CATEGORIES):
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
