"""The summary of a run as text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from strands_env.commands.terminal import format_number, format_seconds, one_line
from strands_env.core import Outcome, Phase
from strands_env.eval import read_results
from strands_env.eval.drift import DriftTotals
from strands_env.eval.metrics import Interval, RunSummary
from strands_sglang.command_line import Exit

MESSAGE = 160
"""Characters of an error's message in a summary."""
_WITHOUT_REWARD = "whose environment has no reward function"


def interval(value: Interval) -> str:
    """`0.512  [0.433, 0.590]`."""
    return f"{format_number(value.value)}  [{format_number(value.low)}, {format_number(value.high)}]"


def summary_lines(
    summary: RunSummary, *, title: str, wall_s: float | None = None, drift: DriftTotals | None = None
) -> list[str]:
    """A run in a few lines; intervals are over prompts.

    `wall_s` is the seconds from its start to its end, without the time between an interruption and a resume.
    """
    level = f"{summary.mean_reward.level:.0%}"
    counts = ((summary.aborted, "lost to infrastructure"), (summary.ungraded, "whose reward function failed"))
    lost = ", ".join(f"{count} {what}" for count, what in counts if count)
    lines = [
        title,
        f"samples     {summary.samples} of {summary.prompts} prompts, {summary.scored} scored, "
        f"{summary.unscored} unscored{f' ({lost})' if lost else ''}",
        f"reward      {interval(summary.mean_reward)}  ({level} interval over prompts)",
    ]
    if summary.left_out:
        prompts = "1 prompt" if summary.left_out == 1 else f"{summary.left_out} prompts"
        lines.append(f"left out    {prompts} with lost or missing samples (group policy of the run)")
    for k, value in summary.pass_at.items():
        fewer = f", {short} of them with fewer samples" if (short := summary.short.get(k)) else ""
        if summary.scored and not value.prompts:
            lines.append(f"pass@{k:<6} -  (no prompt has {k} scored samples)")
        else:
            lines.append(f"pass@{k:<6} {interval(value)}  ({value.prompts} prompts{fewer})")
    lines += [f"pass^{k:<6} {interval(value)}" for k, value in summary.pass_hat.items() if k > 1 and value.prompts]
    lines.append("ended       " + ", ".join(f"{reason} {count}" for reason, count in summary.terminations.items()))
    for label, errors in (("errors", summary.errors), ("tools", summary.tool_errors)):
        for name, count in errors.items():
            where = "raised in 1 sample" if count == 1 else f"raised in {count} samples"
            text = f"{name} {count}" if label == "errors" else f"{name} {where}"
            lines.append(f"{label:<11} {text}: {one_line(summary.messages.get(name, ''))[:MESSAGE]}")
    totals = summary.totals
    if summary.samples:
        untrained = totals.get("untrained_tokens", 0)
        lines.append(
            f"tokens      {totals.get('input_tokens', 0):,.0f} read, {totals.get('output_tokens', 0):,.0f} sampled; "
            f"{totals.get('tool_calls', 0):,.0f} tool calls"
            f"{f'; {untrained:,.0f} sampled and not meant to be trained' if untrained else ''}"
        )
        each = totals.get("wall_s", 0.0) / summary.samples
        took = "" if wall_s is None else f"{format_seconds(wall_s)} in all; "
        lines.append(f"time        {took}{each:.1f} s a rollout")
    if drift is not None and drift.trajectories:
        kinds = ", ".join(f"{kind} {count}" for kind, count in drift.kinds.most_common())
        lines.append(f"drift       {drift}{f' ({kinds})' if kinds else ''}")
    return lines


def nothing_scored(path: Path, samples: int) -> tuple[Exit, str]:
    """The reason nothing was scored: as it should be without a reward function, a failure with one."""
    why: Counter[str] = Counter()
    first_error: str | None = None
    is_rewards = False
    for sample in read_results(path):
        result = sample.step_result
        if sample.reward is not None:
            why["whose prompt the group policy leaves out"] += 1
        elif sample.aborted or result.outcome is not Outcome.POLICY:
            if first_error is None and result.error is not None:
                first_error = f"{result.error.type}: {result.error.message}"
                is_rewards = result.error.where is Phase.REWARD
            why[f"that ended with {result.termination_reason.value}"] += 1
        else:
            why[_WITHOUT_REWARD if result.reward is None else "whose reward function abstained"] += 1
    reasons = ", ".join(f"{count} {reason}" for reason, count in why.most_common())
    status = Exit.OK if set(why) == {_WITHOUT_REWARD} else Exit.USAGE
    complaint = f"nothing was scored: of {samples} samples there are {reasons}"
    if first_error is not None:
        complaint += f" ({first_error})"
    if is_rewards:
        complaint += f"; fix the reward, then score the saved rollouts again: strands-env rescore {path.parent}"
    return status, complaint
