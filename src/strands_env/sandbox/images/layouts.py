"""The inside of an image that is a file: its layout, the choice among several images, its layers as streams."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import itertools
import json
import lzma
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ..contract import SandboxError
from .store import full_name

_COMPRESSED: dict[bytes, Any] = {b"\x1f\x8b": gzip, b"BZh": bz2, b"\xfd7zX": lzma}
_ZSTD = b"\x28\xb5\x2f\xfd"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_VARIANTS = ("", "v1", "v8")
"""Variants of a machine that run on all of its processors."""
_NAMES = ("org.opencontainers.image.ref.name", "io.containerd.image.name")
_DIGESTS = "blobs/sha256/"
_MAX_JSON_BYTES = 16 << 20
_MAX_LAYOUT_ENTRIES = 100_000
"""Entries of an archive that are looked at for a layout: one with more holds a root."""
MAX_HEADER_BYTES = 1 << 20
"""Longest header of an entry, with its long names and attributes; `tarfile` would read one of gigabytes as a whole."""
_MAX_SHARED_HEADERS = 64
_MAX_INDEXES = 4
"""Indexes of an image inside each other; one for each machine is usual."""


class ImageSourceError(SandboxError):
    """An image could not be had: no program for it is here, it failed, or a file is not an image, or damaged."""


def check_bound(what: str, size: int, most: int, unit: str = "bytes") -> None:
    """Refuse sizes that no real image has: they would fill this machine's memory, or its disk."""
    if not 0 <= size <= most:  # binary sizes in a header can be negative
        raise ImageSourceError(f"{what} has {size} {unit}, at most {most} are read")


_DAMAGED_DATA = (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError)
DAMAGED = (OSError, AttributeError, KeyError, TypeError, ValueError, *_DAMAGED_DATA)
"""Errors of reading a file of another kind than it says."""


class BoundedFile:
    """A file under an archive, of which no header is read beyond its bound.

    Args:
        longest: Most bytes of the whole.

    Attributes:
        digest: Of the bytes read.
    """

    def __init__(self, file: IO[bytes], longest: int = sys.maxsize) -> None:
        self._file, self._longest, self._at = file, longest, 0
        self.header_end: int | None = MAX_HEADER_BYTES
        """Where the header that is being read must have ended."""
        self.digest = hashlib.sha256()
        self.tell, self.seekable = file.tell, file.seekable

    def seek(self, place: int) -> int:
        """Go to a place."""
        self._at = self._file.seek(place)
        return self._at

    def read(self, size: int) -> bytes:
        """The next bytes."""
        # A stream is read in whole records.
        if self.header_end is not None:
            read = self._at + size - tarfile.RECORDSIZE - (self.header_end - MAX_HEADER_BYTES)
            check_bound("a header of an entry of the archive", max(0, read), MAX_HEADER_BYTES)
        data = self._file.read(size)
        self._at += len(data)
        check_bound("the unpacked layer", self._at, self._longest)
        self.digest.update(data)
        return data


def each_member(tar: tarfile.TarFile, file: BoundedFile) -> Iterator[tarfile.TarInfo]:
    """The entries of an archive over such a file, in their order."""
    while True:
        file.header_end = tar.offset + MAX_HEADER_BYTES
        member = tar.next()
        file.header_end = None
        if member is None:
            return
        check_bound("the archive", len(tar.pax_headers), _MAX_SHARED_HEADERS, "headers for all its entries")
        yield member


