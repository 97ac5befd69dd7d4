"""`strands-env export`: a run as training data, one row a rollout."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from strands_env.commands.runs import SavedRun
from strands_env.commands.terminal import complain, say
from strands_env.core.files import replacing
from strands_env.eval import EvalError, EvalSample
from strands_env.eval.store import ResultReader
from strands_env.recipe.evaluation import check_writable
from strands_env.training import TrainingSample, group_advantages, samples_from_step, save_samples
from strands_env.training.export import full_logprobs, one_row, trained_mask
from strands_env.training.storage import arrow
from strands_sglang.command_line import Exit
from strands_sglang.exceptions import MessageConversionError
from strands_sglang.messages import to_chat_messages

BATCH = 500
"""Rows that are written at a time."""
IGNORED_LABEL = -100
"""Label of a token without loss, as `torch.nn.functional.cross_entropy` ignores it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One rollout to export.

    Attributes:
        sample: The evaluated sample.
        paths: Its training samples.
        advantage: Its reward relative to its group; None where not asked for.
        group: Number of its prompt, in the order of the run.
        number: Its number in the export.
        system_prompt: System prompt of the run, for samples that did not record theirs.
    """

    sample: EvalSample
    paths: list[TrainingSample]
    advantage: float | None
    group: int
    number: int
    system_prompt: str | None


def run(args: argparse.Namespace) -> int:
    """Write it."""
    target = Path(args.output)
    try:
        if target.suffix not in (".parquet", ".jsonl") or (args.format == "samples" and target.suffix == ".jsonl"):
            wanted = ".parquet" if args.format == "samples" else ".parquet or .jsonl"
            raise EvalError(
                f"--output: the format {args.format!r} is written to a file that ends in {wanted}, got {args.output!r}"
                f"{_other_formats(target)}"
            )
        if target.exists() and not args.overwrite:
            raise EvalError(f"--output: {args.output!r} exists: give another file, or --overwrite")
        saved = SavedRun.of(args.run)
        left: Counter[str] = Counter()
        with ResultReader(saved.paths.results) as reader:
            check_writable(target, option="--output")
            rollouts = _rollouts(saved, reader, args, left)
            if args.format == "samples":
                rows = save_samples((path for rollout in rollouts for path in _neutral(rollout)), target)
            else:
                rows = write_rows((FORMATS[args.format](rollout) for rollout in rollouts), target)
    except FileNotFoundError as error:
        complain("export", f"there are no results at {error.filename!r}")
        return Exit.USAGE
    except ImportError as error:
        complain("export", error)
        return Exit.USAGE
    except OSError as error:
        complain("export", f"cannot write {args.output!r}: {error.strerror or error}; no file was left behind")
        return Exit.REFUSED
    except EvalError as error:
        complain("export", error)
        return Exit.USAGE if "--output" in str(error) else Exit.REFUSED
    if args.json:
        say(json.dumps({"path": str(target), "rows": rows, "left_out": dict(left)}))
    else:
        say(f"{target}  {rows} rows, format {args.format}")
        if left:
            say("left out    " + ", ".join(f"{count} {reason}" for reason, count in left.most_common()))
    if not rows:
        complain("export", "nothing was written: every rollout was left out, see above")
        return Exit.USAGE
    return Exit.OK


def _other_formats(target: Path) -> str:
    return f" (--format {', '.join(FORMATS)} write .jsonl too)" if target.suffix == ".jsonl" else ""


def _rollouts(saved: SavedRun, reader: ResultReader, args: argparse.Namespace, left: Counter[str]) -> Iterator[Rollout]:
    rewards = {(e.prompt_id, e.index): reader.read(e).reward for e in reader.entries}
    advantages = _advantages(rewards, args.advantages)
    by_prompt: dict[str, set[float]] = {}
    for (prompt, _), reward in rewards.items():
        if reward is not None:
            by_prompt.setdefault(prompt, set()).add(reward)
    groups = {prompt: place for place, prompt in enumerate(dict.fromkeys(entry.prompt_id for entry in reader.entries))}
    count = 0
    for entry in sorted(reader.entries, key=lambda entry: (groups[entry.prompt_id], entry.index)):
        reward = rewards[(entry.prompt_id, entry.index)]
        mixed = len(by_prompt.get(entry.prompt_id, ())) > 1
        if reason := _left_out(reward, mixed, args):
            left[reason] += 1
            continue
        sample = reader.read(entry, with_tokens=True)
        paths = samples_from_step(
            sample.step_result,
            group_id=entry.prompt_id,
            rollout_id=sample.id,
            metadata={"prompt_id": entry.prompt_id, "index": entry.index},
        )
        if not any(path.is_usable for path in paths):
            left["without tokens that could be trained"] += 1
            continue
        if paths[0].status == "truncated" and not args.truncated and args.format == "sft":
            left["cut by a limit (--truncated keeps them)"] += 1
            continue
        advantage = None if advantages is None else advantages[(entry.prompt_id, entry.index)]
        yield Rollout(
            sample=sample,
            paths=paths,
            advantage=advantage,
            group=groups[entry.prompt_id],
            number=count,
            system_prompt=saved.system_prompt,
        )
        count += 1


def _left_out(reward: float | None, mixed: bool, args: argparse.Namespace) -> str | None:
    if reward is None:
        return "without a reward"
    if args.min_reward is not None and reward < args.min_reward:
        return f"with a reward below {args.min_reward:g}"
    if args.max_reward is not None and reward > args.max_reward:
        return f"with a reward above {args.max_reward:g}"
    return "of prompts whose rollouts score alike" if args.mixed and not mixed else None


def _advantages(rewards: Mapping[tuple[str, int], float | None], kind: str) -> dict[tuple[str, int], float] | None:
    """Advantages over the whole groups, whatever is filtered out afterwards."""
    if kind == "none":
        return None
    keys = list(rewards)
    values = group_advantages(
        [rewards[key] for key in keys],
        group_ids=[prompt for prompt, _ in keys],
        rollout_ids=keys,
        scale_by_std=kind == "grpo",
    )
    return dict(zip(keys, values, strict=True))


def _neutral(rollout: Rollout) -> list[TrainingSample]:
    known = {} if rollout.advantage is None else {"advantage": rollout.advantage}
    return [replace(path, metadata={**path.metadata, **known}) for path in rollout.paths]


# ---- formats: one row a rollout -------------------------------------------------------------------------------------


def _trl(rollout: Rollout) -> dict[str, Any]:
    """Columns of a `rollout_func` for TRL's `GRPOTrainer`."""
    row = one_row(rollout.paths)
    start = row.prompt_length
    return {
        "prompt_ids": row.token_ids[:start].tolist(),
        "completion_ids": row.token_ids[start:].tolist(),
        "logprobs": _logprobs(row)[start:],
        "env_mask": trained_mask(row)[start:],
        "reward": row.reward,
        "advantage": rollout.advantage,
        "group_id": row.group_id,
    }


