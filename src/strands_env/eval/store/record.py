"""The files of a run, and the records in them.

A sample is one line of the results file: JSON with a checksum, the CRC-32 of everything before it.

    {"id":..,"prompt_id":..,"task":..,"index":..,"aborted":..,"reward":..,"attempts":..,"duration_s":..,
     "tokens":{..},"action":{..},"step_result":{..},"crc":"1a2b3c4d"}

The fields before `action` are the head, which is all that a resume needs. `tokens` points into the side file at
checksummed, compressed frames. A set of tools is a frame too: one for all samples of a run that were given the same.
"""

from __future__ import annotations

import math
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Self

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
)
from strands_env.core.jsonable import shown, text_of
from strands_env.eval.errors import StoreCorruptError, StoreError
from strands_env.eval.sample import EvalSample, Score, located

_BLOCK = 1 << 20
_BEGINNING = b'{"id":"'
"""Beginning of every line."""
_BODY = b',"action":'
"""The end of the head: in JSON text these quotes would be escaped."""
_CHECKSUM = re.compile(rb',"crc":"([0-9a-f]{8})"\}\n\Z')
_CHECKSUM_LENGTH = len(b',"crc":"00000000"}\n')
_NO_TOKENS: Any = {"observation": {"tokens": True, "tools": True}, "trajectories": True}

_FRAME = struct.Struct("<4sII")
_MAGIC = b"STK1"
_LEVEL = 1
MAX_SETS_OF_TOOLS = 4096
"""Sets of tools whose places a writer remembers: where every task has its own, the index must not grow with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePaths:
    """The files of one run, beside each other: `x.jsonl`, `x.tokens` and `x.run.json`."""

    results: Path

    @classmethod
    def of(cls, output_path: str | Path) -> Self:
        """The files for an output path: a `.jsonl` file, or a folder that gets `results.jsonl`."""
        path = Path(output_path)
        return cls(results=path if path.suffix == ".jsonl" else path / "results.jsonl")

    @property
    def tokens(self) -> Path:
        """Side file of tokens."""
        return self.results.with_suffix(".tokens")

    @property
    def run(self) -> Path:
        """Configuration, versions and seeds of the run."""
        return self.results.with_suffix(".run.json")


@contextmanager
def naming_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn system errors into `StoreError`s that name the file; a missing file to read stays a `FileNotFoundError`."""
    try:
        yield
    except OSError as error:
        if doing == "read" and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
        raise StoreError(f"cannot {doing} {str(path)!r}: {error.strerror or error}") from error


def read_at(fd: int, offset: int, length: int) -> bytes:
    """`length` bytes from an offset, fewer at the end of the file."""
    parts: list[bytes] = []
    while length > 0 and (part := os.pread(fd, length, offset)):
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class LineError(ValueError):
    """A line that is not a sample.

    `is_residue`: it is blank, or an interrupted write or a power cut left it, and it can be passed over. `is_foreign`:
    we never wrote it.
    """

    def __init__(self, what: str, *, is_residue: bool = False, is_foreign: bool = False) -> None:
        super().__init__(what)
        self.is_residue = is_residue
        self.is_foreign = is_foreign


class Line(NamedTuple):
    """A line, its newline included; the last one of a file may have none."""

    number: int
    offset: int
    data: bytes

    def head(self) -> Head:
        """The head of the line; nothing else of it is parsed.

        Raises:
            LineError: The line is damaged, cut off, or no sample.
        """
        if not self.data.endswith(b"\n"):
            torn = is_torn(self.data)
            raise LineError("it has no end", is_residue=torn, is_foreign=not torn)
        _check(self.data)
        try:
            record = orjson.loads(self.data[: self.data.find(_BODY)] + b"}")
            return Head(**{name: record[name] for name in Head._fields[:-1]}, tokens_end=end_of(record.get("tokens")))
        except (LookupError, ValueError, TypeError) as error:
            why = f"it is not an evaluated sample ({type(error).__name__}: {error})"
            raise LineError(why, is_foreign=True) from error

    def damaged(self, path: Path, error: LineError) -> StoreCorruptError:
        """The error for a line that cannot be read."""
        where = f"line {self.number} of {str(path)!r}"
        if error.is_foreign:
            return StoreCorruptError(
                f"{where} is neither an evaluated sample nor the remains of an interrupted write ({error}): give a "
                "file that an evaluation wrote or another output path, or remove the line if it does not belong there"
            )
        return StoreCorruptError(
            f"{where} is damaged ({error}): remove that line to continue; its sample will be run again"
        )


