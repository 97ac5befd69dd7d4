"""Drift by program: turns of unmodified agent programs that a chat template alone would not give back.

    AGENT_CLIENTS_HOME=... python -m benchmarks.drift_programs FOLDER      # run the programs, keep what was seen
    python -m benchmarks.drift_programs --write benchmarks/drift.md              # the table, from what is kept

The programs are those of `tests/agent_programs.py`, as installed; the folder is that of `drift_families.py`. Each runs
an episode in a sandbox, against the gateway: a scripted model has its shell called once for every way of writing a
turn, with the tokenizer of the family. Every request is also rendered with the chat template alone, from what the
program sent. A turn is changed when that rendering of the next request does not begin with the rendering of its own and
the sampled ids. The counts are kept in `benchmarks/results/drift_programs.json`.
"""

from __future__ import annotations

import asyncio
import csv
import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.drift_families import RESULTS, backend_of, render_alone, tokenizer_of
from benchmarks.shape import keep_and_print
from tests.agent_programs import HOME, PROGRAMS, SHELLS, installed

from strands_env.core import Action
from strands_env.core.models import sglang_model_factory
from strands_env.environments import HarnessEnvironment
from strands_env.environments.harness.harness_env import DEFAULT_LIMITS
from strands_sglang.conversation import Conversation
from strands_sglang.testing import Reply, ScriptedClient

KEPT = RESULTS / "drift_programs.json"
FAMILIES = ("qwen2.5-7b-instruct", "qwen3-0.6b")
DIALECTS = {
    "claude-code": "Messages",
    "codex": "Responses",
    "opencode": "Chat Completions",
    "qwen-code": "Chat Completions",
}


def _call(name: str, arguments: dict[str, Any], **how: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, **how)}\n</tool_call>"


WAYS: dict[str, Callable[[str, dict[str, Any]], str]] = {
    "as printed": lambda name, given: f"I look.\n{_call(name, given)}",
    "compact JSON": lambda name, given: f"I look.\n{_call(name, given, separators=(',', ':'))}",
    "a blank line": lambda name, given: f"I look.\n\n{_call(name, given)}",
    "reasoning": lambda name, given: f"<think>\nA look.\n</think>\n\nI look.\n{_call(name, given)}",
}
"""The turns of the scripted model, in their order."""


class Model:
    """Writes one turn in each way, then an answer; what is asked without a shell gets a title."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        reasons = "reasoning_content" in tokenizer.chat_template
        self._todo = [way for way in WAYS if reasons or way != "reasoning"]
        self.ways: dict[int, str] = {}

    def __call__(self, input_ids: list[int], _: dict[str, Any]) -> Reply:
        text = self._tokenizer.decode(input_ids)
        name = next((name for name in SHELLS if f'"name": "{name}"' in text), None)
        if name is None:
            return Reply(text="A title.")
        done = len(self.ways)
        if done == len(self._todo):
            return Reply(text="Done.")
        way = self.ways[len(input_ids)] = self._todo[done]
        argument, others = SHELLS[name]
        return Reply(text=WAYS[way](name, {argument: f"echo {done}", **others}))


async def episode(program: str, tokenizer: Any) -> dict[str, Any]:
    """What became of every turn of an episode of a program, by its way: `kept` or `changed`."""
    words, file = installed(program)
    model = Model(tokenizer)
    seen: dict[Any, list[int]] = {}
    changed: dict[str, bool] = {}
    sample = Conversation.sample

    async def watched(self: Conversation, prepared: Any, **options: Any) -> Any:
        result, request = await sample(self, prepared, **options), prepared.request
        text = render_alone(tokenizer, request)
        rendered = seen[result.turn] = tokenizer.encode(text, add_special_tokens=False)
        before = result.turn.parent
        if before in seen and (way := model.ways.get(before.start + len(before.prompt_ids))) is not None:
            expected = seen[before] + list(before.completion.output_ids)
            changed[way] = rendered[: len(expected)] != expected
        return result

    client = ScriptedClient(model, tokenizer=tokenizer)
    python = file.with_name("python") if file.parent.name == "bin" else None
    env = HarnessEnvironment(
        model_factory=sglang_model_factory(client=client, tokenizer=tokenizer),
        harness=PROGRAMS[program][1](words),
        read_only=sorted({str(HOME), *(str(each.resolve()) for each in HOME.iterdir() if each.is_dir())}),
        python=None if python is None or not python.exists() else str(python),
        limits=replace(DEFAULT_LIMITS, wall_seconds=200.0),
        max_requests=20,
    )
    with patch.object(Conversation, "sample", watched):
        result = await env.rollout(Action(message="Look four times, then say that you are done."))
    gateway = result.observation.metrics["gateway"]
    print(program, result.termination_reason, changed, gateway["extension_rate"], flush=True)
    command = [words] if isinstance(words, str) else words
    printed = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    return {
        "program": program,
        "version": re.findall(r"\d+[.]\d+[.]\d+", printed)[0],
        "changed": changed,
        "kept_by_gateway": gateway["extension_rate"] == 1.0,
    }


def measure(folder: Path) -> list[dict[str, Any]]:
    """The episodes of all programs with all families."""
    with (folder / "index.tsv").open(encoding="utf-8", newline="") as file:
        entries = {entry["file"]: entry for entry in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}
    found = []
    for family in FAMILIES:
        entry, (package, backend) = entries[f"{family}.jinja"], backend_of(family) or (None, None)
        if package is None:
            raise SystemExit(f"the tokenizer of {family} is not installed")
        tokenizer = tokenizer_of(backend, entry, (folder / entry["file"]).read_text("utf-8"))
        found += [{"family": family, **asyncio.run(episode(program, tokenizer))} for program in DIALECTS]
    return found


def table(found: list[dict[str, Any]]) -> str:
    """The episodes as Markdown."""
    lines = [
        f"| template | program | dialect | {' | '.join(WAYS)} | the gateway |",
        "|---" * (4 + len(WAYS)) + "|",
    ]
    for each in found:
        told = {None: "–", True: "changed", False: "same"}
        cells = [told[each["changed"].get(way)] for way in WAYS]
        kept = "same" if each["kept_by_gateway"] else "changed"
        name = f"{each['program']} {each['version']}"
        lines.append(f"| {' | '.join([each['family'], name, DIALECTS[each['program']], *cells, kept])} |")
    turns = [changed for each in found for changed in each["changed"].values()]
    return "\n".join(lines) + f"\n\n{sum(turns)} of {len(turns)} turns change.\n"


if __name__ == "__main__":
    keep_and_print(__doc__, KEPT, measure, table, "drift_programs")
