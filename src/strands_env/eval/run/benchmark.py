"""`Benchmark`: an evaluator whose tasks are rows of a data set, from the hub or from a local file."""

from __future__ import annotations

import json
import logging
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, cast

from pydantic import ValidationError

from strands_env.core import Action, Environment, ModelFactory, RewardFunction, TaskContext
from strands_env.core.files import arrow
from strands_env.core.termination import message_of
from strands_env.eval.errors import DatasetError, EvalError
from strands_env.eval.registry import check_data
from strands_env.eval.run.evaluator import Evaluator
from strands_env.eval.run.tasks import Tasks, catch_exits
from strands_sglang.backends.engine.own_models import is_offline_mode, why_no_hub
from strands_sglang.exceptions import install_command

logger = logging.getLogger(__name__)

Row = Mapping[str, Any]

KNOWN_ROWS = 10_000
"""Tasks of a local file that are tried before a run, and of which the proof of the reward takes its sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubDataset:
    """A data set of the Hugging Face hub, read with `datasets` (extra `eval`).

    Attributes:
        path: Its name on the hub.
        name: The configuration, where it has several.
        size: Number of rows, for a display to tell how long a run takes; None where it is not known.
    """

    path: str
    split: str
    name: str | None = None
    size: int | None = None

    def check(self) -> None:
        """Check that the hub can be read from here, without asking it for anything.

        Raises:
            DatasetError: `datasets` is missing, or the hub cannot be reached.
        """
        if find_spec("datasets") is None:
            raise DatasetError(
                f"data sets of the hub need the package 'datasets': {install_command('eval')}, "
                "or give a local file as data_path (--data)"
            )
        if (reason := why_no_hub()) is not None and not is_offline_mode():
            raise DatasetError(
                f"the data set {self.path!r} is on the hub, but {reason}: give a local file as data_path (--data), or "
                "set HF_HUB_OFFLINE=1 where it is in the local cache"
            )

    def rows(self) -> Iterator[Row]:
        """Its rows, streamed.

        Raises:
            DatasetError: `datasets` is missing, or the hub does not give it.
        """
        self.check()
        from datasets import load_dataset

        try:
            # Streamed: a few rows must not cost the download of all.
            yield from load_dataset(self.path, self.name, split=self.split, streaming=True)
        except Exception as error:
            raise DatasetError(
                f"cannot read {self.path!r} (split {self.split!r}) from the hub: {type(error).__name__}: {error}; "
                "where it asks for a licence, accept it there and run 'hf auth login', or give a local file as "
                "data_path (--data)"
            ) from error


def read_rows(path: str | Path) -> Iterator[Row]:
    """Rows of a local `.jsonl`, `.json` (a list) or `.parquet` file; Parquet needs `pyarrow` (extra `eval`).

    Raises:
        DatasetError: The file is missing, of another kind, or damaged.
    """
    file, name = Path(path), str(path)
    if file.is_dir():
        raise DatasetError(f"{name!r} is a folder: give a file that ends in .jsonl, .json or .parquet")
    if not file.is_file():
        raise DatasetError(f"found no data file at {name!r}")
    readers = {".jsonl": read_lines, ".json": _json_list, ".parquet": _parquet}
    if file.suffix not in readers:
        raise DatasetError(f"a data file ends in .jsonl, .json or .parquet, got {file.suffix!r} in {name!r}")
    try:
        yield from readers[file.suffix](file)
    except DatasetError:
        raise
    except Exception as error:
        raise DatasetError(f"{name!r} cannot be read as {file.suffix}: {type(error).__name__}: {error}") from error


def read_lines(file: Path) -> Iterator[Row]:
    """Rows of a file of JSON objects, one a line, whatever its name ends in.

    Raises:
        DatasetError: A line is not a JSON object.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            line = line.removeprefix(BOM_UTF8) if number == 1 else line  # Windows editors write it
            if line.strip():
                where = f"line {number} of {str(file)!r}"
                try:
                    row = json.loads(line.decode("utf-8"))  # of bytes it would guess at UTF-16 and UTF-32
                except ValueError as error:
                    raise DatasetError(f"{where} is not JSON: {error}") from error
                yield _check_object(row, where)


