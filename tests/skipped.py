"""Skipped tests: counted by reason in the closing lines, and named in a file for a run that has what they need."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

FILE = os.environ.get("STRANDS_ROLLOUT_SKIPPED")
"""Takes one skipped test, or file of tests, a line; pytest reads it back as `@FILE`."""


class Skips:
    """Hooks of the process that reports, which is not the one that runs the tests where several share them."""

    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()
        self._names: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: Any) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1
            name, _, values = report.nodeid.partition("[")
            self._names[name if values.startswith("NOTSET") else report.nodeid] = None  # its values come with the data

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for reason, count in self._reasons.most_common():
            terminalreporter.line(f"SKIPPED [{count}] {reason}")

    def pytest_sessionfinish(self) -> None:
        if FILE and "PYTEST_CURRENT_TEST" not in os.environ:  # no run of pytest within a test
            with open(FILE, "w", encoding="utf-8") as file:
                file.writelines(f"{name}\n" for name in self._names)


def pytest_configure(config: pytest.Config) -> None:
    """Listen to the reports."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skips())
