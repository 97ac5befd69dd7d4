"""Figures of benchmarks as tables."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path

import pytest
from benchmarks.shape import markers
from benchmarks.table import BENCHMARKS, RESULTS, json_lines, markdown_table, section, write_page

from tests.conftest import ROOT

TAKEN_ON = {"commit": "abc", "cpu": "a CPU", "cores": 2, "memory_gb": 8, "python": "3.11", "load_before": 0.1}


def test_every_benchmark_of_the_table_exists() -> None:
    modules = [command.split()[0] for command in BENCHMARKS.values()]
    assert [name for name in modules if not (ROOT / "benchmarks" / f"{name}.py").exists()] == []


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_finds_what_it_takes_from_the_tests(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
            module = importlib.import_module(str(node.module))
            for name in node.names:
                assert hasattr(module, name.name) or importlib.util.find_spec(f"{node.module}.{name.name}")


def test_figures_are_the_json_objects_among_the_lines() -> None:
    assert json_lines(["size  ms\n", '{"a": 1}\n', "{not json\n", "[1]\n", '{"b": 2}\n']) == [{"a": 1}, {"b": 2}]


def test_nested_values_get_columns() -> None:
    assert markdown_table([{"n": 1, "ms": {"p50": 2.5}}, {"n": 2}]).splitlines() == [
        "| n | ms.p50 |",
        "| --- | --- |",
        "| 1 | 2.5 |",
        "| 2 |  |",
    ]


def test_a_wide_table_is_turned_on_its_side() -> None:
    lines = markdown_table([{f"c{number}": number for number in range(9)}]).splitlines()
    assert lines[0] == "| c0 | 0 |" and lines[-1] == "| c8 | 8 |"
    assert markdown_table([{f"c{number}": number for number in range(9)}] * 12) == ""  # too wide either way


def test_a_section_says_where_the_figures_come_from() -> None:
    figures = {"sizes": {"3k": {"ours": 1.5}}, "passes": 5, "rows": [{"n": 1}], "taken_on": TAKEN_ON, "command": "run"}
    text = section("many_rollouts", figures)
    assert "`run` at abc: a CPU, load 0.1, passes 5." in text
    assert "| sizes | ours |\n| --- | --- |\n| 3k | 1.5 |" in text
    assert "rows:\n\n| n |" in text
    figures = {"rows": [{"family": "sets"}, {"family": "all"}], "taken_on": TAKEN_ON, "command": "run"}
    assert section("grading", figures).endswith("| family |\n| --- |\n| all |")  # the rows that a page shows
    assert "| sets |\n| all |" in section("other", figures)


def test_figures_go_between_their_markers_and_nowhere_else() -> None:
    begin, end = markers("table", "grading")
    kept = {"rows": [{"n": 1}], "taken_on": TAKEN_ON, "command": "run"}
    written = write_page(f"before\n{begin}\nold\n{end}\nafter", {"grading": kept})
    assert written == f"before\n{begin}\n\n{section('grading', kept)}\n\n{end}\nafter"
    assert write_page(written, {"grading": kept}) == written
    with pytest.raises(ValueError, match="needs the two lines"):
        write_page(written, {"chaos": kept})


def test_the_page_has_the_figures_that_are_kept() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    kept = {
        name: json.loads(path.read_text("utf-8")) for name in BENCHMARKS if (path := RESULTS / f"{name}.json").exists()
    }
    assert kept and write_page(page, kept) == page
