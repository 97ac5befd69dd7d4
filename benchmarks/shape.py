"""The shape of every benchmark: `python -m benchmarks.NAME [--quick] [--passes N] [--seed N]`, figures as JSON lines.

Arms that are compared take turns in one run; figures are medians of the passes, and ratios are of figures of one pass.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
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


class LineProcess:
    """A process that answers each line with a line of JSON; the first one it prints is `greeting`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.greeting: Any = None

    @classmethod
    async def start(cls, *command: str, **options: Any) -> LineProcess:
        pipe = asyncio.subprocess.PIPE
        made = cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=1 << 28, **options))
        made.greeting = await made._read()
        return made

    async def _read(self) -> Any:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise SystemExit("a measured process ended: run it by hand to see why")
        return json.loads(line)

    async def ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        return await self._read()

    async def stop(self) -> None:
        self.process.kill()
        await self.process.wait()


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


def write_between(document: str, begin: str, end: str, text: str) -> str:
    """A document with this text between two markers.

    Raises:
        ValueError: It does not have both, in order.
    """
    start, stop = document.find(begin), document.find(end)
    if not 0 <= start < stop:
        raise ValueError(f"the document needs the two lines {begin!r} and {end!r}, in this order")
    return f"{document[: start + len(begin)]}\n\n{text.strip()}\n\n{document[stop:]}"


def keep_and_print(
    doc: str | None, kept: Path, measure: Callable[[Path], list[Any]], table: Callable[[list[Any]], str], name: str
) -> None:
    """The command of a benchmark over a folder of chat templates: measure and keep the counts, or print their table."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="chat templates, index.tsv, conversations.json")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table between the markers of a page")
    options = parser.parse_args()
    if options.folder is not None:
        kept.write_text("[\n" + ",\n".join(map(json.dumps, measure(options.folder))) + "\n]\n", "utf-8")
    printed = table(json.loads(kept.read_text("utf-8")))
    if options.write is None:
        print(printed)
    else:
        page = write_between(options.write.read_text("utf-8"), *markers(name), printed)
        options.write.write_text(page, "utf-8")


def markers(name: str, part: str = "") -> tuple[str, str]:
    """The lines of a page between which a benchmark writes, or one part of its tables."""
    place = f"benchmarks/{name}.py {part}".rstrip()
    return f"<!-- begin: {place} -->", f"<!-- end: {place} -->"


def environment_of(*requirements: str, without_dependencies: Sequence[str] = ()) -> tuple[str | None, str]:
    """The interpreter of an environment with another's package, made once; None and the reason where that fails."""
    folder = ROOT / ".cache" / requirements[0].replace("==", "-")
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"making an environment for {requirements[0]} (once)", file=sys.stderr)
        for command in (
            [newer_python() or sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", *requirements],
            [str(python), "-m", "pip", "install", "--quiet", "--no-deps", *without_dependencies],
        )[: 3 if without_dependencies else 2]:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                return None, f"{' '.join(command[1:4])} failed: {done.stderr.strip()[-300:]}"
        (folder / "ready").touch()
    return str(python), ""
