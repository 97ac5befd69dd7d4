"""The configuration of a run, kept beside its results: what a resume has to agree with."""

from __future__ import annotations

import copy
import datetime
import functools
import logging
import math
import os
import platform
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import orjson

from strands_env.core.jsonable import canonical, differences, digest
from strands_env.eval.errors import ConfigMismatchError, StoreCorruptError, naming_errors
from strands_sglang.lines import write_at
from strands_sglang.secret_names import without_secrets

logger = logging.getLogger(__name__)

_PACKAGES = ("strands-rollout", "strands-agents", "torch", "transformers", "datasets", "ray", "numpy", "pydantic")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePaths:
    """The files of one run, beside each other: `x.jsonl` and `x.run.json`."""

    results: Path

    @classmethod
    def of(cls, output_path: str | Path) -> Self:
        """The files for an output path: a `.jsonl` file or its `.run.json`, or a folder that gets `results.jsonl`."""
        path = Path(output_path)
        if path.name.endswith(".run.json"):
            path = path.with_name(f"{path.name.removesuffix('.run.json')}.jsonl")
        return cls(results=path if path.suffix == ".jsonl" else path / "results.jsonl")

    @property
    def run(self) -> Path:
        """Configuration, versions and seeds of the run."""
        return self.results.with_suffix(".run.json")


def load_run(path: Path) -> dict[str, Any] | None:
    """The saved document of a run, None where there is none. `config` and `about` are objects."""
    try:
        with naming_errors("read", path), open_descriptor(path, os.O_RDONLY) as fd:
            document = orjson.loads(os.pread(fd, os.fstat(fd).st_size, 0))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StoreCorruptError(f"{str(path)!r} is not JSON: {error}") from error
    sections = document if isinstance(document, dict) else {}
    about, environment = sections.get("about") or {}, sections.get("environment")
    if not all(isinstance(part, dict) for part in (sections.get("config"), about, environment or {})):
        raise StoreCorruptError(
            f"{str(path)!r} is not the configuration of a run: config, about and environment must be JSON objects"
        )
    return {**sections, "about": about, "environment": environment}


def expected_samples(document: Mapping[str, Any] | None) -> float:
    """Samples that a finished run has, as its saved document says; infinite where it does not."""
    about = (document or {}).get("about") or {}
    return (about.get("tasks") or math.inf) * ((about.get("options") or {}).get("n_samples_per_prompt") or 1)


def checksum_of(document: Mapping[str, Any]) -> str:
    """CRC-32 of a saved document's content, its own field `crc` left out; `verify_run` compares it."""
    content = canonical({name: value for name, value in document.items() if name != "crc"})
    return f"{zlib.crc32(content):08x}"


