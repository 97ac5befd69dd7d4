"""The guard of `tests/conftest.py`: no test reaches another machine by accident."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.conftest import NetworkBlockedError

ELSEWHERE = ("192.0.2.1", 80)  # TEST-NET-1 (RFC 5737): no such host exists


def test_a_blocking_connection_elsewhere_is_refused() -> None:
    with socket.socket() as sock, pytest.raises(NetworkBlockedError):
        sock.settimeout(0.5)
        sock.connect(ELSEWHERE)


async def test_an_asyncio_connection_elsewhere_is_refused() -> None:
    with pytest.raises(NetworkBlockedError):
        await asyncio.wait_for(asyncio.open_connection(*ELSEWHERE), timeout=0.5)
