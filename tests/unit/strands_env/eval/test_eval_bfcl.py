"""BFCL on a small folder of the leaderboard's form. The rules were compared with the published checker's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from strands_env.eval import DatasetError
from strands_env.eval.benchmarks.bfcl import BFCLEvaluator, json_schema, mismatch
from strands_env.testing import ScriptedModel, call

POINTS = {"type": "array", "items": {"type": "tuple", "items": {"type": "float"}}}
OPTIONS = {"type": "dict", "properties": {"round": {"type": "boolean"}}}
PLAIN = {"base": {"type": "integer"}, "height": {"type": "float"}, "unit": {"type": "string"}}
PARAMETERS = {"type": "dict", "properties": {**PLAIN, "points": POINTS, "options": OPTIONS}}
PARAMETERS["required"] = ["base", "height"]
AREA = {"name": "math.area", "description": "Area of a triangle.", "parameters": PARAMETERS}
ACCEPTED = {
    "base": [10],
    "height": [5.0],
    "unit": ["square units", ""],
    "points": [[[1.0, 2.0]], ""],
    "options": [{"round": [True], "to": ["all", ""]}, ""],
}


def reason(*calls: dict[str, Any], category: str = "simple_python", accepted: Any = None) -> str | None:
    given = [("math_area", arguments) for arguments in calls]
    return mismatch(category, [AREA], given, [{"math.area": ACCEPTED}] if accepted is None else accepted)


@pytest.mark.parametrize(
    "arguments",
    [
        {"base": 10, "height": 5.0},
        {"base": 10, "height": 5},
        {"base": 10, "height": 5.0, "unit": "Square-Units."},
        {"base": 10, "height": 5.0, "points": [[1.0, 2.0]]},
        {"base": 10, "height": 5.0, "options": {"round": True}},
    ],
)
def test_accepted_call(arguments: dict[str, Any]) -> None:
    assert reason(arguments) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"base": 10}, "height is missing"),
        ({"base": 11, "height": 5.0}, "base=11 is not accepted"),
        ({"base": 10.0, "height": 5.0}, "base=10.0 is not accepted"),
        ({"base": True, "height": 5.0}, "base=True is not accepted"),
        ({"base": 10, "height": 5.0, "colour": "red"}, "colour is unexpected"),
        ({"base": 10, "height": 5.0, "unit": "metres"}, "unit='metres' is not accepted"),
        ({"base": 10, "height": 5.0, "points": [[2.0, 1.0]]}, "points="),
        ({"base": 10, "height": 5.0, "options": {"round": False}}, "options="),
        ({"base": 10, "height": 5.0, "options": {}}, "options="),
        ("text", "not an object"),
    ],
)
def test_call_that_is_not_accepted(arguments: Any, words: str) -> None:
    assert words in (reason(arguments) or "")


def test_number_and_order_of_calls() -> None:
    one, two = {"base": 10, "height": 5}, {"base": 3, "height": 5}
    accepted = [{"math.area": {"base": [base], "height": [5]}} for base in (10, 3)]
    assert reason(two, one, category="parallel", accepted=accepted) is None
    assert "1 calls, expected 2" in (reason(one, category="parallel", accepted=accepted) or "")
    assert "no call fits" in (reason(one, one, category="parallel", accepted=accepted) or "")
    assert "2 calls" in (reason(one, one) or "")


def test_relevance_asks_only_whether_there_is_a_call() -> None:
    assert reason(category="irrelevance") is None
    assert reason({}, category="live_irrelevance") == "there is a call"
    assert reason({}, category="live_relevance") is None
    assert reason(category="live_relevance") == "no call"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "possible_answer").mkdir()
    question = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Area of 10 and 5?"}]]
    row = {"id": "simple_python_0", "question": question, "function": [AREA]}
    (tmp_path / "BFCL_v4_simple_python.json").write_text(json.dumps(row) + "\n")
    answer = {"id": "simple_python_0", "ground_truth": [{"math.area": ACCEPTED}]}
    (tmp_path / "possible_answer" / "BFCL_v4_simple_python.json").write_text(json.dumps(answer) + "\n")
    (tmp_path / "BFCL_v4_irrelevance.json").write_text(json.dumps({**row, "id": "irrelevance_0"}) + "\n")
    return tmp_path


def test_a_question_without_an_id_has_no_answer_to_join(folder: Path) -> None:
    row = json.loads((folder / "BFCL_v4_simple_python.json").read_text())
    (folder / "BFCL_v4_simple_python.json").write_text(json.dumps({**row, "id": None}) + "\n")
    with pytest.raises(DatasetError, match="has no id"):
        list(BFCLEvaluator(lambda: None, data_path=folder).load_dataset())


def test_questions_and_accepted_calls_are_joined_and_the_first_reply_is_scored(folder: Path, tmp_path: Path) -> None:
    first, second = BFCLEvaluator(lambda: None, data_path=folder).load_dataset()
    assert first.message == "Be brief.\n\nArea of 10 and 5?"
    assert first.task_context.ground_truth == [{"math.area": ACCEPTED}]
    assert (second.task_context.id, second.task_context.ground_truth) == ("bfcl_irrelevance_0", [])
    script = [call("math_area", base=10, height=5), "never asked"]
    environment = BFCLEvaluator.environment(lambda: ScriptedModel(script))
    results = asyncio.run(BFCLEvaluator(environment, data_path=folder, output_path=None).run())
    rewards = {sample.step_result.reward.info["category"]: sample.reward for (sample,) in results.values()}
    assert rewards == {"simple_python": 1.0, "irrelevance": 0.0}
    schema = json_schema(AREA["parameters"])
    assert schema["type"] == "object"
    assert schema["properties"]["points"]["items"] == {"type": "array", "items": {"type": "number"}}
    with pytest.raises(DatasetError, match="BFCL_v4_simple_python"):
        list(BFCLEvaluator(lambda: None, data_path=folder / "possible_answer" / "none").load_dataset())
