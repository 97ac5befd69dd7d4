"""JSON encodings for values JSON cannot represent: bytes, and text with lone surrogates.

A model may write anything into its arguments, including text that looks like such an encoding; keys that do are
escaped, so that reading gives back exactly what was written.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Any, Self, TypeAlias

import orjson
from pydantic import BaseModel, BeforeValidator, PlainSerializer, ValidationInfo

_MARK = "__bytes_encoded__"  # as the SDK's sessions write bytes
_TEXT = "utf-8"  # the mark's value for text; True for bytes
_KEY = "!__utf-8__"
_STORED = "strands_env_stored"
_MARKS = re.compile(rb"__(?:bytes_encoded|utf-8)__")
"""What keys that look like ours have in them."""


def encode(value: Any) -> Any:
    """The value with bytes, and text that UTF-8 cannot hold, replaced by objects. Nothing given is changed."""
    try:  # most values are JSON already: to write them once, in C, costs less than a look at each part
        text = orjson.dumps(value)
    except TypeError:
        return _encode(value)
    return value if _MARKS.search(text) is None else _encode(value)


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


def decode(value: Any) -> Any:
    """Undo `encode`. Any other object stays as it is."""
    match value:
        case dict():
            if _MARK in value and len(value) == 2 and isinstance(value.get("data"), str):
                return _decode_object(value)
            return {_decode_key(key): decode(item) for key, item in value.items()}
        case list():
            return [decode(item) for item in value]
    return value


class StoredModel(BaseModel):
    """A model whose `model_validate` undoes `encode` in what JSON held; its constructor takes values as they are."""

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """The model that parsed JSON, or a dump, stands for."""
        options["context"] = {**(options.get("context") or {}), _STORED: True}
        return super().model_validate(obj, **options)


def decode_stored(value: Any, info: ValidationInfo) -> Any:
    """Validator: undo `encode` where the value comes from storage."""
    stored = info.mode == "json" or (isinstance(info.context, dict) and info.context.get(_STORED) is True)
    return decode(value) if stored else value


JsonValues: TypeAlias = Annotated[
    dict[str, Any], BeforeValidator(decode_stored), PlainSerializer(encode, when_used="json")
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


def _decode_object(value: dict[Any, Any]) -> Any:
    try:
        data = base64.b64decode(value["data"], validate=True)
        if value[_MARK] is True:
            return data
        return data.decode("utf-8", "surrogatepass") if value[_MARK] == _TEXT else value
    except (binascii.Error, ValueError):
        return value
