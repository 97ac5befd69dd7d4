"""Runs benchmarks, keeps their figures with the machine they were taken on, and writes them as tables.

    python -m benchmarks.table [NAME...] [--no-run] [--write docs/performance.md] [--arguments "..."]

Each benchmark runs as `python -m benchmarks.NAME`. The lines it prints that are JSON objects are its figures; they are
kept in `benchmarks/results/NAME.json`. `--no-run` takes the kept figures. The tables go to the standard output, and
with `--write` into a page, each between the two markers of its name.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from benchmarks.shape import ROOT, markers, write_between

RESULTS = ROOT / "benchmarks" / "results"
FAST_PATHS = "pieces history_memory shared_prompts shared_history silent_spans flat_loop"
BENCHMARKS = {
    "rollouts": "rollouts",
    "fast_paths": f"rollouts --arms environment --without all {FAST_PATHS}",
    "many_rollouts": "many_rollouts",
    "memory": "many_rollouts --only held growth",
    "grading": "grading",
    "evaluator": "evaluator --executor inline processes ray",
    "evaluator_cost": "evaluator_cost",
    "commands": "evaluator_cost --commands --passes 3",
    "live_page": "live_page",
    "chaos": "chaos",
    "gateway": "gateway",
    "gateway_telemetry": "gateway --telemetry --passes 12",
    "gateway_throughput": "gateway --throughput --passes 5",
    "peers": "peers --systems ours agentcore agentcore-linear verifiers verifiers-branches slime",
    "containers": "containers --kills 500",
}
"""Names of figures, and the benchmark that prints them with its arguments."""
SHOWN = {
    "fast_paths": "saves",
    "many_rollouts": "rollouts|turns_per_s|cpu_ms|added_ms|peak_mb|kb_per|grown_kb|local|processes|ray",
    "grading": "all|seconds",
    "chaos": "rollouts|equal|requests|sent|tokens|left|faults",
    "peers": "sampled|exact|twice|lost|thrown|rows|cpu",
}
"""Rows that a page shows, by how their names begin, where it does not show all."""
WIDEST = 8  # columns; a wider table is turned on its side
MOST = 12  # columns of a table that is shown; a wider one stays in the results


def machine(commit: str) -> dict[str, Any]:
    """The machine and versions behind the figures."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "cpu": model or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
        "commit": commit,
    }


def json_lines(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The lines that are JSON objects."""
    found = []
    for line in lines:
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def run(name: str, arguments: Sequence[str], commit: str) -> bool:
    """Run a benchmark and keep its figures; whether it ended well and printed any."""
    taken_on = machine(commit)
    module, *given = BENCHMARKS.get(name, name).split()
    command = ["python", "-m", f"benchmarks.{module}", *given, *arguments]
    print(f"== {shlex.join(command)}", flush=True)
    process = subprocess.Popen([sys.executable, *command[1:]], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    ended_well = process.wait() == 0
    figures = json_lines(lines)
    if not figures:
        print(f"{name} printed no figures", file=sys.stderr)
        return False
    for each in figures:
        each.pop("benchmark", None)
    kept = figures[0] if len(figures) == 1 else {"rows": figures}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({**kept, "taken_on": taken_on, "command": shlex.join(command)}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    return ended_well


# ---- Markdown --------------------------------------------------------------------------------------------------------


def flat(row: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested objects, by dotted name."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def markdown_table(rows: Sequence[Mapping[str, Any]], shown: str = "") -> str:
    """A table with a row for each object, or those shown; on its side where it is too wide, empty if still too wide."""
    flattened = [dict(flat(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flattened for name in row))
    grid = [names, *([cell(row.get(name)) for name in names] for row in flattened)]
    if len(names) > WIDEST:
        grid = [list(column) for column in zip(*grid, strict=True)]
    head, *body = grid
    body = [line for line in body if re.match(shown, line[0])] or body
    if len(head) > MOST:
        return ""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: Any) -> str:
    """A value as text."""
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value).replace(" / ", "/")


def section(name: str, figures: Mapping[str, Any]) -> str:
    """The tables of a benchmark, below the command that printed them."""
    taken = figures["taken_on"]
    tables: dict[str, Sequence[Mapping[str, Any]]] = {}
    single: dict[str, Any] = {}
    for key, value in figures.items():
        if key in ("taken_on", "command", "benchmark"):
            continue
        if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            tables[key] = value
        elif isinstance(value, Mapping) and any(isinstance(row, Mapping) for row in value.values()):
            rest = ", ".join(f"{k} {cell(v)}" for k, v in value.items() if not isinstance(v, Mapping))
            named = [{key: name, **row} for name, row in value.items() if isinstance(row, Mapping)]
            tables[f"{key}, {rest}" if rest else key] = named
        elif isinstance(value, Mapping):
            tables[key] = [value]
        elif not isinstance(value, list):
            single[key] = value
    about = "".join(f", {key} {cell(value)}" for key, value in single.items() if value not in ("", None))
    parts = [f"`{figures['command']}` at {taken['commit']}: {taken['cpu']}, load {taken['load_before']:g}{about}."]
    shown = {key: text for key, rows in tables.items() if (text := markdown_table(rows, SHOWN.get(name, "")))}
    parts += [
        f"{key}:\n\n{text}" if len(tables) > 1 and not text.startswith(f"| {key} ") else text
        for key, text in shown.items()
    ]
    return "\n\n".join(parts)


def write_page(page: str, kept: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with the tables of these figures, each between the markers of its name.

    Raises:
        ValueError: The page has no markers for one of them.
    """
    for name, figures in kept.items():
        page = write_between(page, *markers("table", name), section(name, figures))
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default {' '.join(BENCHMARKS)}")
    parser.add_argument("--arguments", default="", help="arguments for each of them, as one text")
    parser.add_argument("--no-run", action="store_true", help="only the figures that are kept")
    parser.add_argument("--write", type=Path, help="the document to write the tables into")
    args = parser.parse_args()
    names = args.names or BENCHMARKS
    described = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    commit = described.stdout.strip()  # once: the figures of one benchmark are a change to the next
    failed = [] if args.no_run else [name for name in names if not run(name, shlex.split(args.arguments), commit)]
    kept = {}
    for name in names:
        path = RESULTS / f"{name}.json"
        if path.exists():
            kept[name] = json.loads(path.read_text(encoding="utf-8"))
    print("\n\n".join(f"### `{name}`\n\n{section(name, figures)}" for name, figures in kept.items()))
    if args.write:
        args.write.write_text(write_page(args.write.read_text(encoding="utf-8"), kept), encoding="utf-8")
    if failed:
        raise SystemExit(f"not all well: {', '.join(failed)}")


if __name__ == "__main__":
    main()
