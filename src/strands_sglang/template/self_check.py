"""The self-check: proves on probe conversations that a short rendering equals one of the full history.

Costs 5 to 30 ms; run once per template, variables, stop tokens and presence of tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ..exceptions import TemplateError
from .chat_messages import ArgumentForm, ChatMessage, ContentForm, HistoryPart
from .reasoning import KEEP_REASONING, opened_tags
from .replies import TOOL_NAME, argument_of, call_turn, print_replies, tool_result, try_render
from .report import Flag, Report, Shape, ShapeResult, TemplateVerdict
from .step import SENTINEL, Boundary, Forms, Plant, StepRenderer, plant_sentinel

SYSTEM_TEXT = "Sys5XQ."
TOOL_TEXT = "Tool5XQ."

_FUNCTION = {
    "name": TOOL_NAME,
    "description": TOOL_TEXT,
    "parameters": {
        "type": "object",
        "properties": {"q": {"type": "string", "description": "What to look up."}},
        "required": ["q"],
    },
}


def probe_tools(like: Sequence[Any]) -> list[dict[str, Any]]:
    """A small tool, in OpenAI's form or flat as the given tools are: the check must not cost what 100 tools cost."""
    nested = all("function" in tool for tool in like)
    return [{"type": "function", "function": _FUNCTION}] if nested else [_FUNCTION]


SYSTEM: ChatMessage = {"role": "system", "content": SYSTEM_TEXT}
USER: ChatMessage = {"role": "user", "content": "Usr1XQ"}
NEXT: ChatMessage = {"role": "user", "content": "Usr3XQ"}


def reply(content: str, **extra: Any) -> ChatMessage:
    """An assistant turn without calls."""
    return {"role": "assistant", "content": content, **extra}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A step to try."""

    before: tuple[ChatMessage, ...]
    turn: ChatMessage
    new: tuple[ChatMessage, ...]


def probes(*, tools_present: bool) -> dict[Shape, list[Probe]]:
    """Probes by shape: short and long histories, with and without a system message."""
    turns: list[tuple[Shape, ChatMessage, tuple[ChatMessage, ...]]] = [(Shape.TEXT_USER, reply("Ans."), (NEXT,))]
    if tools_present:
        turns += [
            (Shape.CALL_TOOL, call_turn(1), (tool_result(1),)),
            (Shape.CALL_TOOL, call_turn(1, content="Let me see."), (tool_result(1, "Error: "),)),
            (Shape.CALLS_TOOLS, call_turn(1, 2), (tool_result(1), tool_result(2))),
            (Shape.CALL_TOOL_USER, call_turn(1), (tool_result(1), NEXT)),
            (Shape.CALL_USER, call_turn(1), (NEXT,)),
        ]
    again: ChatMessage = {"role": "user", "content": "Usr2XQ"}
    # In some templates a switch in an earlier message holds for the rest of the conversation.
    off: ChatMessage = {**USER, "content": "Usr1XQ /no_think /nothink"}
    on: ChatMessage = {**USER, "content": "Usr1XQ /think"}
    mid: tuple[ChatMessage, ...] = (reply("Mid."),)
    more: tuple[ChatMessage, ...] = (reply("More."), USER)
    if tools_present:
        mid = (call_turn(7), tool_result(7), *mid)
        more = (call_turn(8), tool_result(8), call_turn(9), tool_result(9))
    past, longer = (off, *mid, again), (on, *mid, again, *more)
    out: dict[Shape, list[Probe]] = {}
    for shape, turn, new in turns:
        for lead in ((), (SYSTEM,)):
            for body in ((USER,), past, longer):
                out.setdefault(shape, []).append(Probe(before=(*lead, *body), turn=turn, new=new))
    return out


_THOUGHT = "Think9XQ"
_THINKING = {"reasoning_content": _THOUGHT, "thinking": _THOUGHT}
_MARK = "Part7XQ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Outcome of a self-check, and the ends of turns learned since (`boundaries`), verified at every use."""

    report: Report
    forms: Forms
    boundaries: dict[tuple[Any, ...], Boundary] = field(default_factory=dict)


