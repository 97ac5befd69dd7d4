"""Exports of a saved run: selected rollouts, rows of supervised fine-tuning, and prompts for the next run."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from strands_env.core import Action
from strands_env.core.files import arrow
from strands_env.core.seeds import FIELD
from strands_env.core.types import system_prompt_of
from strands_sglang.conversation.messages import format_messages
from strands_sglang.exceptions import MessageConversionError
from strands_sglang.lines import replacing

from .advantages import group_advantages
from .build import samples_from_step
from .export import one_row
from .sample import TrainingSample

IGNORED_LABEL = -100
"""Label of a token without loss, as `torch.nn.functional.cross_entropy` ignores it."""


Key: TypeAlias = tuple[str, int]
"""A rollout of a run: the id of its prompt, and its number among those of the prompt."""


def select_rollouts(
    rewards: Mapping[Key, float | None],
    read: Callable[[Key], Any],
    left: Counter[str],
    *,
    min_reward: float | None = None,
    max_reward: float | None = None,
    mixed: bool = False,
    whole: bool = False,
) -> Iterator[tuple[Any, list[TrainingSample]]]:
    """The rollouts to export, group by group: samples of the run, and their training samples.

    Args:
        rewards: Of all rollouts of the run.
        read: A sample of the run with its tokens.
        left: Counts the rollouts left out, by reason.
        mixed: Only those of prompts whose rollouts differ in reward.
        whole: None that a limit cut off.
    """
    # Over all rollouts of the run: those the filters leave out still count in their group's mean.
    groups = [prompt for prompt, _ in rewards]
    values = group_advantages(list(rewards.values()), group_ids=groups, rollout_ids=list(rewards))
    advantages = dict(zip(rewards, values, strict=True))
    by_prompt: dict[str, set[float | None]] = {}
    for (prompt, _), reward in rewards.items():
        by_prompt.setdefault(prompt, set()).update(() if reward is None else (reward,))
    places = {prompt: place for place, prompt in enumerate(by_prompt)}
    for key in sorted(rewards, key=lambda key: (places[key[0]], key[1])):
        (prompt, index), reward = key, rewards[key]
        if reward is None:
            left["without a reward"] += 1
        elif min_reward is not None and reward < min_reward:
            left[f"with a reward below {min_reward:g}"] += 1
        elif max_reward is not None and reward > max_reward:
            left[f"with a reward above {max_reward:g}"] += 1
        elif mixed and len(by_prompt[prompt]) < 2:
            left["of prompts whose rollouts score alike"] += 1
        else:
            sample = read(key)
            about = {"prompt_id": prompt, "index": index, "advantage": advantages[key]}
            paths = samples_from_step(sample.step_result, group_id=prompt, rollout_id=sample.id, metadata=about)
            if not any(path.is_usable for path in paths):
                left["without tokens that could be trained"] += 1
            elif whole and paths[0].end.is_limit:
                # Imitating a reply that a limit cut off teaches to stop in the middle.
                left["cut by a limit"] += 1
            else:
                yield sample, paths


# ---- supervised fine-tuning ----------------------------------------------------------------------------------------


def sft_row(sample: Any, paths: Sequence[TrainingSample], system_prompt: str | None) -> dict[str, Any]:
    """Messages and tools as chat templates take them, and the exact ids with labels: sampled tokens are learned.

    `tools` is JSON text, which TRL and slime read as they read a list: readers of columns give each one type.

    Args:
        sample: A sample of a run.
        paths: Its training samples.
        system_prompt: System prompt of the run, for a result that did not record its own.
    """
    row = one_row(paths)
    labels = np.where(np.array(row.trained_mask(), dtype=bool), row.token_ids, IGNORED_LABEL)
    observation, history = sample.step_result.observation, sample.action.task_context.conversation_history
    messages = [*(history if observation.history is None else observation.history), *observation.messages]
    try:
        chat = format_messages(messages, observation.system_prompt or system_prompt)
    except MessageConversionError:  # a block that no chat template has; the ids are whole
        chat = []
    return {
        "messages": chat,
        "tools": observation.tools,
        "input_ids": row.token_ids.tolist(),
        "labels": labels.tolist(),
        "reward": row.reward,
        "prompt_id": row.group_id,
    }


# ---- the next prompts ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRecord:
    """A prompt and its measured rollouts: those with a reward. One that failed or abstained counts for nothing.

    Attributes:
        passed: Rollouts whose reward reaches the threshold.
        measured: Rollouts with a reward.
    """

    prompt_id: str
    action: Action
    passed: int = 0
    measured: int = 0

    @property
    def pass_rate(self) -> float | None:
        """Share of the measured rollouts that passed; None where none was measured."""
        return self.passed / self.measured if self.measured else None

    @property
    def spread(self) -> float:
        """Expected variance p(1 - p) of the next reward, p unknown: its mean over Beta(passed + 1, failed + 1).

        Never 0: of a prompt that always passed so far it shrinks with every rollout, and one that was not measured has
        1/6, so that easy and hard prompts come back now and then. A group of equal rewards trains nothing in GRPO.
        """
        a, b = self.passed + 1, self.measured - self.passed + 1
        return a * b / ((a + b) * (a + b + 1))


def prompt_records(samples: Iterable[Any], threshold: float) -> list[PromptRecord]:
    """The prompts of a run's samples; a reward from the threshold on passes."""
    records: dict[str, PromptRecord] = {}
    for sample in samples:
        record = records.get(sample.prompt_id) or PromptRecord(prompt_id=sample.prompt_id, action=sample.action)
        if sample.reward is not None:
            passed = record.passed + (sample.reward >= threshold)
            record = replace(record, passed=passed, measured=record.measured + 1)
        records[sample.prompt_id] = record
    return list(records.values())


