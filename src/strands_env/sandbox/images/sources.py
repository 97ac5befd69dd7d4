"""Sources of images: a registry, a docker or podman on this machine, files, a Dockerfile built by one of them."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from strands_env.core.files import digest_folder

from .archive import unpack_image
from .layouts import ImageSourceError
from .store import Image, ImageStore, full_name

_ENGINES = ("podman", "docker")


def pull_image(reference: str, store: ImageStore, *, name: str | None = None) -> Image:
    """Fetch an image from a registry, with skopeo, podman or docker, whichever is here.

    Raises:
        ImageSourceError: None is here, or it failed.
    """
    with tempfile.TemporaryDirectory(prefix="strands-image-") as folder:
        if shutil.which("skopeo"):
            layout = Path(folder, "layout")
            _run(["skopeo", "copy", "--quiet", f"docker://{reference}", f"oci:{layout}:image"])
            return _add(store, name or reference, layout, f"docker://{reference}")
    engine = _engine("pulling an image", also="skopeo")
    _run([engine, "pull", "--quiet", reference])
    return import_image(f"{engine}:{reference}", store, name=name or reference)


def import_image(source: str, store: ImageStore, *, name: str | None = None) -> Image:
    """Take in an image that is on this machine.

    Args:
        source: `podman:NAME`, `docker:NAME`, `oci:FOLDER[:NAME]`, `oci-archive:FILE[:NAME]`,
            `docker-archive:FILE[:NAME]`, or the path of any of these, or of an archive of `docker export`. `NAME` is
            the exact name of one of several images in it, or a tag that only one has.
        name: Its name; if None, that of the source (a path has no name).

    Raises:
        ImageSourceError: The source cannot be read, or has no name.
    """
    kind, colon, rest = source.partition(":")
    if colon and kind in _ENGINES:
        if shutil.which(kind) is None:
            raise ImageSourceError(f"{source!r} needs the program {kind!r}, which is not here")
        with tempfile.TemporaryDirectory(prefix="strands-image-") as folder:
            archive = Path(folder, "image.tar")
            _run([kind, "save", "-o", str(archive), rest])
            return _add(store, name or rest, archive, source)
    place, tag = source, ""
    if colon and kind in ("oci", "oci-archive", "docker-archive"):
        place, _, tag = rest.partition(":")
    if not Path(place).exists():
        raise ImageSourceError(
            f"{source!r} is neither a file nor of the form podman:NAME, docker:NAME or oci:FOLDER; 'images pull' "
            "fetches from a registry"
        )
    if not (name or tag):
        raise ImageSourceError(f"an image from {source!r} needs a name: give --name")
    return _add(store, name or tag, Path(place), source, tag=tag or None)


def build_image(folder: str | Path, name: str, store: ImageStore) -> Image:
    """Build the Dockerfile of a folder, with podman or docker, and take in the result.

    Raises:
        ImageSourceError: Neither is here, or it failed.
    """
    if not Path(folder, "Dockerfile").is_file():
        raise ImageSourceError(f"{str(folder)!r} has no Dockerfile")
    engine = _engine("building an image")
    _run([engine, "build", "-t", name, str(folder)])
    return import_image(f"{engine}:{name}", store, name=name)


def built_name(folder: str | Path) -> str:
    """Name of the image that is built from the Dockerfile of a folder as it is now.

    Tasks of one name have separate images, and an edited Dockerfile a new one.
    """
    place = Path(folder).resolve()
    owner = place.parent if place.name in ("environment", "tests") else place
    name = re.sub("[^a-z0-9]+", "-", owner.name.lower()).strip("-") or "image"
    return f"harbor.local/{name}:{digest_folder(place)[:16]}"


def _engine(doing: str, *, also: str = "") -> str:
    for engine in _ENGINES:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            if subprocess.run([engine, "info"], capture_output=True, timeout=60).returncode == 0:
                return engine
    more = f"{also}, " if also else ""
    raise ImageSourceError(f"{doing} needs {more}podman or docker (with its daemon), and none of them works here")


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise ImageSourceError(f"{command[0]!r} cannot be run: {error}") from error
    if done.returncode != 0:
        raise ImageSourceError(f"{' '.join(command[:2])} failed: {(done.stderr or done.stdout).strip()[-1000:]}")


def _add(store: ImageStore, name: str, path: Path, source: str, *, tag: str | None = None) -> Image:
    with store.new_version() as folder:
        image = unpack_image(path, folder / "root", tag=tag)
        (folder / "root").chmod(0o755)  # users of the container pass it; nobody else passes the folder above
        return store.add(folder, replace(image, name=full_name(name), source=source))
