"""The shape of every benchmark: `python -m benchmarks.NAME [--quick] [--passes N] [--seed N]`, figures as JSON lines.

Arms that are compared take turns in one run; figures are medians of the passes, and ratios are of figures of one pass.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def arguments(doc: str | None, *, passes: int = 1, seed: int = 0) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="see that it runs; the figures mean little")
    parser.add_argument("--passes", type=int, default=passes, help="of every arm (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=seed)
    return parser


def print_figures(benchmark: str, **figures: Any) -> None:
    """Print figures as the JSON line that `benchmarks.table` reads."""
    print(json.dumps({"benchmark": benchmark, **figures}), flush=True)


def median(values: Iterable[float], digits: int = 2) -> float:
    """The rounded median."""
    return round(statistics.median(values), digits)


def medians(passes: list[Mapping[str, float]], digits: int = 2) -> dict[str, float]:
    """The rounded median of every figure over the passes."""
    return {name: median((each[name] for each in passes), digits) for name in passes[0]}


def newer_python() -> str | None:
    """A Python 3.12 or newer, which upstream's newest releases need; None where there is none."""
    for name in ("python3.13", "python3.12"):
        for candidate in (name, *map(str, (Path.home() / ".pyenv" / "versions").glob(f"*/bin/{name}"))):
            try:
                if subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode == 0:
                    return candidate
            except OSError:
                continue
    return None


def environment_of(*requirements: str) -> tuple[str | None, str]:
    """The interpreter of an environment with another's package, made once; None and the reason where that fails."""
    folder = ROOT / ".cache" / requirements[0].replace("==", "-")
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"making an environment for {requirements[0]} (once)", file=sys.stderr)
        for command in (
            [newer_python() or sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", *requirements],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                return None, f"{' '.join(command[1:4])} failed: {done.stderr.strip()[-300:]}"
        (folder / "ready").touch()
    return str(python), ""
