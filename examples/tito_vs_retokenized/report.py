"""Tables and pictures of `results.json`: `python report.py`; `python report.py FOLDER` packs a folder's runs first."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

Run = dict[str, Any]

RESULTS = Path(__file__).with_name("results.json")
MAIN = ("token-exact", "re-tokenised", "chat text")
_COLOURS = dict(zip(MAIN, ("tab:blue", "tab:red", "tab:orange"), strict=True))
# 97.5 % quantiles of Student's t for 1 to 19 degrees of freedom; beyond, the last one, which is a little too wide.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093),
)
_SMOOTHED = 5


def pack(folder: Path) -> dict[str, Any]:
    """The finished runs of a folder that have most steps, with curves as columns of four significant digits.

    Raises:
        ValueError: There are none.
    """
    runs = [json.loads(file.read_text()) for file in sorted((folder / "runs").glob("*.json"))]
    if not runs:
        raise ValueError(f"{folder} holds no finished runs: run.py --output {folder} makes them")
    longest = max(len(run["curves"]) for run in runs)
    runs = [run for run in runs if len(run["curves"]) == longest]  # the others are not made longer yet
    for run in runs:
        names = run["curves"][0]
        run["curves"] = {name: [_short(point[name]) for point in run["curves"]] for name in names if name != "seconds"}
    settings = json.loads((folder / "settings.json").read_text()) | {"steps": longest}
    return {"settings": settings, "runs": runs}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of its 95 % confidence interval over seeds (Student's t); NaN for one seed."""
    count = len(values)
    mean = sum(values) / count
    if count < 2:
        return mean, math.nan
    return mean, _T[min(count - 1, len(_T)) - 1] * float(np.std(values, ddof=1)) / math.sqrt(count)


def sign_flip(differences: Sequence[float]) -> float:
    """Exact two-sided p-value of paired differences: the share of sign patterns with a mean at least as far from 0."""
    values = np.asarray(differences)
    signs = np.array(list(product((1, -1), repeat=len(values))))
    return float(np.mean(np.abs(signs @ values) >= abs(values.sum()) - 1e-12))


def power(difference: float, deviation: float, count: int, trials: int = 20_000) -> float:
    """Power of a two-sided paired t-test at 5 %, by simulation with a fixed seed."""
    drawn = np.random.default_rng(0).normal(difference, deviation, (trials, count))
    t = drawn.mean(1) / (drawn.std(1, ddof=1) / math.sqrt(count))
    return float(np.mean(np.abs(t) > _T[min(count - 1, len(_T)) - 1]))


def detectable(deviation: float, count: int) -> float:
    """Smallest difference, to 0.01, that `count` pairs of this deviation show with a power of 80 %."""
    return next(step / 100 for step in range(1, 1000) if power(step / 100, deviation, count) >= 0.8)


def needed(difference: float, deviation: float, most: int = 100) -> str:
    """How many pairs show this difference at this deviation with a power of 80 %."""
    counts = (count for count in range(2, most + 1) if power(difference, deviation, count, trials=2_000) >= 0.8)
    return str(next(counts, f"more than {most}"))


class Results:
    """All runs of an experiment, by the settings that are compared."""

    def __init__(self, results: dict[str, Any]) -> None:
        self.settings, self.runs = results["settings"], results["runs"]
        common = [(run["dropout"], run["rate"]) for run in self.runs if run["arm"] == "chat text"] or [
            (run["dropout"], run["rate"]) for run in self.runs
        ]
        self.dropout, self.rate = max(set(common), key=common.count)

    def compared(self, arms: Sequence[str], dropout: float | None = None, rate: float | None = None) -> list[list[Run]]:
        """For each seed that has a run of every one of these arms, those runs in the order of the arms."""
        wanted = (self.dropout if dropout is None else dropout, self.rate if rate is None else rate)
        found = {(r["seed"], r["arm"]): r for r in self.runs if (r["dropout"], r["rate"]) == wanted}
        seeds = sorted({seed for seed, _ in found})
        return [[found[seed, arm] for arm in arms] for seed in seeds if all((seed, arm) in found for arm in arms)]


def compare_runs(results: dict[str, Any], again: dict[str, Any]) -> str:
    """How runs made again, on another machine say, compare with the packed ones."""
    known = {(run["arm"], run["dropout"], run["rate"], run["seed"]): run for run in results["runs"]}
    lines = [_row(("run", "steps with equal curves", "held-out reward after, packed", "again")), "|---" * 4 + "|"]
    for run in again["runs"]:
        first = known.get((run["arm"], run["dropout"], run["rate"], run["seed"]))
        if first is None:
            continue
        columns = [list(zip(*(one["curves"][name] for name in first["curves"]), strict=True)) for one in (first, run)]
        equal = sum(one == other for one, other in zip(*columns, strict=True))
        name = f"{run['arm']}, dropout {run['dropout']:g}, rate {run['rate']:g}, seed {run['seed']}"
        rewards = (f"{one['after']['reward']:.3f}" for one in (first, run))
        lines.append(_row((name, f"{equal} of {len(columns[1])}", *rewards)))
    return "\n".join(lines)


