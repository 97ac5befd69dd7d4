"""Images in a trajectory: as sent, and as the model sees them.

An image is decoded, converted and sized once, where it enters (`images`): nothing is left that the server and a trainer
could do in two ways.

One placeholder token an image is held, sent and extended. The expansion of an image is a fact of that image under the
model's processor; it is kept beside the placeholder, and every consumer that counts or trains tokens gets the expanded
view. Every placeholder has its image, every image its placeholder.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, TypeVar

from ..exceptions import MediaError

T = TypeVar("T", int, float)


class ImageEncoding(StrEnum):
    """The encoding in which images travel to the server, and are kept for the trainer."""

    PNG = "png"
    """Lossless: every decoder gives the pixels that were sent."""
    JPEG = "jpeg"
    """Far fewer bytes for photos, often more for screenshots of text. The model sees JPEG's artefacts, and a server
    that decodes on a GPU (SGLang does) sees slightly other pixels than the trainer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SentImage:
    """An image as the server is sent it.

    Attributes:
        data: Data URL.
        digest: SHA-256 of the bytes in `data`, hexadecimal.
    """

    data: str
    digest: str

    @property
    def image(self) -> bytes:
        """The encoded image."""
        return base64.b64decode(self.data.partition(",")[2])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedImage(SentImage):
    """An image with its expansion by a processor.

    Attributes:
        span: The ids that take the place of the placeholder.
        grid: Patches of the image as `(time, height, width)` (`image_grid_thw`), or None where a family has none.
    """

    span: array[int]
    grid: tuple[int, int, int] | None

    @classmethod
    def from_bytes(cls, image: bytes, mime: str, span: array[int], grid: tuple[int, int, int] | None) -> PreparedImage:
        """The image that these bytes encode."""
        data = f"data:{mime};base64,{base64.b64encode(image).decode()}"
        return cls(data=data, digest=hashlib.sha256(image).hexdigest(), span=span, grid=grid)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Medium(PreparedImage):
    """An image of a turn's prompt.

    Attributes:
        processor: Fingerprint of the processor that expanded it.
        position: Index of its placeholder in the turn's `prompt_ids`.
    """

    processor: str
    position: int

    @property
    def growth(self) -> int:
        """Number of tokens by which the expanded prompt is longer than the held one."""
        return len(self.span) - 1

    def place(self, shift: int) -> PlacedMedium:
        """The image in expanded coordinates, `shift` behind its position."""
        return PlacedMedium(
            data=self.data,
            digest=self.digest,
            processor=self.processor,
            grid=self.grid,
            offset=self.position + shift,
            length=len(self.span),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedMedium(SentImage):
    """An image in expanded coordinates; other fields as in `PreparedImage` and `Medium`.

    Attributes:
        offset: Index of its first token in the expanded sequence.
        length: Number of its tokens.
    """

    processor: str
    grid: tuple[int, int, int] | None
    offset: int
    length: int


class ImageExpander(Protocol):
    """Knows which token stands for an image, how an image is sent, and its expansion.

    Attributes:
        placeholder_id: Id of the token that the chat template prints once per image.
        media_ids: Every id that stands for a medium of any kind, `placeholder_id` included: none may be in a text.
        fingerprint: Names the processor and its settings: equal fingerprints expand alike.
        is_verified: Genuine servers expand images so: the first request of a path proves it, not every one.
    """

    placeholder_id: int
    media_ids: frozenset[int]
    fingerprint: str
    is_verified: bool

    def prepare(
        self, image: bytes, *, max_pixels: int | None = None, encoding: ImageEncoding = ImageEncoding.PNG
    ) -> PreparedImage:
        """Decode, convert and size an image (PNG, JPEG, ...), once for server and trainer. Called from threads.

        `max_pixels` is a limit below the processor's own. Raises `MediaError` if the image cannot be read.
        """


def place_images(
    ids: array[int], images: Sequence[PreparedImage], expander: ImageExpander | None
) -> tuple[Medium, ...]:
    """The images of a prompt, in order, with the positions of their placeholders in `ids`; none without an expander.

    Raises:
        MediaError: Placeholders and images do not agree.
    """
    if expander is None:
        return ()
    media_ids = expander.media_ids
    # Found in C first: most prompts have no image, and then no Python code runs per token.
    present = any(token in ids for token in media_ids)
    places = [(index, token) for index, token in enumerate(ids) if token in media_ids] if present else []
    wrong = [token for _, token in places if token != expander.placeholder_id]
    if wrong:
        raise MediaError(f"the prompt has the token {wrong[0]}, which stands for a video or an audio clip: send images")
    if len(places) != len(images):
        raise MediaError(
            f"the prompt has {len(places)} image placeholders for {len(images)} images: the chat template does not "
            "print one placeholder per image, or a text spells the placeholder"
        )
    if any(later == index + 1 for (index, _), (later, _) in itertools.pairwise(places)):
        raise MediaError("the prompt has two image placeholders side by side, which servers cannot tell from one image")
    return tuple(
        Medium(
            data=image.data,
            digest=image.digest,
            processor=expander.fingerprint,
            position=index,
            span=image.span,
            grid=image.grid,
        )
        for image, (index, _) in zip(images, places, strict=True)
    )


def move_media(media: Sequence[Medium], offset: int) -> tuple[Medium, ...]:
    """The images with `offset` added to their positions."""
    return tuple([replace(medium, position=medium.position + offset) for medium in media]) if media else ()


def media_growth(media: Sequence[Medium]) -> int:
    """Number of tokens by which images make a prompt longer."""
    return sum([medium.growth for medium in media]) if media else 0


def expanded_ids(ids: array[int], media: Sequence[Medium]) -> array[int]:
    """Ids with every placeholder replaced by the expansion of its image."""
    return _splice(ids, media, lambda medium: medium.span)


def expanded_values(values: array[float], media: Sequence[Medium], missing: float) -> array[float]:
    """Per-token values with `missing` at every token of an image: a server reports none there that could be used."""
    return _splice(values, media, lambda medium: array("d", [missing]) * len(medium.span))


def _splice(values: array[T], media: Sequence[Medium], piece: Callable[[Medium], array[T]]) -> array[T]:
    """The values with the piece of its image in place of every placeholder."""
    if not media:
        return values
    out: array[T] = array(values.typecode)
    start = 0
    for medium in media:
        out += values[start : medium.position]
        out += piece(medium)
        start = medium.position + 1
    out += values[start:]
    return out


def collapsed_values(values: array[float], media: Sequence[Medium], missing: float) -> array[float]:
    """The inverse of `expanded_values`: one value per token that is held, `missing` at placeholders."""
    if not media:
        return values
    out: array[float] = array("d")
    start = shift = 0
    for medium in media:
        out += values[start : medium.position + shift]
        out.append(missing)
        shift += medium.growth
        start = medium.position + shift + 1
    out += values[start:]
    return out
