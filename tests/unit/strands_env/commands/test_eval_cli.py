from __future__ import annotations

import gc
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from strands_env.commands.cli import main
from strands_env.commands.display import make_display
from strands_env.commands.terminal import format_seconds
from strands_env.core import TerminationReason
from strands_env.eval import Evaluator, RetryPolicy, read_results
from strands_env.eval.run.progress import ProgressState
from tests.conftest import ROOT
from tests.unit.eval_support import FakeEnv, outcome, tasks

HOOKS = "tests.unit.eval_hooks"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
FAST = ["--backend", "scripted", "--script", "The answer is 4.", "-q"]


def evaluate(*arguments: str) -> int:
    return main(["eval", *arguments])


def run_mine(folder, *arguments: str) -> int:
    return evaluate(f"{HOOKS}:three_tasks", "--env", HOOKS, *FAST, "-o", str(folder), *arguments)


def test_two_commands_evaluate_and_open_a_report(tmp_path, capsys, monkeypatch):
    assert evaluate("arithmetic", *FAST, "--limit", "3", "-o", str(tmp_path)) == 0
    assert "3 of 3 prompts, 3 scored" in capsys.readouterr().out
    assert main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    assert main(["report", str(tmp_path), "--open"]) == 0
    assert f"open {(tmp_path / 'report.html').as_uri()} in one" in capsys.readouterr().err


@pytest.fixture
def thawed():
    """Nothing is frozen; afterwards everything is, so that the evaluations of other tests do not walk it."""
    before = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.freeze()
    gc.set_threshold(*before)


@pytest.mark.parametrize("frozen", [False, True])
def test_the_garbage_collector_is_left_as_it_was(frozen, tmp_path, thawed):
    gc.set_threshold(700, 10, 10)
    if frozen:
        gc.freeze()
    assert run_mine(tmp_path) == 0
    assert (gc.get_freeze_count() > 0, gc.get_threshold()) == (frozen, (700, 10, 10))


