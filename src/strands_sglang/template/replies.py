"""Replies as a chat template prints them: the texts a model samples for reasoning, visible text and calls.

Past replies with known parts are rendered and cut where the generation prompt and the turn end. What stands around the
parts is the frame, and readers of replies are proved on them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ..exceptions import TemplateError
from .chat_messages import ChatMessage
from .chat_template import REASONING_FIELDS
from .control_tokens import pattern_of
from .step import CALL_ID, Boundary, StepRenderer, common_prefix, first_token

THOUGHT: Final = "Rsn7XQ"
SAID: Final = "Said7XQ"
TOOL_NAME: Final = "lookup"
_ASKED: Final = "Usr1XQ"
_TAG: Final = re.compile(r"</?[^<>\s]{1,64}>|\[/?[A-Z][A-Z_ ]{1,32}\]")


def argument_of(number: int) -> dict[str, str]:
    """Arguments of call `number` of a printed reply, counted from 1."""
    return {"q": f"Arg{number}XQ"}


def call_turn(*numbers: int, content: str = "", **extra: Any) -> ChatMessage:
    """An assistant turn with one call for each number."""
    calls = [
        {"id": CALL_ID % n, "type": "function", "function": {"name": TOOL_NAME, "arguments": argument_of(n)}}
        for n in numbers
    ]
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {}), **extra}


def tool_result(number: int, prefix: str = "R") -> ChatMessage:
    """The result of a call."""
    return {"role": "tool", "tool_call_id": CALL_ID % number, "name": TOOL_NAME, "content": f"{prefix}{number}XQ"}


def try_render(step: StepRenderer, messages: Sequence[ChatMessage], *, generate: bool) -> str | None:
    """The rendered messages, or None if the template raises: for a probe that is an answer."""
    try:
        return step.render(messages, generate=generate)
    except Exception:  # templates raise all kinds
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedReply:
    """A reply as printed, from the end of the generation prompt to the end of the turn.

    Attributes:
        in_reasoning: The text starts in the reasoning block that the generation prompt opens.
        thought, said: The reasoning and the visible text in it; empty if it has none.
        calls: Number of its calls, see `argument_of`.
    """

    text: str
    in_reasoning: bool
    thought: str
    said: str
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedReplies:
    """The replies that one template prints with given variables.

    Attributes:
        tags: Texts that open and close reasoning; None if the template prints no past reasoning, or nothing around it.
        opens: The generation prompt begins a reasoning block.
        opening: The rest of the opening tag, where the generation prompt ends inside it.
        specials: The special and added tokens of the tokenizer, as text.
    """

    replies: tuple[PrintedReply, ...] = ()
    tags: tuple[str, str] | None = None
    opens: bool = False
    opening: str = ""
    specials: tuple[str, ...] = ()

    def has_marker(self, text: str) -> bool:
        """True if a special token stands in a text, or a tag that looks like one."""
        return bool(_tokens(text, self.specials))


class _Form(NamedTuple):
    """A rendered reply: the text up to its first part, and from there to the end of the turn."""

    before: str
    rest: str
    thought: str
    said: str
    calls: int


def print_replies(step: StepRenderer, opened: tuple[str, str] | None) -> PrintedReplies:
    """Render replies of all kinds; a kind that the template refuses, or whose parts it does not print, is left out.

    Args:
        opened: Tags of the reasoning block that the generation prompt opens, where they are known by name.
    """
    user: ChatMessage = {"role": "user", "content": _ASKED}
    _, asked, prompt = (try_render(step, [user], generate=True) or "").rpartition(_ASKED)
    if not asked:
        return PrintedReplies()
    stem, specials = prompt.rstrip(), step.vocabulary.specials
    forms = list(dict.fromkeys(_forms(step, user)))
    tags, opens, opening = _reasoning(forms, prompt, specials)
    opens = opens or opened is not None
    closing = next((each[1] for each in (opened, tags) if each is not None), "")
    replies: dict[PrintedReply, None] = {}
    for form in forms:
        follows, start = form.before.startswith(stem), _reply_start(form.before, prompt, specials)
        if start is None or (opening and not follows):
            continue
        before = form.before[len(stem) if follows else start :]
        follows = follows or (opens and tags is not None and tags[0] == _only_prompted(form.before, stem))
        text, inside = before + form.rest, opens and follows
        # It cannot follow the prompt, which has closed the block of this reasoning, or opened one.
        if (not follows and not before.strip()) if form.thought else (inside and closing not in text):
            continue
        reply = PrintedReply(text=text, in_reasoning=inside, thought=form.thought, said=form.said, calls=form.calls)
        replies[reply] = None
    # Some templates print the text beside a call as reasoning.
    thoughts = {reply.text for reply in replies if reply.thought and not reply.said}
    kept = [reply for reply in replies if reply.thought or reply.text.replace(SAID, THOUGHT) not in thoughts]
    return PrintedReplies(replies=tuple(kept), tags=tags, opens=opens, opening=opening, specials=specials)


def _reasoning(forms: list[_Form], prompt: str, specials: tuple[str, ...]) -> tuple[tuple[str, str] | None, bool, str]:
    """Tags of reasoning, True if the prompt opens it, and the rest of the opening tag behind the prompt."""
    # Plain text behind the reasoning shows best where that ends.
    thoughtful = min(
        (each for each in forms if each.thought), key=lambda form: (form.calls, not form.said), default=None
    )
    if thoughtful is None:
        return None, False, ""
    stem = prompt.rstrip()
    others = [form for form in forms if not form.thought and (form.said, form.calls) == thoughtful[3:]]
    tags = _tags(thoughtful, others, prompt, specials)
    if tags is None or not thoughtful.before.startswith(stem):
        return tags, tags is not None and tags[0] == _only_prompted(thoughtful.before, stem), ""
    left = thoughtful.before[len(stem) :].strip()
    following = [form.before[len(stem) :] for form in others if form.before.startswith(stem)]
    if left and others and not following:  # no reply without reasoning can follow: the prompt has begun it
        return (stem[max(_tokens(stem, specials), default=len(stem)) :] + left, tags[1]), True, left
    return tags, not left and all(tags[1] in before for before in following), ""


# The parts of the replies that are rendered: number of calls, reasoning, text.
_KINDS: Final = (
    (0, "", SAID),
    (0, THOUGHT, SAID),
    *itertools.product((1,), ("", THOUGHT), ("", SAID)),
    (2, THOUGHT, ""),
)


def _forms(step: StepRenderer, user: ChatMessage) -> Iterator[_Form]:
    """Every kind of reply as it is printed when other messages follow, and when it is last."""
    boundaries: dict[int, Boundary] = {}
    for count, thought, said in _KINDS:
        if count and step.tools is None:
            continue
        numbers = range(1, count + 1)
        thoughts = dict.fromkeys(REASONING_FIELDS, thought) if thought else {}
        turn = call_turn(*numbers, content=said, **thoughts)
        new = [tool_result(number) for number in numbers] or [{"role": "user", "content": "Usr3XQ"}]
        if count not in boundaries:
            try:
                boundaries[count] = step.suffix([user], turn, new).boundary
            except TemplateError:
                continue
        boundary, arguments = boundaries[count], [argument_of(number)["q"] for number in numbers]
        # An end of turn that the engine does not stop on is sampled as any other text.
        stops = step.vocabulary.stops
        is_sampled = boundary.closer != "" and boundary.closer not in stops
        ends = [boundary.end] if is_sampled and count else [boundary.head, *([boundary.end] if is_sampled else [])]
        for following in (new, []):
            printed = (try_render(step, [user, turn, *following], generate=False) or "").partition(_ASKED)[2]
            payload = arguments[-1] if arguments else said
            end = printed.find(payload) + len(payload)
            # Behind its calls, some print the text of a turn once more.
            found = {text: at for text in (thought, said, *arguments) if text and 0 <= (at := printed.find(text)) < end}
            if not all(text in found for text in (payload, *arguments)):
                continue
            first = min(found.values())
            parts = thought if thought in found else "", said if said in found else "", count
            # More than the boundary may stand behind a text beside reasoning, and less where the turn is last.
            behind = printed[end:].partition(new[0]["content"])[0]
            stop = first_token(behind, stops) if boundary.closer in stops else None
            whole = behind if not behind.strip() else None if stop is None else behind[: stop[0]]
            for tail in ends if whole is None else [whole]:
                if printed.startswith(tail, end):
                    yield _Form(printed[:first], printed[first : end + len(tail)], *parts)


def _reply_start(before: str, prompt: str, specials: tuple[str, ...]) -> int | None:
    """Offset in the text before the first part of a reply at which a model samples it, given the generation prompt.

    None if such a reply cannot follow: the prompt ends inside a header that has another word.
    """
    if before.startswith(prompt):
        return len(prompt)
    same = common_prefix(before, prompt)
    # Less where a token would be cut.
    same = next((at for at, token in _tokens(before, specials).items() if at < same < at + len(token)), same)
    # The prompt may print instructions in front of the header, or open reasoning behind it.
    starts = list(_tokens(prompt, specials))
    for end in (len(prompt), *reversed(starts)):
        word = re.search(r"\S+\s*\Z", prompt[max((at for at in starts if at < end), default=0) : end])
        if word is not None and word[0] in before[same:]:
            return before.index(word[0], same) + len(word[0])
    return None if prompt[same : same + 1].isalnum() and before[same : same + 1].isalnum() else same


def _tags(form: _Form, others: list[_Form], prompt: str, specials: tuple[str, ...]) -> tuple[str, str] | None:
    """Texts that open and close the reasoning of a reply, given replies without it; None where nothing marks it."""
    between, said, _ = form.rest[len(form.thought) :].partition(form.said or argument_of(1)["q"])
    ends = [at + len(token) for at, token in _tokens(between, specials).items()]
    if not said or not between.strip():
        return None
    # What a reply without reasoning prints as well belongs to its text, unless it prints an empty block. The first
    # token there is the end of the user's turn.
    shared = []
    for other in others if form.said else ():
        first = next((at + len(token) for at, token in _tokens(other.before, specials).items()), 0)
        shared.append(_common_end(between, other.before[first:], specials))
    most = len(between) - max((length for length in shared if between[: len(between) - length].strip()), default=0)
    before = form.before
    # Of several tokens, the one that resembles the opening ends the block: <open>think<sep> and <close>think<sep>.
    ends = [at for at in ends if at <= most] or [min(ends, default=len(between))]
    end = max(ends, key=lambda at: (_shared(before, between[:at]), -at))
    start = _reply_start(before, prompt, specials)
    if start is None:
        return None
    closing, opening = between[:end].strip(), before[start:].strip()
    stem = prompt.rstrip()
    only = _only_prompted(before, stem)
    if not opening and only:
        if closing not in only and only not in between:  # otherwise the prompt has closed the block, or opened the text
            opening = only
    elif not opening and before.startswith(stem):
        same = _shared(stem, closing)
        if re.search(r"\w", stem[len(stem) - same :]) or not any(other.before.startswith(stem) for other in others):
            starts = [at for at in _tokens(stem, specials) if at < len(stem) - same]
            opening = stem[max(starts, default=0) :]
    return (opening, closing) if opening and opening != closing else None


def _only_prompted(before: str, stem: str) -> str:
    """The end of the prompt that a past reply is printed without; empty where it is printed in full, or otherwise."""
    return stem[len(before.rstrip()) :].strip() if stem.startswith(before.rstrip()) else ""


def _shared(a: str, b: str) -> int:
    """Length of the longest common suffix."""
    return common_prefix(a.rstrip()[::-1], b.rstrip()[::-1])


def _common_end(a: str, b: str, specials: tuple[str, ...]) -> int:
    """Length of the longest common suffix that cuts no token of `a`."""
    length = common_prefix(a[::-1], b[::-1])
    start = len(a) - length
    for at, token in _tokens(a, specials).items():
        if at < start < at + len(token):
            return len(a) - at - len(token)
    return length


def _tokens(text: str, specials: tuple[str, ...]) -> dict[int, str]:
    """Special tokens, and tags that look like such, by their offsets."""
    found = {match.start(): match.group() for match in pattern_of(specials).finditer(text)}
    covered = [range(at, at + len(token)) for at, token in found.items()]
    likes = {m.start(): m.group() for m in _TAG.finditer(text) if not any(m.start() in span for span in covered)}
    return dict(sorted({**found, **likes}.items()))
