"""Upstream's names for shared boto3 sessions (extra `aws`)."""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn

__all__ = ["clear_sessions", "get_assumed_role_session", "get_boto3_session"]


@cache
def get_boto3_session(region: str = "us-east-1", profile_name: str | None = None) -> Any:
    """The shared boto3 session of a region and a profile."""
    import boto3

    return boto3.Session(region_name=region, profile_name=profile_name)


def get_assumed_role_session(role_arn: str, **options: Any) -> NoReturn:
    """`ValueError`: credentials of a role are refreshed by boto3 itself, where a profile names the role."""
    raise ValueError(
        f"role_arn={role_arn!r}: name the role in a profile of ~/.aws/config (role_arn, source_profile), and use "
        "get_boto3_session(profile_name=)"
    )


clear_sessions = get_boto3_session.cache_clear
