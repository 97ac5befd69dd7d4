"""Repositories that a program changes: what counts is its diff, in a sandbox where it has never been."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from strands_env.core import Action, TaskContext
from strands_env.core.models import sglang_model_factory
from strands_env.environments.harness import Harness, RepositoryEnvironment
from tests.provider_support import Replay, completion, tokenizer
from tests.unit.sandbox_support import requires_isolation

pytestmark = requires_isolation

ASK = """
import json, os, subprocess, urllib.request
def ask(text):
    request = urllib.request.Request(os.environ["URL"] + "/chat/completions", json.dumps(
        {"messages": [{"role": "user", "content": text}]}).encode(),
        {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))
ask("What is wrong?")
"""
FIX = 'open("add.py", "w").write("def add(a, b):\\n    return a + b\\n")\n'
HOOK = 'name = ".git/hooks/pre-commit"; open(name, "w").write("#!/bin/sh\\nexit 1\\n"); os.chmod(name, 0o755)\n'
TEST = "python3 tests.py"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "add.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "tests.py").write_text("from add import add\nassert add(2, 3) == 5, add(2, 3)\n")
    (folder / "data.bin").write_bytes(bytes(range(256)) * 40)
    return folder


async def episode(repository: Path, program: str, **options: Any) -> Any:
    """The result of an episode whose program is this Python code, in the repository."""
    harness = Harness(command=("python3", "-c", ASK + program), environment={"URL": "{base_url}", "KEY": "{key}"})
    client = Replay([completion("Minus.")])
    env = RepositoryEnvironment(
        model_factory=sglang_model_factory(client=client, tokenizer=tokenizer()),
        harness=harness,
        repository=repository,
        **{"test": TEST, "protected": ("tests.py", "conftest.py", "*.pth"), **options},
    )
    return await env.rollout(Action(message="Fix add.", task_context=TaskContext(id="t")))


@pytest.mark.parametrize(
    "program",
    [
        FIX,
        FIX + 'subprocess.run("git add -A; git -c user.name=a -c user.email=a@b commit -qm done", shell=True)\n',
        FIX + 'open("data.bin", "ab").write(bytes(9)); os.makedirs("new/deep"); open("new/deep/x", "w").write("x")\n',
        FIX + HOOK,
    ],
    ids=["edited", "committed", "binary and new", "with a hook"],
)  # fmt: skip
async def test_a_right_change_passes(repository: Path, program: str) -> None:
    before = subprocess.run(["find", str(repository), "-type", "f"], capture_output=True, check=True).stdout
    result = await episode(repository, program)
    assert result.reward is not None and result.reward.reward == 1.0, (result.error, result.reward)
    assert "+    return a + b" in result.reward.info["diff"]
    assert subprocess.run(["find", str(repository), "-type", "f"], capture_output=True, check=True).stdout == before


@pytest.mark.parametrize(
    "program",
    [
        "pass",
        'open("tests.py", "w").write("")',
        'open("conftest.py", "w").write("import os; os._exit(0)"); open("x.pth", "w").write("import os; os._exit(0)")',
        'os.rename("tests.py", "old.py"); open("tests.py", "w").write("pass")',
        'import shutil; shutil.rmtree(".git")',
        'open("../change.diff", "w").write("forged"); os.symlink("/etc/passwd", "../.change.diff")',
        'open("add.py", "w").write("def add(a, b):\\n    return 4\\n")',
        'subprocess.run("git config core.fsmonitor /bin/false; git config diff.external /bin/true", shell=True)',
        'subprocess.Popen("while :; do echo > tests.py; done", shell=True, start_new_session=True)',
    ],
    ids=[
        "nothing", "tests emptied", "files that run by themselves", "tests replaced", "no git", "links", "wrong",
        "git that lies", "a process left behind",
    ],
)  # fmt: skip
async def test_anything_else_scores_nothing(repository: Path, program: str) -> None:
    result = await episode(repository, program)
    assert result.reward is not None and result.reward.reward == 0.0, (result.error, result.reward)
    assert len(result.trajectories) == 1


async def test_a_repository_that_cannot_be_laid_out_is_no_reward(repository: Path) -> None:
    result = await episode(repository, FIX, setup="exit 3")
    assert result.reward is None and "could not be laid out" in result.error.message


async def test_a_missing_test_and_a_missing_folder_are_named(repository: Path, tmp_path: Path) -> None:
    result = await episode(repository, FIX, test=None)
    assert (result.reward is None or result.reward.reward is None) and "needs a test" in str(result.error)
    with pytest.raises(ValueError, match="must be a folder"):
        await episode(tmp_path / "nowhere", FIX)
