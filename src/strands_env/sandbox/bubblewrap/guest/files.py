"""Files and folders of a sandbox: work of a request, done in a separate process.

The host sends an open file with the request, which is descriptor 0 here. `image.py` does folders.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from .protocol import CHUNK, write_all
from .system import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Never


def do_and_exit(work: Callable[[dict[str, Any]], None], request: dict[str, Any]) -> Never:
    """Do the work of a request and end this process; the exit code is the number of the error."""
    code = errno.EIO
    try:
        work(request)
        code = 0
    except OSError as error:
        code = error.errno or errno.EIO
    except MemoryError:
        code = errno.ENOMEM
    finally:
        os._exit(code)


def read_file(request: dict[str, Any]) -> None:
    """Write a file into the host's, with its permissions."""
    # A pipe or a device might never end.
    descriptor, bytes_left = os.open(request["path"], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), request["max_bytes"]
    status = os.fstat(descriptor)
    refused = 0 if stat.S_ISREG(status.st_mode) else errno.EINVAL
    if stat.S_ISDIR(status.st_mode):
        refused = errno.EISDIR
    elif status.st_size > bytes_left:  # before a gigabyte of nothing is copied
        refused = errno.EFBIG
    if refused:
        raise OSError(refused, os.strerror(refused))
    with contextlib.suppress(PermissionError):  # it is another user's
        os.fchmod(0, status.st_mode & 0o755 | 0o600)
    while part := os.read(descriptor, CHUNK):  # those of the kernel say that they are empty
        bytes_left -= len(part)
        if bytes_left < 0:
            raise OSError(errno.EFBIG, "too large")
        write_all(0, part)


def write_file(request: dict[str, Any]) -> None:
    """Make a file of the host's; one that is replaced keeps its owner and permissions, unless `mode` is given.

    With `mode` it takes the place of anything there.
    """
    path, mode = request["path"], request["mode"]
    target = -1
    if mode is None and os.path.isfile(path) and not os.path.islink(path):
        with contextlib.suppress(PermissionError):
            target = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_NOFOLLOW)
    if target < 0:
        if os.path.isdir(path) and not os.path.islink(path):
            if mode is None:
                raise IsADirectoryError(errno.EISDIR, "a folder")
            remove_tree(path)
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        target = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL, 0o666)
    while part := os.read(0, CHUNK):
        if part == bytes(len(part)):  # a hole, of a file that may be longer than there is room
            os.lseek(target, len(part), os.SEEK_CUR)
        else:
            write_all(target, part)
    os.ftruncate(target, os.lseek(target, 0, os.SEEK_CUR))
    if mode is not None:
        os.fchmod(target, mode)


def reset_folders(request: dict[str, Any]) -> None:
    """Make folders anew, empty and real: no part of their paths is a link or a file any more."""
    for path in request["paths"]:
        place = "/"
        for name in path.strip("/").split("/"):
            place = os.path.join(place, name)
            if os.path.lexists(place) and not stat.S_ISDIR(os.lstat(place).st_mode):
                os.unlink(place)
            if not os.path.lexists(place):
                os.mkdir(place, 0o755)
        for name in os.listdir(path):
            remove_tree(os.path.join(path, name))
        os.chmod(path, request["mode"])
