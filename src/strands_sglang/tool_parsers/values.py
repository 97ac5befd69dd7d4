"""Values as models print them: strict JSON, and bare texts decoded by the declared type of their parameter.

Strict is what RFC 8259 allows and every consumer understands the same way. Python's decoder lets duplicate keys, NaN
and overflowing numbers pass, each a silent change of what was written.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, NoReturn

_BLANK = re.compile(r"[ \t\n\r]*")
_SPACE = re.compile(r"\s*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_PLAIN_DECODER = json.JSONDecoder()
_FIRST_WINDOW = 1024
_TOO_DEEP = "nested too deeply"
MAX_DEPTH = 100
"""Objects and lists inside each other: consumers read about 200 levels, and arguments travel inside messages."""
_LONGEST_LITERAL = 12  # "-Infinity", or an escaped surrogate pair

ToolSchemas = Iterable[Mapping[str, Any]]
"""Strands tool specs (`name`, `inputSchema`) or chat-template tools (`{"type": "function", "function": {...}}`)."""

_MOST_REFERENCES = 8  # a schema may refer to itself


class TagError(ValueError):
    """The text is not a call of the format, read up to `position`; `name` is the tool name if that was, else empty."""

    def __init__(self, message: str, name: str = "", position: int = 0) -> None:
        super().__init__(message)
        self.name, self.position = name, position


def skip_space(text: str, position: int) -> int:
    """Offset of the first character at or behind `position` that is not white space."""
    match = _SPACE.match(text, position)
    return match.end() if match else position


def is_name(name: str) -> bool:
    """True if the text can be a name without quotes: not empty, no blanks or control characters, no tag."""
    return name.isprintable() and not set(name) & set(" <>{}\"'") and bool(name)


def read_items(text: str, position: int, brackets: str, read_item: Callable[[int], int], name: str = "") -> int:
    """Read items with commas between them, each by a function that gives its end; returns the offset behind all.

    Raises:
        TagError: A bracket or a comma is missing; `name` is that of the tool.
    """
    opening, closing = brackets[0], brackets[1]
    if not text.startswith(opening, position):
        raise TagError(f"found {text[position : position + 40]!r} where {opening} was expected", name, position)
    position = skip_space(text, position + 1)
    if text.startswith(closing, position):
        return position + 1
    while True:
        position = skip_space(text, read_item(position))
        if text.startswith(closing, position):
            return position + 1
        if not text.startswith(",", position):
            found = text[position : position + 40]
            raise TagError(f"found {found!r} where , or {closing} was expected", name, position)
        position = skip_space(text, position + 1)


# ---- strict JSON


class JSONError(ValueError):
    """The text is not strict JSON; the message says why, without naming the text."""


def load_json(text: str) -> Any:
    """Decode one JSON value.

    Raises:
        JSONError: Syntax errors, trailing text, duplicate keys, NaN or infinite numbers, lone surrogates, more than
            `MAX_DEPTH` levels.
    """
    try:
        value = _STRICT_DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise JSONError(f"{error.msg} at character {error.pos + 1}") from None
    except JSONError:
        raise
    except RecursionError:
        raise JSONError(_TOO_DEEP) from None
    except ValueError:  # int() refuses thousands of digits
        raise JSONError("a number has too many digits") from None
    # The count is cheap, and hardly ever so high that the levels have to be walked.
    if text.count("{") + text.count("[") > MAX_DEPTH and isinstance(value, dict | list) and _is_too_deep(value):
        raise JSONError(_TOO_DEEP)
    if _SURROGATE.search(text) and _has_lone_surrogate(value):
        raise JSONError("a \\u escape is half of a surrogate pair")
    return value


def load_arguments(text: str) -> dict[str, Any]:
    """Decode the arguments of a call; `JSONError`, a sentence about them, if they are not a JSON object."""
    try:
        value = load_json(text)
    except JSONError as error:
        raise JSONError(f"the arguments are not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise JSONError("the arguments are not a JSON object")
    return value


def json_end(text: str, start: int) -> int | None:
    """Offset behind the JSON value that begins at `start` (blanks skipped), or None where there is none.

    Only the boundary matters here, so duplicate keys pass; the value itself goes to `load_json`.
    """
    start = skip_blank(text, start)
    size = _FIRST_WINDOW
    # The decoder's errors count the lines of all that was given to it, so a hostile text would take quadratic time.
    while True:
        window = text[start : start + size]
        is_cut = start + size < len(text)
        try:
            end = _PLAIN_DECODER.raw_decode(window)[1]
        except json.JSONDecodeError as error:
            near_the_cut = error.pos >= len(window) - _LONGEST_LITERAL or error.msg.startswith("Unterminated")
            if not (is_cut and near_the_cut):
                return None
        except (ValueError, RecursionError):
            return None
        else:
            if end < len(window) or not is_cut:
                return start + end
        size *= 4


def skip_blank(text: str, start: int) -> int:
    """Offset of the first character at or behind `start` that is not JSON white space."""
    match = _BLANK.match(text, start)
    return match.end() if match else start


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise JSONError(f"the key {key!r} is given twice")
            seen.add(key)
    return value


def _constant(name: str) -> NoReturn:
    raise JSONError(f"{name} is not a JSON value")


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise JSONError(f"the number {digits[:40]} is too large")
    return value


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        children = [node.values() if isinstance(node, dict) else node for node in level]
        level = [node for items in children for node in items if isinstance(node, dict | list)]
        if not level:
            return False
    return True


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


_STRICT_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)


# ---- texts and their declared types


class ParameterTypes:
    """Looks up the JSON types a parameter may have; `tools` is None when the model's tools are not known."""

    def __init__(self, tools: ToolSchemas | None) -> None:
        self._tools = tools or ()

    @cached_property
    def _schemas(self) -> dict[str, Mapping[str, Any]]:  # few formats ask
        return {name: schema for name, schema in map(_name_and_schema, self._tools) if name}

    def of(self, tool: str, parameter: str) -> frozenset[str]:
        """JSON type names the schema allows for the parameter; empty when it does not say."""
        root = self._schemas.get(tool)
        if root is None:
            return frozenset()
        properties = root.get("properties")
        schema = properties.get(parameter) if isinstance(properties, Mapping) else None
        return frozenset(_types(schema, root, _MOST_REFERENCES))


