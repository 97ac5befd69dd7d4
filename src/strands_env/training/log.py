"""`training.jsonl`: a checked line for each finished step of a training, appended while it runs.

    {"step":1,"reward":0.31,"loss":0.02,...,"saved":true,"crc":"1a2b3c4d"}

A line with `saved` is written after the step's checkpoint is whole, and commits it: a kill at any moment leaves the
last committed checkpoint in place.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

import orjson

from strands_sglang.lines import DamagedLineError, append_lines, finish_line, is_whole, lock, read_lines

NAME = "training.jsonl"
"""Name of the file in a training's folder."""
_BEGINNING = b'{"step":'


class TrainingLogError(ValueError):
    """The log of a training is damaged, of another kind, or being written by another process."""


def read_training(folder: str | Path) -> list[dict[str, Any]]:
    """The finished steps of a training by its folder, in order; the line under way is left out.

    Raises:
        FileNotFoundError: There is no training in the folder.
        TrainingLogError: A line is damaged, or the file is of another kind.
    """
    path = Path(folder) / NAME
    fd = os.open(path, os.O_RDONLY)
    try:
        return [record for record, _ in _scan(fd, path)]
    finally:
        os.close(fd)


def _scan(fd: int, path: Path) -> list[tuple[dict[str, Any], int]]:
    """The whole lines of a log, each with the offset of its end."""
    found = []
    for number, (offset, line) in enumerate(read_lines(fd), 1):
        try:
            if is_whole(line, _BEGINNING):
                found.append((orjson.loads(line), offset + len(line)))
        except DamagedLineError as error:
            raise TrainingLogError(f"line {number} of {str(path)!r} is damaged, or no step of a training") from error
    return found


class TrainingLog:
    """The log of a training under way: one process writes it. Opening changes nothing but making the file.

    Attributes:
        steps: The finished steps.

    Raises:
        TrainingLogError: Another process writes it, or it cannot be read.
        OSError: It cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        folder.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            lock(self._fd)
            scanned = _scan(self._fd, self.path)
        except BaseException as error:
            os.close(self._fd)
            if isinstance(error, BlockingIOError):
                raise TrainingLogError(
                    f"another training is writing {str(self.path)!r}: wait, or give another output path"
                ) from None
            raise
        self.steps = [record for record, _ in scanned]
        self._ends = [end for _, end in scanned]

    def append(self, record: dict[str, Any]) -> None:
        """Append a finished step; when it returns the line is on the device.

        Raises:
            OSError: The device refused, and nothing of the line is in the file.
        """
        body = orjson.dumps(record, option=orjson.OPT_SERIALIZE_NUMPY)[:-1]
        line, start = finish_line(body), self._ends[-1] if self._ends else 0
        append_lines(self._fd, line, start)
        os.fsync(self._fd)
        self.steps.append(record)
        self._ends.append(start + len(line))

    def cut(self, count: int) -> None:
        """Forget all but the first `count` steps: those after the checkpoint that a training continues from."""
        os.ftruncate(self._fd, self._ends[count - 1] if count else 0)
        del self.steps[count:], self._ends[count:]

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
