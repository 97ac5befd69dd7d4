"""Values as models print them: strict JSON, and bare texts decoded by the declared type of their parameter.

Strict JSON follows RFC 8259, and every consumer understands it alike. Python's decoder lets duplicate keys, NaN
and overflowing numbers pass, each a silent change of the text.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import cached_property
from typing import Any, NoReturn
from urllib.parse import unquote, urldefrag, urljoin

_BLANK = re.compile(r"[ \t\n\r]*")
_SPACE = re.compile(r"\s*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_ZERO = re.compile(r"-?[0.]+(?:[eE].*)?")
_PLAIN_DECODER = json.JSONDecoder()
_FIRST_WINDOW = 1024
_TOO_DEEP = "nested too deeply"
MAX_DEPTH = 100
"""Objects and lists inside each other: consumers read about 200 levels, and arguments travel inside messages."""
_LONGEST_LITERAL = 12  # "-Infinity", or an escaped surrogate pair

ToolSchemas = Iterable[Mapping[str, Any]]
"""Strands tool specs (`name`, `inputSchema`) or chat-template tools (`{"type": "function", "function": {...}}`)."""


class CallError(ValueError):
    """The text is not a call of the format.

    Attributes:
        name: The tool's name; None where `guess_name` is to find it in the text.
        position: Offset up to which the text was read.
    """

    def __init__(self, message: str, name: str | None = None, position: int = 0) -> None:
        super().__init__(message)
        self.name, self.position = name, position


def error_at(expected: str, text: str, at: int, name: str | None = None) -> CallError:
    """The error of a text in which something unexpected stands at an offset."""
    excerpt = text[at : at + 40]
    return CallError(f"{f'found {excerpt!r}' if excerpt else 'the call ends'} where {expected} was expected", name, at)


def skip_space(text: str, position: int) -> int:
    """Offset of the first character at or behind `position` that is not white space."""
    match = _SPACE.match(text, position)
    return match.end() if match else position


def is_name(name: str) -> bool:
    """True if the text can be a name without quotes: not empty, no blanks or control characters, no tag."""
    return name.isprintable() and not set(name) & set(" <>{}\"'") and bool(name)


def is_key(name: str) -> bool:
    """True if the text can be a parameter's name inside a tag: not empty, no control characters, no tag."""
    return name.isprintable() and not set(name) & set("<>") and bool(name)


def add_value(values: dict[str, Any], key: str, value: Any, tool: str | None = None, position: int = 0) -> None:
    """Add the value of a parameter; `CallError` if it has one already."""
    if key in values:
        raise CallError(f"the parameter {key!r} is given twice", tool, position)
    values[key] = value


def read_items(
    text: str,
    position: int,
    brackets: str,
    read_item: Callable[[int], int],
    *,
    skip: Callable[[str, int], int] = skip_space,
) -> int:
    """Read items with commas between them, each by a function that gives its end; returns the offset behind all.

    Raises:
        CallError: A bracket or a comma is missing.
    """
    opening, closing = brackets[0], brackets[1]
    if not text.startswith(opening, position):
        raise error_at(opening, text, position)
    position = skip(text, position + 1)
    if text.startswith(closing, position):
        return position + 1
    while True:
        position = skip(text, read_item(position))
        if text.startswith(closing, position):
            return position + 1
        if not text.startswith(",", position):
            raise error_at(f", or {closing}", text, position)
        position = skip(text, position + 1)


# ---- strict JSON


class JSONError(CallError):
    """The text is not strict JSON; the message says why, without naming the text."""


def load_json(text: str, what: str | None = None, name: str | None = None) -> Any:
    """Decode one JSON value.

    Args:
        what: Subject and verb of the error's sentence, such as "the call is".
        name: The tool's name, for the error.

    Raises:
        JSONError: Syntax errors, trailing text, duplicate keys, NaN or infinite numbers, lone surrogates, more than
            `MAX_DEPTH` levels.
    """
    try:
        value = STRICT_DECODER.decode(text)
        # The count is cheap, and hardly ever so high that the levels have to be walked.
        if text.count("{") + text.count("[") > MAX_DEPTH and is_too_deep(value):
            raise JSONError(_TOO_DEEP)
        if _SURROGATE.search(text) and _has_lone_surrogate(value):
            raise JSONError("a \\u escape is half of a surrogate pair")
        return value
    except JSONError as error:
        reason = str(error)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at character {error.pos + 1}"
    except RecursionError:
        reason = _TOO_DEEP
    except ValueError:  # int() refuses thousands of digits
        reason = "a number has too many digits"
    raise JSONError(reason if what is None else f"{what} not valid JSON: {reason}", name)


