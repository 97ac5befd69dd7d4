"""Upstream's names for the client that all samples of a process share: that of `strands_sglang.get_client`."""

from __future__ import annotations

from typing import Any

from strands_sglang.backends.clients import get_client
from strands_sglang.backends.clients import get_client_from_slime_args as get_cached_client_from_slime_args

__all__ = ["clear_clients", "get_cached_client", "get_cached_client_from_slime_args"]

clear_clients = get_client.cache_clear


def get_cached_client(base_url: str, max_connections: int = 1000) -> Any:
    """The shared client of an address."""
    return get_client(base_url, max_connections=max_connections)
