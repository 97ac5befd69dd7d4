"""Benchmarks on small files the tests write; the hub is never asked."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from strands_env.commands.cli import main as command_line
from strands_env.commands.recipe.factories import load_evaluator
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
from strands_env.eval.run.tasks import TaskNamer, sample_id
from strands_env.rewards import ChoiceReward
from strands_env.rewards.numerals import only_number
from strands_env.testing import ScriptedModel, call


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


@pytest.mark.parametrize(
    ("name", "row", "left_out", "message", "context"),
    [
        ("aime-2024", {"id": 60, "problem": "p", "answer": "4"}, {"problem": "p"}, "p", {"id": "aime-2024_60"}),
        ("math-500", {"unique_id": "a/1", "problem": "p", "answer": "4", "level": 5}, {}, "p", {"level": 5}),
        ("hmmt-feb-2025", {"problem_idx": 3, "problem": "p", "answer": "4"}, {}, "p", {"id": "hmmt-feb-2025_3"}),
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
    try:
        environment = kind.environment(lambda: ScriptedModel([r"It is \boxed{4}. Answer: A"]))
    except ImportError as error:
        pytest.skip(str(error))
    ((sample,),) = asyncio.run(kind(environment, data_path=path, output_path=None).run()).values()
    assert (sample.step_result.error, sample.reward) == (None, 1.0)


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
    ("letters", "text", "letter"),
    [
        ("ABCD", "Answer: B", "B"),
        ("ABCD", "I doubt (A). The correct answer is (B).", "B"),
        ("ABCD", "The answer is A, no: Answer: **B**", "B"),
        ("ABCD", "(A) is wrong, so (B)", "B"),
        ("ABCD", "Answer: C. Note that the answer is a simplification.", "C"),
        ("ABCD", r"$\boxed{B}$", "B"),
        ("ABCD", r"\boxed{\text{(B)}\ 15}", "B"),
        ("ABCD", "option B", "B"),
        ("ABCD", "B", "B"),
        ("ABCD", "B. Paris", "B"),
        ("ABCD", "(A) and (C) fail.\n\n**B**", "B"),
        ("ABCD", "Answer：B", "B"),
        ("ABCD", "答案是B。", "B"),
        ("ABCD", "Answer: b", "B"),
        ("ABCD", r"Answer: \(B\)", "B"),
        ("ABCD", "Answer: A", "A"),
        ("ABCD", "Option B is correct, option A is not.", "B"),
        ("ABCD", "Answer: A good question.", None),
        ("ABCD", "Answer: B or C", None),
        ("ABCD", "B, C", None),
        ("ABCD", "The answer is B-cell activation", None),
        ("ABCD", r"\boxed{B = 0.5}", None),
        ("ABCD", "Which one?\n\n(A) a\n(B) b\n(C) c\n(D) d", None),
        ("ABCD", "Answer: E", None),
        ("ABCD", "A good question.", None),
        ("ABCD", "", None),
        ("ABCD", "The answer is (A) (B) (C) (D)", None),
        ("ABCD", "A B C D", None),
        ("ABCD", "A|B|C|D", None),
        ("ABCD", "A; B; C; D", None),
        ("ABCD", "A, maybe B", None),
        ("ABCD", r"\boxed{A B}", None),
        ("ABCD", "答案是A、B", None),
        ("ABCD", "A\nB\nC\nD", None),
        ("ABCD", "Answer: It is not (D)", None),
        ("ABCD", "The answer is not (B)", None),
        ("ABCD", "It is not B.", None),
        ("ABCD", "(A) (B)", None),
        ("ABCD", "Answer: B\nAnswer: B or C", None),
        ("ABCD", "The answer is B\nor C", None),
        ("ABCD", "The answer is B; alternatively C", None),
        ("ABCD", r"\boxed{B}\text{ or }\boxed{C}", None),
        ("ABCD", "Answer = B", "B"),
        ("ABCD", "The answer, therefore, is B.", "B"),
        ("ABCD", "B - 5 m/s", "B"),
        ("ABCD", "Answer: B / C", None),
        ("ABCD", "It is B or C.", None),
        ("ABCD", "The answer is A. Wait, actually it is B.", "B"),
        ("ABCD", "It is B.", "B"),
        ("ABCD", "The answer should be B", "B"),
        ("ABCD", "The answer to the question is B", "B"),
        ("ABCD", "The answer is probably B", "B"),
        ("ABCD", "Answer: I think B", "B"),
        ("ABCD", "<answer>B</answer>", "B"),
        ("ABCD", "Answer - B", "B"),
        ("ABCD", "The answer is not A but B", "B"),
        ("ABCD", "The answer is B, not A.", "B"),
        ("ABCD", "Reasoning\n\nB", "B"),
        ("ABCD", "The answer is (B), since A is wrong.", "B"),
        ("ABCD", "Answer: B\n\nC is wrong.", "B"),
        ("ABCD", "(A) fails\nAnswer: B", "B"),
        ("ABCD", "Answer: B is wrong", None),
        ("ABCD", "Option B is wrong", None),
        ("ABCD", "I eliminated option B.", None),
        ("ABCD", "(B) is impossible.", None),
        ("ABCD", "The answer is anything but B.", None),
        ("ABCD", "Answer: A, else B, else C", None),
        ("ABCD", "Answer: B. Or C.", None),
        ("ABCD", "Answer: B if x>0, otherwise C", None),
        ("ABCD", "The answer is B. Hmm, let me reconsider. C is right.", "C"),
        ("ABCD", "Answer: C\n\nThe wrong answer is B.", "C"),
        ("ABCD", "Answer: C. The incorrect option is B.", "C"),
        ("ABCD", "Answer: C\n\nNote: most people choose B.", "C"),
        ("ABCD", "Answer: C. The worst choice is B.", "C"),
        ("ABCD", "Answer: B. A is wrong.", "B"),
        ("ABCD", "No doubt the answer is B.", "B"),
        ("ABCD", "Answer: B\n\nOption C is wrong.", "B"),
        ("ABCD", "I choose B.", "B"),
        ("ABCD", "Answer: A..D", None),
        ("ABCD", "Answer: A to D", None),
        ("ABCD", "Answer: A or, failing that, B", None),
        ("ABCD", "Answer: (B)(C)", None),
        ("ABCD", "Answer: B, though C is also possible.", None),
        ("ABCD", "A\nor\nB", None),
        ("ABCD", "Answer: C. Therefore B.", None),
        ("ABCD", "Answer: C\n\nB", None),
        ("ABCD", r"\boxed{A} and then Answer: B", None),
        ("ABCD", "If x > 0, answer: A. If x < 0, answer: B.", None),
        ("ABCD", "The final answer is C. The final answer is B.", None),
        ("ABCD", "Answer: A\nFinal answer: B", "B"),
        ("ABCD", "Answer: A\n\nWait, that is wrong. Answer: B", "B"),
        ("ABCD", "It is A, so we go on.\n\nAnswer: B", "B"),
        ("ABCD", "A\nfoo\nC\nbar\n\nThe answer is (B).", "B"),
        ("ABCD", "Answer: B; A and C are wrong.", "B"),
        ("ABCD", "If the answer is B, I would be surprised", None),
        ("ABCD", "Suppose the answer is B.", None),
        ("ABCD", "Answer: B. If C is right, energy is lost.", "B"),
        ("ABCD", "Some say the answer is C. Answer: B", "B"),
        ("ABCD", "One might think the answer is B.", None),
        ("ABCD", r"Many students would answer \boxed{B}", None),
        ("ABCD", r"It is not \boxed{B}", None),
        ("ABCD", r"\boxed{B} is wrong", None),
        ("ABCD", r"\boxed{b}", "B"),
        ("ABCD", "(b)", "B"),
        ("ABCD", "Ans. B", "B"),
        ("ABCD", "Die richtige Antwort ist (B).", "B"),
        ("ABCD", "Réponse : B", "B"),
        ("ABCD", "La respuesta correcta es la B.", "B"),
        ("ABCD", "A resposta correta é a B.", "B"),
        ("ABCD", "La risposta è la B", "B"),
        ("ABCD", "Ответ: B", "B"),
        ("ABCD", "答えはBです。", "B"),
        ("ABCD", "정답은 B입니다.", "B"),
        ("ABCD", "La réponse n'est pas B.", None),
        ("ABCD", "Antwort: B ist falsch", None),
        ("ABCD", "Respuesta: B o C", None),
        pytest.param("ABCD", "A B C D " * 10_000, None, id="letters"),
        ("ABCD", "Clearly B.", "B"),
        ("ABCD", "I'd say A. Actually, scratch that. B.", "B"),
        ("ABCD", "A, C and D fail. B it is.", "B"),
        ("ABCD", "Correct: B", "B"),
        ("ABCD", "Incorrect: B", None),
        ("ABCD", "B, since A contradicts the text.", "B"),
        ("ABCD", "B, since it fails, is out.", None),
        ("ABCD", "B seems most plausible.", "B"),
        ("ABCD", "B seems most implausible.", None),
        ("ABCD", "I think B or C.", None),
        ("ABCD", "Vitamin B.", None),
        ("ABCD", "Answer: B if x>0, C otherwise", None),
        ("ABCD", "Answer: B is out, C is in.", None),
        ("ABCDEFGHIJ", "the answer is (B), not D", "B"),
        ("ABCDEFGHIJ", "the answer is D. Later: the answer is B", None),
        ("ABCDEFGHIJ", "Answer: A\nAnswer: B", None),
        ("ABCDEFGHIJ", "the answer is (J)", "J"),
        ("ABCDEFGHIJ", "the answer is I think", None),
        ("ABCDEFGHIJ", "I think A or J", None),
        ("ABCDEFGHIJ", "none", None),
        ("ABCDEFGHIJ", "answer:" + " " * 50_000, None),
    ],
)
async def test_choices(letters, text, letter):
    context = TaskContext(ground_truth="B", choices=[*letters])
    result = await ChoiceReward().compute(Action(message="q", task_context=context), answered(text))
    assert (result.info["letter"], result.reward) == (letter, float(letter == "B"))


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


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:8]))
async def test_no_answer_breaks_or_stalls_a_reader(text):
    """Cubic searches would take hours here, and deep brackets raised RecursionError."""
    assert await reward(ChoiceReward(), f"answer{text}", "B") == 0.0
    assert only_number(f"answer{text}") is None


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
    assert (sample_id(b"", one, 0) == sample_id(b"", two, 0)) == (change is None), "the seed follows from it"


# ---- registry --------------------------------------------------------------------------------------------------------


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(registry_module, "_BENCHMARKS", {})


def test_every_built_in_benchmark_loads_and_what_it_lacks_is_said():
    assert all(info.is_available and info.description for info in describe_benchmarks())
    assert {"arithmetic", "aime-2024", "aime-2025", "math-500"} <= set(list_benchmarks())
    with pytest.raises(NotImplementedError, match="--env"):
        Benchmark.environment(lambda: None)
    with pytest.raises(ValueError, match="limit"):
        load("arithmetic", limit=0)
    for error, message in ((UnknownBenchmarkError, "arithmetic"), (KeyError, "nothing")):
        with pytest.raises(error, match=message):
            get_benchmark("nothing")


@pytest.mark.parametrize(("old", "new"), registry_module.REPLACED.items())
def test_a_name_that_went_says_what_to_type_instead(old, new, capsys):
    assert command_line(["eval", old]) != 0
    assert f"is gone: type strands-env eval {new}" in capsys.readouterr().err
    with pytest.raises(EvalError, match=f"'{old}' is gone"):
        get_benchmark(old)


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


# ---- a registry of Harbor --------------------------------------------------------------------------------------------

DOWNLOAD = """#!/bin/sh
echo "$@" >> "$0.log"
[ "$2" = org/none ] && { echo "Error: Dataset org/none not found" >&2; exit 1; }
mkdir -p "$4/sums/one/environment" "$4/sums/two"
for task in one two; do echo Do it. > "$4/sums/$task/instruction.md"; : > "$4/sums/$task/task.toml"; done
: > "$4/sums/one/environment/task.toml"
"""


def test_a_name_of_harbors_registry_is_fetched_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "harbor"
    program.parent.mkdir()
    monkeypatch.setenv("STRANDS_ROLLOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    with pytest.raises(DatasetError, match=r"the program harbor: .*harbor"):
        get_benchmark("harbor:org/sums@1")(dict).known_tasks()
    program.write_text(DOWNLOAD)
    program.chmod(0o755)
    for _ in range(2):
        tasks = list(get_benchmark("harbor:org/sums@1")(dict).load_dataset())
        assert [(task.task_context.id, task.message) for task in tasks] == [("one", "Do it."), ("two", "Do it.")]
    assert len(program.with_name("harbor.log").read_text().splitlines()) == 1
    with pytest.raises(DatasetError, match="Dataset org/none not found; is that its name"):
        list(get_benchmark("harbor:org/none")(dict).load_dataset())
