"""A sample as one line of the results file: JSON with a checksum, the CRC-32 of everything before it.

    {"id":..,"prompt_id":..,"task":..,"index":..,"place":..,"aborted":..,"reward":..,"attempts":..,"duration_s":..,
     "action":{..},"step_result":{..},"tokens":{..},"crc":"1a2b3c4d"}

The fields before `action` are all that a resume needs. `tokens` holds what JSON would make large, each part compressed
and in base64: `sequences` (of which `observation` and each trajectory name one by its place), routed experts, tools.
"""

from __future__ import annotations

import base64
import math
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson
import pydantic_core

from strands_env.core import StepResult, TerminationReason, TokenObservation, Trajectory
from strands_env.core.jsonable import shown, stored_context, text_of
from strands_env.core.types import shared_text
from strands_env.eval.errors import StoreCorruptError, StoreError
from strands_env.eval.sample import EvalSample

_BEGINNING = b'{"id":"'
_BODY = b',"action":'  # the end of the head: in JSON text these quotes would be escaped
_CHECKSUM = re.compile(rb',"crc":"([0-9a-f]{8})"\}\n\Z')
_CHECKSUM_LENGTH = len(b',"crc":"00000000"}\n')
_LARGE: Any = {"observation": {"tokens": True, "tools": True}, "trajectories": True}  # `tokens` of the line has these


class LineError(ValueError):
    """A line that is not a sample.

    `kind`: `residue` of an interrupted write or a power cut (or blank), which can be passed over; `damaged`; or
    `foreign`, which we never wrote.
    """

    def __init__(self, what: str, kind: Literal["residue", "damaged", "foreign"]) -> None:
        super().__init__(what)
        self.kind = kind

    def at(self, path: Path, number: int) -> StoreError:
        """The error for this line of a file."""
        where = f"line {number} of {str(path)!r}"
        if self.kind == "foreign":
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


def check_line(line: bytes) -> None:
    """Compare the checksum of a line with its newline; `LineError` where it does not fit."""
    found = _CHECKSUM.search(line, max(0, len(line) - _CHECKSUM_LENGTH))
    if found is not None and b"%08x" % zlib.crc32(memoryview(line)[:-_CHECKSUM_LENGTH]) == found[1]:
        return
    # Blocks that never reached the device are zeros: JSON has none, and one alone may be a flipped bit.
    if b"\0\0" in line or not line.strip(b"\0 \t\r\n"):
        raise LineError("it was not written to its end", "residue")
    if not line.endswith(b"\n"):
        raise LineError("it has no end", "residue" if _is_cut(line) else "foreign")
    if found is None and not line.startswith(_BEGINNING):
        raise LineError("it is not an evaluated sample", "foreign")
    raise LineError("its checksum does not fit", "damaged")


def _is_cut(tail: bytes) -> bool:
    """True for the beginning of a line of ours; anything else is somebody's data, and must not be cut off."""
    if not (tail.startswith(_BEGINNING) or _BEGINNING.startswith(tail)):
        return False
    if _CHECKSUM.search(tail + b"\n") is not None:  # cut right before its newline
        return True
    if _CHECKSUM.search(tail[:-1] + b"\n") is not None:  # a newline with a flipped bit
        return False
    try:
        pydantic_core.from_json(tail)
    except ValueError:
        return True
    return False  # whole JSON without our checksum


def read_entry(line: bytes, offset: int) -> Entry:
    """The entry of a line with its newline; only the head is parsed.

    Raises:
        LineError: The line is damaged, cut off, or no sample.
        StoreError: An earlier version wrote it.
    """
    check_line(line)
    try:
        head = orjson.loads(line[: line.find(_BODY)] + b"}")
        entry = Entry(
            id=bytes.fromhex(head["id"]),
            prompt_id=sys.intern(head["prompt_id"]),
            task=sys.intern(head["task"]),
            index=head["index"],
            place=head.get("place"),
            aborted=head["aborted"],
            reward=head["reward"],
            offset=offset,
            length=len(line),
        )
    except (LookupError, ValueError, TypeError) as error:
        raise LineError(f"it is not an evaluated sample ({type(error).__name__}: {error})", "foreign") from error
    if "tokens" in head:  # places in a side file
        raise StoreError(
            "an earlier version wrote these results, with their tokens in another file: convert them with "
            "python -m strands_env.eval.convert RUN NEW"
        )
    return entry


