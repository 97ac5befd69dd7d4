"""The group policy, which decides the prompts that count: one answer for the evaluator and for every command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from strands_env.eval.errors import StoreCorruptError
from strands_env.eval.metrics import ScoreTable
from strands_env.eval.sample import EvalSample
from strands_env.eval.store import StorePaths, load_run, read_results


class GroupPolicy(StrEnum):
    """Consequence of a finally lost sample for the other samples of its prompt."""

    KEEP = "keep"
    """Nothing: metrics take the samples that were scored, however many."""
    DROP = "drop"
    """The prompt has no part in metrics until a resume has filled the gap."""
    STOP = "stop"
    """As DROP, and samples of the prompt that have not started are not started in this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """The samples that a run needs of every prompt, and the consequence of a lost one."""

    policy: GroupPolicy = GroupPolicy.KEEP
    n_samples: int = 1

    def to_about(self) -> dict[str, Any]:
        """Its form beside the results, under `about`."""
        return {"n_samples_per_prompt": self.n_samples, "group_policy": self.policy.value}

    @classmethod
    def of(cls, document: Mapping[str, Any] | None) -> Grouping:
        """The one of a saved run; without a document, or of a run that did not save it, `keep`."""
        about = (document or {}).get("about") or {}
        policy, n_samples = about.get("group_policy", "keep"), about.get("n_samples_per_prompt", 1)
        if policy not in list(GroupPolicy) or not isinstance(n_samples, int):
            raise StoreCorruptError(
                f"the saved run has group_policy={policy!r} and n_samples_per_prompt={n_samples!r}; "
                f"expected one of {', '.join(GroupPolicy)} and a number"
            )
        return cls(policy=GroupPolicy(policy), n_samples=n_samples)

    def apply(self, table: ScoreTable) -> ScoreTable:
        """Leave out of a finished table what does not count; returns the table."""
        table.n_samples = self.n_samples
        if self.policy is not GroupPolicy.KEEP:
            table.leave_out_incomplete(self.n_samples)
        return table

    def counting(self, results: Mapping[str, Sequence[EvalSample]]) -> dict[str, Sequence[EvalSample]]:
        """The samples that count, by prompt id; those still in their file are not read."""
        if self.policy is GroupPolicy.KEEP:
            return dict(results)
        left_out = self.apply(ScoreTable.from_results(results)).left_out
        return {name: samples for name, samples in results.items() if samples and name not in left_out}


def read_scores(output_path: str | Path) -> ScoreTable:
    """The scores of a saved run (its `.jsonl` file or folder) under its own group policy.

    Raises:
        FileNotFoundError: There are no results.
        StoreError: They cannot be read, or are damaged.
    """
    document = load_run(StorePaths.of(output_path).run)
    grouping = Grouping.of(document)
    table = ScoreTable.from_samples((item.prompt_id, item) for item in read_results(output_path))
    if isinstance(tasks := ((document or {}).get("about") or {}).get("tasks"), int):
        table.missing = max(0, tasks * grouping.n_samples - len(table))
    return grouping.apply(table)