def _verl(rollout: Rollout) -> dict[str, Any]:
    """The fields of verl's `AgentLoopOutput`, and the `uid` its advantages group by."""
    row = one_row(rollout.paths)
    start = row.prompt_length
    return {
        "prompt_ids": row.token_ids[:start].tolist(),
        "response_ids": row.token_ids[start:].tolist(),
        "response_mask": trained_mask(row)[start:],
        "response_logprobs": _logprobs(row)[start:],
        "reward_score": row.reward,
        "advantage": rollout.advantage,
        "uid": row.group_id,
    }


def _slime(rollout: Rollout) -> dict[str, Any]:
    """The fields of slime's `Sample` that a rollout fills."""
    row = one_row(rollout.paths)
    start = row.prompt_length
    return {
        "group_index": rollout.group,
        "index": rollout.number,
        "prompt": rollout.sample.action.text,
        "label": _text(rollout.sample.action.task_context.ground_truth),
        "response": rollout.sample.step_result.observation.final_response or "",
        "tokens": row.token_ids.tolist(),
        "response_length": row.response_length,
        "loss_mask": trained_mask(row)[start:],
        "rollout_log_probs": _logprobs(row)[start:],
        "reward": row.reward,
        "status": row.status.value,
    }


def _sft(rollout: Rollout) -> dict[str, Any]:
    """Messages and tools as chat templates take them, and the exact ids with labels: what was sampled is learned.

    `tools` is JSON text, which TRL and slime read as they read a list: a column of schemas has no one type in Parquet.
    """
    row = one_row(rollout.paths)
    labels = np.where(np.array(trained_mask(row), dtype=bool), row.token_ids, IGNORED_LABEL)
    seen, given = rollout.sample.step_result.observation, rollout.sample.action.task_context.conversation_history
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


FORMATS: dict[str, Callable[[Rollout], dict[str, Any]]] = {"trl": _trl, "verl": _verl, "slime": _slime, "sft": _sft}
"""Formats by name, beside `samples`."""

_INTEGERS = ("prompt_ids", "completion_ids", "response_ids", "tokens", "input_ids", "labels")
_MASKS = ("env_mask", "response_mask", "loss_mask")
_FLOATS = ("logprobs", "response_logprobs", "rollout_log_probs")
_TEXTS = ("group_id", "uid", "prompt_id", "prompt", "label", "response", "status", "tools")
_COUNTS = ("group_index", "index", "response_length")


def _logprobs(row: TrainingSample) -> list[float]:
    """Log-probabilities of all tokens; NaN everywhere where none were recorded."""
    return [math.nan] * len(row) if row.logprobs is None else full_logprobs(row)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, default=str)


def write_rows(rows: Iterator[dict[str, Any]], target: Path) -> int:
    """Write rows to a Parquet or JSON Lines file, which appears under its name when it is complete.

    Args:
        rows: The rows, all with the same columns.
        target: The file; its suffix says which kind.

    Returns:
        Number of rows.

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
                schema = pa.schema([(name, _column(pa, name)) for name in batch[0]])
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


def _column(pa: Any, name: str) -> Any:
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
