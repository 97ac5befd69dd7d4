"""BFCL, single turns: the Berkeley Function Calling Leaderboard's calls that are compared with accepted ones.

Eleven categories for Python: simple, multiple, parallel, parallel-multiple and irrelevance, and their live versions.
The rules of comparison are the published ones (the leaderboard's `ast_checker`), for models that call tools natively: a
dot in the name of a function is an underscore. A system message of a task is put before its question. Not covered:
Java and JavaScript, several turns, memory, web search, and format sensitivity, so the average is not the leaderboard's
overall accuracy; `category` in the context of a task tells the parts apart.

The data come with the package bfcl-eval. It pins old versions of what others need, so install it alone:
`pip install --no-deps bfcl-eval`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Any

from strands.types.tools import AgentTool, ToolUse

from strands_env.core import Action, Environment, RewardFunction, RewardResult, StepResult
from strands_env.eval.errors import DatasetError
from strands_env.eval.run.benchmark import Benchmark, Row, field, read_lines
from strands_env.rewards import turns_of
from strands_env.tools.results import make_tool, text_result

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
    """One reply of the model to a question and the functions of the task; calls are noted and not run."""

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
