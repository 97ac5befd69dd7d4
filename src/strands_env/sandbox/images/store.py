"""Images on this machine: unpacked roots with what their makers set for the programs in them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from strands_sglang.cache import cache_folder
from strands_sglang.exceptions import did_you_mean

from ..bubblewrap.process import discard
from ..contract import SandboxUnavailableError

_RECORD = "image.json"


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
            root = Path(reference)
            record = root.parent / _RECORD
            if root.name == "root" and record.is_file():
                return self._read(root.parent)
            if not root.is_dir():
                raise UnknownImageError(f"there is no folder {reference!r} with an unpacked image")
            return Image(name=str(root.resolve()), root=str(root.resolve()))
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
        found = [self._read(record.parent) for record in self.folder.glob(f"*/{_RECORD}")]
        return sorted(found, key=lambda image: image.name)

    def remove(self, reference: str) -> Image:
        """Remove an image.

        Raises:
            UnknownImageError: It is not here.
        """
        image = self.find(reference)
        _remove(self._place(image.name))
        return image

    @contextlib.contextmanager
    def adding(self) -> Iterator[Path]:
        """A new folder to unpack into; `add` makes an image of it, and it is gone afterwards otherwise."""
        self.folder.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder))
        folder.chmod(0o755)
        try:
            yield folder
        finally:
            _remove(folder)

    def add(self, folder: Path, image: Image) -> Image:
        """Take in an unpacked root, `folder/root`, under the name of `image`, in place of an earlier one."""
        place = self._place(image.name)
        made = Image(**{**asdict(image), "root": str(place / "root"), "imported_at": time.time()})
        (folder / _RECORD).write_text(json.dumps(asdict(made), indent=1), encoding="utf-8")
        if place.exists():  # sandboxes that run on it keep its open files
            old = Path(tempfile.mkdtemp(prefix=".old-", dir=self.folder))
            os.rename(place, old / "image")
            os.rename(folder, place)
            _remove(old)
        else:
            os.rename(folder, place)
        return made

    def _place(self, name: str) -> Path:
        return self.folder / re.sub(r"[^A-Za-z0-9._-]", "_", name)

    def _read(self, place: Path) -> Image:
        found = json.loads((place / _RECORD).read_text(encoding="utf-8"))
        return Image(**{**found, "root": str(place / "root")})


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


def _remove(folder: Path) -> None:
    if folder.exists():
        discard(str(folder))
