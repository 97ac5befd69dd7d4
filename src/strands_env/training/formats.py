"""Rollouts of a saved run as rows of training data: which of them, and in the columns of each trainer."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from strands_env.core import Action, StepResult
from strands_env.core.files import arrow, replacing
from strands_sglang.conversation.messages import to_chat_messages
from strands_sglang.exceptions import MessageConversionError

from .advantages import group_advantages
from .build import samples_from_step
from .export import next_token_scores, one_row, reference_logprobs, trl_columns
from .sample import TEACHER_ERROR, SampleStatus, TrainingSample

BATCH = 500
"""Rows that are written at a time."""
IGNORED_LABEL = -100
"""Label of a token without loss, as `torch.nn.functional.cross_entropy` ignores it."""


UNTAUGHT = "that the teacher did not score"
TAUGHT_AT_ONCE = 256
"""Rollouts that a teacher scores at a time."""

Key: TypeAlias = tuple[str, int]
"""A rollout of a run: the id of its prompt, and its number among those of the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRollout:
    """One rollout to export.

    Attributes:
        paths: Its training samples.
        advantage: Its reward relative to its group; None if there are no advantages.
        group: Number of its prompt.
        number: Its own number.
        system_prompt: System prompt, for a result that did not record its own.
    """

    action: Action
    result: StepResult
    paths: list[TrainingSample]
    advantage: float | None
    group: int
    number: int
    system_prompt: str | None

    def neutral(self) -> list[TrainingSample]:
        """Its training samples, with the advantage in their metadata."""
        known = {} if self.advantage is None else {"advantage": self.advantage}
        return [replace(path, metadata={**path.metadata, **known}) for path in self.paths]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rollouts to export.

    Attributes:
        mixed: Only those of prompts whose rollouts differ in reward.
        whole: None that a limit cut off.
        advantages: Rewards relative to those of the whole group, whatever is left out of it: `dr_grpo` subtracts the
            mean, `grpo` divides by the standard deviation too.
    """

    min_reward: float | None = None
    max_reward: float | None = None
    mixed: bool = False
    whole: bool = False
    advantages: Literal["none", "dr_grpo", "grpo"] = "none"

    def rollouts(
        self,
        rewards: Mapping[Key, float | None],
        read: Callable[[Key], Any],
        left: Counter[str],
        *,
        system_prompt: str | None,
    ) -> Iterator[ExportedRollout]:
        """The rollouts, group by group.

        Args:
            rewards: Of all rollouts of the run.
            read: A sample of the run with its tokens.
            left: Counts what is left out, by reason.
            system_prompt: For results that did not record their own.
        """
        advantages = self._advantages(rewards)
        by_prompt: dict[str, set[float | None]] = {}
        for (prompt, _), reward in rewards.items():
            by_prompt.setdefault(prompt, set()).update(() if reward is None else (reward,))
        groups = {prompt: place for place, prompt in enumerate(by_prompt)}
        count = 0
        for key in sorted(rewards, key=lambda key: (groups[key[0]], key[1])):
            prompt, index = key
            if reason := self._left_out(rewards[key], is_mixed=len(by_prompt[prompt]) > 1):
                left[reason] += 1
                continue
            sample = read(key)
            paths = samples_from_step(
                sample.step_result,
                group_id=prompt,
                rollout_id=sample.id,
                metadata={"prompt_id": prompt, "index": index},
            )
            if not any(path.is_usable for path in paths):
                left["without tokens that could be trained"] += 1
                continue
            if self.whole and paths[0].status is SampleStatus.TRUNCATED:
                left["cut by a limit (--truncated keeps them)"] += 1
                continue
            yield ExportedRollout(
                action=sample.action,
                result=sample.step_result,
                paths=paths,
                advantage=None if advantages is None else advantages[key],
                group=groups[prompt],
                number=count,
                system_prompt=system_prompt,
            )
            count += 1

    def _left_out(self, reward: float | None, *, is_mixed: bool) -> str | None:
        if reward is None:
            return "without a reward"
        if self.min_reward is not None and reward < self.min_reward:
            return f"with a reward below {self.min_reward:g}"
        if self.max_reward is not None and reward > self.max_reward:
            return f"with a reward above {self.max_reward:g}"
        return "of prompts whose rollouts score alike" if self.mixed and not is_mixed else None

    def _advantages(self, rewards: Mapping[Key, float | None]) -> dict[Key, float] | None:
        if self.advantages == "none":
            return None
        values = group_advantages(
            list(rewards.values()),
            group_ids=[prompt for prompt, _ in rewards],
            rollout_ids=list(rewards),
            scale_by_std=self.advantages == "grpo",
        )
        return dict(zip(rewards, values, strict=True))


def taught(
    rollouts: Iterator[ExportedRollout],
    score: Callable[[list[TrainingSample]], Sequence[TrainingSample]],
    left: Counter[str],
) -> Iterator[ExportedRollout]:
    """The rollouts with a teacher's log-probabilities; one that it failed on is left out."""
    while batch := list(islice(rollouts, TAUGHT_AT_ONCE)):
        scored = iter(score([path for rollout in batch for path in rollout.paths]))
        for rollout in batch:
            paths = list(islice(scored, len(rollout.paths)))
            if why := [path.metadata[TEACHER_ERROR] for path in paths if TEACHER_ERROR in path.metadata]:
                left[f"{UNTAUGHT} ({why[0]})"] += 1
            else:
                yield replace(rollout, paths=paths)


