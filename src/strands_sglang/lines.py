"""Files that survive a kill: replaced whole (`replacing`), or of checked lines.

Checked lines are JSON objects, one a line, each with the CRC-32 of everything before as its last field.

    {"id":..., "crc":"1a2b3c4d"}

Such a file is only ever appended to, so a kill leaves nothing worse than a torn last line, which counts as not written.
"""

from __future__ import annotations

import base64
import errno
import io
import os
import re
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pydantic_core

_CHECKSUM = re.compile(rb',"crc":"([0-9a-f]{8})"\}\n\Z')
_BLOCK = 1 << 17  # small enough that its memory is used again, block after block


class DamagedLineError(ValueError):
    """A line is damaged in a way that an interrupted write cannot leave behind, or is none of ours."""


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path beside the target to write to; the file takes the target's name if the block raises nothing.

    So there is always either the old file or the new one, whole: a rename within a file system is atomic.
    """
    os.makedirs(target.parent, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        yield partial
        os.replace(partial, target)
    finally:
        with suppress(OSError):  # where it was renamed
            os.unlink(partial)


def finish_line(body: bytes) -> bytes:
    """The line of a JSON object whose closing brace is left out."""
    return b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def is_whole(line: bytes, beginning: bytes) -> bool:
    """Compare the checksum of a line with its newline. False for what an interrupted write or a power cut left.

    Args:
        beginning: The bytes that every line of the file begins with.

    Raises:
        DamagedLineError: It is damaged, or we never wrote it: that is somebody's data, and must not be cut off.
    """
    if line.endswith(b',"crc":"%08x"}\n' % zlib.crc32(memoryview(line)[:-19])):  # the length of that
        return True
    # Blocks that never reached the device are zeros: JSON has none, and one alone may be a flipped bit.
    if b"\0\0" in line or not line.strip(b"\0 \t\r\n"):
        return False
    # The beginning of a line of ours: whole JSON that begins alike is not, nor one with another byte for its newline.
    is_ours = line.startswith(beginning) or beginning.startswith(line)
    if is_ours and not line.endswith(b"\n") and not _CHECKSUM.search(line[:-1] + b"\n"):
        try:
            pydantic_core.from_json(line)
        except ValueError:
            return False
        if _CHECKSUM.search(line + b"\n"):
            return False
    raise DamagedLineError("it is damaged, or of another kind")


def read_lines(fd: int) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of every line of an open file; the last one may have no newline."""
    offset, rest = 0, b""
    # By position, and not through a file object: a log reads and writes the same descriptor.
    while block := os.pread(fd, _BLOCK, offset + len(rest)):
        lines = io.BytesIO(rest + block).readlines()
        rest = b"" if lines[-1].endswith(b"\n") else lines.pop()
        for line in lines:
            yield offset, line
            offset += len(line)
    if rest:
        yield offset, rest


def append_lines(fd: int, lines: bytes, length: int, *, cut: bool = True) -> None:
    """Write lines behind the whole ones of a file, which end at `length`, over what an interrupted write left there.

    They are read back: the file holds these bytes, of which each line has a checksum.

    Args:
        cut: False where nothing is behind them: a call of the system gives other threads the interpreter.

    Raises:
        OSError: The device refused, or holds other bytes, and nothing of the lines is in the file.
    """
    try:
        if cut:
            os.ftruncate(fd, length)
        write_at(fd, lines, length)
        if not _holds(fd, lines, length):
            raise OSError(errno.EIO, "the file does not hold what was written to it")
    except OSError:
        os.ftruncate(fd, length)
        raise


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all bytes at an offset, however many calls it takes."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _holds(fd: int, data: bytes, offset: int) -> bool:
    """Compare a file with the bytes that were written at an offset."""
    while data:  # bytes, for a comparison of views looks at one item at a time
        found = os.pread(fd, len(data), offset)
        if not found or found != data[: len(found)]:
            return False
        data, offset = data[len(found) :], offset + len(found)
    return True


def lock(fd: int, *, waits: bool = False) -> None:
    """Take the writer's lock of an open file; it ends with the process, however that ends.

    Raises:
        BlockingIOError: Another process has it, and this one is not to wait.
    """
    import fcntl  # which Windows lacks

    # The kernel drops it with the process: a kill leaves no lock that somebody has to remove.
    fcntl.flock(fd, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))


def pack(data: Any) -> str | None:
    """Bytes, or an array, as compressed text."""
    return None if data is None else base64.b64encode(zlib.compress(data, 1)).decode()


def unpack(text: str) -> bytes:
    """The bytes that `pack` made a text of."""
    return zlib.decompress(base64.b64decode(text, validate=True))
