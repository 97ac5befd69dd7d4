"""Expansion of images by the image processor of a Hugging Face model.

The expansion of the Qwen-VL families was compared with that of genuine servers, so the first request of a path proves
it; of any other family, every request with images does.

Here is the one place where an image is decoded: EXIF orientation, alpha, palettes, CMYK and 16 bits become 8-bit RGB.
Decoders, converters and resizers differ between machines and libraries, by more than a trainer can bear. What leaves
here has nothing left to convert. Images come from outside: one that is broken or huge is a `MediaError`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import math
import os
import threading
from array import array
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from ..cache import Recent
from ..exceptions import MediaError, install_command
from .media import ImageEncoding, ImageExpander, PreparedImage

MAX_PIXELS = 1 << 26
"""Larger images are refused before they are decoded: 67 million pixels are 200 MB."""
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")  # no format that runs other programs, such as EPS
_LARGE = 1 << 23  # pixels; larger images are decoded one at a time, so that they share the memory of one
_ONE_LARGE = threading.Lock()
_PLAIN_HEADER = b"\x08\x02\x00\x00\x00"  # of a PNG: 8 bits, RGB, not interlaced

VERIFIED_FAMILIES = frozenset({"qwen2_5_vl", "qwen3_vl"})
"""Model types verified on genuine servers: placeholders, counts and grids."""

_FAMILY_OF = {"Qwen2_5_VLProcessor": "qwen2_5_vl", "Qwen3VLProcessor": "qwen3_vl"}
_REMEMBERED_BYTES = 1 << 27  # of entered images, for other conversations with the same ones
_TRIES = 4  # sizes to ask a processor about before giving up
_MOST_ELONGATED = 200  # as the Qwen family has it


class ModelProcessor(Protocol):
    """The `AutoProcessor` of a Hugging Face model that sees."""

    image_processor: Any
    image_token_id: int


Processor: TypeAlias = str | os.PathLike[str] | ImageExpander | ModelProcessor
"""The sources from which `image_expander` makes an expander."""


def image_expander(processor: Processor) -> ImageExpander:
    """The expander of a model's images.

    Args:
        processor: The folder or hub id of the model, its `AutoProcessor`, or your own `ImageExpander`.

    Raises:
        MediaError: Nothing that processes images, or a family whose images are not merged patches.
    """
    if isinstance(processor, str | os.PathLike):
        return _load_expander(os.fspath(processor))
    if hasattr(processor, "prepare") and hasattr(processor, "placeholder_id"):
        return cast(ImageExpander, processor)
    images, placeholder = getattr(processor, "image_processor", None), getattr(processor, "image_token_id", None)
    name = type(processor).__name__
    if images is None or not isinstance(placeholder, int):
        raise MediaError(f"processor={name}: expected a model's folder or AutoProcessor.from_pretrained(...) of it")
    return ProcessorExpander(
        images, family=_FAMILY_OF.get(name, name), placeholder_id=placeholder, other_media_ids=_other_ids(processor)
    )


def _other_ids(source: Any) -> list[int]:
    ids = (getattr(source, name, None) for name in ("video_token_id", "audio_token_id"))
    return [token for token in ids if isinstance(token, int)]


@functools.lru_cache(maxsize=8)
def _load_expander(model: str) -> ProcessorExpander:
    """The process's expander for all conversations with a model; they share its expansions."""
    return ProcessorExpander.from_model(model)


