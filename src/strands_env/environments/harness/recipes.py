"""Starting agent programs without a person in front of them.

A recipe holds a command line, environment variables and configuration files with placeholders (`PLACEHOLDERS`). The
switches keep a program from phoning home, from updating itself, and from asking for permissions: run it in a sandbox.
Keys stand in environment variables alone, never in a command line or a file, so that they end with the program.

`program` is its name or path, or several words: `("/opt/node22/bin/node", "/opt/qwen-code/cli.js")`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Program = str | Sequence[str]

# WebAssembly in Node reserves 10 GiB of addresses for every memory, which no limit on memory grants.
_NODE = {"NODE_OPTIONS": "--disable-wasm-trap-handler"}

PLACEHOLDERS = ("prompt", "base_url", "anthropic_url", "google_url", "key", "model", "home")
"""`{prompt}`: the task; `{base_url}`: the session for OpenAI's clients, `/v1` included; `{anthropic_url}` and
`{google_url}`: for those of the others, without it; `{key}`: the session's key; `{model}`: `Harness.model`; `{home}`:
the home folder."""

_PLACEHOLDER = re.compile(rf"\{{({'|'.join(PLACEHOLDERS)})\}}")
# Looks like one: a word in braces that are not a shell's, git's or a template's.
_ANY = re.compile(r"(?<![$@{])\{([a-z_]+)\}(?!\})")


class Launch(NamedTuple):
    """A harness with its placeholders filled in."""

    command: tuple[str, ...]
    environment: dict[str, str]
    files: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A way to start an agent program; placeholders are filled in for every episode.

    Attributes:
        command: Program and arguments.
        files: Files to write before the start, by their path below the home directory.
        model: Replaces `{model}`; the gateway takes any name.

    Raises:
        ValueError: An unknown placeholder, which the program would be given as it stands.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    model: str = "policy"

    def __post_init__(self) -> None:
        for text in (*self.command, *self.environment.values(), *self.files):
            for name in () if "\n" in text else _ANY.findall(text):  # a script has braces of its own, as files have
                if name not in PLACEHOLDERS:
                    known = ", ".join(f"{{{known}}}" for known in PLACEHOLDERS)
                    raise ValueError(
                        f"unknown placeholder {{{name}}} in {text[:100]!r}; there are {known}. For braces of the "
                        f"program's own, write {{ {name} }}"
                    )

    def fill(self, values: Mapping[str, str]) -> Launch:
        """Fill in the placeholders; other braces stay."""
        given = {"model": self.model, **values}

        def fill(text: str) -> str:
            return _PLACEHOLDER.sub(lambda found: given[found[1]], text)

        return Launch(
            command=tuple(map(fill, self.command)),
            environment={name: fill(value) for name, value in self.environment.items()},
            files={fill(path): fill(text) for path, text in self.files.items()},
        )


def _words(program: Program) -> tuple[str, ...]:
    return (program,) if isinstance(program, str) else tuple(program)


def claude_code(program: Program = "claude", *, model: str = "policy", arguments: Sequence[str] = ()) -> Harness:
    """Claude Code (npm `@anthropic-ai/claude-code`), whose binary runs without Node.

    Args:
        arguments: Further arguments, e.g. `("--max-turns", "20")`.
    """
    return Harness(
        command=(
            *_words(program), "-p", "{prompt}", "--output-format", "json", "--permission-mode", "bypassPermissions",
            *arguments,
        ),
        environment={
            "ANTHROPIC_BASE_URL": "{anthropic_url}",
            "ANTHROPIC_AUTH_TOKEN": "{key}",
            "ANTHROPIC_MODEL": "{model}",
            "ANTHROPIC_SMALL_FAST_MODEL": "{model}",
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        },
        model=model,
    )  # fmt: skip


def codex(program: Program = "codex", *, model: str = "policy", arguments: Sequence[str] = ()) -> Harness:
    """Codex CLI (npm `@openai/codex`); `arguments` go to `codex exec`."""
    config = """\
model = "{model}"
model_provider = "gateway"

