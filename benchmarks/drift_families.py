"""Drift by family: what rendering a history again, and tokenising its text again, would change.

    python benchmarks/drift_families.py ../shared/data/chat_templates --tokenizer qwen3-=qwen3/tokenizer.json

The folder holds chat templates (`*.jinja`), `index.tsv` (file, family, special and stop tokens) and
`conversations.json`. For each template the recorded conversations are played turn by turn, as a client that keeps
messages plays them: the model's turn is what the template itself prints for it in the last place, so this is the least
that drifts. A turn counts as changed when the next prompt, rendered from the whole history, does not begin with the
last prompt and that turn, or when the template prints nothing of its call.

- as printed: the model writes exactly what the template prints;
- compact JSON: it writes the arguments of calls as JSON without spaces, as many models do;
- tokens: with a tokenizer of the family, turns whose text stays and whose tokens change when the conversation is
  encoded in one piece.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from strands_sglang.template import ChatTemplate

MARKER = "<!-- printed by benchmarks/drift_families.py -->\n"


@dataclass(slots=True)
class Count:
    """Changed of all turns, and of all rollouts."""

    turns: int = 0
    changed_turns: int = 0
    rollouts: int = 0
    changed_rollouts: int = 0

    def add(self, turns: list[bool]) -> None:
        """A rollout, by whether each of its turns changed."""
        self.turns += len(turns)
        self.changed_turns += sum(turns)
        self.rollouts += bool(turns)
        self.changed_rollouts += any(turns)

    def __str__(self) -> str:
        if not self.turns:
            return "– | –"
        return f"{self.changed_turns} of {self.turns} | {self.changed_rollouts} of {self.rollouts}"


@dataclass(slots=True)
class Row:
    """One template."""

    name: str
    family: str
    printed: Count = field(default_factory=Count)
    compact: Count = field(default_factory=Count)
    tokens: Count = field(default_factory=Count)
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """One model call and the next: the prompt, the model's turn, and the next prompt rendered from the history."""

    prompt: str
    reply: str
    next_prompt: str
    calls: tuple[dict[str, Any], ...]

    @property
    def is_lost(self) -> bool:
        """The template prints nothing of a call, so that the next prompt cannot hold the model's."""
        return any(call["name"] not in self.reply for call in self.calls)

    def is_changed(self, reply: str) -> bool:
        """The next prompt does not go on from this reply."""
        return self.is_lost or not self.next_prompt.startswith(self.prompt + reply)


def exchanges(template: ChatTemplate, conversation: dict[str, Any], tools: Any, stops: list[str]) -> Iterator[Exchange]:
    """The model calls of a conversation, but the last. Raises what the template raises."""
    messages = conversation["messages"]
    options = {"tools": tools, **conversation["kwargs"]}
    for i, message in enumerate(messages):
        if message["role"] != "assistant" or i + 1 == len(messages):
            continue
        following = next((j for j in range(i + 1, len(messages)) if messages[j]["role"] == "assistant"), len(messages))
        prompt = template.render(messages[:i], add_generation_prompt=True, **options)
        whole = template.render(messages[: i + 1], **options)
        shared = next((j for j, (one, other) in enumerate(zip(prompt, whole, strict=False)) if one != other), None)
        reply = whole[min(len(prompt), len(whole)) if shared is None else shared :]
        ends = [reply.find(stop) + len(stop) for stop in stops if stop in reply]
        yield Exchange(
            prompt=prompt,
            reply=reply[: min(ends)] if ends else reply.rstrip(),
            next_prompt=template.render(messages[:following], add_generation_prompt=True, **options),
            calls=tuple(call["function"] for call in message.get("tool_calls", ())),
        )


