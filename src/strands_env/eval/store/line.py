"""A sample as one line of the results file: JSON with a checksum, the CRC-32 of everything before it.

    {"id":..,"prompt_id":..,"task":..,"index":..,"place":..,"aborted":..,"reward":..,"attempts":..,"duration_s":..,
     "action":{..},"step_result":{..},"tokens":{..},"crc":"1a2b3c4d"}

The fields before `action` are all that a resume needs. `tokens` holds what JSON would make large, each part compressed
and in base64: `sequences` (of which `observation` and each trajectory name one by its place), routed experts, tools.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pydantic_core
from pydantic import BaseModel, ValidationError

from strands_env.core import (
    Action,
    ErrorRecord,
    Observation,
    Phase,
    RewardResult,
    StepResult,
    TaskContext,
    TerminationReason,
    TokenObservation,
    Trajectory,
)
from strands_env.core.jsonable import shown, text_of
from strands_env.core.types import shared_text
from strands_env.eval.errors import StoreCorruptError, StoreError
from strands_env.eval.sample import EvalSample, Score, add_location

_BEGINNING = b'{"id":"'
_BODY = b',"action":'
"""The end of the head: in JSON text these quotes would be escaped."""
_CHECKSUM = re.compile(rb',"crc":"([0-9a-f]{8})"\}\n\Z')
_CHECKSUM_LENGTH = len(b',"crc":"00000000"}\n')
_LARGE: Any = {"observation": {"tokens": True, "tools": True}, "trajectories": True}
"""Fields of a result that `tokens` holds."""


class LineError(ValueError):
    """A line that is not a sample.

    `is_residue`: it is blank, or an interrupted write or a power cut left it, and it can be passed over. `is_foreign`:
    we never wrote it.
    """

    def __init__(self, what: str, *, is_residue: bool = False, is_foreign: bool = False) -> None:
        super().__init__(what)
        self.is_residue = is_residue
        self.is_foreign = is_foreign

    def at(self, path: Path, number: int) -> StoreError:
        """The error for this line of a file."""
        where = f"line {number} of {str(path)!r}"
        if self.is_foreign:
            return StoreCorruptError(
                f"{where} is neither an evaluated sample nor the remains of an interrupted write ({self}): give a "
                "file that an evaluation wrote or another output path, or remove the line if it does not belong there"
            )
        return StoreCorruptError(
            f"{where} is damaged ({self}): remove that line to continue; its sample will be run again"
        )


class Entry(NamedTuple):
    """A sample in a results file: its identity (16 bytes), its outcome, and the bytes of its line."""

    id: bytes
    prompt_id: str
    task: str
    index: int  # type: ignore[assignment]  # the field, not the method of tuples
    place: int | None
    aborted: bool
    reward: float | None
    offset: int
    length: int


@contextmanager
def naming_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn system errors into `StoreError`s that name the file; a missing file to read stays a `FileNotFoundError`."""
    try:
        yield
    except OSError as error:
        if doing == "read" and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
        raise StoreError(f"cannot {doing} {str(path)!r}: {error.strerror or error}") from error


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_entry(line: bytes, offset: int) -> Entry:
    """The entry of a line with its newline; only the head is parsed.

    Raises:
        LineError: The line is damaged, cut off, or no sample.
        StoreError: An earlier version wrote it.
    """
    if not line.endswith(b"\n"):
        torn = is_torn(line)
        raise LineError("it has no end", is_residue=torn, is_foreign=not torn)
    check_line(line)
    try:
        head = orjson.loads(line[: line.find(_BODY)] + b"}")
        entry = Entry(
            id=bytes.fromhex(head["id"]),
            **{name: head[name] for name in ("prompt_id", "task", "index", "aborted", "reward")},
            place=head.get("place"),
            offset=offset,
            length=len(line),
        )
    except (LookupError, ValueError, TypeError) as error:
        why = f"it is not an evaluated sample ({type(error).__name__}: {error})"
        raise LineError(why, is_foreign=True) from error
    if "tokens" in head:  # places in a side file
        raise StoreError(
            "an earlier version wrote these results, with their tokens in another file: convert them with "
            "python -m strands_env.eval.convert RUN NEW"
        )
    return entry


