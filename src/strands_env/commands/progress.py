"""Progress on a terminal with rich, and as plain lines without one."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from strands_env.commands.terminal import format_number, format_seconds
from strands_env.eval.run.progress import Progress, ProgressState
from strands_env.trackers import Tracker

PLAIN_SECONDS = 5.0
"""Seconds between plain lines."""
LIVE_PER_SECOND = 8
"""Redraws of the live display a second."""
BAR, MIN_BAR = 30, 6
"""Columns of the bar: as a rule, and on a narrow terminal, where the figures go into a line of their own."""


def make_display(stream: TextIO | None = None, *, quiet: bool = False) -> Progress | None:
    """The display that fits: live on a terminal with rich, else plain lines; None when quiet or without a stream."""
    # Without a standard error (`2>&-`) Python has None there.
    out: TextIO | None = stream or sys.stderr
    if quiet or out is None:
        return None
    if not out.isatty():
        return PlainDisplay(out)
    try:
        import rich  # noqa: F401
    except ImportError:
        return PlainDisplay(out)
    return LiveDisplay(out)


@contextmanager
def announced(text: str | None, *, quiet: bool = False) -> Iterator[None]:
    """Print on standard error what is being done, and afterwards how long it took; nothing if `text` is None."""
    out: TextIO | None = sys.stderr
    if text is None or quiet or out is None:
        yield
        return
    started = time.monotonic()
    _write(out, f"{text} ...")
    try:
        yield
    except BaseException:
        _write(out, "\n")
        raise
    _write(out, f" {time.monotonic() - started:.1f} s\n")


def _write(stream: TextIO, text: str) -> None:
    with suppress(OSError, ValueError):  # the reader is gone
        stream.write(text)
        stream.flush()


def describe(state: ProgressState) -> str:
    """The state in one line."""
    finished = state.resumed + state.done
    total = "?" if state.total is None else str(state.total)
    found = f" ({state.resumed} found in the results)" if state.resumed else ""
    parts = [f"{finished}/{total} samples{found}", f"{state.rate:.2f}/s", f"eta {format_seconds(state.eta)}"]
    parts.append(f"mean reward {format_number(state.mean_reward)}")
    if state.retries:
        parts.append(f"{state.retries} retried")
    parts += [f"{reason} {count}" for reason, count in state.failures.most_common()]
    if state.stopping:
        parts.append(f"stopping, {state.running} under way")
    return ", ".join(parts)


class TrackedProgress:
    """A display that also reports a run's progress to trackers, which must not block, every `seconds`."""

    def __init__(self, display: Progress | None, trackers: Sequence[Tracker], *, seconds: float = 5.0) -> None:
        self._display = display
        self._trackers = trackers
        self._seconds = seconds
        self._last = 0.0
        self._step = -1

    def start(self, state: ProgressState) -> None:
        """The run begins."""
        if self._display is not None:
            self._display.start(state)

    def update(self, state: ProgressState) -> None:
        """Report to them, unless the last report is too recent."""
        if self._display is not None:
            self._display.update(state)
        if time.monotonic() - self._last >= self._seconds:
            self._last = time.monotonic()
            self._tell(state)

    def finish(self, state: ProgressState) -> None:
        """Report the last state to them."""
        if self._display is not None:
            self._display.finish(state)
        self._tell(state)

    def _tell(self, state: ProgressState) -> None:
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


class PlainDisplay:
    """A line every few seconds, for logs and pipes."""

    def __init__(self, stream: TextIO, *, seconds: float = PLAIN_SECONDS) -> None:
        self._stream = stream
        self._seconds = seconds
        self._last = 0.0
        self._said = ""

    def start(self, state: ProgressState) -> None:
        """Say what begins."""
        self._last = time.monotonic()
        total = "a stream of tasks" if state.total is None else f"{state.total} samples"
        self._say(f"{state.name or 'evaluation'}: {total}")

    def update(self, state: ProgressState) -> None:
        """A line, when the last one is old enough."""
        if time.monotonic() - self._last >= self._seconds:
            self._last = time.monotonic()
            self._say(describe(state))

    def finish(self, state: ProgressState) -> None:
        """The last line, unless it was said."""
        if describe(state) != self._said:
            self._say(describe(state))

    def _say(self, text: str) -> None:
        self._said = text
        self._stream.write(f"{text}\n")
        self._stream.flush()


class LiveDisplay:
    """A bar with rate, time to go, running mean reward and failures by kind."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream)
        self._live: Any = None
        self._drawn = 0.0

    def start(self, state: ProgressState) -> None:
        """Draw it."""
        from rich.live import Live

        self._live = Live(self._draw(state), console=self._console, auto_refresh=False, transient=False)
        self._live.start()

    def update(self, state: ProgressState) -> None:
        """Draw it again, not too often."""
        now = time.monotonic()
        if self._live is not None and now - self._drawn >= 1 / LIVE_PER_SECOND:
            self._drawn = now
            self._live.update(self._draw(state), refresh=True)

    def finish(self, state: ProgressState) -> None:
        """Draw the end and give the terminal back."""
        if self._live is not None:
            self._live.update(self._draw(state), refresh=True)
            self._live.stop()
            self._live = None

    def _draw(self, state: ProgressState) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        finished = state.resumed + state.done
        width = self._console.width - 1
        name = Text(state.name or "evaluation", style="bold")
        count = Text(f"{finished}/{'?' if state.total is None else state.total}")
        figures = Text("  ").join(
            (
                Text(f"{state.rate:.2f}/s", style="cyan"),
                Text(f"eta {format_seconds(state.eta)}", style="cyan"),
                Text(f"mean reward {format_number(state.mean_reward)}", style="green"),
                Text(f"{state.running} running", style="dim"),
            )
        )
        in_one_line = len(name) + len(count) + len(figures) + BAR + 6 <= width
        name.truncate(max(8, width - len(count) - 4 - MIN_BAR))
        bar = BAR if in_one_line else max(MIN_BAR, min(BAR, width - len(name) - len(count) - 4))
        line = Table.grid(padding=(0, 2))
        cells: list[Any] = [
            name,
            ProgressBar(total=state.total, completed=finished, width=bar, pulse=state.total is None),
            count,
        ]
        line.add_row(*cells, figures) if in_one_line else line.add_row(*cells)
        notes = [f"{reason} {count}" for reason, count in state.failures.most_common(6)]
        if state.retries:
            notes.append(f"{state.retries} retried")
        if state.stopping:
            notes.append("stopping: waiting for samples under way (Ctrl-C again to cancel them)")
        below = [] if in_one_line else [figures]
        return Group(line, *below, *([Text("  " + "   ".join(notes), style="yellow")] if notes else []))
