"""`strands-env watch`: a run while it goes on, from its files alone, so also one on another machine's file system."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from strands_env.commands.terminal import (
    cannot_read,
    columns,
    format_number,
    format_seconds,
    one_line,
    safe,
    say,
    shows,
)
from strands_env.eval import EvalError, EvalSample
from strands_env.eval.saved import SavedRun
from strands_env.eval.store.record import LineError, decode, naming_errors, to_sample
from strands_env.report.details import answer_of
from strands_sglang.command_line import Exit

LATEST = 5
"""Samples that are shown."""
CURVE = 48
"""Characters of a curve."""
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-~=+*#"


def run(args: argparse.Namespace) -> int:
    """Watch."""
    try:
        follower = Follower(args.run, latest=args.latest)
        follower.read()
        if args.json:
            say(json.dumps(follower.to_dict()))
            return Exit.OK
        if args.once or sys.stdout is None:
            say("\n".join(follower.lines()))
            return Exit.OK
        return _follow(follower, max(0.1, args.interval))
    except (FileNotFoundError, EvalError) as error:
        return cannot_read("watch", error)
    except KeyboardInterrupt:
        return Exit.OK


def _follow(follower: Follower, interval: float) -> Exit:
    """Draw again in place on a terminal, append to a log elsewhere; until the run has all its samples."""
    is_terminal = sys.stdout.isatty()
    drawn = 0
    while True:
        lines = follower.lines()
        if is_terminal:
            width = columns(sys.stdout) - 1
            erase = f"\x1b[{drawn}F\x1b[J" if drawn else ""
            sys.stdout.write(erase + "".join(f"{safe(line)[:width]}\n" for line in lines))
            drawn = len(lines)
        else:
            say(lines[1])
        sys.stdout.flush()
        if follower.is_finished:
            return Exit.OK
        time.sleep(interval)
        follower.read()


@dataclass(slots=True, kw_only=True)
class Counts:
    """Totals over all samples."""

    samples: set[str] = field(default_factory=set)
    rewards: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    output_tokens: float = 0.0


class Follower:
    """Reads what a growing results file has got since the last look, and keeps the `latest` samples for showing."""

    def __init__(self, path: str | Path, *, latest: int = LATEST) -> None:
        self._saved = SavedRun.of(path)
        self._file = self._saved.paths.results
        self._offset = 0
        self._counts = Counts()
        self._recent: deque[EvalSample] = deque(maxlen=latest)
        self._looks: deque[tuple[float, int, float]] = deque(maxlen=30)

    def read(self) -> int:
        """Read the lines that have come; returns how many."""
        with naming_errors("read", self._file), self._file.open("rb") as file:
            size = file.seek(0, 2)
            if size < self._offset:  # a resume cut off a torn line, or the run began anew
                self._offset, self._counts = 0, Counts()
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = whole.splitlines()
        for line in lines:
            with suppress(LineError):  # left by an interrupted write; `verify` names damage
                self._take(to_sample(decode(line + b"\n")))
        if not self._saved.document:
            self._saved = SavedRun.of(self._file)
        self._looks.append((time.monotonic(), len(self._counts.samples), self._counts.output_tokens))
        return len(lines)

    def _take(self, sample: EvalSample) -> None:
        result, counts = sample.step_result, self._counts
        output = result.observation.metrics.get("output_tokens")
        tokens = (output or {}).get("total", 0) if isinstance(output, dict) else output or 0
        counts.samples.add(sample.id)
        counts.output_tokens += float(tokens)
        if sample.reward is not None:
            counts.rewards.append(sample.reward)
        elif result.termination_reason.is_failure:
            counts.failures[result.termination_reason.value] += 1
        self._recent.append(sample)

    @property
    def total(self) -> int | None:
        """Samples of the whole run; None where it is not known."""
        about = self._saved.document.get("about") or {}
        per_prompt = about.get("n_samples_per_prompt") or 1
        tasks = about.get("tasks") or self._saved.options.get("limit")
        return None if tasks is None else int(tasks) * int(per_prompt)

    @property
    def is_finished(self) -> bool:
        """All samples have been written."""
        return self.total is not None and len(self._counts.samples) >= self.total

    @property
    def rates(self) -> tuple[float, float]:
        """Samples and sampled tokens a second, over the last looks."""
        (then, samples, tokens), (now, more, many) = self._looks[0], self._looks[-1]
        seconds = now - then
        return ((more - samples) / seconds, (many - tokens) / seconds) if seconds > 0 else (0.0, 0.0)

    def lines(self) -> list[str]:
        """The display, line by line."""
        counts, total = self._counts, self.total
        done = len(counts.samples)
        per_second, tokens = self.rates
        eta = (total - done) / per_second if total is not None and per_second else None
        speed = f"{per_second:.2f}/s, {tokens:,.0f} tokens/s, eta {format_seconds(eta)}, "
        if len(self._looks) == 1:  # nothing to measure between
            speed = ""
        rewards = counts.rewards
        mean = format_number(sum(rewards) / len(rewards)) if rewards else "-"
        changed = datetime.fromtimestamp(self._file.stat().st_mtime).astimezone().isoformat(" ", "seconds")
        shown = [
            f"{self._saved.name}  {self._file}",
            f"{done}/{'?' if total is None else total} samples, {speed}mean reward {mean}",
            f"reward      {curve(rewards)}",
            f"last change {changed}",
        ]
        if counts.failures:
            shown.append("failures    " + ", ".join(f"{name} {count}" for name, count in counts.failures.most_common()))
        for sample in reversed(self._recent):
            name, result = one_line(f"{sample.prompt_id}/{sample.index}"), sample.step_result
            reward = "-" if sample.reward is None else f"{sample.reward:g}"
            shown.append(f"  {name}  {reward}  {result.termination_reason.value}  {one_line(answer_of(result))[:80]}")
        return shown

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        counts = self._counts
        rewards = counts.rewards
        return {
            "samples": len(counts.samples),
            "total": self.total,
            "finished": self.is_finished,
            "scored": len(rewards),
            "mean_reward": sum(rewards) / len(rewards) if rewards else None,
            "output_tokens": counts.output_tokens,
            "failures": dict(counts.failures.most_common()),
            "latest": [
                {
                    "sample": f"{sample.prompt_id}/{sample.index}",
                    "reward": sample.reward,
                    "termination_reason": sample.step_result.termination_reason.value,
                }
                for sample in reversed(self._recent)
            ],
        }


def curve(values: list[float]) -> str:
    """Values as a line of blocks, from the lowest to the highest; means of equal parts where there are many."""
    if not values:
        return "nothing scored yet"
    parts = min(CURVE, len(values))
    edges = [round(place * len(values) / parts) for place in range(parts + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(0.0, *means), max(1.0, *means)
    span = (high - low) or 1.0
    blocks = _BLOCKS if shows(_BLOCKS, sys.stdout) else _ASCII_BLOCKS
    return "".join(blocks[min(7, int(8 * (mean - low) / span))] for mean in means) + f"  {low:g} to {high:g}"
