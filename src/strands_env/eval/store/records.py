"""A sample as one line of JSON, and back."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Any

import orjson
import pydantic_core
from pydantic import BaseModel

from strands_env.core import Action, StepResult
from strands_env.eval.errors import StoreCorruptError
from strands_env.eval.sample import EvalSample
from strands_env.eval.store.tokens import end_of

_BEGINNING = b'{"id":"'
"""How `encode` begins every line."""
_TOKEN_FIELDS = {"observation": {"tokens": True}, "trajectories": True}


def encode(sample: EvalSample, tokens: dict[str, Any] | None) -> bytes:
    """The line of a sample, newline included.

    Args:
        sample: The sample.
        tokens: Where its tokens are in the side file.
    """
    record = {
        "id": sample.id,
        "prompt_id": sample.prompt_id,
        "task": sample.task_digest,
        "index": sample.index,
        "aborted": sample.aborted,
        "attempts": sample.attempts,
        "duration_s": sample.duration_s,
        "action": _fragment(sample.action, None),
        "step_result": _fragment(sample.step_result, _TOKEN_FIELDS),
    }
    if tokens is not None:
        record["tokens"] = tokens
    return orjson.dumps(record, default=str, option=orjson.OPT_APPEND_NEWLINE)


def decode(line: bytes) -> dict[str, Any] | None:
    """The record in a line, None when it is not a whole one."""
    try:
        record = pydantic_core.from_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("id"), str) else None


def may_be_torn(line: bytes) -> bool:
    """Whether an interrupted write can have left a line that is no record: the beginning of one, or zeros.

    What is neither, nor blank, is somebody's data, which must not be cut off.
    """
    return line[:1] == b"\0" or line.startswith(_BEGINNING) or _BEGINNING.startswith(line) or not line.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What of a record is read of every line: which sample it is, and how far into the side file it points."""

    id: str
    prompt_id: str
    index: int
    task: str
    aborted: bool
    tokens_end: int = 0


def head_of(record: dict[str, Any], where: str) -> Head:
    """The head of a record.

    Args:
        record: The record.
        where: Its line, for the error.

    Raises:
        StoreCorruptError: The record is none of ours.
    """
    try:
        head = Head(
            id=record["id"],
            prompt_id=record["prompt_id"],
            index=record["index"],
            task=record["task"],
            aborted=record["aborted"],
            tokens_end=end_of(record.get("tokens")),
        )
        bytes.fromhex(head.id)
        if not (isinstance(head.prompt_id, str) and isinstance(head.task, str) and isinstance(head.index, int)):
            raise TypeError("prompt_id and task must be text and index a number")
    except (LookupError, ValueError, TypeError) as error:
        raise StoreCorruptError(
            f"{where} is no evaluated sample ({type(error).__name__}: {error}): give a file that an evaluation wrote"
        ) from error
    return head


def to_sample(record: dict[str, Any]) -> EvalSample:
    """The sample of a record, without its tokens.

    Raises:
        StoreCorruptError: The record is none of ours.
    """
    try:
        return EvalSample(
            action=Action.model_validate(record["action"]),
            step_result=StepResult.model_validate(record["step_result"]),
            aborted=record["aborted"],
            id=record["id"],
            prompt_id=record["prompt_id"],
            task_digest=record["task"],
            index=record["index"],
            attempts=record["attempts"],
            duration_s=record["duration_s"],
        )
    except (KeyError, ValueError, TypeError) as error:
        raise StoreCorruptError(f"the record {record.get('id')!r} is no evaluated sample: {error}") from error


def _fragment(value: BaseModel, exclude: Any) -> orjson.Fragment:
    try:
        return orjson.Fragment(value.model_dump_json(exclude=exclude).encode())
    except (pydantic_core.PydanticSerializationError, UnicodeError, ValueError, TypeError):
        # A tool may return any object and any bytes as text; the sample must be saved all the same.
        return orjson.Fragment(orjson.dumps(_plain(value.model_dump(mode="python", exclude=exclude, warnings=False))))


def _plain(value: Any) -> Any:
    """JSON for anything; what JSON has not is replaced by its text."""
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
            return {"__bytes_encoded__": True, "data": base64.b64encode(value).decode()}
        case dict():
            return {_plain(str(key)): _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
    if hasattr(type(value), "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in type(value).__dataclass_fields__}
    return _plain(repr(value))