def test_a_secret_of_the_environment_is_not_saved_and_is_asked_for_again(tmp_path, capsys):
    named = [f"{HOOKS}:three_tasks", *FAST, "-o", str(tmp_path)]
    secret = ["--env", f"{HOOKS}:with_key", "--env-config", '{"api_key": "hunter2"}']
    assert evaluate(*named, *secret) == 0
    assert all(b"hunter2" not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    capsys.readouterr()
    assert evaluate(*named, "--resume") == 2
    assert "does not hold the secrets of --env-config: give that option again" in capsys.readouterr().err
    assert evaluate(*named, *secret, "--resume") == 0


def test_a_hook_a_function_of_tasks_and_a_configuration(tmp_path, capsys):
    assert run_mine(tmp_path, "--env-config", '{"reward": 0.5}', "-n", "2", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["samples"], shown["mean_reward"]["value"], shown["status"]) == (6, 0.5, "ok")


def test_an_evaluator_class_and_a_hook_of_plain_options(tmp_path):
    assert evaluate(HOOKS, "--env", f"{HOOKS}:with_config", *FAST, "-o", str(tmp_path)) == 0
    answers = {sample.step_result.observation.final_response for sample in read_results(tmp_path)}
    assert answers == {"scripted"}


def test_the_scripted_backend_calls_tools(tmp_path, capsys):
    replies = json.dumps([{"tool": "calculator", "input": {"expression": "2 + 2"}}, "It is 4."])
    options = ["--backend", "scripted", "--limit", "1", "-n", "2", "-q", "-o", str(tmp_path)]
    assert evaluate("arithmetic", *options, "--script", replies) == 0
    for sample in read_results(tmp_path):
        assert sample.step_result.observation.metrics["tool_calls"] == 1
        assert sample.step_result.observation.final_response == "It is 4."
    for wrong in ('[{"tool": "calculator"}]', '[{"tool": "calculator", "input": {}}]', "[]"):
        assert evaluate("arithmetic", *options[:-1], str(tmp_path / "x"), "--script", wrong) == 2
    assert "--script: the last reply must be a text" in capsys.readouterr().err


def test_rollouts_in_processes(tmp_path):
    assert run_mine(tmp_path, "--executor", "processes", "--workers", "1") == 0
    assert len(list(read_results(tmp_path))) == 3


def test_existing_results_need_resume_and_without_any_it_says_so(tmp_path, capsys):
    assert run_mine(tmp_path, "--resume") == 0
    assert f"nothing to resume at {str(tmp_path / 'results.jsonl')!r}: a new run" in capsys.readouterr().err
    assert run_mine(tmp_path) == 2
    assert "--resume" in capsys.readouterr().err
    assert run_mine(tmp_path, "--resume", "-n", "2") == 0
    assert "nothing to resume" not in capsys.readouterr().err
    assert len(list(read_results(tmp_path))) == 6


def test_resume_under_another_configuration_is_refused(tmp_path, capsys):
    assert run_mine(tmp_path, "--temperature", "0") == 0
    saved = json.loads((tmp_path / "results.run.json").read_text())
    assert saved["config"]["model"]["sampling_params"] == {"temperature": 0.0}
    assert run_mine(tmp_path, "--resume", "--temperature", "0.5") == 3
    assert "model.sampling_params.temperature: 0.0 in the file, now 0.5" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a/results.run.json", "a/results.jsonl", "a"])
def test_a_saved_run_is_run_again(name, tmp_path):
    assert run_mine(tmp_path / "a", "-n", "2", "--env-config", '{"reward": 0.25}') == 0
    saved = str(tmp_path / name)
    assert evaluate("--from-run", saved, "-q", "-o", str(tmp_path / "b")) == 0
    assert [sample.reward for sample in read_results(tmp_path / "b")] == [0.25] * 6


def interrupted(folder, **config: int) -> subprocess.CompletedProcess[str]:
    """A run that is sent a signal while its first sample is under way."""
    command = [sys.executable, "-m", "strands_env.commands.cli", "eval", f"{HOOKS}:three_tasks", "-c", "1"]
    options = ["--backend", "scripted", "--env", f"{HOOKS}:interrupting", "--env-config", json.dumps(config)]
    command += [*options, "-o", str(folder)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)


@pytest.mark.parametrize(("number", "times"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_ctrl_c_finishes_what_runs_and_a_second_one_cancels_it(number, times, tmp_path):
    done = interrupted(tmp_path, number=number, times=times)
    assert done.returncode == 130, done.stderr
    assert "--resume" in done.stdout
    assert done.stderr.count("saved first; Ctrl-C again cancels them\n") == 1
    assert [sample.prompt_id for sample in read_results(tmp_path)] == ["t0"][: 2 - times]
    if times == 1:
        assert evaluate("-o", str(tmp_path), "--resume", "-q") == 0
        assert len(list(read_results(tmp_path))) == 3


# ---- the other commands ----------------------------------------------------------------------------------------------


@pytest.fixture
def two_runs(tmp_path):
    for name, reward in (("a", 0.0), ("b", 1.0)):
        assert run_mine(tmp_path / name, "--env-config", json.dumps({"reward": reward})) == 0
    return str(tmp_path / "a"), str(tmp_path / "b")


def test_compare_says_which_is_better(two_runs, capsys):
    capsys.readouterr()
    assert main(["compare", *two_runs]) == 0
    out = capsys.readouterr().out
    assert "difference  1.000" in out
    assert "3 better, 0 worse, 0 equal" in out
    assert "p-value     0.2500  (exact; not significant at 0.05)" in out
    assert "differ in   environment.config.reward (0.0, 1.0)\n" in out
    ways = re.findall(r"strands-env (report \S+ (\S+))$", out, re.MULTILINE)
    assert [name for _, name in ways] == ["t0", "t0", "t1", "t1", "t2", "t2"]
    for way, (path, reward) in zip(ways, itertools.cycle(zip(two_runs, "01", strict=True)), strict=False):
        assert path in way[0] and main(way[0].split()) == 0
        assert f"/0  reward {reward}" in capsys.readouterr().out
    assert main(["compare", *reversed(two_runs), "--json", "--fail-if-worse", "--level", "0.5"]) == 1
    assert json.loads(capsys.readouterr().out)["significant"] is True


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize(("lost", "status"), [(1, 0), (3, 3)])
async def test_compare_does_not_answer_where_too_many_samples_were_lost(lost, status, is_killed, tmp_path, capsys):
    def answer(action):
        is_lost = int(action.task_context.id.removeprefix("p").split("_")[0]) < lost
        return outcome(None, TerminationReason.CONNECTION_ERROR) if is_lost else outcome()

    whole, holed = str(tmp_path / "whole"), str(tmp_path / "holed")
    await Evaluator(lambda: FakeEnv(lambda _: outcome()), output_path=whole).run(tasks(100))
    await Evaluator(lambda: FakeEnv(answer), output_path=holed, retry=RetryPolicy(max_attempts=1)).run(tasks(100))
    if is_killed:  # the lost ones were never written
        results = tmp_path / "holed" / "results.jsonl"
        results.write_bytes(b"".join(line for line in results.open("rb") if b'"aborted":false' in line))
    assert main(["compare", whole, holed, "--fail-if-worse"]) == status
    said = capsys.readouterr()
    assert f"lost        0.0% of the samples of the first, {lost}.0% of the second" in said.out
    assert (f"3.0% of the samples of {holed!r} were lost" in said.err) == (status == 3)


@pytest.mark.parametrize(("count", "status"), [(99, 0), (50, 3)])
@pytest.mark.parametrize("turned", [False, True])
async def test_compare_does_not_answer_where_prompts_are_in_one_run_only(count, turned, status, tmp_path, capsys):
    paths = [str(tmp_path / name) for name in ("whole", "part")]
    for path, number in zip(paths, (100, count), strict=True):
        await Evaluator(lambda: FakeEnv(lambda _: outcome()), output_path=path).run(tasks(number))
    runs = paths[::-1] if turned else paths
    assert main(["compare", *runs, "--fail-if-worse"]) == status
    text = f"50.0% of the scored prompts of {paths[0]!r} are not in {paths[1]!r}"
    assert (text in capsys.readouterr().err) == (status == 3)


def test_compare_names_another_reward_and_other_sampling(tmp_path, capsys):
    run, hot, rescored = (str(tmp_path / name) for name in ("run", "hot", "rescored"))
    assert run_mine(run) == run_mine(hot, "--temperature", "0.5") == 0
    assert main(["rescore", run, "--reward", "exact", "-q", "-o", rescored]) == 0
    capsys.readouterr()
    assert main(["compare", run, hot, rescored]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("differ in")]
    assert lines[0] == "differ in   model.sampling_params.temperature (absent, 0.5)"
    assert lines[1].startswith("differ in   reward (") and lines[1].endswith("'exact')")
    assert main(["compare", run, run]) == 0
    assert "differ in" not in capsys.readouterr().out


def test_a_report_in_the_terminal_lists_prompts_and_shows_samples_to_people_and_programs(two_runs, capsys):
    shown = {}
    for what in ("--text", "t2/0"):
        capsys.readouterr()
        assert main(["report", two_runs[1], what]) == 0
        text = capsys.readouterr().out
        assert main(["report", two_runs[1], what, "--json"]) == 0
        shown[what] = (text, json.loads(capsys.readouterr().out))
    assert "t2  1.000  q2  [1]" in shown["--text"][0]
    assert [prompt["mean"] for prompt in shown["--text"][1]["prompts_shown"]] == [1.0] * 3
    assert all(part in shown["t2/0"][0] for part in ("The answer is 4.", "expected 2", "sampled"))
    assert shown["t2/0"][1]["step_result"]["reward"]["reward"] == 1.0
    assert main(["report", two_runs[1], "t9"]) == 2
    assert evaluate("--list", "--json") == 0
    assert "arithmetic" in [info["name"] for info in json.loads(capsys.readouterr().out)]


def test_report_and_init_say_in_json_what_they_wrote(two_runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["report", two_runs[0], "-o", "a.html", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["path"], shown["samples"], shown["bytes"]) == ("a.html", 3, Path("a.html").stat().st_size)
    assert main(["init", "my_game", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert all(Path(file).is_file() for file in shown["files"])
    assert "strands-env check --env my_game" in shown["next"][0]


# ---- display ---------------------------------------------------------------------------------------------------------


class Screen(io.StringIO):
    """A terminal."""

    encoding = "ascii"

    def isatty(self) -> bool:
        return True


def state_of_a_run() -> ProgressState:
    state = ProgressState(name="my-own-benchmark", total=1000, resumed=3, done=414, scored=4, reward_sum=1.0)
    state.failures["timeout"] = 2
    return state


@pytest.mark.parametrize("stream", [io.StringIO(), Screen()], ids=["a pipe", "a dumb terminal"])
def test_in_a_pipe_and_on_a_dumb_terminal_the_progress_is_lines(stream, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    display = make_display(stream)
    for show in (display.start, display.update, display.finish):
        show(state_of_a_run())
    first, second = stream.getvalue().splitlines()
    assert first == "my-own-benchmark: 1000 samples"
    assert second.startswith("417/1000 samples, mean reward 0.250, eta ")
    assert second.endswith("/s, timeout 2, 3 found in the results")
    assert make_display(quiet=True) is None


@pytest.mark.parametrize("columns", [20, 50, 80, 200])
def test_on_a_terminal_one_line_is_drawn_over_itself_and_fits(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    stream = Screen()
    display = make_display(stream)
    display.start(state_of_a_run())
    display.finish(state_of_a_run())
    _, drawn, rest = stream.getvalue().split("\n")
    line = drawn.removeprefix("\r").removesuffix("\x1b[K")
    assert rest == "" and line.isascii() and line.isprintable() and len(line) < columns
    assert "417/1000 samples" in line
    assert ("mean reward 0.250" in line) == (columns >= 50)
    assert ("timeout 2" in line) == (columns >= 80)


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (3725, "1:02:05"), (None, "-"), (float("inf"), "-")])
def test_times(seconds, text):
    assert format_seconds(seconds) == text