def self_check(step: StepRenderer) -> Knowledge:
    """Check a template; `step` has the actual tools, the check itself uses one small tool in their place."""
    tools = None if step.tools is None else probe_tools(step.tools)
    step = replace(step, tools=tools, boundaries={})
    step = _with(step, content=_content_forms(step))
    step = _with(step, arguments=_argument_form(step))
    trials = probes(tools_present=tools is not None)
    null, empty, content = Plant.ARGUMENTS_NULL, Plant.ARGUMENTS_EMPTY, Plant.CONTENT
    orders = [tuple(Plant)] if tools is None else [(null, empty, content), (empty, null, content)]
    candidates = [_with(step, plants=order) for order in orders]
    measured = [(*_measure(candidate, trials), candidate) for candidate in candidates]
    _, shapes, flags, step = min(measured, key=lambda each: each[0])
    stateful = any(result.history is HistoryPart.FULL for result in shapes.values()) or _numbers_media(step)
    history = HistoryPart.FULL if stateful else HistoryPart.SHORT
    flags |= _loss_flags(step)
    closers = {result.closer for result in shapes.values() if result.ok}
    if "" in closers:
        flags.add(Flag.NO_CLOSER)
    if closers - {""} - set(step.vocabulary.stops):
        flags.add(Flag.CLOSER_IS_NOT_A_STOP)
    prompt = try_render(step, [USER], generate=True)
    past = try_render(step, [USER, reply("Ans.")], generate=False)
    if prompt is not None and past is not None and not past.startswith(prompt):
        flags.add(Flag.GENERATION_PROMPT_NOT_IN_HISTORY)
    closed = try_render(step, [USER], generate=False)
    generation = ""
    if prompt is not None and closed is not None:
        generation = prompt[len(closed) :] if prompt.startswith(closed) else prompt[prompt.rfind("Usr1XQ") + 6 :]
    header = past.rpartition("Ans.")[0][-200:] if past is not None and "Ans." in past else None
    report = Report(
        verdict=_verdict(shapes, history),
        history=history,
        argument_form=step.forms.arguments,
        content_forms=step.forms.content,
        shapes=shapes,
        flags=frozenset(flags),
        prints_tools=step.tools is None or TOOL_TEXT in (prompt or TOOL_TEXT),
        generation_prompt=generation,
        reply_header=header,
        keep_reasoning_kwargs=_keep_reasoning(step) if Flag.DROPS_REASONING_AT_USER in flags else {},
        replies=print_replies(step, opened_tags(prompt or "", generation, header)),
    )
    return Knowledge(report=report, forms=step.forms)


def _with(step: StepRenderer, **forms: Any) -> StepRenderer:
    return replace(step, forms=replace(step.forms, **forms), boundaries={})


# ---- forms ----------------------------------------------------------------------------------------------------------


def _content_forms(step: StepRenderer) -> dict[str, ContentForm]:
    places: dict[str, Callable[[Any], list[ChatMessage]]] = {
        "system": lambda content: [{"role": "system", "content": content}, USER],
        "user": lambda content: [{"role": "user", "content": content}],
        "assistant": lambda content: [USER, {"role": "assistant", "content": content}, NEXT],
    }
    if step.tools is not None:
        places["tool"] = lambda content: [USER, call_turn(1), {**tool_result(1), "content": content}]
    forms: dict[str, ContentForm] = {}
    for role in ("user", "system", "assistant", "tool"):  # the user first: the others need one
        if role in places:
            as_given = _with(step, content={**forms, role: ContentForm.BOTH})
            forms[role] = _content_form(as_given, places[role])
    return forms


