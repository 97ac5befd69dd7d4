"""The run configuration beside the results: fields that must match to resume, and metadata."""

from __future__ import annotations

import datetime
import hashlib
import platform
import sys
import zlib
from collections.abc import Iterator, Mapping
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any

import orjson

from strands_env.core.jsonable import canonical
from strands_env.eval.errors import ConfigMismatchError, StoreCorruptError
from strands_env.eval.store import files

_PACKAGES = ("strands-rollout", "strands-agents", "torch", "transformers", "datasets", "ray", "numpy", "pydantic")
_LONGEST, _SHORT = 120, 60


class RunConfig:
    """The configuration of a run, kept in `x.run.json`.

    Args:
        config: Fields that must match to resume: benchmark, environment, model, sampling. JSON values.
        about: Metadata: seeds, the command line. A later run may differ in it.

    Raises:
        TypeError: The configuration is not JSON.
    """

    def __init__(self, path: Path | None, config: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> None:
        try:
            # Through JSON once, so that it equals what is read back (tuples are lists, keys are strings).
            self.config: dict[str, Any] = orjson.loads(canonical(dict(config)))
        except TypeError as error:
            raise TypeError(f"config must be JSON values to be saved and compared, got {config!r}: {error}") from error
        self.path = path
        self.about = dict(about or {})
        self.environment: dict[str, Any] | None = None
        self._spent_before = 0.0

    @property
    def digest(self) -> str:
        """Hash of the configuration."""
        return digest(canonical(self.config))

    def check(self, *, has_results: bool) -> None:
        """Compare with the saved configuration, or save this one. Blocks.

        Raises:
            ConfigMismatchError: The saved one is another.
            StoreCorruptError: There are results without a configuration.
        """
        if self.path is None:
            return
        saved = load_run(self.path)
        if saved is None or not has_results:
            if has_results:
                raise StoreCorruptError(
                    f"there are results, but no configuration at {str(self.path)!r} to compare with: "
                    "bring the file back, or give another output path"
                )
            self._save()
            return
        self.compare(saved)
        self.environment = saved["environment"]
        before = saved["about"]
        self._spent_before = float(before.get("wall_s") or 0.0)
        self.about |= {"started": before.get("started"), "wall_s": self._spent_before}
        earlier = [*before.get("earlier_versions", []), before.get("versions")]
        if before.get("versions") != versions():
            self.about |= {"earlier_versions": earlier}
        elif len(earlier) > 1:
            self.about |= {"earlier_versions": earlier[:-1]}
        self._save()  # what samples and prompts it asks for, and which of them count, is the latest run's say

    def compare(self, saved: Mapping[str, Any] | None = None) -> None:
        """Compare with the saved configuration (`saved`, where it was read already), if there is one. Blocks."""
        if saved is None and self.path is not None:
            saved = load_run(self.path)
        if saved is not None and (lines := differences(saved["config"], self.config)):
            raise ConfigMismatchError(str(self.path), lines)

    def check_environment(self, description: Mapping[str, Any]) -> None:
        """Compare the first environment of this run with the one of the saved results, or save it. Blocks."""
        found: dict[str, Any] = orjson.loads(canonical(dict(description)))
        if self.environment is not None:
            if lines := differences(self.environment, found, "environment."):
                raise ConfigMismatchError(str(self.path), lines)
            return
        self.environment = found
        if self.path is not None:
            self._save()

    def spend(self, seconds: float) -> None:
        """Save the wall time of the run: all earlier parts and the seconds of this one so far. Blocks."""
        self.about["wall_s"] = round(self._spent_before + seconds, 3)
        if self.path is not None:
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
        document = orjson.loads(orjson.dumps(document, default=str))
        document["crc"] = checksum_of(document)
        files.write_atomically(self.path, orjson.dumps(document, option=orjson.OPT_INDENT_2))


def load_run(path: Path) -> dict[str, Any] | None:
    """The saved document of a run, None where there is none. `config` and `about` are objects."""
    try:
        with files.naming_errors("read", path):
            document = orjson.loads(files.read_whole(path))
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


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter for a result."""
    found = {"python": platform.python_version(), "platform": sys.platform}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def digest(*parts: bytes) -> str:
    """32 hexadecimal digits of blake2b over the parts, each with its length so that none runs into the next."""
    data = b"".join([len(part).to_bytes(8, "little") + part for part in parts])
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Differences between two configurations, a line for each: `model.temperature: 0.7 in the file, now 1.0`."""
    lines: list[str] = []
    for name, before, after in _changes(old, new, prefix):
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
        lines.append(f"{name}: {_part(before, same)} in the file, now {_part(after, same)}")
    return lines


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Differences between the configurations of two runs, each in a few words: `model.temperature (0.7, 1.0)`."""

    def short(text: str) -> str:
        return f"{text[:_SHORT]}..." if len(text) > _SHORT else text

    return [f"{name} ({short(one)}, {short(other)})" for name, one, other in _changes(first, second)]


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Name, old text and new text of every field in which two configurations differ."""
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _changes(before, after, f"{prefix}{key}.")
        elif before != after or (key in old) != (key in new):
            yield f"{prefix}{key}", *(repr(it[key]) if key in it else "absent" for it in (old, new))  # type: ignore[misc]


def _part(text: str, start: int) -> str:
    """A text, and of a long one the part where it begins to differ."""
    if len(text) <= _LONGEST:
        return text
    first = max(0, start - _LONGEST // 3)
    last = first + _LONGEST
    return f"{'...' if first else ''}{text[first:last]}{'...' if last < len(text) else ''}"
