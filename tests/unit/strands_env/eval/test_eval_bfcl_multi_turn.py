"""BFCL with several turns: on a stand-in for bfcl-eval (`fakes/bfcl_eval`), and on the package where there is one."""

from __future__ import annotations

import ast
import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strands_env.core import TerminationReason
from strands_env.eval.benchmarks.bfcl import BFCLMultiTurnEvaluator, MultiTurnReward, as_python
from strands_env.testing import ScriptedModel, call, reply

FAKES = Path(__file__).parents[2] / "fakes"
INTEGER = {"type": "dict", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
FUNCTIONS = [
    {"name": "pay", "description": "Pay.", "parameters": INTEGER},
    {"name": "double", "description": "Double.", "parameters": {"type": "dict", "properties": {}}},
]
TASK = {
    "id": "multi_turn_miss_func_0",
    "question": [[{"role": "user", "content": "Pay 2 and 3."}], [{"role": "user", "content": "Double it."}], []],
    "initial_config": {"Till": {"amount": 1}},
    "involved_classes": ["Till"],
    "missed_function": {"2": ["double"]},
}
EXPECTED = [["pay(amount=2)", "pay(3)"], [], ["double()"]]


def forget_package() -> dict[str, Any]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "bfcl_eval"}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the leaderboard's form with one task, for the stand-in."""
    kept = forget_package()
    monkeypatch.syspath_prepend(FAKES)
    for name, rows in {
        "BFCL_v4_multi_turn_miss_func.json": [TASK],
        "possible_answer/BFCL_v4_multi_turn_miss_func.json": [{"id": TASK["id"], "ground_truth": EXPECTED}],
        "multi_turn_func_doc/till.json": FUNCTIONS,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    yield tmp_path
    forget_package()
    sys.modules.update(kept)


SOLVED = [
    *(reply("", call("pay", amount=2), call("pay", amount=3)), "Paid."),
    "There is no such function.",
    *(call("double"), "Doubled."),
]


def play(data: Path, script: Any) -> Any:
    """The result, the action, and the tools that were offered at each call."""
    offered: list[list[str]] = []

    class Model(ScriptedModel):
        def stream(self, messages: Any, tool_specs: Any = None, *args: Any, **kwargs: Any) -> Any:
            offered.append([spec["name"] for spec in tool_specs])
            return super().stream(messages, tool_specs, *args, **kwargs)

    (action,) = BFCLMultiTurnEvaluator(lambda: None, data_path=data).load_dataset()
    env = BFCLMultiTurnEvaluator.environment(lambda: Model(script))()
    result = asyncio.run(env.rollout(action))
    utils = sys.modules["bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils"]
    assert [name for name in vars(utils) if name.endswith("_instance")] == []  # simulators are forgotten
    return result, action, offered


def test_solved_task_passes_the_packages_checker(data: Path) -> None:
    result, action, offered = play(data, SOLVED)
    assert (result.termination_reason, result.reward.reward) == (TerminationReason.TASK_COMPLETE, 1.0)
    prompts = [
        message["content"][0].get("text") for message in result.observation.messages if message["role"] == "user"
    ]
    assert prompts == ["Pay 2 and 3.", None, "Double it.", "There is another function now.", None]
    answers = [block["toolResult"] for block in result.observation.messages[2]["content"]]
    assert [answer["content"][0]["text"] for answer in answers] == ["now 3", "now 6"]
    assert offered == [["pay"]] * 3 + [["pay", "double"]] * 2
    assert asyncio.run(MultiTurnReward().compute(action, result)).reward == 1.0  # of a saved rollout, too


def test_another_state_fails_and_says_where(data: Path) -> None:
    result, *_ = play(data, [call("pay", amount=2), "Paid.", "No.", "No."])
    assert result.reward.reward == 0.0
    assert result.reward.info["reason"] == "request 0 left another state"


def test_too_many_replies_to_one_request_fail_the_task(data: Path) -> None:
    result, *_ = play(data, lambda messages: call("pay", amount=1))
    assert (result.termination_reason, result.error) == (TerminationReason.MAX_TOOL_ITERATIONS_REACHED, None)
    assert result.reward.reward == 0.0
    assert "request 1 of 3" in result.reward.info["reason"]
    assert result.observation.metrics["tool_calls"] == 4


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("exec", {"code": "1"}),
        ("pay", {"amount=__import__('os').abort() or amount": 1}),
        ("pay", {"lambda": 1}),
        ("pay", {"malformed_call": "pay("}),
        ("pay", "amount"),
    ],
)
def test_nothing_a_model_writes_is_run_as_code(name: str, arguments: Any) -> None:
    assert as_python(name, arguments, FUNCTIONS) is None
    assert as_python("pay", {"amount": "1) or exit("}, FUNCTIONS) == "pay(amount='1) or exit(')"


def scripted(python: str, functions: list[Any]) -> Any:
    """An expected call, as the model would make it."""
    made: Any = ast.parse(python, mode="eval").body
    names = list(next(item for item in functions if item["name"] == made.func.id)["parameters"]["properties"])
    by_place = {names[place]: ast.literal_eval(value) for place, value in enumerate(made.args)}
    return call(made.func.id, **by_place, **{item.arg: ast.literal_eval(item.value) for item in made.keywords})


def test_expected_calls_pass_in_the_package_itself() -> None:
    pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed: pip install --no-deps bfcl-eval mpmath")
    actions = list(BFCLMultiTurnEvaluator(lambda: None).load_dataset())
    assert len(actions) == 800
    for action in actions[::100]:
        entry = action.task_context.model_dump()["entry"]
        functions = [
            *entry["function"],
            *(item for items in entry.get("missed_function", {}).values() for item in items),
        ]
        script = [item for turn in action.task_context.ground_truth for item in (*turn, "done")]
        script = [item if item == "done" else scripted(item, functions) for item in script]
        env = BFCLMultiTurnEvaluator.environment(lambda script=script: ScriptedModel(script))()
        result = asyncio.run(env.rollout(action))
        assert result.reward is not None and result.reward.reward == 1.0, result.reward
