"""Table and plots of all `results*.json`; also alone: `python report.py FOLDER`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# 97.5 % quantiles of Student's t for 1 to 19 degrees of freedom; beyond, the last one, which is a little too wide.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093),
)
_PANELS = (
    ("reward", "reward"),
    ("called", "valid calls"),
    ("drift", "rollouts with drift"),
    ("sequence_gap", "log-probability of sampled minus trained tokens (nats a rollout)"),
    ("update_kl", "KL of sampler and updated policy, sampled tokens (k3)"),
)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of its 95 % confidence interval over seeds (Student's t); NaN for one seed."""
    count = len(values)
    mean = sum(values) / count
    if count < 2:
        return mean, math.nan
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    return mean, _T[min(count - 1, len(_T)) - 1] * deviation / math.sqrt(count)


def write_report(folder: Path) -> str:
    """Write `table.md` and, where matplotlib is installed, `curves.png`; the table."""
    files = sorted(folder.glob("results*.json"))
    runs = complete([run for file in files for run in json.loads(file.read_text())["runs"]])
    table = make_table(runs)
    (folder / "table.md").write_text(table)
    try:
        _plot(runs, folder / "curves.png")
    except ImportError:
        table += "\n(no plots: matplotlib is not installed)\n"
    return table


def complete(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs of seeds that have both arms, by seed, so that the arms can be paired."""
    count = len({run["arm"] for run in runs})
    seeds = [run["seed"] for run in runs]
    return sorted((run for run in runs if seeds.count(run["seed"]) == count), key=lambda run: run["seed"])


def make_table(runs: Sequence[dict[str, Any]]) -> str:
    """Mean over seeds and its 95 % confidence interval."""
    arms = list(dict.fromkeys(run["arm"] for run in runs))
    rows: list[tuple[str, Callable[[dict[str, Any]], float]]] = [
        ("held-out reward before", lambda run: run["before"]["reward"]),
        ("held-out reward after", lambda run: run["after"]["reward"]),
        ("change of it", lambda run: run["after"]["reward"] - run["before"]["reward"]),
        ("valid calls before", lambda run: run["before"]["called"]),
        ("valid calls after", lambda run: run["after"]["called"]),
        ("training reward, last 10 steps", lambda run: _mean(run["curves"][-10:], "reward")),
        ("rollouts with drift, all steps", lambda run: _mean(run["curves"], "drift")),
        ("sampled minus trained, nats a rollout", lambda run: _mean(run["curves"], "sequence_gap")),
        ("largest token gap sampler/trainer", lambda run: _largest(run["curves"], "max_token_gap")),
        ("KL of sampler and trainer (k3)", lambda run: _mean(run["curves"], "k3")),
        ("KL of sampler and updated policy (k3)", lambda run: _mean(run["curves"], "update_kl")),
    ]
    lines = [f"| | {' | '.join(arms)} | difference (paired by seed) |", "|---|" + "---|" * (len(arms) + 1)]
    for title, value in rows:
        by_arm = [[value(run) for run in runs if run["arm"] == arm] for arm in arms]
        paired = [one - other for one, other in zip(*by_arm, strict=False)] if len(arms) == 2 else []
        cells = [_cell(values) for values in (*by_arm, paired)]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    seeds = sorted({run["seed"] for run in runs})
    lines.append(f"\nMean over seeds {seeds} ± half width of the 95 % confidence interval (Student's t).")
    return "\n".join(lines) + "\n"


def _mean(curves: Sequence[dict[str, Any]], name: str) -> float:
    values = [point[name] for point in curves if point[name] is not None]
    return sum(values) / len(values) if values else math.nan


def _largest(curves: Sequence[dict[str, Any]], name: str) -> float:
    return max((point[name] for point in curves if point[name] is not None), default=math.nan)


def _cell(values: Sequence[float]) -> str:
    if not values or any(math.isnan(value) for value in values):
        return "–"
    mean, half = interval(values)
    return f"{mean:.3g} ± {half:.2g}" if abs(mean) < 1e-2 else f"{mean:.3f} ± {half:.3f}"


def _plot(runs: Sequence[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(_PANELS), figsize=(5 * len(_PANELS), 4))
    for axis, (name, title) in zip(axes, _PANELS, strict=True):
        for colour, arm in zip(("tab:blue", "tab:red"), dict.fromkeys(run["arm"] for run in runs), strict=False):
            series = [[point[name] for point in run["curves"]] for run in runs if run["arm"] == arm]
            for values in series:
                axis.plot(values, color=colour, alpha=0.2, linewidth=0.8)
            means = [sum(column) / len(column) for column in zip(*series, strict=False)]
            axis.plot(_smooth(means), color=colour, label=arm)
        axis.set_xlabel("GRPO step")
        axis.set_title(title, fontsize=10)
        if name == "update_kl":
            axis.set_yscale("log")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _smooth(values: Sequence[float], width: int = 5) -> list[float]:
    return [
        sum(values[max(0, i - width + 1) : i + 1]) / len(values[max(0, i - width + 1) : i + 1])
        for i in range(len(values))
    ]


if __name__ == "__main__":
    print(write_report(Path(sys.argv[1])))
