"""Images on this machine: unpacked roots with the settings of their makers for the programs in them.

    images/docker.io_library_app_latest/image.json        the record, which names the version in use
                                        3f9c2a1b/root     its files
                                        3f9c2a1b/lock     locked by each sandbox that runs on it

An import makes a new version, so that sandboxes go on with theirs. A version that no record names is removed once no
sandbox runs on it. The folders are closed to other users: a set-uid program of an image would work for them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from strands_env.core.jsonable import digest
from strands_sglang.cache import cache_folder
from strands_sglang.exceptions import did_you_mean

from ..contract import SandboxUnavailableError
from ..folders import discard, lock, make_owned_folder, remove_owned_folder

_RECORD = "image.json"
_VERSION = re.compile("[0-9a-f]{8}")


class UnknownImageError(SandboxUnavailableError):
    """No image of that name is on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An unpacked image.

    Attributes:
        name: Full reference, such as `docker.io/library/debian:bookworm`.
        root: Folder with its files; nothing writes to it.
        environment: Environment variables it sets.
        workdir: Folder where commands start.
        user: User commands run as: a name, a number, or `user:group`; root if empty.
        digest: Digest of the source, where it had one.
        source: Where it came from.
        imported_at: Seconds since 1970.
    """

    name: str
    root: str
    environment: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = ""
    digest: str = ""
    source: str = ""
    imported_at: float = 0.0


class ImageStore:
    """The images below one folder.

    Args:
        folder: Their folder; `images` in the cache of this package if None.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(folder) if folder is not None else cache_folder() / "images"

    def find(self, reference: str) -> Image:
        """The image of a reference, or of a folder that holds an unpacked root.

        Raises:
            UnknownImageError: It is not here; the message says how to get it.
        """
        if reference.startswith(("/", "./", "../")):
            root = Path(reference).resolve()
            place = root.parents[1] if len(root.parents) > 1 else root
            if (place / _RECORD).is_file() and (image := self._read(place)).root == str(root):
                return image
            if not root.is_dir():
                raise UnknownImageError(f"there is no folder {reference!r} with an unpacked image")
            return Image(name=str(root), root=str(root))
        name = full_name(reference)
        if not (self._place(name) / _RECORD).is_file():
            known = [image.name for image in self.list()]
            raise UnknownImageError(
                f"the image {name!r} is not on this machine{did_you_mean(name, known)}: "
                f"get it with 'strands-env images pull {reference}', or 'strands-env images import' where no hub can "
                "be reached"
            )
        return self._read(self._place(name))

    def list(self) -> list[Image]:
        """All images, by name."""
        images = [self._read(record.parent) for record in self.folder.glob(f"*/{_RECORD}")]
        return sorted(images, key=lambda image: image.name)

    def remove(self, reference: str) -> Image:
        """Remove an image.

        Raises:
            UnknownImageError: It is not here.
        """
        image = self.find(reference)
        place = self._place(image.name)
        (place / _RECORD).unlink()
        _remove_unused(place)
        return image

    @contextlib.contextmanager
    def new_version(self) -> Iterator[Path]:
        """A new folder to unpack into; `add` makes an image of it, and it is gone afterwards otherwise."""
        owned = make_owned_folder(self.folder, ".new-")
        try:
            (Path(owned) / "image").mkdir(mode=0o700)
            yield Path(owned) / "image"
        finally:
            remove_owned_folder(owned)

    def add(self, folder: Path, image: Image) -> Image:
        """Take in an unpacked root, `folder/root`, under the name of `image`, in place of an earlier one."""
        place, version = self._place(image.name), secrets.token_hex(4)
        place.mkdir(mode=0o700, exist_ok=True)
        root = str(place / version / "root")
        image_in_store = Image(**{**asdict(image), "root": root, "imported_at": time.time()})
        (folder / "lock").touch(0o600)
        held = lock(folder, shared=True)  # until a record names it, it looks unused
        try:
            os.rename(folder, place / version)
            (place / version / _RECORD).write_text(json.dumps(asdict(image_in_store), indent=1), encoding="utf-8")
            os.rename(place / version / _RECORD, place / _RECORD)
        finally:
            if held is not None:
                os.close(held)
        _remove_unused(place)
        return image_in_store

    def _place(self, name: str) -> Path:
        place = self.folder / re.sub(r"[^A-Za-z0-9._-]", "_", name)
        own = place.with_name(f"{place.name}-{digest(name.encode())[:12]}")
        # `a/b_c:1` and `a_b/c:1` are spelt alike.
        is_taken = (place / _RECORD).is_file() and self._read(place).name != name
        return own if is_taken or own.exists() else place

    def _read(self, place: Path) -> Image:
        record = json.loads((place / _RECORD).read_text(encoding="utf-8"))
        return Image(**{**record, "root": str(place / Path(record["root"]).parent.name / "root")})  # it may have moved


def hold_image(image: Image) -> int | None:
    """Keep an image's files until `release_image`, through imports and removals.

    Returns:
        A lock; None for a folder outside a store, which is its owner's to keep.

    Raises:
        UnknownImageError: It has been removed.
    """
    version = Path(image.root).parent
    if not _VERSION.fullmatch(version.name) or not image.imported_at:
        return None
    try:
        held = lock(version, shared=True)
    except FileNotFoundError:
        held = None
    if held is None:
        raise UnknownImageError(f"the image {image.name!r} has been removed, or imported again, since it was looked up")
    return held


def release_image(image: Image, held: int | None) -> None:
    """Give an image back, and remove its files if it has been removed meanwhile."""
    if held is not None:
        os.close(held)
        _remove_unused(Path(image.root).parents[1])


def _remove_unused(place: Path) -> None:
    """Remove the versions of an image that its record does not name and no sandbox runs on."""
    with contextlib.suppress(OSError):  # another process does the same
        record, current = place / _RECORD, ""
        if record.is_file():
            current = Path(json.loads(record.read_text(encoding="utf-8"))["root"]).parent.name
        for version in place.iterdir():
            if version.name == current or not _VERSION.fullmatch(version.name):
                continue
            held = lock(version) if (version / "lock").exists() else -1  # its removal may have been cut short
            if held is not None:
                discard(str(version))
                if held >= 0:
                    os.close(held)
        if not current:
            place.rmdir()


def full_name(reference: str) -> str:
    """The reference with registry, namespace and tag, as docker completes it."""
    name, at, digest = reference.partition("@")
    last = name.rpartition("/")[2]
    if ":" not in last and not at:
        name += ":latest"
    first, slash, _ = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        name = f"docker.io/{name}" if slash else f"docker.io/library/{name}"
    return f"{name}{at}{digest}"