class Blobs:
    """The files of a layout: a folder, or an archive of one."""

    def __init__(self, path: Path) -> None:
        self._folder = path if path.is_dir() else None
        self._open, self._members = contextlib.ExitStack(), dict[str, tarfile.TarInfo]()
        if self._folder is not None:
            return
        with contextlib.ExitStack() as opened:
            self._stream = BoundedFile(opened.enter_context(decompress(opened.enter_context(open(path, "rb")))))
            stream: Any = self._stream
            self._tar = opened.enter_context(tarfile.open(fileobj=stream, mode="r:"))
            self._open = opened.pop_all()

    def names(self) -> set[str]:
        """Names at the top, or all. Called first: it finds the files of an archive."""
        if self._folder is not None:
            return set(os.listdir(self._folder))
        for member in itertools.islice(each_member(self._tar, self._stream), _MAX_LAYOUT_ENTRIES):
            self._members[posixpath.normpath(member.name)] = member  # `tar -C FOLDER -c .` begins with `./`
        self._stream.header_end = None
        return set(self._members)

    def open(self, name: str) -> IO[bytes]:
        """An open file of it; never one outside, also by names and links in a folder."""
        try:
            if self._folder is not None:
                place = (self._folder / name).resolve()
                if not place.is_relative_to(self._folder.resolve()) or not place.is_file():
                    raise ImageSourceError(f"the image names {name!r}, which must be a file inside its own folder")
                return open(place, "rb")
            member = self._members.get(posixpath.normpath(name))
            if member is not None and (opened := self._tar.extractfile(member)) is not None:
                return opened
        except (OSError, KeyError) as error:
            raise ImageSourceError(f"the image lacks {name!r}: {error}") from error
        raise ImageSourceError(f"the image lacks {name!r}")

    def size(self, name: str) -> int:
        """Bytes of a file."""
        with self.open(name) as file:
            return file.seek(0, os.SEEK_END)

    def json(self, name: str) -> Any:
        """A file of JSON."""
        with self.open(name) as file:
            text = file.read(_MAX_JSON_BYTES + 1)
        check_bound(repr(name), len(text), _MAX_JSON_BYTES)
        _check_digest(name, hashlib.sha256(text).hexdigest())
        try:
            return json.loads(text)
        except RecursionError:
            raise ImageSourceError(f"{name!r} is JSON that is nested too deeply") from None

    def check(self, name: str) -> None:
        """Check a file whose name is its digest."""
        if name.startswith(_DIGESTS):
            with self.open(name) as file:  # one of tarfile's has `readinto` too, which its type does not say
                _check_digest(name, hashlib.file_digest(file, "sha256").hexdigest())  # type: ignore[arg-type]

    def close(self) -> None:
        """Close the archive."""
        self._open.close()


def choose_oci(blobs: Blobs, tag: str | None) -> tuple[dict[str, Any], list[str], str]:
    """Settings, names of layers and digest of the image that is meant, for this machine, of an OCI layout."""
    entries = blobs.json("index.json")["manifests"]
    annotations = [one.get("annotations") or {} for one in entries]
    names = [[one[key] for key in _NAMES if one.get(key)] for one in annotations]
    manifests = _select_by_name(list(zip(names, entries, strict=True)), tag)
    for _ in range(_MAX_INDEXES):
        manifest, digest = _choose_platform(blobs, manifests)
        if "manifests" not in manifest:
            layers = [_blob(layer["digest"]) for layer in manifest["layers"]]
            return blobs.json(_blob(manifest["config"]["digest"])), layers, digest
        manifests = manifest["manifests"]  # one for each machine
    raise ImageSourceError(f"the image has more than {_MAX_INDEXES} indexes inside each other")


def _select_by_name(images: list[tuple[list[str], Any]], tag: str | None) -> list[Any]:
    """The images of this name, or of this tag alone, by their names; where none is asked for, those of the only name.

    Raises:
        ImageSourceError: None has it, or it is not clear which is meant.
    """
    matches = images
    if tag is not None:
        ways = (
            lambda name: name == tag,
            lambda name: full_name(name) in (full_name(tag), f"localhost/{tag}"),  # as docker and podman complete it
            lambda name: re.fullmatch("[^/:@]+", tag) and name.rpartition(":")[2] == tag,
        )
        fitting = ([one for one in images if any(map(way, one[0]))] for way in ways)
        matches = next(filter(None, fitting), [])
    known = sorted({name for names, _ in images for name in names})
    if len({tuple(sorted(names)) for names, _ in matches}) == 1:
        return [one for _, one in matches]
    several = f"it holds several images, {known}: name one behind the file, as in 'FILE:NAME:TAG'"
    raise ImageSourceError(several if matches else f"there is no image {tag!r} in it, but {known}")


