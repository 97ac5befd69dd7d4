"""Values as JSON: written so that they come back, compared by content, shown without secrets; their names.

A value becomes JSON in one of three ways:

- `exact`, which `restore` undoes (`StoredModel`, `JsonValues`): stored and read back, with bytes and lone surrogates. A
  model may write anything into its arguments, including text that looks like such an encoding; keys that do are
  escaped, so that reading gives back exactly the value written.
- `identity` (`plain`, `canonical`, `digest`, `differences`): the same bytes for equal content on every machine.
- `shown`: for people, without secrets, never read back. `readable` and `shown_text` are for values that may hold
  anything and have no names, such as messages.

`copy_data` copies messages; `name_of` and `call_name` are functions, classes and calls as text.
"""

from __future__ import annotations

import base64
import copy
import functools
import hashlib
import inspect
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeAlias
from uuid import UUID

import orjson
import pydantic_core
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationInfo

from strands_sglang.exceptions import refuse_unknown
from strands_sglang.secret_names import is_secret_name, without_secrets
from strands_sglang.trajectory.message import digest as digest_bytes

_AS_TEXT = (complex, date, time, timedelta, Decimal, Fraction, PurePath, UUID)
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_LONGEST = 160
_PART = 120
_ATOMS = frozenset({str, int, float, bool, type(None), bytes})  # immutable, so shared with a copy


def copy_data(value: Any) -> Any:
    """`copy.deepcopy` at a fraction of its time for the types of messages; a list that stands twice becomes two."""
    kind = type(value)
    if kind is dict:
        return {key: item if type(item) in _ATOMS else copy_data(item) for key, item in value.items()}
    if kind is list:
        return list(map(copy_data, value))
    return value if kind in _ATOMS else copy.deepcopy(value)


