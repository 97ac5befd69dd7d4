"""A request as it goes over the wire: the fields in the words of a server, the prompt as JSON."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ...exceptions import BackendRequestError
from ..contract import GenerateRequest, check_prompt


@dataclass(slots=True)
class GenerateCall:
    """A request in the words of a server.

    Attributes:
        fields: Its fields but for prompt and id.
        names: The server's names for the id and for the prompt.
        opened: When the connection that brought the answer was opened (`time.monotonic`), or 0 if it is not known.
    """

    request: GenerateRequest
    fields: Mapping[str, Any]
    names: tuple[str, bytes]
    opened: float = 0.0

    def body(self, rid: str, prompt: Sequence[bytes]) -> bytes:
        """The request of an attempt in JSON, with a written prompt; `BackendRequestError` if a field has none."""
        id_name, prompt_name = self.names
        try:
            head = orjson.dumps({id_name: rid, **self.fields}, option=orjson.OPT_SERIALIZE_NUMPY)
        except orjson.JSONEncodeError as error:
            raise BackendRequestError(f"the request cannot be written as JSON: {error}") from error
        return b"".join((head[:-1], b',"', prompt_name, b'":[', *prompt, b"]}"))


def write_prompt(request: GenerateRequest, vocab_size: int | None = None) -> tuple[bytes, ...]:
    """The ids of a prompt that `check_prompt` passes, in pieces of JSON; those of the episode's last call are kept.

    Writing 90,000 ids takes 0.5 ms, a tenth of a turn, and many times that if each is a Python object first. Parts of
    the last call are known by their identity: they are the arrays of turns, so no second copy of the ids is held. The
    pieces are joined once, in the body.
    """
    import numpy as np

    nothing: tuple[tuple[array[int], ...], tuple[bytes, ...], int] = (), (), -1
    before, pieces, highest = request.scratch.get("prompt") or nothing
    parts = request.parts
    if b"".join(parts) != request.prompt.tobytes():  # another prompt was put in its place
        parts = (request.prompt,)
    if parts[: len(before)] != before:  # equal arrays are as good
        before, pieces, highest = nothing
    new = array(request.prompt.typecode, b"".join(parts[len(before) :]))
    highest = check_prompt(new, vocab_size, highest=highest)
    if new:
        written = orjson.dumps(np.frombuffer(new, new.typecode), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        pieces += (written,) if not pieces else (b",", written)
        request.scratch["prompt"] = parts, pieces, highest
    return pieces
