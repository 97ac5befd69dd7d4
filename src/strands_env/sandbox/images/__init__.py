"""Sandboxes on container images, without a daemon: the store of images, the sandbox, its snapshots."""

from __future__ import annotations

from .layers import Snapshot
from .sandbox import DEFAULT_IMAGE_LIMITS, ImageSandbox
from .store import Image, ImageStore, UnknownImageError

__all__ = ["DEFAULT_IMAGE_LIMITS", "Image", "ImageSandbox", "ImageStore", "Snapshot", "UnknownImageError"]
