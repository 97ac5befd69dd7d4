"""`examples/notebook.ipynb` runs, and shows what it did when it was written."""

from __future__ import annotations

import json
from functools import partial

import pytest

from strands_env.core import models
from tests.conftest import ROOT
from tests.notebook import run_notebook

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def test_the_notebook_runs_and_every_cell_shows_what_it_showed(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("torch", "transformers"):
        pytest.importorskip(package)
    from strands_sglang.backends.engine import EmbeddedEngine

    # Unseeded, an episode may run into its limit of tokens.
    monkeypatch.setattr(models, "open_engine", partial(EmbeddedEngine, seed=0))
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    outputs = run_notebook(NOTEBOOK)
    kept = [[list(output.get("data", ())) for output in cell["outputs"]] for cell in cells]
    assert [[list(output.get("data", ())) for output in cell] for cell in outputs] == kept
    step, trajectory, run, sample = ("".join(cell[0]["data"]["text/html"]) for cell in outputs if cell)
    for shown in (step, trajectory, sample):
        assert "log-probability -" in shown and "&lt;|im_end|&gt;</span>" in shown
    assert "What is 25 * 17?" in step and '<td style="text-align:left">6x7</td>' in run