def check_line(line: bytes) -> None:
    """Compare the checksum; `LineError` where it does not fit."""
    found = _CHECKSUM.search(line, max(0, len(line) - _CHECKSUM_LENGTH))
    if found is not None and b"%08x" % zlib.crc32(memoryview(line)[:-_CHECKSUM_LENGTH]) == found[1]:
        return
    is_residue = _has_hole(line) or not line.strip(b"\0 \t\r\n")
    is_foreign = not is_residue and found is None and not line.startswith(_BEGINNING)
    why = "it is not an evaluated sample" if is_foreign else "its checksum does not fit"
    raise LineError(why, is_residue=is_residue, is_foreign=is_foreign)


def is_torn(tail: bytes) -> bool:
    """True for an end of a file that an interrupted write can have left: part of a line, or zeros.

    Anything else is somebody's data, or a line with a damaged newline, and must not be cut off.
    """
    is_ours = tail.startswith(_BEGINNING) or _BEGINNING.startswith(tail)
    if not (is_ours or _has_hole(tail) or not tail.strip(b"\0 \t\r")):
        return False
    if _CHECKSUM.search(tail + b"\n") is not None:  # cut right before its newline
        return True
    # Whole JSON without our checksum is somebody's, and a checksum before one more byte a newline with a flipped bit.
    try:
        pydantic_core.from_json(tail)
    except ValueError:
        return _CHECKSUM.search(tail[:-1] + b"\n") is None
    return False


def _has_hole(line: bytes) -> bool:
    """True where blocks of the line never reached the device: JSON has no zeros, and one alone may be a flipped bit."""
    return b"\0\0" in line


def decode(line: bytes) -> dict[str, Any]:
    """The record in a line; `LineError` where it is damaged, or no sample."""
    check_line(line)
    try:
        record: dict[str, Any] = pydantic_core.from_json(line)
    except ValueError as error:
        raise LineError(f"it is not JSON: {error}", is_foreign=True) from error
    return record


def to_sample(record: Mapping[str, Any], *, with_tokens: bool = False) -> EvalSample:
    """The sample of a record; `StoreCorruptError` for a record of another format."""
    try:
        result = StepResult.model_validate(record["step_result"])
        if with_tokens and (tokens := record.get("tokens")) is not None:
            _unpack_tokens(result, tokens)
        return EvalSample(
            action=Action.model_validate(record["action"]),
            step_result=result,
            aborted=record["aborted"],
            id=record["id"],
            prompt_id=record["prompt_id"],
            task_digest=record["task"],
            index=record["index"],
            place=record.get("place"),
            attempts=record["attempts"],
            duration_s=record["duration_s"],
        )
    except (LookupError, ValueError, TypeError, RecursionError, zlib.error) as error:
        raise StoreCorruptError(f"the record {record.get('id')!r} is not an evaluated sample: {error}") from error


def to_score(record: Mapping[str, Any]) -> Score:
    """The score of a record, several times faster than by its sample; raises as `to_sample` does."""

    def words(error: Mapping[str, Any]) -> tuple[str, str]:
        return error["type"], add_location(error["message"], error["raised_at"])

    try:
        result = record["step_result"]
        error, cleanup = result["error"], result["cleanup_error"]
        return Score(
            prompt_id=record["prompt_id"],
            task=record["task"],
            index=record["index"],
            reward=None if record["aborted"] else record["reward"],
            aborted=record["aborted"],
            reason=result["termination_reason"],
            error=None if error is None else (error["where"], *words(error)),
            cleanup_error=None if cleanup is None else (cleanup["where"], *words(cleanup)),
            tool_errors=[(item["tool"], *words(item["error"])) for item in result["tool_errors"]],
            metrics=result["observation"]["metrics"],
            attempts=record["attempts"],
            duration_s=record["duration_s"],
        )
    except (LookupError, ValueError, TypeError) as failure:
        raise StoreCorruptError(f"the record {record.get('id')!r} is not an evaluated sample: {failure!r}") from failure


# ---- writing ---------------------------------------------------------------------------------------------------------