def _json_list(file: Path) -> Iterator[Row]:
    rows = json.loads(file.read_text(encoding="utf-8-sig"))
    if not isinstance(rows, list):
        raise DatasetError(f"{str(file)!r} must hold a JSON list of objects, got {type(rows).__name__}")
    for number, row in enumerate(rows, 1):
        yield _check_object(row, f"row {number} of {str(file)!r}")


def _check_object(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise DatasetError(f"{where} must be a JSON object, got {type(row).__name__}")
    return row


def _parquet(file: Path) -> Iterator[Row]:
    _, parquet = arrow("eval")
    with parquet.ParquetFile(file) as table:
        for batch in table.iter_batches(batch_size=256):  # a whole table may not fit in memory
            yield from batch.to_pylist()


class Benchmark(Evaluator):
    """A benchmark is `dataset`, `action` and `environment`; see `strands_env.eval.benchmarks` for examples.

    Arguments are those of `Evaluator` and options of the group `data`: `data_path`, a local `.jsonl`, `.json` or
    `.parquet` file with rows like those of the hub, `limit` and `seed`. `rows_left_out` counts rows of the last run
    without a task.
    """

    _groups: ClassVar[tuple[str, ...]] = ("run", "data")

    _overrides: ClassVar[tuple[str, ...]] = (*Evaluator._overrides, "action", "rows", "environment")
    dataset: ClassVar[HubDataset | None] = None
    has_local_rows: ClassVar[bool] = False
    """`rows` works without `data_path` and without the network: its first row is tried before the run."""
    env_class: ClassVar[Callable[..., Environment]] = Environment
    env_options: ClassVar[Mapping[str, Any]] = {}
    system_prompt: ClassVar[str | None] = None
    reward_class: ClassVar[Callable[..., RewardFunction] | None] = None
    """Parts of `environment`; the prompt is that of the class if None."""
    default_sampling: ClassVar[Mapping[str, Any]] = {}
    """Sampling parameters of the command line where the user gives none; a temperature only for single samples."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.data_path, self.limit, self.seed = self.options.data_path, self.options.limit, self.options.seed
        check_data(self.benchmark_name, self.data_path)
        self.rows_read = self.rows_left_out = 0
        self._is_preview = False

    @classmethod
    def environment(cls, model_factory: ModelFactory, **options: Any) -> Callable[[], Environment]:
        """The environment to evaluate a bare model with, when the user names none."""
        if cls.reward_class is None:
            return super().environment(model_factory)
        prompt = {} if cls.system_prompt is None else {"system_prompt": cls.system_prompt}
        options = {"reward_fn": cls.reward_class(), **prompt, **cls.env_options, **options}
        make = cls.env_class
        return lambda: make(model_factory=model_factory, **options)

    def action(self, row: Row, index: int) -> Action | None:
        """The task of a row, None to leave the row out."""
        raise NotImplementedError

    def task(self, name: str, message: Any, ground_truth: Any = None, **context: Any) -> Action:
        """A task of this benchmark: its name among the others, and what its context holds."""
        context = {"id": f"{self.benchmark_name}_{name}", "ground_truth": ground_truth, **context}
        return Action(message=message, task_context=TaskContext(**context))

    def rows(self) -> Iterable[Row]:
        """All rows, from `data_path` or from `dataset`."""
        if self.data_path is not None:
            return read_rows(self.data_path)
        if self.dataset is None:
            raise DatasetError(f"{self._name} needs a local file: give data_path (--data)")
        return self.dataset.rows()

    def known_tasks(self) -> Sequence[Action]:
        """Tasks that can be read before a run: of a local file up to `KNOWN_ROWS`, of other local data the first.

        The hub is asked for nothing.

        Raises:
            DatasetError: The data cannot be read, a row is not a task, or a package is missing.
        """
        if self.dataset is not None and self.data_path is None:
            self.dataset.check()
            return ()
        if self.data_path is None and not self.has_local_rows and type(self).rows is not Benchmark.rows:
            return ()
        is_file = self.data_path is not None and Path(self.data_path).is_file()
        self._is_preview = True
        try:
            with catch_exits():
                tasks = self.load_dataset()
                return list(islice(tasks if isinstance(tasks, Iterable) else (), KNOWN_ROWS if is_file else 1))
        finally:
            self._is_preview = False

    def count(self) -> int | None:
        """Number of tasks of `dataset` or a `.jsonl` file, rows that are left out included; None elsewhere."""
        size, file = None, None if self.data_path is None else Path(self.data_path)
        if file is None:
            size = None if self.dataset is None else self.dataset.size
        elif file.suffix == ".jsonl" and file.is_file():
            with file.open("rb") as lines:
                size = sum(1 for line in lines if line.strip())
        return size if size is None or self.limit is None else min(size, self.limit)

    def load_dataset(self) -> Tasks:
        """The tasks, read as they are needed.

        Raises:
            DatasetError: While they are read: there are no tasks, or the data cannot be read.
        """
        return islice(self._actions(), self.limit)

    def _actions(self) -> Iterator[Action]:
        self.rows_read = self.rows_left_out = 0
        row: Row = {}
        for index, row in enumerate(self.rows()):
            self.rows_read += 1
            action = self._action(row, index)
            if action is None:
                self.rows_left_out += 1
                if not self._is_preview:  # the run says it
                    logger.warning("benchmark=<%s>, row=<%d> | row without a task left out", self._name, index)
                continue
            yield action
        if self.rows_read == self.rows_left_out:
            reason = (
                f"none of its {self.rows_read} rows has what the benchmark needs; columns of the last: {_keys(row)}"
            )
            raise DatasetError(f"{self._source} has no tasks: {reason if self.rows_read else 'there are no rows'}")

    def _action(self, row: Row, index: int) -> Action | None:
        try:
            action = self.action(row, index)
        except (EvalError, NotImplementedError):
            raise
        except Exception as error:
            why = message_of(error) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
            raise DatasetError(
                f"{self.place(index)} cannot be made a task: {why}; its columns are {_keys(row)}"
            ) from error
        if action is not None and not isinstance(action, Action):
            raise DatasetError(f"{self.place(index)} must become an Action or None, got {action!r}")
        return action

    def place(self, index: int) -> str:
        """The place of a row, for an error: `line 3 of 'tasks.jsonl'`, elsewhere `row 3 of ...`; both count from 1."""
        file = Path(str(self.data_path))
        if type(self).rows is Benchmark.rows and file.suffix == ".jsonl" and file.is_file():
            with file.open("rb") as lines:
                numbers = (number for number, line in enumerate(lines, 1) if line.strip())
                return f"line {next(islice(numbers, index, None), index + 1)} of {self._source}"
        return f"row {index + 1} of {self._source}"

    @property
    def _source(self) -> str:
        return self._name if self.data_path is None else repr(str(self.data_path))

    @property
    def _name(self) -> str:
        return self.benchmark_name or type(self).__name__


class SourceBenchmark(Benchmark):
    """Tasks that a package or a server names, each as an action already: `inspect:sums.py`."""

    _overrides: ClassVar[tuple[str, ...]] = (*Benchmark._overrides, "check")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.data_path is not None:
            raise DatasetError(f"{self._name} brings its own tasks: leave out data_path (--data)")

    @classmethod
    def source(cls) -> str:
        """The name behind the prefix."""
        return cls.benchmark_name.partition(":")[2]

    def check(self) -> None:
        """Look for mistakes before a model is loaded; a `ValueError` is the user's."""

    def known_tasks(self) -> Sequence[Action]:
        """None: reading them may take long."""
        with self._naming_mistakes():
            self.check()
        return ()

    def load_dataset(self) -> Tasks:
        """The tasks, read as they are needed."""
        return islice(self._read(), self.limit)

    def _read(self) -> Iterator[Action]:
        with self._naming_mistakes():
            yield from cast(Iterable[Action], self.rows())

    @contextmanager
    def _naming_mistakes(self) -> Iterator[None]:
        try:
            yield
        except (ImportError, ValueError) as error:
            raise DatasetError(str(error)) from error


def _keys(row: Row) -> str:
    return ", ".join(map(str, row)) or "none"


def field(row: Row, *names: str) -> str | None:
    """The first of some fields that is there and not empty, as text."""
    for name in names:
        value = row.get(name)
        if value is not None and value == value and str(value).strip():  # NaN: an empty cell of a table
            return str(value)
    return None
