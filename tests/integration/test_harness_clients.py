"""Real agent programs as `HarnessEnvironment`, sandboxed, with a scripted model; `tests/agent_programs.py` has them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from strands_env.core import Action, TaskContext, TerminationReason
from strands_env.core.models import sglang_model_factory
from strands_env.environments import HarnessEnvironment
from strands_env.environments.harness.environment import DEFAULT_LIMITS
from strands_env.training import samples_from_step
from strands_sglang.testing import ScriptedClient
from tests.agent_programs import HOME, PROGRAMS, installed, program_tokenizer, scripted
from tests.unit.sandbox_support import requires_isolation


@requires_isolation
@pytest.mark.parametrize("name", PROGRAMS)
async def test_an_episode_of_a_real_program(name: str) -> None:
    words, program = installed(name)
    python = program.with_name("python") if program.parent.name == "bin" else None
    tokenizer = program_tokenizer()

    async def reward(action: Action, result: Any) -> float:
        return float((await env.sandbox.read_file("made")) == b"hi\n")

    client = ScriptedClient(scripted(tokenizer), tokenizer=tokenizer)
    env = HarnessEnvironment(
        model_factory=sglang_model_factory(client=client, tokenizer=tokenizer),
        harness=PROGRAMS[name][1](words),
        read_only=sorted({str(HOME), *(str(folder.resolve()) for folder in HOME.iterdir() if folder.is_dir())}),
        python=None if python is None or not python.exists() else str(python),
        limits=replace(DEFAULT_LIMITS, wall_seconds=120.0),
        max_requests=12,
        reward_fn=reward,
    )
    result = await env.rollout(Action(message="Write hi into the file made.", task_context=TaskContext(id="t")))
    ended = result.observation.metrics.get("gateway")
    assert result.termination_reason is TerminationReason.TASK_COMPLETE, (ended, result.error)
    assert result.reward is not None and result.reward.reward == 1.0, ended
    messages = result.observation.messages
    assert "Write hi into the file made." in json.dumps(messages[:2]) and messages[-1]["role"] == "assistant"
    assert any("toolUse" in block for message in messages for block in message["content"])
    trained = sum(sum(trajectory.tokens.loss_mask) for trajectory in result.trajectories)
    assert trained == sum(int(sample.loss_mask.sum()) for sample in samples_from_step(result)) > 0
    assert ended is not None and ended["extension_rate"] == 1.0
