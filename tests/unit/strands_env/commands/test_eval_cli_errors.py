"""The command line where something is wrong: one sentence, and an exit status that tells what."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from strands_env.commands.cli import main
from strands_env.commands.recipe import factories
from strands_env.eval import read_results
from tests.conftest import ROOT
from tests.unit.strands_env.commands.test_eval_cli import ENVIRONMENT, FAST, HOOKS, evaluate, run_mine

# ---- arguments and data ----------------------------------------------------------------------------------------------


def test_rows_that_are_left_out_are_counted(tmp_path, capsys):
    pytest.importorskip("math_verify")
    (tmp_path / "d.jsonl").write_text('{"problem": "p", "answer": "4"}\n{"problem": "p"}\n')
    assert evaluate("aime-2024", *FAST, "--data", str(tmp_path / "d.jsonl"), "-o", str(tmp_path)) == 0
    assert "1 of 2 rows left out" in capsys.readouterr().err


def test_a_resumed_run_finds_its_data_under_another_spelling(tmp_path, capsys, monkeypatch):
    pytest.importorskip("math_verify")
    monkeypatch.chdir(tmp_path)
    for name in ("d.jsonl", "other.jsonl"):
        (tmp_path / name).write_text('{"problem": "p", "answer": "4"}\n')
    for data in ("d.jsonl", "./d.jsonl", str(tmp_path / "d.jsonl")):
        assert evaluate("aime-2024", *FAST, "--data", data, "--resume", "-o", "out") == 0
    assert len(list(read_results(tmp_path / "out"))) == 1
    assert evaluate("aime-2024", *FAST, "--data", "other.jsonl", "--resume", "-o", "out") == 3
    assert "data.path: 'd.jsonl' in the file, now 'other.jsonl'" in capsys.readouterr().err


NOTHING = "eval: no sample was scored: 3 of 3"
GOOD = "create_env_factory"


@pytest.mark.parametrize(
    ("source", "env", "more", "status", "messages"),
    [
        *((name, GOOD, ["--limit", "2"], 0, ["2 of 2 prompts"]) for name in ("async_tasks", "streamed_tasks")),
        ("three_tasks", "PlainEnv", [], 0, [f"{NOTHING} have no reward function"]),
        ("three_tasks", "abstaining", [], 2, [f"{NOTHING} were left unscored by their reward function"]),
        ("three_tasks", "unscorable", [], 2, [f"{NOTHING} ended with reward_error (Zero", "fix the reward"]),
        ("three_tasks", "unscorable", [], 2, ["errors      reward: ZeroDivisionError 3: division by zero"]),
        ("three_tasks", "sometimes_unscorable", [], 0, ["failed on 1 of 3 samples, which", "strands-env rescore"]),
        ("three_tasks", "sometimes_unscorable", [], 0, ["2 scored, 1 unscored (1 whose reward function failed)"]),
        ("three_tasks", "broken_tool", [], 0, ["broken: ZeroDivisionError raised in 3 samples: division by zero"]),
        ("three_tasks", "broken_metrics", [], 1, ["RuntimeError: no such table", "0 scored"]),
        (
            "RaisingMetrics",
            GOOD,
            [],
            70,
            ["raised: ZeroDivisionError: no prompts", "reward      1.000"],
        ),
        ("Surprising", GOOD, [], 70, ["RuntimeError: surprise", "Traceback"]),
        ("exiting_tasks", GOOD, [], 2, ["sys.exit(0)"]),
        ("three_tasks", "failing", ["--json"], 1, ['"status": "incomplete"', "try again with --resume"]),
        ("three_tasks", "failing", ["--max-failures", "0"], 4, ["no sandbox"]),
        ("three_tasks", "broken_setup", [], 1, ["all 3 samples failed alike: setup_error (TypeError: no box"]),
        (
            "three_tasks",
            "broken_setup",
            ["-n", "8"],
            4,
            ["the first 10 samples all failed alike, so the run was sto"],
        ),
    ],
)
def test_a_run_says_how_it_ended_and_its_status_tells(source, env, more, status, messages, tmp_path, capsys):
    options = ["--env", f"{HOOKS}:{env}", "--max-attempts", "1", "-c", "1", *more, *FAST]
    assert evaluate(f"{HOOKS}:{source}", *options, "-o", str(tmp_path)) == status
    shown = "".join(capsys.readouterr())
    assert [message for message in messages if message not in shown] == []


# ---- files -----------------------------------------------------------------------------------------------------------


def test_an_output_that_cannot_be_written_is_told_before_the_model_is_loaded(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch", reason="needs the extra `local`")
    (tmp_path / "file").write_text("")
    (tmp_path / "x.jsonl").mkdir()
    monkeypatch.setattr(factories, "make_model_factory", lambda *options: pytest.fail("the model was made"))
    for name in ("file", "file/x", "x.jsonl"):
        assert evaluate("arithmetic", "-o", str(tmp_path / name)) == 3
        assert "cannot write to" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["report --text", "report", "compare"])
def test_a_file_of_something_else(command, tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "q1", "problem": "a"}\n')
    (tmp_path / "rows.run.json").write_text('{"config": {}}')
    assert main([*command.split(), *[str(path)] * (2 if command == "compare" else 1)]) == 3
    assert "evaluated sample" in capsys.readouterr().err


def test_a_configuration_that_is_none_and_a_report_that_cannot_be_written(tmp_path, capsys):
    assert run_mine(tmp_path) == 0
    (tmp_path / "file").write_text("")
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "file" / "x.html")]) == 3
    assert "cannot write" in capsys.readouterr().err
    (tmp_path / "results.run.json").write_text('{"config": null}')
    assert run_mine(tmp_path, "--resume") == 3
    assert "config, about and environment must be JSON objects" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 3


# ---- pipes -----------------------------------------------------------------------------------------------------------


COMMANDS = """
import contextlib, io, json, runpy, sys
for line in json.loads(sys.argv[1]):
    module, *sys.argv[1:] = line.split()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module(module, run_name="__main__")
        except SystemExit as end:
            status = end.code
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""


