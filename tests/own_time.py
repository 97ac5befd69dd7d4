"""The time limit of a test counts its own seconds: those in which its processes wait for a processor do not pass.

A wall clock says on a busy machine that sound code hangs. This replaces the timer of `pytest-timeout`, whose stacks are
still printed.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import pytest_timeout

from strands_env.core.threads import OwnClock

SPARED = 2.0
"""Wall seconds before the clock is read at all: nearly every test has ended by then."""


def _family() -> Iterator[int]:
    yield os.getpid()
    yield from (child.pid for child in psutil.Process().children(recursive=True))


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: Any, settings: Any) -> bool | None:
    """Start the timer of a test; that of the plugin stays where there are no signals."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return None
    # A limit that is no longer than what is spared counts from the start, without children: that costs little.
    is_short = settings.timeout <= SPARED
    clock = OwnClock() if is_short else None

    def look(signum: int, frame: Any) -> None:
        __tracebackhide__ = True
        nonlocal clock
        clock = clock or OwnClock(_family)
        if clock.seconds() + (0.0 if is_short else SPARED) < settings.timeout:
            signal.setitimer(signal.ITIMER_REAL, 1.0)
        else:
            pytest_timeout.timeout_sigalrm(item, settings)

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)

    item.cancel_timeout = cancel  # the plugin calls it
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, min(SPARED, settings.timeout))
    return True