def _content_form(step: StepRenderer, place: Callable[[Any], list[ChatMessage]]) -> ContentForm:
    def show(content: Any) -> str | None:
        for form in ArgumentForm:
            trial = _with(step, arguments=form)
            text = try_render(trial, place(content), generate=True)
            if text is not None and _MARK in text:
                return text
        return None

    as_string, as_parts = show(_MARK), show([{"type": "text", "text": _MARK}])
    if as_parts is not None:
        # {'type': 'text', 'text': 'Part7XQ'}: the list was printed as Python or JSON source.
        before = as_parts[: as_parts.rfind(_MARK)].rstrip("\"'\\ ")
        if before.endswith((":", "=")) and before.rstrip(":= \"'\\").endswith("text"):
            as_parts = None
    if as_string is None:
        return ContentForm.STRING if as_parts is None else ContentForm.PARTS
    return ContentForm.STRING if as_parts is None else ContentForm.BOTH


def _argument_form(step: StepRenderer) -> ArgumentForm:
    for plant in (Plant.ARGUMENTS_NULL, Plant.ARGUMENTS_EMPTY):
        for form in ArgumentForm:
            trial = _with(step, arguments=form)
            printed = try_render(trial, [USER, plant_sentinel(call_turn(1), plant), tool_result(1)], generate=True)
            if printed is not None and SENTINEL in printed:
                return form
    return ArgumentForm.OBJECT


# ---- shapes ---------------------------------------------------------------------------------------------------------


def _measure(
    step: StepRenderer, trials: Mapping[Shape, list[Probe]]
) -> tuple[tuple[int, int, int], dict[Shape, ShapeResult], set[Flag]]:
    """The cost (refused shapes, shapes that need the full history, printed text: less is better), shapes and flags."""
    shapes: dict[Shape, ShapeResult] = {}
    flags: set[Flag] = set()
    length = 0
    for shape, tried in trials.items():
        rendered = same = 0
        closer = reason = ""
        for probe in tried:
            deltas: list[str | None] = []
            for history in HistoryPart:
                try:
                    suffix = step.suffix(history.select(probe.before), probe.turn, probe.new)
                    for content, role in [(message["content"], message["role"]) for message in probe.new]:
                        if content not in suffix.text and json.dumps(content)[1:-1] not in suffix.text:
                            raise TemplateError(
                                f"the template changes or loses the content of a message with role {role!r}"
                            )
                except TemplateError as error:
                    reason = reason or str(error)
                    deltas.append(None)
                else:
                    closer = suffix.boundary.closer
                    deltas.append(suffix.text)
            short, full = deltas
            if short is None and full is None:
                continue
            rendered += 1
            length += len(short or full or "")
            # One-sided: the template cannot express an earlier step of that history, so it cannot occur.
            same += short is None or full is None or short == full
            printed = full or short or ""
            flags |= {flag for flag, marks in _REPEATS.items() if any(mark in printed for mark in marks)}
        shapes[shape] = ShapeResult(
            answered=rendered,
            total=len(tried),
            history=None if not rendered else HistoryPart.SHORT if same == rendered else HistoryPart.FULL,
            closer=closer,
            reason=reason,
        )
    results = shapes.values()
    cost = (sum(not r.ok for r in results), sum(r.history is HistoryPart.FULL for r in results), length)
    return cost, shapes, flags


# The quoted word shows instructions on how to call a tool, which Command R+ repeats.
_REPEATS = {Flag.REPEATS_SYSTEM: (SYSTEM_TEXT,), Flag.REPEATS_TOOLS: (TOOL_TEXT, '"parameters"')}


def _numbers_media(step: StepRenderer) -> bool:
    """True if images or videos are numbered over the whole conversation, as Qwen's templates do on request."""
    for kind in ("image", "video"):
        message: ChatMessage = {"role": "user", "content": [{"type": kind}, {"type": "text", "text": "Usr1XQ"}]}
        before = (message, reply("Mid."), NEXT)
        with suppress(TemplateError):  # a template without media says nothing of them
            short, full = (step.suffix(part.select(before), reply("Ans."), [message]).text for part in HistoryPart)
            if short != full:
                return True
    return False


def _verdict(shapes: Mapping[Shape, ShapeResult], history: HistoryPart) -> TemplateVerdict:
    needed = [shapes[shape] for shape in (Shape.TEXT_USER, Shape.CALL_TOOL) if shape in shapes]
    if not all(shape.ok for shape in needed):
        return TemplateVerdict.UNSUPPORTED
    if all(shape.complete for shape in shapes.values()):
        return TemplateVerdict.EXACT if history is HistoryPart.SHORT else TemplateVerdict.EXACT_FULL
    return TemplateVerdict.PARTIAL


