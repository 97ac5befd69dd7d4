"""Shared by the tests with images: pictures, and the embedded engine that sees them."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from strands_sglang.backends.engine import EmbeddedEngine, TinyModel, make_tiny_vision_model
from strands_sglang.trajectory import Trajectory
from tests.servers.engine_server import generate


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


class EngineRecorder:
    """An engine behind a client that keeps what was asked and answered; its first replies are those of a script."""

    def __init__(self, engine: EmbeddedEngine, tiny: TinyModel) -> None:
        self._engine, self._tokenizer = engine, tiny.tokenizer
        self.image_expander = engine.image_expander
        self.calls: list[tuple[list[int], dict[str, Any], dict[str, Any]]] = []
        self.script: list[str] = []
        self.change: Any = lambda answer: answer

    async def generate(self, input_ids: list[int], **fields: Any) -> dict[str, Any]:
        answer = self.change(await generate(self._engine, input_ids, **fields))
        if self.script:
            ids = self._tokenizer.encode(self.script.pop(0) + "<|im_end|>")
            meta = {**answer["meta_info"], "completion_tokens": len(ids)}
            meta["output_token_logprobs"] = [[-1.0, token, None] for token in ids]
            meta["finish_reason"] = {"type": "stop", "matched": ids[-1]}
            answer = {**answer, "output_ids": ids, "meta_info": meta}
        self.calls.append((list(input_ids), fields, answer))
        return answer

    def assert_extended(self) -> None:
        """Every call begins with the ids of the call before it and what was sampled for that."""
        for (held, _, answer), (sent, _, _) in zip(self.calls, self.calls[1:], strict=False):
            path = held + list(answer["output_ids"])
            assert sent[: len(path)] == path

    def entered(self, *images: bytes) -> list[str]:
        """Data URLs of the images as a server gets them."""
        return [self.image_expander.prepare(image).data for image in images]  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def tiny() -> TinyModel:
    return make_tiny_vision_model()


@pytest.fixture(scope="module")
def seeing_engine(tiny: TinyModel) -> Iterator[EmbeddedEngine]:
    engine = engine_of(tiny)
    yield engine
    asyncio.run(engine.close())


@pytest.fixture
def client(seeing_engine: EmbeddedEngine, tiny: TinyModel) -> EngineRecorder:
    return EngineRecorder(seeing_engine, tiny)


def assert_replays(tiny: TinyModel, trajectory: Trajectory) -> None:
    """The log-probabilities of sampled tokens are those of a forward pass over ids and pixels."""
    row = torch.tensor([trajectory.token_ids])
    pictures = [Image.open(io.BytesIO(medium.image)) for medium in trajectory.media]
    fed = tiny.image_processor(images=pictures, return_tensors="pt")
    assert [medium.grid for medium in trajectory.media] == [tuple(grid) for grid in fed["image_grid_thw"].tolist()]
    kinds = (row == tiny.model.config.image_token_id).int()
    assert int(kinds.sum()) == sum(medium.length for medium in trajectory.media)
    with torch.no_grad():
        logits = tiny.model(input_ids=row, mm_token_type_ids=kinds, **fed).logits[0]
    expected = torch.log_softmax(logits.float(), -1)
    for place, trained in enumerate(trajectory.loss_mask):
        if trained:
            value = float(expected[place - 1, trajectory.token_ids[place]])
            assert trajectory.logprobs[place] == pytest.approx(value, abs=1e-4)


# ---- pictures that take every way into a model: what a flat colour would hide, they show


def proof_pictures() -> dict[str, bytes]:
    """Encoded pictures by name: text, photo, alpha, palette, EXIF orientation, CMYK and 16 bits; always the same.

    Text and a photo need the resizing, the others a conversion. None has a size that a processor leaves alone.
    """
    photo = _photo((301, 187))
    text = Image.new("RGB", (420, 250), "white")
    draw = ImageDraw.Draw(text)
    for line in range(16):
        draw.text(
            (5 + line, 3 + 15 * line), f"{line}: the quick brown fox jumps over the lazy dog", fill=(line * 9, 0, 90)
        )
    alpha = _photo((150, 101)).convert("RGBA")
    alpha.putalpha(Image.linear_gradient("L").resize(alpha.size))
    palette = _photo((140, 90)).quantize(16)
    palette.info["transparency"] = bytes([0, 90, 255] * 6)[:16]
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    gray = _photo((133, 77)).convert("L").convert("I;16")
    deep = gray.point(lambda value: value * 257)
    return {
        "text": _encode(text, "PNG"),
        "photo": _encode(photo, "JPEG", quality=90),
        "alpha": _encode(alpha, "PNG"),
        "palette": _encode(palette, "PNG"),
        "exif": _encode(_photo((180, 95)), "JPEG", exif=exif),
        "cmyk": _encode(_photo((121, 160)).convert("CMYK"), "JPEG", quality=95),
        "16 bit": _encode(deep, "PNG"),
    }


def _photo(size: tuple[int, int]) -> Any:
    """Smooth colours with edges and grain."""
    seeded = random.Random(repr(size))
    coarse = Image.frombytes("RGB", (7, 5), seeded.randbytes(7 * 5 * 3)).resize(size, Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(coarse)
    for _ in range(9):
        x, y = seeded.randrange(size[0]), seeded.randrange(size[1])
        draw.ellipse((x, y, x + 40, y + 25), fill=(*seeded.randbytes(3),))
    grain = Image.frombytes("RGB", size, seeded.randbytes(size[0] * size[1] * 3)).point(lambda value: value // 12)
    return ImageChops.add(coarse.filter(ImageFilter.GaussianBlur(1)), grain)


def _encode(picture: Any, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()
