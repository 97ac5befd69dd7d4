"""What a run shows in the terminal: a line of progress on standard error, and its summary."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from strands_env.commands.terminal import columns, format_number, format_seconds, one_line, write_to
from strands_env.core import Outcome, Phase
from strands_env.core.trackers import Tracker
from strands_env.eval import read_results
from strands_env.eval.drift import DriftTotals
from strands_env.eval.metrics import Interval, RunSummary
from strands_env.eval.run.progress import Progress, ProgressState
from strands_sglang.command_line import Exit

LOG_SECONDS = 5.0
"""Seconds between lines in a log or a pipe."""
REDRAW_SECONDS = 1 / 8
"""Seconds between redraws on a terminal."""
MESSAGE = 160
"""Characters of an error's message in a summary."""
_WITHOUT_REWARD = "have no reward function"


# ---- progress --------------------------------------------------------------------------------------------------------


def make_display(stream: TextIO | None = None, *, quiet: bool = False) -> Progress | None:
    """A display on `stream`, by default standard error; None when quiet or without a stream."""
    # Without a standard error (`2>&-`) Python has None there.
    out: TextIO | None = stream or sys.stderr
    return None if quiet or out is None else Display(out)


def describe(state: ProgressState) -> str:
    """The state in one line; what matters most comes first, for a narrow terminal shows no more."""
    parts = [f"{state.resumed + state.done}/{'?' if state.total is None else state.total} samples"]
    if state.stopping:
        parts.append("stopping")
    if state.stopping or not state.done:
        parts.append(f"{state.running} under way")
    parts.append(f"mean reward {format_number(state.mean_reward)}")
    if rate := state.rate:
        parts += [f"eta {format_seconds(state.eta)}", f"{rate:.2f}/s" if rate >= 0.1 else f"{60 * rate:.2f}/min"]
    parts += [f"{reason} {count}" for reason, count in state.failures.most_common()]
    if state.retries:
        parts.append(f"{state.retries} retried")
    if state.resumed:
        parts.append(f"{state.resumed} found in the results")
    return ", ".join(parts)


class TrackedProgress:
    """Reports a run's progress to trackers, which must not block, every `seconds`."""

    def __init__(self, trackers: Sequence[Tracker], *, seconds: float = 5.0) -> None:
        self._trackers = trackers
        self._seconds = seconds
        self._last = 0.0
        self._step = -1

    def start(self, state: ProgressState) -> None:
        """Nothing to report."""

    def update(self, state: ProgressState) -> None:
        """Report, unless the last report is too recent."""
        if time.monotonic() - self._last >= self._seconds:
            self._last = time.monotonic()
            self.finish(state)

    def finish(self, state: ProgressState) -> None:
        """Report, unless nothing has changed."""
        step = state.resumed + state.done
        if step == self._step:
            return
        self._step = step
        values = {"samples": float(step), "samples_per_second": state.rate, "retries": float(state.retries)}
        if state.scored:
            values["mean_reward"] = state.mean_reward
        values |= {f"failures/{name}": float(count) for name, count in state.failures.items()}
        for tracker in self._trackers:
            tracker.log(values, step=step)


class Display:
    """A line, redrawn in place on a terminal, written anew every few seconds into a log or a pipe.

    What others write to a terminal meanwhile stays: it follows the line, and the next one is drawn below it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._last = 0.0
        self._said = ""

    def start(self, state: ProgressState) -> None:
        """Announce the run."""
        self._last = time.monotonic()
        total = "a stream of tasks" if state.total is None else f"{state.total} samples"
        write_to(self._stream, f"{state.name or 'evaluation'}: {total}\n")

    def update(self, state: ProgressState) -> None:
        """Draw or write the line, when the last one is old enough."""
        if time.monotonic() - self._last >= (REDRAW_SECONDS if self._live else LOG_SECONDS):
            self._last = time.monotonic()
            self._say(state)

    def finish(self, state: ProgressState) -> None:
        """The last line, unless a log has it already."""
        self._say(state)
        if self._live:
            write_to(self._stream, "\n")

    def _say(self, state: ProgressState) -> None:
        if self._live:
            width = columns(self._stream) - 1  # in the last column some terminals begin the next line
            write_to(self._stream, f"\r{describe(state)[:width]}\x1b[K")
        elif describe(state) != self._said:
            self._said = describe(state)
            write_to(self._stream, f"{self._said}\n")


# ---- summary ---------------------------------------------------------------------------------------------------------


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
        if result.end.outcome is not Outcome.POLICY:
            if first_error is None and result.error is not None:
                first_error = str(result.error)
                is_rewards = result.error.where is Phase.REWARD
            why[f"ended with {result.termination_reason.value}"] += 1
        else:
            why[_WITHOUT_REWARD if result.reward is None else "were left unscored by their reward function"] += 1
    reasons = ", ".join(f"{count} of {samples} {reason}" for reason, count in why.most_common())
    status = Exit.OK if set(why) == {_WITHOUT_REWARD} else Exit.USAGE
    complaint = f"no sample was scored: {reasons}"
    if first_error is not None:
        complaint += f" ({first_error})"
    if is_rewards:
        complaint += f"; fix the reward, then score the saved rollouts again: strands-env rescore {path.parent}"
    return status, complaint