def tables(results: dict[str, Any]) -> str:
    """All tables and the statement on power, as Markdown."""
    data = Results(results)
    parts = []
    if main := data.compared(MAIN):
        parts += ["### Three arms", _main_table(main), _seed_table(main), _statement(main)]
    if degrees := _degrees(data):
        parts += ["### Drift by degrees", degrees]
    for title, arms in (
        ("### With importance correction", (*MAIN[:2], "re-tokenised, corrected", "token-exact, shrunk")),
        ("### Through the gateway", (MAIN[0], MAIN[2], "chat text, gateway")),
    ):
        if seeds := data.compared(arms):
            parts += [title, _after_table(seeds)]
    for title, dropout in (("### Learning rates", data.dropout), ("### Learning rates at natural drift", 0.0)):
        if rates := _rates(data, dropout):
            parts += [title, rates]
    return "\n\n".join(parts) + "\n"


_Value = Callable[[Run], float]
_ROWS: tuple[tuple[str, _Value], ...] = (
    ("held-out reward before", lambda run: run["before"]["reward"]),
    ("held-out reward after", lambda run: run["after"]["reward"]),
    ("change of it", lambda run: run["after"]["reward"] - run["before"]["reward"]),
    ("valid calls before", lambda run: run["before"]["called"]),
    ("valid calls after", lambda run: run["after"]["called"]),
    ("training reward, last 5 steps", lambda run: _mean(run["curves"]["reward"][-5:])),
    ("rollouts with drift, all steps", lambda run: _mean(run["curves"]["drift"])),
    ("sampled minus trained, nats a rollout", lambda run: _mean(run["curves"]["sequence_gap"])),
    ("largest token gap sampler/trainer", lambda run: _largest(run["curves"]["max_token_gap"])),
    ("KL of sampler and trainer (k3)", lambda run: _mean(run["curves"]["k3"])),
    ("steps with a clipped gradient", lambda run: _mean([norm > 1.0 for norm in run["curves"]["gradient_norm"]])),
)


def _main_table(seeds: Sequence[list[Run]]) -> str:
    arms = [run["arm"] for run in seeds[0]]
    head = ["", *arms, *(f"{arms[0]} less {arm}" for arm in arms[1:])]
    lines = [_row(head), "|---" * len(head) + "|"]
    for title, value in _ROWS:
        columns = [[value(runs[i]) for runs in seeds] for i in range(len(arms))]
        paired = [[one - other for one, other in zip(columns[0], column, strict=True)] for column in columns[1:]]
        lines.append(_row([title, *map(_cell, (*columns, *paired))]))
    return "\n".join(lines) + "\n\n" + _of_seeds(seeds)


def _of_seeds(seeds: Sequence[list[Run]]) -> str:
    numbers = [runs[0]["seed"] for runs in seeds]
    if len(numbers) == 1:
        return f"Seed {numbers}, without confidence intervals: they need two seeds."
    if len(numbers) == 2:
        return f"Both values of the seeds {numbers}, without confidence intervals: those of two seeds are too wide."
    return (
        f"Mean over the {len(numbers)} seeds {numbers} ± half width of the 95 % confidence interval (Student's t); "
        "differences are paired by seed."
    )


def _seed_table(seeds: Sequence[list[Run]]) -> str:
    lines = [_row(["seed", "held-out reward before", *(f"{run['arm']} after" for run in seeds[0])])]
    lines.append("|---" * (2 + len(seeds[0])) + "|")
    for runs in seeds:
        rewards = [runs[0]["before"]["reward"], *(run["after"]["reward"] for run in runs)]
        lines.append(_row([str(runs[0]["seed"]), *(f"{reward:.2f}" for reward in rewards)]))
    return "\n".join(lines)


def _statement(seeds: Sequence[list[Run]]) -> str:
    if len(seeds) < 2:
        return "One seed has no power."
    lines = []
    for i in range(1, len(seeds[0])):
        differences = [runs[0]["after"]["reward"] - runs[i]["after"]["reward"] for runs in seeds]
        deviation = float(np.std(differences, ddof=1))
        if deviation == 0:
            continue
        found, count = sum(differences) / len(differences), len(seeds)
        lines.append(
            f"- {seeds[0][0]['arm']} less {seeds[0][i]['arm']}: {found:.2f} with a standard deviation of "
            f"{deviation:.2f} over {count} seeds. At that deviation a difference of {detectable(deviation, count):.2f} "
            f"is found with a power of 80 % (two-sided paired t-test at 5 %), the observed one with "
            f"{100 * power(found, deviation, count):.0f} %. Exact sign-flip test: p = {sign_flip(differences):.3g}, "
            f"where {count} seeds can give at least {2 / 2**count:.3g}."
        )
    return "\n".join(lines)