def encode(sample: EvalSample) -> bytes:
    """The line of a sample, newline included; it was read back once, so that a reader can read it.

    What JSON cannot hold becomes text; of a sample that still cannot be read back, only its score is kept, and an
    error that says so.
    """
    result = sample.step_result
    tokens = _pack_tokens(result)
    try:
        return _checked_line(sample, tokens, _to_json(sample.action), _to_json(result, _LARGE))
    except (pydantic_core.PydanticSerializationError, ValueError, TypeError, RecursionError, StoreError) as error:
        failure: Exception = error
    try:  # a tool may have returned any object, and any bytes as text
        seen = result.observation
        observation = {**seen.__dict__, **(seen.__pydantic_extra__ or {}), "tokens": None, "tools": None}
        fields = {
            **result.__dict__,
            **(result.__pydantic_extra__ or {}),
            "trajectories": [],
            "observation": observation,
        }
        return _checked_line(sample, tokens, orjson.dumps(shown(sample.action)), orjson.dumps(shown(fields)))
    except (StoreError, ValueError, TypeError, RecursionError, AttributeError) as error:
        failure.add_note(str(error))
    message, name = shown(text_of(sample.action.message))[:1000], str(sample.action.task_context.id)
    try:
        reward = None if sample.reward is None else RewardResult(reward=sample.reward)
    except (ValidationError, AttributeError):
        reward = None
    text = f"the result cannot be saved: {type(failure).__name__}: {shown(str(failure))[:1000]}"
    reason = result.termination_reason
    known = StepResult(
        observation=Observation(),
        reward=reward,
        termination_reason=reason if isinstance(reason, TerminationReason) else TerminationReason.UNCLASSIFIED_ERROR,
        error=ErrorRecord(type=type(failure).__name__, message=text, traceback="", where=Phase.LOOP),
    )
    action = _to_json(Action(message=message, task_context=TaskContext(id=name)))
    return _checked_line(sample, tokens, action, _to_json(known, _LARGE))


def _to_json(value: BaseModel, exclude: Any = None) -> bytes:
    # A field of another type than its own is written, but could not be read: an error, where pydantic only warns.
    return value.__pydantic_serializer__.to_json(value, exclude=exclude, warnings="error")


def _checked_line(sample: EvalSample, tokens: dict[str, Any] | None, action: bytes, result: bytes) -> bytes:
    """The line of these parts; an error where it would not be read as a sample."""
    reward = sample.reward if isinstance(sample.step_result.reward, RewardResult | None) else None
    head = {
        "id": sample.id,
        "prompt_id": sample.prompt_id,
        "task": sample.task_digest,
        "index": sample.index,
        "aborted": sample.aborted,
        "reward": reward,
        "attempts": sample.attempts,
        "duration_s": sample.duration_s,
    }
    if sample.place is not None:
        head["place"] = sample.place
    parts = [orjson.dumps(head)[:-1], _BODY, action, b',"step_result":', result]
    if tokens is not None:
        parts += [b',"tokens":', orjson.dumps(tokens)]
    body = b"".join(parts)
    line = b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body))
    to_sample(decode(line))  # assignments to fields are not validated, so what was written may not be readable
    return line


def _pack_tokens(result: StepResult) -> dict[str, Any] | None:
    """The token data of a result as JSON values, each sequence once; None without token data."""
    sequences: list[TokenObservation] = []

    def place(tokens: TokenObservation) -> int:  # the observed sequence is nearly always one of a trajectory
        if tokens not in sequences:
            sequences.append(tokens)
        return sequences.index(tokens)

    observed, tools = result.observation.tokens, result.observation.tools
    if observed is None and not result.trajectories:
        return None
    return {
        "observation": None if observed is None else place(observed),
        "tools": None if tools is None else _pack(tools.encode()),
        "trajectories": [
            {
                **item.facts(),
                "tokens": place(item.tokens),
                "routed_experts": None if item.routed_experts is None else _pack(item.routed_experts),
            }
            for item in result.trajectories
        ],
        "sequences": [_pack(tokens.to_bytes()) for tokens in sequences],
    }


def _unpack_tokens(result: StepResult, packed: Mapping[str, Any]) -> None:
    sequences = [TokenObservation.from_bytes(_unpack(text)) for text in packed["sequences"]]
    if (place := packed["observation"]) is not None:
        result.observation.tokens = sequences[place]
    if (tools := packed["tools"]) is not None:
        result.observation.tools = shared_text(_unpack(tools).decode())
    result.trajectories = [
        Trajectory.from_dict(
            {
                **item,
                "tokens": sequences[item["tokens"]],
                "routed_experts": None if item["routed_experts"] is None else _unpack(item["routed_experts"]),
            }
        )
        for item in packed["trajectories"]
    ]


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 1)).decode()


def _unpack(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text, validate=True))