[model_providers.gateway]
name = "gateway"
base_url = "{base_url}"
env_key = "GATEWAY_KEY"
wire_api = "responses"
"""
    return Harness(
        command=(
            *_words(program), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", *arguments,
            "{prompt}",
        ),
        environment={"CODEX_HOME": "{home}/.codex", "GATEWAY_KEY": "{key}"},
        files={".codex/config.toml": config},
        model=model,
    )  # fmt: skip


def opencode(
    program: Program = "opencode", *, model: str = "policy", context: int = 32_768, arguments: Sequence[str] = ()
) -> Harness:
    """Opencode (npm `opencode-ai`); `arguments` go to `opencode run`. It compacts by `context`, in tokens."""
    config = {
        "autoupdate": False,
        "share": "disabled",
        "permission": {"bash": "allow", "edit": "allow"},
        "provider": {
            "gateway": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": "{base_url}", "apiKey": "{env:GATEWAY_KEY}"},
                "models": {
                    "{model}": {
                        "reasoning": True,
                        "tool_call": True,
                        "limit": {"context": context, "output": context // 4},
                    }
                },
            }
        },
    }
    return Harness(
        command=(*_words(program), "run", "-m", "gateway/{model}", *arguments, "{prompt}"),
        environment={"GATEWAY_KEY": "{key}"},
        files={".config/opencode/opencode.json": json.dumps(config)},
        model=model,
    )


def mini_swe_agent(
    program: Program = "mini", *, model: str = "policy", step_limit: int = 30, arguments: Sequence[str] = ()
) -> Harness:
    """mini-swe-agent (PyPI `mini-swe-agent mcp`), with at most `step_limit` model calls.

    Without `mcp` litellm makes no call at all, and mini-swe-agent tries it ten times, with waits of up to a minute.
    """
    return Harness(
        command=(
            *_words(program), "--yolo", "--exit-immediately", "--model", "openai/{model}", "--task", "{prompt}",
            "--cost-limit", "0", "-c", "mini.yaml", "-c", f"agent.step_limit={step_limit}",
            "-o", "{home}/trajectory.json", *arguments,
        ),
        environment={
            "OPENAI_API_KEY": "{key}",
            "OPENAI_BASE_URL": "{base_url}",
            "OPENAI_API_BASE": "{base_url}",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_GLOBAL_CONFIG_DIR": "{home}/.config/mini-swe-agent",
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "2",  # the gateway tries again itself
        },
        model=model,
    )  # fmt: skip


def gemini_cli(program: Program = "gemini", *, model: str = "policy", arguments: Sequence[str] = ()) -> Harness:
    """gemini-cli (npm `@google/gemini-cli`)."""
    settings = {
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    }
    return Harness(
        command=(*_words(program), "--yolo", "--model", "{model}", *arguments, "-p", "{prompt}"),
        environment={"GOOGLE_GEMINI_BASE_URL": "{google_url}", "GEMINI_API_KEY": "{key}", **_NODE},
        files={".gemini/settings.json": json.dumps(settings)},
        model=model,
    )


def qwen_code(program: Program = "qwen", *, model: str = "policy", arguments: Sequence[str] = ()) -> Harness:
    """Qwen Code (npm `@qwen-code/qwen-code`; Node 22)."""
    settings = {"general": {"enableAutoUpdate": False}, "privacy": {"usageStatisticsEnabled": False}}
    return Harness(
        command=(*_words(program), "--yolo", "--auth-type", "openai", *arguments, "-p", "{prompt}"),
        environment={"OPENAI_BASE_URL": "{base_url}", "OPENAI_API_KEY": "{key}", "OPENAI_MODEL": "{model}", **_NODE},
        files={".qwen/settings.json": json.dumps(settings)},
        model=model,
    )


def pi(
    program: Program = "pi", *, model: str = "policy", context: int = 32_768, arguments: Sequence[str] = ()
) -> Harness:
    """Pi (npm `@earendil-works/pi-coding-agent`). It compacts by `context`, in tokens."""
    described = {"id": "{model}", "reasoning": True, "contextWindow": context, "maxTokens": context // 4}
    provider = {"baseUrl": "{base_url}", "api": "openai-completions", "apiKey": "GATEWAY_KEY", "models": [described]}
    return Harness(
        command=(
            *_words(program), "--provider", "gateway", "--model", "{model}", "--no-session", "--offline", *arguments,
            "-p", "{prompt}",
        ),
        environment={"GATEWAY_KEY": "{key}", **_NODE},
        files={".pi/agent/models.json": json.dumps({"providers": {"gateway": provider}})},
        model=model,
    )  # fmt: skip


_OPENHANDS = """\
import os, sys
from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool

llm = LLM(model=sys.argv[1], base_url=os.environ["LLM_BASE_URL"], api_key=os.environ["LLM_API_KEY"])
tools = [Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)]
conversation = Conversation(agent=Agent(llm=llm, tools=tools), workspace=os.getcwd(), visualizer=None)
conversation.send_message(sys.argv[2])
conversation.run()
"""


def openhands(python: Program = "python3", *, model: str = "policy", source: str = _OPENHANDS) -> Harness:
    """OpenHands (PyPI `openhands-sdk openhands-tools`), with a terminal and a file editor.

    Args:
        python: Interpreter of its environment.
        source: A program in place of ours, called with model and prompt.
    """
    return Harness(
        command=(*_words(python), "-c", source, "openai/{model}", "{prompt}"),
        environment={
            "LLM_API_KEY": "{key}",
            "LLM_BASE_URL": "{base_url}",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OPENHANDS_SUPPRESS_BANNER": "1",
        },
        model=model,
    )


def mistral_vibe(program: Program = "vibe", *, model: str = "policy", arguments: Sequence[str] = ()) -> Harness:
    """Mistral Vibe (PyPI `mistral-vibe`)."""
    config = """\
active_model = "{model}"
enable_auto_update = false
enable_notifications = false
enable_telemetry = false
enable_update_checks = false

[[providers]]
name = "gateway"
api_base = "{base_url}"
api_key_env_var = "GATEWAY_KEY"
backend = "generic"
api_style = "openai"

[[models]]
name = "{model}"
alias = "{model}"
provider = "gateway"
"""
    return Harness(
        command=(*_words(program), "--auto-approve", "--trust", "--output", "text", *arguments, "--prompt={prompt}"),
        environment={"GATEWAY_KEY": "{key}", "VIBE_HOME": "{home}/.vibe"},
        files={".vibe/config.toml": config},
        model=model,
    )
