"""Images as files: OCI layouts and archives, `docker save` and `docker export` archives, unpacked into a root.

Every path is resolved inside the root, links included, so that no layer can write outside it.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import itertools
import json
import os
import posixpath
import shutil
import stat
import subprocess
import tarfile
import threading
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from ..bubblewrap.guest.system import remove_tree
from ..contract import SandboxError
from .store import Image

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_MAX_LINKS = 40  # as many as Linux follows
MAX_FILE_BYTES = 32 << 30
"""Largest file of an image."""
MAX_LAYER_BYTES = 64 << 30
"""Longest layer, unpacked."""
MAX_IMAGE_BYTES = 128 << 30
"""Longest image: all layers together, unpacked."""
_MAX_RATIO, _SMALL_BYTES = 200, 1 << 30
"""A layer longer than `_SMALL_BYTES` may be this many times as long unpacked as it is packed. The usual is 3; a bomb of
zeros reaches 1,000 with gzip, and far more with zstd."""
_DIGESTS = "blobs/sha256/"
_MAX_JSON_BYTES = 16 << 20
_MAX_INDEXES = 4
"""Indexes of an image inside each other; one for each machine is usual."""


class ImageSourceError(SandboxError):
    """An image could not be had: no program for it is here, it failed, or a file is not an image, or damaged."""


_DAMAGED = (OSError, EOFError, zlib.error, tarfile.TarError, AttributeError, KeyError, TypeError, ValueError)
"""Raised while a file is read that is not what it says."""


class _Blobs:
    """The files of a layout: a folder, or an archive of one."""

    def __init__(self, path: Path) -> None:
        self._folder = path if path.is_dir() else None
        self._tar = None if self._folder is not None else tarfile.open(path, "r:*")  # noqa: SIM115 - see close()

    def names(self) -> set[str]:
        """Names at the top."""
        if self._folder is not None:
            return set(os.listdir(self._folder))
        assert self._tar is not None
        return {posixpath.normpath(name) for name in self._tar.getnames()}

    def open(self, name: str) -> IO[bytes]:
        """An open file of it; never one outside, whatever the name and links of a folder say."""
        try:
            if self._folder is not None:
                place = (self._folder / name).resolve()
                if not place.is_relative_to(self._folder.resolve()) or not place.is_file():
                    raise ImageSourceError(f"the image names {name!r}, which must be a file inside its own folder")
                return open(place, "rb")
            assert self._tar is not None
            for spelt in (name, f"./{name}"):  # `tar -C FOLDER -c .` writes the second form
                with contextlib.suppress(KeyError):
                    if (found := self._tar.extractfile(spelt)) is not None:
                        return found
        except OSError as error:
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
        if len(text) > _MAX_JSON_BYTES:
            raise ImageSourceError(f"{name!r} has more than {_MAX_JSON_BYTES >> 20} MiB")
        _check_digest(name, hashlib.sha256(text).hexdigest())
        return json.loads(text)

    def check(self, name: str) -> None:
        """Check a file whose name is its digest."""
        if name.startswith(_DIGESTS):
            with self.open(name) as file:  # one of tarfile's has `readinto` too, which its type does not say
                _check_digest(name, hashlib.file_digest(file, "sha256").hexdigest())  # type: ignore[arg-type]

    def close(self) -> None:
        """Close the archive."""
        if self._tar is not None:
            self._tar.close()


def unpack_image(source: Path, root: Path, *, tag: str | None = None) -> Image:
    """Unpack an image into an empty folder. It has no name yet.

    Args:
        source: OCI layout (folder or archive), an archive of `docker save`, or a plain archive of a root.
        tag: Which image of a layout that holds several.

    Raises:
        ImageSourceError: It is none of these, or damaged.
    """
    try:
        blobs = _Blobs(source)
    except (OSError, tarfile.TarError) as error:
        why = "it is no tar archive" if isinstance(error, tarfile.TarError) else error.strerror or error
        raise ImageSourceError(f"{str(source)!r} cannot be read as an image: {why}") from error
    try:
        names = blobs.names()
        if not names:
            raise ImageSourceError(f"{str(source)!r} holds no files")
        unpacker = _Unpacker(root)
        # First: `docker save` writes both from release 25 on, and only an OCI layout names every file by its digest.
        if "index.json" in names:
            config, layers, digest = _oci(blobs, tag)
        elif "manifest.json" in names:
            config, layers, digest = _docker(blobs, tag)
        elif source.is_dir():
            raise ImageSourceError(f"the folder {str(source)!r} is not an OCI layout: it has no index.json")
        else:
            with open(source, "rb") as file:
                unpacker.unpack(file, source.stat().st_size)
            unpacker.finish()
            return Image(name="", root=str(root))
        made = replace(_read_settings(config, root), digest=digest)
        # Digests of the layers unpacked: they prove what was written, not only what was read.
        plain = (config.get("rootfs") or {}).get("diff_ids") or []
        for layer, expected in itertools.zip_longest(layers, plain[: len(layers)]):
            if (size := blobs.size(layer)) > MAX_LAYER_BYTES:
                raise ImageSourceError(f"the layer {layer!r} has {size} bytes, at most {MAX_LAYER_BYTES} are read")
            blobs.check(layer)
            with blobs.open(layer) as file:
                found = unpacker.unpack(file, size)
            if expected is not None and found != expected:
                raise ImageSourceError(f"the layer {layer!r} is damaged: its content has the digest {found}")
        unpacker.finish()
        return made
    except RecursionError:
        raise ImageSourceError(f"{str(source)!r} cannot be unpacked: its JSON is too deep") from None
    except _DAMAGED as error:
        raise ImageSourceError(f"{str(source)!r} cannot be unpacked: {type(error).__name__}: {error}") from error
    finally:
        blobs.close()


def _read_settings(config: dict[str, Any], root: Path) -> Image:
    """The settings of an image, as docker reads them."""
    given = config.get("config") or {}
    pairs = [entry.split("=", 1) for entry in given.get("Env") or [] if "=" in entry]
    variables = {name: value for name, value in pairs if name}  # no program can have one without a name
    workdir, user = posixpath.join("/", given.get("WorkingDir") or "/"), given.get("User") or ""
    if "\0" in "".join((workdir, user, *variables, *variables.values())):
        raise ImageSourceError("the image's settings must have no NUL characters")
    return Image(name="", root=str(root), environment=variables, workdir=workdir, user=user)


def _oci(blobs: _Blobs, tag: str | None) -> tuple[dict[str, Any], list[str], str]:
    entry = _choose_entry(blobs.json("index.json")["manifests"], tag)
    manifest = blobs.json(_blob(entry["digest"]))
    for _ in range(_MAX_INDEXES):
        if "manifests" not in manifest:
            break
        entry = _choose_entry(manifest["manifests"], None)  # one for each machine
        manifest = blobs.json(_blob(entry["digest"]))
    else:
        raise ImageSourceError(f"the image has more than {_MAX_INDEXES} indexes inside each other")
    layers = [_blob(layer["digest"]) for layer in manifest["layers"]]
    return blobs.json(_blob(manifest["config"]["digest"])), layers, entry["digest"]


def _choose_entry(entries: list[dict[str, Any]], tag: str | None) -> dict[str, Any]:
    if tag is not None:
        for entry in entries:
            name = (entry.get("annotations") or {}).get("org.opencontainers.image.ref.name", "")
            if name == tag or name.endswith(f":{tag}"):
                return entry
        raise ImageSourceError(f"the layout has no image {tag!r}")
    machine = _MACHINES.get(os.uname().machine, os.uname().machine)
    fitting = [
        entry
        for entry in entries
        if "platform" not in entry
        or (entry["platform"].get("architecture"), entry["platform"].get("os")) == (machine, "linux")
    ]
    if not fitting:
        raise ImageSourceError(f"the image has no version for linux/{machine}")
    return fitting[0]


def _blob(digest: str) -> str:
    kind, _, value = digest.partition(":")
    if not kind.isalnum() or not value.isalnum():
        raise ImageSourceError(f"{digest!r} is not a valid digest")
    return f"blobs/{kind}/{value}"


def _check_digest(name: str, found: str) -> None:
    """Compare a file's SHA-256 with its name, where that says one: those of archives of `docker save` need not."""
    if name.startswith(_DIGESTS) and found != name.removeprefix(_DIGESTS):
        raise ImageSourceError(f"{name!r} is damaged: its content has the digest sha256:{found}")


