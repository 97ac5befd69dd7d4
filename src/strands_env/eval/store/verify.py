"""`verify_run`: whether everything of a saved run can be read, and is what was written."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strands_env.eval.errors import StoreCorruptError, StoreError
from strands_env.eval.store import files
from strands_env.eval.store.config import checksum_of, load_run
from strands_env.eval.store.lines import Line, StorePaths, lines_of
from strands_env.eval.store.records import LineError, decode, head_of, is_torn, to_sample
from strands_env.eval.store.tokens import FrameReader, place_of_tools, places_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Something that is not as it was written.

    Attributes:
        path: The file.
        line: Its line, from 1; None for a file as a whole.
        offset: Where the line begins, in bytes.
        what: What is wrong, and what to do.
    """

    path: str
    line: int | None
    offset: int | None
    what: str


@dataclass(slots=True, kw_only=True)
class Verification:
    """What `verify_run` found.

    Attributes:
        path: The results file.
        samples: Samples that can be read, each once.
        superseded: Lines of samples that were tried again since.
        without_checksum: Lines of an earlier version, in which damage within a text cannot be seen.
        frames: Frames of the side file that were read.
        torn_bytes: Bytes behind the last whole line, and lines a power cut left: the next resume takes care of both.
        damages: What is wrong.
    """

    path: str
    samples: int = 0
    superseded: int = 0
    without_checksum: int = 0
    frames: int = 0
    torn_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)

    @property
    def is_intact(self) -> bool:
        """Nothing is wrong."""
        return not self.damages

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "path": self.path,
            "is_intact": self.is_intact,
            "samples": self.samples,
            "superseded": self.superseded,
            "without_checksum": self.without_checksum,
            "frames": self.frames,
            "torn_bytes": self.torn_bytes,
            "damages": [
                {"path": item.path, "line": item.line, "offset": item.offset, "what": item.what}
                for item in self.damages
            ],
        }


def verify_run(output_path: str | Path) -> Verification:
    """Read every line, every frame of tokens and the configuration of a run, and compare the checksums.

    Changes nothing, and may be used while the run goes on.

    Args:
        output_path: The `.jsonl` file or its folder.

    Raises:
        FileNotFoundError: There are no results.
        StoreError: They cannot be read at all.
    """
    paths = StorePaths.of(output_path)
    found = Verification(path=str(paths.results))
    frames = FrameReader(paths.tokens)
    seen: set[bytes] = set()
    tools: set[tuple[int, int]] = set()
    with files.told("read", paths.results):
        fd = files.open_to_read(paths.results)
        try:
            for line in lines_of(fd):
                _verify_line(line, paths, frames, seen, tools, found)
        finally:
            files.close(fd)
            frames.close()
    found.samples = len(seen)
    _verify_config(paths, found)
    return found


def _verify_line(
    line: Line,
    paths: StorePaths,
    frames: FrameReader,
    seen: set[bytes],
    tools: set[tuple[int, int]],
    found: Verification,
) -> None:
    if not line.is_whole:
        if is_torn(line.data):
            found.torn_bytes += len(line.data)
            return
        error = line.damaged(paths.results, LineError("it has no end", is_foreign=True))
        found.damages.append(_damage(paths.results, line, error))
        return
    try:
        head = head_of(line.data)
        record = decode(line.data)
    except LineError as error:
        if error.is_residue or not line.data.strip():
            found.torn_bytes += len(line.data)
        else:
            found.damages.append(_damage(paths.results, line, line.damaged(paths.results, error)))
        return
    key = bytes.fromhex(head.id)
    found.superseded += key in seen
    found.without_checksum += not head.has_checksum
    seen.add(key)
    try:
        to_sample(record)
    except StoreCorruptError as error:
        found.damages.append(_damage(paths.results, line, error))
    shared = place_of_tools(record.get("tokens"))  # by many samples: read once
    for place in places_of(record.get("tokens")):
        if place == shared and place in tools:
            continue
        if place == shared:
            tools.add(place)
        try:
            frames.read(place)
            found.frames += 1
        except (StoreCorruptError, OSError, zlib.error) as error:
            found.damages.append(_damage(paths.tokens, line, error))


def _damage(path: Path, line: Line, error: Exception) -> Damage:
    return Damage(path=str(path), line=line.number, offset=line.offset, what=str(error))


def _verify_config(paths: StorePaths, found: Verification) -> None:
    try:
        document = load_run(paths.run)
        what = _config_damage(document)
    except StoreError as error:
        what = str(error)
    if what is not None:
        found.damages.append(Damage(path=str(paths.run), line=None, offset=None, what=what))


def _config_damage(document: dict[str, Any] | None) -> str | None:
    if document is None:
        return "it is missing, so the run cannot be continued"
    if "crc" in document and document["crc"] != checksum_of(document):
        return "it was changed after it was written: its checksum does not fit"
    return None
