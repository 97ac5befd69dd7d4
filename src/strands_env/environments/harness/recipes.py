"""Starting agent programs without a person in front of them.

A recipe holds a command line, environment variables and configuration files with placeholders: `{prompt}`,
`{base_url}` (OpenAI, `/v1` included), `{anthropic_url}`, `{key}`, `{model}` and `{home}`. The switches keep a program
from phoning home, from updating itself, and from asking for permissions: run it in a sandbox.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

_PLACEHOLDER = re.compile(r"\{(prompt|base_url|anthropic_url|key|model|home)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A way to start an agent program; placeholders are filled in for every episode.

    Attributes:
        command: Program and arguments.
        files: Files to write before the start, by their path below the home directory.
        model: Replaces `{model}`; the gateway takes any name.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    model: str = "policy"

    def filled(self, values: Mapping[str, str]) -> Harness:
        """The harness with its placeholders filled in; other braces stay."""

        def fill(text: str) -> str:
            return _PLACEHOLDER.sub(lambda found: {"model": self.model, **values}.get(found[1], found[0]), text)

        return replace(
            self,
            command=tuple(map(fill, self.command)),
            environment={name: fill(value) for name, value in self.environment.items()},
            files={fill(path): fill(text) for path, text in self.files.items()},
        )


def claude_code(program: str = "claude", *, model: str = "policy", arguments: Sequence[str] = ()) -> Harness:
    """Claude Code (npm `@anthropic-ai/claude-code`), whose binary runs without Node.

    Args:
        arguments: Further arguments, e.g. `("--max-turns", "20")`.
    """
    return Harness(
        command=(
            program, "-p", "{prompt}", "--output-format", "json", "--permission-mode", "bypassPermissions", *arguments,
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


def codex(program: str = "codex", *, model: str = "policy", arguments: Sequence[str] = ()) -> Harness:
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
            program, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", *arguments,
            "{prompt}",
        ),
        environment={"CODEX_HOME": "{home}/.codex", "GATEWAY_KEY": "{key}"},
        files={".codex/config.toml": config},
        model=model,
    )  # fmt: skip


def opencode(
    program: str = "opencode", *, model: str = "policy", context: int = 32_768, arguments: Sequence[str] = ()
) -> Harness:
    """Opencode (npm `opencode-ai`); `arguments` go to `opencode run`. It compacts by `context`, in tokens."""
    config = {
        "autoupdate": False,
        "share": "disabled",
        "permission": {"bash": "allow", "edit": "allow"},
        "provider": {
            "gateway": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": "{base_url}", "apiKey": "{key}"},
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
        command=(program, "run", "-m", "gateway/{model}", *arguments, "{prompt}"),
        files={".config/opencode/opencode.json": json.dumps(config)},
        model=model,
    )


def mini_swe_agent(
    program: str = "mini", *, model: str = "policy", step_limit: int = 30, arguments: Sequence[str] = ()
) -> Harness:
    """mini-swe-agent (PyPI `mini-swe-agent`), with at most `step_limit` model calls."""
    return Harness(
        command=(
            program, "--yolo", "--exit-immediately", "--model", "openai/{model}", "--task", "{prompt}",
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
        },
        model=model,
    )  # fmt: skip
