"""Images in a trajectory: what is sent, and what the model sees of it.

What is held, sent and extended is one placeholder token an image. What an image expands to is a fact of that image
under the model's processor; it is kept beside the placeholder, and every consumer that counts or trains tokens gets
the expanded view.
"""

from .medium import (
    Expansion,
    ImageExpander,
    Medium,
    PlacedMedium,
    collapsed_values,
    expanded_ids,
    expanded_values,
    growth_of,
    moved,
    place_images,
)
from .processor import ProcessorExpander, image_expander, resized

__all__ = [
    "Expansion",
    "ImageExpander",
    "Medium",
    "PlacedMedium",
    "ProcessorExpander",
    "collapsed_values",
    "expanded_ids",
    "expanded_values",
    "growth_of",
    "image_expander",
    "moved",
    "place_images",
    "resized",
]
