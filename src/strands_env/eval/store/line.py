"""A sample as one line of the results file: JSON with a checksum, the CRC-32 of everything before it.

    {"id":..,"prompt_id":..,"index":..,"aborted":..,"attempts":..,"duration_s":..,"place":..,"task":..,"reward":..,
     "action":{..},"step_result":{..},"tokens":{..},"crc":"1a2b3c4d"}

The fields before `action` are all that a resume needs. `tokens` holds what JSON would make large, each part compressed
and in base64: `sequences` (of which `observation` and each trajectory name one by its place), routed experts, tools.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

import orjson
import pydantic_core

from strands_env.core import (
    Action,
    End,
    ErrorRecord,
    Observation,
    Outcome,
    Phase,
    RewardResult,
    StepResult,
    TaskContext,
    TerminationReason,
    TokenObservation,
    Trajectory,
)
from strands_env.core.jsonable import MARKS, STORED_CONTEXT, exact, readable, strict_json
from strands_env.core.types import check_name, check_state, shared_text
from strands_env.eval.errors import StoreCorruptError, StoreError
from strands_env.eval.sample import EvalSample
from strands_sglang import lines
from strands_sglang.lines import pack, unpack

_BEGINNING = b'{"id":"'
_HEAD = ("id", "prompt_id", "index", "aborted", "attempts", "duration_s", "place")
_head_of = attrgetter(*_HEAD)
_BODY = b',"action":'  # the end of the head: in JSON text these quotes would be escaped
_LARGE: Any = {"observation": {"tokens": True, "tools": True}, "trajectories": True}  # `tokens` of the line has these


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


class Line(NamedTuple):
    """A sample as it is written: the bytes of its line, and its entry in a file that begins with it."""

    text: bytes
    entry: Entry


# ---- reading ---------------------------------------------------------------------------------------------------------


def is_whole(line: bytes) -> bool:
    """Compare the checksum of a line with its newline. False for what an interrupted write or a power cut left.

    Raises:
        StoreCorruptError: It is damaged, or we never wrote it: that is somebody's data, and must not be cut off.
    """
    try:
        return lines.is_whole(line, _BEGINNING)
    except lines.DamagedLineError as error:
        raise StoreCorruptError(
            "it is damaged, or not an evaluated sample: remove that line to continue, and its sample will be run "
            "again; or give the file, or another output path, of an evaluation"
        ) from error


def read_entry(line: bytes, offset: int) -> Entry | None:
    """The entry of a line with its newline; only the head is parsed. None for the remains of an interrupted write.

    Raises:
        StoreCorruptError: The line is damaged, or no sample.
    """
    if not is_whole(line):
        return None
    return _to_entry(orjson.loads(line[: line.find(_BODY)] + b"}"), offset, len(line))


def _to_entry(head: dict[str, Any], offset: int, length: int) -> Entry:
    prompt_id, task = sys.intern(head["prompt_id"]), sys.intern(head["task"])  # one text for all samples of a prompt
    get: Any = head.get
    name, index, place = bytes.fromhex(head["id"]), get("index"), get("place")
    return Entry(name, prompt_id, task, index, place, get("aborted"), get("reward"), offset, length)


def read_sample(line: bytes, *, with_tokens: bool = False) -> EvalSample:
    """The sample in a line with its newline.

    Raises:
        StoreCorruptError: The line is damaged, cut off, or not a sample that this version can read.
    """
    if not is_whole(line):
        raise StoreCorruptError("it was not written to its end")
    return _parse(line, with_tokens=with_tokens)


def _parse(line: bytes, *, with_tokens: bool = False) -> EvalSample:
    record: dict[str, Any] = pydantic_core.from_json(line)
    try:
        known = {**record, "task_digest": record["task"]}
        context = STORED_CONTEXT if MARKS.search(line) else None
        sample: EvalSample = EvalSample.__pydantic_validator__.validate_python(known, context=context)
        if with_tokens and (tokens := record.get("tokens")) is not None:
            unpack_tokens(sample.step_result, tokens)
    except (LookupError, ValueError, TypeError, RecursionError, zlib.error) as error:
        raise StoreCorruptError(f"the record {record.get('id')!r} is not an evaluated sample: {error}") from error
    return sample


# ---- writing ---------------------------------------------------------------------------------------------------------


def write_sample(sample: EvalSample) -> Line:
    """The line of a sample, newline included, which a reader can read: it is parsed here where its types do not say so.

    What JSON cannot hold becomes text; of a sample that still cannot be read, only its score is kept, and an error that
    says so.
    """
    action, result = sample.action, sample.step_result
    reward: Any = getattr(result.reward, "reward", None)  # its fields may have been set to anything
    head = dict(zip(_HEAD, _head_of(sample), strict=True))
    is_scored = isinstance(reward, float | int) and math.isfinite(reward) and not head["aborted"]
    head |= {"task": sample.task_digest, "reward": reward if is_scored else None}
    has_tokens = result.observation.tokens is not None or result.trajectories
    tokens = _pack_tokens(result) if has_tokens else None
    ending = b"" if tokens is None else b',"tokens":' + orjson.dumps(tokens)
    is_usual = _is_usual(sample)

    def finish(body: bytes, is_readable: bool) -> Line:
        line = lines.finish_line(body + ending)
        if not is_readable:  # assignments to fields are not validated
            _parse(line)
        return Line(line, _to_entry(head, 0, len(line)))

    def join(action: bytes, result: bytes) -> Line:
        body = b"".join((orjson.dumps(head)[:-1], _BODY, action, b',"step_result":', result))
        return finish(body, is_usual and _is_shallow(sample, body))

    whole = strict_json(head | _usual_fields(sample)) if is_usual else None
    if whole is not None and MARKS.search(whole) is None:
        return finish(whole[:-1], is_readable=True)
    try:
        # A field of another type than its own would be written, but not read: an error, where pydantic only warns.
        return join(
            action.__pydantic_serializer__.to_json(action, warnings="error"),
            result.__pydantic_serializer__.to_json(result, exclude=_LARGE, warnings="error"),
        )
    except (pydantic_core.PydanticSerializationError, ValueError, TypeError, RecursionError, StoreError) as error:
        failure = error
    action_json = orjson.dumps(readable(action))
    try:  # a tool may have returned any object, and any bytes as text
        observation = result.observation.model_copy(update={"tokens": None, "tools": None})
        parts = readable(result.model_copy(update={"observation": observation, "trajectories": [], "state": None}))
        parts["state"] = exact(check_state(result.state))  # exact, or not at all: a reward may judge it again
        return join(action_json, json.dumps(parts).encode())
    except (StoreError, ValueError, TypeError, RecursionError, AttributeError) as error:
        failure.add_note(str(error))
    text = f"the result cannot be saved: {type(failure).__name__}: {readable(str(failure))[:1000]}"
    record = ErrorRecord(type=type(failure).__name__, message=text, traceback="", where=Phase.LOOP)
    end = replace(result.end, error=record)
    kept = StepResult(observation=Observation(), reward=RewardResult(reward=reward) if is_scored else None, end=end)
    return join(action_json, kept.to_json().encode())


_USUAL = (Action, TaskContext, StepResult, Observation, End)
_USUAL_FIELDS = (str, str, list, list, dict, list, TerminationReason, Outcome, str, str, str, int, int, float)
_USUAL_REWARD = (dict, dict, list)
_LEVELS = 190  # of a part of a line: pydantic reads 200 of a whole one


def _is_usual(sample: EvalSample) -> bool:
    """True where a reader can read what is written of a sample, told from its types at a tenth of the cost of a parse.

    Pydantic does not check all that it writes. So each field is looked at that an assignment can change; of values that
    JSON holds as they are, only their levels count, which `_is_shallow` tells.
    """
    try:
        action, result = sample.action, sample.step_result
        context, observation, reward, end = action.task_context, result.observation, result.reward, result.end
        if (type(action), type(context), type(result), type(observation), type(end)) != _USUAL:
            return False
        messages, history, errors = observation.messages, context.conversation_history, result.tool_errors
        fields = (action.message, context.id, history, messages, observation.metrics, errors, end.reason, end.outcome)
        head = (sample.id, sample.prompt_id, sample.task_digest, sample.index, sample.attempts, sample.duration_s)
        if tuple(map(type, fields + head)) != _USUAL_FIELDS or errors:
            return False
        if not {*map(type, messages), *map(type, history)} <= {dict}:
            return False
        if not (observation.history is result.state is result.cleanup_error is end.error is None):
            return False
        if not (_is_optional(sample.place, int) and _is_optional(observation.system_prompt, str)):
            return False
        if not math.isfinite(sample.duration_s):
            return False
        if reward is not None:
            if type(reward) is not RewardResult or not _is_optional(reward.reward, float):
                return False
            if (type(reward.info), type(reward.turn_rewards), type(reward.span_rewards)) != _USUAL_REWARD:
                return False
            if not math.isfinite(reward.reward or 0.0) or reward.turn_rewards or reward.span_rewards:
                return False
            if reward.error is not None:
                return False
        for name in context.__pydantic_extra__ or ():
            check_name(TaskContext, name)
    except (AttributeError, TypeError, ValueError):  # such as a name that no field may have
        return False
    return True


def _usual_fields(sample: EvalSample) -> dict[str, Any]:
    """What pydantic writes of a usual sample, as JSON values; for its parts in the same order."""
    action, result = sample.action, sample.step_result
    context, observation, end = action.task_context, result.observation, result.end
    reward: dict[str, Any] | None = None
    if (found := result.reward) is not None:
        reward = {"reward": found.reward, "info": found.info, "turn_rewards": {}, "span_rewards": [], "error": None}
    return {
        "action": {
            "message": action.message,
            "task_context": {**context.__dict__, **(context.__pydantic_extra__ or {})},
        },
        "step_result": {
            "observation": {
                "messages": observation.messages,
                "metrics": observation.metrics,
                "system_prompt": observation.system_prompt,
                "history": None,
            },
            "reward": reward,
            "state": None,
            "cleanup_error": None,
            "tool_errors": [],
            "termination_reason": end.reason.value,
            "outcome": end.outcome.value,
            "error": None,
        },
    }


def _is_shallow(sample: EvalSample, body: bytes) -> bool:
    """True where no part of what was written of a usual sample has more levels than a reader follows."""
    if _count_levels(body) <= _LEVELS:
        return True
    context, observation, reward = sample.action.task_context, sample.step_result.observation, sample.step_result.reward
    others = {**context.__dict__, **(context.__pydantic_extra__ or {}), "conversation_history": None}
    parts = (*observation.messages, *context.conversation_history, others, observation.metrics, reward and reward.info)
    try:
        return all(_count_levels(orjson.dumps(part)) <= _LEVELS for part in parts)
    except TypeError:  # such as bytes
        return False


def _is_optional(value: object, expected: type) -> bool:
    return value is None or type(value) is expected


def _count_levels(text: bytes) -> int:
    """Levels of a JSON text, or more: the brackets that open one, those in strings included."""
    return text.count(b"{") + text.count(b"[")


def _pack_tokens(result: StepResult) -> dict[str, Any]:
    """The token data of a result as JSON values, each sequence once."""
    observed, tools = result.observation.tokens, result.observation.tools
    sequences: list[TokenObservation] = []
    # The observed sequence is nearly always one of a trajectory.
    for tokens in (observed, *(item.tokens for item in result.trajectories)):
        if tokens is not None and tokens not in sequences:
            sequences.append(tokens)
    trajectories = [
        {**item.facts(), "tokens": sequences.index(item.tokens), "routed_experts": pack(item.routed_experts)}
        for item in result.trajectories
    ]
    return {
        "observation": None if observed is None else sequences.index(observed),
        "tools": None if tools is None else pack(tools.encode()),
        "trajectories": trajectories,
        "sequences": [pack(tokens.to_bytes()) for tokens in sequences],
    }


def unpack_tokens(result: StepResult, packed: Mapping[str, Any]) -> None:
    """Give a result the token data that `tokens` of its line holds."""
    sequences = [TokenObservation.from_bytes(unpack(text)) for text in packed["sequences"]]
    if (place := packed["observation"]) is not None:
        result.observation.tokens = sequences[place]
    if (tools := packed["tools"]) is not None:
        result.observation.tools = shared_text(unpack(tools).decode())
    for item in packed["trajectories"]:
        experts = None if item["routed_experts"] is None else unpack(item["routed_experts"])
        fields = {**item, "tokens": sequences[item["tokens"]], "routed_experts": experts}
        result.trajectories.append(Trajectory.from_dict(fields))
