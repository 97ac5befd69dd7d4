"""`strands-env train` with TRL's own trainer on the tiny model: it learns, and a kill at any moment loses nothing."""

from __future__ import annotations

import errno
import importlib
import json
import shlex
import shutil
import typing
from pathlib import Path
from typing import Any

import pytest
import typing_extensions

pytest.importorskip("torch")
pytest.importorskip("datasets")
pytest.importorskip("trl")

import torch
from transformers import Trainer

from strands_env.commands import train_run
from strands_env.commands.cli import main
from strands_env.commands.train_run import TrainingRun
from strands_env.core.rollout import LocalExecutor
from strands_env.eval import read_results
from strands_env.training.log import read_training
from strands_sglang.command_line import Exit

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TASKS = "".join(f'{{"id": "{name}", "question": "Name a number, {name}."}}\n' for name in ("Ada", "Alan", "Grace"))
OPTIONS = ["--env", "tests.unit.eval_hooks:two_digits", "--model", "tiny", "--max-new-tokens", "6", "--seed", "0"]


class Killed(BaseException):
    """What no boundary catches."""


def start(folder: Path, *more: str, steps: int = 3) -> int:
    data = folder.parent / "tasks.jsonl"
    data.write_text(TASKS)
    sizes = ["--steps", str(steps), "--group", "4", "--prompts", "2", "--lr", "5e-3"]
    return main(["train", "--data", str(data), *OPTIONS, *sizes, "-o", str(folder), "-q", *more])


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert start(folder) == 0
    return folder


def test_a_training_learns_from_what_was_sampled_and_its_weights_are_a_model(whole: Path, capsys: Any) -> None:
    steps = read_training(whole)
    assert [(step["step"], step["saved"], step["rollouts"]) for step in steps] == [(n, True, 8) for n in (1, 2, 3)]
    assert 0 < max(step["logprob_gap"] for step in steps) < 1e-4
    # Each step is a run that the report reads, sampled by the weights of the step before.
    sampled = [
        path for sample in read_results(whole / "step-2", with_tokens=True) for path in sample.step_result.trajectories
    ]
    assert {span.version for path in sampled for span in path.tokens.weight_versions} == {"1"}
    assert main(["report", str(whole)]) == 0
    evaluated = ["eval", "--data", str(whole.parent / "tasks.jsonl"), *OPTIONS[:2], "--model", str(whole / "model")]
    assert main([*evaluated, "--max-new-tokens", "6", "-q", "-o", str(whole.parent / "after")]) == 0


def kill_in_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, rollout = iter(range(100)), LocalExecutor.rollout

    async def dying(self: LocalExecutor, *args: Any, **named: Any) -> Any:
        if next(calls) == 11:  # the fourth of step 2
            raise Killed
        return await rollout(self, *args, **named)

    monkeypatch.setattr(LocalExecutor, "rollout", dying)


def kill_in_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(self: Any, folder: str) -> None:
        if folder.endswith("checkpoint-2"):
            (Path(folder) / "optimizer.pt").write_bytes(b"half of it")
            raise Killed
        save(self, folder)

    save = Trainer._save_optimizer_and_scheduler
    monkeypatch.setattr(Trainer, "_save_optimizer_and_scheduler", torn)


def kill_before_line(monkeypatch: pytest.MonkeyPatch, error: type[BaseException] = Killed) -> None:
    def dying(self: TrainingRun, step: int, *args: Any) -> None:
        if step == 2:
            raise error
        finish(self, step, *args)

    finish = TrainingRun.finish_step
    monkeypatch.setattr(TrainingRun, "finish_step", dying)


def interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    kill_before_line(monkeypatch, KeyboardInterrupt)


def kill_in_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(source: Path, target: Path, **options: Any) -> None:
        target.mkdir()
        (target / "config.json").write_text("{")
        raise Killed

    monkeypatch.setattr(shutil, "copytree", torn)


