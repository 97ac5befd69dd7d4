"""Import path of strands-env for the client that all samples of a slime rollout process share."""

from __future__ import annotations

from strands_sglang.backends.clients import get_client_from_slime_args as get_cached_client_from_slime_args

__path__: list[str] = []  # submodules of upstream: strands_sglang.compat

__all__ = ["get_cached_client_from_slime_args"]