def lines_of(fd: int) -> Iterator[Line]:
    """All lines of an open file."""
    number = offset = position = 0
    rest: list[bytes] = []
    while block := read_at(fd, position, _BLOCK):
        position += len(block)
        first, *others = block.split(b"\n")
        rest.append(first)
        for text in others:
            data = b"".join(rest) + b"\n"
            number += 1
            yield Line(number, offset, data)
            offset += len(data)
            rest = [text]
    if tail := b"".join(rest):
        yield Line(number + 1, offset, tail)


def read_line(fd: int, offset: int) -> bytes:
    """The line that begins at an offset."""
    parts: list[bytes] = []
    size = 4096
    while block := read_at(fd, offset, size):
        end = block.find(b"\n")
        if end >= 0:
            parts.append(block[: end + 1])
            break
        parts.append(block)
        offset += len(block)
        size = min(2 * size, _BLOCK)
    return b"".join(parts)


class Head(NamedTuple):
    """The fields of a line that a resume reads.

    Attributes:
        aborted: It was lost and is run again.
        tokens_end: Where the last frame it points at ends in the side file; the other fields stand in the line.
    """

    id: str
    prompt_id: str
    task: str
    index: int  # type: ignore[assignment]  # the field, not the method of tuples
    aborted: bool
    reward: float | None
    tokens_end: int


