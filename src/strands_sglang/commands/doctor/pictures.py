"""Pictures that take every way into a model: what a flat colour would hide, they show.

Text and a photo need the resizing, the others a conversion. None has a size that a processor leaves alone.
"""

from __future__ import annotations

import io
import random
from typing import Any


def proof_pictures() -> dict[str, bytes]:
    """Encoded pictures by name: text, photo, alpha, palette, EXIF orientation, CMYK and 16 bits; always the same."""
    from PIL import Image, ImageDraw

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
    from PIL import Image, ImageChops, ImageDraw, ImageFilter

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
