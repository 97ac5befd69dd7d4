"""Images in a trajectory: what is sent, and what the model sees of it.

An image is decoded, converted and sized once, where it enters: nothing is left that the server and a trainer could do
in two ways.

What is held, sent and extended is one placeholder token an image. What an image expands to is a fact of that image
under the model's processor; it is kept beside the placeholder, and every consumer that counts or trains tokens gets
the expanded view.
"""

from .medium import (
    ImageEncoding,
    ImageExpander,
    Medium,
    PlacedMedium,
    PreparedImage,
    collapsed_values,
    expanded_ids,
    expanded_values,
    media_growth,
    move_media,
    place_images,
)
from .processor import Processor, ProcessorExpander, as_rgb, encode, image_expander

__all__ = [
    "ImageEncoding",
    "ImageExpander",
    "Medium",
    "PlacedMedium",
    "PreparedImage",
    "Processor",
    "ProcessorExpander",
    "as_rgb",
    "collapsed_values",
    "encode",
    "expanded_ids",
    "expanded_values",
    "image_expander",
    "media_growth",
    "move_media",
    "place_images",
]