def _degrees(data: Results) -> str:
    lines = []
    for dropout in sorted({run["dropout"] for run in data.runs}):
        if seeds := data.compared(MAIN[:2], dropout=dropout):
            first = [[runs[0]["curves"][name][0] for runs in seeds] for name in ("drift", "drifted_tokens")]
            differences = [exact["after"]["reward"] - other["after"]["reward"] for exact, other in seeds]
            deviation = float(np.std(differences, ddof=1)) if len(differences) > 1 else 0.0
            seeds_needed = needed(sum(differences) / len(differences), deviation) if deviation else "–"
            cells = [*map(_cell, first), *_after_cells(seeds), f"{sign_flip(differences):.2g}", seeds_needed]
            lines.append(_row([f"{dropout:g}", str(len(seeds)), *cells]))
    if len(lines) < 2:
        return ""
    head = ("BPE dropout", "seeds", "rollouts with drift at the start", "tokens", "before", *MAIN[:2], "difference")
    head = (*head, "p", "seeds for a power of 80 %")
    return "\n".join([_row(head), "|---" * len(head) + "|", *lines])


def _rates(data: Results, dropout: float) -> str:
    """Both arms at every learning rate, and each arm at the rate that is best for it, over the seeds all rates have."""
    found = {
        rate: {runs[0]["seed"]: runs for runs in data.compared(MAIN[:2], dropout=dropout, rate=rate)}
        for rate in sorted({run["rate"] for run in data.runs})
    }
    found = {rate: seeds for rate, seeds in found.items() if seeds}
    if len(found) < 2:
        return ""
    head = ("learning rate", "seeds", "before", *MAIN[:2], "difference", "steps clipped: token-exact", "re-tokenised")
    lines = [_row(head), "|---" * len(head) + "|"]
    for rate, by_seed in found.items():
        seeds = list(by_seed.values())
        clipped = [
            _cell([_mean([norm > 1.0 for norm in runs[i]["curves"]["gradient_norm"]]) for runs in seeds])
            for i in range(2)
        ]
        lines.append(_row([f"{rate:g}", str(len(seeds)), *_after_cells(seeds), *clipped]))
    common = sorted(set.intersection(*(set(by_seed) for by_seed in found.values())))
    best = []
    for i, arm in enumerate(MAIN[:2]):
        means = {
            rate: _mean([by_seed[seed][i]["after"]["reward"] for seed in common]) for rate, by_seed in found.items()
        }
        rate = max(means, key=lambda rate: means[rate])
        best.append((rate, {runs[0]["seed"]: runs[0] for runs in data.compared([arm], dropout=dropout, rate=rate)}))
    lines += ["", f"Each arm's best rate is chosen over the seeds {common}, which every rate has."]
    (exact_rate, exact), (other_rate, other) = best
    for seeds in dict.fromkeys((tuple(common), tuple(sorted(exact.keys() & other.keys())))):
        after = [[runs[seed]["after"]["reward"] for seed in seeds] for _, runs in best]
        differences = [one - two for one, two in zip(*after, strict=True)]
        lines.append(
            f"Best against best over {len(seeds)} seeds: {MAIN[0]} {_cell(after[0])} at {exact_rate:g}, {MAIN[1]} "
            f"{_cell(after[1])} at {other_rate:g}; difference {_cell(differences)}, p = {sign_flip(differences):.2g}."
        )
    return "\n".join(lines)


def _after_table(seeds: Sequence[list[Run]]) -> str:
    head = ["seeds", "before", *(run["arm"] for run in seeds[0])]
    cells = [str(len(seeds)), *_after_cells(seeds, paired=False)]
    return "\n".join([_row(head), "|---" * len(head) + "|", _row(cells)])


def _after_cells(seeds: Sequence[list[Run]], *, paired: bool = True) -> list[str]:
    """Held-out reward before, after for each arm, and the difference of the first two."""
    columns = [[runs[0]["before"]["reward"] for runs in seeds]]
    columns += [[runs[i]["after"]["reward"] for runs in seeds] for i in range(len(seeds[0]))]
    if paired:
        columns.append([one - other for one, other in zip(columns[1], columns[2], strict=True)])
    return [_cell(column) for column in columns]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def _largest(values: Sequence[float | None]) -> float:
    return max((value for value in values if value is not None), default=math.nan)


def _cell(values: Sequence[float]) -> str:
    if any(math.isnan(value) for value in values):
        return "–"
    if len(values) == 2:  # an interval of two is wider than the scale
        return ", ".join(f"{value:.3f}" for value in values)
    mean, half = interval(values)
    digits = ".3g" if abs(mean) < 1e-2 else ".3f"
    if math.isnan(half):
        return f"{mean:{digits}}"
    return f"{mean:{digits}} ± {half:{'.2g' if abs(mean) < 1e-2 else '.3f'}}"


