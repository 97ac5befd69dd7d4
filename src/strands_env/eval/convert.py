"""Converts a run of an earlier version, whose tokens lie in a side file, to one results file.

    python -m strands_env.eval.convert RUN NEW

A line of such a run points into `x.tokens` at frames: `STK1`, the payload's compressed length, its CRC-32, the payload.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from strands_env.core import StepResult
from strands_env.eval.errors import EvalError, StoreCorruptError, StoreError, naming_errors
from strands_env.eval.store import ResultLog, StorePaths
from strands_env.eval.store.line import is_whole, pack, read_sample, unpack_tokens

_FRAME = struct.Struct("<4sII")


def convert_run(source: str | Path, target: str | Path) -> int:
    """Write a run of an earlier version as a new one, and return its number of lines.

    Args:
        source: The `.jsonl` file or its folder.
        target: The new one, which must not exist.

    Raises:
        FileNotFoundError: There are no results.
        StoreError: They are damaged, or the target exists or cannot be written.
    """
    old, new = StorePaths.of(source), StorePaths.of(target)
    if new.results.exists():
        raise StoreError(f"{str(new.results)!r} exists: give another folder")
    side, count = old.results.with_suffix(".tokens"), 0
    with naming_errors("read", old.results):
        lines = old.results.open("rb")
    log = ResultLog(new)
    try:
        with lines, (side if side.exists() else old.results).open("rb") as frames:
            # Each sample is written as a new one, so that it is checked like any other.
            for number, line in enumerate(lines, 1):
                try:
                    if not is_whole(line):
                        continue
                    sample = read_sample(line)
                except StoreCorruptError as error:
                    raise StoreCorruptError(f"line {number} of {str(old.results)!r}: {error}") from error
                if (places := json.loads(line).get("tokens")) is not None:
                    _add_tokens(sample.step_result, places, frames)
                log.append([sample])
                count += 1
    finally:
        log.close()
    if old.run.exists():
        shutil.copyfile(old.run, new.run)
    return count


def _add_tokens(result: StepResult, places: dict[str, Any], frames: BinaryIO) -> None:
    sequences: dict[tuple[int, int], Any] = {}  # by place: an observed sequence is one of a trajectory, too

    def read(place: Any) -> str | None:
        if not place:
            return None
        offset, length = place
        frames.seek(offset)
        frame = frames.read(length)
        body = frame[_FRAME.size :]
        if frame[: _FRAME.size] != _FRAME.pack(b"STK1", len(body), zlib.crc32(body)):
            raise StoreCorruptError(f"bytes {offset} to {offset + length} of {frames.name!r} are damaged or missing")
        return pack(zlib.decompress(body))

    def number(place: Any) -> int:
        sequences.setdefault(tuple(place), read(place))
        return list(sequences).index(tuple(place))

    trajectories = [
        {**item, "tokens": number(item["tokens"]), "routed_experts": read(item["routed_experts"])}
        for item in places["trajectories"]
    ]
    observed = number(places["observation"]) if places["observation"] else None
    packed = {"observation": observed, "tools": read(places.get("tools")), "trajectories": trajectories}
    unpack_tokens(result, {**packed, "sequences": list(sequences.values())})


def main(argv: Sequence[str] | None = None) -> int:
    """Convert; an exit status."""
    parser = argparse.ArgumentParser(prog="python -m strands_env.eval.convert", description=__doc__.splitlines()[0])
    parser.add_argument("run", help="folder or .jsonl of the earlier version")
    parser.add_argument("new", help="folder or .jsonl to write")
    args = parser.parse_args(argv)
    try:
        count = convert_run(args.run, args.new)
    except (EvalError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{StorePaths.of(args.new).results}  {count} samples\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
