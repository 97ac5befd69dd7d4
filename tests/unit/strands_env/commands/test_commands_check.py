"""`check`, `init`, and evaluations without a class."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import sqlite3
import subprocess
import sys
import time
from typing import Any

import pytest
from strands import tool

from strands_env.commands.cli import main
from strands_env.commands.recipe import trial
from strands_env.core import Environment, RewardFunction
from strands_env.eval import read_results
from tests.unit.strands_env.commands.test_eval_cli import FAST, HOOKS, evaluate

HERE = __name__


@tool
def silent(x: int) -> int:
    return x


def plain(x: int) -> int:
    """Not decorated."""
    return x


class SyncStep(Environment):
    def step(self, action) -> None:  # type: ignore[override]
        pass


class OwnThread(Environment):
    """State that belongs to one thread: plain `reset`, tools and `cleanup` share it."""

    def reset(self) -> None:
        self.db = sqlite3.connect(":memory:")

    def get_tools(self) -> list[Any]:
        @tool
        def count() -> str:
            """Count rows."""
            return str(self.db.execute("select 1").fetchall())

        return [count]

    def cleanup(self) -> None:
        self.db.close()


class AsyncTools(Environment):
    async def get_tools(self) -> list[Any]:  # type: ignore[override]
        return []


class OneTool(Environment):
    def get_tools(self) -> Any:
        return silent


class PlainTool(Environment):
    def get_tools(self) -> list[Any]:
        return [plain]


class Undocumented(Environment):
    def get_tools(self) -> list[Any]:
        return [silent]


class SyncReward(RewardFunction):
    def compute(self, action, step_result):  # type: ignore[override]
        return 1.0


class WithSyncReward(Environment):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "reward_fn": SyncReward()})


class WrongReward(Environment):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "reward_fn": lambda action, result: "good"})


class NoContainer(Environment):
    async def reset(self) -> None:
        raise RuntimeError("no container")


class OfATask(Environment):
    """Its world depends on the task, which `reset` may take."""

    async def reset(self, action) -> None:  # type: ignore[override]
        self.question = action.message


MISTAKES = [
    ("SyncStep", "SyncStep.step() must be async: write 'async def step(self, ...)'"),
    ("AsyncTools", "AsyncTools.get_tools() must not be async"),
    ("OneTool", "get_tools() must return a list, got <"),
    ("PlainTool", "'plain' is not a tool, and the SDK drops it: decorate a function with @tool"),
    ("WithSyncReward", "SyncReward.compute() must be async"),
]


@pytest.mark.parametrize(("name", "message"), [
    *MISTAKES,
    ("WrongReward", "the reward failed: TypeError: a reward function must return a RewardResult, a number or None"),
    ("NoContainer", "the setup failed: RuntimeError: no container"),
])  # fmt: skip
def test_mistakes_are_named_by_check_and_refused_before_a_run_where_they_can_be_told(name, message, tmp_path, capsys):
    assert main(["check", "--env", f"{HERE}:{name}", "--tokenizer", "none"]) == 1
    out = capsys.readouterr().out
    assert message in out and "errors: 1" in out
    if (name, message) in MISTAKES:
        assert evaluate(f"{HOOKS}:three_tasks", "--env", f"{HERE}:{name}", *FAST, "-o", str(tmp_path / "out")) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_a_reset_may_take_the_action(tmp_path, capsys):
    assert main(["check", "--env", f"{HERE}:OfATask", "--tokenizer", "none"]) == 0
    options = ["--env", f"{HERE}:OfATask", "--reward", "exact", *FAST, "-o", str(tmp_path / "out")]
    assert evaluate(f"{HOOKS}:three_tasks", *options) == 0


class Shop(Environment):
    def get_tools(self) -> list[Any]:
        @tool
        def stock() -> str:
            """Everything in stock."""
            raise RuntimeError("no database")

        @tool
        def hours() -> dict[str, Any]:
            """When it is open."""
            return {"status": "error", "content": [{"text": "closed"}]}

        @tool
        def price(item: str) -> int:
            """The price of an item."""
            return 35

        return [stock, hours, price]


def test_check_calls_the_tools_that_need_no_arguments(capsys):
    assert main(["check", "--env", f"{HERE}:Shop", "--tokenizer", "none"]) == 1
    tools, _, calls = capsys.readouterr().out.partition("call  ")
    assert "price(item: string)" in tools and "price" not in calls
    assert "the tool 'stock' raised RuntimeError: no database" in calls and "test_commands_check.py:" in calls
    assert "the tool 'hours' gave an error: closed" in calls
    assert main(["check", "--env", f"{HERE}:OwnThread", "--tokenizer", "none"]) == 0
    assert "count() gave '[(1,)]'" in capsys.readouterr().out


def test_warnings_are_no_errors(capsys):
    assert main(["check", "--env", f"{HERE}:Undocumented", "--tokenizer", "none", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [finding["level"] for finding in shown["findings"]] == ["warning", "warning"]
    assert "has no docstring" in shown["findings"][0]["what"]
    assert [spec["name"] for spec in shown["tools"]] == ["silent"]


def test_check_shows_tools_and_the_prompt_as_the_model_sees_them(capsys):
    pytest.importorskip("tokenizers")
    assert main(["check", "arithmetic", "--tokenizer", "tiny"]) == 0
    out = capsys.readouterr().out
    assert "tool        calculator(expression: string" in out
    assert "  | <|im_start|>user\n  | What is 876 + 61?<|im_end|>" in out
    assert "reward      0.000 for the answer 'This is a trial.'" in out


def test_a_tokenizer_without_a_chat_template_is_named(capsys, monkeypatch):
    pytest.importorskip("tokenizers")
    from strands_sglang.backends.engine.tiny import make_tiny_tokenizer

    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = None
    monkeypatch.setattr("strands_env.commands.recipe.trial.get_tokenizer", lambda name: tokenizer)
    assert main(["check", "arithmetic", "--tokenizer", "bare"]) == 1
    assert "chat template" in capsys.readouterr().out


# ---- data without a class -------------------------------------------------------------------------------------------


def data(path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_file_of_questions_and_answers_needs_no_class(tmp_path, capsys):
    file = data(tmp_path / "quiz.jsonl", {"question": "2+2?", "answer": "4", "id": "sum", "level": 1})
    options = ["--backend", "scripted", "--script", "4", "-o", str(tmp_path / "out")]
    assert evaluate("--data", file, *options) == 0
    assert "data: 1 samples" in capsys.readouterr().err
    [found] = read_results(tmp_path / "out")
    assert (found.prompt_id, found.reward, found.action.task_context.level) == ("sum", 1.0, 1)


@pytest.mark.parametrize(
    ("row", "columns", "shown"),
    [
        (
            {"question": "2+2?", "answer": "4", "schema": "CREATE", "Due Date": 1},
            "",
            {"schema": "CREATE", "Due Date": 1},
        ),
        ({"prompt": "2+2?", "reward_model": {"ground_truth": "4"}}, "answer=reward_model.ground_truth", None),
        (
            {"prompt": "2+2?", "reward_model": {"style": 1}},
            "answer=reward_model.ground_truth",
            "for 'ground_truth' there are style",
        ),
        (
            {"question": "2+2?", "answer": "4", "ground_truth": "5"},
            "",
            "'ground_truth' beside 'answer', and one of them",
        ),
        ({"question": "2+2?", "answer": "4", "ground_truth": "4"}, "", {}),
        ({"question": "2+2?", "answer": "4", "id": 1, "uid": 2}, "id=uid", "'id' beside 'uid', and one of them"),
        ({"question": "2+2?", "answer": "4", "text": "x"}, "", "has a field 'text', which means the prompt"),
    ],
)
def test_no_column_is_lost(row, columns, shown, tmp_path, capsys):
    file = data(tmp_path / "quiz.jsonl", row)
    options = [*FAST, "--data", file, "--reward", "exact", "-o", str(tmp_path / "out")]
    refused = isinstance(shown, str)
    assert evaluate(*options, *(["--columns", columns] if columns else [])) == (2 if refused else 0)
    assert not refused or shown in capsys.readouterr().err
    for found in () if refused else read_results(tmp_path / "out"):
        context = found.action.task_context
        assert context.ground_truth == "4" and (shown is None or context.model_extra == shown)


def test_one_null_answer_at_the_front_is_no_missing_column(tmp_path):
    file = data(tmp_path / "quiz.jsonl", {"question": "1?", "answer": None}, {"question": "2+2?", "answer": "4"})
    assert evaluate(*FAST, "--data", file, "--reward", "exact", "-o", str(tmp_path / "out")) == 0


def test_columns_are_mapped_and_a_wrong_one_is_named(tmp_path, capsys):
    file = data(tmp_path / "quiz.jsonl", {"text": "2+2?", "truth": 4})
    options = [*FAST, "--data", file, "--reward", "number", "-o", str(tmp_path / "out")]
    assert evaluate(*options, "--columns", "question=text,answer=truht") == 2
    assert "there is no column 'truht' (did you mean 'truth'?)" in capsys.readouterr().err
    assert evaluate(*options, "--columns", "question=text,answer=truth") == 0
    assert [item.reward for item in read_results(tmp_path / "out")] == [1.0]
    assert evaluate("--resume", "-q", "-o", str(tmp_path / "out")) == 0


def contains(action: Any, result: Any) -> float:
    return float(action.ground_truth in (result.observation.final_response or ""))


def counts_calls(action: Any, result: Any) -> float:
    return float(result.observation.metrics.get("tool_calls", 0))


def with_calls(model_factory: Any) -> Any:
    return lambda: Environment(model_factory=model_factory, reward_fn=counts_calls)


@pytest.mark.parametrize(("golds", "options", "status", "shown"), [
    (["4", "17"], ["--reward", "exact"], 0, "2 tasks: 2 sound (of 2)"),
    (["4", "17"], ["--reward", f"{HERE}:contains"], 1, "free      row0: "),
    (["4", None, "5"], ["--reward", "exact"], 1, "broken    row1: "),
    (["4", None, "5"], ["--reward", "number"], 1, "broken    row1: "),
    ([{"x": 4}, {"x": 5}], ["--reward", "math"], 1, "2 tasks: 2 broken (of 2)"),
    (["4", {"x": 5}, "6"], ["--reward", "math"], 1, "broken    row1: "),
    (["4"], ["--reward", f"{HERE}:counts_calls"], 1, "unsolved  row0: '4' scores 0"),
    (["4"], ["--env", f"{HERE}:with_calls"], 0, "warning     no gold wins by an answer alone"),
    (["4", None], ["--reward", "exact", "--proof-seconds", "0"], 0, "checked     nothing to change"),
])  # fmt: skip
def test_the_reward_is_proven_on_the_data(golds, options, status, shown, tmp_path, capsys):
    if "math" in options:
        pytest.importorskip("math_verify", reason="needs the extra `math`")
    rows = [{"question": "2+2?", "answer": gold, "id": f"row{place}"} for place, gold in enumerate(golds)]
    file = data(tmp_path / "quiz.jsonl", *rows)
    assert main(["check", "--data", file, *options, "--tokenizer", "none"]) == status
    assert shown in capsys.readouterr().out
    assert main(["check", "--data", file, *options, "--tokenizer", "none", "--json"]) == status
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is (status == 0)
    if "--proof-seconds" not in options:
        assert [row["id"] for row in document["proof"]["rows"]] == [row["id"] for row in rows]


async def sleeps(action: Any, result: Any) -> float:
    await asyncio.sleep(0.2)
    return 1.0


async def hangs(action: Any, result: Any) -> float:
    await asyncio.sleep(3600)
    return 1.0


def never(action: Any, result: Any) -> float:
    return 0.0


def abstains(action: Any, result: Any) -> None:
    return None


def blocks(action: Any, result: Any) -> float:
    time.sleep(3600)
    return 1.0


def test_a_reward_that_no_task_was_proven_of_is_an_error(tmp_path, capsys):
    file = data(tmp_path / "quiz.jsonl", *({"question": f"{n}?", "answer": str(n)} for n in range(9)))
    options = ["--reward", f"{HERE}:sleeps", "--tokenizer", "none", "--proof-seconds"]
    assert main(["check", "--data", file, *options, "0.3"]) == 1
    out = capsys.readouterr().out
    assert "nothing proven of 9 tasks: the time was too short" in out
    assert "error       no task was proven within 0.3 s" in out and "raise --proof-seconds" in out


async def blocks_the_loop(action: Any, result: Any) -> float:
    if action.id == "late" and result.observation.final_response == trial.ANSWER:
        return 0.0  # it hangs in the proof
    time.sleep(3600)
    return 1.0


@pytest.mark.parametrize("task", ["first", "late"])
def test_a_reward_that_holds_up_the_event_loop_is_named(task, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(trial, "BLOCKED_SECONDS", 0.4)
    file = data(tmp_path / "quiz.jsonl", {"id": task, "question": "2+2?", "answer": "4"})
    assert main(["check", "--data", file, "--reward", f"{HERE}:blocks_the_loop", "--tokenizer", "none"]) == 1
    assert "error       the event loop has been held up for 0.4 s: an 'async def'" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["hangs", "blocks"])
def test_the_trial_ends_with_a_reward_that_hangs(name, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(trial, "REWARD_SECONDS", 0.1)
    file = data(tmp_path / "quiz.jsonl", {"question": "2+2?", "answer": "4"})
    assert main(["check", "--data", file, "--reward", f"{HERE}:{name}", "--tokenizer", "none"]) == 1
    assert "error       the reward failed: " in capsys.readouterr().out


def test_tasks_without_an_id_have_the_same_name_in_each_check(tmp_path, capsys):
    rows = [{"id": no_id, "question": f"{place}?", "answer": "4"} for place, no_id in enumerate((None, math.nan, ""))]
    file = data(tmp_path / "quiz.jsonl", *rows)
    names = []
    for _ in range(2):
        assert main(["check", "--data", file, "--reward", f"{HERE}:contains", "--tokenizer", "none", "--json"]) == 1
        names.append([row["id"] for row in json.loads(capsys.readouterr().out)["proof"]["rows"]])
    assert names[0] == names[1] and len(set(names[0])) == 3
    assert evaluate(*FAST, "--data", file, "--reward", "exact", "-o", str(tmp_path / "out")) == 0
    assert names[0] == [sample.prompt_id for sample in read_results(str(tmp_path / "out"))]


@pytest.mark.parametrize("seconds", ["60", "0"])
def test_an_evaluation_tells_which_tasks_cannot_be_scored(seconds, tmp_path, capsys, caplog):
    file = data(tmp_path / "quiz.jsonl", *({"question": "2+2?", "answer": gold} for gold in ("4", None, "5")))
    options = [*FAST, "--data", file, "--reward", "exact", "-o", str(tmp_path / "out"), "--proof-seconds", seconds]
    assert evaluate(*options) == 0
    told = [record.getMessage() for record in caplog.records if "fails its proof" in record.getMessage()]
    assert len(told) == (seconds != "0")


@pytest.mark.parametrize("name", ["never", "abstains"])
def test_an_evaluation_tells_once_that_no_gold_wins(name, tmp_path, capsys, caplog):
    file = data(tmp_path / "quiz.jsonl", *({"question": "2+2?", "answer": gold} for gold in ("4", "5")))
    evaluate(*FAST, "--data", file, "--reward", f"{HERE}:{name}", "-o", str(tmp_path / "out"))
    assert len([record for record in caplog.records if "no gold wins or is scored" in record.getMessage()]) == 1


# ---- init -----------------------------------------------------------------------------------------------------------


def test_a_made_environment_passes_its_check_and_its_tests_and_runs(tmp_path, capsys, monkeypatch):
    # A checkout of ours too has settings, of plugins that the user's environment may lack.
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nrequired_plugins = ["no-such-plugin"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["init", "letter-game"]) == 0
    made = ["README.md", "letter_game.py", "pytest.ini", "run.yaml", "tasks.jsonl", "test_letter_game.py"]
    assert sorted(path.name for path in (tmp_path / "letter-game").iterdir()) == made
    assert main(["init", "outer_game"]) == 0
    assert main(["check", "--env", "outer_game"]) == 2
    assert "'outer_game' is a folder here: run 'cd outer_game' first" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path / "letter-game")
    options = ["--env", "letter_game", "--data", "tasks.jsonl"]
    assert main(["check", *options, "--tokenizer", "none"]) == 0
    assert (
        evaluate(*options, "--backend", "scripted", "--script", "It costs 35 dollars.", "-q", "-o", "runs/first") == 0
    )
    assert {item.reward for item in read_results("runs/first")} == {0.0, 1.0}
    tested = subprocess.run([sys.executable, "-m", "pytest", "-q"], capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    for name, message in (("../letter-game", "exists already"), ("letter_game", "holds letter_game.py already")):
        assert main(["init", name]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["!", "class", "1"])
def test_names_that_are_none(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", name]) == 2
    assert "gives no module name" in capsys.readouterr().err


def test_imports_and_the_proof_are_not_walked_for_garbage(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "garbage_env.py").write_text(
        "import gc\nfrom strands_env.environments import CalculatorEnv\nprint(gc.get_threshold()[1])\n"
    )
    before = gc.get_threshold()
    assert main(["check", "--env", "garbage_env:CalculatorEnv", "--tokenizer", "none"]) == 0
    assert int(capsys.readouterr().out.split()[0]) > 100 and gc.get_threshold() == before
