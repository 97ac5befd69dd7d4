"""Progress of a run: a line on standard error."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from strands_env.commands.terminal import columns, format_number, format_seconds, write_to
from strands_env.eval.run.progress import Progress, ProgressState
from strands_env.trackers import Tracker

LOG_SECONDS = 5.0
"""Seconds between lines in a log or a pipe."""
REDRAW_SECONDS = 1 / 8
"""Seconds between redraws on a terminal."""


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
    """One line: drawn over itself on a terminal, written anew every few seconds into a log or a pipe.

    What others write to a terminal meanwhile stays: it follows the line, and the next one is drawn below it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._last = 0.0
        self._said = ""

    def start(self, state: ProgressState) -> None:
        """Say what begins."""
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
