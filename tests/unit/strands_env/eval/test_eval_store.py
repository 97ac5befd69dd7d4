from __future__ import annotations

import enum
import json
import math
import os
import re
import threading
import uuid
from datetime import date
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from strands_env.core import End, Outcome, StepResult, TerminationReason, Trajectory
from strands_env.eval import StoreCorruptError, StoreError, StoreLockedError, read_results, verify_run
from strands_env.eval.errors import ConfigMismatchError
from strands_env.eval.store import (
    ResultLog,
    ResultReader,
    ResultWriter,
    RunConfig,
    StorePaths,
    config,
    load_run,
    results,
)
from strands_env.eval.store.line import read_sample, write_sample
from strands_sglang.lines import finish_line
from tests.unit.eval_support import sample, with_tokens


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    return StorePaths.of(tmp_path / "results.jsonl")


def with_token_data(index: int):
    made = sample(float(index), index)
    with_tokens(made.step_result)
    return made


def write(paths: StorePaths, *samples) -> None:
    log = ResultLog(paths)
    for item in samples:
        log.append([item])
    log.close()


def say(made, *content):
    made.step_result.observation.messages[1]["content"] = list(content)


@pytest.mark.parametrize(
    "change",
    [
        lambda made: None,
        lambda made: made.step_result.observation.metrics.update(ratio=math.inf),
        lambda made: say(made, {"image": {"format": "png", "source": {"bytes": b"\x89"}}}),
        lambda made: say(
            made, {"text": "lone \ud800"}, {"toolUse": {"input": {"__bytes_encoded__": True, "data": "QQ=="}}}
        ),
        lambda made: setattr(made.step_result, "termination_reason", TerminationReason.REWARD_ERROR),
    ],
    ids=["as it is", "infinity", "bytes", "marks", "failure"],
)
def test_samples_come_back_equal(change, paths):
    made = [with_token_data(0), sample(None, 1)]
    change(made[0])
    write(paths, *made)
    assert list(read_results(paths.results, with_tokens=True)) == made


def test_tokens_are_stored_once_and_read_where_they_are_asked_for(paths):
    made = with_token_data(0)
    made.step_result.observation.tools = '[{"type": "function"}]'
    (path,) = made.step_result.trajectories
    made.step_result.trajectories = [Trajectory(agent_name="a", tokens=path.tokens) for _ in range(3)]
    write(paths, made)
    seen = next(iter(read_results(paths.results))).step_result
    assert (seen.observation.tokens, seen.observation.tools, seen.trajectories) == (None, None, [])
    assert list(read_results(paths.results, with_tokens=True)) == [made]
    assert b"logprobs" not in paths.results.read_bytes()
    packed = json.loads(paths.results.read_bytes())["tokens"]
    assert (len(packed["sequences"]), [item["tokens"] for item in packed["trajectories"]]) == (1, [0, 0, 0])


def test_cut_at_every_byte_whole_lines_stay_and_the_rest_is_written_again(paths, tmp_path):
    made = [with_token_data(index) for index in range(2)]
    write(paths, *made)
    whole = paths.results.read_bytes()
    ends = [0]
    for line in whole.splitlines(keepends=True):
        ends.append(ends[-1] + len(line))
    for cut in range(len(whole) + 1):
        paths.results.write_bytes(whole[:cut])
        log = ResultLog(paths, fsync_interval=None)
        kept = sum(end <= cut for end in ends) - 1
        assert len(log) == kept
        log.append([item for item in made if log.find(item.id) is None])
        log.close()
        assert list(read_results(paths.results, with_tokens=True)) == made
        assert paths.results.read_bytes() == whole


@pytest.mark.parametrize(
    ("name", "results"),
    [("a", "a/results.jsonl"), ("a.jsonl", "a.jsonl"), ("a.run.json", "a.jsonl"), (".", "results.jsonl")],
)
def test_a_run_is_found_by_its_folder_and_by_each_of_its_files(name, results):
    assert StorePaths.of(name).results == Path(results)


