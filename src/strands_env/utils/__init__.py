"""Upstream's shared clients: of SGLang for a slime rollout process, and sessions of AWS."""

from .aws import clear_sessions, get_assumed_role_session, get_boto3_session
from .sglang import clear_clients, get_cached_client, get_cached_client_from_slime_args

__all__ = [
    "clear_clients",
    "clear_sessions",
    "get_assumed_role_session",
    "get_boto3_session",
    "get_cached_client",
    "get_cached_client_from_slime_args",
]
