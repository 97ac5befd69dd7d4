"""A client that answers from a script instead of a server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..backends.contract import check_prompt, token_array
from ..backends.sglang.request import checked_fields
from .replies import Reply, build_answer

ScriptEntry = Reply | str | Sequence[int] | Mapping[str, Any] | BaseException | Callable[..., Any]
"""A reply; its text; its ids; a whole answer; an exception to raise; or a function of `(input_ids, fields)`
that returns one of these."""


class ScriptExhaustedError(RuntimeError):
    """A `ScriptedClient` was asked for more replies than its script has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedRequest:
    """One call of `generate`; `fields` has everything but the prompt, `sampling_params` and `routing_key` among it."""

    input_ids: list[int]
    fields: dict[str, Any]
    rid: str


class ScriptedClient:
    """Speaks the generate contract from a script. Requests are checked as the HTTP client checks them.

    Args:
        script: Replies in the order of the calls; see `ScriptEntry`. A function instead of a list answers every call.
        tokenizer: Encodes text replies (Hugging Face style).
        vocab_size: Prompt ids of this or above are refused.
        max_model_len: Context length that `max_model_len()` gives.

    Attributes:
        requests: Every call, in order.
        aborted: Request ids that were aborted, in order.
        cancelled: Request ids whose task was cancelled while they were in flight.
        max_in_flight: Most calls that were in flight at a time.
    """

    def __init__(
        self,
        script: Iterable[ScriptEntry] | Callable[..., Any],
        *,
        tokenizer: Any = None,
        vocab_size: int | None = None,
        max_model_len: int | None = None,
    ) -> None:
        self._function = script if callable(script) else None
        self._script = [] if callable(script) else list(script)
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._in_flight: dict[str, asyncio.Event] = {}
        self.requests: list[ScriptedRequest] = []
        self.aborted: list[str] = []
        self.cancelled: list[str] = []
        self.max_in_flight = 0

    async def generate(self, input_ids: Sequence[int], **fields: Any) -> dict[str, Any]:
        """The next reply of the script as a server's answer, or its exception."""
        ids = token_array(input_ids)
        check_prompt(ids, self._vocab_size)
        checked, prompt = checked_fields(fields, vocab_size=self._vocab_size), ids.tolist()
        rid = checked.get("rid") or uuid.uuid4().hex
        self.requests.append(ScriptedRequest(input_ids=prompt, fields=checked, rid=rid))
        if self._function is None and not self._script:
            raise ScriptExhaustedError(f"the script has no reply for call {len(self.requests)}")
        entry = self._function or self._script.pop(0)
        if callable(entry) and not isinstance(entry, BaseException):
            entry = entry(prompt, checked)
            if asyncio.iscoroutine(entry):
                entry = await entry
        if isinstance(entry, BaseException):
            raise entry
        if isinstance(entry, Mapping):
            return dict(entry)
        if isinstance(entry, Reply):
            reply = entry
        else:
            reply = Reply(text=entry) if isinstance(entry, str) else Reply(ids=list(entry))
        aborted = self._in_flight[rid] = asyncio.Event()
        self.max_in_flight = max(self.max_in_flight, len(self._in_flight))
        try:
            if reply.delay and not aborted.is_set():
                await asyncio.wait_for(aborted.wait(), reply.delay)
                reply = Reply(ids=[], text="", finish="abort", weight_version=reply.weight_version)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self.cancelled.append(rid)
            raise
        finally:
            del self._in_flight[rid]
        return build_answer(reply, prompt, checked, rid=rid, tokenizer=self._tokenizer)

    @property
    def remaining(self) -> int:
        """Replies of the script that were not asked for yet."""
        return len(self._script)

    async def abort(self, rid: str) -> bool:
        """End a delayed reply: it answers with an abort."""
        self.aborted.append(rid)
        if (event := self._in_flight.get(rid)) is not None:
            event.set()
        return True

    async def max_model_len(self) -> int | None:
        """The context length it was given."""
        return self._max_model_len

    async def vocab_size(self) -> int | None:
        """The vocabulary size it was given."""
        return self._vocab_size

    async def health(self) -> bool:
        """Always True."""
        return True

    async def close(self) -> None:
        """Nothing to close."""

    async def __aenter__(self) -> ScriptedClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