@pytest.mark.parametrize("tail", [b"\n", b"\0" * 5000 + b"\n" + b"\0" * 9, b'{"id":"torn', b'{"i'])
def test_what_a_crash_left_behind_the_last_line_is_no_obstacle(tail, paths):
    write(paths, sample(1.0))
    with paths.results.open("ab") as file:
        file.write(tail)
    before = paths.results.read_bytes()
    ResultLog(paths).close()  # opening changes nothing
    assert paths.results.read_bytes() == before and len(list(read_results(paths.results))) == 1
    write(paths, sample(0.0, 1))
    assert [item.reward for item in read_results(paths.results)] == [1.0, 0.0]
    written = paths.results.read_bytes()
    assert written.count(b"\n") == 2 and written.endswith(b"}\n")


def test_lines_in_a_hole_that_a_power_cut_left_are_named_and_run_again(paths, caplog):
    write(paths, *(sample(1.0, index) for index in range(4)))
    data = bytearray(paths.results.read_bytes())
    end = len(data) // 2
    data[end - 150 : end - 50] = bytes(100)
    paths.results.write_bytes(data)
    assert [item.index for item in read_results(paths.results)] == [0, 2, 3]
    assert "lines=<2> | zeros in place of samples" in caplog.text
    found = verify_run(paths.results)
    assert found.torn_bytes == 0 and any("line 2" in damage for damage in found.damages)
    log = ResultLog(paths)
    assert [log.find(sample(1.0, index).id) is not None for index in range(4)] == [True, False, True, True]
    log.close()
    write(paths, sample(1.0, 1))  # run again
    about = {"tasks": 1, "options": {"n_samples_per_prompt": 4}}
    RunConfig(paths.run, {}, about).check(has_results=False)
    caplog.clear()
    assert len(list(read_results(paths.results))) == 4 and not caplog.records
    assert not verify_run(paths.results).damages


def test_an_empty_line_is_no_hole(paths, caplog):
    write(paths, sample(1.0, 0), sample(1.0, 1))
    paths.results.write_bytes(paths.results.read_bytes().replace(b"\n", b"\n\n \n", 1))
    assert [item.index for item in read_results(paths.results)] == [0, 1] and not caplog.records
    found = verify_run(paths.results)
    assert not found.torn_bytes and not [damage for damage in found.damages if "zeros" in damage]


def test_every_flipped_bit_is_noticed(paths):
    write(paths, with_token_data(0), sample(1.0, 1))
    whole = paths.results.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        paths.results.write_bytes(damaged)
        with pytest.raises(StoreCorruptError, match=r"line \d"):
            list(read_results(paths.results))
        with pytest.raises(StoreCorruptError, match=r"line \d"):
            ResultLog(paths)
        assert not verify_run(paths.results).is_intact
        assert paths.results.read_bytes() == damaged


def deep(levels: int):
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def cyclic():
    value: dict[str, object] = {}
    value["self"] = value
    return value


@pytest.mark.parametrize("value", [deep(220), deep(5000), cyclic(), object()], ids=["220", "5000", "cyclic", "object"])
def test_what_cannot_be_saved_takes_nothing_else_along(value, paths):
    odd = sample(0.5, 1)
    odd.step_result.reward.info["odd"] = value
    odd.step_result.observation.metrics["nan"] = math.nan
    odd.step_result.state = {"__bytes_encoded__": True, "data": "aGk=", "lone \ud800": 2**80}
    say(odd, {"text": "lone \ud800"}, {"toolUse": {"input": value}})
    log = ResultLog(paths)
    log.append([sample(1.0, 0), odd, sample(0.0, 2)])
    log.close()
    ResultLog(paths).close()
    first, read, last = read_results(paths.results)
    assert [item.reward for item in (first, read, last)] == [1.0, 0.5, 0.0]
    assert read.step_result.state == odd.step_result.state
    assert read.step_result.observation.messages[1]["content"][0] == {"text": "lone ?"}


