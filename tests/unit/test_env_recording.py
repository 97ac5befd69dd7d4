"""Recorded evaluations, and their replay without a backend."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import shutil
import threading
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

from strands_env.commands.cli import main
from strands_env.eval.store import StorePaths
from strands_env.options import EvalOptions
from strands_env.recipe.recording import Replay
from strands_sglang.backends import Capabilities, GenerateAnswer, LogprobKind, ScoredPrompt
from strands_sglang.backends.engine.tiny import make_tiny_tokenizer
from strands_sglang.gateway.records import from_json, to_json
from strands_sglang.trajectory import Finish, FinishType, WeightSpan
from strands_sglang.trajectory.turn import LengthLimit
from tests.image_support import png
from tests.servers import FaultyServer

TASKS = [{"id": "a", "question": "What is 2+3?", "answer": "5"}, {"id": "b", "question": "What is 7?", "answer": "7"}]


@pytest.fixture(scope="module")
def run_with_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a recorded run: four rollouts of the tiny embedded model."""
    folder = tmp_path_factory.mktemp("recorded")
    with contextlib.chdir(folder):
        Path("tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS))
        options = ["--data", "tasks.jsonl", "--model-id", "tiny", "-n", "2", "--max-new-tokens", "12", "-q"]
        assert main(["eval", *options, "-o", "run", "--record", "run.rec"]) == 0
    return folder


@pytest.fixture
def recorded(run_with_recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recording, in a copy of its folder where the test works."""
    shutil.copytree(run_with_recording, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.rec"


def replayed(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    status = main(["replay", "run.rec", "--json", *options])
    return status, json.loads(capsys.readouterr().out)


def test_a_replay_needs_neither_model_nor_data_and_gives_the_same_samples(recorded, capsys, monkeypatch):
    import strands_sglang.backends.engine as engine

    monkeypatch.setattr(engine, "EmbeddedEngine", None)
    Path("tasks.jsonl").unlink()
    status, found = replayed(capsys, "-o", "again")
    assert status == 0
    assert found == {"samples": 4, "changed": [], "missing": [], "difference": None, "requests_left_over": 0}
    one, other = (_tokens(StorePaths.of(name)) for name in ("run", "again"))
    assert one == other
    assert len(one) == 4


def _tokens(paths: StorePaths) -> dict[str, list[str]]:
    """The tokens of every sample, as they lie in the store."""
    lines = [json.loads(line) for line in paths.results.read_text().splitlines()]
    return {line["id"]: line["tokens"]["sequences"] for line in lines}


def change_exchange(recording: Path, old: str, new: str) -> int:
    """Change the first exchange of a recording, as an environment that has changed would; the number of its line."""
    lines = recording.read_text().splitlines()
    index = next(i for i, line in enumerate(lines) if '"scope"' in line)
    assert old in lines[index]
    lines[index] = lines[index].replace(old, new, 1)
    recording.write_text("\n".join(line for line in lines if not line.startswith('{"crc"')) + "\n")
    return index + 1


@pytest.mark.parametrize(("old", "new"), [('"vocab_size": ', '"vocab_size": 1'), ('"model_id": ', '"model_id":  ')])
def test_a_recording_that_was_changed_is_refused(recorded: Path, capsys: Any, old: str, new: str) -> None:
    whole = recorded.read_text()
    assert old in whole
    recorded.write_text(whole.replace(old, new, 1))
    assert main(["replay", "run.rec"]) == 2
    assert "it was changed after it was written: its checksum does not fit" in capsys.readouterr().err


def test_a_run_with_pictures_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import strands_sglang.backends.engine as engine

    monkeypatch.chdir(tmp_path)
    picture = base64.b64encode(png((200, 30, 30), (90, 50))).decode()
    row = {"id": "a", "question": "Which colour?", "answer": "red", "Verified_Classes": "Gold subset"}
    Path("hle.jsonl").write_text(json.dumps({**row, "json": {"image": f"data:image/png;base64,{picture}"}}) + "\n")
    options = ["--data", "hle.jsonl", "--model-id", "tiny-vision", "--max-new-tokens", "6", "-q"]
    main(["eval", "hle-verified-gold", *options, "-o", "run", "--record", "run.rec"])  # its judge cannot judge
    capsys.readouterr()
    monkeypatch.setattr(engine, "EmbeddedEngine", None)
    Path("hle.jsonl").unlink()
    status, found = replayed(capsys, "-o", "again")
    assert found == {"samples": 1, "changed": [], "missing": [], "difference": None, "requests_left_over": 0}
    assert status == 0
    media = [json.loads(line) for line in Path("again/results.jsonl").read_text().splitlines()]
    assert "image" in json.dumps(media)
    change_exchange(tmp_path / "run.rec", '"images": ["', '"images": ["0')
    status, found = replayed(capsys, "-o", "third")
    assert status == 1
    assert "images was ['0" in found["difference"]


@contextlib.contextmanager
def served(protocol: str) -> Iterator[str]:
    """The address of a server in a thread of its own."""
    address: SimpleQueue[str] = SimpleQueue()
    done = threading.Event()

    async def serve() -> None:
        async with FaultyServer(protocol=protocol) as server:
            address.put(server.url)
            await asyncio.to_thread(done.wait)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, serve())
        yield address.get()
        done.set()


@pytest.mark.parametrize("protocol", ["sglang", "vllm"])
def test_a_run_on_a_server_is_replayed_without_it(protocol, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    make_tiny_tokenizer().save_pretrained("tokenizer")
    with served(protocol) as url:
        options = ["--backend", protocol, "--base-url", url, "--tokenizer", "tokenizer", "--max-new-tokens", "9"]
        run = ["eval", "--data", "tasks.jsonl", *options, "-q", "-o", "run", "--record", "run.rec"]
        assert main(run) == 0, capsys.readouterr()
    shutil.rmtree("tokenizer")
    capsys.readouterr()
    status, found = replayed(capsys)
    assert (status, found["samples"], found["changed"], found["difference"]) == (0, 2, [], None)


def test_the_first_request_that_differs_is_named(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = recorded.read_text()
    first = json.loads(next(line for line in whole.splitlines() if '"scope"' in line))["prompt"][1][0]
    number = change_exchange(recorded, f'"prompt": [0, [{first},', f'"prompt": [0, [{first}, 65,')
    status, found = replayed(capsys)
    assert (status, len(found["changed"]), found["requests_left_over"]) == (1, 1, 1)
    assert f"the prompt of line {number} differs from token 1 on: recorded 'b" in found["difference"]
    recorded.write_text(whole)
    change_exchange(recorded, '"max_new_tokens": 12', '"max_new_tokens": 11')
    status, found = replayed(capsys, "-o", "again")
    assert status == 1 and "sampling_params was {'max_new_tokens': 11" in found["difference"]


def test_a_call_that_was_not_cancelled_does_not_hang_as_a_cancelled_one(
    recorded: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strands_env.recipe.recording.CANCEL_SECONDS", 0.1, raising=False)
    number = change_exchange(recorded, '"answer": [', '"cancelled": true, "was": [')
    status, found = replayed(capsys)
    assert status == 1
    assert found["difference"] == f"the request of line {number} was cancelled, and now it is not"


def test_every_part_of_an_answer_comes_back_as_it_was() -> None:
    scored = ScoredPrompt(ids=array("i", [1, 2]), logprobs=array("f", [math.nan, -1.5]))
    answer = GenerateAnswer(
        output_ids=array("i", [7, 8]),
        output_logprobs=array("f", [-0.25, -3.0]),
        finish=Finish(type=FinishType.LENGTH, limited_by=LengthLimit.CONTEXT),
        weight_spans=(WeightSpan(version="3", start=0, end=2),),
        scored_prompt=scored,
        prompt_ids=(1, 2),
        rid="r",
        payload={"text": "left out"},
    )
    again = from_json(json.loads(json.dumps(to_json(replace(answer, payload={})))))
    assert again.finish.type is FinishType.LENGTH and again.finish.limited_by is LengthLimit.CONTEXT
    assert (again.output_ids, again.output_logprobs) == (answer.output_ids, answer.output_logprobs)
    assert (again.weight_spans, again.prompt_ids, again.rid) == (answer.weight_spans, (1, 2), "r")
    assert str(again.scored_prompt) == str(scored) and again.payload == {}
    can = Capabilities(logprobs=LogprobKind.SAMPLED, constraints=frozenset({"regex"}), hints={"images": "a processor"})
    assert from_json(json.loads(json.dumps(to_json(can)))) == can


def test_a_call_that_a_deadline_cancelled_is_cancelled_again(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tasks.jsonl").write_text(json.dumps(TASKS[0]) + "\n")
    env = ["--env", "strands_env.core:Environment", "--env-config", '{"step_timeout": 0.001}', "--model-id", "tiny"]
    main(["eval", "--data", "tasks.jsonl", *env, "--max-attempts", "1", "-q", "-o", "run", "--record", "run.rec"])
    assert '"cancelled": ' in Path("run.rec").read_text()
    capsys.readouterr()
    status, found = replayed(capsys)
    assert (status, found["samples"], found["changed"], found["difference"]) == (0, 1, [], None)


def test_a_run_that_was_killed_can_still_be_read(recorded: Path) -> None:
    lines = recorded.read_text().splitlines()
    ends = ('{"sample"', '{"crc"')
    recorded.write_text("".join(line + "\n" for line in lines if not line.startswith(ends)))
    replay = Replay(recorded)
    assert [task.message for task in replay.tasks] == [task["question"] for task in TASKS]
    assert replay.digests == {}


def test_a_recording_holds_no_address_and_no_secret(tmp_path: Path) -> None:
    from strands_env.recipe.recording import Recorder

    class Tokenizer:
        def save_pretrained(self, folder: str) -> None:
            Path(folder, "tokenizer.json").write_text("{}")

    path = tmp_path / "r.rec"
    options = EvalOptions(base_url="http://user:hunter2@host", env_config={"api_key": "hunter2", "size": 3})
    recorder = Recorder(path, options)
    recorder.begin(Tokenizer(), {"model_id": "m"}, seeded=False)
    assert "hunter2" not in path.read_text()
    assert '"size": 3' in path.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--backend", "scripted"], "has no token data to record"),
        (["--resume"], "leave out --resume"),
        (["--executor", "processes"], "--executor inline"),
    ],
)
def test_runs_that_cannot_be_recorded_are_refused(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    Path("tasks.jsonl").write_text(json.dumps(TASKS[0]) + "\n")
    assert main(["eval", "--data", "tasks.jsonl", "--record", "r.rec", *options]) == 2
    assert message in capsys.readouterr().err
    assert not Path("r.rec").exists()


def test_a_file_that_shows_nothing_is_refused(recorded: Path, capsys: Any) -> None:
    lines = recorded.read_text().splitlines()
    left_out = ('{"task"', '{"sample"', '{"crc"')
    recorded.write_text("".join(line + "\n" for line in lines if not line.startswith(left_out)))
    assert main(["replay", "run.rec"]) == 1
    assert "has no sample to compare with" in capsys.readouterr().err
    recorded.write_text('{"a": 1}\n')
    assert main(["replay", "run.rec"]) == 2
    assert "is not a whole recording" in capsys.readouterr().err
