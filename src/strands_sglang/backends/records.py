"""Turns, messages, requests and answers as JSON values, for logs of sessions and for recordings.

A value that is not text, a number or None is written as a pair of its type and its content, so a new field of a turn is
written, and read again, without a line here.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from .. import trajectory
from ..lines import pack, unpack
from ..trajectory.media import Medium
from . import contract

_TYPES: Mapping[str, Any] = {
    kind.__name__: kind
    for kind in (
        trajectory.Call, trajectory.Completion, trajectory.Finish, trajectory.FinishType, trajectory.Image,
        trajectory.LengthLimit, Medium, trajectory.Message, trajectory.Result, trajectory.Role,
        trajectory.SamplingMask, trajectory.ToolCall, trajectory.WeightSpan, contract.BackendInfo,
        contract.Capabilities, contract.GenerateAnswer, contract.LogprobKind, contract.PromptScoring,
        contract.ScoredPrompt,
    )
}  # fmt: skip
"""Types written beside JSON values. A file may be anybody's: no other type is made from it."""


def to_json(value: Any) -> Any:
    """A value as JSON."""
    kind = type(value)
    if isinstance(value, Enum):
        return [kind.__name__, value.value]
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, array):
        return [value.typecode, pack(value)]
    if isinstance(value, bytes):
        return ["bytes", pack(value)]
    if isinstance(value, dict):  # the arguments of a call, whose keys and values may be anything
        return ["json", value]
    if kind in (list, tuple):
        return ["list", list(map(to_json, value))]
    if kind is frozenset:
        return ["set", sorted(map(to_json, value))]
    if is_dataclass(value):
        given = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        unset = {field.name for field in fields(value) if field.default is None and given.get(field.name) is None}
        return [kind.__name__, {name: to_json(each) for name, each in given.items() if name not in unset}]
    if isinstance(value, tuple):  # with names
        return [kind.__name__, dict(zip(value._fields, map(to_json, value), strict=True))]  # type: ignore[attr-defined]
    return [value.dtype.name, pack(value.tobytes())]  # of NumPy


def from_json(value: Any) -> Any:
    """The value that `to_json` wrote; lists come back as tuples."""
    if not isinstance(value, list):
        return value
    kind, content = value
    if kind == "list":
        return tuple(map(from_json, content))
    if kind == "set":
        return frozenset(map(from_json, content))
    if kind == "json":
        return content
    if kind == "bytes":
        return unpack(content)
    if len(kind) == 1:
        return array(kind, unpack(content))
    if kind in _TYPES:
        made = _TYPES[kind]
        if not isinstance(content, dict):
            return made(content)
        return made(**{name: from_json(each) for name, each in content.items()})
    import numpy as np

    return np.frombuffer(unpack(content), dtype=kind)