@pytest.mark.parametrize(
    ("change", "reward"),
    [
        (lambda result: setattr(result.reward, "reward", math.nan), None),
        (lambda result: setattr(result.observation, "messages", "no messages"), 1.0),
        (lambda result: setattr(result, "tool_errors", "none"), 1.0),
        (lambda result: setattr(result, "state", object()), 1.0),
        (lambda result: setattr(result, "state", "x" * 1_000_001), 1.0),
    ],
)
def test_a_result_of_wrong_types_is_saved_as_one_that_can_be_read(change, reward, paths):
    odd = sample(1.0, 1)
    change(odd.step_result)
    write(paths, sample(1.0, 0), odd)
    assert [(item.index, item.reward) for item in read_results(paths.results)] == [(0, 1.0), (1, reward)]
    assert "the result cannot be saved: " in list(read_results(paths.results))[1].step_result.error.message


@pytest.mark.parametrize(
    ("reason", "aborted", "outcome"),
    [
        ("task_complete", False, Outcome.POLICY),
        ("task_complete", True, Outcome.INFRASTRUCTURE),  # refused by `validate_sample`
        ("content_filtered", True, Outcome.INFRASTRUCTURE),  # was infrastructure's once
        ("reward_error", False, Outcome.GRADER),
        ("model_error", True, Outcome.INFRASTRUCTURE),
    ],
)
def test_a_line_of_a_release_without_outcomes_is_read_and_run_again_as_before(reason, aborted, outcome, paths):
    write(paths, sample(None))
    record = json.loads(paths.results.read_bytes())
    assert record["step_result"].pop("outcome") == "policy"
    del record["crc"]
    record["aborted"], record["step_result"]["termination_reason"] = aborted, reason
    paths.results.write_bytes(finish_line(json.dumps(record, separators=(",", ":")).encode()[:-1]))
    (read,) = read_results(paths.results)
    assert read.step_result.end == End(TerminationReason(reason), outcome)
    assert (read.aborted, ResultLog(paths).find(read.id).aborted) == (aborted, aborted)


@pytest.mark.parametrize("replace", [False, True])
def test_a_file_that_is_taken_away_midway_is_noticed(replace, paths):
    log = ResultLog(paths)
    log.append([with_token_data(0)])
    paths.results.unlink()
    if replace:
        paths.results.touch()
    with pytest.raises(StoreError, match=r"results\.jsonl.* removed or replaced"):
        log.append([with_token_data(1)])
    log.close()


def test_a_run_is_verified_and_what_is_wrong_with_it_is_listed(paths):
    RunConfig(paths.run, {"model": "a"}).check(has_results=False)
    write(paths, with_token_data(0), sample(None, 1, aborted=True), sample(1.0, 1))
    found = verify_run(paths.results)
    assert found.is_intact
    assert (found.samples, found.superseded, found.with_tokens) == (2, 1, 1)
    reader = ResultReader(paths.results)
    (_, last) = reader.entries
    lines = paths.results.read_bytes().splitlines(keepends=True)
    paths.results.write_bytes(lines[0] + lines[1].replace(b"answer", b"ANSWER") + lines[2] + b'{"id":"torn')
    paths.run.write_bytes(paths.run.read_bytes().replace(b'"a"', b'"b"'))
    found = verify_run(paths.results)
    assert [re.search(r"^line 2 of .*jsonl|run\.json'", what) is not None for what in found.damages] == [True, True]
    assert (found.samples, found.superseded, found.torn_bytes) == (2, 0, 11)
    assert found.to_dict()["is_intact"] is False
    paths.results.write_bytes(b"".join(lines).replace(b"answer", b"ANSWER"))
    with pytest.raises(StoreCorruptError, match=r"sample p/1 of .*results\.jsonl.* was changed meanwhile"):
        reader.read(last)


OURS = "<a line of ours>"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"id": "q1", "problem": "a"}\n', 1),
        ('{"id":"q1","problem":"a"}', 1),
        ('{"id":"q1","problem":"a"}\n', 1),
        ('{"problem": "a"}', 1),
        ("problem,answer\na,1\n", 1),
        ("\n\nmy notes", 3),
        (f"{{{OURS}", 1),
        (f"{OURS}my notes\n", 2),
    ],
)
def test_a_file_of_something_else_is_named_and_neither_read_nor_continued_nor_changed(text, line, paths):
    write(paths, sample(1.0))
    text = text.replace(OURS, paths.results.read_text())
    paths.results.write_text(text)
    for open_it in (lambda: ResultLog(paths), lambda: list(read_results(paths.results))):
        with pytest.raises(StoreCorruptError, match=rf"line {line} of .* evaluated sample: remove that line"):
            open_it()
    assert paths.results.read_text() == text