def prompt_rows(records: Sequence[PromptRecord]) -> list[dict[str, Any]]:
    """Rows as slime's `--prompt-data` and TRL's data sets take them, one a prompt.

    Returns:
        `prompt`, text, or chat messages in every row if a prompt has a history or a system prompt; `label`, the ground
        truth; `metadata`, other fields of the task (without the seed of a rollout); `prompt_id`, `pass_rate`, `passed`,
        `measured`; `weight`, the spread with mean 1.

    Raises:
        MessageConversionError: A prompt has a block that is not chat text, such as an image.
    """
    has_messages = any(
        record.action.task_context.conversation_history
        or not isinstance(record.action.prompt, str)
        or system_prompt_of(record.action.task_context) is not None
        for record in records
    )
    mean = sum(record.spread for record in records) / len(records) if records else 1.0
    rows = []
    for record in records:
        context = record.action.task_context
        prompt = record.action.prompt
        message = {"role": "user", "content": [{"text": prompt}] if isinstance(prompt, str) else prompt}
        own = {"id", "ground_truth", "conversation_history", "system_prompt", FIELD}
        extra = context.model_dump(mode="json", exclude=own)
        messages = [*context.conversation_history, message]
        chat = format_messages(messages, system_prompt_of(context)) if has_messages else prompt
        rows.append(
            {
                "prompt": chat,
                "label": context.ground_truth,
                "metadata": extra,
                "prompt_id": record.prompt_id,
                "pass_rate": record.pass_rate,
                "passed": record.passed,
                "measured": record.measured,
                "weight": record.spread / mean,
            }
        )
    return rows


def draw_rows(rows: Sequence[dict[str, Any]], count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """`count` rows in random order, each as often as its weight says, to within one: for readers without weights."""
    rng = random.Random(seed)
    step = sum(row["weight"] for row in rows) / count
    chosen: list[dict[str, Any]] = []
    place, reached = rng.random() * step, 0.0  # systematic sampling: one draw, and then equal steps
    for row in rows:
        reached += row["weight"]
        while place < reached and len(chosen) < count:
            chosen.append(row)
            place += step
    chosen += [rows[-1]] * (count - len(chosen))  # the last step, where rounding took it beyond the end
    rng.shuffle(chosen)
    return chosen


# ---- files -----------------------------------------------------------------------------------------------------------


def write_prompts(rows: Sequence[dict[str, Any]], target: Path) -> int:
    """Write rows of `prompt_rows` as Parquet and return their number; without rows no file appears.

    `label` and `metadata` are JSON text: they may have another type in every row, and readers of columns, the JSON
    reader of `datasets` among them, make one of them all (dates of texts, floats of large integers).

    Raises:
        ImportError: pyarrow is not installed.
        MessageConversionError: A prompt has messages with more than a role and text.
    """
    if not rows:
        return 0
    pa, parquet = arrow()
    rows = [
        {**row, **{name: json.dumps(row[name], ensure_ascii=False) for name in ("label", "metadata")}} for row in rows
    ]
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    counts = dict.fromkeys(("passed", "measured"), pa.int64()) | dict.fromkeys(("pass_rate", "weight"), pa.float64())
    types = {"prompt": pa.string() if isinstance(rows[0]["prompt"], str) else pa.list_(message), **counts}
    try:
        table = pa.Table.from_pylist(rows, pa.schema([(name, types.get(name, pa.string())) for name in rows[0]]))
    except pa.ArrowException as error:
        raise MessageConversionError(f"{error}: Parquet takes messages of role and text, write .jsonl") from error
    if table.to_pylist() != rows:
        raise MessageConversionError("a message has more than a role and text, which Parquet would lose: write .jsonl")
    with replacing(target) as partial:
        parquet.write_table(table, partial)
    return len(rows)


def write_rows(rows: Iterable[dict[str, Any]], target: Path) -> int:
    """Write rows as JSON Lines and return their number. The file appears when it is complete; without rows never."""
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        return 0
    count = 0
    with replacing(target) as partial, partial.open("w", encoding="utf-8") as file:
        for count, row in enumerate(chain([first], rows), 1):  # noqa: B007 - the last number is the count
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return count
