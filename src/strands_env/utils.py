"""Import path of strands-env for the client that all samples of a slime rollout process share."""

from __future__ import annotations

from strands_sglang.backends.sglang import get_client_from_slime_args as get_cached_client_from_slime_args

__all__ = ["get_cached_client_from_slime_args"]
