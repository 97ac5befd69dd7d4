"""A separate file system for the files of a sandbox: the kernel keeps its size against any code.

Root gets one in a file: ext4 behind a loop device. Files without a name, descriptors under way in a socket, deep
folders and processes between two calls all count there, and nobody has to look. An ordinary user may not mount one; for
it the supervisor looks (`bubblewrap/guest/disk.py`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import logging
import os
import stat
import struct
import subprocess
import tempfile

from .bubblewrap.guest.system import LIBC, check

logger = logging.getLogger(__name__)

FILES = "files"
"""Folder of a sandbox's folder: `upper` and `work`, and the mount point where it has a separate file system."""
RESERVE, _RESERVED_FILES, _RESERVED_BYTES = "reserve", 128, 16 << 20
"""Room for the grading of work on a disk that code has filled."""
_BYTES_PER_INODE, _INODE_BYTES = 4096, 256  # as many files as blocks: small ones must not end before the room does
_GET_FREE, _CONFIGURE, _SHUTDOWN, _AUTOCLEAR = 0x4C82, 0x4C0A, 0x8004587D, 4  # linux/loop.h, ext4.h
_LOOP_MAJOR = 7
_NOSUID, _NODEV, _NOATIME, _MNT_DETACH = 2, 4, 1024, 2
_OPTIONS = b"noinit_itable,nobarrier,nodiscard"  # it is thrown away: no table to zero, no order of writes to keep


def make_disk(folder: str, size: int | None) -> bool:
    """Make `files` in a sandbox's folder; True if it is a file system that has room for `size` bytes and no more."""
    place = f"{folder}/{FILES}"
    os.mkdir(place, 0o700)
    if size is not None and os.geteuid() == 0:
        try:
            _mount_new(folder, place, size)
            return True
        except (OSError, subprocess.SubprocessError) as error:
            logger.debug("error=<%s> | no file system of its own for a sandbox", error)
            with contextlib.suppress(OSError):
                unmount_disk(folder)
                os.unlink(f"{folder}/image")
    for name in ("upper", "work"):
        os.mkdir(f"{place}/{name}")
        os.chmod(f"{place}/{name}", 0o755)
    return False


def unmount_disk(folder: str) -> None:
    """Throw away a sandbox's own file system, if it has one. No process may use it."""
    place = f"{folder}/{FILES}"
    if not os.path.ismount(place):
        return
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", 2))  # or gigabytes in memory would be written out first
    finally:
        os.close(descriptor)
    check(LIBC.umount2(place.encode(), _MNT_DETACH), "cannot be unmounted", place)


@functools.lru_cache(maxsize=8)
def _format_disk(size: int) -> tuple[tuple[int, bytes], ...]:
    """The parts of an empty file system that are not zero, by their offsets: making one takes mke2fs 30 ms."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("upper", "work"):
            os.makedirs(f"{folder}/files/{name}")
            os.chmod(f"{folder}/files/{name}", 0o755)
        os.mkdir(f"{folder}/files/{RESERVE}", 0o700)
        for number in range(_RESERVED_FILES):
            open(f"{folder}/files/{RESERVE}/{number}", "x").close()
        command = ["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal,^resize_inode", "-m", "0"]
        command += ["-i", str(_BYTES_PER_INODE), "-I", str(_INODE_BYTES), "-E", "lazy_itable_init=1,nodiscard"]
        command += ["-d", f"{folder}/files", f"{folder}/image", f"{size // 1024}k"]
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        subprocess.run(command, check=True, capture_output=True, timeout=60, env={"PATH": path})
        parts: list[tuple[int, bytes]] = []
        start = 0
        with open(f"{folder}/image", "rb") as file:
            while True:
                try:
                    start = os.lseek(file.fileno(), start, os.SEEK_DATA)
                except OSError as error:
                    if error.errno != errno.ENXIO:  # the rest is zero
                        raise
                    return tuple(parts)
                end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
                parts.append((start, os.pread(file.fileno(), end - start, start)))
                start = end


def _mount_new(folder: str, place: str, size: int) -> None:
    size += size * _INODE_BYTES // _BYTES_PER_INODE + _RESERVED_BYTES + (4 << 20)  # and its own tables
    image = os.open(f"{folder}/image", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    device = -1
    try:
        os.truncate(image, size)
        for offset, data in _format_disk(size):
            os.pwrite(image, data, offset)
        device = _attach(f"{folder}/loop", image)
        flags = _NOSUID | _NODEV | _NOATIME
        mounted = LIBC.mount(f"{folder}/loop".encode(), place.encode(), b"ext4", flags, _OPTIONS)
        check(mounted, "cannot be mounted", place)
    finally:
        for descriptor in (image, device):  # the mount holds the device, and the device the file
            if descriptor >= 0:
                os.close(descriptor)
    with open(f"{place}/{RESERVE}/0", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, _RESERVED_BYTES)


def _attach(node: str, image: int) -> int:
    """A free loop device on the open image, and a node for it: `/dev` of a container need not show new ones."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        while True:
            number = fcntl.ioctl(control, _GET_FREE)
            os.mknod(node, stat.S_IFBLK | 0o600, os.makedev(_LOOP_MAJOR, number))
            device = os.open(node, os.O_RDWR | os.O_CLOEXEC)
            info = bytearray(232)  # of struct loop_info64, all but the flags
            struct.pack_into("I", info, 52, _AUTOCLEAR)
            try:
                fcntl.ioctl(device, _CONFIGURE, struct.pack("II", image, 0) + bytes(info) + bytes(64))
                return device
            except OSError as error:
                os.close(device)
                os.unlink(node)
                if error.errno != errno.EBUSY:  # another process was faster
                    raise
    finally:
        os.close(control)