def encode(sample: EvalSample, tokens: dict[str, Any] | None) -> bytes:
    """The line of a sample, newline included; it was read back once, so that a reader can read it.

    What JSON cannot hold becomes text; of a sample that still cannot be read back, only its score is kept, and an
    error that says so.
    """
    try:
        _check_types(sample.step_result)
        line = _line(sample, tokens, _json(sample.action), _json(sample.step_result, _NO_TOKENS))
        pydantic_core.from_json(line)
        return line
    except (pydantic_core.PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        failure: Exception = error
    try:  # a tool may have returned any object, and any bytes as text
        result = {
            **_fields(sample.step_result, {"trajectories": []}),
            "observation": _fields(sample.step_result.observation, {"tokens": None, "tools": None}),
        }
        line = _line(sample, tokens, orjson.dumps(shown(sample.action)), orjson.dumps(shown(result)))
        to_sample(decode(line))
        return line
    except (StoreCorruptError, LineError, ValueError, TypeError, RecursionError, AttributeError) as error:
        failure.add_note(str(error))
    line = _line(sample, tokens, _json(_known_action(sample)), _json(_known_result(sample, failure), _NO_TOKENS))
    to_sample(decode(line))
    return line


def decode(line: bytes) -> dict[str, Any]:
    """The record in a line; `LineError` where it is damaged, or no sample."""
    _check(line)
    try:
        record: dict[str, Any] = pydantic_core.from_json(line)
    except ValueError as error:
        raise LineError(f"it is not JSON: {error}", is_foreign=True) from error
    return record


def is_torn(tail: bytes) -> bool:
    """True for an end of a file that an interrupted write can have left: part of a line, or zeros.

    Anything else is somebody's data, or a line with a damaged newline, and must not be cut off.
    """
    if not (
        _is_residue(tail) or tail.startswith(_BEGINNING) or _BEGINNING.startswith(tail) or not tail.strip(b"\0 \t\r")
    ):
        return False
    if _CHECKSUM.search(tail + b"\n") is not None:
        return True
    try:
        pydantic_core.from_json(tail)
    except ValueError:
        return _CHECKSUM.search(tail[:-1] + b"\n") is None
    return False


def to_sample(record: dict[str, Any]) -> EvalSample:
    """The sample of a record, without its tokens; `StoreCorruptError` for a record of another format."""
    try:
        return EvalSample(
            action=Action.model_validate(record["action"]),
            step_result=StepResult.model_validate(record["step_result"]),
            aborted=record["aborted"],
            id=record["id"],
            prompt_id=record["prompt_id"],
            task_digest=record["task"],
            index=record["index"],
            place=record.get("place"),
            attempts=record["attempts"],
            duration_s=record["duration_s"],
        )
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise StoreCorruptError(f"the record {record.get('id')!r} is not an evaluated sample: {error}") from error


def score_of(record: dict[str, Any]) -> Score:
    """The score of a record, without making the sample; `StoreCorruptError` for a record of another format."""
    try:
        result = record["step_result"]
        reward, error, cleanup = result["reward"], result["error"], result["cleanup_error"]
        return Score(
            prompt_id=record["prompt_id"],
            task=record["task"],
            index=record["index"],
            reward=None if record["aborted"] or reward is None or reward["reward"] is None else float(reward["reward"]),
            aborted=record["aborted"],
            reason=result["termination_reason"],
            error=None if error is None else (error["where"], *_error(error)),
            cleanup_error=None if cleanup is None else (cleanup["where"], *_error(cleanup)),
            tool_errors=[(item["tool"], *_error(item["error"])) for item in result["tool_errors"]],
            metrics=result["observation"]["metrics"],
            attempts=record["attempts"],
            duration_s=record["duration_s"],
        )
    except (LookupError, ValueError, TypeError) as failure:
        raise StoreCorruptError(f"the record {record.get('id')!r} is not an evaluated sample: {failure!r}") from failure


def _error(record: dict[str, Any]) -> tuple[str, str]:
    return record["type"], located(record["message"], record["raised_at"])


def _line(sample: EvalSample, tokens: dict[str, Any] | None, action: bytes, result: bytes) -> bytes:
    head = {
        "id": sample.id,
        "prompt_id": sample.prompt_id,
        "task": sample.task_digest,
        "index": sample.index,
        "aborted": sample.aborted,
        "reward": sample.reward,
        "attempts": sample.attempts,
        "duration_s": sample.duration_s,
    }
    if sample.place is not None:
        head["place"] = sample.place
    if tokens is not None:
        head["tokens"] = tokens
    body = b"".join((orjson.dumps(head)[:-1], _BODY, action, b',"step_result":', result))
    return b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def _check(line: bytes) -> None:
    found = _CHECKSUM.search(line, max(0, len(line) - _CHECKSUM_LENGTH))
    # Over all but the checksum itself.
    if found is not None and b"%08x" % zlib.crc32(memoryview(line)[:-_CHECKSUM_LENGTH]) == found[1]:
        return
    is_residue = _is_residue(line) or not line.strip(b"\0 \t\r\n")
    is_foreign = not is_residue and found is None and not line.startswith(_BEGINNING)
    why = "it is not an evaluated sample" if is_foreign else "its checksum does not fit"
    raise LineError(why, is_residue=is_residue, is_foreign=is_foreign)


def _is_residue(line: bytes) -> bool:
    """True where blocks of the line never reached the device: JSON has no zeros, and one alone may be a flipped bit."""
    return b"\0\0" in line


def _json(value: BaseModel, exclude: Any = None) -> bytes:
    # A field of another type than its own is written, but could not be read: an error, where pydantic only warns.
    return value.__pydantic_serializer__.to_json(value, exclude=exclude, warnings="error")


def _check_types(result: StepResult) -> None:
    """Check the types of fields, since assignments are not validated; much cheaper than validating the line."""
    observation, reward = result.observation, result.reward
    if not (
        isinstance(observation, Observation)
        and isinstance(observation.messages, list)
        and all(isinstance(message, dict) for message in observation.messages)
        and isinstance(observation.metrics, dict)
        and isinstance(result.termination_reason, TerminationReason)
        and all(error is None or isinstance(error, ErrorRecord) for error in (result.error, result.cleanup_error))
        and (reward is None or _is_reward(reward))
    ):
        raise TypeError("a field of the result has another type than its own")


def _is_reward(reward: Any) -> bool:
    return (
        isinstance(reward, RewardResult)
        and (reward.reward is None or (isinstance(reward.reward, float) and math.isfinite(reward.reward)))
        and isinstance(reward.info, dict)
        and all(math.isfinite(value) for value in reward.turn_rewards.values())
        and isinstance(reward.span_rewards, list)
    )


def _fields(value: BaseModel, changes: Mapping[str, Any]) -> dict[str, Any]:
    return {**value.__dict__, **(value.__pydantic_extra__ or {}), **changes}


def _known_action(sample: EvalSample) -> Action:
    name = sample.action.task_context.id
    return Action(message=shown(text_of(sample.action.message))[:1000], task_context=TaskContext(id=str(name)))


def _known_result(sample: EvalSample, failure: Exception) -> StepResult:
    text = f"the result cannot be saved: {type(failure).__name__}: {shown(str(failure))[:1000]}"
    try:
        reward = None if sample.reward is None else RewardResult(reward=sample.reward)
    except (ValidationError, AttributeError):
        reward = None
    reason = sample.step_result.termination_reason
    return StepResult(
        observation=Observation(),
        reward=reward,
        termination_reason=reason if isinstance(reason, TerminationReason) else TerminationReason.UNCLASSIFIED_ERROR,
        error=ErrorRecord(type=type(failure).__name__, message=text, traceback="", where=Phase.LOOP),
    )


class FrameWriter:
    """Collects the frames of a batch of records; the caller appends `data` to the file before the records.

    `offset` is the length of the file before the batch; `tools` maps the hash of a set of tools to its place in the
    file, those of the batch included.
    """

    def __init__(self, offset: int, tools: Mapping[bytes, list[int]]) -> None:
        self.tools = dict(tools)
        self._start = offset
        self._parts: list[bytes] = []
        self._length = 0

    @property
    def data(self) -> bytes:
        """All frames."""
        return b"".join(self._parts)

    def add(self, payload: bytes) -> list[int]:
        """Add a frame; returns its `[offset, length]` in the file."""
        body = zlib.compress(payload, _LEVEL)
        frame = _FRAME.pack(_MAGIC, len(body), zlib.crc32(body)) + body
        place = [self._start + self._length, len(frame)]
        self._parts.append(frame)
        self._length += len(frame)
        return place

    def add_result(self, result: StepResult) -> dict[str, Any] | None:
        """Add all token data of a result; returns its places for the record, None without token data."""
        places: list[tuple[TokenObservation, list[int]]] = []

        def place(tokens: TokenObservation) -> list[int]:
            for known, where in places:
                if known == tokens:
                    return where
            places.append((tokens, self.add(tokens.to_bytes())))
            return places[-1][1]

        trajectories = [
            {
                **item.facts(),
                "tokens": place(item.tokens),
                "routed_experts": None if item.routed_experts is None else self.add(item.routed_experts),
            }
            for item in result.trajectories
        ]
        observed = result.observation.tokens
        if observed is None and not trajectories:
            return None
        record = {"observation": None if observed is None else place(observed), "trajectories": trajectories}
        if tools := result.observation.tools:
            record["tools"] = self._place_of_tools(tools)
        return record

    def _place_of_tools(self, tools: str) -> list[int]:
        data = tools.encode()
        key = sha256(data).digest()
        if key not in self.tools:
            if len(self.tools) >= MAX_SETS_OF_TOOLS:
                self.tools.clear()
            self.tools[key] = self.add(data)
        return self.tools[key]


def payload_of(frame: bytes) -> bytes | None:
    """The payload of a frame, None where it is damaged."""
    if len(frame) < _FRAME.size:
        return None
    magic, size, checksum = _FRAME.unpack_from(frame)
    body = frame[_FRAME.size :]
    return zlib.decompress(body) if (magic, size, checksum) == (_MAGIC, len(body), zlib.crc32(body)) else None


def may_be_ours(start: bytes) -> bool:
    """True for the beginning of a side file, or of the remains of one."""
    return start.startswith(_MAGIC) or _MAGIC.startswith(start) or not start.strip(b"\0")


def places_of(tokens: dict[str, Any] | None) -> list[tuple[int, int]]:
    """Every `[offset, length]` a record points at, each once."""
    if not tokens:
        return []
    places = [tokens["observation"], place_of_tools(tokens)]
    for item in tokens["trajectories"]:
        places += [item["tokens"], item["routed_experts"]]
    return list(dict.fromkeys((place[0], place[1]) for place in places if place))


def place_of_tools(tokens: dict[str, Any] | None) -> tuple[int, int] | None:
    """The `[offset, length]` of the set of tools of a record."""
    place = (tokens or {}).get("tools")
    return (place[0], place[1]) if place else None


def end_of(tokens: dict[str, Any] | None) -> int:
    """The end of the last frame a record points at; 0 for none."""
    return max((place[0] + place[1] for place in places_of(tokens)), default=0)
