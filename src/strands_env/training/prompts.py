"""The prompts of a run with how often they were solved: a filter and sampling weights for the next run."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strands_env.core import Action
from strands_env.core.seeds import FIELD
from strands_sglang.conversation.messages import to_chat_messages


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
        `prompt`, text, or chat messages in every row if a prompt has a history; `label`, the ground truth;
        `metadata`, other fields of the task (without the seed of a rollout); `prompt_id`, `pass_rate`, `passed`,
        `measured`; `weight`, the spread with mean 1.

    Raises:
        MessageConversionError: A prompt has a block that is not chat text, such as an image.
    """
    has_messages = any(
        record.action.task_context.conversation_history or not isinstance(record.action.prompt, str)
        for record in records
    )
    mean = sum(record.spread for record in records) / len(records) if records else 1.0
    rows = []
    for record in records:
        context = record.action.task_context
        asked = record.action.prompt
        message = {"role": "user", "content": [{"text": asked}] if isinstance(asked, str) else asked}
        extra = context.model_dump(mode="json", exclude={"id", "ground_truth", "conversation_history", FIELD})
        chat = to_chat_messages([*context.conversation_history, message], None).messages if has_messages else asked
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