class RunConfig:
    """The configuration of a run, kept in `x.run.json`. Its methods block.

    Args:
        config: Fields that must match to resume: benchmark, environment, model, sampling. JSON values.
        about: Metadata: seeds, the command line. A later run may differ in it.

    Raises:
        TypeError: The configuration is not JSON.
    """

    def __init__(self, path: Path | None, config: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> None:
        try:
            # Through JSON once, so that it equals what is read back (tuples are lists, keys are strings).
            self.config: dict[str, Any] = without_secrets(orjson.loads(canonical(dict(config))))
        except TypeError as error:
            raise TypeError(f"config must be JSON values to be saved and compared, got {config!r}: {error}") from error
        self.digest = digest(canonical(self.config))
        self.path = path
        self.about = dict(about or {})
        self.environment: dict[str, Any] | None = None
        self._spent_before = 0.0
        self._has_said_unknown = False

    def check(self, *, has_results: bool) -> None:
        """Compare with the saved configuration, or save this one.

        Raises:
            ConfigMismatchError: The saved one is another.
            StoreCorruptError: There are results without a configuration.
        """
        if has_results:
            saved = self.compare()
            if saved is None:
                raise StoreCorruptError(
                    f"there are results, but no configuration at {str(self.path)!r} to compare with: "
                    "bring the file back, or give another output path"
                )
            self.environment, before = saved["environment"], saved["about"]
            self._spent_before = float(before.get("wall_s") or 0.0)
            self.about |= {"started": before.get("started"), "wall_s": self._spent_before}
            earlier = [*before.get("earlier_versions", []), before.get("versions")]
            self.about["earlier_versions"] = [found for found in earlier if found not in (None, versions())]
        self._save()  # what samples and prompts it asks for, and which of them count, is the latest run's say

    def compare(self) -> dict[str, Any] | None:
        """The saved document, if there is one, after a comparison with its configuration."""
        saved = None if self.path is None else load_run(self.path)
        if saved is not None:
            self._refuse(differences(without_secrets(saved["config"]), self.config))
        return saved

    def check_environment(self, description: Mapping[str, Any]) -> None:
        """Compare the first environment of this run with the one of the saved results, or save it.

        One that was made for a task is compared whole with one for the same task, else only its model.
        """
        current: dict[str, Any] = orjson.loads(canonical(dict(description)))
        if self.environment is None:
            self.environment = copy.deepcopy(current)
            self._save()
        saved = copy.deepcopy(self.environment)
        self._leave_out_unknown(*(each.get("task") or each for each in (saved, current)))
        task, its = (each.get("task") or {} for each in (saved, current))
        if task.get("id") != its.get("id"):
            saved, current = ({name: each[name] for name in each if name != "task"} for each in (saved, current))
        self._refuse(differences(saved, current, "environment."))

    def _leave_out_unknown(self, saved: dict[str, Any], current: dict[str, Any]) -> None:
        """Remove from both environments what cannot be compared of their rewards, and say so once."""
        reward, before = current.get("reward"), saved.get("reward") or {}
        if reward is None:
            return
        unknown, advice = reward.pop("unknown", []), "give the reward a method identity(self) that returns JSON values"
        if "unknown" not in before:
            unknown, advice = ["the identity that an older version saved"], "resume only with the same reward"
            del current["reward"]
            saved.pop("reward", None)
        else:
            del before["unknown"]
        if unknown and not self._has_said_unknown:
            self._has_said_unknown = True
            name = current.get("reward_fn")
            logger.warning("reward=<%s>, unknown=<%s> | not compared on resume: %s", name, "; ".join(unknown), advice)

    def _refuse(self, changed: list[tuple[str, str, str]]) -> None:
        if changed:
            lines = (f"{name}: {before} in the file, now {after}" for name, before, after in changed)
            raise ConfigMismatchError(str(self.path), tuple(lines))

    def spend(self, seconds: float) -> None:
        """Save the wall time of the run: all earlier parts and the seconds of this one so far."""
        self.about["wall_s"] = round(self._spent_before + seconds, 3)
        self._save()

    def _save(self) -> None:
        assert self.path is not None
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        document = {
            "digest": self.digest,
            "config": self.config,
            "environment": self.environment,
            "about": {"started": now, "versions": versions(), **self.about},
        }
        # The checksum is of what will be read back.
        document = without_secrets(orjson.loads(orjson.dumps(document, default=str)))
        document["crc"] = checksum_of(document)
        _write_atomically(self.path, orjson.dumps(document, option=orjson.OPT_INDENT_2))


@functools.cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter for a result."""
    versions_by_name = {"python": platform.python_version(), "platform": sys.platform}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            # The header alone: `version` parses the README that follows it, too, which takes most of a millisecond.
            header = (metadata.distribution(name).read_text("METADATA") or "").partition("\n\n")[0]
            versions_by_name.update((name, line[9:]) for line in header.splitlines() if line.startswith("Version: "))
    return versions_by_name


@contextmanager
def open_descriptor(path: Path, flags: int) -> Iterator[int]:
    """The descriptor of an open file or folder. The store speaks to `os` alone: tests put a simulated disk there."""
    fd = os.open(path, flags, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Make names of new files in a folder durable, where the system can."""
    with suppress(OSError), open_descriptor(folder, os.O_RDONLY) as fd:
        os.fsync(fd)


def _write_atomically(path: Path, data: bytes) -> None:
    """Replace a file so that it is always either the old or the new one; `StoreError` where the system refuses."""
    # Beside it: only within a file system is a rename atomic.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with naming_errors("write", path):
        os.makedirs(path.parent, exist_ok=True)
        try:
            with open_descriptor(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
                write_at(fd, data, 0)
                os.fsync(fd)
            os.replace(temporary, path)
        finally:
            with suppress(OSError):  # where it was not renamed
                os.unlink(temporary)
    sync_folder(path.parent)
