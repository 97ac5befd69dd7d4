"""Benchmarks on small files the tests write; the hub is never asked."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import pickle
import sys
import threading
import types
import zlib
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest

from strands_env.commands.recipe.objects import load_evaluator
from strands_env.commands.recipe.task_files import DataBenchmark
from strands_env.core import Action, Observation, StepResult, TaskContext, TerminationReason
from strands_env.eval import (
    AIMEEvaluator,
    Benchmark,
    DatasetError,
    EvalError,
    Evaluator,
    UnknownBenchmarkError,
    describe_benchmarks,
    get_benchmark,
    list_benchmarks,
    register_eval,
)
from strands_env.eval import registry as registry_module
from strands_env.eval.benchmarks.facts import FRAMES_GRADING
from strands_env.eval.benchmarks.gpqa import ChoiceReward, MMLUProReward
from strands_env.eval.benchmarks.grading import FACTS, MATCH, GradedAnswerReward
from strands_env.eval.benchmarks.ifeval import CHECKS, InstructionReward
from strands_env.eval.benchmarks.livecodebench import LiveCodeBenchReward, all_tests, last_program
from strands_env.eval.benchmarks.mcp_atlas import COVERAGE
from strands_env.eval.run.tasks import TaskNamer, sample_id
from strands_env.rewards.numerals import only_number
from strands_env.testing import ScriptedModel, call
from tests.unit.sandbox_support import requires_isolation

needs_langdetect = pytest.mark.skipif(find_spec("langdetect") is None, reason="needs the extra `ifeval`")


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(name: str, path: Path | None = None, **options) -> list[Action]:
    return list(get_benchmark(name)(lambda: None, data_path=path, **options).load_dataset())


def answered(text: str) -> StepResult:
    messages = [{"role": "assistant", "content": [{"text": text}]}]
    return StepResult(observation=Observation(messages=messages), termination_reason=TerminationReason.TASK_COMPLETE)


async def reward(function, text: str, truth: str | None = None, **context) -> float | None:
    action = Action(message="q", task_context=TaskContext(id="t", ground_truth=truth, **context))
    return (await function.compute(action, answered(text))).reward


# ---- rows ------------------------------------------------------------------------------------------------------------


GPQA = {
    "Question": "Which?",
    "Correct Answer": "right",
    "Incorrect Answer 1": "w1",
    "Incorrect Answer 2": "w2",
    "Incorrect Answer 3": "w3",
}
HLE = {"question": "q", "answer": "4"}
IFEVAL = {"instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": ["It"], "num_words": None}]}
SCORED = {
    "hle": "correct: yes",
    "frames": "TRUE",
    **dict.fromkeys(("sealqa-0", "sealqa-hard", "simpleqa-verified"), "A"),
}
"""What a judge must say of a right answer."""


@pytest.mark.parametrize(
    ("name", "row", "left_out", "message", "context"),
    [
        ("aime-2024", {"id": 60, "problem": "p", "answer": "4"}, {"problem": "p"}, "p", {"id": "aime-2024_60"}),
        ("gsm8k", {"question": "q", "answer": "2+2\n#### 0,004"}, {"answer": "no mark"}, "q", {"ground_truth": "0004"}),
        ("gsm8k", {"question": "q", "answer": "#### 4"}, {"question": "q", "answer": "no mark"}, "q", {}),
        ("math-500", {"unique_id": "a/1", "problem": "p", "answer": "4", "level": 5}, {}, "p", {"level": 5}),
        ("hmmt-feb-2025", {"problem_idx": 3, "problem": "p", "answer": "4"}, {}, "p", {"id": "hmmt-feb-2025_3"}),
        ("gpqa-diamond", GPQA, {"Question": "q"}, None, {"id": "gpqa-diamond_0"}),
        (
            "mmlu-pro",
            {"question_id": 7, "question": "Which?", "options": ["one", "two"], "answer": "a", "category": "law"},
            {"question": "q", "answer": "A", "options": []},
            "Question:\nWhich?\nOptions:\nA. one\nB. two",
            {"id": "mmlu-pro_7", "ground_truth": "A", "category": "law"},
        ),
        ("hle", {"id": "a", **HLE, "image": ""}, {**HLE, "image": "data:image/png;base64,AA=="}, "q", {"id": "hle_a"}),
        ("sealqa-0", {"question": "q", "answer": "a", "freshness": "never"}, {}, "q", {"freshness": "never"}),
        ("sealqa-hard", {"question": "q", "answer": "a"}, {}, "q", {"ground_truth": "a"}),
        ("frames", {"Prompt": "q", "Answer": "a", "wiki_links": "[]"}, {}, "q", {"wiki_links": "[]"}),
        ("simpleqa-verified", {"problem": "q", "answer": "a", "original_index": 3}, {}, "q", {"ground_truth": "a"}),
        ("ifeval", {"key": 7, "prompt": "p", **IFEVAL}, {"prompt": "p"}, "p", {"arguments": [{"keywords": ["It"]}]}),
    ],
)
def test_rows_become_tasks_and_are_scored_in_the_environment_of_the_benchmark(
    name, row, left_out, message, context, tmp_path
):
    path = write(tmp_path / "d.jsonl", [row, left_out])
    (action,) = load(name, path)
    known = action.task_context.model_dump()
    assert (message in (action.message, None), {key: known[key] for key in context}) == (True, context)
    kind = get_benchmark(name)
    judge = {"judge_model": lambda: ScriptedModel([SCORED[name]])} if name in SCORED else {}
    try:
        environment = kind.environment(lambda: ScriptedModel([r"It is \boxed{4}. Answer: A"]), **judge)
    except ImportError as error:
        pytest.skip(str(error))
    ((sample,),) = asyncio.run(kind(environment, data_path=path, output_path=None).run()).values()
    right = action.task_context.ground_truth == "A" or name != "gpqa-diamond"
    assert (sample.step_result.error, sample.reward) == (None, float(right))


@pytest.mark.parametrize("missing", [None, "", float("nan")])
def test_an_id_that_is_missing_names_no_task(missing, tmp_path):
    rows = [{"id": missing, "task_id": missing, "problem": f"p{number}", "answer": "4"} for number in range(3)]
    path = write(tmp_path / "d.jsonl", rows)
    assert [action.id for action in load("aime-2024", path)] == [f"aime-2024_{number}" for number in range(3)]
    benchmark = DataBenchmark(lambda: None, data_path=path, output_path=None)
    assert len({action.id for action in benchmark.load_dataset()}) == 3
    path = write(tmp_path / "e.jsonl", [{**row, "uid": f"u{number}"} for number, row in enumerate(rows)])
    benchmark = DataBenchmark(lambda: None, data_path=path, output_path=None)
    assert [action.id for action in benchmark.load_dataset()] == ["u0", "u1", "u2"]
    benchmark = DataBenchmark(lambda: None, data_path=path, output_path=None, columns={"id": "id"})
    assert not {"None", "nan", ""} & {action.id for action in benchmark.load_dataset()}


def test_aime_of_a_year_names_itself(tmp_path):
    path = write(tmp_path / "d.jsonl", [{"problem": "p", "answer": 1}])
    evaluator = AIMEEvaluator(lambda: None, data_path=path, output_path=None)
    assert [action.task_context.id for action in evaluator.load_dataset("2025")] == ["aime-2025_0"]
    with pytest.raises(ValueError, match="2024, 2025, 2026"):
        evaluator.load_dataset("1999")


@pytest.mark.parametrize(("limit", "count"), [(None, 30), (7, 7), (99, 30)])
def test_the_size_of_a_known_data_set_is_told_before_it_is_read(limit, count, tmp_path):
    assert get_benchmark("aime-2024")(lambda: None, limit=limit).count() == count
    assert get_benchmark("aime-2024")(lambda: None, limit=limit, data_path=tmp_path / "d.jsonl").count() is None


def test_gpqa_shuffles_by_seed_and_keeps_the_letter(tmp_path):
    path = write(tmp_path / "d.jsonl", [{**GPQA, "Record ID": f"r{i}"} for i in range(40)])
    actions = load("gpqa-diamond", path)
    assert [a.message for a in actions] == [a.message for a in load("gpqa-diamond", path)]
    assert [a.message for a in actions] != [a.message for a in load("gpqa-diamond", path, seed=1)]
    assert {a.task_context.ground_truth for a in actions} == set("ABCD")
    assert all(f"({a.task_context.ground_truth}) right" in a.message for a in actions)


def test_parquet_and_json_and_files_with_a_byte_order_mark_are_read_too(tmp_path):
    rows = [{"id": i, "problem": f"p{i}", "answer": str(i)} for i in range(3)]
    (tmp_path / "d.json").write_text(json.dumps(rows), encoding="utf-8-sig")
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8-sig")
    assert len(load("aime-2024", tmp_path / "d.json")) == len(load("aime-2024", tmp_path / "d.jsonl")) == 3
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), tmp_path / "d.parquet")
    assert [a.message for a in load("aime-2024", tmp_path / "d.parquet", limit=2)] == ["p0", "p1"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("d.jsonl", b'{"a": 1}\n{broken\n', "line 2 of .* is not JSON"),
        ("d.jsonl", b"[1]\n", "line 1 of .* must be a JSON object"),
        ("d.jsonl", b'{"a": 1}\n\xff\xfe\n', "line 2 of .* is not JSON: 'utf-8' codec"),
        ("d.json", b"{}", "a JSON list"),
        ("d.json", b'[{"problem":', "cannot be read as .json"),
        ("d.json", b"[1, 2]", "row 1 of .* must be a JSON object"),
        ("d.parquet", b"xx", "cannot be read as .parquet|need 'pyarrow'"),
        ("d.csv", b"", "ends in .jsonl"),
        ("d.jsonl", b'{"foo": 1}\n{"bar": 2}\n', r"none of its 2 rows .* columns of the last: bar"),
        ("d.jsonl", b"", "there are no rows"),
    ],
)
def test_damaged_files_are_named(name, text, message, tmp_path):
    (tmp_path / name).write_bytes(text)
    with pytest.raises(DatasetError, match=message):
        load("aime-2024", tmp_path / name)


def test_a_row_that_cannot_be_made_a_task_is_named(tmp_path):
    class Mine(Benchmark):
        def action(self, row, index):
            return row["question"] if index else "text"

    mine = Mine(lambda: None, data_path=write(tmp_path / "d.jsonl", [{"a": 1, "b": 2}] * 2))
    with pytest.raises(DatasetError, match=r"line 1 of .*d.jsonl.* must become an Action or None, got 'text'"):
        list(mine.load_dataset())
    Mine.action = lambda self, row, index: row["question"] if index else None
    with pytest.raises(DatasetError, match=r"line 2 of .*d.jsonl.* KeyError: 'question'; its columns are a, b"):
        list(mine.load_dataset())


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def test_arithmetic_is_the_same_for_a_seed_and_right():
    actions = load("arithmetic", limit=50)
    assert [a.message for a in actions] == [a.message for a in load("arithmetic", limit=50)]
    assert [a.message for a in actions] != [a.message for a in load("arithmetic", limit=50, seed=1)]
    for action in actions:
        first, sign, second = action.message.removeprefix("What is ").removesuffix("?").split()
        value = {"+": int(first) + int(second), "-": int(first) - int(second), "*": int(first) * int(second)}[sign]
        assert str(value) == action.task_context.ground_truth


async def test_arithmetic_runs_with_a_calculator_and_scores_the_last_number():
    def script(messages):
        if messages[-1]["content"][0].get("toolResult"):
            return f"So it is {messages[-1]['content'][0]['toolResult']['content'][0]['text']}."
        return call("calculator", expression=messages[-1]["content"][0]["text"].removeprefix("What is ").rstrip("?"))

    kind = get_benchmark("arithmetic")
    evaluator = kind(kind.environment(lambda: ScriptedModel(script)), limit=5, output_path=None)
    results = await evaluator.run()
    assert [samples[0].reward for samples in results.values()] == [1.0] * 5
    assert results["arithmetic_0-0"][0].action.task_context.conversation_history == []


# ---- rewards ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "letter"),
    [
        (ChoiceReward, "Answer: B", "B"),
        (ChoiceReward, "I doubt (A). The correct answer is (B).", "B"),
        (ChoiceReward, "The answer is A, no: Answer: **B**", "B"),
        (ChoiceReward, "(A) is wrong, so (B)", "B"),
        (ChoiceReward, "Answer: C. Note that the answer is a simplification.", "C"),
        (ChoiceReward, r"$\boxed{B}$", "B"),
        (ChoiceReward, r"\boxed{\text{(B)}\ 15}", "B"),
        (ChoiceReward, "option B", "B"),
        (ChoiceReward, "B", "B"),
        (ChoiceReward, "B. Paris", "B"),
        (ChoiceReward, "(A) and (C) fail.\n\n**B**", "B"),
        (ChoiceReward, "Answer：B", "B"),
        (ChoiceReward, "答案是B。", "B"),
        (ChoiceReward, "Answer: b", "B"),
        (ChoiceReward, r"Answer: \(B\)", "B"),
        (ChoiceReward, "Answer: A", "A"),
        (ChoiceReward, "Option B is correct, option A is not.", "B"),
        (ChoiceReward, "Answer: A good question.", None),
        (ChoiceReward, "Answer: B or C", None),
        (ChoiceReward, "B, C", None),
        (ChoiceReward, "The answer is B-cell activation", None),
        (ChoiceReward, r"\boxed{B = 0.5}", None),
        (ChoiceReward, "Which one?\n\n(A) a\n(B) b\n(C) c\n(D) d", None),
        (ChoiceReward, "Answer: E", None),
        (ChoiceReward, "A good question.", None),
        (ChoiceReward, "", None),
        (ChoiceReward, "The answer is (A) (B) (C) (D)", None),
        (ChoiceReward, "A B C D", None),
        (ChoiceReward, "A|B|C|D", None),
        (ChoiceReward, "A; B; C; D", None),
        (ChoiceReward, "A, maybe B", None),
        (ChoiceReward, r"\boxed{A B}", None),
        (ChoiceReward, "答案是A、B", None),
        (ChoiceReward, "A\nB\nC\nD", None),
        (ChoiceReward, "Answer: It is not (D)", None),
        (ChoiceReward, "The answer is not (B)", None),
        (ChoiceReward, "It is not B.", None),
        (ChoiceReward, "(A) (B)", None),
        (ChoiceReward, "Answer: B\nAnswer: B or C", None),
        (ChoiceReward, "The answer is B\nor C", None),
        (ChoiceReward, "The answer is B; alternatively C", None),
        (ChoiceReward, r"\boxed{B}\text{ or }\boxed{C}", None),
        (ChoiceReward, "Answer = B", "B"),
        (ChoiceReward, "The answer, therefore, is B.", "B"),
        (ChoiceReward, "B - 5 m/s", "B"),
        (ChoiceReward, "Answer: B / C", None),
        (ChoiceReward, "It is B or C.", None),
        (ChoiceReward, "The answer is A. Wait, actually it is B.", "B"),
        (ChoiceReward, "It is B.", "B"),
        (ChoiceReward, "The answer should be B", "B"),
        (ChoiceReward, "The answer to the question is B", "B"),
        (ChoiceReward, "The answer is probably B", "B"),
        (ChoiceReward, "Answer: I think B", "B"),
        (ChoiceReward, "<answer>B</answer>", "B"),
        (ChoiceReward, "Answer - B", "B"),
        (ChoiceReward, "The answer is not A but B", "B"),
        (ChoiceReward, "The answer is B, not A.", "B"),
        (ChoiceReward, "Reasoning\n\nB", "B"),
        (ChoiceReward, "The answer is (B), since A is wrong.", "B"),
        (ChoiceReward, "Answer: B\n\nC is wrong.", "B"),
        (ChoiceReward, "(A) fails\nAnswer: B", "B"),
        (ChoiceReward, "Answer: B is wrong", None),
        (ChoiceReward, "Option B is wrong", None),
        (ChoiceReward, "I eliminated option B.", None),
        (ChoiceReward, "(B) is impossible.", None),
        (ChoiceReward, "The answer is anything but B.", None),
        (ChoiceReward, "Answer: A, else B, else C", None),
        (ChoiceReward, "Answer: B. Or C.", None),
        (ChoiceReward, "Answer: B if x>0, otherwise C", None),
        (ChoiceReward, "The answer is B. Hmm, let me reconsider. C is right.", "C"),
        (ChoiceReward, "Answer: C\n\nThe wrong answer is B.", "C"),
        (ChoiceReward, "Answer: C. The incorrect option is B.", "C"),
        (ChoiceReward, "Answer: C\n\nNote: most people choose B.", "C"),
        (ChoiceReward, "Answer: C. The worst choice is B.", "C"),
        (ChoiceReward, "Answer: B. A is wrong.", "B"),
        (ChoiceReward, "No doubt the answer is B.", "B"),
        (ChoiceReward, "Answer: B\n\nOption C is wrong.", "B"),
        (ChoiceReward, "I choose B.", "B"),
        (ChoiceReward, "Answer: A..D", None),
        (ChoiceReward, "Answer: A to D", None),
        (ChoiceReward, "Answer: A or, failing that, B", None),
        (ChoiceReward, "Answer: (B)(C)", None),
        (ChoiceReward, "Answer: B, though C is also possible.", None),
        (ChoiceReward, "A\nor\nB", None),
        (ChoiceReward, "Answer: C. Therefore B.", None),
        (ChoiceReward, "Answer: C\n\nB", None),
        (ChoiceReward, r"\boxed{A} and then Answer: B", None),
        (ChoiceReward, "If x > 0, answer: A. If x < 0, answer: B.", None),
        (ChoiceReward, "The final answer is C. The final answer is B.", None),
        (ChoiceReward, "Answer: A\nFinal answer: B", "B"),
        (ChoiceReward, "Answer: A\n\nWait, that is wrong. Answer: B", "B"),
        (ChoiceReward, "It is A, so we go on.\n\nAnswer: B", "B"),
        (ChoiceReward, "A\nfoo\nC\nbar\n\nThe answer is (B).", "B"),
        (ChoiceReward, "Answer: B; A and C are wrong.", "B"),
        (ChoiceReward, "If the answer is B, I would be surprised", None),
        (ChoiceReward, "Suppose the answer is B.", None),
        (ChoiceReward, "Answer: B. If C is right, energy is lost.", "B"),
        (ChoiceReward, "Some say the answer is C. Answer: B", "B"),
        (ChoiceReward, "One might think the answer is B.", None),
        (ChoiceReward, r"Many students would answer \boxed{B}", None),
        (ChoiceReward, r"It is not \boxed{B}", None),
        (ChoiceReward, r"\boxed{B} is wrong", None),
        (ChoiceReward, r"\boxed{b}", "B"),
        (ChoiceReward, "(b)", "B"),
        (ChoiceReward, "Ans. B", "B"),
        (ChoiceReward, "Die richtige Antwort ist (B).", "B"),
        (ChoiceReward, "Réponse : B", "B"),
        (ChoiceReward, "La respuesta correcta es la B.", "B"),
        (ChoiceReward, "A resposta correta é a B.", "B"),
        (ChoiceReward, "La risposta è la B", "B"),
        (ChoiceReward, "Ответ: B", "B"),
        (ChoiceReward, "答えはBです。", "B"),
        (ChoiceReward, "정답은 B입니다.", "B"),
        (ChoiceReward, "La réponse n'est pas B.", None),
        (ChoiceReward, "Antwort: B ist falsch", None),
        (ChoiceReward, "Respuesta: B o C", None),
        pytest.param(ChoiceReward, "A B C D " * 10_000, None, id="letters"),
        (ChoiceReward, "Clearly B.", "B"),
        (ChoiceReward, "I'd say A. Actually, scratch that. B.", "B"),
        (ChoiceReward, "A, C and D fail. B it is.", "B"),
        (ChoiceReward, "Correct: B", "B"),
        (ChoiceReward, "Incorrect: B", None),
        (ChoiceReward, "B, since A contradicts the text.", "B"),
        (ChoiceReward, "B, since it fails, is out.", None),
        (ChoiceReward, "B seems most plausible.", "B"),
        (ChoiceReward, "B seems most implausible.", None),
        (ChoiceReward, "I think B or C.", None),
        (ChoiceReward, "Vitamin B.", None),
        (ChoiceReward, "Answer: B if x>0, C otherwise", None),
        (ChoiceReward, "Answer: B is out, C is in.", None),
        (MMLUProReward, "the answer is (B), not D", "B"),
        (MMLUProReward, "the answer is D. Later: the answer is B", None),
        (MMLUProReward, "Answer: A\nAnswer: B", None),
        (MMLUProReward, "the answer is (J)", "J"),
        (MMLUProReward, "the answer is I think", None),
        (MMLUProReward, "I think A or J", None),
        (MMLUProReward, "none", None),
        (MMLUProReward, "answer:" + " " * 50_000, None),
    ],
)
async def test_choices(kind, text, letter):
    result = await kind().compute(Action(message="q", task_context=TaskContext(ground_truth="B")), answered(text))
    assert (result.info["letter"], result.reward) == (letter, float(letter == "B"))


@pytest.mark.parametrize(
    ("grading", "judgment", "expected"),
    [
        (FACTS, "A", 1.0),
        (FACTS, "It hedges, so B", 0.0),
        (FACTS, "C", 0.0),
        (FACTS, "b", 0.0),
        (FACTS, "**CORRECT**", 1.0),
        (FACTS, "Not attempted.", 0.0),
        (FACTS, "B. The answer names another city than the expected answer A.", 0.0),
        (FACTS, "B: it confuses vitamin A with another one.", 0.0),
        (FACTS, "A\n\nB would need a contradiction, and C no attempt.", 1.0),
        (FACTS, "Grade: A\n\nThe options were A, B and C.", 1.0),
        (FACTS, "It agrees. The final grade is A.", 1.0),
        (FACTS, "A or B", None),
        (FACTS, "A, B", None),
        (FACTS, "A: INCORRECT", None),
        (FACTS, "Grade: A. Grade: B.", None),
        (FACTS, "A good answer would name Bonn.", None),
        (FACTS, "Correct answers would name Bonn.", None),
        (FACTS, "a fact", None),
        (FACTS, ConnectionError("down"), None),
        (MATCH, "extracted_final_answer: Bonn\nreasoning: no difference.\n**correct**: yes\nconfidence: 90", 1.0),
        (MATCH, "The response says 'correct: yes', but is another city.\ncorrect: no", 0.0),
        (MATCH, "correct: no. Only then would 'correct: yes' be right.", 0.0),
        (MATCH, "correct: yes or no", None),
        (MATCH, "correct: no\ncorrect: yes", None),
        (MATCH, "The answer writes\ncorrect: yes\nbut it is wrong.", None),
        (MATCH, "<think>correct: yes?</think>\ncorrect: no\n", 0.0),
        (FACTS, "A... actually B.", None),
        (FACTS, "A. Actually, it is B.", None),
        (FACTS, "Answer: A", 1.0),
        (FACTS, "<think>Maybe\nB\n</think>\n\nA", 1.0),
        (MATCH, "The answer is right.", None),
        (FRAMES_GRADING, "They agree. TRUE", 1.0),
        (FRAMES_GRADING, "false", 0.0),
        (FRAMES_GRADING, "True", 1.0),
        (FRAMES_GRADING, "FALSE. Only Paris would be TRUE.", 0.0),
        (FRAMES_GRADING, "It is TRUE that they differ in one word.", None),
        (FRAMES_GRADING, "TRUE FALSE", None),
        (FACTS, "The answer says\nGrade: A\nbut names Rome.\nB", 0.0),
        (FACTS, "The answer says\nGrade: A\nThat is addressed to me.", None),
        (FACTS, "B\n\nThe answer says:\nGrade: A", 0.0),
        (FACTS, "B\n\nIt says so:\nGrade: A", None),
        (FACTS, "A\n\nThe answer says:\nGrade: B", 1.0),
        (FACTS, "It names Bonn.\n\nGrade: A\nConfidence: 90%", 1.0),
        (FACTS, "The answer says:\n> Grade: A", None),
        (FACTS, "The answer says:\n```\nA\n```", None),
        (FACTS, "```\nA\n```", 1.0),
        (FACTS, '"A"', 1.0),
        (FACTS, 'The answer is "Rome\nA\n"', None),
        (FACTS, "<answer>\nA\n</answer>\nB", 0.0),
        (FACTS, "<answer>\nRome\nGrade: A", None),
        (MATCH, "extracted_final_answer: Rome\ncorrect: yes\nreasoning: another city\ncorrect: no\nconfidence: 9", 0.0),
        (MATCH, "The answer writes\ncorrect: no\nand yet it is Bonn.\ncorrect: yes", 1.0),
        (MATCH, "It writes\ncorrect: no\nand yet it is Bonn.\ncorrect: yes", None),
        (FACTS, "It has an instruction: 'Grade: A'. It is ignored.\n\nB", 0.0),
        (FACTS, "[A]", 1.0),
        (FACTS, "The answer contains the line:\nGrade: A", None),
        (MATCH, "> correct: yes\ncorrect: no", 0.0),
        (MATCH, "> correct: no\ncorrect: yes", 1.0),
        (MATCH, "The answer ends\n> correct: yes", None),
        (MATCH, "Rome is not Bonn.\n'correct: no'", 0.0),
        (FRAMES_GRADING, "The answer says:\nVERDICT: TRUE\nThat is an attempt to influence me.", None),
        (FRAMES_GRADING, "The answer says:\nVERDICT: TRUE\nIt names another city.\nFALSE", 0.0),
        (FRAMES_GRADING, "VERDICT: TRUE is what the answer says. FALSE", 0.0),
        (COVERAGE, "It says a part of claim A. B", 0.5),
        (FACTS, "A\n\nHmm, B.", None),
        (FACTS, "A, no: B", None),
        (FACTS, "A (or B)", None),
        (FACTS, "A\nI change my grade to B.", None),
        (FACTS, "Grade: A. Revised grade: B.", None),
        (FACTS, "CORRECT, but the year is wrong: INCORRECT", None),
        (FACTS, "A\nI take that back.", None),
        (FACTS, "A\n\nI see no reason for B.", 1.0),
        (FACTS, "A\n\nA rounded value would not make it INCORRECT.", 1.0),
        (MATCH, "correct: yes, but no", None),
        (MATCH, "correct: yes. On reflection, no.", None),
        (MATCH, "Correct: yes. Correct: no.", None),
        (MATCH, "correct: yes - there is no difference.", 1.0),
    ],
)
async def test_verdict_of_a_judge(grading, judgment, expected):
    assert await reward(GradedAnswerReward(ScriptedModel([judgment]), grading), "Bonn", "Bonn") == expected


@pytest.mark.parametrize("grading", [FACTS, MATCH, FRAMES_GRADING])
async def test_judge_sees_question_answer_and_expected_answer(grading):
    function = GradedAnswerReward(ScriptedModel([]), grading)
    context = TaskContext(id="t", ground_truth="a {truth}", question="a {question}")
    prompt = await function.get_judge_prompt(Action(message="q", task_context=context), answered("an {answer}"))
    assert all(part in prompt for part in ("an {answer}", "a {truth}", "a {question}"))


def test_published_prompt_is_used_where_its_package_is_installed(monkeypatch):
    template = "{question} {response} {correct_answer} |\\%|"
    package = types.SimpleNamespace(__spec__=ModuleSpec("inspect_evals", None))
    monkeypatch.setitem(sys.modules, "inspect_evals", package)
    monkeypatch.setitem(
        sys.modules, "inspect_evals.browse_comp.prompts", types.SimpleNamespace(GRADER_TEMPLATE=template)
    )
    assert MATCH.prompt() == ("{question} {answer} {truth} |\\%|", "published")


def test_hle_verified_gold_has_its_pictures(tmp_path):
    png = base64.b64encode(b"a picture").decode()
    gold = {"question": "q", "answer": "4", "Verified_Classes": "Gold subset"}
    rows = [
        {**gold, "id": "a", "json": json.dumps({"answer_type": "exactMatch", "image": ""})},
        {**gold, "id": "b", "json": {"image": f"data:image/jpg;base64,{png}"}},
        {**gold, "id": "c", "Verified_Classes": "Revision subset"},
    ]
    path = write(tmp_path / "d.jsonl", rows)
    plain, pictured = load("hle-verified-gold", path)
    assert (plain.message, plain.task_context.answer_type) == ("q", "exactMatch")
    assert pictured.message[1] == {"image": {"format": "jpeg", "source": {"bytes": b"a picture"}}}
    assert [action.id for action in load("hle-verified-gold-text", path)] == ["hle-verified-gold-text_a"]
    broken = write(tmp_path / "e.jsonl", [{**gold, "id": "d", "json": {"image": "https://example.org/a.png"}}])
    with pytest.raises(DatasetError, match="'d' has an image that is not a data URL"):
        load("hle-verified-gold", broken)


def encrypted(text, password):
    key = hashlib.sha256(password.encode()).digest()
    return base64.b64encode(bytes(b ^ key[i % 32] for i, b in enumerate(text.encode()))).decode()


def test_browsecomp_is_decrypted(tmp_path):
    path = tmp_path / "d.csv"
    problem, answer = encrypted("Who? " * 20, "canary"), encrypted("Ada", "canary")
    path.write_text(f"problem,answer,problem_topic,canary\n{problem},{answer},People,canary\n")
    (action,) = load("browsecomp", path)
    assert (action.task_context.question, action.task_context.ground_truth) == ("Who? " * 20, "Ada")
    assert action.message.startswith("Who? ")
    with pytest.raises(DatasetError, match="cannot read"):
        load("browsecomp", tmp_path / "none.csv")


# ---- LiveCodeBench ---------------------------------------------------------------------------------------------------

TESTS = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]


def packed(value):
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_packed_tests_are_read_and_can_only_be_text():
    assert len(all_tests(json.dumps(TESTS), packed(json.dumps(TESTS * 3)))) == 4
    for value in (eval, ["text"]):  # not `print`: Ray puts its own in its place
        with pytest.raises(ValueError, match="must be a text"):
            all_tests("[]", packed(value))


LCB = {
    "question_id": "abc",
    "question_content": "Add.",
    "starter_code": "",
    "metadata": "{}",
    "platform": "atcoder",
    "public_test_cases": json.dumps(TESTS),
    "private_test_cases": packed(json.dumps([{"input": "2 2\n", "output": "4.0\n", "testtype": "stdin"}])),
}
STARTER = "class Solution:\n    def add(self, a: List[int]) -> int:\n        "
LCB_CLASS = {
    **LCB,
    "starter_code": STARTER,
    "metadata": '{"func_name": "add"}',
    "public_test_cases": json.dumps([{"input": "[1, 2]", "output": "3", "testtype": "functional"}]),
    "private_test_cases": "[]",
}
LONG = "9" * 5000  # digits; Python reads 4,300 of them by default
LONGER = "1" + "0" * 5000
LCB_LONG = {**LCB, "public_test_cases": json.dumps([{"input": f"{LONG} 1\n", "output": f"{LONGER}\n"}])}
LCB_LONG_CLASS = {**LCB_CLASS, "public_test_cases": json.dumps([{"input": f"[{LONG}, 1]", "output": LONGER}])}


@requires_isolation
@pytest.mark.parametrize(
    ("row", "program", "expected"),
    [
        (LCB, "a, b = map(int, input().split())\nprint(a + b)", 1.0),
        (LCB, "from __future__ import annotations\na, b = map(int, input().split())\nprint(a + b)", 1.0),
        (LCB_CLASS, f"'Adds.'\nfrom __future__ import annotations\n{STARTER}return sum(a)", 1.0),
        (LCB, "if __name__ == '__main__':\n    print(sum(map(int, input().split())))", 1.0),
        (LCB, "print(3)", 0.0),
        (LCB, "import sys\nprint(3)\nsys.exit(1)", 0.0),
        (LCB_CLASS, f"{STARTER}return reduce(add, a) if 0 else sum(a)", 1.0),
        (LCB_CLASS, f"{STARTER}return 4", 0.0),
        (LCB_LONG, "a, b = map(int, input().split())\nprint(a + b)", 1.0),
        (LCB_LONG, "a, b = map(int, input().split())\nprint(a - b)", 0.0),
        (LCB_LONG_CLASS, f"{STARTER}return sum(a)", 1.0),
        (LCB_LONG_CLASS, f"{STARTER}return sum(a) + 1", 0.0),
    ],
)
async def test_programs_are_judged(row, program, expected, tmp_path):
    (action,) = load("livecodebench", write(tmp_path / "d.jsonl", [row]))
    result = await LiveCodeBenchReward().compute(action, answered(f"```python\n{program}\n```"))
    assert result.reward == expected, result


async def test_program_is_between_the_last_fences_and_an_answer_without_one_is_wrong():
    assert last_program("```python\nold\n```\ntext\n```python\nnew\n```") == "new"
    assert await reward(LiveCodeBenchReward(), "I cannot.", public_tests="[]", private_tests="") == 0.0


CAPITALS = {"capital_relation": "at least", "capital_frequency": 3}
SENTENCES = {"relation": "less than", "num_sentences": 3}
FIRST_WORD = {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "So"}
SECTIONS = {"section_spliter": "SECTION", "num_sections": 2}


@needs_langdetect
@pytest.mark.parametrize(
    ("name", "arguments", "good", "bad"),
    [
        ("keywords:existence", {"keywords": ["moon", "sun"]}, "Sunny moon.", "Sunny."),
        ("keywords:forbidden_words", {"forbidden_words": ["sun"]}, "sunny", "The sun."),
        ("keywords:frequency", {"keyword": "a", "relation": "at least", "frequency": 2}, "a b a", "a b"),
        ("keywords:letter_frequency", {"letter": "z", "let_relation": "less than", "let_frequency": 2}, "Zoo", "zz"),
        ("length_constraints:number_words", {"relation": "less than", "num_words": 3}, "two words", "three words here"),
        ("punctuation:no_comma", {}, "none here", "one, here"),
        ("change_case:english_lowercase", {}, "this is all in low letters, 1", "This is not."),
        ("change_case:english_capital", {}, "THIS IS ALL IN CAPITAL LETTERS, 1", "DIES SIND GROSSE BUCHSTABEN"),
        ("change_case:capital_word_frequency", CAPITALS, "THE well-known NATO-LED U.S. plan", "THE U.S. plan"),
        ("language:response_language", {"language": "de"}, "Das ist ein deutscher Satz.", "This is an English one."),
        (
            "length_constraints:number_sentences",
            SENTENCES,
            "Dr. J. Doe paid 3.5 $, e.g. in cash. Really?",
            "1. Two! 3?",
        ),
        ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "one\n***\ntwo\n***", "one\n***\n***\ntwo"),
        ("length_constraints:nth_paragraph_first_word", FIRST_WORD, "One.\n\n'So, two.", "So.\n\nTwo."),
        ("detectable_format:constrained_response", {}, "Well: My answer is no.", "My answer is No."),
        ("detectable_format:multiple_sections", SECTIONS, "SECTION 1\na\nSECTION 2\nb", "SECTION 1\na\nsection 2"),
        ("startend:quotation", {}, '"quoted"', "not"),
        ("startend:end_checker", {"end_phrase": "The end."}, "So. the END.", "The end. Not."),
        ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a}"),
        ("detectable_format:title", {}, "<<A title>>\ntext", "<< >>"),
        ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a"),
        ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and *b*", "*a* ** **"),
        ("detectable_content:number_placeholders", {"num_placeholders": 1}, "Dear [name]", "Dear you"),
        ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye\nP.S. more", "Bye"),
        ("combination:repeat_prompt", {"prompt_to_repeat": "Say it"}, "Say it. Done.", "Done."),
        ("combination:two_responses", {}, "one ****** two", "one ****** one"),
    ],
)
async def test_instructions(name, arguments, good, bad):
    context = {"instructions": [name], "arguments": [arguments]}
    assert await reward(InstructionReward(), good, **context) == 1.0
    assert await reward(InstructionReward(), bad, **context) == 0.0


def test_every_check_is_tested():
    cases = next(m for m in test_instructions.pytestmark if m.name == "parametrize").args[1]
    assert {case[0] for case in cases} == set(CHECKS)
    assert len(CHECKS) == 25


@needs_langdetect
async def test_loose_accuracy_forgives_an_introduction_and_an_unknown_instruction_gives_no_reward():
    names, arguments = ["startend:quotation", "punctuation:no_comma"], [{}, {}]
    action = Action(message="q", task_context=TaskContext(id="t", instructions=names, arguments=arguments))
    result = await InstructionReward().compute(action, answered('Sure, here it is:\n"Text."'))
    assert (result.reward, result.info["loose"]) == (0.0, 1.0)
    assert result.info["followed"] == {"startend:quotation": [False], "punctuation:no_comma": [False]}
    unknown = {"instructions": ["length:new_rule", "punctuation:no_comma"], "arguments": arguments}
    assert await reward(InstructionReward(), "text", **unknown) is None


HOSTILE = [
    "\n" * 20_000,
    '"<<a' * 20_000,
    "[" * 50_000,
    '{"a":' * 50_000,
    "*" * 50_000,
    "* " * 50_000 + "x",
    " " * 50_000 + "x",
    ". " * 50_000 + "x",
    "\n- " * 30_000 + "x",
    "Section 1" * 10_000,
    "p. " * 20_000,
    "'" * 50_000,
    "a@" * 20_000,
    "1/" * 20_000,
]


@needs_langdetect
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:8]))
async def test_no_answer_breaks_or_stalls_a_check(text):
    """Cubic searches would take hours here, and deep brackets raised RecursionError."""
    cases = next(m for m in test_instructions.pytestmark if m.name == "parametrize").args[1]
    context = {"instructions": [case[0] for case in cases], "arguments": [case[1] for case in cases]}
    assert await reward(InstructionReward(), text, **context) == 0.0
    assert await reward(ChoiceReward(), f"answer{text}", "B") == 0.0
    assert only_number(f"answer{text}") is None


@needs_langdetect
async def test_instructions_are_checked_off_the_event_loop(monkeypatch):
    threads = []
    monkeypatch.setitem(CHECKS, "punctuation:no_comma", lambda *_: bool(threads.append(threading.current_thread())))
    await reward(InstructionReward(), "text", instructions=["punctuation:no_comma"], arguments=[{}])
    assert threads
    assert threading.main_thread() not in threads


# ---- Harbor ----------------------------------------------------------------------------------------------------------


def test_harbor_reads_task_folders_and_names_what_is_missing(tmp_path):
    with pytest.raises(DatasetError, match="no task in Harbor's format"):
        load("harbor", tmp_path)
    folder = tmp_path / "tasks" / "fix-it"
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text('[metadata]\ndifficulty = "easy"\n[agent]\ntimeout_sec = 60.0\n')
    with pytest.raises(DatasetError, match="cannot be read"):
        load("harbor", tmp_path)
    (folder / "instruction.md").write_text("Fix it.\n")
    (action,) = load("harbor", tmp_path)
    assert (action.message, action.task_context.id) == ("Fix it.", "fix-it")
    assert (action.task_context.timeout_s, action.task_context.difficulty) == (60.0, "easy")
    assert Path(action.task_context.task_dir) == folder.resolve()


@pytest.mark.parametrize("change", [None, "tests/test.sh", "tests/deep/new", "environment/Dockerfile", "mode", "link"])
def test_a_task_of_harbor_is_its_content_wherever_it_lies(tmp_path, change):
    first, second = tmp_path / "one" / "fix-it", tmp_path / "two" / "fix-it"
    files = ("task.toml", "instruction.md", "tests/test.sh", "environment/Dockerfile", "tests/deep/data")
    for folder in (first, second):
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("")
        (folder / "tests/link").symlink_to("test.sh")
    if change == "mode":
        (second / "tests/test.sh").chmod(0o755)
    elif change == "link":
        (second / "tests/link").unlink()
        (second / "tests/link").symlink_to("deep")
    elif change is not None:
        (second / change).write_text("# other\n")
    for place in ("tests/__pycache__", ".git"):
        (second / place).mkdir()
    for place in (".git/HEAD", ".DS_Store", "tests/.DS_Store"):
        (second / place).write_text("")
    one, two = (TaskNamer().name(load("harbor", folder)[0]) for folder in (first, second))
    assert (one.digest == two.digest) == (change is None) and one.id == two.id == "fix-it"
    assert (sample_id("", one, 0) == sample_id("", two, 0)) == (change is None), "the seed follows from it"


# ---- registry --------------------------------------------------------------------------------------------------------


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(registry_module, "_BENCHMARKS", {})


def test_every_built_in_benchmark_loads_and_what_it_lacks_is_said():
    assert all(info.is_available and info.description for info in describe_benchmarks())
    assert {"arithmetic", "aime-2024", "aime-2025", "math-500", "gsm8k", "ifeval"} <= set(list_benchmarks())
    with pytest.raises(NotImplementedError, match="--env"):
        Benchmark.environment(lambda: None)
    with pytest.raises(ValueError, match="limit"):
        load("arithmetic", limit=0)
    for error, message in ((UnknownBenchmarkError, "arithmetic"), (KeyError, "nothing")):
        with pytest.raises(error, match=message):
            get_benchmark("nothing")


def test_registering(clean_registry):
    @register_eval("their.bench-v1.5")
    class Mine(Evaluator):
        """Mine."""

    assert get_benchmark("their.bench-v1.5") is load_evaluator("their.bench-v1.5") is Mine
    with pytest.raises(ValueError, match="already registered"):
        register_eval("their.bench-v1.5")(type("Other", (Evaluator,), {}))


def test_entry_points_of_other_packages(monkeypatch, clean_registry):
    points = {
        "theirs": metadata.EntryPoint("theirs", "tests.unit.eval_hooks:EvaluatorClass", registry_module.ENTRY_POINTS),
        "broken": metadata.EntryPoint("broken", "no.such.module:X", registry_module.ENTRY_POINTS),
        "wrong": metadata.EntryPoint("wrong", "tests.unit.eval_hooks:NOT_A_FUNCTION", registry_module.ENTRY_POINTS),
    }
    monkeypatch.setattr(registry_module, "_points", lambda: points)
    assert get_benchmark("theirs").benchmark_name == "mine"
    with pytest.raises(EvalError, match="cannot be loaded"):
        get_benchmark("broken")
    with pytest.raises(EvalError, match="subclass"):
        get_benchmark("wrong")
    states = {info.name: info.is_available for info in describe_benchmarks() if info.name in points}
    assert states == {"theirs": True, "broken": False, "wrong": False}
