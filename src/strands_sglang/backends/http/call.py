"""A request as it goes over the wire: the fields in the words of a server, the prompt as JSON."""

from __future__ import annotations

from collections.abc import Mapping
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

    def body(self, rid: str, prompt: bytes) -> bytes:
        """The request of an attempt in JSON, with the JSON of its prompt; `BackendRequestError` if a field has none."""
        id_name, prompt_name = self.names
        try:
            head = orjson.dumps({id_name: rid, **self.fields}, option=orjson.OPT_SERIALIZE_NUMPY)
        except orjson.JSONEncodeError as error:
            raise BackendRequestError(f"the request cannot be written as JSON: {error}") from error
        return b'%b,"%b":%b}' % (head[:-1], prompt_name, prompt)


def write_prompt(request: GenerateRequest, vocab_size: int | None = None) -> bytes:
    """The JSON of a prompt that `check_prompt` passes; that of the episode's last call grows by what is new.

    Writing 90,000 ids takes 0.4 ms, a tenth of a turn; comparing them with those of the last call takes 0.03 ms.
    """
    nothing = b"", b"[]", -1
    ids, (before, text, highest) = request.prompt.tobytes(), request.scratch.get("prompt") or nothing
    if not ids.startswith(before):
        before, text, highest = nothing
    new = request.prompt[len(before) // request.prompt.itemsize :].tolist()
    highest = check_prompt(new, vocab_size, highest=highest)
    if new:
        written = orjson.dumps(new)
        text = b"%b,%b" % (text[:-1], written[1:]) if before else written
        request.scratch["prompt"] = ids, text, highest
    return text
