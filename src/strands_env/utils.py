"""The one helper of the public contract that has no other home."""

from __future__ import annotations

from typing import Any

from strands_sglang.backends.sglang import SGLangClient
from strands_sglang.backends.sglang.shared import get_client_from_slime_args

__all__ = ["get_cached_client_from_slime_args"]


def get_cached_client_from_slime_args(args: Any) -> SGLangClient:
    """The client that all samples of a slime rollout process share; see `strands_sglang.get_client_from_slime_args`.

    Args:
        args: slime's arguments.
    """
    return get_client_from_slime_args(args)
