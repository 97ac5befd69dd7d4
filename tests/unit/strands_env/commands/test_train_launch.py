"""`strands-env train` before anything heavy: what is refused, and the launch of other trainers."""

from __future__ import annotations

import re

import pytest

from strands_env.commands import train as train_command
from strands_env.commands import train_run
from strands_env.commands.cli import main
from strands_env.core import Environment
from strands_env.eval import EvalError
from strands_env.testing import ScriptedModel
from tests.conftest import ROOT

HOOKS = "tests.unit.eval_hooks"


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"id": "a", "prompt": "Name a number.", "answer": 7}\n')
    return str(path)


def train(capsys, *arguments):
    status = main(["train", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("trainer", ["slime", "verl", "skyrl"])
@pytest.mark.parametrize("env", ["two_digits", "PlainEnv"])
def test_the_launch_has_an_environment_that_is_made_and_the_numbers_of_the_training(trainer, env, data, capsys):
    more = [
        "--env",
        f"{HOOKS}:{env}",
        "--reward",
        "number",
        "--model",
        "Qwen/Qwen3-8B",
        "--lr",
        "2e-6",
        "--group",
        "16",
    ]
    status, text, _ = train(capsys, "--trainer", trainer, "--data", data, *more, "--max-new-tokens", "512", "-o", "out")
    assert status == 0
    module = text.partition("# ---- rollouts.py")[2].partition("\n")[2].partition("\n# ---- ")[0]
    names = {"__name__": "__nobody__"}
    if trainer != "slime":
        compile(module, "rollouts.py", "exec")
    exec(module.partition("\ndef write_tasks")[0], names)
    made = names["make_env"](lambda: ScriptedModel("7"))
    assert isinstance(made, Environment) and type(made.reward_fn).__name__ == "NumberReward"
    launch = text.rpartition("# ---- launch")[2]
    assert all(value in launch for value in ("2e-06", "16", "512", "Qwen/Qwen3-8B", "out"))


def test_slime_knows_every_argument_of_its_launch(data, capsys):
    more = ["--env", f"{HOOKS}:two_digits", "--model", "Qwen/Qwen3-8B", "--trainer", "slime"]
    flags = set(re.findall(r"--[a-z-]+", train(capsys, "--data", data, *more)[1].rpartition("# ---- launch")[2]))
    known = "\n".join(path.read_text() for path in (ROOT / "examples").rglob("slime*/*.sh"))
    assert len(flags) > 20 and not {flag for flag in flags if not re.search(rf"{flag}\b", known)}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--group", "1"], "group must be a whole number of at least 2, or nothing is compared, got 1"),
        (["--lr", "0"], "lr must be a positive number, got 0.0"),
        (["--steps", "0"], "argument --steps: expected a whole number of at least 1, got '0'"),
        (["--temperature", "0"], "at temperature 0 the rollouts of a prompt are alike, so nothing is learnt"),
        (["--sampling", '{"top_p": 0.9}'], "training samples from the whole distribution, got top_p 0.9: leave it out"),
        (["--backend", "scripted"], "trl trains the embedded model, got --backend scripted"),
        (["--trainer", "slim"], "unknown 'slim' (did you mean 'slime'?); choose one of trl, slime, verl, skyrl"),
        (["--trainer", "slime"], "slime trains a model of a hub or a folder, got 'smollm2': give --model ID"),
    ],
)
def test_a_wrong_option_is_one_sentence_before_anything_is_loaded(arguments, why, data, tmp_path, capsys):
    output = tmp_path / "out"
    command = ["--env", f"{HOOKS}:two_digits", "--data", data, "-o", str(output), *arguments, "--dry-run"]
    if "--trainer" in arguments:
        command.remove("--dry-run")
    try:
        status, _, said = train(capsys, *command)
    except SystemExit as exit_:
        status, said = exit_.code, capsys.readouterr().err
    assert (status, why in said, said.count("\n")) == (2, True, 1), said
    assert not output.exists()


@pytest.mark.parametrize("missing", ["torch", "trl"])
def test_without_trl_it_is_one_sentence(missing, data, monkeypatch, capsys):
    find = train_command.find_spec
    monkeypatch.setattr(train_command, "find_spec", lambda name: None if name == missing else find("json"))
    status, _, said = train(capsys, "--env", f"{HOOKS}:two_digits", "--data", data)
    assert status == 2 and re.fullmatch(
        rf"strands-env train: training needs {missing}: .*'strands-rollout\[train\]'\n", said
    )


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ("results.jsonl", "holds something other than a training: give another --output"),
        ("training.jsonl", "holds a training: continue it with --resume, or give another --output"),
    ],
)
def test_a_folder_of_another_kind_and_one_with_a_training_stay_as_they_are(made, why, data, tmp_path, capsys):
    pytest.importorskip("trl")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / made).write_text("something")
    status, _, said = train(capsys, "--env", f"{HOOKS}:two_digits", "--data", data, "-o", str(tmp_path / "out"))
    assert (status, why in said, said.count("\n")) == (2, True, 1), said
    assert [path.name for path in (tmp_path / "out").iterdir()] == [made]


def test_what_a_kill_leaves_before_the_first_rollout_is_begun_anew(tmp_path):
    for made in ("training.jsonl", "run.yaml", ".run.yaml.5f3a"):
        (tmp_path / made).write_text("")
        with train_run._opened(tmp_path, resume=False) as log:
            assert log.steps == []
    (tmp_path / "step-1").mkdir()
    with pytest.raises(EvalError, match="holds a training"), train_run._opened(tmp_path, resume=False):
        pass