def decode_printed(printed: str, types: frozenset[str]) -> Any:
    """The value a printed text stands for, by the declared types; the text itself where they do not fit.

    Templates print strings bare, other values as JSON, some booleans and None as Python does. A text that does not
    fit stays as it was written, so that the tool's own validation names it to the model.
    """
    stripped = printed.strip()
    if "null" in types and stripped == "null":
        return None
    if not types or "string" in types:  # a string may look like a number
        return printed
    if "null" in types and stripped == "None":
        return None
    if "boolean" in types and stripped in ("True", "False"):
        return stripped == "True"
    try:
        value = load_json(stripped)
    except JSONError:
        return printed
    kind = _type_of(value)
    fits = kind in types or (kind == "integer" and "number" in types)
    return value if fits else printed


def _name_and_schema(tool: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    tool = tool.get("function", tool)
    schema = tool.get("inputSchema", tool.get("parameters"))
    if isinstance(schema, Mapping) and isinstance(schema.get("json"), Mapping):
        schema = schema["json"]
    return str(tool.get("name") or ""), schema if isinstance(schema, Mapping) else {}


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or depth == 0:  # references may go in circles
        return set()
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, list):
        return {name for name in declared if isinstance(name, str)}
    if isinstance(schema.get("$ref"), str):
        return _types(_resolve(schema["$ref"], root), root, depth - 1)
    if isinstance(schema.get("enum"), list):
        return {_type_of(value) for value in schema["enum"]}
    if "const" in schema:
        return {_type_of(schema["const"])}
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            branches = [_types(branch, root, depth - 1) for branch in schema[key]]
            return set().union(*branches) if all(branches) else set()  # an unknown branch may allow anything
    if isinstance(schema.get("allOf"), list):
        known = [types for branch in schema["allOf"] if (types := _types(branch, root, depth - 1))]
        return set.intersection(*known) if known else set()
    return {"object"} if "properties" in schema else {"array"} if "items" in schema else set()


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    if not reference.startswith("#/"):  # nothing is fetched
        return None
    node: Any = root
    for part in reference[2:].split("/"):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    # `bool` first: a truth value is an `int` as well.
    for kind, name in ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"
