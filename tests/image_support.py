"""Shared by the tests with images: pictures, and the embedded engine that sees them."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from strands_sglang.backends.engine import EmbeddedEngine, TinyModel


def png(color: tuple[int, int, int], size: tuple[int, int] = (64, 48), *, level: int = 6) -> bytes:
    """A picture of one colour."""
    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, "PNG", compress_level=level)
    return file.getvalue()


def image(data: bytes) -> dict[str, Any]:
    """A content block of a Strands message."""
    return {"image": {"format": "png", "source": {"bytes": data}}}


def engine_of(tiny: TinyModel) -> EmbeddedEngine:
    """An engine over a tiny vision model."""
    processors: dict[str, Any] = {"tokenizer": tiny.tokenizer, "image_processor": tiny.image_processor}
    return EmbeddedEngine(tiny.model, **processors, threads=1, seed=0)