def load_arguments(text: str, name: str) -> dict[str, Any]:
    """Decode the arguments of a call; `JSONError`, a sentence about them, if they are not a JSON object."""
    return as_arguments(load_json(text, "the arguments are", name), name)


def as_arguments(value: Any, name: str) -> dict[str, Any]:
    """The decoded arguments of a call; `JSONError` if they are not a JSON object."""
    if not isinstance(value, dict):
        raise JSONError("the arguments are not a JSON object", name)
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


def is_too_deep(value: Any) -> bool:
    """True for a value of more than `MAX_DEPTH` levels."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        children = [node.values() if isinstance(node, dict) else node for node in level]
        level = [node for items in children for node in items if isinstance(node, dict | list)]
    return bool(level)


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        (twice, _), *_ = (Counter(key for key, _ in pairs) - Counter(value.keys())).items()
        raise JSONError(f"the key {twice[:100]!r} is given twice")
    return value


def _constant(name: str) -> NoReturn:
    raise JSONError(f"{name} is not a JSON value")


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise JSONError(f"the number {digits[:40]} is too large")
    if not value and not _ZERO.fullmatch(digits):
        raise JSONError(f"the number {digits[:40]} is too small: a double would be 0")
    return value


STRICT_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
"""Refuses, with `JSONError`, text that two consumers might read differently."""


# ---- texts and their declared types


ANY_TYPE = frozenset(("null", "boolean", "string", "integer", "number", "array", "object"))
"""The types of a parameter that is declared without one, as `@tool` declares `Any`."""

_CONTAINERS = frozenset(("array", "object"))
# Types implied by a schema without `type`, by its words.
_HINTS = {"object": ("properties", "required"), "array": ("items",), "string": ("pattern", "minLength", "maxLength")}


class ParameterTypes:
    """Looks up the JSON types a parameter may have; `tools` is None when the model's tools are not known."""

    def __init__(self, tools: ToolSchemas | None) -> None:
        self._tools = tools or ()

    @cached_property
    def _schemas(self) -> dict[str, _Schema]:  # few formats ask
        return {name: _Schema(schema) for name, schema in map(name_and_schema, self._tools) if name}

    @cached_property
    def _tool_names(self) -> frozenset[str]:
        return frozenset(name_and_schema(tool)[0] for tool in self._tools)

    def is_tool(self, name: str) -> bool:
        """True for the name of a declared tool."""
        return name in self._tool_names and bool(name)

    def of(self, tool: str, *path: str | None) -> frozenset[str]:
        """JSON type names the schema allows for a parameter, or a value inside of one; empty if it knows none.

        Args:
            path: The parameter's name, then the keys that lead to the value, None for an item of a list.
        """
        schema = self._schemas.get(tool)
        return (schema and schema.types_at(path)) or frozenset()

    def names(self, tool: str) -> dict[str, bool]:
        """The names of all properties in a tool's schema; True for those of the arguments themselves."""
        schema = self._schemas.get(tool)
        return {} if schema is None else {name: schema.at((name,)) is not None for name in schema.property_names()}


