"""Folders of running sandboxes on this machine: where they lie, how much is in them, and copies of them.

A sandbox writes into one folder, `upper`, stacked above the image.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import functools
import json
import logging
import os
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from strands_sglang.cache import cache_folder

from ..bubblewrap.command import find_bubblewrap
from ..contract import SandboxError, SandboxUnavailableError
from ..folders import discard, make_owned_folder
from .paths import Stack, is_real, mode_of

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "STRANDS_ROLLOUT_CONTAINERS"
"""Environment variable with the folder for the files of running sandboxes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The files of a sandbox at one moment. Its processes are not part of it.

    Attributes:
        path: Folder with `upper` and `snapshot.json`.
        image: Name of the image below.
        layers: Folders above the image, the lowest first, the snapshot's own last.
    """

    path: str
    image: str
    layers: tuple[str, ...]

    def save(self) -> None:
        """Write `snapshot.json`."""
        Path(self.path, "snapshot.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Snapshot:
        """Read a saved snapshot.

        Raises:
            FileNotFoundError: It, or a layer below it, is gone.
        """
        file = Path(path, "snapshot.json")
        if not file.is_file():
            raise FileNotFoundError(f"there is no snapshot of a sandbox at {str(path)!r}")
        record = json.loads(file.read_text(encoding="utf-8"))
        snapshot = cls(path=record["path"], image=record["image"], layers=tuple(record["layers"]))
        for layer in snapshot.layers:
            if not Path(layer).is_dir():
                raise FileNotFoundError(f"the snapshot {str(path)!r} stands on the folder {layer!r}, which is gone")
        return snapshot


def make_folder() -> str:
    """A folder for the files of a sandbox; `remove_owned_folder` removes it."""
    return make_owned_folder(containers_folder(), "")


def copy_upper(source: str, target: str) -> None:
    """Copy the files that a sandbox has written, deletions included, to a new place, as deep as paths lead.

    Raises:
        SandboxError: There is no room, or a file cannot be read.
    """
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)  # its set-uid files are for nobody else
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "files are copied to a new place", target)
    command = ["cp", "-aT", "--reflink=auto", "--", source, target]
    if os.geteuid() != 0:  # its own files may be closed to an ordinary user, too, but not to a root of its namespace
        root = ["--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "CAP_DAC_OVERRIDE"]
        command = [find_bubblewrap(), *root, "--dev-bind", "/", "/", "--", *command]
    failures: collections.deque[str] = collections.deque(maxlen=3)
    is_cut = False
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, errors="replace", env={**os.environ, "LC_ALL": "C"}
    ) as copying:
        assert copying.stderr is not None
        for line in copying.stderr:
            # Deeper than a path leads nobody can open anything, and code must not keep its work from being copied so.
            is_deep = line.endswith(": File name too long\n")
            is_cut = is_cut or is_deep
            failures.extend([] if is_deep else [line.strip()])
    if failures or copying.returncode != (1 if is_cut else 0):
        discard(target)
        raise SandboxError(f"what the sandbox wrote could not be copied: {' '.join(failures)[-500:]}")


def hide_obstacles(upper: str, layers: Sequence[str], root: str, shown: Mapping[str, str]) -> None:
    """Hide files that code has put in the place of folders where a sandbox shows files of this machine.

    Bubblewrap does not start over a link or a file there, and a lost sandbox that does not start again is not graded.

    Args:
        upper: Folder for the files of the new sandbox.
        layers: Folders below it, the lowest first.
        root: Folder of the image.
        shown: Paths inside, with the files shown there.
    """
    for path, source in shown.items():
        names = (Stack([root]).resolve(path) or path.strip("/")).split("/")
        for size in range(1, len(names) + 1):
            folder, place = "/".join(names[: size - 1]), "/".join(names[:size])
            for layer in layers:  # whose folders may be closed to an ordinary user, who could not look
                if is_real(layer, folder) and not os.access(os.path.join(layer, folder), os.X_OK):
                    os.chmod(os.path.join(layer, folder), 0o755)
            tops = [upper, *reversed(layers)]
            modes = (mode_of(os.path.join(top, place)) for top in tops if is_real(top, folder))
            mode = next((one for one in modes if one is not None), stat.S_IFCHR)
            if stat.S_ISCHR(mode):  # nothing, or deleted: what is in it does not count either
                break
            if stat.S_IFMT(mode) == (stat.S_IFDIR if size < len(names) or os.path.isdir(source) else stat.S_IFREG):
                continue
            parents: dict[str, os.stat_result] = {}
            for parent in ("/".join(names[:depth]) for depth in range(1, size)):
                above = os.path.join(upper, parent)
                original = next(top for top in (*tops, root) if is_real(top, parent))
                parents[above] = os.lstat(os.path.join(original, parent))
                os.makedirs(above, exist_ok=True)
                os.chmod(above, 0o700)
            os.mknod(os.path.join(upper, place), stat.S_IFCHR, os.makedev(0, 0))
            restore_folders(parents)
            break


def restore_folders(folders: dict[str, os.stat_result]) -> None:
    """Give folders the owners and permissions of others, the last first: they may forbid to write in them."""
    for folder, status in reversed(folders.items()):
        with contextlib.suppress(PermissionError):  # an ordinary user owns everything anyway
            os.chown(folder, status.st_uid, status.st_gid)
        os.chmod(folder, stat.S_IMODE(status.st_mode))


def containers_folder() -> Path:
    """The folder for the files of running sandboxes.

    Raises:
        SandboxUnavailableError: No folder of this machine can lie above an image.
    """
    return _containers_folder(os.environ.get(FOLDER_VARIABLE))


@functools.lru_cache(maxsize=4)
def _containers_folder(wanted: str | None) -> Path:
    own_name = f"strands-containers-{os.getuid()}"
    defaults = [cache_folder() / "containers", Path(tempfile.gettempdir(), own_name), Path("/dev/shm", own_name)]
    candidates = [Path(wanted)] if wanted else defaults
    for folder in candidates:
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError:
            continue
        if _file_system(folder) not in ("overlay", "nfs", "nfs4", "9p", "virtiofs"):
            if folder != candidates[0]:
                logger.warning(
                    "folder=<%s> | sandboxes write here: %s cannot lie above an image", folder, candidates[0]
                )
            return folder
    raise SandboxUnavailableError(
        f"a sandbox on an image needs a folder on a local file system (ext4, xfs, btrfs, tmpfs) to write to, and none "
        f"of {[str(folder) for folder in candidates]} is on one: name one in {FOLDER_VARIABLE}"
    )


def _file_system(folder: Path) -> str:
    """The type of the file system a folder is on."""
    device = os.stat(folder).st_dev
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if line.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                return line.partition(" - ")[2].split()[0]
    return ""