def read_sample(line: bytes, *, with_tokens: bool = False) -> EvalSample:
    """The sample in a line with its newline.

    Raises:
        LineError: The line is damaged, or no sample.
        StoreCorruptError: It is of another format.
    """
    check_line(line)
    return _parse(line, with_tokens=with_tokens)


def _parse(line: bytes, *, with_tokens: bool = False) -> EvalSample:
    try:
        record: dict[str, Any] = pydantic_core.from_json(line)
    except ValueError as error:
        raise LineError(f"it is not JSON: {error}", "foreign") from error
    try:
        fields = {**record, "task_digest": record["task"]}
        sample = EvalSample.model_validate(fields, context=stored_context(line))
        if with_tokens and (tokens := record.get("tokens")) is not None:
            _unpack_tokens(sample.step_result, tokens)
    except (LookupError, ValueError, TypeError, RecursionError, zlib.error) as error:
        raise StoreCorruptError(f"the record {record.get('id')!r} is not an evaluated sample: {error}") from error
    return sample


# ---- writing ---------------------------------------------------------------------------------------------------------


def write_sample(sample: EvalSample) -> bytes:
    """The line of a sample, newline included; it was read back once, so that a reader can read it.

    What JSON cannot hold becomes text; of a sample that still cannot be read back, only its score is kept, and an
    error that says so.
    """
    action, result = sample.action, sample.step_result
    tokens = _pack_tokens(result)
    try:
        # A field of another type than its own would be written, but not read: an error, where pydantic only warns.
        return _checked_line(
            sample,
            tokens,
            action.__pydantic_serializer__.to_json(action, warnings="error"),
            result.__pydantic_serializer__.to_json(result, exclude=_LARGE, warnings="error"),
        )
    except (pydantic_core.PydanticSerializationError, ValueError, TypeError, RecursionError, StoreError) as error:
        failure: Exception = error
    try:  # a tool may have returned any object, and any bytes as text
        seen = result.observation
        observation = {**seen.__dict__, **(seen.__pydantic_extra__ or {}), "tokens": None, "tools": None}
        fields = {**result.__dict__, **(result.__pydantic_extra__ or {}), "trajectories": []}
        shown_result = orjson.dumps(shown({**fields, "observation": observation}))
        return _checked_line(sample, tokens, orjson.dumps(shown(action)), shown_result)
    except (StoreError, ValueError, TypeError, RecursionError, AttributeError) as error:
        failure.add_note(str(error))
    text = f"the result cannot be saved: {type(failure).__name__}: {shown(str(failure))[:1000]}"
    reason = result.termination_reason
    reward = _reward_of(sample)
    known = {
        "observation": {},
        "reward": None if reward is None else {"reward": reward},
        "termination_reason": reason if isinstance(reason, TerminationReason) else TerminationReason.UNCLASSIFIED_ERROR,
        "error": {"type": type(failure).__name__, "message": text, "traceback": "", "where": "loop"},
    }
    message, name = shown(text_of(action.message))[:1000], shown(str(action.task_context.id))
    asked = {"message": message, "task_context": {"id": name}}
    return _checked_line(sample, tokens, orjson.dumps(asked), orjson.dumps(known))


def _reward_of(sample: EvalSample) -> float | None:
    """The reward of a sample whose fields may have been set to anything."""
    reward: Any = getattr(sample.step_result.reward, "reward", None)
    is_one = isinstance(reward, float | int) and math.isfinite(reward) and not sample.aborted
    return reward if is_one else None


def _checked_line(sample: EvalSample, tokens: dict[str, Any] | None, action: bytes, result: bytes) -> bytes:
    """The line of these parts; an error where it would not be read as a sample."""
    head = {
        "id": sample.id,
        "prompt_id": sample.prompt_id,
        "task": sample.task_digest,
        "index": sample.index,
        "aborted": sample.aborted,
        "reward": _reward_of(sample),
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
    _parse(line)  # assignments to fields are not validated, so what was written may not be readable
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
