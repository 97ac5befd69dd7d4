"""Configuration shared by all tests: recorded data, the network guard, hypothesis profiles, the server option.

What can be set from outside is explained in `tests/README.md`.
"""

from __future__ import annotations

import gc
import ipaddress
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from strands_env.core.garbage import YOUNG_COLLECTIONS, YOUNG_OBJECTS
from tests.own_time import pytest_timeout_set_timer
from tests.skipped import pytest_configure

__all__ = ["pytest_configure", "pytest_timeout_set_timer"]

ROOT = Path(__file__).resolve().parents[1]
"""Root of the repository."""

SHARED = Path(os.environ.get("STRANDS_ROLLOUT_SHARED") or ROOT.parent / "shared")
"""Recorded answers of real servers, the corpus of chat templates and the like; lies beside the repository."""

SHARED_MISSING = f"no recorded data at {SHARED} (set STRANDS_ROLLOUT_SHARED to its folder)"
"""Skip reason of tests that need `SHARED`."""

requires_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=SHARED_MISSING)
"""Marker for tests that read `SHARED` while they are collected or without the `shared` fixture."""

hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the integration suite (here, so that they are known from any starting folder)."""
    group = parser.getgroup("strands-rollout")
    group.addoption(
        "--sglang-base-url",
        default=os.environ.get("SGLANG_BASE_URL") or None,
        metavar="URL",
        help="server for the integration tests, such as http://127.0.0.1:30000 (default: $SGLANG_BASE_URL)",
    )
    group.addoption(
        "--sglang-tokenizer",
        default=os.environ.get("SGLANG_TOKENIZER") or None,
        metavar="ID_OR_PATH",
        help="tokenizer of that server, if its own path cannot be read from here (default: $SGLANG_TOKENIZER)",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names that differ in every process: processes that share the work could not agree on what there is."""
    for item in items:
        if " object at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid}: an address in the name of a test, give ids to parametrize")


def pytest_collection() -> None:
    """Collect garbage as rarely as a process that only runs rollouts: modules and tests are a million objects.

    An evaluation in a process with other thresholds counts at its end what is frozen, which walks all of it.
    """
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, 10)


def pytest_collection_finish() -> None:
    """Keep garbage collections, with which each evaluation begins, off a million objects of modules and tests.

    Torch's fifty loggers propagate: six times a test pytest would attach its handlers to each that does not.
    """
    gc.freeze()
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of recorded data; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(SHARED_MISSING)
    return SHARED


class NetworkBlockedError(BaseException):
    """A test tried to reach another machine.

    No `Exception`: the code under test retries and reports connection errors, and must not swallow this one.
    """


def _is_local(address: Any) -> bool:
    """True for a socket address on this machine: loopback, or not an internet address at all."""
    if not isinstance(address, tuple):
        return True
    host = address[0]
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make connections beyond loopback impossible, except for tests of a server the user named."""
    if request.node.get_closest_marker("integration") is None:
        for name in ("connect", "connect_ex"):
            original = getattr(socket.socket, name)

            def guarded(self: socket.socket, address: Any, original: Any = original) -> Any:
                if not _is_local(address):
                    raise NetworkBlockedError(f"connection to {address!r}: only integration tests may leave loopback")
                return original(self, address)

            monkeypatch.setattr(socket.socket, name, guarded)
    yield
