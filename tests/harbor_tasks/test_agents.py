"""Real agent programs in the container of a task, with a scripted model: the reward, and every token exactly once."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harbor.agents.factory import AgentFactory
from harbor.agents.installed.base import BaseInstalledAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.trial.config import AgentConfig

from strands_env.core import Action, StepResult, TaskContext, TerminationReason
from strands_env.core.models import sglang_model_factory
from strands_env.environments.harbor import HarborEnv
from strands_env.environments.harness import mini_swe_agent
from strands_env.training import samples_from_step
from strands_sglang.testing import ScriptedClient
from tests.agent_programs import HOME, PROGRAMS, installed, program_tokenizer, scripted
from tests.container_support import make_task, root_for

ACTION = Action(message="", task_context=TaskContext(id="t"))


def shown_for(program: Path) -> list[str]:
    """Folders and files of this machine that a program needs, beside libraries."""
    package = HOME / program.relative_to(HOME).parts[0]
    if package.name == "node_modules":
        return [str(package)]
    asked = "import os, sys, sysconfig; print(os.path.dirname(sys._base_executable), sysconfig.get_path('stdlib'))"
    found = subprocess.run([package / "bin/python", "-Ic", asked], capture_output=True, text=True, check=True)
    folder, library = found.stdout.split()
    interpreters = sorted(str(file) for file in Path(folder).glob("python*") if file.resolve().parent == Path(folder))
    return [str(package), library, *interpreters]


async def work_in(folder: Path, program: Path, **options: Any) -> tuple[StepResult, list[tuple[Any, Any]]]:
    """A solved episode of a program in a container, with the prompt and the tokens of each model call."""
    shown = shown_for(program)
    tokenizer = program_tokenizer()
    reply = scripted(tokenizer, "echo 42 > answer.txt")
    client = ScriptedClient(reply, tokenizer=tokenizer)
    env = HarborEnv(
        model_factory=sglang_model_factory(client=client, tokenizer=tokenizer),
        task_dir=make_task(folder, image=root_for(*shown)),
        backend_options={"binds": {place: os.path.realpath(place) for place in shown}},
        **options,
    )
    result = await env.rollout(ACTION)
    ended = result.observation.metrics.get("gateway")
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, (ended, result.error)
    assert result.reward is not None and result.reward.reward == 1.0, ended
    assert ended is not None and ended["extension_rate"] == 1.0
    return result, [(request.input_ids, reply(request.input_ids, {}).ids) for request in client.requests]


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_real_program_in_a_container_is_graded_and_every_token_is_its_own(name: str, tmp_path: Path) -> None:
    words, program = installed(name)
    options = {"harness": PROGRAMS[name][1](words), "session_limits": {"max_requests": 12}}
    result, sampled = await work_in(tmp_path, program, **options)
    assert len(sampled) >= 2
    trained = sum(int(sample.loss_mask.sum()) for sample in samples_from_step(result))
    assert trained == sum(sum(one.tokens.loss_mask) for one in result.trajectories)
    assert trained == sum(len(ids) for _, ids in sampled)
    for prompt, ids in sampled:
        whole = [*prompt, *ids]
        homes = [one.tokens for one in result.trajectories if list(one.tokens.token_ids[: len(whole)]) == whole]
        assert homes and any(all(home.loss_mask[len(prompt) : len(whole)]) for home in homes)


HERE = """mkdir -p /usr/local/bin ~/.local/bin ~/.nvm && touch ~/.local/bin/env ~/.nvm/nvm.sh && cd /usr/local/bin
printf '#!/bin/sh\\nexec {words} "$@"\\n' > {name}
printf '#!/bin/sh\\nshift; exec "$@"\\n' > stdbuf && chmod 755 {name} stdbuf"""
"""In place of an installation, which needs a network: the program that is shown, and what busybox lacks."""


@pytest.mark.parametrize(
    ("name", "program", "command"),
    [
        ("claude-code", "claude-code", "claude"),
        ("codex", "codex", "codex"),
        ("mini-swe-agent", "mini-swe-agent", "mini-swe-agent"),
        ("opencode", "opencode", "opencode"),
        ("qwen-coder", "qwen-code", "qwen"),
    ],
)
async def test_agents_go_by_harbors_own_names_for_them(
    name: str, program: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, file = installed(program)
    line = words if isinstance(words, str) else " ".join(words)

    async def install(self: BaseInstalledAgent, environment: BaseEnvironment) -> None:
        assert (await environment.exec(HERE.format(words=line, name=command))).return_code == 0

    kind = AgentFactory.get_agent_class_from_config(AgentConfig(name=name))
    monkeypatch.setattr(kind, "install", install)
    await work_in(tmp_path, file, agent=name)


async def test_a_program_that_never_asks_the_model_is_no_measurement(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    (task / "task.toml").write_text((task / "task.toml").read_text().replace("timeout_sec = 60.0", "timeout_sec = 1.0"))
    waits = replace(mini_swe_agent(), command=("/bin/sh", "-c", "cat; sleep 100"))
    tokenizer = program_tokenizer()
    factory = sglang_model_factory(client=ScriptedClient([], tokenizer=tokenizer), tokenizer=tokenizer)
    result = await HarborEnv(model_factory=factory, task_dir=task, harness=waits).rollout(ACTION)
    assert result.reward is None and result.termination_reason.is_failure
    assert result.error is not None and "made no model call in the task's time" in result.error.message