class _Schema:
    """A tool's schema: which types its words allow. References are resolved inside of it; nothing is fetched."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._types: dict[int, frozenset[str]] = {}  # by the identity of a schema, which `_inner` keeps alive
        self._inner: dict[tuple[int, str | None], Any] = {}
        self._at: dict[tuple[str | None, ...], Any] = {(): root}
        self._places: dict[str, Any] = {"": root}  # by `$id`, and by anchor
        self._bases: dict[int, str] = {}  # the address that references in an object are relative to, by its identity
        nodes: list[tuple[Any, str]] = [(root, "")]
        while nodes:
            node, base = nodes.pop()
            if isinstance(node, Mapping):
                if isinstance(node.get("$id"), str):
                    base, fragment = _address(base, node["$id"])
                    self._places[f"{base}#{fragment}" if fragment else base] = node
                for word in ("$anchor", "$dynamicAnchor"):
                    if isinstance(node.get(word), str):
                        self._places[f"{base}#{node[word]}"] = node
                self._bases[id(node)] = base
            if isinstance(node, Mapping | list):
                nodes += [(inner, base) for inner in (node.values() if isinstance(node, Mapping) else node)]

    def property_names(self) -> Iterator[str]:
        """The names of all properties, at any depth."""
        nodes: list[Any] = [self._root]
        while nodes:
            node = nodes.pop()
            if isinstance(node, Mapping):
                yield from node["properties"] if isinstance(node.get("properties"), Mapping) else ()
                nodes += node.values()
            elif isinstance(node, list):
                nodes += node

    def types_at(self, path: tuple[str | None, ...]) -> frozenset[str] | None:
        """Types of the value at a path of keys, None for an item; None when the schema does not speak of it."""
        schema = self.at(path)
        return None if schema is None else self._types_of(schema)

    def at(self, path: tuple[str | None, ...]) -> Any:
        """The schema of the value at a path; None when the schema does not speak of it."""
        if path not in self._at:
            schema = self._inside(self.at(path[:-1]), path[-1])
            # What is said of nothing inside a parameter, such as any object, may be anything.
            self._at[path] = {} if schema is None and len(path) > 1 else schema
        return self._at[path]

    def _inside(self, schema: Any, key: str | None) -> Any:
        """The schema of a property of a value of this schema, of an item for None; None if it does not speak of it."""
        if not isinstance(schema, Mapping):
            return None
        if (id(schema), key) in self._inner:
            return self._inner[id(schema), key]
        self._inner[id(schema), key] = None  # references may go in circles
        parts = _property_schemas(schema, key) if key is not None else [schema["items"]] if "items" in schema else []
        for name, branches in self._branches(schema):
            inner = [each for branch in branches if (each := self._inside(branch, key)) is not None]
            parts += inner if name in _ALL_HOLD or not inner else [{"anyOf": inner}]
        if not parts and key is not None and "unevaluatedProperties" in schema:
            parts = [schema["unevaluatedProperties"]]
        self._inner[id(schema), key] = {"allOf": parts} if parts else None
        return self._inner[id(schema), key]

    def _types_of(self, schema: Any) -> frozenset[str]:
        """Types of a value of this schema, all of them where it does not say."""
        if not isinstance(schema, Mapping):
            return ANY_TYPE
        if id(schema) in self._types:
            return self._types[id(schema)]
        self._types[id(schema)] = ANY_TYPE  # references may go in circles
        bounds = _own_types(schema)
        for name, branches in self._branches(schema):
            types = list(map(self._types_of, branches))
            bounds += types if name in _ALL_HOLD else [frozenset[str]().union(*types)]
        hinted = {kind for kind, words in _HINTS.items() if any(word in schema for word in words)}
        allowed = frozenset.intersection(*bounds) if bounds else frozenset(hinted) or ANY_TYPE
        self._types[id(schema)] = allowed | {"null"} if schema.get("nullable") is True else allowed
        return self._types[id(schema)]

    def _branches(self, schema: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
        """The words of a schema that bring in other schemas for the same value."""
        for name in _REFERENCES:
            if isinstance(schema.get(name), str):
                yield name, [self._resolve(schema, name)]
        for name in ("allOf", "anyOf", "oneOf"):
            if isinstance(schema.get(name), list) and schema[name]:
                yield name, schema[name]
        if "if" in schema:
            yield "if", [schema.get("then"), schema.get("else")]
        for name in ("dependentSchemas", "dependencies"):
            if isinstance(schema.get(name), Mapping):
                yield name, [*schema[name].values(), None]  # None: nothing that they depend on is given

    def _resolve(self, schema: Mapping[str, Any], word: str) -> Any:
        """The schema that a reference (`#/$defs/Point`, `#anchor`, `point.json`) leads to; None outside of this one."""
        url, fragment = _address(self._bases.get(id(schema), ""), schema[word])
        if fragment and not fragment.startswith("/"):
            target = self._places.get(f"{url}#{fragment}")
            if word == "$dynamicRef" and isinstance(target, Mapping) and target.get("$dynamicAnchor") == fragment:
                outermost = self._places.get(f"{self._bases[id(self._root)]}#{fragment}", target)
                return outermost if outermost.get("$dynamicAnchor") == fragment else target
            return target
        node = self._places.get(url)
        for part in fragment.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping):
                node = node.get(name)
            elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            else:
                return None
        return node


def _address(base: str, reference: str) -> tuple[str, str]:
    """The document that a reference in `base` names, and the place in it."""
    try:
        url, fragment = urldefrag(reference)
        return urljoin(base, url) if url else base, unquote(fragment)
    except ValueError:  # no address: it names nothing
        return reference, ""


def _own_types(schema: Mapping[str, Any]) -> list[frozenset[str]]:
    """The types that a schema's own words allow, word by word."""
    bounds: list[frozenset[str]] = []
    declared = schema.get("type")
    if isinstance(declared, str | list):
        names = [declared] if isinstance(declared, str) else declared
        bounds.append(frozenset(name for name in names if isinstance(name, str)))
    values = schema.get("enum") if "enum" in schema else [schema["const"]] if "const" in schema else None
    if isinstance(values, list):
        bounds.append(frozenset(map(type_of, values)))
    return [types | {"integer"} if "number" in types else types for types in bounds]