def _docker(blobs: _Blobs, tag: str | None) -> tuple[dict[str, Any], list[str], str]:
    entries = blobs.json("manifest.json")
    if tag is not None:
        entries = [one for one in entries if any(name.endswith(tag) for name in one.get("RepoTags") or [])]
    if not entries:
        raise ImageSourceError(f"the archive has no image {tag!r}")
    return blobs.json(entries[0]["Config"]), list(entries[0]["Layers"]), ""


@contextlib.contextmanager
def _zstd(file: IO[bytes]) -> Iterator[IO[bytes]]:
    # Python has no zstd of its own before 3.14.
    if shutil.which("zstd") is None:
        raise ImageSourceError("the image has a layer compressed with zstd: install the program zstd")

    def feed(sink: IO[bytes]) -> None:
        with contextlib.suppress(OSError), sink:
            shutil.copyfileobj(file, sink)

    with subprocess.Popen(["zstd", "-dc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        # Fed by a thread: written and read in one, both pipes would fill and block.
        feeder = threading.Thread(target=feed, args=(process.stdin,), daemon=True)
        feeder.start()
        yield process.stdout
        feeder.join(10)


@contextlib.contextmanager
def _decompress(file: IO[bytes]) -> Iterator[Any]:
    # The first bytes decide: archives of `docker save` name no media types.
    head = file.read(4)
    file.seek(0)
    if head.startswith(_ZSTD):
        with _zstd(file) as plain:
            yield plain
    elif head.startswith(_GZIP):
        with gzip.open(file) as unzipped:
            yield unzipped
    else:
        yield file


class _Counted:
    """A stream of bounded length, and its digest."""

    def __init__(self, stream: IO[bytes], most: int) -> None:
        self._stream, self._left = stream, most
        self._most = most
        self.digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """The next bytes."""
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ImageSourceError(f"the layer has more than {self._most} bytes unpacked")
        self.digest.update(data)
        return data


class _Unpacker:
    """Applies layers to a root, one after the other."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        os.makedirs(self.root, exist_ok=True)
        self._is_root = os.geteuid() == 0
        self._modes: dict[str, int] = {}
        self._unpacked = 0

    def unpack(self, layer: IO[bytes], packed_bytes: int) -> str:
        """Apply one layer: files, deletions, folders made anew. Returns the digest of its archive.

        Raises:
            ImageSourceError: It is longer than layers may be, or than there is room for.
        """
        made: set[str] = set()
        free, before = shutil.disk_usage(self.root).free, self._unpacked
        with _decompress(layer) as plain:
            stream: Any = _Counted(plain, min(MAX_LAYER_BYTES, max(_SMALL_BYTES, _MAX_RATIO * packed_bytes)))
            # A stream, never sought in, so that the digest is that of the very bytes unpacked.
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                for member in tar:
                    # A sparse file is short in the archive and long on the disk, so sizes count as well as bytes.
                    self._unpacked += member.size if member.isreg() else 0
                    # Binary sizes in a tar header can be negative.
                    if not 0 <= member.size <= MAX_FILE_BYTES:
                        raise ImageSourceError(f"{member.name!r} has {member.size} bytes, at most {MAX_FILE_BYTES} fit")
                    if self._unpacked > MAX_IMAGE_BYTES:
                        raise ImageSourceError(f"the image has more than {MAX_IMAGE_BYTES >> 30} GiB")
                    if self._unpacked - before > free:
                        size = self._unpacked - before
                        raise ImageSourceError(
                            f"no room for {member.name!r}: the layer needs {size} bytes, {free} are free"
                        )
                    self._apply(tar, member, made)
            while stream.read(1 << 20):
                pass  # what follows the archive's end belongs to its digest
        return f"sha256:{stream.digest.hexdigest()}"

    def finish(self) -> None:
        """Set the permissions of folders, which may forbid writing into them."""
        for path, mode in sorted(self._modes.items(), reverse=True):
            if os.path.isdir(path) and not os.path.islink(path):
                os.chmod(path, mode if self._is_root else mode | 0o700)

    def _apply(self, tar: tarfile.TarFile, member: tarfile.TarInfo, made: set[str]) -> None:
        name = posixpath.normpath("/" + member.name)
        if name == "/":
            return
        folder = self._inside(posixpath.dirname(name))
        base = posixpath.basename(name)
        if base == _OPAQUE:
            for entry in os.listdir(folder) if os.path.isdir(folder) else ():
                if os.path.join(folder, entry) not in made:  # it hides lower layers, not this one
                    remove_tree(os.path.join(folder, entry))
            return
        if base.startswith(_WHITEOUT):
            remove_tree(os.path.join(folder, base.removeprefix(_WHITEOUT)))
            return
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, base)
        if member.isdir():
            if not os.path.isdir(path) or os.path.islink(path):
                remove_tree(path)
                os.mkdir(path)
            self._modes[path] = member.mode & 0o7777
        elif member.isreg() or member.islnk() or member.issym():
            remove_tree(path)  # written through, a link there would lead outside
            self._make(tar, member, path)
        else:
            return  # devices and pipes: a sandbox has its own
        while path != self.root and path not in made:
            made.add(path)
            path = os.path.dirname(path)

    def _make(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        if member.issym():
            os.symlink(member.linkname, path)
        elif member.islnk():
            link = posixpath.normpath("/" + member.linkname)
            os.link(
                os.path.join(self._inside(posixpath.dirname(link)), posixpath.basename(link)),
                path,
                follow_symlinks=False,
            )
            return
        else:
            source = tar.extractfile(member)
            assert source is not None
            with open(path, "xb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        if self._is_root:
            # First, because it clears the set-user-id bits that `chmod` sets.
            os.chown(path, member.uid, member.gid, follow_symlinks=False)
        if not member.issym():
            os.chmod(path, member.mode & 0o7777)
            os.utime(path, (member.mtime, member.mtime))

    def _inside(self, path: str) -> str:
        """The place of a folder of the image on this machine; links lead through the root, never out of it."""
        pending, place, links = path.strip("/").split("/") if path != "/" else [], self.root, 0
        while pending:
            name = pending.pop(0)
            if name in ("", "."):
                continue
            if name == "..":
                place = place if place == self.root else os.path.dirname(place)
                continue
            inner = os.path.join(place, name)
            if not os.path.lexists(inner) or not stat.S_ISLNK(os.lstat(inner).st_mode):
                place = inner
                continue
            links += 1
            if links > _MAX_LINKS:
                raise ImageSourceError(f"the path {path!r} goes through too many links")
            target = os.readlink(inner)
            place = self.root if target.startswith("/") else place
            pending = [*target.strip("/").split("/"), *pending]
        return place
