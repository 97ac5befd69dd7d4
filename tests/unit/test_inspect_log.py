"""`strands-env export --format inspect`: a run that inspect_ai reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strands_env.commands.cli import main
from strands_env.core import ErrorRecord, Phase, TerminationReason
from strands_env.report.inspect_log import chat_messages
from tests.unit.eval_support import sample
from tests.unit.test_eval_report import write


def make_run(folder: Path) -> Path:
    scored, failed = sample(0.5), sample(None, 1)
    scored.step_result.observation.messages[1:1] = [
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c", "name": "add", "input": {"a": 1}}}]},
        {
            "role": "user",
            "content": [{"toolResult": {"toolUseId": "c", "status": "error", "content": [{"text": "no"}]}}],
        },
    ]
    scored.step_result.reward.info = {"why": float("nan")}
    failed.step_result.termination_reason = TerminationReason.TIMEOUT
    failed.step_result.error = ErrorRecord(type="TimeoutError", message="late", traceback="...", where=Phase.MODEL)
    return write(folder, scored, failed)


def test_the_log_has_every_sample_with_its_score_or_its_error(tmp_path: Path) -> None:
    target = tmp_path / "log.json"
    assert main(["export", str(make_run(tmp_path)), "--format", "inspect", "-o", str(target)]) == 0
    log = json.loads(target.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (log["version"], log["status"], log["eval"]["task"]) == (2, "success", "<b>bench</b>")
    first, second = log["samples"]
    assert [message["role"] for message in first["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert first["messages"][1]["tool_calls"][0]["function"] == first["messages"][2]["function"] == "add"
    assert first["scores"]["reward"]["value"] == 0.5 and first["epoch"] == 1
    assert "scores" not in second and second["error"]["message"] == "TimeoutError in model: late"


def test_inspects_own_reader_reads_it(tmp_path: Path) -> None:
    log = pytest.importorskip("inspect_ai.log")
    target = tmp_path / "log.json"
    main(["export", str(make_run(tmp_path)), "--format", "inspect", "-o", str(target)])
    read = log.read_eval_log(str(target))
    assert [found.scores["reward"].value for found in read.samples if found.scores] == [0.5]
    assert read.results.scores[0].metrics["mean"].value == 0.5


def test_it_is_the_whole_run_in_a_json_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(make_run(tmp_path))
    assert main(["export", run, "--format", "inspect", "-o", str(tmp_path / "log.parquet")]) == 2
    assert main(["export", run, "--format", "inspect", "--mixed", "-o", str(tmp_path / "log.json")]) == 2
    assert "whole run" in capsys.readouterr().err
    assert not (tmp_path / "log.json").exists()


def test_reasoning_and_blocks_of_a_result_keep_their_place() -> None:
    (message,) = chat_messages(
        [{"role": "assistant", "content": [{"reasoningContent": {"reasoningText": {"text": "hm"}}}, {"text": "4"}]}]
    )
    assert [part["type"] for part in message["content"]] == ["reasoning", "text"]
