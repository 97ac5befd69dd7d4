from __future__ import annotations

import re

import pytest

from strands_env.commands.recipe.run_file import KEYS, RunFile, parse_run_file, read_run_file, run_file_text
from strands_env.eval import EvalError
from strands_env.eval.options import OPTIONS, SAMPLING, TRAIN_OPTIONS, EvalOptions, TrainOptions

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
        keep_tokens=True,
        sampling_seed=5,
        track=("wandb",),
        group_policy="drop",
    )
    text = run_file_text(options)
    values = parse_run_file(text)
    assert "hunter2" not in text and "benchmark" not in values and "max_concurrency" not in values
    assert values.pop("env_config") == {"api_key": "...", "size": 3}
    assert values.pop("track") == ["wandb"]
    assert values == {name: getattr(options, name) for name in values} and len(values) == 7
    both = parse_run_file(run_file_text(options, TrainOptions(lr=1e-6, group=4)))
    assert (both["lr"], both["group"], "steps" in both, "keep_tokens" in both) == (1e-6, 4, False, False)


def test_every_option_of_the_command_line_is_a_key():
    named = {name for name, option in (OPTIONS | TRAIN_OPTIONS).items() if option.metadata["flags"]}
    assert set(KEYS.values()) == named | {"benchmark", "sampling_seed"}
    assert set(RunFile.model_json_schema()["properties"]) == {*KEYS, *SAMPLING}
