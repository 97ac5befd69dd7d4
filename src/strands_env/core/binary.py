"""A compact binary form of a record: its JSON, compressed, and blobs that stay bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<q")
_NONE = -1


def pack(magic: bytes, record: bytes, blobs: Sequence[bytes | None]) -> bytes:
    """The record and its blobs as bytes that `unpack` reads."""
    parts: list[bytes | None] = [zlib.compress(record, 1), *blobs]
    packed = [magic, _COUNT.pack(len(parts))]
    for part in parts:
        packed += [_LENGTH.pack(_NONE if part is None else len(part)), part or b""]
    return b"".join(packed)


def unpack(magic: bytes, data: bytes) -> tuple[bytes, list[bytes | None]]:
    """The record and the blobs.

    Raises:
        ValueError: The data is not what `pack` wrote, or is not whole.
    """
    if not data.startswith(magic):
        raise ValueError(f"expected data that starts with {magic!r}, got {data[: len(magic)]!r}")
    parts: list[bytes | None] = []
    position = len(magic)
    try:
        (count,) = _COUNT.unpack_from(data, position)
        position += _COUNT.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(data, position)
            position += _LENGTH.size
            if length != _NONE and not 0 <= length <= len(data) - position:
                raise ValueError(f"expected {length} bytes at {position}, of {len(data)}")
            parts.append(None if length == _NONE else data[position : position + length])
            position += max(length, 0)
        record = zlib.decompress(parts[0] or b"")
    except (struct.error, zlib.error, IndexError) as error:
        raise ValueError(f"the data is damaged or cut off: {error}") from error
    return record, parts[1:]
