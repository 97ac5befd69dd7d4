# ruff: noqa: D102 - the methods are documented in `Backend`
"""A backend around a backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import as_backend
from .contract import Backend, BackendInfo, Capabilities, GenerateAnswer, GenerateRequest

if TYPE_CHECKING:
    from ..trajectory.media import ImageExpander


class BackendWrapper(Backend):
    """A backend around another (anything `as_backend` takes): subclasses override `ask`, `inner` does the rest."""

    def __init__(self, inner: Any) -> None:
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