def measure(row: Row, template: ChatTemplate, conversations: dict[str, Any], stops: list[str], tokenizer: Any) -> None:
    """Count the turns of one template over all conversations."""
    tools = conversations["tools"]
    for name, conversation in conversations["conversations"].items():
        if name.startswith(("golden", "missing", "arguments")):  # variants of the others, for other tests
            continue
        try:
            played = list(exchanges(template, conversation, tools.get(conversation["tools"]), stops))
        except Exception:  # a template raises anything for a shape that it does not know
            row.refused += 1
            continue
        row.printed.add([each.is_changed(each.reply) for each in played])
        compact = [(each, _compact(each)) for each in played]
        if any(reply != each.reply for each, reply in compact):
            row.compact.add([each.is_changed(reply) for each, reply in compact])
        if tokenizer is not None:
            row.tokens.add([_tokens_change(each, tokenizer) for each in played])


def _compact(exchange: Exchange) -> str:
    reply = exchange.reply
    for call in exchange.calls:
        given = call["arguments"]
        spaced = json.dumps(given, ensure_ascii=False)
        reply = reply.replace(spaced, json.dumps(given, ensure_ascii=False, separators=(",", ":")))
    return reply


def _tokens_change(exchange: Exchange, tokenizer: Any) -> bool:
    """Prompt, reply and what follows, each encoded where it arises, against their text in one piece."""
    whole = exchange.prompt + exchange.reply
    if not exchange.next_prompt.startswith(whole):
        return False
    parts = (exchange.prompt, exchange.reply, exchange.next_prompt[len(whole) :])
    exact = [i for part in parts for i in tokenizer.encode(part, add_special_tokens=False).ids]
    return exact != tokenizer.encode(exchange.next_prompt, add_special_tokens=False).ids


def rows(folder: Path, tokenizers: dict[str, Any]) -> list[Row]:
    """All templates of a folder."""
    conversations = json.loads((folder / "conversations.json").read_text("utf-8"))
    found = []
    with (folder / "index.tsv").open(encoding="utf-8", newline="") as file:
        for entry in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            values = {name: json.loads(entry[name]) for name in ("bos_token", "eos_token") if entry[name]}
            template = ChatTemplate(
                (folder / entry["file"]).read_text("utf-8"),
                special_values=values,
                clock=lambda: datetime(2026, 11, 21, 12),
            )
            row = Row(name=entry["file"].removesuffix(".jinja"), family=entry["family"])
            tokenizer = next((t for prefix, t in tokenizers.items() if row.name.startswith(prefix)), None)
            measure(row, template, conversations, json.loads(entry["stop_tokens"] or "[]"), tokenizer)
            found.append(row)
    return sorted(found, key=lambda row: (row.family.lower(), row.name))


def table(found: list[Row]) -> str:
    """The rows as Markdown, and what they come to."""
    lines = [
        "| template | as printed: turns | rollouts | compact JSON: turns | rollouts "
        "| tokens: turns | rollouts | refused |",
        "|---|---|---|---|---|---|---|---|",
        *(f"| {row.name} | {row.printed} | {row.compact} | {row.tokens} | {row.refused or '–'} |" for row in found),
    ]
    shares = [row.printed.changed_turns / row.printed.turns for row in found]
    kept, lost = sum(share == 0 for share in shares), sum(share == 1 for share in shares)
    printed = [row for row in found if row.compact.turns]
    changed = sum(row.compact.changed_turns > 0 for row in printed)
    return "\n".join(lines) + (
        f"\n\n{len(found)} templates: {kept} keep every turn, {len(found) - kept - lost} change some turns, {lost} "
        f"change every turn. Of {len(printed)} that print calls as JSON, {changed} change arguments "
        "written without spaces."
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="chat templates, index.tsv, conversations.json")
    parser.add_argument(
        "--tokenizer", action="append", default=[], metavar="PREFIX=FILE", help="tokenizer.json of templates"
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace what follows the marker of a page")
    options = parser.parse_args()
    tokenizers = {}
    for given in options.tokenizer:
        from tokenizers import Tokenizer

        prefix, _, file = given.partition("=")
        tokenizers[prefix] = Tokenizer.from_file(file)
    printed = table(rows(options.folder, tokenizers))
    if options.write is None:
        print(printed)
    else:
        head, marker, _ = options.write.read_text("utf-8").partition(MARKER)
        options.write.write_text(f"{head}{marker or MARKER}\n{printed}\n", "utf-8")


if __name__ == "__main__":
    main()
