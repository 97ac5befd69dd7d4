"""Text from outside that spells a control token, such as `<|im_end|>` in a web page a tool has fetched.

A chat template prints control tokens and content into one text, and encoding it turns both into control ids: a tool
result could end its turn and open one of the system. So the content is rendered with a random mark inside every token
it spells. The marks tell afterwards which control tokens the template printed itself and which came from the content;
the latter are encoded as ordinary text (`Rendered.literal`). Where nothing is spelled, nothing is done.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from ..exceptions import ControlTokenError
from .chat_messages import ChatMessage

_SALT: Final = secrets.token_hex(8)
_OPEN: Final = f"Qo{_SALT}Oq"
_CLOSE: Final = f"Qc{_SALT}Cq"
_MARKS: Final = re.compile(f"{_OPEN}|{_CLOSE}")
_TAG: Final = re.compile(r"</?\w+>")
_NEVER: Final = re.compile(r"(?!)")

Span = tuple[int, int]


class ControlTokens(StrEnum):
    """The policy for control tokens spelled out in the text of a message or a tool description."""

    SPLIT = "split"
    """Encoded as ordinary text: the model reads the same characters, and they control nothing."""
    ERROR = "error"
    """The step raises `ControlTokenError`."""
    ALLOW = "allow"
    """Becomes the control token, as in `apply_chat_template` of transformers and in SGLang's chat API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A rendered text.

    `literal` has the spans `(start, end)` of characters, in order, that spell control tokens and came from content:
    they have to be encoded as ordinary text.
    """

    text: str
    literal: tuple[Span, ...] = ()


@lru_cache(maxsize=64)
def pattern_of(tokens: tuple[str, ...]) -> re.Pattern[str]:
    """A pattern that finds the leftmost and longest of many tokens, in time that does not grow with their number."""
    tree: dict[str, Any] = {}
    for token in tokens:
        node = tree
        for character in token:
            node = node.setdefault(character, {})
        node[""] = {}
    return re.compile(_branches(tree)) if tree else _NEVER


def _branches(node: dict[str, Any]) -> str:
    ways = [re.escape(character) + _branches(below) for character, below in node.items() if character]
    if not ways:
        return ""
    joined = ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"
    return f"(?:{joined})?" if "" in node else joined


@dataclass(frozen=True, slots=True)
class ControlTexts:
    """The texts that act as control tokens, by where they stand.

    Prompts name tags on purpose ("reason inside <think> and </think>"), and models are trained on such prompts with
    the tags as tokens. Tool results are data: there, no token that the template prints may be spelled.

    Attributes:
        anywhere: Tokens flagged special, stop tokens, and added tokens that the template prints, tags excepted.
        in_results: These and the tags that the template prints (`<tool_call>`, `</tool_response>`, `<think>`).
    """

    anywhere: re.Pattern[str]
    in_results: re.Pattern[str]

    @classmethod
    def from_tokens(cls, control: Sequence[str], added: Sequence[str], source: str) -> ControlTexts:
        """Sort tokens: texts of special and stop tokens (`control`), of all added tokens, and the jinja `source`."""
        printed = [token for token in added if token in source and not token.isspace()]
        everywhere = [*control, *(token for token in printed if not _TAG.fullmatch(token))]
        return cls(_pattern(everywhere), _pattern([*everywhere, *printed]))

    def for_role(self, role: str) -> re.Pattern[str]:
        """Control tokens for content of a role."""
        return self.in_results if role == "tool" else self.anywhere


def _pattern(tokens: Sequence[str]) -> re.Pattern[str]:
    # One character alone cannot be marked inside, and no tokenizer has such a control token.
    return pattern_of(tuple(sorted({token for token in tokens if len(token.strip()) > 1})))


def mark(value: Any, pattern: re.Pattern[str]) -> Any:
    """Plain data with every control token in its texts marked; the same object if there is none."""
    # Nearly always there is none, and a look at the texts costs less than a copy of the messages.
    return _mark(value, pattern) if first_spelled(value, pattern) else value


def _mark(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(_mark_token, value)
    if isinstance(value, Mapping):
        return {_mark(key, pattern): _mark(item, pattern) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mark(item, pattern) for item in value]
    return value


def _mark_token(match: re.Match[str]) -> str:
    token = match.group()
    return f"{token[0]}{_OPEN}{token[1:-1]}{_CLOSE}{token[-1]}"


def first_spelled(value: Any, pattern: re.Pattern[str]) -> str:
    """A control token in the texts of plain data; empty if there is none."""
    waiting, texts = [value], list[str]()
    for item in waiting:
        kind = item.__class__
        if kind is str or isinstance(item, str):
            texts += (item,)
        elif kind is dict or isinstance(item, Mapping):
            waiting += item
            waiting += item.values()
        elif kind is list or isinstance(item, (list, tuple)):
            waiting += item
    found = pattern.search("\0".join(texts))  # one search: nearly always there is none, and no token has this character
    return found.group() if found else ""


def unmark(text: str) -> Rendered:
    """Take out the marks; `ControlTokenError` if a token is torn apart, so that it cannot be told from content."""
    if _OPEN not in text:
        return Rendered(text=text)
    pieces: list[str] = []
    spans: list[Span] = []
    length = end = 0
    start = -1
    for match in _MARKS.finditer(text):
        pieces.append(text[end : match.start()])
        length += len(pieces[-1])
        end = match.end()
        opens = match.group() == _OPEN
        if opens != (start < 0):
            raise ControlTokenError("the template changes a control token that a message spells")
        if opens:
            start = length - 1
        else:
            spans.append((start, length + 1))
            start = -1
    pieces.append(text[end:])
    if start >= 0:
        raise ControlTokenError("the template cuts a control token that a message spells")
    return Rendered(text="".join(pieces), literal=tuple(spans))


def render_marked(
    render: Callable[[Sequence[ChatMessage]], str],
    messages: Sequence[ChatMessage],
    controls: ControlTexts,
    policy: ControlTokens,
    *,
    tools_spell: bool = False,
) -> Rendered:
    """Render messages, telling control tokens of the template from those that content spells.

    `tools_spell`: the tools contain marks.

    Raises:
        ControlTokenError: A message spells one and the policy is `error`, or the template handles it specially.
    """
    if policy is ControlTokens.ALLOW:
        return Rendered(text=render(messages))
    results = [message for message in messages if message["role"] == "tool"]
    others = [message for message in messages if message["role"] != "tool"]
    if not first_spelled(results, controls.in_results) and not first_spelled(others, controls.anywhere):
        text = render(messages)
        return unmark(text) if tools_spell else Rendered(text=text)
    if policy is ControlTokens.ERROR:
        raise spelled_error(messages, controls)
    marked = [mark(message, controls.for_role(message["role"])) for message in messages]
    plain = unmark(render(messages)).text
    rendered = unmark(render(marked))
    if rendered.text != plain:
        # Templates look for their own mark-up in the assistant's text; they may interpret it.
        foreign = [old if old["role"] == "assistant" else new for old, new in zip(messages, marked, strict=True)]
        rendered = unmark(render(foreign))
    if rendered.text != plain:
        raise ControlTokenError(
            "the template treats a control token that a message spells in a special way, so it cannot be "
            "distinguished from the template's own; remove it from the message, or set control_tokens='allow'"
        )
    return rendered


def spelled_error(messages: Sequence[ChatMessage], controls: ControlTexts) -> ControlTokenError:
    """The error for messages that spell a control token."""
    spelled = ((message["role"], first_spelled(message, controls.for_role(message["role"]))) for message in messages)
    role, token = next((role, token) for role, token in spelled if token)
    return ControlTokenError(
        f"a message with role {role!r} spells the control token {token!r}; remove it, or set "
        "control_tokens='split' to encode it as ordinary text"
    )
