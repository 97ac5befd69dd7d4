"""A step: render a conversation with a sentinel in its last assistant turn and cut where that turn ends."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from ..exceptions import TemplateError
from .chat_messages import (
    ArgumentForm,
    ChatMessage,
    ContentForm,
    calls_of,
    replace_arguments,
    with_arguments,
    with_content_form,
)
from .chat_template import ChatTemplate


class Plant(StrEnum):
    """A place for the sentinel in the copy of the assistant turn.

    A turn with calls is best planted without content: some templates print content again after the tool results, some
    drop the calls unless content is null, some cannot take null.
    """

    ARGUMENTS_NULL = "arguments, content null"
    ARGUMENTS_EMPTY = "arguments, content empty"
    CONTENT = "content"


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The end of an assistant turn of one shape, as one template prints it.

    Attributes:
        head: Constant text between the payload and the closer (such as the end of the call's mark-up).
        closer: End of the turn, normally the stop token; empty if the template prints nothing.
        is_opener: The closer is also the opener of the message that follows, so depends on its role.
        region: All text between the payload and the content of the first new message, when the shape was learned.
    """

    head: str
    closer: str
    is_opener: bool = False
    plant: Plant
    region: str

    @property
    def end(self) -> str:
        """Head and closer: the text between the payload and the delta."""
        return self.head + self.closer


class Vocabulary(NamedTuple):
    """Special tokens as text: those the engine stops on, and all of them."""

    stops: tuple[str, ...]
    specials: tuple[str, ...]

    @classmethod
    def from_tokens(cls, stops: Sequence[str], specials: Sequence[str]) -> Vocabulary:
        """Clean up lists of token texts."""
        unique_stops = tuple(dict.fromkeys(token for token in stops if token))
        return cls(unique_stops, tuple(dict.fromkeys([*unique_stops, *(token for token in specials if token)])))


# Random per process, so that no tool output can contain them; letters and digits only, so that no template escapes,
# trims or splits them; of both cases, so that one that changes the case is found out.
_SALT: Final = secrets.token_hex(8)
SENTINEL: Final = f"Qx{_SALT}Xq"


def marker(index: int) -> str:
    """Stand-in for the content of the new message number `index` while a shape is learned."""
    return f"Qy{index}n{_SALT}m{index}Yq"


