"""Reading and verifying a run, finished or not, without locking or changing its files."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self, overload

import orjson

from strands_env.core import StepResult, TokenObservation, Trajectory
from strands_env.core.jsonable import canonical
from strands_env.core.types import shared_text
from strands_env.eval.errors import StoreCorruptError, StoreError
from strands_env.eval.sample import EvalSample, Score
from strands_env.eval.store.record import (
    Line,
    LineError,
    StorePaths,
    decode,
    lines_of,
    naming_errors,
    payload_of,
    place_of_tools,
    places_of,
    read_at,
    read_line,
    score_of,
    to_sample,
)


class Entry(NamedTuple):
    """The place of a sample: the prompt's id, its index, and the offset of its line."""

    prompt_id: str
    index: int  # type: ignore[assignment]  # the field, not the method of tuples
    offset: int


class FrameReader:
    """Reads frames from the side file, opened at the first one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def read(self, place: Sequence[int]) -> bytes:
        """The payload of the frame at `[offset, length]`; `StoreCorruptError` where there is none, or it is damaged."""
        if self._fd is None:
            try:
                self._fd = os.open(self._path, os.O_RDONLY)
            except FileNotFoundError:
                raise StoreCorruptError(f"records point at tokens in {str(self._path)!r}, which is missing") from None
        offset, length = place
        frame = read_at(self._fd, offset, length)
        where = f"bytes {offset} to {offset + length} of {str(self._path)!r}"
        if len(frame) != length:
            raise StoreCorruptError(f"{where} are missing: the file is shorter than its records say")
        payload = payload_of(frame)
        if payload is None:
            raise StoreCorruptError(f"{where} are damaged: the checksum does not match")
        return payload

    def fill(self, result: StepResult, tokens: dict[str, Any]) -> None:
        """Put the token data back into a result; `StoreCorruptError` where it is missing, or damaged."""
        try:
            self._fill(result, tokens)
        except (LookupError, ValueError, TypeError, OverflowError, OSError) as error:
            raise StoreCorruptError(f"the tokens of a record cannot be read: {error!r}") from error

    def _fill(self, result: StepResult, tokens: dict[str, Any]) -> None:
        places: dict[tuple[int, int], TokenObservation] = {}

        def observation(place: Sequence[int]) -> TokenObservation:
            key = (place[0], place[1])
            if key not in places:
                places[key] = TokenObservation.from_bytes(self.read(place))
            return places[key]

        if tokens["observation"]:
            result.observation.tokens = observation(tokens["observation"])
        if tokens.get("tools"):
            result.observation.tools = shared_text(self.read(tokens["tools"]).decode())
        result.trajectories = [
            Trajectory.from_dict(
                {
                    **item,
                    "tokens": observation(item["tokens"]),
                    "routed_experts": None if item["routed_experts"] is None else self.read(item["routed_experts"]),
                }
            )
            for item in tokens["trajectories"]
        ]

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class RecordFile:
    """Samples of a results file by their offsets. The files are opened when the first one is read."""

    def __init__(self, paths: StorePaths) -> None:
        self.paths = paths
        self._fd: int | None = None
        self._frames = FrameReader(paths.tokens)

    @property
    def fd(self) -> int:
        """The open results file."""
        if self._fd is None:
            with naming_errors("read", self.paths.results):
                self._fd = os.open(self.paths.results, os.O_RDONLY)
        return self._fd

    def read(self, offset: int, *, with_tokens: bool = False) -> EvalSample:
        """The sample whose line begins at an offset.

        Raises:
            StoreCorruptError: The file was changed meanwhile, or its tokens are damaged.
        """
        record = self._record(offset)
        sample = to_sample(record)
        if with_tokens and record.get("tokens"):
            self._frames.fill(sample.step_result, record["tokens"])
        return sample

    def score(self, offset: int) -> Score:
        """The score of the sample whose line begins at an offset."""
        return score_of(self._record(offset))

    def close(self) -> None:
        """Close the files; they are opened again when they are needed."""
        self._frames.close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        self.close()

    def _record(self, offset: int) -> dict[str, Any]:
        with naming_errors("read", self.paths.results):
            line = read_line(self.fd, offset)
        try:
            return decode(line)
        except LineError as error:
            raise StoreCorruptError(f"{str(self.paths.results)!r} was changed while it was read: {error}") from error


class ResultReader:
    """Finds every sample of a results file; of one that was tried again the last. A torn last line is left out.

    `entries` are in the order in which samples were finished.

    Args:
        output_path: The `.jsonl` file or its folder.

    Raises:
        FileNotFoundError: There are no results.
        StoreCorruptError: A line is damaged, or the file holds something else.
        StoreError: It cannot be read.
    """

    def __init__(self, output_path: str | Path) -> None:
        self.paths = StorePaths.of(output_path)
        self._records = RecordFile(self.paths)
        try:
            with naming_errors("read", self.paths.results):
                self.entries = self._entries()
        except BaseException:
            self.close()
            raise

    def _entries(self) -> list[Entry]:
        found: dict[bytes, Entry] = {}
        for line in lines_of(self._records.fd):
            try:
                head = line.head()
            except LineError as error:
                if error.is_residue:
                    continue
                raise line.damaged(self.paths.results, error) from error
            found[bytes.fromhex(head.id)] = Entry(sys.intern(head.prompt_id), head.index, line.offset)
        return sorted(found.values(), key=lambda entry: entry.offset)

    def read(self, entry: Entry, *, with_tokens: bool = False) -> EvalSample:
        """The sample of an entry; raises as `RecordFile.read` does."""
        return self._records.read(entry.offset, with_tokens=with_tokens)

    def scores(self) -> Iterator[Score]:
        """The score of every sample, several times faster than reading the samples."""
        for entry in self.entries:
            yield self._records.score(entry.offset)

    def close(self) -> None:
        """Close the files."""
        self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_results(output_path: str | Path, *, with_tokens: bool = False) -> Iterator[EvalSample]:
    """All samples of a run, in the order they were finished.

    Args:
        output_path: The `.jsonl` file or its folder.

    Raises:
        FileNotFoundError: There are no results.
        StoreError: They cannot be read, or are damaged.
    """
    with ResultReader(output_path) as reader:
        for entry in reader.entries:
            yield reader.read(entry, with_tokens=with_tokens)


class StoredSamples(MutableSequence[EvalSample]):
    """Samples of a prompt, those of an earlier run read from the results file each time they are asked for.

    So a run of any size can be continued. It behaves like a list; a change to a sample that is read so is not kept,
    unless the sample is put back (`samples[i] = sample`).

    Args:
        records: The file; None where all are samples.
    """

    __slots__ = ("_items", "_records", "_with_tokens")

    def __init__(
        self, items: Iterable[EvalSample | int] = (), records: RecordFile | None = None, *, with_tokens: bool = False
    ) -> None:
        self._items = list(items)
        self._records = records
        self._with_tokens = with_tokens

    def scores(self) -> Iterator[Score]:
        """The score of every sample, several times faster than reading the samples."""
        for item in self._items:
            if isinstance(item, int):
                assert self._records is not None
                yield self._records.score(item)
            else:
                yield item.score()

    def _sample(self, item: EvalSample | int) -> EvalSample:
        if isinstance(item, int):
            assert self._records is not None
            return self._records.read(item, with_tokens=self._with_tokens)
        return item

    @overload
    def __getitem__(self, place: int) -> EvalSample: ...
    @overload
    def __getitem__(self, place: slice) -> StoredSamples: ...
    def __getitem__(self, place: int | slice) -> EvalSample | StoredSamples:
        if isinstance(place, slice):
            return StoredSamples(self._items[place], self._records, with_tokens=self._with_tokens)
        return self._sample(self._items[place])

    def __setitem__(self, place: Any, value: Any) -> None:
        self._items[place] = value

    def __delitem__(self, place: int | slice) -> None:
        del self._items[place]

    def __len__(self) -> int:
        return len(self._items)

    def insert(self, index: int, value: EvalSample) -> None:
        """Insert a sample."""
        self._items.insert(index, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | StoredSamples):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Sequence[EvalSample]) -> list[EvalSample]:
        return [*self, *other]

    def __radd__(self, other: Sequence[EvalSample]) -> list[EvalSample]:
        return [*other, *self]

    def __repr__(self) -> str:
        return f"<{len(self)} samples>"


def load_run(path: Path) -> dict[str, Any] | None:
    """The saved document of a run, None where there is none. `config` and `about` are objects."""
    try:
        with naming_errors("read", path):
            fd = os.open(path, os.O_RDONLY)
            try:
                document = orjson.loads(read_at(fd, 0, os.fstat(fd).st_size))
            finally:
                os.close(fd)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StoreCorruptError(f"{str(path)!r} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise StoreCorruptError(f"{str(path)!r} must hold a JSON object, got {type(document).__name__}")
    for name, needed in (("config", True), ("about", False), ("environment", False)):
        value = document.setdefault(name, None)
        if not (isinstance(value, dict) or (value is None and not needed)):
            raise StoreCorruptError(
                f"{str(path)!r} is not the configuration of a run: {name!r} must be a JSON object, got {value!r}"
            )
    document["about"] = document["about"] or {}
    return document


def checksum_of(document: Mapping[str, Any]) -> str:
    """CRC-32 of a saved document's content, its own field `crc` left out; `verify_run` compares it."""
    content = canonical({name: value for name, value in document.items() if name != "crc"})
    return f"{zlib.crc32(content):08x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A place that differs from what was written.

    Attributes:
        line: Its line, from 1; None for a file as a whole.
        offset: Where the line begins, in bytes.
        what: The damage, and how to repair it.
    """

    path: str
    line: int | None
    offset: int | None
    what: str


@dataclass(slots=True, kw_only=True)
class Verification:
    """The findings of `verify_run`.

    Attributes:
        samples: Samples that can be read, each once.
        superseded: Lines of samples that were tried again since.
        torn_bytes: Bytes behind the last whole line, and lines a power cut left: the next resume takes care of both.
    """

    path: str
    samples: int = 0
    superseded: int = 0
    frames: int = 0
    torn_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)

    @property
    def is_intact(self) -> bool:
        """True without damages."""
        return not self.damages

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "is_intact": self.is_intact}


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
    with naming_errors("read", paths.results):
        fd = os.open(paths.results, os.O_RDONLY)
        try:
            for line in lines_of(fd):
                _verify_line(line, paths, frames, seen, tools, found)
        finally:
            os.close(fd)
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
    try:
        head, record = line.head(), decode(line.data)
    except LineError as error:
        if error.is_residue:
            found.torn_bytes += len(line.data)
        else:
            found.damages.append(_damage(paths.results, line, line.damaged(paths.results, error)))
        return
    key = bytes.fromhex(head.id)
    found.superseded += key in seen
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
    except StoreError as error:
        what = str(error)
    else:
        if document is not None and document.get("crc") in (None, checksum_of(document)):
            return
        what = "it was changed after it was written: its checksum does not fit"
        if document is None:
            what = "it is missing, so the run cannot be continued"
    found.damages.append(Damage(path=str(paths.run), line=None, offset=None, what=what))
