"""The SDK's cancel signal and the cancellation of the calling task, each by itself and both at once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Awaitable
from typing import TypeVar

from strands_sglang.conversation.cancellation import CallCancelled, CancelScope

T = TypeVar("T")


async def run_until_cancelled(call: Awaitable[T], signal: threading.Event) -> T:
    with CancelScope(signal):
        return await call


async def forever() -> None:
    await asyncio.Event().wait()


async def set_meanwhile(signal: threading.Event) -> None:
    await asyncio.sleep(0.01)
    signal.set()


async def test_a_task_that_is_cancelled_after_the_signal_too_is_cancelled() -> None:
    signal = threading.Event()
    outer: asyncio.Task[None]

    async def call() -> None:
        try:
            await forever()
        finally:
            outer.cancel()  # while the signal's own cancellation is under way

    outer = asyncio.create_task(run_until_cancelled(call(), signal))
    await set_meanwhile(signal)
    await asyncio.wait({outer})
    assert outer.cancelled()


async def test_a_task_that_was_spared_a_cancellation_earlier_notices_the_signal() -> None:
    signal = threading.Event()

    async def caller() -> str:
        with contextlib.suppress(asyncio.CancelledError):  # and no uncancel()
            await forever()
        try:
            await run_until_cancelled(forever(), signal)
        except CallCancelled:
            return "signalled"
        return "over"

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    task.cancel()
    await set_meanwhile(signal)
    assert await task == "signalled"


def test_event_loops_are_not_kept() -> None:
    async def once() -> None:
        assert await run_until_cancelled(asyncio.sleep(0, "done"), threading.Event()) == "done"

    loops = []
    asyncio.run(once())
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(once())
        loop.close()  # with the timer pending
        loops.append(weakref.ref(loop))
        del loop
    gc.collect()
    assert [ref() for ref in loops] == [None] * 3


async def test_the_cancellation_of_a_signal_leaves_no_trace_in_the_calling_task() -> None:
    signal = threading.Event()

    async def caller() -> int:
        with contextlib.suppress(CallCancelled):
            await asyncio.gather(set_meanwhile(signal), run_until_cancelled(forever(), signal))
        with contextlib.suppress(CallCancelled):
            await run_until_cancelled(forever(), signal_set_soon())
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(0)  # where a cancellation that was not taken back would strike
        return task.cancelling()

    def signal_set_soon() -> threading.Event:
        soon = threading.Event()
        asyncio.get_running_loop().call_later(0.01, soon.set)
        return soon

    assert await asyncio.create_task(caller()) == 0
