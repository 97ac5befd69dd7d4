"""The one place where an image is decoded: EXIF orientation, alpha, palettes, CMYK and 16 bits become 8-bit RGB.

Decoders, converters and resizers differ between machines and libraries, by more than a trainer can bear. What leaves
here has nothing left to convert. Images come from outside: what cannot be decoded, or would be huge, is a `MediaError`.
"""

from __future__ import annotations

import contextlib
import io
import threading
from enum import StrEnum
from typing import Any, NamedTuple

from ...exceptions import MediaError, install_command

MAX_PIXELS = 1 << 26
"""Larger images are refused before they are decoded: 67 million pixels are 200 MB."""
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")  # no format that runs other programs, such as EPS
_LARGE = 1 << 23  # pixels; larger images are decoded one at a time, so that they share the memory of one
_ONE_LARGE = threading.Lock()
_PLAIN_HEADER = b"\x08\x02\x00\x00\x00"  # of a PNG: 8 bits, RGB, not interlaced


class ImageEncoding(StrEnum):
    """The encoding in which images travel to the server, and are kept for the trainer."""

    PNG = "png"
    """Lossless: every decoder gives the pixels that were sent."""
    JPEG = "jpeg"
    """Far fewer bytes for photos, often more for screenshots of text. The model sees JPEG's artefacts, and a server
    that decodes on a GPU (SGLang does) sees slightly other pixels than the trainer."""


class OpenedImage(NamedTuple):
    """A decoded image.

    Attributes:
        picture: A PIL image in RGB.
        encoding: The encoding of the bytes, where decoding them was all there was to do; else None.
    """

    picture: Any
    encoding: ImageEncoding | None


def open_image(image: bytes) -> OpenedImage:
    """Decode an image (PNG, JPEG, GIF, WebP, BMP, TIFF; of an animation the first frame).

    Orientation is applied, transparent parts become white, and 16 bits become 8.

    Raises:
        MediaError: It cannot be decoded, or has more than `MAX_PIXELS` pixels.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MediaError(f"images need pillow: {install_command('vision')}") from error
    try:
        with Image.open(io.BytesIO(image), formats=_FORMATS) as opened:
            pixels = opened.width * opened.height
            if pixels > MAX_PIXELS:
                raise MediaError(f"it has {opened.width} x {opened.height} pixels, more than {MAX_PIXELS}")
            with _ONE_LARGE if pixels > _LARGE else contextlib.nullcontext():
                opened.load()
                picture = as_rgb(opened)
            encoding = None
            if picture is opened and opened.format == "PNG" and image[24:29] == _PLAIN_HEADER:
                encoding = ImageEncoding.PNG
            elif picture is opened and opened.format == "JPEG":
                encoding = ImageEncoding.JPEG
            return OpenedImage(picture, encoding)
    except Exception as error:  # decoders raise whatever a broken file leads them to
        # Pillow's words for it name an address in memory, and the model may be told: prompts must be the same again.
        problem = "it is of no known format" if isinstance(error, UnidentifiedImageError) else str(error)
        raise MediaError(f"the image ({len(image)} bytes) cannot be processed: {problem}") from error


def as_rgb(picture: Any) -> Any:
    """An image in RGB, upright, on white; the same object if it is so. `ValueError` if values have no known range."""
    from PIL import Image

    if picture.mode.startswith("I"):
        picture = _eight_bits(picture)
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    elif picture.mode == "F":
        raise ValueError("its values are floating-point numbers, whose range is not known")
    turn = _turn(picture)
    if picture.mode != "RGB":
        picture = picture.convert("RGB")
    return picture if turn is None else picture.transpose(turn)


def encode(picture: Any, encoding: ImageEncoding) -> bytes:
    """Encode a PIL image in RGB."""
    file = io.BytesIO()
    if encoding is ImageEncoding.JPEG:
        picture.save(file, "JPEG", quality=92, subsampling=0)
    else:
        # Without what the picture brought along (profiles, gamma); higher levels take much longer for little.
        picture.info = {}
        picture.save(file, "PNG", compress_level=1)
    return file.getvalue()


def _eight_bits(picture: Any) -> Any:
    """The high bytes of a 16-bit image; the value that a file declares to be transparent becomes white."""
    import numpy as np
    from PIL import Image

    values = np.array(picture)
    if values.size and (values.min() < 0 or values.max() > 0xFFFF):
        raise ValueError("its values have more than 16 bits, and their range is not known")
    if isinstance(transparent := picture.info.get("transparency"), int):
        values[values == transparent] = 0xFFFF
    return Image.fromarray((values >> 8).astype(np.uint8))


def _turn(picture: Any) -> Any:
    """The transposition that puts an image upright; None for one that is, or says nothing intelligible."""
    from PIL.Image import Transpose

    try:
        orientation = picture.getexif().get(0x0112)
    except Exception:
        return None
    turns = (
        Transpose.FLIP_LEFT_RIGHT, Transpose.ROTATE_180, Transpose.FLIP_TOP_BOTTOM, Transpose.TRANSPOSE,
        Transpose.ROTATE_270, Transpose.TRANSVERSE, Transpose.ROTATE_90,
    )  # fmt: skip
    return turns[orientation - 2] if orientation in range(2, 9) else None