def canonical(value: Any) -> bytes:
    """JSON with sorted keys, so that equal values are equal bytes; `TypeError` for a value that is not JSON."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)


def strict_json(value: Any, options: int = 0) -> bytes | None:
    """JSON of a value of nothing but JSON values, the bytes that pydantic writes; None for any other.

    `orjson` refuses most others, and writes some in its own way, such as nan as null: these do not read back equal.
    None, too, for one of more levels than pydantic reads.
    """
    try:
        text = orjson.dumps(value, option=options | _STRICT)
        return text if pydantic_core.from_json(text) == value else None
    except (TypeError, ValueError):
        return None


def plain(value: Any, where: str = "it", leaf: Callable[[Any], Any] | None = None) -> Any:
    """The value as JSON values that depend on its content alone, so not on the order of a set.

    Args:
        value: JSON values, sets, bytes, numpy scalars and arrays, dataclasses, pydantic models, dates and the like.
        where: Its name in the error.
        leaf: Names a part that has no content, such as a function.

    Raises:
        TypeError: A part has no comparable content, and `leaf` is not given; the message names the part.
    """
    kind = type(value)
    if value is None or kind is bool or (kind is str and value.isascii()):  # most values, at a tenth of the cost
        return value
    if kind is list and not value:
        return []
    if kind is dict:
        items: dict[str, Any] = {}
        for name, item in value.items():
            if type(name) is not str or not name.isascii():
                break
            is_itself = item is None or (type(item) is str and item.isascii())
            items[name] = item if is_itself else plain(item, f"{where}.{name}", leaf)
        else:
            return items
    match value:
        case Enum():
            return plain(value.value, where, leaf)
        case str():
            return str(value) if _is_plain(value) else {"text": value.encode("utf-8", "surrogatepass").hex()}
        case int():
            return int(value) if -(2**63) <= value < 2**64 else {"int": str(int(value))}
        case float():
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        case bytes() | bytearray() | memoryview():
            return {"bytes": base64.b64encode(bytes(value)).decode()}
        case BaseModel():
            return plain(value.model_dump(), where, leaf)
        case Mapping():
            pairs = [(plain(name, where, leaf), plain(item, f"{where}.{name}", leaf)) for name, item in value.items()]
            if all(isinstance(name, str) for name in value):
                return {name if isinstance(name, str) else f"text:{name['text']}": item for name, item in pairs}
            return {"object": sorted(pairs, key=canonical)}
        case list() | tuple():
            return [plain(item, f"{where}[{number}]", leaf) for number, item in enumerate(value)]
        case set() | frozenset():
            return {"set": sorted((plain(item, where, leaf) for item in value), key=canonical)}
    if isinstance(value, _AS_TEXT):
        return {kind.__name__: str(value)}
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name), f"{where}.{item.name}", leaf) for item in fields(value)}
    if hasattr(value, "dtype") and hasattr(value, "tolist"):  # numpy, torch
        return plain(value.tolist(), where, leaf)
    if leaf is not None:
        return leaf(value)
    raise TypeError(f"{where} is {_shorten(repr(value))}, which has no comparable content")


def identity(value: Any, where: str = "it", leaf: Callable[[Any], Any] | None = None) -> bytes:
    """Bytes that are equal for equal content; arguments and errors are those of `plain`."""
    # Of JSON values `plain` changes nothing.
    return strict_json(value, orjson.OPT_SORT_KEYS) or canonical(plain(value, where, leaf))


def shown(value: Any) -> Any:
    """The value as JSON for people: parts without content by name, values of secret names left out."""

    def leaf(part: Any) -> str:
        config, name = getattr(part, "config", None), name_of(part)  # a model factory has a `config`
        return f"{name} {_argument(config)}" if isinstance(config, Mapping) else name

    return without_secrets(plain(value, leaf=leaf))


def name_of(value: Any) -> str:
    """Dotted name of a function, a class, or the class of an instance; of a `functools.partial` with its arguments."""
    if isinstance(value, functools.partial):
        try:
            names = list(inspect.signature(value.func).parameters)
        except (TypeError, ValueError):  # a built-in without a signature
            names = []
        return call_name(name_of(value.func), value.args, value.keywords, names=names)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def call_name(
    function: str,
    args: tuple[Any, ...] = (),
    keywords: Mapping[str, Any] | None = None,
    *,
    names: Sequence[str] = (),
) -> str:
    """A call as text: `module.function("A", prompt="B")`. Secrets are left out by their names.

    `names` are those of the positional arguments, as far as they are known.
    """
    named = itertools.zip_longest(names[: len(args)], args, fillvalue="")
    arguments = ["..." if is_secret_name(name) else _argument(value) for name, value in named]
    for name, value in sorted((keywords or {}).items()):
        arguments.append(f"{name}={'...' if is_secret_name(name) else _argument(value)}")
    return f"{function}({', '.join(arguments)})"


def _argument(value: Any) -> str:
    """An argument as text: its content as JSON, and the name of each part that has none."""
    content = shown(value)
    is_name = isinstance(content, str) and not isinstance(value, str)
    return content if is_name else _shorten(canonical(content).decode())


def _shorten(text: str) -> str:
    """The text; a long one is cut and ends with its hash."""
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... (blake2b {hashlib.blake2b(text.encode(), digest_size=8).hexdigest()})"


# ---- readable --------------------------------------------------------------------------------------------------------

MAX_DEPTH = 150
"""Levels of a value that `readable` follows."""


def readable(value: Any, depth: int = MAX_DEPTH) -> Any:
    """JSON for any value, for people to read: parts that JSON cannot hold are replaced by their text."""
    match value:
        case None | bool():
            return value
        case str():
            return str(value).encode("utf-8", "replace").decode()
        case int():
            return value if -(2**63) <= value < 2**64 else str(value)
        case float():
            return value if math.isfinite(value) else repr(value)
        case bytes():
            return _encode(value)
    if depth == 0:
        return "<nested too deeply>"
    match value:
        case dict():
            return {readable(str(key)): readable(item, depth - 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [readable(item, depth - 1) for item in value]
        case BaseModel():
            written = [name for name, each in type(value).model_fields.items() if not each.exclude]
            parts = {name: getattr(value, name) for name in (*written, *type(value).model_computed_fields)}
            return readable({**parts, **(value.model_extra or {})}, depth)
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: readable(getattr(value, item.name), depth - 1) for item in fields(value)}
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose text cannot be had: {type(error).__name__}>"
    return readable(text)


def shown_text(value: Any) -> str:
    """JSON text of a part of a message, for people."""
    return json.dumps(value, ensure_ascii=False, default=str)


# ---- stored ---------------------------------------------------------------------------------------------------------

_MARK = "__bytes_encoded__"  # as the SDK's sessions write bytes
_TEXT = "utf-8"  # the mark's value for text; True for bytes
_KEY = "!__utf-8__"
_STORED = "strands_env_stored"
MARKS = re.compile(rb"__(?:bytes_encoded|utf-8)__")
"""Marks in keys that look like ours."""


def exact(value: Any) -> Any:
    """The value with bytes, and text that UTF-8 cannot hold, replaced by objects. Nothing given is changed."""
    if not value and type(value) in (list, dict):
        return value
    try:  # most values are JSON already: to write them once, in C, costs less than a look at each part
        text = orjson.dumps(value)
    except TypeError:
        return _encode(value)
    return value if MARKS.search(text) is None else _encode(value)


def _encode(value: Any) -> Any:
    match value:
        case str():
            return value if _is_plain(value) else {_MARK: _TEXT, "data": _base64(value)}
        case bytes() | bytearray():
            return {_MARK: True, "data": base64.b64encode(value).decode()}
        case dict():
            return {_encode_key(key): _encode(item) for key, item in value.items()}
        case list() | tuple():
            return [_encode(item) for item in value]
    return value


def restore(value: Any) -> Any:
    """Undo `exact`. Any other object stays as it is."""
    match value:
        case dict():
            if _MARK in value and len(value) == 2 and isinstance(value.get("data"), str):
                try:
                    data = base64.b64decode(value["data"], validate=True)
                    if value[_MARK] is True:
                        return data
                    return data.decode("utf-8", "surrogatepass") if value[_MARK] == _TEXT else value
                except ValueError:  # a model wrote text that looks like an encoding
                    return value
            return {_decode_key(key): restore(item) for key, item in value.items()}
        case list():
            return [restore(item) for item in value]
    return value


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:  # it has no public name
    ModelMetaclass = type(BaseModel)


class _Constructed(ModelMetaclass):
    """Checks the arguments of a constructor; a model that is read or copied is made without."""

    __pydantic_fields__: dict[str, Any]
    __pydantic_computed_fields__: dict[str, Any]
    model_config: ConfigDict
    _elsewhere: Mapping[str, str]

    def __call__(cls, *args: Any, **given: Any) -> Any:
        fields = cls.__pydantic_fields__
        if args:
            first = next(iter(fields))
            raise TypeError(f"{cls.__name__}({args[0]!r:.100}): name the field, as in {cls.__name__}({first}=...)")
        if not given.keys() <= fields.keys() and cls.model_config.get("extra") != "allow":
            names = fields.keys() | cls.__pydantic_computed_fields__.keys()  # parts of a field
            refuse_unknown(f"{cls.__name__}()", given, names, cls._elsewhere)
        return super().__call__(**given)


class PartedModel(BaseModel):
    """A model with names for parts of its fields (properties that JSON has), which a copy takes as it takes fields."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields, or parts of them, changed."""
        parts = {name: value for name, value in (update or {}).items() if name in type(self).model_computed_fields}
        fields = {name: value for name, value in (update or {}).items() if name not in parts}
        copied = super().model_copy(update=fields, deep=deep)
        for name, value in parts.items():
            setattr(copied, name, value)
        return copied


