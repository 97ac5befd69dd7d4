"""Starting agent programs without a person in front of them.

A recipe holds a command line, environment variables and configuration files with placeholders (`PLACEHOLDERS`). The
switches keep a program from phoning home, from updating itself, from asking for permissions (run it in a sandbox), and
from asking the model for anything beside its task, such as a title: that would be trained with the task's reward.
Keys stand in environment variables alone, never in a command line or a file, so that they end with the program.

`program` is its name or path, or several words: `("/opt/node22/bin/node", "/opt/qwen-code/cli.js")`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strands_sglang.exceptions import refuse_unknown

Program = str | Sequence[str]

# WebAssembly in Node reserves 10 GiB of addresses for every memory, which no limit on memory grants.
_NODE = {"NODE_OPTIONS": "--disable-wasm-trap-handler"}

PLACEHOLDERS = ("prompt", "base_url", "anthropic_url", "google_url", "key", "reward_key", "model", "home")
"""`{prompt}`: the task; `{base_url}`: the session for OpenAI's clients, `/v1` included; `{anthropic_url}` and
`{google_url}`: for those of the others, without it; `{key}`: the session's key; `{reward_key}`: that of its reward, for
an environment with `program_reward`; `{model}`: `Harness.model`; `{home}`: the home folder."""

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
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
        values: Further placeholders, with their values.

    Raises:
        ValueError: An unknown placeholder, which the program would be given as it stands.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    model: str = "policy"
    values: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = (*PLACEHOLDERS, *self.values)
        for text in (*self.command, *self.environment.values(), *self.files):
            words = () if "\n" in text else _ANY.findall(text)  # a script has braces of its own, as files have
            if unknown := [word for word in words if word not in known]:
                raise ValueError(
                    f"unknown placeholder {{{unknown[0]}}} in {text[:100]!r}; there are "
                    f"{', '.join(f'{{{name}}}' for name in known)}. For braces of the program's own, write "
                    f"{{ {unknown[0]} }}"
                )

    def fill(self, values: Mapping[str, str]) -> Launch:
        """Fill in the placeholders; other braces stay."""
        known = {"model": self.model, **self.values, **values}

        def fill(text: str) -> str:
            return _PLACEHOLDER.sub(lambda word: str(known.get(word[1], word[0])), text)

        return Launch(
            command=tuple(map(fill, self.command)),
            environment={name: fill(value) for name, value in self.environment.items()},
            files={fill(path): fill(text) for path, text in self.files.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An agent program; called, it gives the `Harness` that starts it.

    Attributes:
        command: The program's name and its arguments, `{arguments}` in place of those of the call.
        files: See `Harness`; like `command`, with options as placeholders.
        options: Further options of the call, with their defaults.
    """

    command: str
    environment: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(
        self, program: Program | None = None, *, model: str = "policy", arguments: Sequence[str] = (), **options: Any
    ) -> Harness:
        """The harness with the program at this place, and with these arguments.

        Raises:
            TypeError: The program has no such option.
        """
        name, *words = self.command.split()
        refuse_unknown(name, options, {"program", "model", "arguments", *self.options})
        values = {**self.options, **options}
        if "context" in values:
            values["reply"] = values["context"] // 4  # what a program leaves free for a reply
        start = (name,) if program is None else (program,) if isinstance(program, str) else tuple(program)
        place = words.index("{arguments}")
        return Harness(
            command=(*start, *words[:place], *arguments, *words[place + 1 :]),
            environment=self.environment,
            files=self.files,
            model=model,
            values=values,
        )


claude_code = Recipe(
    command="claude -p {prompt} --output-format json --permission-mode bypassPermissions {arguments}",
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
)
"""Claude Code (npm `@anthropic-ai/claude-code`), whose binary runs without Node."""

codex = Recipe(
    command="codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox {arguments} {prompt}",
    environment={"CODEX_HOME": "{home}/.codex", "GATEWAY_KEY": "{key}"},
    files={
        ".codex/config.toml": """\
model = "{model}"
model_provider = "gateway"

[model_providers.gateway]
name = "gateway"
base_url = "{base_url}"
env_key = "GATEWAY_KEY"
wire_api = "responses"
stream_max_retries = 8
"""
    },
)
"""Codex CLI (npm `@openai/codex`)."""

