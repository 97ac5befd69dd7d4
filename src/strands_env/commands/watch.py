"""`strands-env watch`: a run while it goes on, from its files alone, so also one on another machine's file system."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from strands_env.commands.display import describe
from strands_env.commands.terminal import columns, one_line, say
from strands_env.core.metrics import total_of
from strands_env.eval.errors import StoreCorruptError, naming_errors
from strands_env.eval.report.details import answer_of
from strands_env.eval.run.progress import ProgressState
from strands_env.eval.sample import EvalSample
from strands_env.eval.saved import SavedRun
from strands_env.eval.store.line import read_sample
from strands_sglang.command_line import Exit, safe

SECONDS = 2.0
"""Seconds between looks."""


def run(args: argparse.Namespace) -> int:
    """Watch."""
    try:
        follower = Follower(args.run)
        follower.read()
        if args.json:
            say(json.dumps(follower.to_dict()))
            return Exit.OK
        return Exit.OK if sys.stdout is None else _follow(follower)
    except KeyboardInterrupt:
        return Exit.OK


def _follow(follower: Follower) -> Exit:
    """Draw again in place on a terminal, append to a log elsewhere; until the run has all its samples."""
    is_terminal = sys.stdout.isatty()
    height = 0
    while True:
        lines = lines_of(follower)
        if is_terminal:
            width = columns(sys.stdout) - 1
            # Up as many lines as were drawn, then clear to the end of the screen.
            erase = f"\x1b[{height}F\x1b[J" if height else ""
            sys.stdout.write(erase + "".join(f"{safe(line)[:width]}\n" for line in lines))
            height = len(lines)
        else:
            say(lines[1])
        sys.stdout.flush()
        if follower.is_finished:
            return Exit.OK
        time.sleep(SECONDS)
        follower.read()


def lines_of(follower: Follower) -> list[str]:
    """The display, line by line."""
    file = follower.saved.paths.results
    changed = datetime.fromtimestamp(file.stat().st_mtime).astimezone().isoformat(" ", "seconds")
    lines = [f"{follower.saved.name}  {file}", describe(follower.state), f"last change {changed}"]
    for sample in reversed(follower.recent):
        name, result = one_line(f"{sample.prompt_id}/{sample.index}"), sample.step_result
        reward = "-" if sample.reward is None else f"{sample.reward:g}"
        lines.append(f"  {name}  {reward}  {result.termination_reason.value}  {one_line(answer_of(result))[:80]}")
    return lines


class Follower:
    """Reads what a growing results file has got since the last look, and keeps the `latest` samples."""

    def __init__(self, path: str | Path, *, latest: int = 5) -> None:
        self.saved = SavedRun.of(path)
        self._file = self.saved.paths.results
        self.recent: deque[EvalSample] = deque(maxlen=latest)
        self._begin()

    def read(self) -> int:
        """Read the lines that have come; returns how many."""
        with naming_errors("read", self._file), self._file.open("rb") as file:
            size, is_first = file.seek(0, 2), self._offset == 0
            if size < self._offset:  # a resume cut off a torn line, or the run began anew
                self._begin()
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]  # the writer may be in the middle of a line
        self._offset += len(whole)
        lines = whole.splitlines()
        for line in lines:
            with suppress(StoreCorruptError):  # left by an interrupted write; `report --verify` names damage
                sample = read_sample(line + b"\n")
                self.output_tokens += float(total_of(sample.step_result.observation.metrics, "output_tokens") or 0)
                self._seen.add(sample.id)
                self.state.count(sample)
                self.recent.append(sample)
        if not self.saved.document:
            self.saved = SavedRun.of(self._file)
        if is_first:  # what was there before anybody looked says nothing of the speed
            self.state.resumed = len(self._seen)
        self.state.done = len(self._seen) - self.state.resumed  # one that was lost and tried again counts once
        self.state.total = self.total
        return len(lines)

    def _begin(self) -> None:
        self._offset, self._seen = 0, set[str]()
        self.state, self.output_tokens = ProgressState(), 0.0

    @property
    def total(self) -> int | None:
        """Samples of the whole run; None where it is not known."""
        options = self.saved.options
        tasks = self.saved.about.get("tasks") or options.limit
        return None if tasks is None else int(tasks) * options.n_samples_per_prompt

    @property
    def is_finished(self) -> bool:
        """All samples have been written."""
        return self.total is not None and len(self._seen) >= self.total

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "samples": len(self._seen),
            "total": self.total,
            "finished": self.is_finished,
            "scored": self.state.scored,
            "mean_reward": self.state.mean_reward if self.state.scored else None,
            "output_tokens": self.output_tokens,
            "failures": dict(self.state.failures.most_common()),
            "latest": [
                {
                    "sample": f"{sample.prompt_id}/{sample.index}",
                    "reward": sample.reward,
                    "termination_reason": sample.step_result.termination_reason.value,
                }
                for sample in reversed(self.recent)
            ],
        }