# ---- flags ----------------------------------------------------------------------------------------------------------


def _loss_flags(step: StepRenderer) -> set[Flag]:
    flags = set()
    spoken = (
        None
        if step.tools is None
        else try_render(step, [USER, call_turn(1, content=_MARK), tool_result(1)], generate=True)
    )
    if spoken is not None:
        flags |= {Flag.DROPS_TEXT_BESIDE_CALLS} if _MARK not in spoken else set()
        flags |= {Flag.DROPS_CALLS} if argument_of(1)["q"] not in spoken else set()
    if _drops_reasoning(step, reply("Ans.", **_THINKING), NEXT):
        flags.add(Flag.DROPS_REASONING_AT_USER)
    if step.tools is not None and _drops_reasoning(step, call_turn(1, **_THINKING), tool_result(1)):
        flags.add(Flag.DROPS_REASONING_AT_TOOL)
    return flags


def _drops_reasoning(step: StepRenderer, turn: ChatMessage, new: ChatMessage) -> bool:
    last = try_render(step, [USER, turn], generate=False)
    past = try_render(step, [USER, turn, new], generate=True)
    return last is not None and past is not None and _THOUGHT in last and _THOUGHT not in past


def _keep_reasoning(step: StepRenderer) -> dict[str, Any]:
    source = step.template.text(tools_present=step.tools is not None)
    for name, value in KEEP_REASONING:
        if name in source and name not in step.kwargs:
            trial = replace(step, kwargs={**step.kwargs, name: value})
            if not _drops_reasoning(trial, reply("Ans.", **_THINKING), NEXT):
                return {name: value}
    return {}


# ---- images: one placeholder each, in the order and the messages in which they stand


# Texts, and None for images, of the messages that are tried, by role.
_IMAGE_MARKS: dict[str, list[list[str | None]]] = {
    "user": [["Img0XQ", None, "Img1XQ", None, "Img2XQ"], ["Img3XQ"], [None, "Img4XQ"]],
    "tool": [["Img0XQ", None, "Img1XQ"], ["Img2XQ", None, "Img3XQ"]],
}


def image_problem(render: Callable[[list[ChatMessage]], str], placeholder: str, role: str) -> str | None:
    """The reason a template cannot be used with images in messages of a role; None where it can.

    Numbers beside images do no harm: they are printed from the whole history. An image may stand before or behind
    the texts of its message, because its placeholder (the text of the token that stands for it) is found anyway.
    """
    if role not in _IMAGE_MARKS:
        return f"is not known to print images in messages with role {role!r}: put them into user messages"
    messages = _IMAGE_MARKS[role]
    first, *_, last = [
        [{"type": "image"} if mark is None else {"type": "text", "text": mark} for mark in marks] for marks in messages
    ]
    if role == "user":
        probe = [{"role": "user", "content": first}, reply("Img3XQ"), {"role": "user", "content": last}]
    else:
        probe = [USER, call_turn(1, 2), {**tool_result(1), "content": first}, {**tool_result(2), "content": last}]
    try:
        printed = render(probe)
    except TemplateError as error:
        return f"refuses images in messages with role {role!r} ({error})"
    printed_marks = [
        None if match[0] == placeholder else match[0]
        for match in re.finditer(rf"{re.escape(placeholder)}|Img[0-9]XQ", printed)
    ]
    orders: tuple[Callable[[str | None], int], ...] = (  # as given, images first, images last
        lambda mark: 0,
        lambda mark: mark is not None,
        lambda mark: mark is None,
    )
    if any(printed_marks == [mark for marks in messages for mark in sorted(marks, key=order)] for order in orders):
        return None
    images, expected = printed_marks.count(None), sum(marks.count(None) for marks in messages)
    if images != expected:
        return f"prints {images} placeholders for {expected} images in messages with role {role!r}"
    return f"prints images in messages with role {role!r} in another order than they are given"
