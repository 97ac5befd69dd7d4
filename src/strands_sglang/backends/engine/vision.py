"""Vision models: the input of their text tower where images stand, for families with three-dimensional positions.

The vision tower runs once per image; its output takes the place of the embeddings of the image's tokens. Positions of a
prompt with images are the model's own (`get_rope_index`); sampled tokens continue them.
"""

from __future__ import annotations

import base64
import functools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...exceptions import MediaError
from ...trajectory.images import ProcessorExpander
from ...trajectory.media import expanded_ids, place_images
from .tiny import VISION_FAMILIES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeenImage:
    """An image of a prompt, in expanded coordinates.

    Attributes:
        digest: SHA-256 of its bytes.
        features: Embeddings in place of those of its tokens, `[length, hidden]`.
        deep: Values added after the first layers, one `[length, hidden]` per layer (DeepStack); usually empty.
    """

    digest: bytes
    offset: int
    length: int
    features: torch.Tensor
    deep: tuple[torch.Tensor, ...]

    @property
    def end(self) -> int:
        """Position after its last token."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeenPrompt:
    """A prompt with images.

    Attributes:
        ids: Expanded ids.
        positions: Time, height and width of every token, `[3, len(ids)]`.
        shift: Added to an index after the prompt to give its position.
    """

    ids: list[int]
    images: tuple[SeenImage, ...]
    positions: torch.Tensor
    shift: int

    def keys(self, vocab_size: int) -> list[int]:
        """Ids by which prefixes are compared: tokens of different images differ, those of equal images do not."""
        keys = list(self.ids)
        for image in self.images:
            # 40 bits of the digest: beyond every id, and within int64.
            keys[image.offset : image.end] = [vocab_size + int.from_bytes(image.digest[:5], "little")] * image.length
        return keys

    def positions_of(self, start: int, end: int) -> torch.Tensor:
        """Positions of the tokens `[start, end)` of prompt and output, `[3, end - start]`."""
        in_prompt = self.positions[:, start:end]
        behind = torch.arange(max(start, len(self.ids)), max(end, len(self.ids))) + self.shift
        return torch.cat([in_prompt, behind.expand(3, -1)], dim=1)


class Vision:
    """The vision side of a `Qwen2_5_VL` or a relative, else `ValueError`; for the engine's thread, save `expander`."""

    def __init__(self, model: Any, image_processor: Any) -> None:
        config = model.config
        if config.model_type not in VISION_FAMILIES:
            raise ValueError(
                f"model_type={config.model_type!r} cannot see here; expected one of {', '.join(VISION_FAMILIES)}"
            )
        self.tower: Any = model.model
        self.expander = ProcessorExpander(
            image_processor,
            family=config.model_type,
            placeholder_id=config.image_token_id,
            other_media_ids=[config.video_token_id],
        )
        self._look = functools.lru_cache(maxsize=32)(self._features)  # each turn of a path brings its images again

    def forget(self) -> None:
        """Drop features of the old weights."""
        self._look.cache_clear()

    def see(self, ids: list[int], images: Sequence[str]) -> SeenPrompt:
        """Expand a prompt's placeholders and look at its images; `MediaError` if they disagree or one is unreadable."""
        encoded = [_image_bytes(image) for image in images]
        packed = array("i", ids)
        media = place_images(packed, [self.expander.prepare(image) for image in encoded], self.expander)
        looked = [self._look(medium.image) for medium in media]
        expanded = list(expanded_ids(packed, media))
        seen_images, grown = [], 0
        for medium, (features, deep, _) in zip(media, looked, strict=True):
            digest, offset, length = bytes.fromhex(medium.digest), medium.position + grown, len(medium.span)
            seen_images.append(SeenImage(digest=digest, offset=offset, length=length, features=features, deep=deep))
            grown += medium.growth
        row = torch.tensor([expanded])
        kinds = (row == self.expander.placeholder_id).int()
        grids = torch.cat([grid for *_, grid in looked])
        positions, _ = self.tower.get_rope_index(row, kinds, image_grid_thw=grids)
        positions = positions[:, 0].cpu()
        return SeenPrompt(
            ids=expanded, images=tuple(seen_images), positions=positions, shift=int(positions.max()) + 1 - len(expanded)
        )

    def _features(self, image: bytes) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor]:
        """Features, deep features and grid of an image."""
        arrays = self.expander.pixels(image)
        grid = torch.as_tensor(arrays["image_grid_thw"])
        weight = next(self.tower.parameters())
        pixels = torch.as_tensor(arrays["pixel_values"]).to(weight)
        with torch.inference_mode():
            output = self.tower.get_image_features(pixels, grid.to(weight.device))
        deep = getattr(output, "deepstack_features", None) or ()
        return _rows(output.pooler_output), tuple(map(_rows, deep)), grid


def _rows(features: Any) -> torch.Tensor:
    """Features of one image as `[tokens, hidden]`: some releases give a list with an entry per image."""
    return torch.cat(list(features)) if isinstance(features, list | tuple) else features


def _image_bytes(image: str) -> bytes:
    """The bytes of a data URL; addresses and paths are not fetched."""
    try:
        return base64.b64decode(image.partition(",")[2] if image.startswith("data:") else image, validate=True)
    except ValueError:
        raise MediaError("images must be data URLs or base64; nothing is fetched from elsewhere") from None
