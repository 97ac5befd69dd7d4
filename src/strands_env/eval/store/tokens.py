"""The side file of tokens: checksummed, compressed frames that records point at by offset.

A set of tools is a frame too: one for all samples of a run that were given the same.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from strands_env.core import StepResult, TokenObservation, Trajectory
from strands_env.core.types import shared_text
from strands_env.eval.errors import StoreCorruptError
from strands_env.eval.store import files

_FRAME = struct.Struct("<4sII")
_MAGIC = b"STK1"
_LEVEL = 1
MAX_SETS_OF_TOOLS = 4096
"""Sets of tools whose places a writer remembers: where every task has its own, the index must not grow with them."""


class FrameWriter:
    """Collects the frames of a batch of records; the caller appends `data` to the file before the records.

    `offset` is the length of the file before the batch; `tools` maps the hash of a set of tools to its place in the
    file, those of the batch included.
    """

    def __init__(self, offset: int, tools: Mapping[bytes, list[int]]) -> None:
        self.tools = dict(tools)
        self._start = offset
        self._parts: list[bytes] = []
        self._length = 0

    @property
    def data(self) -> bytes:
        """All frames."""
        return b"".join(self._parts)

    def add(self, payload: bytes) -> list[int]:
        """Add a frame; returns its `[offset, length]` in the file."""
        body = zlib.compress(payload, _LEVEL)
        frame = _FRAME.pack(_MAGIC, len(body), zlib.crc32(body)) + body
        place = [self._start + self._length, len(frame)]
        self._parts.append(frame)
        self._length += len(frame)
        return place

    def add_result(self, result: StepResult) -> dict[str, Any] | None:
        """Add all token data of a result; returns its places for the record, None without token data."""
        places: list[tuple[TokenObservation, list[int]]] = []

        def place(tokens: TokenObservation) -> list[int]:
            for known, where in places:
                if known == tokens:
                    return where
            places.append((tokens, self.add(tokens.to_bytes())))
            return places[-1][1]

        trajectories = [
            {
                **item.facts(),
                "tokens": place(item.tokens),
                "routed_experts": None if item.routed_experts is None else self.add(item.routed_experts),
            }
            for item in result.trajectories
        ]
        observed = result.observation.tokens
        if observed is None and not trajectories:
            return None
        record = {"observation": None if observed is None else place(observed), "trajectories": trajectories}
        if tools := result.observation.tools:
            record["tools"] = self._place_of_tools(tools)
        return record

    def _place_of_tools(self, tools: str) -> list[int]:
        data = tools.encode()
        key = sha256(data).digest()
        if key not in self.tools:
            if len(self.tools) >= MAX_SETS_OF_TOOLS:
                self.tools.clear()
            self.tools[key] = self.add(data)
        return self.tools[key]


def may_be_ours(start: bytes) -> bool:
    """True for the beginning of a side file, or of the remains of one."""
    return start.startswith(_MAGIC) or _MAGIC.startswith(start) or not start.strip(b"\0")


def places_of(tokens: dict[str, Any] | None) -> list[tuple[int, int]]:
    """Every `[offset, length]` a record points at, each once."""
    if not tokens:
        return []
    places = [tokens["observation"], place_of_tools(tokens)]
    for item in tokens["trajectories"]:
        places += [item["tokens"], item["routed_experts"]]
    return list(dict.fromkeys((place[0], place[1]) for place in places if place))


def place_of_tools(tokens: dict[str, Any] | None) -> tuple[int, int] | None:
    """The `[offset, length]` of the set of tools of a record."""
    place = (tokens or {}).get("tools")
    return (place[0], place[1]) if place else None


def end_of(tokens: dict[str, Any] | None) -> int:
    """The end of the last frame a record points at; 0 for none."""
    return max((place[0] + place[1] for place in places_of(tokens)), default=0)


class FrameReader:
    """Reads frames from the side file, opened at the first one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def read(self, place: Sequence[int]) -> bytes:
        """The payload of the frame at `[offset, length]`; `StoreCorruptError` where there is none, or it is damaged."""
        if self._fd is None:
            try:
                self._fd = files.open_to_read(self._path)
            except FileNotFoundError:
                raise StoreCorruptError(f"records point at tokens in {str(self._path)!r}, which is missing") from None
        offset, length = place
        frame = files.read_at(self._fd, offset, length)
        where = f"bytes {offset} to {offset + length} of {str(self._path)!r}"
        if len(frame) != length or length < _FRAME.size:
            raise StoreCorruptError(f"{where} are missing: the file is shorter than its records say")
        magic, size, checksum = _FRAME.unpack_from(frame)
        body = frame[_FRAME.size :]
        if magic != _MAGIC or size != len(body) or zlib.crc32(body) != checksum:
            raise StoreCorruptError(f"{where} are damaged: the checksum does not match")
        return zlib.decompress(body)

    def fill(self, result: StepResult, tokens: dict[str, Any]) -> None:
        """Put the token data back into a result; `StoreCorruptError` where it is missing, or damaged."""
        try:
            self._fill(result, tokens)
        except (LookupError, ValueError, TypeError, OverflowError, OSError) as error:
            raise StoreCorruptError(f"the tokens of a record cannot be read: {error!r}") from error

    def _fill(self, result: StepResult, tokens: dict[str, Any]) -> None:
        places: dict[tuple[int, int], TokenObservation] = {}

        def observation(place: Sequence[int]) -> TokenObservation:
            key = (place[0], place[1])
            if key not in places:
                places[key] = TokenObservation.from_bytes(self.read(place))
            return places[key]

        if tokens["observation"]:
            result.observation.tokens = observation(tokens["observation"])
        if tokens.get("tools"):
            result.observation.tools = shared_text(self.read(tokens["tools"]).decode())
        result.trajectories = [
            Trajectory.from_dict(
                {
                    **item,
                    "tokens": observation(item["tokens"]),
                    "routed_experts": None if item["routed_experts"] is None else self.read(item["routed_experts"]),
                }
            )
            for item in tokens["trajectories"]
        ]

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            files.close(self._fd)
            self._fd = None
