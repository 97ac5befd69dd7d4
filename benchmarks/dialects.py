"""Rollouts played through the gateway by real clients, and how an endpoint that keeps only text would have read them.

A client gets every reply of a rollout in its dialect and sends the history back in its own words, each time to two
sessions: one that holds the rollout, and one without a memory, which renders the whole history with the chat template
and encodes it. A turn is changed when a prompt made so does not go on from the one before and the sampled ids.

    python -m benchmarks.dialects RUN --tokenizer NAME     # the counts of a saved run, as JSON
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata
from typing import Any, NoReturn

from strands_env.eval import read_results
from strands_env.eval.sample import EvalSample
from strands_env.eval.saved import SavedRun
from strands_sglang.conversation import Conversation, TurnRequest
from strands_sglang.conversation.messages import format_messages, format_tool_specs
from strands_sglang.exceptions import StrandsSGLangError
from strands_sglang.gateway import Gateway
from strands_sglang.gateway.dialects.wire import Refused
from strands_sglang.template import ChatTemplate
from strands_sglang.testing import Reply, ScriptedClient
from strands_sglang.tool_parsers import get_tool_parser

Chat = Mapping[str, Any]
"""A message as chat templates take it: `role`, `content`, `tool_calls`, `tool_call_id`."""

GO_ON = "Please go on."
"""Said behind a last reply, so that it comes back too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRollout:
    """A conversation, its tools as chat templates take them, and the sampled replies by the index of their message.

    `options` are those of its `Conversation`, such as `chat_template_kwargs`.
    """

    messages: Sequence[Chat]
    tools: Sequence[Chat] = ()
    replies: Mapping[int, Reply]
    options: Mapping[str, Any] = field(default_factory=dict)


def read_rollouts(
    samples: Iterable[EvalSample], *, system_prompt: str | None = None, tool_parser: str | None = None
) -> Iterator[PlayedRollout]:
    """The rollouts of samples, but those whose messages and sampled stretches are not the same turns.

    Args:
        system_prompt: For samples that did not record their own.
        tool_parser: Name of the tool parser; None chooses one that fits the chat template.
    """
    options = {"tool_parser": get_tool_parser(tool_parser)} if tool_parser else {}
    for sample in samples:
        seen, path = sample.step_result.observation, sample.step_result.main_trajectory
        if path is None or path.media:
            continue
        given = sample.action.task_context.conversation_history if seen.history is None else seen.history
        system = seen.system_prompt or system_prompt
        messages = format_messages([*given, *seen.messages], system)
        before = len(format_messages(given, system))
        places = [place for place, message in enumerate(messages) if place >= before and message["role"] == "assistant"]
        tokens = path.tokens
        sampled = [tokens.token_ids[part.start : part.end] for part in tokens.segments if part.is_output]
        if len(places) != len(sampled):
            continue
        replies = [Reply(ids=ids) for ids in sampled]
        if path.finish_reason == "length":
            replies[-1] = Reply(ids=sampled[-1], finish="length")
        yield PlayedRollout(
            messages=messages,
            tools=json.loads(seen.tools or "[]"),
            replies=dict(zip(places, replies, strict=True)),
            options=options,
        )


@dataclass(slots=True, kw_only=True)
class DialectTotals:
    """Turns and rollouts whose ids an endpoint without a memory would have changed.

    Attributes:
        kept_turns: Turns that the gateway's own next prompt goes on from, id by id.
        refused: Rollouts that the gateway refuses, because the chat template cannot express them.
    """

    turns: int = 0
    changed_turns: int = 0
    rollouts: int = 0
    changed_rollouts: int = 0
    kept_turns: int = 0
    refused: int = 0

    def add(self, held: Sequence[bool], read: Sequence[bool]) -> None:
        """A rollout: for each turn whether it changed in the gateway's session, and in the session without a memory."""
        self.turns += len(read)
        self.changed_turns += sum(read)
        self.rollouts += 1
        self.changed_rollouts += any(read)
        self.kept_turns += len(held) - sum(held)

    def to_dict(self) -> dict[str, int]:
        """JSON values."""
        return asdict(self)


# ---- clients ---------------------------------------------------------------------------------------------------------


