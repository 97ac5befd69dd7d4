"""Runs benchmarks, keeps their figures with the machine they were taken on, and writes them as tables.

    python -m benchmarks.table [NAME...] [--no-run] [--write benchmarks/figures.md] [--arguments "..."]

Each benchmark runs as `python -m benchmarks.NAME`. The lines it prints that are JSON objects are its figures; they are
kept in `benchmarks/results/NAME.json`. `--no-run` uses what is kept. The tables go to the standard output, and with
`--write` between the two markers of a document.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
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
    "fast_paths": f"rollouts --sizes 3k 36k --arms environment --without all {FAST_PATHS}",
    "many_rollouts": "many_rollouts",
    "grading": "grading",
    "evaluator": "evaluator --executor inline processes ray",
    "evaluator_cost": "evaluator_cost",
    "live_page": "live_page",
    "chaos": "chaos",
    "gateway": "gateway",
    "gateway_telemetry": "gateway --telemetry --passes 12",
    "gateway_throughput": "gateway --throughput --passes 5",
    "peers": "peers --systems ours agentcore agentcore-linear verifiers verifiers-branches slime",
    "containers": "containers --kills 500",
}
"""Names of figures, and the benchmark that prints them with its arguments."""
WIDEST = 8  # columns; a wider table is turned on its side


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


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table with a row for each object; on its side where it would be too wide."""
    flattened = [dict(flat(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flattened for name in row))
    grid = [names, *([cell(row.get(name)) for name in names] for row in flattened)]
    if len(names) > WIDEST:
        grid = [list(column) for column in zip(*grid, strict=True)]
    head, *body = grid
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: Any) -> str:
    """A value as text."""
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def section(name: str, figures: Mapping[str, Any]) -> str:
    """All tables of a benchmark."""
    module = BENCHMARKS.get(name, name).split()[0]
    source = (ROOT / "benchmarks" / f"{module}.py").read_text(encoding="utf-8")
    title = (ast.get_docstring(ast.parse(source)) or name).partition("\n")[0].rstrip(".")
    taken = figures["taken_on"]
    parts = [
        f"### `{name}`: {title}",
        f"`{figures['command']}` at {taken['commit']}, on {taken['cpu']}, {taken['cores']} cores, "
        f"{taken['memory_gb']} GB, Python {taken['python']}; load before the run {taken['load_before']:g}.",
    ]
    single: dict[str, Any] = {}
    for key, value in figures.items():
        if key in ("taken_on", "command", "benchmark"):
            continue
        if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            parts.append(f"{key}:\n\n{markdown_table(value)}")
        elif isinstance(value, Mapping) and any(isinstance(row, Mapping) for row in value.values()):
            rows = [{key: name, **row} for name, row in value.items() if isinstance(row, Mapping)]
            rest = {name: row for name, row in value.items() if not isinstance(row, Mapping)}
            parts.append(f"{', '.join([key, *(f'{k} {cell(v)}' for k, v in rest.items())])}:\n\n{markdown_table(rows)}")
        elif isinstance(value, Mapping):
            parts.append(f"{key}:\n\n{markdown_table([value])}")
        elif not isinstance(value, list):
            single[key] = value
    if single:
        parts.insert(2, ", ".join(f"{key} {cell(value)}" for key, value in single.items()) + ".")
    return "\n\n".join(parts)


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
    text = "\n\n".join(section(name, figures) for name, figures in kept.items())
    print(text)
    if args.write:
        args.write.write_text(
            write_between(args.write.read_text(encoding="utf-8"), *markers("table"), text), encoding="utf-8"
        )
    if failed:
        raise SystemExit(f"not all well: {', '.join(failed)}")


if __name__ == "__main__":
    main()
