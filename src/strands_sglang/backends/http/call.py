"""A request as it goes over the wire: the fields in the words of a server, the prompt as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ...exceptions import BackendRequestError
from ..contract import GenerateRequest


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

    def body(self, rid: str, prompt: bytes) -> bytes:
        """The request of an attempt in JSON, with the JSON of its prompt; `BackendRequestError` if a field has none."""
        id_name, prompt_name = self.names
        try:
            head = orjson.dumps({id_name: rid, **self.fields}, option=orjson.OPT_SERIALIZE_NUMPY)
        except orjson.JSONEncodeError as error:
            raise BackendRequestError(f"the request cannot be written as JSON: {error}") from error
        return b'%b,"%b":%b}' % (head[:-1], prompt_name, prompt)


def write_prompt(request: GenerateRequest) -> bytes:
    """The JSON of a request's prompt; that of the episode's last call grows by what is new.

    Writing 90,000 ids takes 0.4 ms, a tenth of a turn; comparing them with those of the last call takes 0.03 ms.
    """
    import numpy as np

    ids, (before, text) = request.prompt.tobytes(), request.scratch.get("prompt") or (b"", b"[]")
    if not ids.startswith(before):
        before, text = b"", b"[]"
    if new := request.prompt[len(before) // request.prompt.itemsize :]:
        written = orjson.dumps(np.frombuffer(new, dtype=np.int32), option=orjson.OPT_SERIALIZE_NUMPY)
        text = b"%b,%b" % (text[:-1], written[1:]) if before else written
        request.scratch["prompt"] = ids, text
    return text
