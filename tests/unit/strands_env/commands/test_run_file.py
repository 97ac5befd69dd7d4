from __future__ import annotations

import importlib
import json
import re

import pytest

from strands_env.commands.cli import main
from strands_env.commands.recipe.plan import plan_of
from strands_env.commands.recipe.run_file import KEYS, RunFile, parse_run_file, read_run_file, run_file_text
from strands_env.eval import Benchmark, EvalError, read_results
from strands_env.eval.options import OPTIONS, SAMPLING, TRAIN_OPTIONS, EvalOptions, TrainOptions
from strands_env.eval.saved import SavedRun
from tests.conftest import ROOT

HOOKS = "tests.unit.eval_hooks"
WRONG = {
    "temprature: 1": "has the unknown key 'temprature' (did you mean 'temperature'?)",
    "n_sample_per_prompt: 4": "has the unknown key 'n_sample_per_prompt' (did you mean 'n_samples_per_prompt'?)",
    "data_path: t.jsonl": "has the unknown key 'data_path' (did you mean 'data'?)",
    "zzz: 1": "has the unknown key 'zzz'; there are backend, base_url, benchmark",
    "steps: ten": "key 'steps': input should be a valid integer, got 'ten'",
    "steps: 3.0": "key 'steps': input should be a valid integer, got 3.0",
    "steps: 0": "key 'steps': input should be greater than 0, got 0",
    "steps: true": "key 'steps': input should be a valid integer, got True",
    "temperature: hot": "key 'temperature': input should be a valid number, got 'hot'",
    "lr: .nan": "key 'lr': input should be a finite number, got nan",
    "script: 5": "key 'script': input should be a valid string, got 5",
    "backend: locl": "key 'backend': input should be 'local', 'sglang', 'vllm', 'openai', 'bedrock' or 'scripted'",
    "sampling: [1]": "key 'sampling': input should be a valid dictionary, got [1]",
    "columns: {quest: q}": "key 'columns.quest.[key]': input should be 'question', 'answer' or 'id', got 'quest'",
    "track: wandb": "key 'track': input should be a valid list, got 'wandb'",
    "data: a\ndata: b": "line 2 is not YAML that describes a run: the key 'data' is there twice",
    "env_config: {a: 1, a: 2}": "line 1 is not YAML that describes a run: the key 'a' is there twice",
    "1: 2": "line 1 is not YAML that describes a run: the key 1 must be text",
    "env: &a x\ndata: *a": "line 2 is not YAML that describes a run: aliases (*name) are not read",
    "\tdata: a": "line 1 is not YAML that describes a run: found character '\\t'",
    "data: !!python/name:os.system x": "could not determine a constructor for the tag",
    "data: a\n---\ndata: b": "line 2 is not YAML that describes a run: but found another document",
    "[" * 5000: "is not YAML that describes a run: maximum recursion depth exceeded",
    "": "must hold keys and values, as in 'data: tasks.jsonl', got NoneType",
    "- data": "must hold keys and values, as in 'data: tasks.jsonl', got list",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_one_sentence_that_names_key_and_line(text, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(EvalError, match=re.escape(WRONG[text])) as raised:
        read_run_file(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(("data", "why"), [(None, "No such file"), (b"data: \xff", "can't decode byte 0xff")])
def test_a_file_that_cannot_be_read_is_one_sentence(data, why, tmp_path):
    path = tmp_path / "run.yaml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(EvalError, match=f"cannot read .*{why}"):
        read_run_file(path)


def test_scalars_are_those_of_json():
    text = "lr: 1e-5\nscript: no\nenv_config: {day: 2026-11-28, code: 012, big: 3, half: .5, none: null}\nlimit: null"
    assert parse_run_file(text) == {
        "lr": 1e-5,
        "script": "no",
        "env_config": {"day": "2026-11-28", "code": "012", "big": 3, "half": 0.5, "none": None},
    }


def test_options_come_back_from_their_file_without_secrets_and_defaults():
    options = EvalOptions(
        data_path="tasks.jsonl",
        benchmark="data",
        env="shop",
        env_config={"api_key": "hunter2", "size": 3},
        sampling={"temperature": 0.7, "stop": ["ä"]},
        columns={"question": "q"},
        keep_tokens=False,
        max_attempts=5,
        sampling_seed=5,
        track=("wandb",),
    )
    text = run_file_text(options)
    values = parse_run_file(text)
    assert "hunter2" not in text and "benchmark" not in values and "max_concurrency" not in values
    assert values.pop("env_config") == {"api_key": "...", "size": 3}
    assert values.pop("track") == ["wandb"]
    assert values == {name: getattr(options, name) for name in values} and len(values) == 7
    both = parse_run_file(run_file_text(options, TrainOptions(lr=1e-6, group=4)))
    assert (both["lr"], both["group"], both["steps"], "keep_tokens" in both) == (1e-6, 4, 20, False)


def test_every_option_of_the_command_line_is_a_key():
    named = {name for name, option in (OPTIONS | TRAIN_OPTIONS).items() if option.metadata["flags"]}
    assert set(KEYS.values()) == named | {"benchmark", "sampling_seed"}
    assert set(RunFile.model_json_schema()["properties"]) == {*KEYS, *SAMPLING}


def run(capsys, *arguments):
    status = main(["eval", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_run_from_a_file_is_that_of_the_arguments_and_one_that_is_given_wins(tmp_path, capsys):
    flags = ["arithmetic", "--backend", "scripted", "--script", "4", "--limit", "2", "-n", "2", "--temperature", "0.5"]
    status, text, _ = run(capsys, *flags, "-o", tmp_path / "flags", "--dry-run")
    assert status == 0 and not (tmp_path / "flags").exists()
    (tmp_path / "run.yaml").write_text(text)
    assert run(capsys, tmp_path / "run.yaml", "--dry-run")[1] == text
    assert run(capsys, *flags, "-o", tmp_path / "flags", "-q")[0] == 0
    assert run(capsys, "--from-run", tmp_path / "run.yaml", "-o", tmp_path / "file", "--limit", "1", "-q")[0] == 0
    flagged, filed = (SavedRun.of(tmp_path / name).saved_options for name in ("flags", "file"))
    changed = {name for name in flagged | filed if flagged.get(name) != filed.get(name)}
    assert changed == {"output_path", "limit"} and filed["limit"] == 1
    # The saved run says the same.
    again = run(capsys, "--from-run", tmp_path / "flags", "--limit", "2", "-o", tmp_path / "flags2", "--dry-run")[1]
    assert again.replace("flags2", "flags") == text


def test_the_plan_bounds_what_a_run_can_cost(tmp_path, capsys):
    script = json.dumps([{"tool": "calculator", "input": {"expression": "1+1"}}] * 9 + ["2"])
    flags = ["arithmetic", "--backend", "scripted", "--script", script, "--limit", "2", "-n", "2", "-o", tmp_path / "r"]
    plan = json.loads(run(capsys, *flags, "--dry-run", "--json")[1])
    assert (plan["tasks"], plan["rollouts"], plan["calls"], plan["tokens"]) == (2, 4, 12, 12 * 64)
    run(capsys, *flags, "-q")
    calls = [
        sum(message["role"] == "assistant" for message in sample.step_result.observation.messages)
        for sample in read_results(tmp_path / "r")
    ]
    assert calls == [plan["calls_per_rollout"]] * 4
    unbounded = [f"{HOOKS}:three_tasks", "--env", f"{HOOKS}:PlainEnv", "--backend", "scripted", "--dry-run", "--json"]
    plan = json.loads(run(capsys, *unbounded)[1])
    assert (plan["tasks"], plan["calls"], plan["tokens"]) == (None, None, None)


def test_the_plan_counts_whole_data_alone(tmp_path, capsys):
    """Of data without a count the first task is read early, which is no number of tasks."""

    class Packaged(Benchmark):
        benchmark_name = "packaged"
        has_local_rows = True

        def rows(self):
            return iter([{"question": "q"}] * 3)

        def action(self, row, index):
            return self.task(str(index), row["question"])

    evaluator = Packaged(lambda: None, output_path=None)
    assert len(evaluator.known_tasks()) == 1
    assert plan_of(evaluator, evaluator.options)["tasks"] is None
    (tmp_path / "tasks.json").write_text(json.dumps([{"question": "q", "answer": "a"}] * 3))
    flags = ["--data", tmp_path / "tasks.json", "--reward", "exact", "--backend", "scripted", "--dry-run", "--json"]
    assert json.loads(run(capsys, *flags)[1])["tasks"] == 3
    assert json.loads(run(capsys, *flags, "--limit", "2")[1])["tasks"] == 2


def test_a_file_has_no_secret_and_asks_for_it(tmp_path, capsys):
    path, env = tmp_path / "run.yaml", f"{HOOKS}:with_key"
    secret = ["--env", env, "--env-config", '{"api_key": "hunter2"}']
    path.write_text(run(capsys, f"{HOOKS}:three_tasks", "--backend", "scripted", *secret, "--dry-run")[1])
    assert "hunter2" not in path.read_text() and "api_key" in path.read_text()
    status, _, said = run(capsys, path, "-o", tmp_path / "run")
    assert (status, "does not hold the secrets of --env-config: give that option again" in said) == (2, True)
    assert run(capsys, path, "-o", tmp_path / "run", *secret, "-q")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["none.yaml"], "cannot read 'none.yaml': No such file"),
        (["a.yaml", "--from-run", "b.yaml"], "'a.yaml' and --from-run 'b.yaml' are two files of runs: give one"),
    ],
)
def test_a_file_that_is_missing_or_one_too_many_is_a_sentence(arguments, why, capsys):
    status, _, said = run(capsys, *arguments)
    assert (status, why in said, said.count("\n")) == (2, True, 1)


def test_the_schema_of_the_documentation_is_that_of_the_command(capsys):
    published = (ROOT / "docs" / "run.schema.json").read_text()
    assert run(capsys, "--schema")[1] == published, "run: strands-env eval --schema > docs/run.schema.json"


def test_the_options_of_the_documentation_are_those_of_the_command(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    page = importlib.import_module("options_page")
    assert page.written(page.PAGE.read_text("utf-8")) == page.PAGE.read_text("utf-8"), "python scripts/options_page.py"