@pytest.mark.parametrize("kill", [kill_in_rollouts, kill_in_checkpoint, kill_before_line, kill_in_weights, interrupt])
def test_a_kill_at_any_moment_costs_the_step_under_way_and_changes_no_weight(
    kill: Any, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        kill(patch)
        assert start(folder) == (Exit.INTERRUPTED if kill is interrupt else Exit.UNEXPECTED)
    assert len(read_training(folder)) == (3 if kill is kill_in_weights else 1)
    with (folder / "training.jsonl").open("ab") as file:
        file.write(b'{"step":2,"reward":0.')  # of a power cut
    assert main(["train", "--resume", "-o", str(folder), "-q"]) == 0
    assert weights(folder) == weights(whole)
    rewards = [[step["reward"] for step in read_training(each)] for each in (folder, whole)]
    assert rewards[0] == rewards[1]


def test_a_full_disk_is_one_sentence_and_the_last_saved_step_loads(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        save = torch.save

        def full(value: Any, path: Any, *args: Any, **options: Any) -> None:
            if "checkpoint-3" in str(path):
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            save(value, path, *args, **options)

        patch.setattr(torch, "save", full)
        assert start(folder) == 3
    said = capsys.readouterr().err
    assert "No space left on device" in said and "continue with --resume" in said and "Traceback" not in said
    assert not (folder / "checkpoint-3").exists()
    assert main(["train", "--resume", "-o", str(folder), "-q"]) == 0
    assert weights(folder) == weights(whole)


def test_more_steps_follow_checkpoints_may_be_fewer_and_numbers_are_json(
    whole: Path, tmp_path: Path, capsys: Any
) -> None:
    folder = tmp_path / "run"
    assert start(folder, "--save-every", "2", steps=1) == 0
    assert main(["train", "--resume", "-o", str(folder), "--json", "--steps", "3"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [step["saved"] for step in document["steps"]] == [True, True, True]  # 1 and 3 are last ones
    assert weights(folder) == weights(whole)


def test_sampler_and_trainer_that_disagree_train_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    output = train_run.rollout_output

    def shifted(rollouts: Any) -> dict[str, list[Any]]:
        rows = output(rollouts)
        return {**rows, "logprobs": [[value - 0.1 for value in row] for row in rows["logprobs"]]}

    monkeypatch.setattr(train_run, "rollout_output", shifted)
    assert start(tmp_path / "run", steps=1) == 2
    assert "differ from the sampled ones by up to 0.1 nats" in capsys.readouterr().err
    assert read_training(tmp_path / "run") == []


def launch_of(trainer: str, tmp_path: Path, capsys: Any) -> list[str]:
    data = tmp_path / "tasks.jsonl"
    data.write_text(TASKS.replace('."}', '.", "answer": 7}'))
    options = [*OPTIONS[:2], "--data", str(data), "--model", "Qwen/Qwen3-8B", "--trainer", trainer, "-o", "out"]
    assert main(["train", *options]) == 0
    line = capsys.readouterr().out.rpartition("# ---- launch")[2].partition("\n")[2].replace("\\\n", " ")
    return [word for word in shlex.split(line) if "." in word.partition("=")[0] and "=" in word]


def test_verl_takes_the_arguments_of_its_launch(tmp_path: Path, capsys: Any) -> None:
    verl, conf = pytest.importorskip("verl"), pytest.importorskip("omegaconf").OmegaConf
    config = conf.load(Path(verl.__file__).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml")
    for key, _, value in (each.partition("=") for each in launch_of("verl", tmp_path, capsys)):
        parent, _, name = key.rpartition(".")
        assert name in list(conf.select(config, parent)), key
        conf.update(config, key, value)
    assert (config.actor_rollout_ref.rollout.n, config.trainer.total_training_steps) == ("8", "20")


def test_skyrl_takes_the_arguments_of_its_launch(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("skyrl")
    monkeypatch.setattr(typing, "TypedDict", typing_extensions.TypedDict)  # skyrl is for Python 3.12
    config = importlib.import_module("skyrl.train.config").SkyRLTrainConfig
    made = config.from_cli_overrides(launch_of("skyrl", tmp_path, capsys))
    assert (made.generator.n_samples_per_prompt, made.trainer.max_training_steps) == (8, 20)
    assert made.data.train_data == ["tasks.parquet"]
