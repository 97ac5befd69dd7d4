"""Folders of running sandboxes on this machine: where they lie, how much is in them, and copies of them.

A sandbox writes into a folder of its own, `upper`, stacked above the image.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import stat
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from strands_sglang.cache import cache_folder

from ..bubblewrap.guest.system import descendants, each_folder, other_processes
from ..bubblewrap.process import discard
from ..contract import SandboxError, SandboxUnavailableError
from ..folders import make_owned_folder

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "STRANDS_ROLLOUT_CONTAINERS"
"""Environment variable with the folder for what running sandboxes write."""


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
        found = json.loads(file.read_text(encoding="utf-8"))
        snapshot = cls(path=found["path"], image=found["image"], layers=tuple(found["layers"]))
        for layer in snapshot.layers:
            if not Path(layer).is_dir():
                raise FileNotFoundError(f"the snapshot {str(path)!r} stands on the folder {layer!r}, which is gone")
        return snapshot


def make_folder() -> str:
    """A folder for a new sandbox, with empty `upper` and `work`; `remove_owned_folder` removes it."""
    folder = make_owned_folder(containers_folder(), "")
    for name in ("upper", "work"):
        os.mkdir(f"{folder}/{name}")
        os.chmod(f"{folder}/{name}", 0o755)
    return folder


def copy_upper(source: str, target: str) -> None:
    """Copy what a sandbox has written, deletions included.

    Raises:
        SandboxError: There is no room, or a file cannot be read.
    """
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)  # its set-uid files are for nobody else
    os.mkdir(target)
    done = subprocess.run(
        ["cp", "-a", "--reflink=auto", f"{source}/.", target], capture_output=True, text=True, errors="replace"
    )
    if done.returncode != 0:
        discard(target)
        raise SandboxError(f"the snapshot could not be written: {done.stderr.strip()[-500:]}")


def free_bytes(folder: str) -> int:
    """Room on the file system of a folder."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def written_bytes(folder: str, process: int) -> int:
    """Room that a sandbox takes on the disk: files in its folder, and those without a name that it holds open.

    Args:
        process: Its first process, as this machine numbers it.

    Raises:
        OSError: A folder was moved while it was walked.
    """
    size = 0
    for step in each_folder(folder):
        for entry in step.entries:
            with contextlib.suppress(OSError):  # it ended meanwhile
                size += entry.stat(follow_symlinks=False).st_blocks * 512
    unnamed: dict[tuple[int, int], int] = {}
    for pid in descendants(other_processes(True), process):
        # Mapped files can be looked at by root alone, and have no other trace once they are closed.
        for place in (f"/proc/{pid}/fd", f"/proc/{pid}/map_files"):
            with contextlib.suppress(OSError):
                devices = {os.stat(folder).st_dev, os.stat(f"/proc/{pid}/root").st_dev}  # not files in memory
                for name in os.listdir(place):
                    with contextlib.suppress(OSError):
                        found = os.stat(f"{place}/{name}")
                        if found.st_nlink == 0 and found.st_dev in devices and stat.S_ISREG(found.st_mode):
                            unnamed[found.st_dev, found.st_ino] = found.st_blocks * 512
    return size + sum(unnamed.values())


def containers_folder() -> Path:
    """The folder for what running sandboxes write.

    Raises:
        SandboxUnavailableError: No folder of this machine can lie above an image.
    """
    return _containers_folder(os.environ.get(FOLDER_VARIABLE))


@functools.lru_cache(maxsize=4)
def _containers_folder(given: str | None) -> Path:
    default = cache_folder() / "containers"
    tried = [Path(given)] if given else [default, Path(tempfile.gettempdir(), f"strands-containers-{os.getuid()}")]
    if not given:
        tried.append(Path("/dev/shm", f"strands-containers-{os.getuid()}"))
    for folder in tried:
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError:
            continue
        if _file_system(folder) not in ("overlay", "nfs", "nfs4", "9p", "virtiofs"):
            if folder != tried[0]:
                logger.warning("folder=<%s> | sandboxes write here: %s cannot lie above an image", folder, tried[0])
            return folder
    raise SandboxUnavailableError(
        f"a sandbox on an image needs a folder on a local file system (ext4, xfs, btrfs, tmpfs) to write to, and none "
        f"of {[str(folder) for folder in tried]} is on one: name one in {FOLDER_VARIABLE}"
    )


def _file_system(folder: Path) -> str:
    """The type of the file system a folder is on."""
    found, longest = "", -1
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return found
    real = str(folder.resolve())
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = left.split()[4]
        if (real == mount or real.startswith(mount.rstrip("/") + "/")) and len(mount) >= longest:
            found, longest = right.split()[0], len(mount)
    return found