def draw(results: dict[str, Any], path: Path) -> None:
    """The picture: training reward by step, and held-out reward before and after, a dot a seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    seeds = Results(results).compared(MAIN)
    figure, (curves, ends) = pyplot.subplots(1, 2, figsize=(10, 4), width_ratios=(2, 1), sharey=True)
    held_out = [("before", "grey", [runs[0]["before"]["reward"] for runs in seeds])]
    for i, arm in enumerate(MAIN):
        colour = _COLOURS[arm]
        held_out.append((arm, colour, [runs[i]["after"]["reward"] for runs in seeds]))
        series = [runs[i]["curves"]["reward"] for runs in seeds]
        for values in series:
            curves.plot(range(1, len(values) + 1), values, color=colour, alpha=0.15, linewidth=0.8)
        mean = _smooth([sum(column) / len(column) for column in zip(*series, strict=True)])
        curves.plot(range(1, len(mean) + 1), mean, color=colour, linewidth=3, label=arm)
    for column, (_, colour, values) in enumerate(held_out):
        # Side by side in the order of the seeds: equal values stay visible, and a seed is found in every column.
        places = column + np.linspace(-0.25, 0.25, len(values) + 2)[1:-1]
        mean_reward = sum(values) / len(values)
        ends.plot(places, values, "o", color=colour, alpha=0.6, clip_on=False)
        ends.plot([column - 0.35, column + 0.35], [mean_reward] * 2, color=colour, linewidth=3)
        ends.annotate(f"{mean_reward:.2f}", (column, 0.93), color=colour, ha="center", weight="bold")
    curves.set(xlabel="GRPO step", ylabel="reward", ylim=(0, 1), title=f"training reward, {len(seeds)} seeds")
    curves.legend(loc="upper left", frameon=False)
    ends.set_xticks(range(len(held_out)), [name for name, _, _ in held_out], rotation=20)
    ends.set_title("held-out reward before and after")
    for axes in (curves, ends):
        axes.spines[["top", "right"]].set_visible(False)
    figure.text(
        0.01,
        0.005,
        f"left: thin a seed, thick the mean of {_SMOOTHED} steps; right: a dot a seed, and the mean",
        fontsize=8,
    )
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_harm(results: dict[str, Any], path: Path) -> None:
    """The picture of harm against drift: a dot for each pair of runs, and the mean of each strength of drift."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    data = Results(results)
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    axes.axhline(0, color="grey", linewidth=1)
    for dropout in sorted({run["dropout"] for run in data.runs}):
        pairs = data.compared(MAIN[:2], dropout=dropout)
        if not pairs:
            continue
        drift = [100 * _mean(exact["curves"]["drift"]) for exact, _ in pairs]
        harm = [exact["after"]["reward"] - other["after"]["reward"] for exact, other in pairs]
        (dots,) = axes.plot(drift, harm, "o", alpha=0.5, label=_strength(dropout, len(pairs)))
        mean, half = interval(harm)
        axes.errorbar(
            [sum(drift) / len(drift)], [mean], yerr=None if math.isnan(half) else [half],
            color=dots.get_color(), marker="D", markersize=8, capsize=5, linewidth=2, zorder=3,
        )  # fmt: skip
    axes.set(
        xlabel="rollouts with drift, mean over all steps of the token-exact run (%)",
        ylabel="held-out reward lost by re-tokenising",
        title="Harm against drift: a dot is a pair of runs of one seed, a diamond the mean and its 95 % interval",
    )
    axes.title.set_fontsize(9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _strength(dropout: float, seeds: int) -> str:
    name = f"BPE dropout {dropout:g}" if dropout else "the model's own drift"
    return f"{name}, {seeds} seeds"


def _smooth(values: Sequence[float]) -> list[float]:
    windows = [values[max(0, i - _SMOOTHED + 1) : i + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def main() -> None:
    """Print the tables, and draw the picture where matplotlib is installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="--output of run.py")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="compare runs made again with the packed ones")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the packed results; the pictures go beside it")
    options = parser.parse_args()
    try:
        if options.folder is not None:
            packed = json.dumps(pack(options.folder)).replace('{"seed"', '\n{"seed"')
            options.results.write_text(packed + "\n")
        results = json.loads(options.results.read_text())
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if options.check is not None:
        print(compare_runs(results, pack(options.check)))
        return
    print(tables(results))
    try:
        draw(results, options.results.with_name("reward.png"))
        draw_harm(results, options.results.with_name("harm.png"))
    except ImportError:
        print("(no picture: matplotlib is not installed)")


if __name__ == "__main__":
    main()