def _property_schemas(schema: Mapping[str, Any], key: str) -> list[Any]:
    """The schemas that a schema of an object has for one of its properties."""
    properties, patterns = schema.get("properties"), schema.get("patternProperties")
    parts: list[Any] = [properties[key]] if isinstance(properties, Mapping) and key in properties else []
    if isinstance(patterns, Mapping):
        parts += [value for pattern, value in patterns.items() if _is_found(pattern, key)]
    other = schema.get("additionalProperties")
    return parts if parts or other is None else [other]


_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# Words of which every branch holds; of others it is one of them.
_ALL_HOLD = frozenset((*_REFERENCES, "allOf"))


def _is_found(pattern: str, key: str) -> bool:
    try:
        return re.search(pattern, key) is not None
    except re.error:  # not of Python
        return False


def decode_printed(printed: str, types: frozenset[str]) -> Any:
    """The value a printed text stands for, by the declared types; the text itself where they do not fit.

    Templates print strings bare, other values as JSON, some booleans and None as Python does. A text that does not
    fit stays as it was written, so that the tool's own validation names it to the model.
    """
    stripped = printed.strip()
    is_any = types >= ANY_TYPE
    if not is_any:
        if "null" in types and stripped == "null":
            return None
        # A string may look like a number, but hardly like a whole list or object, where these are allowed, too.
        if not types or ("string" in types and (stripped[:1] not in ("[", "{") or types.isdisjoint(_CONTAINERS))):
            return printed
        if "null" in types and stripped == "None":
            return None
        if "boolean" in types and stripped in ("True", "False"):
            return stripped == "True"
    try:
        value = load_json(stripped)
    except JSONError:
        return printed
    kind = type_of(value)
    if kind == "number" and "number" not in types and "integer" in types and value.is_integer():
        return int(Decimal(stripped))  # 140.0 is an integer in JSON Schema; exact, where a double is not
    if "string" in types and not is_any and kind not in _CONTAINERS:
        return printed
    return value if kind in types and not (is_any and kind == "string") else printed


def name_and_schema(tool: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Name and parameter schema of a tool in one of the forms of `ToolSchemas`."""
    tool = tool.get("function", tool)
    schema = tool.get("inputSchema", tool.get("parameters"))
    if isinstance(schema, Mapping) and isinstance(schema.get("json"), Mapping):
        schema = schema["json"]
    return str(tool.get("name") or ""), schema if isinstance(schema, Mapping) else {}


# `bool` first: a truth value is an `int` as well.
_TYPES = (
    (bool, "boolean"),
    (str, "string"),
    (int, "integer"),
    (float, "number"),
    (list, "array"),
    (type(None), "null"),
)


def type_of(value: Any) -> str:
    """JSON Schema's name of a value's type."""
    return next((name for kind, name in _TYPES if isinstance(value, kind)), "object")
