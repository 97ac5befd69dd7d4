"""Runs of a live server: verified by it and by another, and replayed without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strands_env.commands.cli import main
from tests.integration.servers import Server


@pytest.fixture
def run(tmp_path: Path, server: Server, capsys: Any) -> str:
    """A small evaluation on the server."""
    evaluate(server, "-o", str(tmp_path / "run"))
    capsys.readouterr()
    return str(tmp_path / "run")


def evaluate(server: Server, *options: str) -> None:
    model = ["--backend", server.name, "--base-url", server.base_url, "--temperature", "1"]
    size = ["--limit", "2", "-n", "2", "--max-new-tokens", "24", "-q"]
    assert main(["eval", "arithmetic", *model, *size, *options]) == 0


def mismatch(run: str, capsys: Any, *where: str) -> dict[str, Any]:
    assert main(["report", run, *where, "--max-kl", "1e-4", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["files"]["is_intact"] is True
    found: dict[str, Any] = shown["mismatch"]
    return found


def test_server_agrees_with_what_it_recorded(run: str, server: Server, capsys: Any) -> None:
    found = mismatch(run, capsys, "--server", server.address)
    assert (found["trajectories"], found["skipped"]) == (4, {})
    assert found["tokens"] > 4
    assert found["max_abs_difference"] < 1e-2


def test_embedded_engine_agrees_with_the_server(run: str, server: Server, capsys: Any) -> None:
    pytest.importorskip("torch", reason="needs the extra `local`")
    folder = Path(server.model_path)
    if not (folder / "config.json").is_file():
        pytest.skip(f"the server's model {str(folder)!r} is not a folder on this machine")
    assert mismatch(run, capsys, "--model", str(folder))["max_abs_difference"] < 1e-2
