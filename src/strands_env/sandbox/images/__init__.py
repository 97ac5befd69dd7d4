"""Sandboxes on container images, without a daemon: the store of images, the sandbox, its snapshots."""

from __future__ import annotations

from .image_sandbox import DEFAULT_IMAGE_LIMITS, ImageSandbox
from .layers import Snapshot
from .layouts import ImageSourceError
from .sources import build_image, import_image, pull_image
from .store import Image, ImageStore, UnknownImageError

__all__ = [
    "DEFAULT_IMAGE_LIMITS",
    "Image",
    "ImageSandbox",
    "ImageSourceError",
    "ImageStore",
    "Snapshot",
    "UnknownImageError",
    "build_image",
    "import_image",
    "pull_image",
]