# ---- columns -------------------------------------------------------------------------------------------------------


def _trl(rollout: ExportedRollout) -> dict[str, Any]:
    """Columns of a `rollout_func` for TRL's `GRPOTrainer`."""
    row = one_row(rollout.paths)
    return {
        **trl_columns(row, _logprobs(row)),
        "reward": row.reward,
        "advantage": rollout.advantage,
        "group_id": row.group_id,
        **({} if row.teacher_logprobs is None else {"teacher_logprobs": reference_logprobs(row)[row.prompt_length :]}),
    }


def _verl(rollout: ExportedRollout) -> dict[str, Any]:
    """The fields of verl's `AgentLoopOutput`, and the `uid` its advantages group by."""
    row = one_row(rollout.paths)
    start = row.prompt_length
    return {
        "prompt_ids": row.token_ids[:start].tolist(),
        "response_ids": row.token_ids[start:].tolist(),
        "response_mask": row.trained_mask()[start:],
        "response_logprobs": _logprobs(row)[start:],
        "reward_score": row.reward,
        "advantage": rollout.advantage,
        "uid": row.group_id,
        **_verl_teacher(row),
    }


def _verl_teacher(row: TrainingSample) -> dict[str, Any]:
    if row.teacher_logprobs is None:
        return {}
    ids, logprobs = next_token_scores(row, 0 if row.teacher_top_ids is None else row.teacher_top_ids.shape[1])
    return {"teacher_ids": ids.tolist(), "teacher_logprobs": logprobs.tolist()}


def _slime(rollout: ExportedRollout) -> dict[str, Any]:
    """The fields of slime's `Sample` that a rollout fills."""
    row = one_row(rollout.paths)
    start = row.prompt_length
    return {
        "group_index": rollout.group,
        "index": rollout.number,
        "prompt": rollout.action.text,
        "label": _text(rollout.action.task_context.ground_truth),
        "response": rollout.result.observation.final_response or "",
        "tokens": row.token_ids.tolist(),
        "response_length": row.response_length,
        "loss_mask": row.trained_mask()[start:],
        "rollout_log_probs": _logprobs(row)[start:],
        "reward": row.reward,
        "status": row.status.value,
        **({} if row.teacher_logprobs is None else {"teacher_log_probs": reference_logprobs(row)[start:]}),
    }


def _sft(rollout: ExportedRollout) -> dict[str, Any]:
    """Messages and tools as chat templates take them, and the exact ids with labels: what was sampled is learned.

    `tools` is JSON text, which TRL and slime read as they read a list: a column of schemas has no one type in Parquet.
    """
    row = one_row(rollout.paths)
    labels = np.where(np.array(row.trained_mask(), dtype=bool), row.token_ids, IGNORED_LABEL)
    seen, given = rollout.result.observation, rollout.action.task_context.conversation_history
    messages = [*(given if seen.history is None else seen.history), *seen.messages]
    try:
        chat = to_chat_messages(messages, seen.system_prompt or rollout.system_prompt).messages
    except MessageConversionError:  # a block that no chat template has; the ids are whole
        chat = []
    return {
        "messages": chat,
        "tools": seen.tools,
        "input_ids": row.token_ids.tolist(),
        "labels": labels.tolist(),
        "reward": row.reward,
        "prompt_id": row.group_id,
    }


