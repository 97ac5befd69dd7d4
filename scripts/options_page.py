"""Writes the tables of options in docs/evaluation-reference.md from the fields of `EvalOptions` and `TrainOptions`.

python scripts/options_page.py    # a test fails where the page is not what this writes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field
from pathlib import Path
from typing import Any

from strands_env.eval.options import OPTIONS, SAMPLING, TRAIN_OPTIONS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "evaluation-reference.md"
BEGIN, END = "<!-- begin: scripts/options_page.py -->", "<!-- end: scripts/options_page.py -->"


def rows(options: Mapping[str, Field[Any]]) -> Iterator[tuple[str, str]]:
    """The options of a command, each with its text and default."""
    for name, option in options.items():
        flags = [flag for flag in option.metadata["flags"] if flag]
        text = option.metadata["help"]
        if choices := option.metadata["argument"].get("choices"):
            text += f": {', '.join(map(str, choices))}"
        plain = option.default not in (None, False, (), "") and "default" not in text
        long = [flag.removeprefix("--").replace("-", "_") for flag in flags if flag.startswith("--")]
        shown = [f"`{flag}`" for flag in flags] + ([] if name in long else [f"`{name}=`"])
        yield ", ".join(shown if name != "benchmark" else ["`BENCHMARK`"]), text + f" ({option.default})" * plain


def tables() -> str:
    """All tables, one for each group of options."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, option in OPTIONS.items():
        groups.setdefault(option.metadata["group"] or "model", []).extend(rows({name: option}))
    for name, argument in SAMPLING.items():
        groups["model"].append((f"`--{name.replace('_', '-')}`", argument.get("help", "as the server takes it")))
    groups["training: strands-env train"] = list(rows(TRAIN_OPTIONS))
    return "\n\n".join(
        f"| {group} | |\n|---|---|\n"
        + "\n".join(f"| {flags} | {text.replace('|', chr(92) + '|')} |" for flags, text in found)
        for group, found in groups.items()
    )


def written(page: str) -> str:
    """The page with its tables as they are today."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE.name} needs the lines {BEGIN!r} and {END!r}, in this order")
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
