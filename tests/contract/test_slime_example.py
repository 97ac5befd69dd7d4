"""`examples/slime` as slime runs it: its config file and its environment, with a scripted model."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from provider_support import completion, tokenizer
from slime_support import Rig, Sample, check, rig

from strands_env.core import Action, Observation, StepResult, TaskContext, TerminationReason
from strands_env.training import slime
from tests.conftest import ROOT
from tests.real_slime import SLIME, package, requires_slime, slime_imported, slimes_parser
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
async def test_a_rollout_of_the_example_runs_code_and_is_scored_and_logged(
    example: Rig, answer: str, reward: float, tmp_path: Path
) -> None:
    client = example.serve(completion(code("print(2**10)")), completion(answer))
    sample = await example.run(Sample(prompt=PROBLEM, label="1024"))
    check(sample)
    assert (sample.status, sample.reward) == (Sample.Status.COMPLETED, reward)
    prompts = [tokenizer().decode(ids) for ids in client.prompts]
    assert "You solve mathematics problems." in prompts[0]
    assert "1024" in prompts[1].removeprefix(prompts[0])
    assert sample.metadata["strands_env"]["metrics"]["tool_calls"] == 1
    slime.log_rollout(0, example.args, [[sample]], {}, 1.0)
    line = json.loads((tmp_path / "outputs" / "slime" / "rollout.jsonl").read_text())
    assert line["metrics"]["reward"] == reward


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
    runpy.run_path(str(EXAMPLE / "retool_env.py"), run_name="__main__")


PYTHON = """#!/usr/bin/env bash
[[ $2 != *find_spec* ]] || { [ "${!#}" != "$NO_MODULE" ]; exit; }
exit "$CHECK_STATUS"
"""


class Launch:
    """The launch script with everything that it asks for, in a folder; Ray and Python are stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.slime, self.base, self.calls = (folder / name for name in ("slime", "base", "calls.txt"))
        model = self.slime / "scripts" / "models" / "qwen3-8B.sh"
        programs = [folder / "bin" / name for name in ("ray", "python3", "bash", "dirname")]
        data = [self.base / name / f"{name}.jsonl" for name in ("dapo-math-17k", "aime-2024")]
        weights = [self.base / name for name in ("Qwen3-8B", "Qwen3-8B_torch_dist")]
        for path in (model, self.slime / "train.py", folder / "Megatron-LM" / "megatron", *weights, *data, *programs):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        model.write_text("MODEL_ARGS=(--num-layers 36)\n")
        for program, text in zip(programs, (RAY, PYTHON), strict=False):
            program.write_text(text)
            program.chmod(0o755)
        for program in programs[2:]:
            program.unlink()
            program.symlink_to(shutil.which(program.name) or program.name)

    def __call__(
        self,
        script: str = "strands_qwen3_8b.sh",
        *arguments: str,
        ray_runs: bool = True,
        check: int = 0,
        no_module: str = "",
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            # Relative: the folder that the caller means. Nothing else in PATH: programs may be missing.
            **{"SLIME_DIR": "slime", "BASE_DIR": "base", "PATH": str(self.folder / "bin")},
            **{"RAY_CALLS": str(self.calls), "RAY_STATUS": str(int(not ray_runs))},
            **{"CHECK_STATUS": str(check), "NO_MODULE": no_module},
        }
        return subprocess.run(
            ["bash", str(EXAMPLE / script), *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
        )


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    if shutil.which("bash") is None:
        pytest.skip("the launch script needs bash")
    return Launch(tmp_path)


@pytest.mark.parametrize("runs", [True, False], ids=["Ray runs", "Ray does not run"])
def test_the_launch_script_starts_train_py_of_slime(launch: Launch, runs: bool) -> None:
    result = launch(ray_runs=runs)
    assert (result.returncode, result.stderr) == (0, "")
    called = launch.calls.read_text()
    folders, commands = zip(*(line.split("|", 1) for line in called.splitlines() if "|" in line), strict=True)
    assert [command.split()[0] for command in commands] == (["status", "job"] if runs else ["status", "start", "job"])
    assert set(folders) == {str(launch.slime)}  # where Ray is started its processes work
    assert f'"PYTHONPATH": "{launch.slime}/../Megatron-LM:{EXAMPLE}:{EXAMPLE}:{launch.slime}"' in called
    submitted = called.partition(" -- ")[2]
    assert submitted.startswith(f"python3 {launch.slime}/train.py ")
    assert f"--hf-checkpoint {launch.base}/Qwen3-8B " in submitted
    assert f"--custom-config-path {EXAMPLE}/config.yaml" in submitted


@pytest.mark.parametrize(
    "missing",
    [
        *("bin/ray", "bin/python3", "slime/train.py", "slime/scripts/models/qwen3-8B.sh", "Megatron-LM/megatron"),
        *("base/Qwen3-8B", "base/Qwen3-8B_torch_dist"),
        *("base/dapo-math-17k/dapo-math-17k.jsonl", "base/aime-2024/aime-2024.jsonl"),
    ],
)
def test_the_launch_script_names_what_is_missing(launch: Launch, missing: str) -> None:
    (launch.folder / missing).unlink()
    result = launch()
    assert (result.returncode, launch.calls.exists()) == (2, False)
    assert f"{Path(missing).name} is missing: " in result.stderr or f"{missing} is missing: " in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("module", ["strands_env", "math_verify", "torch", "sglang", "megatron.core", "slime"])
def test_the_launch_script_names_a_module_that_is_missing(launch: Launch, module: str) -> None:
    result = launch(no_module=module)
    assert (result.returncode, launch.calls.exists()) == (2, False)
    assert result.stderr.startswith(f"the Python module {module} is missing: ")
    assert result.stderr.count("\n") == 1


def test_the_launch_script_finds_modules_where_train_py_will(launch: Launch) -> None:
    (launch.folder / "bin" / "python3").write_text(
        f'#!/usr/bin/env bash\n[[ $2 != *find_spec* ]] || exec "{sys.executable}" "$@"\n'
    )
    (launch.folder / "Megatron-LM" / "megatron").unlink()
    core = launch.folder / "Megatron-LM" / "megatron" / "core"
    for folder in (core, *(launch.slime / name for name in ("slime", "sglang", "torch"))):
        folder.mkdir(parents=True)
    assert launch().returncode == 0
    core.rmdir()
    assert "the Python module megatron.core is missing" in launch().stderr


def test_the_launch_script_does_not_start_without_a_sandbox(launch: Launch) -> None:
    result = launch(check=1)
    assert (result.returncode, launch.calls.exists()) == (2, False)
    assert "sandbox" in result.stderr


SCRIPTS = sorted(str(path.relative_to(EXAMPLE.parent)) for path in EXAMPLE.parent.glob("s*/*.sh"))


@pytest.mark.parametrize(
    ("script", "train", "model"),
    [
        ("run-smoke.sh", "train.py", "Qwen2.5-0.5B-Instruct"),
        ("run-fully-async.sh", "train_async.py", "Qwen3-8B"),
        ("run-moe.sh", "train.py", "Qwen3-30B-A3B"),
        ("run-two-nodes.sh", "train.py", "Qwen3-8B"),
    ],
)
def test_the_other_launch_scripts_start_their_model(launch: Launch, script: str, train: str, model: str) -> None:
    for folder in (launch.base / model, launch.base / f"{model}_torch_dist"):
        folder.mkdir(exist_ok=True) if not folder.exists() else None
    (launch.slime / train).touch()
    for shape in ("qwen2.5-0.5B", "qwen3-30B-A3B"):
        (launch.slime / "scripts" / "models" / f"{shape}.sh").write_text("MODEL_ARGS=()\n")
    result = launch(script, ray_runs=True)
    assert (result.returncode, result.stderr) == (0, "")
    submitted = launch.calls.read_text().partition(" -- ")[2]
    assert submitted.startswith(f"python3 {launch.slime}/{train} --actor-num-nodes 1 ")
    assert f"--hf-checkpoint {launch.base}/{model} " in submitted


MEGATRON = frozenset(["--optimizer-cpu-offload", "--overlap-cpu-optimizer-d2h-h2d", "--use-precision-aware-optimizer"])
"""Options of Megatron that slime's own scripts in its reference source do not use."""


@requires_slime
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_option_of_the_launch_scripts_exists(script: str) -> None:
    package("torch", "slime imports torch, which is not installed")
    flag = re.compile(r"(?<![\w-])--[a-z][\w-]*")
    text = "\n".join(line.partition("  # ")[0] for line in (EXAMPLE.parent / script).read_text().splitlines())
    used = {
        name
        for line in text.splitlines()
        if re.match(r"  --|\[ -n|LAYOUT|WANDB|  WANDB", line)
        for name in flag.findall(line)
    }
    known = {name for path in SLIME.rglob("*.sh") for name in flag.findall(path.read_text(encoding="utf-8"))}
    with slime_imported():
        known |= set(slimes_parser()._option_string_actions)
    assert len(used) > 2
    assert used - known - MEGATRON == set()


def test_data_for_supervised_training_has_calls_and_results() -> None:
    prepare = load_example("prepare_data")
    text = (
        "Let me see.<code>\n```python\nprint(1 + 2)\n```\n</code>\n<interpreter>\n3\n</interpreter>\nIt is \\boxed{3}."
    )
    row = prepare.sft_row(
        {
            "messages": [
                {"role": "user", "content": "... *user question:*\nWhat is 1 + 2?"},
                {"role": "assistant", "content": text},
            ]
        }
    )
    user, call, result, answer = row["messages"]
    assert user["content"] == "What is 1 + 2?"
    assert call["tool_calls"][0]["function"] == {"name": "execute_code", "arguments": {"code": "print(1 + 2)"}}
    assert (result["role"], result["content"], answer["content"]) == ("tool", "3", "It is \\boxed{3}.")
    printed = tokenizer().apply_chat_template(row["messages"], tools=row["tools"], tokenize=False)
    assert "print(1 + 2)" in printed
    assert prepare.sft_row({"messages": [{"role": "assistant", "content": "no code"}]}) is None


def test_data_for_rl_has_every_problem_once() -> None:
    prepare = load_example("prepare_data")
    row = {"prompt": [{"role": "user", "content": "1 + 2?"}], "reward_model": {"ground_truth": 3}}
    assert list(prepare.rl_rows([row, row])) == [{"prompt": row["prompt"], "label": "3"}]
    with pytest.raises(ValueError, match="no answer"):
        list(prepare.rl_rows([{"prompt": "1 + 2?"}]))


@pytest.mark.parametrize(("tool_iters", "reward"), [(0, -1.1), (2, -1.0), (8, -0.7), (20, -0.6)])
async def test_wrong_answers_cost_less_with_tool_use(example: Rig, tool_iters: int, reward: float) -> None:
    retool_env = importlib.import_module("retool_env")
    environment = retool_env.make_env(model_factory=lambda: None, args=example.args, options={"tool_use_shaping": True})
    messages = [{"role": "assistant", "content": [{"text": "\\boxed{4}"}]}]
    result = StepResult(
        observation=Observation(messages=messages, metrics={"tool_iters": tool_iters}),
        termination_reason=TerminationReason.TASK_COMPLETE,
    )
    action = Action(message="1 + 2?", task_context=TaskContext(ground_truth="3"))
    scored = await environment.reward_fn.compute(action, result)
    assert scored.reward == pytest.approx(reward)


def load_example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_requirements_are_those_of_the_package_and_of_the_example() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "examples" / "slime" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    named = {line for line in lines if line and not line.startswith("#")}
    extras = [line.split(";")[0] for extra in ("math", "sandbox") for line in project["optional-dependencies"][extra]]
    assert named == {*project["dependencies"], *extras}


def test_the_other_arm_has_its_own_function_and_checkpoints(launch: Any) -> None:
    result = launch("strands_qwen3_8b.sh", "--baseline", "retokenized", ray_runs=True)
    assert (result.returncode, result.stderr) == (0, "")
    called = launch.calls.read_text()
    assert "--custom-generate-function-path retokenized.generate " in called
    assert "_strands_retokenized " in called


def test_another_baseline_is_refused(launch: Any) -> None:
    result = launch("strands_qwen3_8b.sh", "--baseline", "text", ray_runs=True)
    assert result.returncode == 2
    assert "got --baseline text, expected nothing or --baseline retokenized" in result.stderr
