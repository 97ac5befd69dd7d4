# ruff: noqa: D102 - the methods are documented in `Backend`
"""A client that has only `generate(input_ids, **fields)` as a backend."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..contract import Backend, BackendInfo, Capabilities, GenerateAnswer, GenerateClient, GenerateRequest
from .answer import read_answer
from .request import CAPABILITIES, SGLangSamplingParams, check_request_fields, wire_fields

if TYPE_CHECKING:
    from ...trajectory.media import ImageExpander


@dataclass(frozen=True)
class GenerateAdapter(Backend):
    """The generate contract of users' fakes, recordings and the embedded engine: lists and keywords, SGLang's names.

    `max_model_len` and `vocab_size` of the client are numbers or coroutine functions, where it has them;
    `extra_sampling_keys`, `image_expander`, `capabilities`, `closings`, `abort` and `close` are used where they are
    there.
    """

    client: GenerateClient
    sampling_model = SGLangSamplingParams

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        fields = wire_fields(request)
        routing = {"rid": request.rid, "routing_key": request.routing_key}
        fields |= {name: value for name, value in routing.items() if value is not None}
        if request.before_attempt is not None:
            request.before_attempt()
        payload = await self.client.generate(request.prompt.tolist(), **fields)
        return read_answer(
            payload,
            vocab_size=request.vocab_size,
            max_new_tokens=request.max_new_tokens,
            prompt=None if request.images else request.prompt,
        )

    async def abort(self, rid: str) -> bool:
        return bool(await _call(self.client, "abort", rid))

    async def info(self) -> BackendInfo:
        context, vocabulary = [await _call(self.client, name) for name in ("max_model_len", "vocab_size")]
        return BackendInfo(
            context_length=context if isinstance(context, int) else None,
            vocab_size=vocabulary if isinstance(vocabulary, int) else None,
        )

    async def close(self) -> None:
        await _call(self.client, "close")

    @property
    def capabilities(self) -> Capabilities:
        own = getattr(self.client, "capabilities", None)
        return own if isinstance(own, Capabilities) else CAPABILITIES

    @property
    def closings(self) -> int:
        count = getattr(self.client, "closings", 0)
        return count if isinstance(count, int) else 0

    @property
    def image_expander(self) -> ImageExpander | None:
        return getattr(self.client, "image_expander", None)

    @property
    def extra_sampling_keys(self) -> Collection[str]:
        return getattr(self.client, "extra_sampling_keys", ())

    def check_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return check_request_fields(fields)


async def _call(client: Any, name: str, *args: Any) -> Any:
    """An attribute of the client, called and awaited where it can be; None where there is none."""
    value = getattr(client, name, None)
    if callable(value):
        value = value(*args)
    return await value if inspect.isawaitable(value) else value
