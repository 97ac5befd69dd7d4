"""`check`, `init`, and evaluations without a class."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from strands import tool

from strands_env.commands.cli import main
from strands_env.core import Environment, RewardFunction
from strands_env.eval import read_results
from tests.unit.test_eval_cli import FAST, HOOKS, evaluate

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
def test_check_names_mistakes(name, message, capsys):
    assert main(["check", "--env", f"{HERE}:{name}", "--tokenizer", "none"]) == 1
    out = capsys.readouterr().out
    assert message in out and "errors: 1" in out


@pytest.mark.parametrize(("name", "message"), MISTAKES)
def test_a_run_is_refused_for_what_can_be_told_at_once(name, message, tmp_path, capsys):
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
        def price(item: str) -> int:
            """The price of an item."""
            return {"lamp": 35}[item]

        return [stock, price]


@pytest.mark.parametrize(
    ("given", "findings", "shown"),
    [
        ([], ["the tool 'stock' raised RuntimeError: no database"], "stock({})"),
        (['price({"item": "lamp"})'], ["the tool 'stock' raised"], "35"),
        (['price({"item": "desk"})'], ["the tool 'stock' raised", "the tool 'price' raised KeyError"], "desk"),
        (['price({"thing": 1})'], ["the tool 'stock' raised", "the tool 'price' gave an error"], "thing"),
    ],
)
def test_check_calls_tools(given, findings, shown, capsys):
    calls = [word for one in given for word in ("--call", one)]
    assert main(["check", "--env", f"{HERE}:Shop", "--tokenizer", "none", *calls]) == 1
    out = capsys.readouterr().out
    assert all(finding in out for finding in findings) and shown in out
    assert ("price" in out.partition("call  ")[2]) == bool(given)
    assert "test_commands_check.py:" in out


def test_a_tool_that_is_not_there_is_named(capsys):
    assert main(["check", "--env", f"{HERE}:Shop", "--tokenizer", "none", "--call", "prize({})"]) == 2
    assert "did you mean 'price'" in capsys.readouterr().err


def test_check_calls_tools_on_the_thread_of_a_plain_reset(capsys):
    assert main(["check", "--env", f"{HERE}:OwnThread", "--tokenizer", "none"]) == 0
    assert "count({}) gave '[(1,)]'" in capsys.readouterr().out


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
    assert "reward      0.000 for the answer 'This is a dry run.'" in out


def test_a_tokenizer_without_a_chat_template_is_named(capsys, monkeypatch):
    pytest.importorskip("tokenizers")
    from strands_sglang.backends.engine.tiny import make_tiny_tokenizer

    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = None
    monkeypatch.setattr("strands_env.recipe.dry_run.get_tokenizer", lambda name: tokenizer)
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


def test_columns_are_mapped_and_a_wrong_one_is_named(tmp_path, capsys):
    file = data(tmp_path / "quiz.jsonl", {"text": "2+2?", "truth": 4})
    options = [*FAST, "--data", file, "--reward", "number", "-o", str(tmp_path / "out")]
    assert evaluate(*options, "--columns", "question=text,answer=truht") == 2
    assert "there is no column 'truht' (did you mean 'truth'?)" in capsys.readouterr().err
    assert evaluate(*options, "--columns", "question=text,answer=truth") == 0
    assert [item.reward for item in read_results(tmp_path / "out")] == [1.0]
    assert evaluate("--resume", "-q", "-o", str(tmp_path / "out")) == 0


def test_data_without_a_question_names_its_columns(tmp_path, capsys):
    file = data(tmp_path / "quiz.jsonl", {"foo": "2+2?"})
    assert evaluate(*FAST, "--data", file, "-o", str(tmp_path / "out")) == 2
    assert "no column for the question; there are foo: name it with --columns question=NAME" in capsys.readouterr().err


# ---- init -----------------------------------------------------------------------------------------------------------


def test_a_made_environment_passes_its_check_and_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["init", "letter-game"]) == 0
    assert sorted(path.name for path in (tmp_path / "letter-game").iterdir()) == [
        "README.md",
        "letter_game.py",
        "pytest.ini",
        "tasks.jsonl",
        "test_letter_game.py",
        "train.py",
    ]
    monkeypatch.chdir(tmp_path / "letter-game")
    options = ["--env", "letter_game", "--data", "tasks.jsonl"]
    assert main(["check", *options, "--tokenizer", "none"]) == 0
    assert (
        evaluate(*options, "--backend", "scripted", "--script", "It costs 35 dollars.", "-q", "-o", "runs/first") == 0
    )
    assert {item.reward for item in read_results("runs/first")} == {0.0, 1.0}
    assert main(["init", "../letter-game"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_contract_of_a_made_environment_holds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "made_env"]) == 0
    monkeypatch.syspath_prepend(str(tmp_path / "made_env"))
    module = __import__("test_made_env")
    environment = module.TestMadeEnv()
    environment.test_examples()
    environment.test_tools_are_all_usable()


def test_a_made_environment_is_tested_by_its_own_settings_in_any_project(tmp_path: Path) -> None:
    """A checkout of ours too has settings, of plugins that the user's environment may lack."""
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nrequired_plugins = ["no-such-plugin"]\n')
    subprocess.run([sys.executable, "-m", "strands_env", "init", "shop"], cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "test_shop.py"]
    shown = subprocess.run(command, cwd=tmp_path / "shop", capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr


@pytest.mark.parametrize("name", ["!", "class", "1"])
def test_names_that_are_none(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", name]) == 2
    assert "gives no module name" in capsys.readouterr().err


def test_own_model_names_work_where_a_tokenizer_is_asked_for(capsys):
    pytest.importorskip("tokenizers")
    from strands_sglang import get_tokenizer
    from strands_sglang.commands.doctor.source import load_source

    assert get_tokenizer("tiny").chat_template
    assert load_source("tiny").stop_tokens == ("<|im_end|>",)