class ProcessorExpander:
    """Counts and grids from a Hugging Face image processor; the same image is processed once.

    Args:
        family: The model's type, `config.model_type`.

    Raises:
        MediaError: A family whose images are not merged patches.
    """

    def __init__(self, image_processor: Any, *, family: str, placeholder_id: int, other_media_ids: list[int]) -> None:
        self.image_processor = image_processor
        self.family = family
        self.placeholder_id = placeholder_id
        self.media_ids = frozenset({placeholder_id, *other_media_ids})
        self.fingerprint = _fingerprint(family, image_processor)
        self.is_verified = family in VERIFIED_FAMILIES
        settings = image_processor.to_dict()
        if not {"patch_size", "merge_size"} <= settings.keys():
            raise MediaError(f"images of the family {family!r} are not made of patches that are merged: not supported")
        self._patch = int(settings["patch_size"])
        self._unit = self._patch * int(settings["merge_size"])
        size = settings.get("size") or {}
        self._fewest, self._most = size.get("shortest_edge") or 0, size.get("longest_edge") or MAX_PIXELS
        # By size, not by image: screenshots of an episode have one size, and asking the processor takes milliseconds.
        self._final = functools.lru_cache(maxsize=4096)(self._final_size)
        self._known: Recent[PreparedImage] = Recent(_REMEMBERED_BYTES)
        self._lock = threading.Lock()
        self._at_work: dict[Any, threading.Lock] = {}

    @classmethod
    def from_model(cls, model: str | os.PathLike[str]) -> ProcessorExpander:
        """The expander of a model by its folder or hub id; needs no torchvision.

        Raises:
            MediaError: The model takes no images, cannot be read, or has images that are not merged patches.
        """
        try:
            from transformers import AutoConfig, AutoImageProcessor
        except ImportError as error:
            raise MediaError(f"images need transformers and pillow: {install_command('vision')}") from error
        try:
            config = AutoConfig.from_pretrained(model)
            images = AutoImageProcessor.from_pretrained(model)
        except (OSError, ValueError, ImportError) as error:
            raise MediaError(f"processor={str(model)!r} has no image processor that can be loaded: {error}") from error
        placeholder = getattr(config, "image_token_id", None)
        if not isinstance(placeholder, int):
            raise MediaError(f"processor={str(model)!r}: its configuration names no image_token_id")
        return cls(images, family=config.model_type, placeholder_id=placeholder, other_media_ids=_other_ids(config))

    def prepare(
        self, image: bytes, *, max_pixels: int | None = None, encoding: ImageEncoding = ImageEncoding.PNG
    ) -> PreparedImage:
        """Decode an image, convert it to RGB, and resize it to the size that the processor gives it and leaves alone.

        Bytes that are so already stay as they are. The same image is worked on once.

        Raises:
            MediaError: The image cannot be read, or the processor does not take it.
        """
        key = hashlib.sha256(image).digest(), max_pixels, encoding
        with self._lock:
            at_work = self._at_work.setdefault(key, threading.Lock())
        with at_work:  # rollouts of a group begin with the same image at the same time
            try:
                entered = self._known.get(key)
                if entered is None:
                    entered = self._read(image, max_pixels, encoding)
                    self._known.put(key, entered, len(entered.data))
                return entered
            finally:
                with self._lock:
                    self._at_work.pop(key, None)

    def _read(self, image: bytes, max_pixels: int | None, encoding: ImageEncoding) -> PreparedImage:
        picture, encoded = open_image(image)
        final = self._final(picture.size, max_pixels)
        if picture.size != final.size:
            from PIL.Image import Resampling

            picture, encoded = picture.resize(final.size, Resampling.BICUBIC), None  # as the Qwen family does it
        if encoded is not encoding:
            image = encode(picture, encoding)
        span = array("i", [self.placeholder_id]) * (math.prod(final.grid) // (self._unit // self._patch) ** 2)
        return PreparedImage.from_bytes(image, f"image/{encoding}", span, final.grid)

    def _final_size(self, picture_size: tuple[int, int], max_pixels: int | None) -> _Size:
        """The size that an image is given, one that the processor leaves alone, and its grid.

        Computed as the Qwen family does it; the processor has the last word, asked once about every size.

        Raises:
            MediaError: The processor takes no image of these proportions, or leaves no size alone.
        """
        width, height = picture_size
        if max(width, height) > _MOST_ELONGATED * min(width, height):
            raise MediaError(f"an image of {width} x {height} pixels is too elongated: at most {_MOST_ELONGATED} to 1")
        from PIL import Image

        size = _smart_resize(width, height, self._unit, self._fewest, min(self._most, max_pixels or self._most))
        # A size is final when the processor gives it back: only then do server and trainer resize nothing.
        for _ in range(_TRIES):
            arrays = self._process(Image.new("RGB", size))
            time, high, wide = (int(side) for side in arrays["image_grid_thw"][0])
            before, size = size, (wide * self._patch, high * self._patch)
            if before == size:
                break
        else:
            raise MediaError(
                f"the image processor has no size for an image of {width} x {height} pixels that it would not resize "
                "again: its min_pixels and max_pixels are too close together"
            )
        return _Size(size, (time, high, wide))

    def pixels(self, image: bytes) -> Any:
        """The arrays a model is fed for an image that has entered: `pixel_values` and `image_grid_thw`, numpy.

        Raises `MediaError` if the image cannot be read.
        """
        return self._process(open_image(image).picture)

    def _process(self, picture: Any) -> Any:
        try:
            arrays = self.image_processor(images=[picture], return_tensors="np")
        except (OSError, ValueError) as error:
            raise MediaError(f"the image processor does not take an image of {picture.size} pixels: {error}") from error
        if "image_grid_thw" not in arrays:
            raise MediaError(f"images of the family {self.family!r} have no grid of patches: not supported")
        return arrays


class _Size(NamedTuple):
    size: tuple[int, int]
    grid: tuple[int, int, int]


def _smart_resize(width: int, height: int, unit: int, fewest: int, most: int) -> tuple[int, int]:
    """`smart_resize` of the Qwen family (`image_processing_qwen2_vl.py` of transformers), as width and height."""
    wide, high = round(width / unit) * unit, round(height / unit) * unit
    if wide * high > most:
        scale = math.sqrt(width * height / most)
        return max(unit, math.floor(width / scale / unit) * unit), max(unit, math.floor(height / scale / unit) * unit)
    if wide * high < fewest:
        scale = math.sqrt(fewest / (width * height))
        return math.ceil(width * scale / unit) * unit, math.ceil(height * scale / unit) * unit
    return wide, high


def _fingerprint(family: str, images: Any) -> str:
    """Digest of the settings that decide on sizes and counts, in any back end."""
    names = ("size", "min_pixels", "max_pixels", "patch_size", "merge_size", "temporal_patch_size", "do_resize")
    settings = {name: value for name, value in images.to_dict().items() if name in names}
    text = json.dumps([family, settings], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ---- decoding and encoding ------------------------------------------------


class OpenedImage(NamedTuple):
    """A decoded image.

    Attributes:
        picture: A PIL image in RGB.
        encoding: The encoding of the bytes, if they only had to be decoded; otherwise None.
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
    except Exception as error:  # decoders raise all kinds for a broken file
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
        # Without the picture's metadata (profiles, gamma); higher levels take much longer for little.
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
