"""Which agent client keeps which promise: real clients against the gateway, as a table.

    python -m benchmarks.gateway_clients --python VENV/bin/python --python OTHER/bin/python

Each client runs against a gateway whose model follows a script: at a question it thinks, says a sentence and makes two
calls; at results it answers. The vendors' own clients are those of `tests/gateway_clients.py`, in this process.
Frameworks run headless, as processes of their own, in the given environments (`pip install openai-agents langgraph
langchain-openai langchain-anthropic pydantic-ai-slim smolagents inspect_ai litellm`); agent programs too, from where
`tests/agent_programs.py` has them. What is absent is left out and named.

A row holds: requests; how many of those whose history holds a reply extended a held path; whether every prompt sent was
the held path and its delta; whether every sampled token is trained once; roots and why, labelled sub-agents, and what
the client does to a reply.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import client_programs as programs
from benchmarks.shape import arguments, print_figures
from tests import gateway_clients as sdks
from tests.agent_programs import PROGRAMS, SHELLS, find_program, program_tokenizer

from strands_env.environments.harness import Harness
from strands_sglang.gateway import Gateway, Session
from strands_sglang.testing import Reply, ScriptedClient

TIMEOUT = 60.0
QUESTIONS = ("What is 1+2?", "Again?")
SDKS = [
    ("openai, Chat Completions", "openai", sdks.chat, False),
    ("openai, Chat Completions, streamed", "openai", sdks.chat, True),
    ("openai, Responses, streamed", "openai", sdks.responses, True),
    ("anthropic, streamed", "anthropic", sdks.messages, True),
    ("google-genai, streamed", "google-genai", sdks.google, True),
]
"""Name in the table, distribution, client, and whether it streams."""
FRAMEWORKS = [
    ("openai-agents, Chat Completions", "openai-agents", programs.OPENAI_AGENTS),
    ("openai-agents, Responses", "openai-agents", programs.OPENAI_AGENTS, "responses"),
    ("langgraph, langchain-openai", "langchain-openai", programs.LANGGRAPH),
    ("langgraph, langchain-anthropic", "langchain-anthropic", programs.LANGGRAPH, "anthropic"),
    ("pydantic-ai", "pydantic-ai-slim", programs.PYDANTIC_AI),
    ("inspect_ai", "inspect_ai", programs.INSPECT),
    ("litellm", "litellm", programs.LITELLM),
    ("smolagents", "smolagents", programs.SMOLAGENTS),
]
"""Name in the table, distribution that has to be there, program, and the dialect where it speaks several."""


def policy(tokenizer: Any) -> Any:
    """A model by script: two calls of the client's tool at a question, an answer at results."""
    calls: dict[str, dict[str, Any]] = {
        name: {argument: "echo hi", **others} for name, (argument, others) in SHELLS.items()
    }
    calls["add"] = {"a": 1, "b": 2.0}

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


async def run(name: str, version: str, client: Any) -> Row:
    """Run a client against a session of its own: a program's `Harness`, or a coroutine function of address and key."""
    tokenizer = program_tokenizer()
    model = ScriptedClient(policy(tokenizer), tokenizer=tokenizer)
    async with Gateway(client=model, tokenizer=tokenizer) as gateway:
        session = gateway.open()
        if isinstance(client, Harness):
            exit_code = await start(name, client, session)
        else:
            exit_code = await client(session.anthropic_url, session.key) or 0
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


async def start(name: str, harness: Harness, session: Session) -> int | None:
    """Run a program to its end; what it said is printed where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        values = {
            "prompt": "Run echo hi with the shell" if name in PROGRAMS else "Say hi", "base_url": session.base_url,
            "anthropic_url": session.anthropic_url, "google_url": session.google_url, "key": session.key,
            "home": folder,
        }  # fmt: skip
        harness = harness.fill(values)
        for file, text in harness.files.items():
            (home / file).parent.mkdir(parents=True, exist_ok=True)
            (home / file).write_text(text)
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "LANG": "C.UTF-8", **harness.environment}
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


def clients(pythons: list[str]) -> Iterator[tuple[str, str | None, Any]]:
    """Name, version and start of every client; no version where it is absent."""
    for name, package, client, stream in SDKS:
        yield name, metadata.version(package), lambda url, key, c=client, s=stream: c(url, key, QUESTIONS, stream=s)
    for name, package, source, *dialect in FRAMEWORKS:
        python, version = next(((p, v) for p in pythons if (v := version_in(p, package))), ("", None))
        environment = {
            "BASE_URL": "{base_url}", "ANTHROPIC_URL": "{anthropic_url}", "KEY": "{key}",
            "DIALECT": dialect[0] if dialect else "chat",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it asks a server for prices first
        }  # fmt: skip
        files = {"program.py": programs.HEAD + source}  # in a file: some read their own source
        yield name, version, Harness(command=(python, "{home}/program.py"), environment=environment, files=files)
    for name, (_, recipe) in PROGRAMS.items():
        if (found := find_program(name)) is None:
            yield name, None, None
            continue
        words, file = found
        if (python := file.with_name("python")).exists():  # a program of an environment
            version = version_in(str(python), {"openhands": "openhands-sdk"}.get(name, name))
        else:
            command = [words] if isinstance(words, str) else words
            said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
            version = (re.findall(r"\d+[.]\d+[.]\d+", said.stdout + said.stderr) or [""])[0]
        yield name, version, recipe(words)


def version_in(python: str, package: str) -> str | None:
    """Version of a distribution in an environment, or None."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip() or None


async def main() -> None:
    """Run every client that is there and print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--python", action="append", default=[], help="interpreter of an environment with frameworks")
    parser.add_argument("--only", default="", help="names that match this expression")
    args = parser.parse_args()
    print("| client | version | requests | extended | prompts exact | trained once | what it does |")
    print("|---|---|---|---|---|---|---|")
    rows, absent = [], []
    for name, version, client in clients(args.python or [sys.executable]):
        if version is None:
            absent.append(name)
        elif re.search("openai, Chat" if args.quick else args.only, name):
            rows.append(await run(name, version, client))
            print(rows[-1].markdown(), flush=True)
    print_figures("gateway_clients", rows=[asdict(row) for row in rows], not_installed=absent)


if __name__ == "__main__":
    asyncio.run(main())