@pytest.mark.parametrize(
    ("missing", "extra", "commands"),
    [
        (
            "torch",
            "local",
            [
                "strands_env eval arithmetic --limit 1 -o {out}",
                "strands_env eval arithmetic --limit 1 --executor processes -o {out}",
                "strands_sglang gateway --model tiny",
            ],
        ),
        ("ray", "ray", ["strands_env eval arithmetic --backend scripted --executor ray -o {out}"]),
        (
            "transformers",
            "hf",
            ["strands_sglang gateway --base-url http://127.0.0.1:9 --tokenizer o/m", "strands_sglang doctor o/m"],
        ),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_its_extra(missing, extra, commands, tmp_path):
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('No module of the name', name={missing!r})")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    lines = json.dumps([command.format(out=tmp_path / "out") for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, lines], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(status, out) for status, out, _ in ends] == [(2, "")] * len(commands)
    for _, _, errors in ends:
        assert f"[{extra}]'" in errors.splitlines()[-1]
        assert "Traceback" not in errors and "report it" not in errors


@pytest.mark.parametrize(
    ("encoding", "errors"), [("ascii", "strict"), ("cp1252", "strict"), ("ascii", "surrogateescape")]
)
def test_texts_that_a_terminal_cannot_show_or_that_would_drive_it_are_escaped(encoding, errors, tmp_path, monkeypatch):
    row = {"id": "größe \x1b[31mred\nnext\u202e", "prompt": "日本語 🎉", "answer": "2"}
    (tmp_path / "d.jsonl").write_text(json.dumps(row))
    run = str(tmp_path / "run")
    script = ["--backend", "scripted", "--script", "blue \x1b[34m bell \x07", "-q"]
    assert evaluate("--data", str(tmp_path / "d.jsonl"), *script, "-o", run) == 0
    name = next(iter(read_results(run))).prompt_id
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding, errors))
    for arguments in (["report", run, "--text"], ["compare", run, run], ["report", run, name]):
        assert main(arguments) == 0
    assert rb"\u65e5\u672c\u8a9e \U0001f389" in shown.getvalue()
    parts = (b"red next", b"blue", b"\x1b", b"\x07", b"\\u202e")
    assert [part in shown.getvalue() for part in parts] == [True, True, False, False, False]


def test_an_argument_that_the_locale_cannot_read_is_refused_in_one_line(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["eval", "arithmetic", "--script", os.fsdecode("Z\u00fcrich".encode("latin-1"))])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "PYTHONUTF8=1" in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_missing_key_is_asked_for_before_the_run(executor, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    options = ["--backend", "openai", "--model-id", "m", "--executor", executor, "-o", str(tmp_path / "run")]
    assert evaluate("arithmetic", "--limit", "1", *options) == 2
    assert "OPENAI_API_KEY" in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_an_id_that_no_file_can_hold_is_refused(tmp_path, capsys):
    (tmp_path / "d.jsonl").write_text(r'{"id": "half \ud83d", "prompt": "p", "answer": "2"}')
    assert evaluate("--data", str(tmp_path / "d.jsonl"), *FAST, "-o", str(tmp_path / "run")) == 2
    assert r"the id 'half \ud83d' of a task cannot be stored: it holds half a surrogate pair" in capsys.readouterr().err


UNREAD = {"PYTHONUNBUFFERED": ""}  # Python's own streams keep what nobody reads until it exits


@pytest.mark.parametrize(
    ("closed", "shown"), [("2>&-", True), (">&-", False), ("2> /dev/fd/{writer}", True)], ids=["2>&-", ">&-", "unread"]
)
def test_a_run_whose_output_or_progress_nobody_reads_goes_on(closed, shown, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "strands_env", "eval", f"{HOOKS}:three_tasks", "--env", HOOKS]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed.format(writer=writer)}', "sh", *command, *FAST[:2], "-o", str(tmp_path)],
        env={**ENVIRONMENT, **UNREAD},
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[writer],
    )
    os.close(writer)
    assert done.returncode == 0
    assert ("3 of 3 prompts" in done.stdout) == shown
    assert len(list(read_results(tmp_path))) == 3


@pytest.mark.parametrize(("command", "status"), [("report --text", 0), ("compare", 141)])
def test_output_that_nobody_reads(command, status, tmp_path):
    assert run_mine(tmp_path) == 0
    reader, writer = os.pipe()
    os.close(reader)
    runs = [str(tmp_path)] * (2 if command == "compare" else 1)
    command = [sys.executable, "-m", "strands_env", *command.split(), *runs]
    done = subprocess.run(command, env={**ENVIRONMENT, **UNREAD}, text=True, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (status, "")


# ---- what is shown ---------------------------------------------------------------------------------------------------


def test_compare_without_a_shared_prompt(tmp_path, capsys):
    runs = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert run_mine(runs[0]) == evaluate("arithmetic", *FAST, "--limit", "2", "-o", runs[1]) == 0
    capsys.readouterr()
    assert main(["compare", *runs]) == 2
    assert capsys.readouterr().out == ""
    assert main(["compare", *runs, "--json", "--fail-if-worse"]) == 2
    captured = capsys.readouterr()
    assert "share no scored prompt (3 only in" in captured.err
    shown = json.loads(captured.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (shown["p_value"], shown["significant"]) == (None, False)
