"""Reading results, of a finished or of a running run, without locking or changing its files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from strands_env.eval.errors import StoreCorruptError
from strands_env.eval.sample import EvalSample
from strands_env.eval.store.files import told
from strands_env.eval.store.log import StorePaths
from strands_env.eval.store.records import decode, head_of, to_sample
from strands_env.eval.store.tokens import FrameReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where a sample is: the prompt's id, its index, and the offset of its line."""

    prompt_id: str
    index: int
    offset: int


class ResultReader:
    """Finds every sample of a results file; of one that was tried again the last. A torn last line is left out.

    Args:
        output_path: The `.jsonl` file or its folder.

    Attributes:
        paths: The files.
        entries: One for each sample, in the order they were finished.

    Raises:
        FileNotFoundError: There are no results.
        StoreCorruptError: The file holds something else.
        StoreError: It cannot be read.
    """

    def __init__(self, output_path: str | Path) -> None:
        self.paths = StorePaths.of(output_path)
        with told("read", self.paths.results):
            self._file = self.paths.results.open("rb")
        self._frames = FrameReader(self.paths.tokens)
        try:
            self.entries = self._entries()
        except BaseException:
            self.close()
            raise

    def _entries(self) -> list[Entry]:
        found: dict[bytes, Entry] = {}
        offset, others = 0, 0
        with told("read", self.paths.results):
            for number, line in enumerate(self._file, 1):
                record = decode(line) if line.endswith(b"\n") else None
                if record is not None:
                    head = head_of(record, f"line {number} of {str(self.paths.results)!r}")
                    key = bytes.fromhex(head.id)
                    found.pop(key, None)
                    found[key] = Entry(prompt_id=head.prompt_id, index=head.index, offset=offset)
                elif line.endswith(b"\n"):
                    others += 1
                offset += len(line)
        if others and not found:
            raise StoreCorruptError(
                f"{str(self.paths.results)!r} holds no evaluated sample: give a file that an evaluation wrote"
            )
        return list(found.values())

    def read(self, entry: Entry, *, with_tokens: bool = False) -> EvalSample:
        """The sample of an entry.

        Args:
            entry: One of `entries`.
            with_tokens: Read its tokens too.

        Raises:
            StoreCorruptError: The file was changed meanwhile, or its tokens are damaged.
        """
        self._file.seek(entry.offset)
        record: dict[str, Any] | None = decode(self._file.readline())
        if record is None:
            raise StoreCorruptError(f"{str(self.paths.results)!r} was changed while it was read")
        sample = to_sample(record)
        if with_tokens and record.get("tokens"):
            self._frames.fill(sample.step_result, record["tokens"])
        return sample

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        self._frames.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_results(output_path: str | Path, *, with_tokens: bool = False) -> Iterator[EvalSample]:
    """All samples of a run, in the order they were finished.

    Args:
        output_path: The `.jsonl` file or its folder.
        with_tokens: Read the tokens too.

    Raises:
        FileNotFoundError: There are no results.
        StoreError: They cannot be read, or are damaged.
    """
    with ResultReader(output_path) as reader:
        for entry in reader.entries:
            yield reader.read(entry, with_tokens=with_tokens)
