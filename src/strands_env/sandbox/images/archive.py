"""Images as files: OCI layouts and archives, `docker save` and `docker export` archives, unpacked into a root.

Every path is resolved inside the root, links included, so that no layer can write outside it.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from ..bubblewrap.guest.system import remove_tree
from .layouts import (
    DAMAGED,
    Blobs,
    BoundedFile,
    ImageSourceError,
    check_bound,
    choose_docker,
    choose_oci,
    decompress,
    each_member,
)
from .paths import Stack
from .store import Image

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
MAX_FILE_BYTES = 32 << 30
"""Largest file of an image."""
MAX_LAYER_BYTES = 64 << 30
"""Longest layer, unpacked."""
MAX_IMAGE_BYTES = 128 << 30
"""Longest image: all layers together, unpacked."""
_MAX_RATIO, _SMALL_BYTES = 200, 1 << 30
"""A layer longer than `_SMALL_BYTES` may be this many times as long unpacked as it is packed. The usual is 3; a bomb of
zeros reaches 1,000 with gzip, and far more with zstd."""
MAX_ENTRIES = 4_000_000
"""Most entries of an image, all layers together; large ones have half a million."""


def unpack_image(source: Path, root: Path, *, tag: str | None = None) -> Image:
    """Unpack an image into an empty folder. It has no name yet.

    Args:
        source: OCI layout (folder or archive), an archive of `docker save`, or a plain archive of a root.
        tag: Exact name of the image, or a tag that only one has, where the source holds several.

    Raises:
        ImageSourceError: It is none of these, or damaged.
    """
    try:
        return _unpack(source, root, tag)
    except RecursionError:  # `tarfile` reads each header from within the one before
        raise ImageSourceError(f"{str(source)!r} has an entry with too many headers") from None


def _unpack(source: Path, root: Path, tag: str | None) -> Image:
    try:
        blobs = Blobs(source)
    except DAMAGED as error:
        why = (error.strerror or error) if isinstance(error, OSError) else "it is no tar archive"
        raise ImageSourceError(f"{str(source)!r} cannot be read as an image: {why}") from error
    try:
        names = blobs.names()
        if not names:
            raise ImageSourceError(f"{str(source)!r} holds no files")
        unpacker = _Unpacker(root)
        # First: `docker save` writes both from release 25 on, and only an OCI layout names every file by its digest.
        if "index.json" in names:
            config, layers, digest = choose_oci(blobs, tag)
        elif "manifest.json" in names:
            config, layers, digest = choose_docker(blobs, tag)
        elif source.is_dir():
            raise ImageSourceError(f"the folder {str(source)!r} is not an OCI layout: it has no index.json")
        else:
            with open(source, "rb") as file:
                unpacker.unpack(file, source.stat().st_size)
            unpacker.finish()
            return Image(name="", root=str(root))
        image = replace(_read_settings(config, root), digest=digest)
        # Digests of the layers unpacked: they prove the files written, not only the bytes read.
        plain = (config.get("rootfs") or {}).get("diff_ids") or []
        for layer, expected in itertools.zip_longest(layers, plain[: len(layers)]):
            check_bound(f"the layer {layer!r}", size := blobs.size(layer), MAX_LAYER_BYTES)
            blobs.check(layer)
            with blobs.open(layer) as file:
                digest_of_layer = unpacker.unpack(file, size)
            if expected is not None and digest_of_layer != expected:
                raise ImageSourceError(f"the layer {layer!r} is damaged: its content has the digest {digest_of_layer}")
        unpacker.finish()
        return image
    except DAMAGED as error:
        raise ImageSourceError(f"{str(source)!r} cannot be unpacked: {type(error).__name__}: {error}") from error
    finally:
        blobs.close()


def _read_settings(config: dict[str, Any], root: Path) -> Image:
    """The settings of an image, as docker reads them."""
    settings = config.get("config") or {}
    pairs = [entry.split("=", 1) for entry in settings.get("Env") or [] if "=" in entry]
    variables = {name: value for name, value in pairs if name}  # no program can have one without a name
    workdir, user = posixpath.join("/", settings.get("WorkingDir") or "/"), settings.get("User") or ""
    if "\0" in "".join((workdir, user, *variables, *variables.values())):
        raise ImageSourceError("the image's settings must have no NUL characters")
    return Image(name="", root=str(root), environment=variables, workdir=workdir, user=user)


class _Unpacker:
    """Applies layers to a root, one after the other."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        os.makedirs(self.root, exist_ok=True)
        self._is_root = os.geteuid() == 0
        self._modes: dict[str, int] = {}
        self._unpacked = self._entries = 0

    def unpack(self, layer: IO[bytes], packed_bytes: int) -> str:
        """Apply one layer: files, deletions, folders made anew. Returns the digest of its archive.

        Raises:
            ImageSourceError: It is longer than layers may be, or than there is room for.
        """
        new_paths: set[str] = set()
        free, before = shutil.disk_usage(self.root).free, self._unpacked
        with decompress(layer) as plain:
            stream: Any = BoundedFile(plain, min(MAX_LAYER_BYTES, max(_SMALL_BYTES, _MAX_RATIO * packed_bytes)))
            # A stream, never sought in, so that the digest is that of the very bytes unpacked.
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                for member in each_member(tar, stream):
                    tar.members.clear()  # type: ignore[attr-defined] # or it would keep them all
                    self._entries += 1
                    check_bound("the image", self._entries, MAX_ENTRIES, "entries")
                    check_bound(repr(member.name), member.size, MAX_FILE_BYTES)
                    # A sparse file is short in the archive and long on the disk, so sizes count as well as bytes.
                    self._unpacked += member.size if member.isreg() else 0
                    check_bound("the image", self._unpacked, MAX_IMAGE_BYTES)
                    if self._unpacked - before > free:
                        size = self._unpacked - before
                        raise ImageSourceError(
                            f"no room for {member.name!r}: the layer needs {size} bytes, {free} are free"
                        )
                    self._apply(tar, member, new_paths)
            while stream.read(1 << 20):
                pass  # what follows the archive's end belongs to its digest
        return f"sha256:{stream.digest.hexdigest()}"

    def finish(self) -> None:
        """Set the permissions of folders, which may forbid writing into them."""
        for path, mode in sorted(self._modes.items(), reverse=True):
            if os.path.isdir(path) and not os.path.islink(path):
                os.chmod(path, mode if self._is_root else mode | 0o700)

    def _apply(self, tar: tarfile.TarFile, member: tarfile.TarInfo, new_paths: set[str]) -> None:
        name = posixpath.normpath("/" + member.name)
        if name == "/":
            return
        folder = self._inside(posixpath.dirname(name))
        base = posixpath.basename(name)
        if base == _OPAQUE:
            for entry in os.listdir(folder) if os.path.isdir(folder) else ():
                _hide_lower(os.path.join(folder, entry), new_paths)
            return
        if base.startswith(_WHITEOUT):
            _hide_lower(os.path.join(folder, base.removeprefix(_WHITEOUT)), new_paths)
            return
        _make_folders(folder)
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
        while path != self.root and path not in new_paths:
            new_paths.add(path)
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
        if (target := Stack([self.root]).resolve(path)) is None:
            raise ImageSourceError(f"the path {path!r} goes through too many links")
        return os.path.join(self.root, target) if target else self.root


def _hide_lower(path: str, new_paths: set[str]) -> None:
    """Remove the files of lower layers at a path, and keep those of this one, made before its mark or after."""
    pending = [path]
    while pending:
        place = pending.pop()
        if place not in new_paths:
            remove_tree(place)
        elif os.path.isdir(place) and not os.path.islink(place):
            pending += [os.path.join(place, name) for name in os.listdir(place)]


def _make_folders(path: str) -> None:
    """Make a folder and those above it, however many."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for place in reversed(missing):
        os.mkdir(place, 0o755)
