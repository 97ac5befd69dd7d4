"""Rollouts of a saved run as training data: which of them, and rows of supervised fine-tuning."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from strands_env.core import Action, StepResult
from strands_env.core.files import replacing
from strands_sglang.conversation.messages import to_chat_messages
from strands_sglang.exceptions import MessageConversionError

from .advantages import group_advantages
from .build import samples_from_step
from .export import one_row
from .sample import TEACHER_ERROR, SampleStatus, TrainingSample

IGNORED_LABEL = -100
"""Label of a token without loss, as `torch.nn.functional.cross_entropy` ignores it."""


NOT_SCORED = "that the teacher did not score"
TEACHER_BATCH = 256
"""Rollouts that a teacher scores at a time."""

Key: TypeAlias = tuple[str, int]
"""A rollout of a run: the id of its prompt, and its number among those of the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRollout:
    """One rollout to export.

    Attributes:
        paths: Its training samples.
        advantage: Its reward relative to its group; None if there are no advantages.
        system_prompt: System prompt, for a result that did not record its own.
    """

    action: Action
    result: StepResult
    paths: list[TrainingSample]
    advantage: float | None
    system_prompt: str | None

    def samples(self) -> list[TrainingSample]:
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
        places = {prompt: place for place, prompt in enumerate(by_prompt)}
        for key in sorted(rewards, key=lambda key: (places[key[0]], key[1])):
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
            # Imitating a reply that a limit cut off teaches to stop in the middle.
            if self.whole and paths[0].status is SampleStatus.TRUNCATED:
                left["cut by a limit"] += 1
                continue
            yield ExportedRollout(
                action=sample.action,
                result=sample.step_result,
                paths=paths,
                advantage=None if advantages is None else advantages[key],
                system_prompt=system_prompt,
            )

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
        # Over all rollouts of the run: what the filters leave out still belongs to its group's mean.
        values = group_advantages(
            list(rewards.values()),
            group_ids=[prompt for prompt, _ in rewards],
            rollout_ids=list(rewards),
            scale_by_std=self.advantages == "grpo",
        )
        return dict(zip(rewards, values, strict=True))


def add_teacher_scores(
    rollouts: Iterator[ExportedRollout],
    score: Callable[[list[TrainingSample]], Sequence[TrainingSample]],
    left: Counter[str],
) -> Iterator[ExportedRollout]:
    """The rollouts with a teacher's log-probabilities; one that it failed on is left out."""
    while batch := list(islice(rollouts, TEACHER_BATCH)):
        scored = iter(score([path for rollout in batch for path in rollout.paths]))
        for rollout in batch:
            paths = list(islice(scored, len(rollout.paths)))
            if why := [path.metadata[TEACHER_ERROR] for path in paths if TEACHER_ERROR in path.metadata]:
                left[f"{NOT_SCORED} ({why[0]})"] += 1
            else:
                yield replace(rollout, paths=paths)


# ---- supervised fine-tuning ----------------------------------------------------------------------------------------


def sft_row(rollout: ExportedRollout) -> dict[str, Any]:
    """Messages and tools as chat templates take them, and the exact ids with labels: what was sampled is learned.

    `tools` is JSON text, which TRL and slime read as they read a list: readers of columns give each one type.
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
