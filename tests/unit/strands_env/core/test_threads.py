"""The clock that a busy machine does not advance, and the loop that is watched by it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from strands_env.core import threads
from strands_env.core.threads import LoopBlockedError, OwnClock, run_watched, short_turns


@pytest.mark.parametrize("queued", [True, False], ids=["waits for a processor", "is held up"])
def test_a_loop_that_waits_for_a_processor_is_not_held_up(queued: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic_ns()
    monkeypatch.setattr(OwnClock, "_read", lambda self: {"1": queued * (time.monotonic_ns() - began)})

    async def work() -> str:
        time.sleep(0.8)
        return "done"

    if queued:
        assert run_watched(work(), 0.3) == "done"
    else:
        with pytest.raises(LoopBlockedError, match=r"held up for 0\.3 s"):
            run_watched(work(), 0.3)


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="only Linux says who waits for a processor")
def test_the_clock_of_a_process_stands_still_while_another_has_its_processor() -> None:
    place = min(os.sched_getaffinity(0))
    spin = f"import os\nos.sched_setaffinity(0, [{place}])\nprint(flush=True)\nwhile True: pass"
    both = [subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for process in both:
            assert process.stdout is not None and process.stdout.readline()
        clock, began = OwnClock(lambda: [both[0].pid]), time.monotonic()
        while (passed := time.monotonic() - began) < 1.0 or clock.seconds() > 0.8 * passed:
            time.sleep(0.05)  # the test ends by its time limit where the clock runs on
        # Threads that have ended, and processes that are gone, are no error.
        both[0].kill()
        both[0].wait()
        assert clock.seconds() <= threads.time.monotonic() - began
    finally:
        for process in both:
            process.kill()
            process.wait()


@pytest.fixture
def interval():
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def test_blocks_of_short_turns_may_overlap_and_the_last_restores_what_was_before(interval: None) -> None:
    blocks = [short_turns(), short_turns()]
    for block in blocks:
        block.__enter__()
        assert sys.getswitchinterval() == pytest.approx(0.001)
    blocks[0].__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(0.001)
    blocks[1].__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(0.005)


@pytest.mark.parametrize("own", [0.0001, 0.02])
def test_what_a_program_sets_itself_stays(own: float, interval: None) -> None:
    sys.setswitchinterval(own)
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(min(own, 0.001))
    assert sys.getswitchinterval() == pytest.approx(own)
    with short_turns():
        sys.setswitchinterval(0.03)
    assert sys.getswitchinterval() == pytest.approx(0.03)
