"""The numbers of the command line: users' metrics, and what a continued run takes over."""

from __future__ import annotations

import json

import pytest

from strands_env.eval import read_results
from tests.unit.strands_env.commands.test_eval_cli import FAST, HOOKS, evaluate


def test_a_lost_sample_counts_as_long_as_it_is_asked_for(tmp_path, capsys):
    losing = [f"{HOOKS}:three_tasks", "--env", f"{HOOKS}:losing_one", "--max-attempts", "1", *FAST, "-o", str(tmp_path)]
    assert evaluate(*losing, "-n", "2") == 1
    assert "1 sample was lost" in capsys.readouterr().err
    assert evaluate(*losing, "--resume") == 1
    assert evaluate(*losing, "--resume", "-n", "1") == 0


def test_metrics_of_the_evaluator_are_shown(tmp_path, capsys):
    assert evaluate(f"{HOOKS}:OwnMetrics", "--env", HOOKS, *FAST, "-o", str(tmp_path), "--json") == 0
    shown = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert shown["metrics"] == {"prompts_seen": 3, "pass@1": 0.125, "unknown": None}
    assert evaluate(f"{HOOKS}:OwnMetrics", "--env", HOOKS, *FAST, "-o", str(tmp_path), "--resume") == 0
    out = capsys.readouterr().out
    assert "prompts_seen 3" in out and "pass@1      0.125" in out


# ---- a continued run -------------------------------------------------------------------------------------------------


def test_more_and_fewer_samples_continue_a_run_of_a_benchmark_with_its_own_temperature(tmp_path, capsys):
    options = ["arithmetic", *FAST, "--limit", "2", "-o", str(tmp_path / "a")]
    assert evaluate(*options) == 0
    assert evaluate(*options, "--resume", "-n", "2") == 0
    assert "at temperature 0 the samples of a prompt are alike" in capsys.readouterr().err
    assert evaluate(*options, "--resume", "-n", "1") == 0
    assert len(list(read_results(tmp_path / "a"))) == 4
    saved = tmp_path / "a" / "results.run.json"
    document = json.loads(saved.read_text())
    assert document["config"]["model"]["sampling_params"] == {"max_new_tokens": 64, "temperature": 0.0}
    assert evaluate("--from-run", str(saved), "-q", "-o", str(tmp_path / "b")) == 0  # as it was
    assert json.loads((tmp_path / "b" / "results.run.json").read_text())["digest"] == document["digest"]


def test_the_folder_is_enough_to_continue(tmp_path):
    options = ["--sampling", '{"min_p": 0.1}', "--temperature", "0.5", "--seed", "4", "-n", "2"]
    assert evaluate("arithmetic", *FAST, *options, "--limit", "1", "-o", str(tmp_path)) == 0
    assert evaluate("-o", str(tmp_path), "--resume", "--limit", "2", "-q") == 0
    assert len(list(read_results(tmp_path))) == 4


def test_what_is_given_comes_before_what_is_saved(tmp_path, capsys):
    assert evaluate("arithmetic", *FAST, "--limit", "1", "--temperature", "0.5", "-o", str(tmp_path)) == 0
    options = ["-o", str(tmp_path), "--resume", "-q"]
    assert evaluate(*options, "--limit", "1", "--sampling", '{"temperature": 0.75}') == 3
    assert "temperature: 0.5 in the file, now 0.75" in capsys.readouterr().err
