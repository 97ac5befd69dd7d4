"""Resizing of images before anything is made of them: digest, tokens, what is sent."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

from ..exceptions import MediaError


def open_image(image: bytes) -> Any:
    """One encoded image (PNG, JPEG, ...) as a PIL image in RGB.

    Raises:
        MediaError: The image cannot be read.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MediaError("images need pillow: pip install 'strands-rollout[vision]'") from error
    try:
        with Image.open(io.BytesIO(image)) as opened:
            return opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise MediaError(f"the image ({len(image)} bytes) cannot be processed: {error}") from error


def resized(url: str, max_pixels: int) -> str:
    """The data URL of an image scaled down to `max_pixels` pixels, as PNG; a smaller image is returned unchanged.

    Raises:
        MediaError: The image cannot be read.
    """
    picture = open_image(base64.b64decode(url.partition(",")[2]))
    width, height = picture.size
    if width * height <= max_pixels:
        return url
    scale = math.sqrt(max_pixels / (width * height))
    smaller = picture.resize((max(1, math.floor(width * scale)), max(1, math.floor(height * scale))))
    file = io.BytesIO()
    smaller.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
