"""`examples/short_answers`: its file is a run, its reward is proven, and what it is judged on was not trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strands_env.commands.cli import main
from tests.conftest import ROOT

EXAMPLE = ROOT / "examples" / "short_answers"


def test_the_example_is_proven_on_tasks_that_do_not_overlap(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    questions = []
    for name in ("tasks.jsonl", "held_out.jsonl"):
        questions.append({json.loads(line)["question"] for line in Path(name).read_text(encoding="utf-8").splitlines()})
        assert main(["check", "--env", "short_answers", "--data", name, "--tokenizer", "none"]) == 0
        assert "8 sound (of 8)" in capsys.readouterr().out
    assert not questions[0] & questions[1]
    assert main(["train", "run.yaml", "--dry-run", "--json", "-o", str(tmp_path / "run")]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["rollouts"], plan["tasks"]) == (8 * 32, 8)
