"""`examples/slime_swe` under slime's real rollout code: a program changes a repository, and its tokens are trained."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from provider_support import completion, tokenizer

from strands_sglang.testing import Reply
from tests.conftest import ROOT
from tests.real_slime import Router, check_ranks, launch, requires_slime
from tests.unit.sandbox_support import requires_isolation

__all__ = ["launch"]

EXAMPLE = ROOT / "examples" / "slime_swe"
# Takes mini-swe-agent's arguments; a bash tool, and the end at a reply without calls.
PROGRAM = """#!/usr/bin/env python3
import json, os, subprocess, sys, urllib.request
arguments = sys.argv[1:]
task, model = (arguments[arguments.index(name) + 1] for name in ("--task", "--model"))
schema = {"type": "object", "properties": {"command": {"type": "string"}}}
tools = [{"type": "function", "function": {"name": "bash", "description": "A shell.", "parameters": schema}}]
messages = [{"role": "system", "content": "You change repositories."}, {"role": "user", "content": task}]
while True:
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": model, "messages": messages, "tools": tools}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(message)
    if not message.get("tool_calls"):
        break
    for call in message["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout + done.stderr})
"""


class Scripted(Router):
    """Repairs the repository in every other rollout, else does nothing."""

    rollouts = 0

    def _reply(self, input_ids: list[int]) -> Reply:
        if "<tool_response>" in tokenizer().decode(input_ids).rpartition("<|im_start|>user")[2]:
            return replace(completion("It is done."), weight_version="1", meta={})
        self.rollouts += 1
        command = "sed -i s/-/+/ add.py" if self.rollouts % 2 else "cat add.py"
        text = json.dumps({"name": "bash", "arguments": {"command": command}})
        return replace(completion(f"Let me see.<tool_call>{text}</tool_call>"), weight_version="1", meta={})


def fixture_task(folder: Path) -> tuple[Path, Path]:
    """Folders with the program and with a repository."""
    programs, repository = folder / "programs", folder / "repository"
    programs.mkdir()
    repository.mkdir()
    (programs / "mini").write_text(PROGRAM)
    (programs / "mini").chmod(0o755)
    (repository / "add.py").write_text("def add(a, b):\n    return a - b\n")
    return programs, repository


@requires_slime
@requires_isolation
def test_a_step_of_the_example_trains_what_was_sampled(launch: Any, tmp_path: Path) -> None:
    programs, repository = fixture_task(tmp_path)
    test = "python3 -c 'from add import add; assert add(2, 3) == 5'"
    task = {"prompt": "Repair add.", "label": "", "metadata": {"repository": str(repository), "test": test}}
    with Scripted() as router:
        ranks = launch(EXAMPLE, task, router, program=f"{programs}/mini", programs=str(programs)).step()
        check_ranks(ranks, router, samples=4)
    assert sorted(ranks[0]["raw_reward"]) == [0.0, 0.0, 1.0, 1.0]
    line = json.loads((tmp_path / "log" / "rollout.jsonl").read_text().splitlines()[0])
    assert line["metrics"]["ended/task_complete"] == 1.0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@requires_isolation
def test_a_step_with_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for needed in ("torch", "datasets", "trl"):
        pytest.importorskip(needed)
    from strands_sglang.backends.engine.tiny import make_tiny_model

    make_tiny_model(tmp_path / "model", seed=1)
    programs, repository = fixture_task(tmp_path)
    example = EXAMPLE / "train_trl.py"
    given = {"model": "model", "mini": f"{programs}/mini", "programs": programs, "repository": repository}
    flags = [f"--{name}={value}" for name, value in {**given, "task": "Repair add.", "test": "true"}.items()]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example), *flags])
    runpy.run_path(str(example), run_name="__main__")
    printed = capsys.readouterr().out
    assert "'train_loss'" in printed and "'rewards/environment_reward/mean': " in printed
    assert len([line for line in example.read_text().splitlines() if line.strip()]) < 40


def test_tasks_become_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    task = tmp_path / "tasks" / "one"
    task.mkdir(parents=True)
    (task / "task.toml").write_text("")
    (task / "instruction.md").write_text("Repair add.")
    (tmp_path / "tasks" / "notes").mkdir()
    monkeypatch.setattr(sys, "argv", ["swe_env.py", str(tmp_path / "tasks")])
    runpy.run_path(str(EXAMPLE / "swe_env.py"), run_name="__main__")
    metadata = {"task_dir": str(task), "work": None}
    assert json.loads(capsys.readouterr().out) == {"prompt": "Repair add.", "label": "", "metadata": metadata}