class ChatCompletions:
    """The package `openai` with the history that its user keeps; the other dialects say where they differ."""

    title, package = "Chat Completions", "openai"

    def __init__(self, rollout: PlayedRollout) -> None:
        self.history: list[Any] = []
        self.max_tokens = max((len(reply.ids or ()) for reply in rollout.replies.values()), default=0) + 1
        self.tools = self.written_tools(rollout.tools)

    @classmethod
    def installed(cls) -> str | None:
        """The package with its version, None where it is not installed."""
        try:
            return f"{cls.package} {metadata.version(cls.package)}"
        except metadata.PackageNotFoundError:
            return None

    @classmethod
    def connect(cls) -> Any:
        """A client of the package; addresses and keys come later."""
        make = getattr(import_module(cls.package), f"Async{'OpenAI' if cls.package == 'openai' else 'Anthropic'}")
        return make(base_url="http://localhost", api_key="-", max_retries=0, timeout=600)

    @classmethod
    def refusal(cls) -> type[Exception]:
        """The package's error for a request that is refused."""
        error: type[Exception] = import_module(cls.package).BadRequestError
        return error

    def written_tools(self, tools: Sequence[Chat]) -> list[Any]:
        """Tools in the words of the dialect."""
        return list(tools)

    def say(self, message: Chat) -> None:
        """Append a message that was not sampled."""
        calls = [{**call, "function": _with_text(call["function"])} for call in message.get("tool_calls") or ()]
        self.history.append({**message, **({"tool_calls": calls} if calls else {})})

    async def ask(self, sdk: Any, session: Any) -> Any:
        """The model's reply to the history."""
        client = sdk.with_options(base_url=session.base_url, api_key=session.key)
        given = {"messages": self.history, "max_tokens": self.max_tokens, **_unless_empty(tools=self.tools)}
        return (await client.chat.completions.create(model="policy", **given)).choices[0].message

    def keep(self, reply: Any) -> list[str]:
        """Append a reply as the package's documentation does; returns the ids of its calls."""
        self.history.append(reply)
        return [call.id for call in reply.tool_calls or ()]


class _Messages(ChatCompletions):
    """The package `anthropic`."""

    title, package = "Messages", "anthropic"

    def __init__(self, rollout: PlayedRollout) -> None:
        super().__init__(rollout)
        self.system = ""

    def written_tools(self, tools: Sequence[Chat]) -> list[Any]:
        functions = [tool["function"] for tool in tools]
        return [
            {"name": f["name"], "description": f.get("description", ""), "input_schema": f["parameters"]}
            for f in functions
        ]

    def say(self, message: Chat) -> None:
        role, text = message["role"], message.get("content") or ""
        if role == "system" and not self.history:
            self.system = text
        elif role == "tool":
            result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": text}
            self.history.append({"role": "user", "content": [result]})
        else:
            content: list[Any] = [{"type": "text", "text": text}] if text else []
            for call in message.get("tool_calls") or ():
                given = {"name": call["function"]["name"], "input": call["function"]["arguments"]}
                content.append({"type": "tool_use", "id": call["id"], **given})
            self.history.append({"role": role, "content": content})

    async def ask(self, sdk: Any, session: Any) -> Any:
        client = sdk.with_options(base_url=session.anthropic_url, api_key=session.key)
        given = {"messages": self.history, "max_tokens": self.max_tokens}
        given |= _unless_empty(tools=self.tools, system=self.system)
        return await client.messages.create(model="policy", **given)

    def keep(self, reply: Any) -> list[str]:
        self.history.append({"role": "assistant", "content": reply.content})
        return [block.id for block in reply.content if block.type == "tool_use"]


class _Responses(ChatCompletions):
    """The package `openai`, with items instead of messages."""

    title = "Responses"

    def written_tools(self, tools: Sequence[Chat]) -> list[Any]:
        return [{"type": "function", "strict": False, **tool["function"]} for tool in tools]

    def say(self, message: Chat) -> None:
        role, text = message["role"], message.get("content") or ""
        if role == "tool":
            given = {"call_id": message["tool_call_id"], "output": text}
            self.history.append({"type": "function_call_output", **given})
            return
        if text or not message.get("tool_calls"):
            self.history.append({"role": role, "content": text})
        for call in message.get("tool_calls") or ():
            self.history.append({"type": "function_call", "call_id": call["id"], **_with_text(call["function"])})

    async def ask(self, sdk: Any, session: Any) -> Any:
        client = sdk.with_options(base_url=session.base_url, api_key=session.key)
        given = {"input": self.history, "max_output_tokens": self.max_tokens, **_unless_empty(tools=self.tools)}
        return await client.responses.create(model="policy", **given)

    def keep(self, reply: Any) -> list[str]:
        self.history += reply.output
        return [item.call_id for item in reply.output if item.type == "function_call"]


DIALECTS: Mapping[str, type[ChatCompletions]] = {
    "chat": ChatCompletions,
    "messages": _Messages,
    "responses": _Responses,
}
"""The dialects that are played, by their short names."""


def _with_text(function: Chat) -> dict[str, Any]:
    """A function call whose arguments are JSON text."""
    given = function["arguments"]
    return {**function, "arguments": given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)}


