"""`examples/slime` as slime runs it: its config file and its environment, with a scripted model."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from provider_support import completion, tokenizer
from slime_support import Rig, Sample, check, rig

from strands_env.training import slime
from tests.conftest import ROOT
from tests.unit.sandbox_support import requires_isolation

__all__ = ["rig"]

yaml = pytest.importorskip("yaml")
pytest.importorskip("math_verify")
EXAMPLE = ROOT / "examples" / "slime"
PROBLEM = [{"role": "user", "content": "What is 2 to the power of 10?"}]


@pytest.fixture
def example(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Rig]:
    """slime with the keys of `config.yaml` as arguments, in an empty working folder."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.chdir(tmp_path)
    for name, value in yaml.safe_load((EXAMPLE / "config.yaml").read_text()).items():
        setattr(rig.args, name, value)
    yield rig
    sys.modules.pop("retool_env", None)


def code(text: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'execute_code', 'arguments': {'code': text}})}</tool_call>"


def test_every_key_of_the_config_file_is_an_option(example: Rig) -> None:
    settings = slime.SlimeSettings.from_args(example.args)
    assert (settings.factory, settings.tool_parser, settings.max_failures) == ("retool_env.make_env", "hermes", 64)


@requires_isolation
@pytest.mark.parametrize(("answer", "reward"), [("It is \\boxed{1024}.", 1.0), ("It is \\boxed{1000}.", 0.0)])
async def test_a_rollout_of_the_example_runs_code_and_is_scored(example: Rig, answer: str, reward: float) -> None:
    client = example.serve(completion(code("print(2**10)")), completion(answer))
    sample = await example.run(Sample(prompt=PROBLEM, label="1024"))
    check(sample)
    assert (sample.status, sample.reward) == (Sample.Status.COMPLETED, reward)
    prompts = [tokenizer().decode(ids) for ids in client.prompts]
    assert "You solve mathematics problems." in prompts[0]
    assert "1024" in prompts[1].removeprefix(prompts[0])
    assert sample.metadata["strands_env"]["metrics"]["tool_calls"] == 1


@requires_isolation
async def test_its_log_is_where_the_config_file_says(example: Rig, tmp_path: Any) -> None:
    example.serve(completion("\\boxed{1024}"))
    sample = await example.run(Sample(prompt=PROBLEM, label="1024"))
    slime.log_rollout(0, example.args, [[sample]], {}, 1.0)
    line = json.loads((tmp_path / "outputs" / "slime" / "rollout.jsonl").read_text())
    assert line["metrics"]["reward"] == 1.0


@requires_isolation
async def test_an_option_that_the_environment_does_not_have_ends_the_run(example: Rig) -> None:
    example.args.strands_env_options = {"max_tool_itres": 16}
    example.serve(completion("\\boxed{1024}"))
    with pytest.raises(slime.SlimeConfigError, match="max_tool_itres"):
        await example.run(Sample(prompt=PROBLEM, label="1024"))


def test_the_environment_takes_the_options_of_the_config_file(example: Rig) -> None:
    retool_env = importlib.import_module("retool_env")
    environment = retool_env.make_env(
        model_factory=lambda: None, args=example.args, options={"max_tool_iters": 3, "step_timeout": 7.0}
    )
    assert (environment.max_tool_iters, environment.step_timeout, environment.reward_timeout) == (3, 7.0, 60.0)


RAY = """#!/usr/bin/env bash
echo "$PWD|$*" >> "$RAY_CALLS"
[ "$1" != status ] || exit "$RAY_STATUS"
"""


@requires_isolation
def test_the_environment_tries_itself() -> None:
    subprocess.run([sys.executable, str(EXAMPLE / "retool_env.py")], check=True, timeout=120)


@pytest.mark.skipif(shutil.which("bash") is None, reason="the launch script needs bash")
@pytest.mark.parametrize("runs", [True, False], ids=["Ray runs", "Ray does not run"])
def test_the_launch_script_starts_train_py_of_slime(tmp_path: Path, runs: bool) -> None:
    slime_dir, base, calls, ray = (tmp_path / name for name in ("slime", "base", "calls.txt", "bin/ray"))
    model = slime_dir / "scripts" / "models" / "qwen3-8B.sh"
    data = [base / name / f"{name}.jsonl" for name in ("dapo-math-17k", "aime-2024")]
    for path in (model, slime_dir / "train.py", ray, base / "Qwen3-8B", base / "Qwen3-8B_torch_dist", *data):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    model.write_text("MODEL_ARGS=(--num-layers 36)\n")
    ray.write_text(RAY)
    python = ray.with_name("python3")
    python.write_text('#!/usr/bin/env bash\nexit "$CHECK_STATUS"\n')
    for program in (ray, python):
        program.chmod(0o755)
    script = str(EXAMPLE / "run-qwen3-8b.sh")
    paths = {"SLIME_DIR": str(slime_dir), "BASE_DIR": "base", "PATH": f"{ray.parent}:{os.environ['PATH']}"}
    fake = {"RAY_CALLS": str(calls), "RAY_STATUS": str(int(not runs)), "CHECK_STATUS": "1"}
    refused = subprocess.run(["bash", script], cwd=tmp_path, env={**os.environ, **paths, **fake}, capture_output=True)
    assert (refused.returncode, calls.exists()) == (2, False)
    assert b"sandbox" in refused.stderr
    fake["CHECK_STATUS"] = "0"
    subprocess.run(["bash", script], check=True, cwd=tmp_path, env={**os.environ, **paths, **fake})
    folders, commands = zip(
        *(line.split("|", 1) for line in calls.read_text().splitlines() if "|" in line), strict=True
    )
    assert [command.split()[0] for command in commands] == (["status", "job"] if runs else ["status", "start", "job"])
    assert set(folders) == {str(slime_dir)}  # where Ray is started its processes work
    submitted = calls.read_text().partition(" -- ")[2]
    assert submitted.startswith(f"python3 {slime_dir}/train.py ")
    assert f"--hf-checkpoint {base.resolve()}/Qwen3-8B " in submitted
    assert f"--custom-config-path {EXAMPLE}/config.yaml" in submitted