opencode = Recipe(
    command="opencode run -m gateway/{model} --title=task {arguments} {prompt}",
    environment={"GATEWAY_KEY": "{key}"},
    files={
        ".config/opencode/opencode.json": """\
{
  "autoupdate": false, "share": "disabled", "permission": {"bash": "allow", "edit": "allow"},
  "provider": {"gateway": {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": "{base_url}", "apiKey": "{env:GATEWAY_KEY}"},
    "models": {"{model}": {
      "reasoning": true, "tool_call": true, "limit": {"context": {context}, "output": {reply}}
    }}
  }}
}
"""
    },
    options={"context": 32_768},
)
"""Opencode (npm `opencode-ai`). It compacts by the option `context`, in tokens."""

# Without `mcp` litellm makes no call at all, and mini-swe-agent tries it ten times, with waits of up to a minute.
mini_swe_agent = Recipe(
    command="mini --yolo --exit-immediately --model openai/{model} --task {prompt} --cost-limit 0 -c mini.yaml "
    "-c agent.step_limit={step_limit} -o {home}/trajectory.json {arguments}",
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
    options={"step_limit": 30},
)
"""mini-swe-agent (PyPI `mini-swe-agent mcp`), with at most `step_limit` model calls."""

gemini_cli = Recipe(
    command="gemini --yolo --model {model} {arguments} -p {prompt}",
    environment={"GOOGLE_GEMINI_BASE_URL": "{google_url}", "GEMINI_API_KEY": "{key}", **_NODE},
    files={
        ".gemini/settings.json": """\
{
  "general": {"enableAutoUpdate": false}, "privacy": {"usageStatisticsEnabled": false}, "telemetry": {"enabled": false},
  "model": {"disableLoopDetection": true},
  "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}}
}
"""
    },
)
"""gemini-cli (npm `@google/gemini-cli`). Its check for loops would ask the model from the thirtieth turn on."""

qwen_code = Recipe(
    command="qwen --yolo --auth-type openai {arguments} -p {prompt}",
    environment={"OPENAI_BASE_URL": "{base_url}", "OPENAI_API_KEY": "{key}", "OPENAI_MODEL": "{model}", **_NODE},
    files={
        ".qwen/settings.json": """\
{
  "general": {"enableAutoUpdate": false}, "privacy": {"usageStatisticsEnabled": false},
  "memory": {"enableManagedAutoMemory": false}
}
"""
    },
)
"""Qwen Code (npm `@qwen-code/qwen-code`; Node 22)."""

pi = Recipe(
    command="pi --provider gateway --model {model} --no-session --offline {arguments} -p {prompt}",
    environment={"GATEWAY_KEY": "{key}", **_NODE},
    files={
        ".pi/agent/models.json": """\
{"providers": {"gateway": {
  "baseUrl": "{base_url}", "api": "openai-completions", "apiKey": "$GATEWAY_KEY",
  "models": [{"id": "{model}", "reasoning": true, "contextWindow": {context}, "maxTokens": {reply}}]
}}}
"""
    },
    options={"context": 32_768},
)
"""Pi (npm `@earendil-works/pi-coding-agent`). It compacts by the option `context`, in tokens."""

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

# `source` is a script in place of ours, called with model and prompt.
openhands = Recipe(
    command="python3 {arguments} -c {source} openai/{model} {prompt}",
    environment={
        "LLM_API_KEY": "{key}",
        "LLM_BASE_URL": "{base_url}",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENHANDS_SUPPRESS_BANNER": "1",
    },
    options={"source": _OPENHANDS},
)
"""OpenHands (PyPI `openhands-sdk openhands-tools`), with a terminal and a file editor. `program` is its interpreter."""

mistral_vibe = Recipe(
    command="vibe --auto-approve --trust --output text {arguments} --prompt={prompt}",
    environment={"GATEWAY_KEY": "{key}", "VIBE_HOME": "{home}/.vibe"},
    files={
        ".vibe/config.toml": """\
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
    },
)
"""Mistral Vibe (PyPI `mistral-vibe`)."""