def _choose_platform(blobs: Blobs, entries: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """The manifest for this machine, and its digest; signatures, attestations and lists of contents are none."""
    machine = _MACHINES.get(os.uname().machine, os.uname().machine)
    fitting: dict[str, dict[str, Any]] = {}
    platforms: set[str] = set()
    for entry in entries:
        manifest, platform = None, entry.get("platform")
        if platform is None:
            manifest = blobs.json(_blob(entry["digest"]))
            if "manifests" not in manifest and _is_image(manifest):
                platform = blobs.json(_blob(manifest["config"]["digest"]))
        platform = {"os": "linux", "architecture": machine, **(platform or {})}
        name = (platform["os"], platform["architecture"], platform.get("variant") or "")
        platforms.add("/".join(filter(None, map(str, name))))
        # Those of other machines are often named without being there.
        if name in [("linux", machine, variant) for variant in _VARIANTS]:
            manifest = manifest or blobs.json(_blob(entry["digest"]))
            if "manifests" in manifest or _is_image(manifest):
                fitting[entry["digest"]] = manifest
    if len(fitting) == 1:
        return next((manifest, digest) for digest, manifest in fitting.items())
    unclear = f"it is not clear which of its images is meant: {sorted(fitting)}"
    none = f"the image has no version for linux/{machine}, but {sorted(platforms)}"
    raise ImageSourceError(unclear if fitting else none)


def _is_image(manifest: dict[str, Any]) -> bool:
    """No other artifact, which has another kind of settings or of layers, or an image that it is about."""
    types = [one.get("mediaType") or "tar" for one in manifest["layers"]]
    return "image" in (manifest["config"].get("mediaType") or "image") and all("tar" in one for one in types)


def _blob(digest: str) -> str:
    kind, _, value = digest.partition(":")
    if not kind.isalnum() or not value.isalnum():
        raise ImageSourceError(f"{digest!r} is not a valid digest")
    return f"blobs/{kind}/{value}"


def _check_digest(name: str, digest: str) -> None:
    """Compare a file's SHA-256 with its name, where that says one: those of archives of `docker save` need not."""
    if name.startswith(_DIGESTS) and digest != name.removeprefix(_DIGESTS):
        raise ImageSourceError(f"{name!r} is damaged: its content has the digest sha256:{digest}")


def choose_docker(blobs: Blobs, tag: str | None) -> tuple[dict[str, Any], list[str], str]:
    """Settings and names of layers of the image that is meant, of an archive of `docker save`; it has no digest."""
    entries = blobs.json("manifest.json")
    matches = _select_by_name([(one.get("RepoTags") or [str(one["Config"])], one) for one in entries], tag)
    return blobs.json(matches[0]["Config"]), list(matches[0]["Layers"]), ""


@contextlib.contextmanager
def decompress(file: IO[bytes]) -> Iterator[Any]:
    """The content of a file, decompressed."""
    # The first bytes decide: archives of `docker save` name no media types.
    head = file.read(4)
    file.seek(0)
    if head.startswith(_ZSTD):  # of which Python knows nothing before 3.14
        if shutil.which("zstd") is None:
            raise ImageSourceError("the image has a layer compressed with zstd: install the program zstd")
        with tempfile.TemporaryFile() as packed:
            shutil.copyfileobj(file, packed, 1 << 20)
            packed.seek(0)
            with subprocess.Popen(["zstd", "-dc"], stdin=packed, stdout=subprocess.PIPE) as process:
                yield process.stdout
    elif kind := next((kind for mark, kind in _COMPRESSED.items() if head.startswith(mark)), None):
        with kind.open(file) as plain:
            yield plain
    else:
        yield file