class StoredModel(BaseModel, metaclass=_Constructed):
    """A model whose `model_validate` undoes `exact` in what JSON held; its constructor takes values as they are.

    The constructor refuses an unknown field by a `TypeError` that names the nearest one. What is read from storage may
    have more fields, which another release wrote.
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {}
    """Hints for fields that are not of this model, by name; `*` is for any."""

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """The model that parsed JSON, or a dump, stands for."""
        options["context"] = {**(options.get("context") or {}), _STORED: True}
        return super().model_validate(obj, **options)


STORED_CONTEXT = {_STORED: True}
"""The validation context for values of JSON text that has `MARKS`. Without, there is nothing for `restore` to undo."""


def decode_stored(value: Any, info: ValidationInfo) -> Any:
    """Validator: undo `exact` where the value comes from storage."""
    stored = info.mode == "json" or (isinstance(info.context, dict) and info.context.get(_STORED) is True)
    return restore(value) if stored else value


JsonValues: TypeAlias = Annotated[
    dict[str, Any], BeforeValidator(decode_stored), PlainSerializer(exact, when_used="json")
]
"""Values by name that survive JSON."""


def _is_plain(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _base64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def _encode_key(key: Any) -> Any:
    if isinstance(key, str) and (key == _MARK or key.startswith(_KEY) or not _is_plain(key)):
        return _KEY + _base64(key)
    return key


def _decode_key(key: Any) -> Any:
    if not isinstance(key, str) or not key.startswith(_KEY):
        return key
    try:
        return base64.b64decode(key[len(_KEY) :], validate=True).decode("utf-8", "surrogatepass")
    except ValueError:
        return key


def digest(*parts: bytes) -> str:
    """32 hexadecimal digits of blake2b over the parts, each with its length so that none runs into the next."""
    return digest_bytes(*parts).hex()


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str, str]]:
    """Name, old text and new text of every field in which two configurations differ.

    Of a long text the part is shown where it begins to differ; a field that one of them lacks is `absent` there.
    """
    changes: list[tuple[str, str, str]] = []
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changes += differences(before, after, f"{prefix}{key}.")
        elif before != after or (key in old) != (key in new):
            texts = [repr(config[key]) if key in config else "absent" for config in (old, new)]
            same = next((at for at, pair in enumerate(zip(*texts, strict=False)) if len({*pair}) > 1), 0)
            changes.append((f"{prefix}{key}", _part(texts[0], same), _part(texts[1], same)))
    return changes


def _part(text: str, start: int) -> str:
    if len(text) <= _PART:
        return text
    first = max(0, start - _PART // 3)
    last = first + _PART
    return f"{'...' if first else ''}{text[first:last]}{'...' if last < len(text) else ''}"