CALL_ID: Final = "QZid%05d"
"""Nine ASCII alphanumerics, the strictest rule for call ids seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """The forms in which a template takes its input; found by the self-check.

    Attributes:
        content: Form of the content by role; roles that are missing take text.
        plants: Places for the sentinel in a turn with calls, best first.
    """

    arguments: ArgumentForm = ArgumentForm.OBJECT
    content: Mapping[str, ContentForm] = field(default_factory=dict)
    plants: tuple[Plant, ...] = tuple(Plant)

    def content_form(self, role: str) -> ContentForm:
        """Form of the content of a role."""
        return self.content.get(role, ContentForm.STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suffix:
    """Template text from the end of an assistant turn through the next generation prompt."""

    text: str
    boundary: Boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRenderer:
    """Renders and cuts single steps of one template with fixed tools and variables.

    `boundaries`, the learned ends of turns by shape, may be shared by renderers that differ in their tools only: each
    is checked against every rendering.
    """

    template: ChatTemplate
    tools: Sequence[Mapping[str, Any]] | None
    kwargs: Mapping[str, Any]
    vocabulary: Vocabulary
    forms: Forms = field(default_factory=Forms)
    boundaries: dict[tuple[Any, ...], Boundary] = field(default_factory=dict)

    def render(self, messages: Sequence[ChatMessage], *, generate: bool) -> str:
        """Render messages in the forms the template takes."""
        arguments, form = self.forms.arguments, self.forms.content_form
        shaped = [with_content_form(with_arguments(message, arguments), form) for message in messages]
        return self.template.render_as_given(shaped, tools=self.tools, add_generation_prompt=generate, **self.kwargs)

    def suffix(self, base: Sequence[ChatMessage], last: ChatMessage, new: Sequence[ChatMessage]) -> Suffix:
        """Render a step and cut behind the end of the assistant turn `last`; `base` is the history before it.

        Raises:
            TemplateError: The template raises, does not print the turn, or loses a new message.
        """
        leads_with_system = bool(base) and base[0]["role"] == "system"
        key = (_shape(last, new), self.tools is not None, leads_with_system, self.vocabulary.stops)
        boundary = self.boundaries.get(key)
        if boundary is None:
            boundary = self.boundaries[key] = self._learn_with_opener(base, last, new)
        tail = self._tail([*base, plant_sentinel(last, boundary.plant), *new], generate=True)
        if tail is None or not tail.startswith(boundary.end):
            boundary = self._learn(base, last, new)  # something the shape does not capture
            tail = self._tail([*base, plant_sentinel(last, boundary.plant), *new], generate=True)
            if tail is None or not tail.startswith(boundary.end):
                raise TemplateError("the end of the assistant turn depends on the content of the new messages")
        return Suffix(text=tail[len(boundary.end) :], boundary=boundary)

    def _tail(self, messages: Sequence[ChatMessage], *, generate: bool) -> str | None:
        """Text after the sentinel, None if the sentinel is not printed."""
        try:
            text = self.render(messages, generate=generate)
        except TemplateError:
            raise
        except Exception as error:  # templates raise all kinds
            raise TemplateError(f"the template rejects the step: {describe(error)}") from error
        at = text.rfind(SENTINEL)
        return None if at < 0 else text[at + len(SENTINEL) :]

    def _learn_with_opener(
        self, base: Sequence[ChatMessage], last: ChatMessage, new: Sequence[ChatMessage]
    ) -> Boundary:
        boundary = self._learn(base, last, new)
        if boundary.closer not in self.vocabulary.stops:
            return boundary
        # Does the end of the turn change with the role? Then it announces the message that follows, as GLM's does.
        other_role: ChatMessage = {"role": "user", "content": "x"}
        if new[0]["role"] == "user":
            call_id = next((call.get("id") for call in calls_of(last)), CALL_ID % 0)
            other_role = {"role": "tool", "name": "f", "content": "x", "tool_call_id": call_id}
        try:
            other = self._learn(base, last, [other_role]).closer
        except TemplateError:
            return boundary
        return replace(boundary, is_opener=other != boundary.closer and other in self.vocabulary.stops)

    def _learn(self, base: Sequence[ChatMessage], last: ChatMessage, new: Sequence[ChatMessage]) -> Boundary:
        marked = [{**message, "content": marker(i)} for i, message in enumerate(new)]
        rejected: TemplateError | None = None
        for plant in self.forms.plants if calls_of(last) else (Plant.CONTENT,):
            turn = plant_sentinel(last, plant)
            try:
                text = self.render([*base, turn, *marked], generate=True)
            except Exception as error:  # templates raise all kinds; another place for the sentinel may do
                rejected = TemplateError(f"the template rejects the step: {describe(error)}")
                rejected.__cause__ = error
                continue
            at = text.rfind(SENTINEL)
            if at < 0:
                continue
            tail = text[at + len(SENTINEL) :]
            region = tail[: min(_find_markers(tail, text, marked))]
            try:
                printed_last = self._tail([*base, turn], generate=False)
            except TemplateError:
                printed_last = None
            return find_boundary(region, printed_last, self.vocabulary, plant)
        if rejected is not None:
            raise rejected
        raise TemplateError("the template does not print the assistant turn")


def _find_markers(tail: str, text: str, marked: Sequence[ChatMessage]) -> list[int]:
    offsets = [tail.find(message["content"]) for message in marked]
    lost = [message for message, at in zip(marked, offsets, strict=True) if at < 0]
    if lost:
        roles = ", ".join(dict.fromkeys(repr(message["role"]) for message in lost))
        moved = all(message["content"] in text for message in lost)
        where = "prints before the assistant turn" if moved else "drops"
        raise TemplateError(f"the template {where} the new message(s) with role {roles}")
    return offsets


def plant_sentinel(message: ChatMessage, plant: Plant) -> ChatMessage:
    """A light copy of the assistant turn: same calls by id and name, tiny payloads, the sentinel in the last one."""
    content = {Plant.CONTENT: SENTINEL, Plant.ARGUMENTS_NULL: None, Plant.ARGUMENTS_EMPTY: ""}[plant]
    out: dict[str, Any] = {"role": message["role"], "content": content}
    arguments = {"a": "x" if plant is Plant.CONTENT else SENTINEL}
    if calls := calls_of(message):
        out["tool_calls"] = [replace_arguments(call, arguments) for call in calls]
    return out


def _shape(last: ChatMessage, new: Sequence[ChatMessage]) -> tuple[Any, ...]:
    """Kind of the turn and the roles that follow; runs longer than two are collapsed."""
    roles: list[str] = []
    for message in new:
        if roles[-2:] != [message["role"]] * 2:
            roles.append(message["role"])
    return (min(len(calls_of(last)), 2), *roles)


def describe(error: BaseException) -> str:
    """A line on an error that a template raised."""
    text = " ".join(str(error).split())
    return text if type(error).__module__.startswith("jinja2") and text else f"{type(error).__name__}: {text}"


# ---- the end of a turn


def first_token(text: str, among: Sequence[str]) -> tuple[int, str] | None:
    """Leftmost token in a text with its position, the longest of those that start there."""
    # The longer one first: `<|im_end|>` may be an addition to `<|im`.
    best = min(((text.find(token), -len(token), token) for token in among if token in text), default=None)
    return None if best is None else (best[0], best[2])


def common_prefix(a: str, b: str) -> int:
    """Length of the longest common prefix."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    return next(i for i in range(limit) if a[i] != b[i])


