"""Images of a prompt: what they expand to, and how placeholders and expansions stand for each other.

Every placeholder has its image, every image its placeholder.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from array import array
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from ..exceptions import MediaError

T = TypeVar("T", int, float)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expansion:
    """What a processor makes of one image.

    Attributes:
        span: The ids that take the place of the placeholder.
        grid: Patches of the image as `(time, height, width)` (`image_grid_thw`), or None where a family has none.
    """

    span: array[int]
    grid: tuple[int, int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Medium:
    """One image of a turn's prompt.

    Attributes:
        data: Data URL, as the server takes it. Equal images of a conversation share one string.
        digest: SHA-256 of the image's bytes, hexadecimal.
        processor: Fingerprint of the processor that expanded it.
        position: Index of its placeholder in the turn's `prompt_ids`.
        span: The ids it expands to.
        grid: Patches as `(time, height, width)`, or None.
    """

    data: str
    digest: str
    processor: str
    position: int
    span: array[int]
    grid: tuple[int, int, int] | None

    @property
    def growth(self) -> int:
        """Number of tokens by which the expanded prompt is longer than what is held."""
        return len(self.span) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedMedium:
    """An image in expanded coordinates.

    Attributes:
        data: Data URL.
        digest: SHA-256 of the image's bytes, hexadecimal.
        processor: Fingerprint of the processor that expanded it.
        grid: Patches as `(time, height, width)`, or None.
        offset: Index of its first token in the expanded sequence.
        length: Number of its tokens.
    """

    data: str
    digest: str
    processor: str
    grid: tuple[int, int, int] | None
    offset: int
    length: int

    @property
    def image(self) -> bytes:
        """The encoded image (PNG, JPEG, ...)."""
        return base64.b64decode(self.data.partition(",")[2])


class ImageExpander(Protocol):
    """Knows which token stands for an image, and what an image expands to.

    Attributes:
        placeholder_id: Id of the token that the chat template prints once per image.
        media_ids: Every id that stands for a medium of any kind, `placeholder_id` included: none may be in a text.
        fingerprint: Names the processor and its settings: equal fingerprints expand alike.
    """

    placeholder_id: int
    media_ids: frozenset[int]
    fingerprint: str

    def expand(self, image: bytes) -> Expansion:
        """What one encoded image (PNG, JPEG, ...) expands to. Safe to call from threads.

        Raises:
            MediaError: The image cannot be read.
        """


def place_images(
    ids: array[int], images: Sequence[str], expander: ImageExpander | None, blobs: MutableMapping[str, str]
) -> tuple[Medium, ...]:
    """The images of a prompt with the positions of their placeholders.

    Args:
        ids: Ids appended by this prompt, one placeholder per image.
        images: Data URLs, in the order in which the template printed them.
        expander: What knows placeholders and expansions; None where the model takes no images.
        blobs: Data URLs of this conversation by digest: equal images share one string.

    Raises:
        MediaError: Placeholders and images do not agree, an image cannot be read, or nothing expands it.
    """
    if expander is None:
        if not images:
            return ()
        raise MediaError(
            f"the prompt has {len(images)} image{'s' * (len(images) > 1)}, but the model was given no processor: pass "
            "processor= with the folder or hub id of the served vision-language model"
        )
    media_ids = expander.media_ids
    # Found in C first: most prompts have no image, and then no Python code runs per token.
    present = any(token in ids for token in media_ids)
    found = [(index, token) for index, token in enumerate(ids) if token in media_ids] if present else []
    wrong = [token for _, token in found if token != expander.placeholder_id]
    if wrong:
        raise MediaError(f"the prompt has the token {wrong[0]}, which stands for a video or an audio clip: send images")
    if len(found) != len(images):
        raise MediaError(
            f"the prompt has {len(found)} image placeholders for {len(images)} images: the chat template does not "
            "print one placeholder per image, or a text spells the placeholder"
        )
    if any(later == index + 1 for (index, _), (later, _) in itertools.pairwise(found)):
        raise MediaError("the prompt has two image placeholders side by side, which servers cannot tell from one image")
    return tuple(
        _medium(url, index, expander, blobs) for url, (index, _) in zip(images, found, strict=True)
    )  # fmt: skip


def _medium(url: str, position: int, expander: ImageExpander, blobs: MutableMapping[str, str]) -> Medium:
    image = base64.b64decode(url.partition(",")[2])
    digest = hashlib.sha256(image).hexdigest()
    expansion = expander.expand(image)
    return Medium(
        data=blobs.setdefault(digest, url),
        digest=digest,
        processor=expander.fingerprint,
        position=position,
        span=expansion.span,
        grid=expansion.grid,
    )


def moved(media: Sequence[Medium], offset: int) -> tuple[Medium, ...]:
    """The images with `offset` added to their positions."""
    return tuple([replace(medium, position=medium.position + offset) for medium in media]) if media else ()


def growth_of(media: Sequence[Medium]) -> int:
    """Number of tokens by which images make a prompt longer."""
    return sum([medium.growth for medium in media]) if media else 0


def expanded_ids(ids: array[int], media: Sequence[Medium]) -> array[int]:
    """Ids with every placeholder replaced by what its image expands to."""
    return _spliced(ids, media, lambda medium: medium.span)


def expanded_values(values: array[float], media: Sequence[Medium], missing: float) -> array[float]:
    """Per-token values with `missing` at every token of an image: a server reports none there that could be used."""
    return _spliced(values, media, lambda medium: array("d", [missing]) * len(medium.span))


def _spliced(values: array[T], media: Sequence[Medium], piece: Callable[[Medium], array[T]]) -> array[T]:
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