def test_a_second_writer_is_refused(paths):
    log = ResultLog(paths)
    with pytest.raises(StoreLockedError, match="another run"):
        ResultLog(paths)
    log.close()
    ResultLog(paths).close()


def test_an_aborted_sample_is_replaced_by_its_second_run(paths):
    write(paths, sample(None, aborted=True), sample(0.5, 1))
    log = ResultLog(paths)
    assert [log.find(sample(None, i).id).aborted for i in (0, 1)] == [True, False]
    log.append([sample(1.0)])
    assert not log.find(sample(1.0).id).aborted
    assert [item.reward for item in read_results(paths.results)] == [0.5, 1.0]
    log.close()
    assert [item.reward for item in read_results(paths.results)] == [0.5, 1.0]


def test_a_device_that_refuses_is_named_and_leaves_no_half_line(paths, monkeypatch):
    def full(fd, data, offset):
        os.pwrite(fd, data[:10], offset)
        raise OSError(28, "No space left on device")

    def refuse(fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("strands_env.eval.store.config.write_at", full)
    with pytest.raises(StoreError, match=r"run.json.*No space left"):
        RunConfig(paths.run, {}).check(has_results=False)
    assert list(paths.run.parent.iterdir()) == []
    log = ResultLog(paths, fsync_interval=3600.0)
    log.append([sample(1.0)])
    size = paths.results.stat().st_size
    monkeypatch.setattr("strands_sglang.lines.write_at", full)
    with pytest.raises(StoreError, match="No space left"):
        log.append([sample(0.0, 1)])
    assert paths.results.stat().st_size == size
    monkeypatch.undo()
    log.append([sample(0.0, 1)])
    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(StoreError, match=r"results\.jsonl.*Input/output error"):
        log.close()
    monkeypatch.undo()
    assert len(list(read_results(paths.results))) == 2
    ResultLog(paths).close()  # the lock is free


@pytest.mark.parametrize("place", [0, 200, -20])
def test_a_line_that_is_another_in_the_file_than_was_written_is_noticed_and_none_of_its_batch_counts(
    place, paths, monkeypatch
):
    log, write = ResultLog(paths), os.pwrite
    log.append([with_token_data(0)])
    size = paths.results.stat().st_size

    def flip(fd, data, offset):
        changed = bytearray(data)
        changed[place] ^= 1
        return write(fd, changed, offset)

    monkeypatch.setattr("os.pwrite", flip)
    with pytest.raises(StoreError, match=r"results\.jsonl.*does not hold what was written to it"):
        log.append([sample(1.0, 1), sample(1.0, 2)])
    assert (len(log), paths.results.stat().st_size) == (1, size)
    monkeypatch.undo()
    log.append([sample(1.0, 1)])
    log.close()
    assert [item.index for item in read_results(paths.results)] == [0, 1]


NUMBERS = (1, 2**80, -1.5, math.nan, math.inf)
ODD = (*NUMBERS, "no", "", True, None, b"x", object(), [1], [{}], ["x"], {}, {1: 2}, {"a": math.nan})


def _fields(made):
    """All that an assignment can change of a sample: the object, and the name of its field."""
    result, action = made.step_result, made.action
    for owner in (made, result, result.observation, result.reward, action, action.task_context):
        yield from ((owner, name) for name in type(owner).model_fields)
    yield from ((action.task_context, name) for name in ("text", "difficulty", "rollout_seed"))


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_whatever_is_assigned_to_a_field_the_line_can_be_read_or_is_refused(value):
    read = 0
    for place in range(len(list(_fields(sample(1.0))))):
        made = sample(1.0)
        owner, name = list(_fields(made))[place]
        try:
            setattr(owner, name, value)
            text = write_sample(made).text
        except Exception:  # what a line without it could not say either, such as an index that is none
            continue
        assert read_sample(text).prompt_id == made.prompt_id, (type(owner).__name__, name)
        read += 1
    assert read > 10


@pytest.mark.parametrize("levels", range(180, 206))
def test_the_levels_of_a_line_are_those_that_a_reader_follows(levels):
    made = sample(1.0)
    made.step_result.observation.messages[1]["content"] += [{"text": "[" * 200}, {"toolUse": {"input": deep(levels)}}]
    assert read_sample(write_sample(made).text).reward == 1.0


def test_a_usual_sample_is_not_parsed_to_be_written(monkeypatch):
    parsed = []
    monkeypatch.setattr("strands_env.eval.store.line._parse", parsed.append)
    made = sample(1.0)
    made.step_result.observation.messages *= 100
    write_sample(made)
    assert not parsed
    made.step_result.observation.metrics = ["none"]
    write_sample(made)
    assert parsed


class Name(enum.StrEnum):
    A = "a"


WRITTEN = (
    *(*ODD, 2**63, -(2**63) - 1, 0.1, 1e16, 1e-7, 5e-324, -0.0, (1, 2), Name.A, uuid.UUID(int=5), Path("a")),
    *('"\\\x00\x1f\x7f\u2028\u00e9\U0001f600', "lone \ud800", "__bytes_encoded__", date(2026, 1, 1), np.float64(1.5)),
    *({"\ud800": 1}, {Name.A: 1}, {"!__utf-8__QQ==": "__utf-8__"}, deep(150), deep(189), deep(195), {"a": [None, {}]}),
)


@pytest.mark.parametrize("value", WRITTEN, ids=lambda value: type(value).__name__)
def test_the_fast_path_writes_the_bytes_of_the_plain_one(value, monkeypatch):
    def lines():
        for place in range(7):
            made = sample([1.0, None][place % 2])
            result, context = made.step_result, made.action.task_context
            match place:
                case 0:
                    say(made, {"text": "a"}, {"toolUse": {"input": {"value": value}}})
                case 1:
                    result.observation.metrics["value"] = value
                case 2:
                    result.reward.info["value"] = value
                case 3:
                    context.ground_truth = value
                case 4:
                    context.further = value
                case 5:
                    context.conversation_history = [{"role": "user", "content": value}]
                case 6 if isinstance(value, int | float):
                    result.reward.reward = float(value)
            yield re.sub(rb"0x[0-9a-f]+", b"", write_sample(made).text)[:-13]  # but for addresses, and the checksum

    fast = list(lines())
    monkeypatch.setattr("strands_env.eval.store.line.strict_json", lambda value: None)
    assert fast == list(lines())


def test_a_usual_sample_is_written_without_pydantic(monkeypatch):
    made = with_token_data(0)
    text = write_sample(made).text
    monkeypatch.setattr(StepResult, "__pydantic_serializer__", None)
    assert write_sample(made).text == text


def test_configuration_is_saved_and_compared_and_a_continued_run_keeps_the_start_and_earlier_versions(paths):
    config = {"model": {"temperature": 0.7}}
    RunConfig(paths.run, config, {"n": 1, "started": "then", "versions": {"python": "3.0"}}).check(has_results=False)
    for _ in range(2):
        RunConfig(paths.run, config, {"n": 4}).check(has_results=True)
    about = load_run(paths.run)["about"]
    assert (about["n"], about["started"], about["earlier_versions"]) == (4, "then", [{"python": "3.0"}])
    assert about["versions"]["python"] != "3.0" and "pydantic" in about["versions"]
    with pytest.raises(ConfigMismatchError) as caught:
        RunConfig(paths.run, {"model": {"temperature": 1.0}, "env": "x"}).check(has_results=True)
    assert caught.value.differences == (
        "env: absent in the file, now 'x'",
        "model.temperature: 0.7 in the file, now 1.0",
    )
    with pytest.raises(TypeError, match="config must be JSON values"):
        RunConfig(None, {"model": object()})


def test_a_place_that_cannot_be_read_or_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write to .*file/x/results.jsonl"):
        ResultLog(StorePaths.of(tmp_path / "file" / "x"))
    (tmp_path / "x.jsonl").mkdir()
    with pytest.raises(StoreError, match=r"cannot read .*x.jsonl"):
        list(read_results(tmp_path / "x.jsonl"))
    with pytest.raises(StoreError, match=r"cannot write to .*x.jsonl"):
        ResultLog(StorePaths.of(tmp_path / "x.jsonl"))


async def test_finished_samples_are_synced_while_the_event_loop_is_busy(paths, monkeypatch):
    synced, fsync = threading.Semaphore(0), os.fsync
    monkeypatch.setattr("os.fsync", lambda fd: (fsync(fd), synced.release()))
    writer = ResultWriter(ResultLog(paths))
    synced.acquire()  # of the folder
    for index in range(3):
        await writer.append(sample(1.0, index))
        assert synced.acquire(timeout=30)  # the event loop has no turn before this
        assert [item.index for item in read_results(paths.results)] == list(range(index + 1))
    await writer.close()


async def test_a_burst_is_saved_in_its_order_and_few_of_its_lines_are_left_to_the_thread(paths, monkeypatch):
    makers: list[str] = []
    monkeypatch.setattr(
        results, "write_sample", lambda item: makers.append(threading.current_thread().name) or write_sample(item)
    )
    log, go = ResultLog(paths), threading.Event()
    write = log.write
    monkeypatch.setattr(log, "write", lambda lines: (go.wait(30), write(lines)))
    writer, burst = ResultWriter(log), 4 * results.MADE_TOGETHER
    for index in range(burst):
        made = sample(1.0, index)
        if index == burst // 2:
            with_tokens(made.step_result)
        await writer.append(made)
    go.set()
    await writer.close()
    assert [item.index for item in read_results(paths.results)] == list(range(burst))
    assert 0 < sum(name != threading.main_thread().name for name in makers) <= 2 * results.MADE_TOGETHER


async def test_the_event_loop_makes_way_for_a_batch_that_takes_long_and_not_for_each_sample(paths, monkeypatch):
    log, begun, go = ResultLog(paths), threading.Event(), threading.Event()
    write = log.write
    monkeypatch.setattr(log, "write", lambda lines: (begun.set(), go.wait(30), write(lines)))
    now, slept = 100.0, []
    monkeypatch.setattr(results, "time", SimpleNamespace(monotonic=lambda: now, sleep=slept.append))
    writer = ResultWriter(log)
    await writer.append(sample(1.0, 0))
    assert begun.wait(30)
    early, late, period = 100 + results.LONG_BATCH / 2, 100 + results.LONG_BATCH, results.MAKES_WAY_EVERY
    for index, now in enumerate((early, late, late + period / 2, late + period), 1):  # noqa: B007 - the clock shows it
        await writer.append(sample(1.0, index))
    assert slept == [results.MAKES_WAY_SECONDS] * 2
    go.set()
    await writer.close()
    assert [item.index for item in read_results(paths.results)] == list(range(5))


@pytest.mark.parametrize("text", [None, '{"config": null}', '{"config": {}, "about": 3}', "[]", "no"])
def test_a_configuration_that_is_none_is_refused(text, paths):
    if text is not None:
        paths.run.write_text(text)
    with pytest.raises(StoreCorruptError, match=r"run.json"):
        RunConfig(paths.run, {}).check(has_results=True)


def test_versions_of_packages_are_looked_up_once_in_a_process(paths, monkeypatch):
    asked: list[str] = []
    look_up = metadata.distribution
    monkeypatch.setattr(config.metadata, "distribution", lambda name: asked.append(name) or look_up(name))
    config.versions.cache_clear()
    try:
        saved = RunConfig(paths.run, {})
        for seconds in (1.0, 2.0):
            saved.spend(seconds)
        assert len(asked) == len(set(asked)) > 0
        assert config.versions()["pydantic"] == metadata.version("pydantic")
    finally:
        config.versions.cache_clear()
