"""Suspended rollouts hold sandboxes: what ends those that slime never asks for again."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar

import pytest
from provider_support import completion
from slime_support import AddEnv, Rig, Sample, rig, settle

from strands_env.training.slime.live_rollout import Episode
from strands_env.training.slime.shared_state import SESSION, SuspendedEpisodes
from strands_sglang.testing import Reply

__all__ = ["rig"]


class Sandboxed(AddEnv):
    """An environment that knows how many of its kind were cleaned up."""

    cleaned: ClassVar[list[int]] = []

    async def cleanup(self) -> None:
        self.cleaned.append(1)


async def suspend(rig: Rig, key: str) -> Sample:
    rig.args.partial_rollout = True
    rig.environment = Sandboxed
    Sandboxed.cleaned.clear()

    def stop(*request: Any) -> Reply:
        rig.state.aborted = True
        return Reply(ids=completion("the answer is 3").ids[:1], finish="abort")

    rig.serve(stop, completion("3"), completion("3"))
    sample = await rig.run(Sample(session_id=key))
    rig.state.aborted = False
    return sample


async def test_a_rollout_that_slime_never_asks_for_again_is_ended(rig: Rig) -> None:
    rig.args.strands_env_max_suspension = 0.001
    await suspend(rig, "forgotten")
    await settle()
    await rig.run(Sample(session_id="another"))
    await settle()
    assert (len(SESSION.suspended), Sandboxed.cleaned) == (0, [1, 1])


async def test_a_rollout_waits_for_its_call_up_to_a_limit(rig: Rig) -> None:
    sample = await suspend(rig, "waits")
    await rig.run(Sample(session_id="another"))
    await settle()
    assert (len(SESSION.suspended), Sandboxed.cleaned) == (1, [1])
    assert (await rig.run(sample)).metadata["strands_env"]["suspensions"] == 1


def on_a_loop_of_its_own(rig: Rig) -> tuple[asyncio.AbstractEventLoop, threading.Thread, Sample]:
    """A rollout that is suspended on a loop which goes on in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    return loop, thread, asyncio.run_coroutine_threadsafe(suspend(rig, "elsewhere"), loop).result()


def pending_of(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[Any]]:
    async def others() -> set[asyncio.Task[Any]]:
        await settle()
        return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]

    return asyncio.run_coroutine_threadsafe(others(), loop).result()


@pytest.mark.parametrize("how", ["asked for from another loop", "exit"])
def test_a_rollout_of_another_loop_is_ended_there(rig: Rig, how: str) -> None:
    loop, thread, sample = on_a_loop_of_its_own(rig)
    try:
        if how == "exit":
            SESSION.suspended.close_at_exit()
        else:
            assert asyncio.run(rig.run(sample)).status is Sample.Status.COMPLETED
        assert pending_of(loop) == set()
        assert (len(SESSION.suspended), len(Sandboxed.cleaned)) == (0, 2 if how.startswith("asked") else 1)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def test_what_belongs_to_a_closed_loop_is_forgotten() -> None:
    loop = asyncio.new_event_loop()
    future: Any = loop.create_future()
    future.add_done_callback(print)  # cancelling it would ask the closed loop to call this
    loop.close()
    suspended = SuspendedEpisodes()
    for key in ("taken", "replaced", "closed"):
        suspended.put(key, Episode(task=future, call=None))
    assert suspended.take("taken") is None
    suspended.put("replaced", Episode(task=future, call=None))
    suspended.close_at_exit()
    assert len(suspended) == 0
