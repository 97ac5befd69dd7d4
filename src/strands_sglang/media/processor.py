"""Expansion of images by the image processor of a Hugging Face model.

Only families whose expansion was proved equal to a genuine server's are accepted: the Qwen-VL
families, and those that `strands-sglang doctor --vision` has proved on this machine.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
import math
import os
import threading
from array import array
from collections import OrderedDict
from pathlib import Path
from typing import Any

from ..exceptions import MediaError
from ..installation import install_command
from .medium import Expansion, ImageExpander

PROVED_FAMILIES = frozenset({"qwen2_5_vl", "qwen3_vl"})
"""Model types proved on genuine servers: placeholders, counts and grids."""

_FAMILY_OF = {"Qwen2_5_VLProcessor": "qwen2_5_vl", "Qwen3VLProcessor": "qwen3_vl"}
_REMEMBERED = 4096  # expansions a process keeps; one is a few kilobytes


def image_expander(processor: Any) -> ImageExpander:
    """What expands the images of a model.

    Args:
        processor: The folder or hub id of the model, its `AutoProcessor`, or an `ImageExpander` of the caller's own.

    Raises:
        MediaError: Nothing that processes images, or a family that is not proved.
    """
    if isinstance(processor, str | os.PathLike):
        return _of_model(os.fspath(processor))
    if hasattr(processor, "expand") and hasattr(processor, "placeholder_id"):
        return processor  # type: ignore[no-any-return]
    images, placeholder = getattr(processor, "image_processor", None), getattr(processor, "image_token_id", None)
    name = type(processor).__name__
    if images is None or not isinstance(placeholder, int):
        raise MediaError(f"processor={name}: expected a model's folder or AutoProcessor.from_pretrained(...) of it")
    others = (getattr(processor, token, None) for token in ("video_token_id", "audio_token_id"))
    return ProcessorExpander(
        images,
        family=_FAMILY_OF.get(name, name),
        placeholder_id=placeholder,
        other_media_ids=[token for token in others if isinstance(token, int)],
    )


@functools.lru_cache(maxsize=8)
def _of_model(model: str) -> ProcessorExpander:
    """One expander a process for all conversations with a model; what one of them has expanded, all know."""
    return ProcessorExpander.of_model(model)


class ProcessorExpander:
    """Counts and grids from a Hugging Face image processor; the same image is processed once.

    Args:
        image_processor: The model's image processor.
        family: The model's type, `config.model_type`.
        placeholder_id: Id of the token that stands for an image.
        other_media_ids: Ids that stand for media of other kinds.
        unproved: Accept a family without a proof; for the proof itself.

    Raises:
        MediaError: A family that is not proved.
    """

    def __init__(
        self,
        image_processor: Any,
        *,
        family: str,
        placeholder_id: int,
        other_media_ids: list[int],
        unproved: bool = False,
    ) -> None:
        self.placeholder_id = placeholder_id
        self.media_ids = frozenset({placeholder_id, *other_media_ids})
        self.fingerprint = _fingerprint(family, image_processor)
        if not unproved and family not in PROVED_FAMILIES and not is_proved(self.fingerprint):
            raise MediaError(
                f"images of the family {family!r} are not proved to be exact; `strands-sglang doctor --vision MODEL "
                "--server URL` proves them against a server that runs the model, once per machine"
            )
        self._images = image_processor
        self._known: OrderedDict[bytes, Expansion] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def of_model(cls, model: str | os.PathLike[str], *, unproved: bool = False) -> ProcessorExpander:
        """The expander of a model by its folder or hub id; needs no torchvision.

        Raises:
            MediaError: The model takes no images, cannot be read, or is of a family that is not proved.
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
        others = (getattr(config, name, None) for name in ("video_token_id", "audio_token_id"))
        return cls(
            images,
            family=config.model_type,
            placeholder_id=placeholder,
            other_media_ids=[token for token in others if isinstance(token, int)],
            unproved=unproved,
        )

    def expand(self, image: bytes) -> Expansion:
        """What one encoded image expands to.

        Raises:
            MediaError: The image cannot be read.
        """
        key = hashlib.sha256(image).digest()
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
        grid = tuple(int(side) for side in self.pixels(image)["image_grid_thw"][0])
        count = grid[0] * grid[1] * grid[2] // int(self._images.merge_size) ** 2
        expansion = Expansion(span=array("i", [self.placeholder_id]) * count, grid=(grid[0], grid[1], grid[2]))
        with self._lock:
            self._known[key] = expansion
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return expansion

    def pixels(self, image: bytes) -> Any:
        """The arrays a model is fed for one encoded image: `pixel_values` and `image_grid_thw`, numpy.

        Raises:
            MediaError: The image cannot be read.
        """
        picture = open_image(image)
        try:
            return self._images(images=[picture], return_tensors="np")
        except (OSError, ValueError) as error:
            raise MediaError(f"the image ({len(image)} bytes) cannot be processed: {error}") from error


def _fingerprint(family: str, images: Any) -> str:
    """Digest of what decides on sizes and counts, whichever back end computes them."""
    names = ("size", "min_pixels", "max_pixels", "patch_size", "merge_size", "temporal_patch_size", "do_resize")
    settings = {name: value for name, value in images.to_dict().items() if name in names}
    text = json.dumps([family, settings], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def open_image(image: bytes) -> Any:
    """One encoded image (PNG, JPEG, ...) as a PIL image in RGB.

    Raises:
        MediaError: The image cannot be read.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MediaError(f"images need pillow: {install_command('vision')}") from error
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


# ---- families proved on this machine ------------------------------------------------


def _file() -> Path:
    if override := os.environ.get("STRANDS_ROLLOUT_CACHE"):
        return Path(override) / "vision-proofs.json"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "strands-rollout" / "vision-proofs.json"


def is_proved(fingerprint: str) -> bool:
    """Whether a processor of this fingerprint has passed the proof on this machine."""
    return fingerprint in _proofs()


def record_proof(fingerprint: str, server: str) -> Path:
    """Remember that a server expands images as this processor does; returns the file."""
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(f".{os.getpid()}.new")
    new.write_text(json.dumps({**_proofs(), fingerprint: server}, indent=1), encoding="utf-8")
    new.replace(file)
    return file


def _proofs() -> dict[str, str]:
    try:
        known = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