FORMATS: dict[str, Callable[[ExportedRollout], dict[str, Any]]] = {
    "trl": _trl,
    "verl": _verl,
    "slime": _slime,
    "sft": _sft,
}
"""Formats by name, beside `samples`."""

_INTEGERS = ("prompt_ids", "completion_ids", "response_ids", "tokens", "input_ids", "labels")
_MASKS = ("env_mask", "response_mask", "loss_mask")
_FLOATS = ("logprobs", "response_logprobs", "rollout_log_probs")
_TEXTS = ("group_id", "uid", "prompt_id", "prompt", "label", "response", "status", "tools")
_COUNTS = ("group_index", "index", "response_length")


def _logprobs(row: TrainingSample) -> list[float]:
    """Log-probabilities of all tokens; NaN everywhere where none were recorded."""
    return [math.nan] * len(row) if row.logprobs is None else row.full_logprobs()


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, default=str)


def write_rows(rows: Iterator[dict[str, Any]], target: Path) -> int:
    """Write rows, all with the same columns, to a Parquet or JSON Lines file, and return their number.

    The file appears under its name when it is complete; its suffix says which kind it is.

    Raises:
        ImportError: The package for Parquet is not installed.
    """
    count = 0
    with replacing(target) as partial:
        if target.suffix == ".jsonl":
            with partial.open("w", encoding="utf-8") as file:
                for row in rows:
                    file.write(json.dumps(_decoded(row), ensure_ascii=False) + "\n")
                    count += 1
            return count
        pa, parquet = arrow(", or write .jsonl")
        writer = None
        try:
            while batch := list(islice(rows, BATCH)):
                schema = pa.schema([(name, _column(pa, name, value)) for name, value in batch[0].items()])
                table = pa.Table.from_pylist([_columnar(row) for row in batch], schema=schema)
                writer = writer or parquet.ParquetWriter(partial, schema, compression="zstd")
                writer.write_table(table)
                count += len(batch)
        finally:
            if writer is not None:
                writer.close()
    return count


def _decoded(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for JSON: no NaN."""
    shown = dict(row)
    for name in _FLOATS:
        if name in shown:
            shown[name] = [None if math.isnan(value) else value for value in shown[name]]
    return shown


def _columnar(row: dict[str, Any]) -> dict[str, Any]:
    """A row for Parquet: what has no fixed shape in a message is JSON text."""
    if "messages" not in row:
        return row
    return {**row, "messages": [_flat_message(message) for message in row["messages"]]}


def _flat_message(message: Mapping[str, Any]) -> dict[str, Any]:
    flat = {**message, "content": _text(message.get("content"))}
    if calls := message.get("tool_calls"):
        flat["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _text(call["function"].get("arguments"))}}
            for call in calls
        ]
    return flat


def _message_type(pa: Any) -> Any:
    text = pa.string()
    function = pa.struct([("name", text), ("arguments", text)])
    call = pa.struct([("id", text), ("type", text), ("function", function)])
    texts = ("role", "content", "reasoning_content")
    return pa.struct(
        [*((name, text) for name in texts), ("tool_calls", pa.list_(call)), ("tool_call_id", text), ("name", text)]
    )


def _column(pa: Any, name: str, value: Any) -> Any:
    if name.startswith("teacher_"):
        number = pa.int32() if name == "teacher_ids" else pa.float64()
        return pa.list_(pa.list_(number) if isinstance(value[0], list) else number)
    if name == "messages":
        return pa.list_(_message_type(pa))
    if name in _INTEGERS:
        return pa.list_(pa.int32())
    if name in _MASKS:
        return pa.list_(pa.uint8())
    if name in _FLOATS:
        return pa.list_(pa.float64())
    if name in _TEXTS:
        return pa.string()
    return pa.int64() if name in _COUNTS else pa.float64()
