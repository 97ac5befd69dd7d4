"""Reading requests: checks of JSON values, and the fields and parts that dialects share."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from ...tool_parsers.values import JSONError, load_json
from ...trajectory import Call, Image, Message, Result
from ...trajectory.message import join_parts
from ..canonical import Read
from ..exact_json import dumps
from .wire import Refused, Unshown

T = TypeVar("T")

_MOST_IGNORED = 20  # names of unknown fields that are reported


def quote(value: Any) -> str:
    """A value as an error names it, cut to a length that can be read."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def label(name: str) -> str:
    """A name given by a client, fit for a header and for counting."""
    return "".join(character if " " < character < "\x7f" else "?" for character in name[:64]) or "?"


_NAMES = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


def want(kind: type[T], value: Any, where: str) -> T:
    """The value, which must be of this kind: an object, an array or a string."""
    if not isinstance(value, kind):
        got = _NAMES.get(type(value), "a number")
        raise Refused(f"{where} must be {_NAMES[kind]}, got {got}", param=where)
    return value


def as_list(value: Any, where: str) -> list[Any]:
    """The value, an array; a single object is one of that (Google's servers take it so)."""
    return [value] if isinstance(value, dict) else want(list, value, where)


def want_role(value: Any, where: str, *roles: str) -> str:
    """The value, one of these roles."""
    if value not in roles:
        raise Refused(f"{where}.role is {quote(value)}, expected {', '.join(roles[:-1])} or {roles[-1]}", param=where)
    return str(value)


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {
    bool: TypeAdapter(bool), float: TypeAdapter(FiniteFloat), int: TypeAdapter(int),
}  # fmt: skip


def want_scalar(kind: type[T], value: Any, where: str) -> T:
    """The value as a boolean or a number, also if it is given as text or as 100.0: SGLang and vLLM read it so."""
    with suppress(ValidationError):
        if kind is bool or not isinstance(value, bool):
            scalar: T = _ADAPTERS[kind].validate_python(value)
            return scalar
    words = {bool: "true or false", float: "a number", int: "an integer"}[kind]
    raise Refused(f"{where} must be {words}, got {quote(value)}", param=where)


def want_flag(value: Any, where: str) -> bool:
    """The value, a boolean; None is false."""
    return value is not None and want_scalar(bool, value, where)


def want_count(value: Any, where: str) -> int | None:
    """The value, a positive integer, or None."""
    if value is None:
        return None
    with suppress(Refused):
        if (count := want_scalar(int, value, where)) > 0:
            return count
    raise Refused(f"{where} must be a positive integer, got {quote(value)}", param=where)


def want_stops(value: Any, where: str) -> tuple[str, ...]:
    """Stop strings: none, one or several."""
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else want(list, value, where)
    stops = tuple(want(str, text, where) for text in texts)
    if not all(stops):
        raise Refused(f"{where} holds an empty string, which would end every reply at once", param=where)
    return stops


def check_modalities(value: Any, where: str) -> None:
    """Refuse kinds of output but text, in capitals or not."""
    if value and [str(kind).lower() for kind in want(list, value, where)] != ["text"]:
        raise Refused(f"{where} is {quote(value)}: replies are text", param=where)


def tool_spec(name: Any, description: Any, schema: Any, where: str) -> dict[str, Any]:
    """A Strands tool spec."""
    text = want(str, description, f"{where}.description") if description is not None else ""
    schema = {"type": "object", "properties": {}} if schema is None else want(dict, schema, f"{where}.parameters")
    return {"name": want(str, name, f"{where}.name"), "description": text, "inputSchema": {"json": schema}}


def read_choice(value: Any) -> str:
    """`auto`, `none`, `required` or the name of a tool, from OpenAI's or Anthropic's `tool_choice`."""
    if value is None or isinstance(value, str):
        return value or "auto"
    choice = want(dict, value, "tool_choice")
    if (kind := choice.get("type")) in ("auto", "none"):
        return str(kind)
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else choice.get("name")
    return name if isinstance(name, str) else "required"


def json_format(value: Any, where: str) -> dict[str, Any]:
    """A structured format (`json_schema`, `json_object`, `text`) as a grammar.

    The schema stands in `schema`, or in `json_schema.schema` as Chat Completions has it.
    """
    form = want(dict, {"type": "text"} if value is None else value, where)
    kind = form.get("type")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": '{"type": "object"}'}
    if kind == "json_schema":
        holder = want(dict, form["json_schema"], f"{where}.json_schema") if "json_schema" in form else form
        return {"json_schema": dumps(want(dict, holder.get("schema"), f"{where}.schema")).decode()}
    raise Refused(f"{where}.type must be text, json_object or json_schema, got {quote(kind)}", param=where)


_SAME_NAMES = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
)  # fmt: skip
SAMPLING_NAMES = {**{name: name for name in _SAME_NAMES}, "seed": "sampling_seed"}
"""Sampling parameters of clients, and SGLang's names for them."""

