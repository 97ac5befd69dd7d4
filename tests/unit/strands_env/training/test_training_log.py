from __future__ import annotations

import pytest

from strands_env.training.log import TrainingLog, TrainingLogError, read_training


def make_log(folder):
    with TrainingLog(folder) as log:
        for step in (1, 2, 3):
            log.append({"step": step, "reward": None if step == 2 else step / 4, "saved": step != 2})
    return (folder / "training.jsonl").read_bytes()


def test_a_log_that_is_cut_anywhere_keeps_its_whole_steps_and_goes_on(tmp_path):
    whole = make_log(tmp_path / "whole")
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    folder = tmp_path / "cut"
    folder.mkdir()
    for cut in range(len(whole) + 1):
        (folder / "training.jsonl").write_bytes(whole[:cut])
        steps = sum(end <= cut for end in ends)
        assert [step["step"] for step in read_training(folder)] == [1, 2, 3][:steps]
        with TrainingLog(folder) as log:
            assert len(log.steps) == steps
            log.append({"step": steps + 1, "saved": True})
        assert [step["step"] for step in read_training(folder)] == [1, 2, 3, 4][: steps + 1]


def test_steps_after_a_checkpoint_are_forgotten_and_written_again(tmp_path):
    make_log(tmp_path)
    with TrainingLog(tmp_path) as log:
        log.cut(1)
        log.append({"step": 2, "reward": 1.0, "saved": True})
    assert [(step["step"], step["reward"]) for step in read_training(tmp_path)] == [(1, 0.25), (2, 1.0)]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.replace(b"0.25", b"0.26"),
        lambda data: data.replace(b'"crc":"', b'"crc":"f', 1),
        lambda data: b'{"id":"of an evaluation"}\n' + data,
        lambda data: b"notes of mine\n",
    ],
)
def test_a_damaged_log_and_another_file_are_refused_and_stay_as_they_are(spoil, tmp_path):
    data = spoil(make_log(tmp_path))
    path = tmp_path / "training.jsonl"
    path.write_bytes(data)
    for read in read_training, TrainingLog:
        with pytest.raises(TrainingLogError, match=r"line 1 of .* is damaged, or no step of a training"):
            read(tmp_path)
    assert path.read_bytes() == data


def test_one_process_writes_a_log_and_others_read_it(tmp_path):
    with TrainingLog(tmp_path) as log:
        with pytest.raises(TrainingLogError, match="another training is writing"):
            TrainingLog(tmp_path)
        log.append({"step": 1, "saved": True})
        assert len(read_training(tmp_path)) == 1
    TrainingLog(tmp_path).close()