def find_boundary(region: str, printed_last: str | None, vocabulary: Vocabulary, plant: Plant) -> Boundary:
    """Find head and closer of a turn.

    Args:
        region: Text between the payload of the turn and the content of the message that follows.
        printed_last: Text after the payload where the turn is the last message, or None if that does not render.
    """
    hit = first_token(region, vocabulary.stops)
    if hit is None and printed_last is not None:
        hit = _replaced_closer(region, printed_last, vocabulary.specials)
        if hit is None:
            # The special token that is the very last thing of the turn, printed alike where the turn is not last.
            end = printed_last.rstrip()
            final = max((token for token in vocabulary.specials if end.endswith(token)), key=len, default=None)
            hit = (len(end) - len(final), final) if final is not None and region.startswith(end) else None
    if hit is not None:
        at, closer = hit
        return Boundary(head=region[:at], closer=closer, plant=plant, region=region)
    head = _shared_end(region, printed_last or "")
    # A special token that is not the last thing of the turn opens the next block.
    opener = first_token(head, vocabulary.specials)
    head = head if opener is None else head[: opener[0]]
    return Boundary(head=head.rstrip(), closer="", plant=plant, region=region)


def _shared_end(region: str, printed_last: str) -> str:
    """The text printed both when the turn is last and when it is not: it belongs to the turn."""
    shared = region[: common_prefix(printed_last, region)]
    if shared == printed_last:
        return shared
    # What follows happens to start alike (" Speech" and " Speaker"): only whole words and brackets are shared.
    if shared[-1:].isalnum() and region[len(shared) : len(shared) + 1].isalnum():
        shared = shared.rstrip("".join({c for c in shared if c.isalnum()}))
    return shared.rstrip("<[{(|#")


def _replaced_closer(region: str, printed_last: str, specials: Sequence[str]) -> tuple[int, str] | None:
    """The special token that takes the place of the one that ends the turn when it is last.

    gpt-oss prints `<|return|>` at the end of the conversation and `<|end|>` inside it. Only a special token that is the
    last thing of the turn is taken for its end.
    """
    last = first_token(printed_last, specials)
    if last is None:
        return None
    at, token = last
    if printed_last[at + len(token) :].strip() or not region.startswith(printed_last[:at]):
        return None
    inside = first_token(region[at:], specials)
    return (at, inside[1]) if inside is not None and inside[0] == 0 else None


# ---- a printed call, for tool parsers to be tried on


_LONE_USER: ChatMessage = {"role": "user", "content": "Hello."}


def printed_call(step: StepRenderer, name: str, arguments: Mapping[str, Any], call_id: str | None = None) -> str | None:
    """Text between the header of an assistant turn with this one call and the end of the turn; None if not printed."""
    call_id = call_id or CALL_ID % 1
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
    answer: ChatMessage = {"role": "tool", "tool_call_id": call_id, "name": name, "content": "Done."}
    turn: ChatMessage = {"role": "assistant", "content": "", "tool_calls": [call]}
    try:
        suffix = step.suffix([_LONE_USER], turn, [answer])
    except TemplateError:
        return None
    closer = suffix.boundary.closer
    # An end of turn that the engine does not stop on is part of the call's mark-up.
    end = (closer if closer in step.vocabulary.stops else "") + suffix.text
    texts = [
        _print_turn(step, {**turn, "content": content}, plant, answer, end) for plant, content in _CONTENTS.items()
    ]
    return min((text for text in texts if text is not None), key=len, default=None)


_CONTENTS = {Plant.ARGUMENTS_EMPTY: "", Plant.ARGUMENTS_NULL: None}
# A tag, recipient or word at the end of a text that is read backwards: a search for its start would try every place.
_OPENING = re.compile(r"[\w/]*[|｜]?[<\[]|[\w.-]*=\w+ |[\w.-]+")


def _print_turn(step: StepRenderer, turn: ChatMessage, plant: Plant, answer: ChatMessage, end: str) -> str | None:
    """The call as printed in a turn with content null or empty; some templates print it with one of them only."""
    try:
        if SENTINEL not in step.render([_LONE_USER, plant_sentinel(turn, plant), answer], generate=True):
            return None
        whole = step.render([_LONE_USER, turn, answer], generate=True)
    except Exception:  # templates raise all kinds; the other content may do
        return None
    if not whole.endswith(end):
        return None
    whole = whole[: len(whole) - len(end)]
    return whole[_start(step, whole) :]


def _start(step: StepRenderer, whole: str) -> int:
    """Offset of the call: after the generation prompt, or at the first difference from a turn with text."""
    starts = [0]
    try:
        prompt = step.render([_LONE_USER], generate=True)
        if whole.startswith(prompt):
            starts.append(len(prompt))
    except Exception:  # not every template renders a lone user message
        pass
    try:
        turn: ChatMessage = {"role": "assistant", "content": SENTINEL}
        same = whole[: common_prefix(whole, step.render([_LONE_USER, turn, _LONE_USER], generate=True))]
        opening = _OPENING.match(same[::-1])  # two tags or recipients may start alike
        starts.append(len(same) - (opening.end() if opening else 0))
    except Exception:  # nor this
        pass
    return max(starts)
