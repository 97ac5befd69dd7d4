"""slime stops a step: what its samples become, and that nothing is sampled while it trains."""

from __future__ import annotations

import asyncio
import types
from typing import Any

import pytest
from provider_support import Replay, add, call, completion
from slime_support import AddEnv, Rig, Sample, check, rig, settle
from strands import tool

from strands_env.training.slime.shared_state import SESSION
from strands_sglang.testing import Reply
from tests.servers import FaultyServer, faults
from tests.unit.client_support import make

__all__ = ["rig"]

WHOLE = completion("the answer is 3")


class Gated:
    """Makes environments with a tool that ends when the test says so."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.called = asyncio.Event()

    def __call__(self, **options: Any) -> AddEnv:
        @tool
        async def slow() -> str:
            """Wait."""
            self.called.set()
            await self.may_end.wait()
            return "done"

        class SlowEnv(AddEnv):
            def get_tools(self) -> list[Any]:
                return [slow, add]

        return SlowEnv(**options)


def slow_call(version: str | None = None) -> Reply:
    return completion('<tool_call>{"name": "slow", "arguments": {}}</tool_call>', version=version)


# ---- without partial rollout -----------------------------------------------------------------------------------------


def abort_with(rig: Rig, reply: Any) -> Any:
    """A model call during which slime starts to stop."""

    def answer(*request: Any) -> Any:
        rig.state.aborted = True
        if isinstance(reply, Exception):
            raise reply
        return reply

    return answer


@pytest.mark.parametrize(
    ("before", "answer"),
    [
        ([], Reply(ids=[], finish="abort")),
        ([], Reply(ids=WHOLE.ids[:2], finish="abort")),
        ([], ConnectionError("reset by peer")),
        ([completion(call(1, 2))], ConnectionError("reset by peer")),
        ([completion(call(1, 2))], Reply(ids=[], finish="abort")),
    ],
    ids=["nothing", "partial text", "broken first call", "broken second call", "nothing of the second turn"],
)
@pytest.mark.parametrize("partial", [False, True], ids=["dropped", "partial"])
async def test_whatever_the_end_of_a_step_breaks_is_aborted(rig, before, answer, partial):
    rig.args.partial_rollout = partial
    client = rig.serve(*before, abort_with(rig, answer), completion("never"))
    sample = await rig.run(Sample(session_id="broken"))
    assert (sample.status, sample.reward, sample.remove_sample) == (Sample.Status.ABORTED, None, False)
    assert len(client.requests) == len(before) + 1
    if (episode := SESSION.suspended.take("broken")) is not None:
        await episode.cancel()


@pytest.mark.parametrize("breaks", [False, True], ids=["setup", "factory that fails"])
async def test_an_abort_before_the_first_call_is_aborted(rig: Rig, breaks: bool) -> None:
    class Slow(AddEnv):
        async def reset(self) -> None:
            rig.state.aborted = True

    def broken(**options: Any) -> Any:
        rig.state.aborted = True
        raise RuntimeError("no sandbox")

    rig.environment = broken if breaks else Slow
    client = rig.serve(completion("3"))
    assert (await rig.run()).status is Sample.Status.ABORTED
    assert client.requests == []


async def test_an_aborted_sample_holds_nothing_of_an_earlier_attempt(rig: Rig) -> None:
    rig.serve(abort_with(rig, ConnectionError("gone")))
    stale = Sample(
        tokens=[1, 2, 3], response="old", response_length=2, metadata={"mine": 1, "strands_env": {"error": 1}}
    )
    sample = await rig.run(stale)
    assert (sample.tokens, sample.response, sample.response_length) == ([], "", 0)
    assert sample.metadata == {"mine": 1}


# ---- partial rollout -------------------------------------------------------------------------------------------------


async def test_a_suspended_rollout_samples_nothing_until_slime_asks_again(rig: Rig) -> None:
    rig.args.partial_rollout = True
    rig.environment = gated = Gated()
    client = rig.serve(slow_call(), completion("3"))
    running = asyncio.ensure_future(rig.run(Sample(session_id="paused")))
    await gated.called.wait()
    rig.state.aborted = True
    sample = await running
    rig.state.aborted = False  # slime resets its state and trains
    gated.may_end.set()
    await settle()
    assert len(client.requests) == 1
    done = await rig.run(sample)
    assert done.status is Sample.Status.COMPLETED
    assert len(client.requests) == 2


@pytest.mark.parametrize("partial", [True, False], ids=["suspended", "ended"])
async def test_an_aborted_rollout_does_not_retry_its_call(rig: Rig, partial: bool) -> None:
    rig.args.partial_rollout = partial

    def answer(request: faults.ServerCall) -> Any:
        if len(server.requests) > 1:
            return faults.answer(completion("3"))
        rig.state.aborted = True
        return faults.busy()

    async with FaultyServer(answer) as server, make(server.url) as rig.client:
        sample = await rig.run(Sample(session_id="retries"))
        assert sample.status is Sample.Status.ABORTED
        rig.state.aborted = False  # slime resets its state and trains
        await settle()
        assert len(server.requests) == 1
        assert (await rig.run(sample)).status is Sample.Status.COMPLETED
        assert len(server.requests) == 2


async def test_a_call_that_never_got_its_turn_waits_through_long_training(rig: Rig) -> None:
    rig.args.partial_rollout = True
    rig.args.strands_env_model_options = {"abort_timeout": 0.01}  # shorter than the training below
    never = Reply(ids=[], finish="abort")
    rig.serve(completion(call(1, 2)), abort_with(rig, never), abort_with(rig, never), completion("3"))
    sample = Sample(session_id="queued")
    for _ in range(2):
        assert (await rig.run(sample)).response
        rig.state.aborted = False
        await settle()
    done = await rig.run(sample)
    assert (done.status, done.metadata["strands_env"]["suspensions"]) == (Sample.Status.COMPLETED, 2)


async def test_a_rollout_that_fails_after_its_suspension_keeps_nothing_of_it(rig: Rig) -> None:
    rig.args.partial_rollout = True
    rig.serve(
        completion(call(1, 2)), abort_with(rig, Reply(ids=WHOLE.ids[:1], finish="abort")), ConnectionError("gone")
    )
    sample = await rig.run(Sample(session_id="fails"))
    assert sample.response
    rig.state.aborted = False
    failed = await rig.run(sample)
    check(failed)
    assert (failed.status, failed.response, failed.reward) == (Sample.Status.FAILED, "", 0.0)


async def test_a_resumed_rollout_watches_the_state_of_the_new_call(rig: Rig) -> None:
    rig.args.partial_rollout = True
    rig.serve(abort_with(rig, Reply(ids=WHOLE.ids[:1], finish="abort")), completion("3"))
    sample = await rig.run(Sample(session_id="new state"))
    rig.state = types.SimpleNamespace(aborted=False, tokenizer=rig.state.tokenizer)  # the old one stays aborted
    assert (await rig.run(sample)).status is Sample.Status.COMPLETED


async def test_a_rollout_that_broke_while_it_was_suspended_starts_over(rig: Rig) -> None:
    rig.args.partial_rollout = True
    rig.client = client = Late([ConnectionError("the server went down for the update"), completion("3")])
    sample = Sample(session_id="broke")
    running = asyncio.ensure_future(rig.run(sample))
    await client.asked.wait()
    rig.state.aborted = True
    assert (await running).status is Sample.Status.ABORTED
    rig.state.aborted = False
    client.may_answer.set()
    await settle()
    done = await rig.run(sample)
    check(done)
    assert done.status is Sample.Status.COMPLETED
    assert done.metadata["strands_env"]["suspensions"] == 0


class Late(Replay):
    """A client whose answers come when the test says so."""

    def __init__(self, script: list[Any]) -> None:
        super().__init__(script)
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def generate(self, input_ids: Any, **fields: Any) -> dict[str, Any]:
        self.asked.set()
        try:
            return await super().generate(input_ids, **fields)
        finally:
            await self.may_answer.wait()


@pytest.mark.parametrize("resumed_first", [False, True], ids=["before the resumption", "after it"])
async def test_an_answer_that_ends_after_the_abort_is_off_policy(rig: Rig, resumed_first: bool) -> None:
    rig.args.partial_rollout = rig.args.mask_offpolicy_in_partial_rollout = True
    rig.client = client = Late([completion("the old answer", version="1")])
    sample = Sample(session_id="late")
    running = asyncio.ensure_future(rig.run(sample))
    await client.asked.wait()
    rig.state.aborted = True
    assert (await running).status is Sample.Status.ABORTED
    if not resumed_first:
        client.may_answer.set()
        await settle()
    rig.state.aborted = False
    again = asyncio.ensure_future(rig.run(sample))
    await settle()
    client.may_answer.set()
    done = await again
    assert done.status is Sample.Status.COMPLETED
    assert sum(done.loss_mask) == 0


async def test_tokens_of_older_weights_can_be_masked_where_slime_does_not_stop_for_an_update(rig: Rig) -> None:
    rig.args.partial_rollout = rig.args.mask_offpolicy_in_partial_rollout = True
    rig.serve(
        completion(call(1, 2), version="1"),
        Reply(ids=WHOLE.ids[:2], finish="abort", weight_version="1"),  # the update aborts all requests
        Reply(ids=WHOLE.ids[2:], weight_version="2"),
    )
    sample = await rig.run()
    assert (sample.status, sample.weight_versions) == (Sample.Status.COMPLETED, ["1", "1", "2"])
    assert sum(sample.loss_mask) == sum(sample.loss_mask[-len(WHOLE.ids) + 2 :]) == len(WHOLE.ids) - 2


# ---- its end ---------------------------------------------------------------------------------------------------------
