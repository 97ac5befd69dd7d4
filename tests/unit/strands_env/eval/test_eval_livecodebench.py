"""LiveCodeBench on problems of our own: programs are judged by public and hidden tests in a sandbox."""

from __future__ import annotations

import base64
import json
import pickle
import zlib

import pytest

from strands_env.eval import get_benchmark
from strands_env.eval.benchmarks.livecodebench import LiveCodeBenchReward, all_tests, last_program
from tests.unit.sandbox_support import requires_isolation
from tests.unit.strands_env.eval.test_eval_benchmarks import answered, load, write

SUM = {"question_id": "sum", "question_content": "Add two numbers.", "difficulty": "easy"}
SUM |= {"public_test_cases": json.dumps([{"input": "1 2", "output": "3"}])}
HALF = {
    "question_id": "half",
    "question_content": "Halve a number.",
    "starter_code": "class Solution:\n    def half(self, n):",
}
HALF |= {"public_test_cases": json.dumps([{"input": "4", "output": "2"}]), "metadata": '{"func_name": "half"}'}


def packed(tests: list[dict[str, str]]) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


ROWS = [
    {**SUM, "private_test_cases": packed([{"input": "20 22", "output": "42.0"}])},
    {**HALF, "private_test_cases": json.dumps([{"input": "10", "output": "5"}])},
]


def program(text: str) -> str:
    return f"First a thought.\n```python\nprint('draft')\n```\nNow the program:\n```python\n{text}\n```"


@requires_isolation
@pytest.mark.parametrize(
    ("task", "answer", "expected"),
    [
        ("sum", program("print(sum(map(int, input().split())))"), (1.0, "")),
        ("sum", program("input()\nprint(3)"), (0.0, "test 1 of 2")),
        ("sum", program("from __future__ import annotations\nprint(eval(input().replace(' ', '+')))"), (1.0, "")),
        ("sum", program("raise SystemExit(0)"), (0.0, "test 0 of 2")),
        ("half", program("class Solution:\n    def half(self, n):\n        return n // 2"), (1.0, "")),
        ("half", program("class Solution:\n    def half(self, n: List[int]):\n        return 2"), (0.0, "test 1 of 2")),
        ("half", "The answer is 2.", (0.0, "")),
    ],
)
async def test_programs_are_judged_by_all_tests(task, answer, expected, tmp_path):
    actions = {action.id: action for action in load("livecodebench", write(tmp_path / "d.jsonl", ROWS))}
    result = await LiveCodeBenchReward().compute(actions[f"livecodebench_{task}"], answered(answer))
    assert (result.reward, expected[1] in result.info.get("note", "")) == (expected[0], True), result.info


def test_rows_become_problems(tmp_path):
    first, second = load("livecodebench", write(tmp_path / "d.jsonl", [*ROWS, {"question_content": "no tests"}]))
    assert "reads standard input" in first.message
    assert first.task_context.function is None
    assert second.message.endswith("```python\nclass Solution:\n    def half(self, n):\n```")
    assert second.task_context.function == "half"
    assert get_benchmark("livecodebench").reward_class is LiveCodeBenchReward


def test_hidden_tests_are_text_and_bounded(monkeypatch):
    assert [test["output"] for test in all_tests(SUM["public_test_cases"], ROWS[0]["private_test_cases"])] == [
        "3",
        "42.0",
    ]
    with pytest.raises(ValueError, match="must be a text"):
        all_tests("[]", base64.b64encode(zlib.compress(pickle.dumps(print))).decode())
    monkeypatch.setattr("strands_env.eval.benchmarks.livecodebench.MAX_TEST_BYTES", 10)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        all_tests("[]", ROWS[0]["private_test_cases"])


def test_the_last_fenced_block_is_the_program():
    assert last_program(program("print(1)")) == "print(1)"
    assert last_program("```python\nprint(1)") is None
