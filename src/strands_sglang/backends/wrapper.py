# ruff: noqa: D102 - the methods are documented in `Backend`
"""An object as a backend, and a backend around a backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from .contract import Backend, BackendInfo, Capabilities, GenerateAnswer, GenerateClient, GenerateRequest

if TYPE_CHECKING:
    from ..trajectory.media import ImageExpander


def as_backend(client: Backend | GenerateClient) -> Backend:
    """A client as a backend: itself if it is one, otherwise an adapter of its `generate`; `TypeError` if it has none.

    A `generate` that a subclass or a test put in the place of `SGLangClient`'s takes precedence over `ask`.
    """
    if isinstance(client, Backend) and not client.has_own_generate:
        return client
    if not callable(getattr(client, "generate", None)):
        raise TypeError(f"got client={client!r}, expected a Backend, or something with `generate`")
    from .sglang.adapter import GenerateAdapter

    return GenerateAdapter(cast(GenerateClient, client))


class BackendWrapper(Backend):
    """A backend around another (anything `as_backend` takes): subclasses override `ask`, `inner` does the rest."""

    def __init__(self, inner: Backend | GenerateClient) -> None:
        self.inner: Backend = as_backend(inner)

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        return await self.inner.ask(request)

    async def abort(self, rid: str) -> bool:
        return await self.inner.abort(rid)

    async def info(self) -> BackendInfo:
        return await self.inner.info()

    async def close(self) -> None:
        await self.inner.close()

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    @property
    def closings(self) -> int:
        return self.inner.closings

    @property
    def image_expander(self) -> ImageExpander | None:
        return self.inner.image_expander

    def check_sampling_params(self, params: Mapping[str, Any], *, vocab_size: int | None = None) -> dict[str, Any]:
        return self.inner.check_sampling_params(params, vocab_size=vocab_size)

    def check_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return self.inner.check_fields(fields)