def _unless_empty(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


# ---- playing ---------------------------------------------------------------------------------------------------------


async def play(rollouts: Sequence[PlayedRollout], dialect: type[ChatCompletions], *, tokenizer: Any) -> DialectTotals:
    """Play rollouts, whose ids are of this tokenizer (Hugging Face style), through a dialect whose package is there."""
    totals = DialectTotals()
    async with dialect.connect() as sdk:
        for rollout in rollouts:
            try:
                held, read = await _prompts(rollout, dialect, sdk, tokenizer)
            except (dialect.refusal(), StrandsSGLangError):
                totals.refused += 1
                continue
            replies = [rollout.replies[index] for index in sorted(rollout.replies)]
            totals.add(_breaks(held, replies), _breaks(read, replies))
    return totals


class _WithoutMemory(Conversation):
    """Renders a history with the chat template alone; `text` is None where that fails. It answers nothing."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.text: str | None = None

    def prepare(self, request: TurnRequest) -> NoReturn:
        template = ChatTemplate.from_tokenizer(self.tokenizer)
        chat = format_messages(request.messages, request.system)
        tools = format_tool_specs(request.tools) or None
        with contextlib.suppress(Exception):  # a template raises anything
            kwargs = self.config["chat_template_kwargs"]
            self.text = template.render(chat, tools=tools, add_generation_prompt=True, **kwargs)
        raise Refused("read, and not answered")


Prompts = list[list[int] | None]


async def _prompts(
    rollout: PlayedRollout, dialect: type[ChatCompletions], sdk: Any, tokenizer: Any
) -> tuple[Prompts, Prompts]:
    """The prompts of the session that holds the rollout, and those without a memory; None for one that is refused."""
    held: Prompts = []
    read: Prompts = []
    call_ids: dict[str, str] = {}
    client, reply = dialect(rollout), Reply(text="Ok.")
    model = ScriptedClient(lambda *_: reply, tokenizer=tokenizer)
    options = {"client": model, "tokenizer": tokenizer, **rollout.options}

    async with Gateway(**options) as gateway:
        session = gateway.open()

        async def ask() -> Any:
            answer = await client.ask(sdk, session)
            held.append(model.requests[-1].input_ids)
            anew = _WithoutMemory(**options)
            with contextlib.suppress(dialect.refusal()):
                await client.ask(sdk, gateway.open(conversation=anew))
            read.append(None if anew.text is None else list(tokenizer.encode(anew.text, add_special_tokens=False)))
            return answer

        for index, message in enumerate(rollout.messages):
            if index in rollout.replies:
                reply = rollout.replies[index]
                recorded = [call["id"] for call in message.get("tool_calls") or ()]
                given = client.keep(await ask())
                call_ids |= dict.fromkeys(recorded, "") | dict(zip(recorded, given, strict=False))
            elif message["role"] == "tool" and (call_id := call_ids.get(message["tool_call_id"])) is not None:
                # A malformed call reached the client as text, so that it complains in words.
                client.say({**message, "tool_call_id": call_id} if call_id else {**message, "role": "user"})
            else:
                client.say(message)
        if len(rollout.messages) - 1 in rollout.replies:
            client.say({"role": "user", "content": GO_ON})
        await ask()
    return held, read


def _breaks(prompts: Prompts, replies: Sequence[Reply]) -> list[bool]:
    """For each reply whether the prompt behind it does not begin with the one before it and the sampled ids."""
    ends = [
        None if prompt is None else [*prompt, *(reply.ids or ())]
        for prompt, reply in zip(prompts, replies, strict=False)
    ]
    return [
        end is None or after is None or after[: len(end)] != end for end, after in zip(ends, prompts[1:], strict=True)
    ]


def main() -> None:
    """Play the rollouts of a run through every dialect whose package is installed, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder or .jsonl of the run")
    parser.add_argument("--tokenizer", help="tokenizer with a chat template (default: the run's)")
    args = parser.parse_args()
    saved = SavedRun.of(args.run)
    tokenizer = saved.tokenizer(args.tokenizer).tokenizer
    if not getattr(tokenizer, "chat_template", None):
        parser.error("histories are rendered again: name a tokenizer with a chat template with --tokenizer")
    totals = saved.drift(tokenizer)
    tool_parser = saved.options.get("tool_parser") or ("hermes" if saved.options.get("backend") == "local" else None)
    samples = read_results(saved.paths.results, with_tokens=True)
    rollouts = list(read_rollouts(samples, system_prompt=saved.system_prompt, tool_parser=tool_parser))
    dialects = {}
    for name, dialect in DIALECTS.items():
        client = dialect.installed()
        counts = asyncio.run(play(rollouts, dialect, tokenizer=tokenizer)) if client else None
        dialects[name] = counts and {"client": client, **counts.to_dict()}
    print(json.dumps({**(totals.to_dict() if totals else {}), "dialects": dialects}))


if __name__ == "__main__":
    main()