_UNSET: tuple[Any, ...] = (None, False, "", [], {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Top-level fields of a dialect's requests, by how the gateway treats them.

    A field that changes the meaning of the messages is read or refused, never ignored.

    Attributes:
        read: Obeyed.
        quiet: Ignored without a word: billing, caching, display, and reasoning, which is up to the chat template.
        named: Ignored and named in the answer, as fields are that no list has: they would change how a reply is
            sampled elsewhere.
        vendor_tools: They bring tools that the vendor runs, which are left out and counted.
        refused: Refused, with what to do instead.
        of_tools: Fields of a tool's definition that are read or quiet; others are named.
    """

    read: frozenset[str]
    quiet: frozenset[str]
    named: frozenset[str] = frozenset()
    vendor_tools: frozenset[str] = frozenset()
    refused: Mapping[str, str]
    of_tools: frozenset[str]


SHARED_FIELDS = Fields(
    read=frozenset((*SAMPLING_NAMES, "model", "n", "parallel_tool_calls", "return_token_ids", "stream", "tools")),
    quiet=frozenset(),
    refused={"input_ids": "the gateway holds the ids of every conversation; send messages"},
    of_tools=frozenset({"description", "name", "parameters", "strict"}),
)
"""Fields that have the same name in every dialect."""
_NAME_A_HISTORY = dict.fromkeys(
    ("conversation", "previous_response_id", "thread"), "nothing is held under it; send the whole history"
)
"""Fields by which some dialect names a history that its server holds, refused where a dialect does not read them."""


def refuse_fields(
    value: Mapping[str, Any], refused: Mapping[str, str], where: str = "", spelled: Mapping[str, str] | None = None
) -> None:
    """Refuse an object in which one of these fields is set; `spelled` has the client's names of them."""
    for field, words in refused.items():
        if value.get(field) not in _UNSET:
            name = (spelled or {}).get(field, field)
            raise Refused(f"{where}{name} is not supported: {words}", code="unsupported_parameter", param=name)


def common_fields(
    body: Mapping[str, Any],
    fields: Fields,
    read_tool: Callable[[Mapping[str, Any], str], dict[str, Any] | str],
    spelled: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The fields of a `WireRequest` that every dialect spells alike, tools included.

    Args:
        fields: The fields of the dialect.
        read_tool: The spec of a tool, or the type that is left out.
        spelled: The client's names of fields that have other names here.

    Raises:
        Refused: A field that changes the meaning of the messages cannot be obeyed, or the request asks for several
            samples. Two different tools have one name: calls would be ambiguous.
    """
    spelled = spelled or {}
    held = {name: words for name, words in _NAME_A_HISTORY.items() if name not in fields.read}
    refuse_fields(body, {**SHARED_FIELDS.refused, **held, **fields.refused}, spelled=spelled)
    if body.get("n") is not None and want_scalar(int, body["n"], "n") != 1:
        raise Refused(f"n={quote(body['n'])}: one sample per request; ask again for another", param="n")
    known = (SHARED_FIELDS.read, fields.read, fields.quiet, fields.vendor_tools)
    is_set = [key for key, value in body.items() if value not in _UNSET]
    ignored = {label(key) for key in is_set if not any(key in names for names in known)}
    unknown = [key for key in is_set if key in fields.vendor_tools]
    named: dict[str, dict[str, Any]] = {}
    tools = []
    for index, item in enumerate(want(list, body.get("tools") or [], "tools")):
        read = read_tool(want(dict, item, f"tools[{index}]"), f"tools[{index}]")
        if isinstance(read, str):
            unknown.append(label(read))
        elif named.setdefault(read["name"], read) != read:
            raise Refused(f"two different tools are named {read['name']!r}", param="tools")
        else:
            tools.append(read)
            spec = next((held for key in ("function", "declaration") if isinstance(held := item.get(key), dict)), item)
            for key in spec.keys() - SHARED_FIELDS.of_tools - fields.of_tools:
                if spec[key] not in _UNSET:
                    ignored.add(label(f"tools.{key}"))
    is_parallel = body.get("parallel_tool_calls")
    if is_parallel is not None and not want_flag(is_parallel, "parallel_tool_calls"):
        ignored.add("parallel_tool_calls")
    sampling = {}
    for name, ours in SAMPLING_NAMES.items():
        if (value := body.get(name)) is not None:
            kind: type[float] = int if name in ("seed", "top_k") else float
            sampling[ours] = want_scalar(kind, value, spelled.get(name, name))
    return {
        "model": want(str, "" if body.get("model") is None else body["model"], "model"),
        "sampling": sampling,
        "spelled": {**spelled, **{ours: spelled.get(name, name) for name, ours in SAMPLING_NAMES.items()}},
        "stream": want_flag(body.get("stream"), "stream"),
        "token_ids": want_flag(body.get("return_token_ids"), "return_token_ids"),
        "ignored": tuple(sorted(ignored)[:_MOST_IGNORED]),
        "tools": tools,
        "unknown_tools": tuple(unknown),
    }


# ---- content ------------------------------------------------


class Thought(NamedTuple):
    """Reasoning of the history, and the index of the turn that its receipt proves."""

    text: str
    receipt: int | None = None


Piece = str | Image | Result | Call | Thought
ReadPart = Callable[[Mapping[str, Any], str], Piece]

_HELD: dict[str, tuple[type[Any], ...]] = {
    "system": (str,),
    "user": (str, Image, Result),
    "assistant": (str, Call, Thought),
}
_HELD_WORDS = {"system": "text only", "user": "text, images and results of tools", "assistant": "text and calls"}


def system_of(content: Any, where: str, read_part: ReadPart, read: Read) -> str:
    """The system prompt, if the request has one (otherwise None), with the system messages in front of its history."""
    message = message_of("system", read_content([] if content is None else content, where, read_part), where)
    return "\n".join(filter(None, (message.text, *read.system)))


def message_of(
    role: str,
    pieces: Sequence[Piece],
    where: str,
    *,
    glue: str = "\n",
    receipt: int | None = None,
    of_tools: bool = False,
) -> Message:
    """A message of these pieces; `glue` joins texts. A `developer` is a system message.

    `of_tools`: tools made the pieces, so that in the place of an image the model can be told why it is not shown.
    """
    role = "system" if role == "developer" else role
    held = (*_HELD[role], Image) if of_tools and role == "system" else _HELD[role]
    if not all(isinstance(piece, held) for piece in pieces):
        raise Refused(f"{where}: a message of role {role} holds {_HELD_WORDS[role]}", param=where)
    thoughts = [piece for piece in pieces if isinstance(piece, Thought)]
    return Message(
        role=role,
        parts=join_parts([piece for piece in pieces if isinstance(piece, str | Image)], glue),
        reasoning=glue.join([thought.text for thought in thoughts if thought.text]),
        calls=tuple([piece for piece in pieces if isinstance(piece, Call)]),
        results=tuple([piece for piece in pieces if isinstance(piece, Result)]),
        receipt=next((thought.receipt for thought in thoughts if thought.receipt is not None), receipt),
    )


def is_of_tools(role: str, before: Sequence[Read]) -> bool:
    """True for a message with output of tools: a tool's own, and any but the model's right behind it."""
    last = before[-1].message if before else None
    return role == "tool" or (role != "assistant" and last is not None and bool(last.results))


def read_content(content: Any, where: str, read_part: ReadPart, *, of_tools: bool = False) -> list[Piece]:
    """Content (a text, a part, or a list of parts), piece by piece.

    Args:
        where: Name of the content in errors.
        of_tools: Tools made it: a text may be a part, and one that cannot be shown becomes an image with that problem.
    """
    if content is None:
        raise Refused(f"{where} is missing", param=where)
    pieces: list[Piece] = []
    for index, item in enumerate([content] if isinstance(content, str) else as_list(content, where)):
        place = f"{where}[{index}]"
        try:
            is_text = isinstance(item, str) and (of_tools or content is item)
            pieces.append(item if is_text else read_part(want(dict, item, place), place))
        except Unshown as unshown:
            if not of_tools:
                raise
            pieces.append(Image(b"", "part", unshown.reason))
    return pieces


def unexpected_part(kind: Any, where: str) -> Refused:
    """The refusal of a part of an unsupported type."""
    return Unshown(f"a {quote(kind)} part is not supported; send text or images", where)


def image_of_url(url: Any, where: str) -> Image:
    """An image given as a data URL."""
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")  # a file's id stands elsewhere
    if not (comma and head.startswith("data:image/") and head.endswith(";base64")):
        raise Unshown("an image must be a base64 data URL: the gateway fetches nothing", where)
    return image_of_text(head[len("data:image/") : -len(";base64")], data, where)


def image_of_text(kind: str, data: Any, where: str) -> Image:
    """An image given as base64 text, in either alphabet."""
    try:
        return Image(base64.b64decode(data.replace("-", "+").replace("_", "/"), validate=True), kind)
    except (AttributeError, ValueError):
        raise Unshown("the image is not base64", where) from None


def call_of(call_id: Any, name: Any, arguments: Any, where: str) -> Call:
    """A call of the history. Text that is not a JSON object, or gives a key twice, is kept unchanged."""
    if isinstance(arguments, str):
        with suppress(JSONError):
            value = load_json(arguments) if arguments.strip() else {}
            arguments = value if isinstance(value, dict) else arguments
    arguments = {} if arguments is None else arguments
    return Call(want(str, call_id, f"{where}.id"), want(str, name, f"{where}.name"), arguments)


def result_of(call_id: Any, content: Sequence[Piece], where: str, *, failed: bool = False) -> Result:
    """A result."""
    parts = [piece for piece in content if isinstance(piece, str | Image)]
    return Result(want(str, call_id, where), join_parts(parts), failed)
