"""Rollouts through faults: what is recorded is what a fault-free run records, token for token.

The server is real (loopback), the model behind it a hash of the prompt: continued from any point it samples the same.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import itertools
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from provider_support import make_agent
from rollout_support import Tokens, failure, make_model, only_trajectory, rollout
from strands.types.exceptions import EventLoopException, MaxTokensReachedException

from strands_sglang import SGLangClient, SGLangModel
from strands_sglang.backends.http.retry import DEFAULT_LIMITS, RetryClass
from strands_sglang.exceptions import SGLangHTTPError, SGLangThrottledError, StrandsSGLangError, TokenBudgetReachedError
from strands_sglang.testing import Reply
from strands_sglang.trajectory import LengthLimit, WeightSpan
from tests.servers import Fault, FaultyServer, ServerCall, faults, settle

TURNS = 5
TIMEOUT_S = 0.5
"""Of the tests that hang; a good answer takes some milliseconds, and a repetition is harmless."""


def make_client(url: str, **options: Any) -> SGLangClient:
    settings: dict[str, Any] = {"retry_delay": 0.001, "max_retry_delay": 0.01, "timeout": 20.0}
    return SGLangClient(url, **{**settings, **options})


@pytest.fixture(scope="module")
def fault_free() -> Tokens:
    async def run() -> Tokens:
        async with FaultyServer() as server, make_client(server.url) as client:
            return await rollout(make_model(client), TURNS)

    made = asyncio.run(run())
    assert made.turns == TURNS
    assert sum(made.mask) > TURNS
    return made


def on_turns(fault: Fault, *turns: int, times: int = 1) -> Callable[[ServerCall], Fault | None]:
    """That fault for the first `times` requests of these turns (the prompts of the rollout, counted from 0)."""
    prompts: list[list[int]] = []
    met: dict[int, int] = {}

    def choose(call: ServerCall) -> Fault | None:
        ids = call.body["input_ids"]
        if ids not in prompts:
            prompts.append(ids)
        turn = prompts.index(ids)
        met[turn] = met.get(turn, 0) + 1
        return fault if turn in turns and met[turn] <= times else None

    return choose


def assert_nothing_lost_or_duplicated(server: FaultyServer, model: SGLangModel, expected: Tokens) -> None:
    """The trajectory is the fault-free one; each of its requests was answered; no id was ever sent twice."""
    assert only_trajectory(model) == expected
    (trajectory,) = model.trajectories
    assert len(set(server.rids)) == len(server.rids)
    assert len(set(trajectory.request_ids)) == len(trajectory.request_ids)
    # A slow answer is still being written, for the server, when the client has its last byte.
    answered = {r.rid for r in server.requests if r.outcome != "disconnected" and r.status in (200, None)}
    assert set(trajectory.request_ids) <= answered


HEALING: dict[str, tuple[Fault, dict[str, Any]]] = {
    "503 queue full": (faults.busy(), {}),
    "429 with Retry-After": (faults.status(429, {"error": "slow down"}, headers={"Retry-After": "0.02"}), {}),
    "reset before the head": (faults.reset(), {}),
    "closed before the head": (faults.close(), {}),
    "reset in the body": (faults.half_written(), {}),
    "whole message of half an answer": (faults.half_written(framed=False), {}),
    "stale keep-alive": (faults.reset_if_reused(), {}),
    "closed after the answer": (faults.close_after(), {}),
    "not HTTP": (faults.not_http(), {}),
    "an empty body": (faults.raw_answer(b""), {}),
    "no meta_info": (faults.raw_answer({"output_ids": [1]}), {}),
    "a hang": (faults.hang(), {"timeout": TIMEOUT_S}),
    "a body that is too slow": (faults.slow(60.0), {"timeout": TIMEOUT_S}),
    "a slow body": (faults.slow(0.1), {}),
    "500 plain text": (faults.status(500, "Internal Server Error"), {}),
    "500 of a lost worker": (faults.worker_lost(), {}),
    "502": (faults.status(502, "<html>bad gateway</html>"), {}),
    "504": (faults.status(504, ""), {}),
    "error object in a 200": (faults.raw_answer({"error": {"message": "busy", "code": 503}}), {}),
    "400 duplicate id": (faults.status(400, {"error": {"message": "Duplicate request ID detected: x"}}), {}),
    "abort before anything": (faults.aborted(), {}),
    "abort part of the way": (faults.aborted_partway(), {}),
}


@pytest.mark.parametrize("name", HEALING)
async def test_a_fault_that_heals_leaves_no_trace(name: str, fault_free: Tokens) -> None:
    fault, options = HEALING[name]
    choose = on_turns(fault, 0, 2, TURNS - 1)
    async with FaultyServer(choose) as server, make_client(server.url, **options) as client:
        model = make_model(client)
        await rollout(model, TURNS)
        assert_nothing_lost_or_duplicated(server, model, fault_free)
        if name not in ("a slow body", "closed after the answer", "stale keep-alive"):
            assert len(server.requests) == TURNS + 3
        await settle(client)
        while server.running:
            await asyncio.sleep(0.01)


async def test_a_server_that_restarts_costs_nothing(fault_free: Tokens) -> None:
    server = FaultyServer(on_turns(faults.hang(), 2))
    await server.start()
    async with make_client(server.url, retry_delay=0.05) as client:
        model = make_model(client)
        running = asyncio.create_task(rollout(model, TURNS))
        await server.wait_for_requests(3)
        await server.stop()
        await asyncio.sleep(0.1)
        await server.start()
        await running
        assert_nothing_lost_or_duplicated(server, model, fault_free)
        assert len(server.requests) == TURNS + 1
    await server.stop()


async def test_a_paused_server_is_waited_for(fault_free: Tokens) -> None:
    async with FaultyServer() as server, make_client(server.url) as client:
        model = make_model(client)
        server.pause()
        running = asyncio.create_task(rollout(model, TURNS))
        await server.wait_for_requests(1)
        await asyncio.sleep(0.1)
        assert not running.done()
        server.resume()
        await running
        assert_nothing_lost_or_duplicated(server, model, fault_free)
        assert len(server.requests) == TURNS


async def test_a_weight_update_that_aborts_is_resumed_under_the_new_version(fault_free: Tokens) -> None:
    async def abort_and_update(call: ServerCall) -> Any:
        response = await faults.aborted_partway()(call)
        call.server.weight_version = "v2"
        return response

    async with FaultyServer(on_turns(abort_and_update, 1)) as server, make_client(server.url) as client:
        model = make_model(client)
        assert await rollout(model, TURNS) == fault_free
        (trajectory,) = model.trajectories
        second = trajectory.turns[1].completion
        half = len(second.output_ids) // 2
        assert [span.version for span in second.weight_spans] == ["default", "v2"][-1 if not half else 0 :]
        if half:
            assert second.weight_spans[0] == WeightSpan(version="default", start=0, end=half)
        assert second.weight_spans[-1].end == len(second.output_ids)
        assert {span.version for turn in trajectory.turns[2:] for span in turn.completion.weight_spans} == {"v2"}
        spans = model.token_manager.weight_versions
        assert all(all(trajectory.loss_mask[span.start : span.end]) for span in spans)
        assert sum(span.end - span.start for span in spans) == sum(trajectory.loss_mask)


async def test_all_requests_of_an_episode_carry_one_routing_key_and_another_episode_has_another() -> None:
    async with FaultyServer(on_turns(faults.busy(), 1)) as server, make_client(server.url) as client:
        model = make_model(client)
        await rollout(model, 3)
        first = {request.headers["x-smg-routing-key"] for request in server.requests}
        model.reset()
        await rollout(model, 2)
        keys = {request.headers["x-smg-routing-key"] for request in server.requests}
        assert len(first) == 1
        assert len(keys) == 2


# ---- what cannot heal ------------------------------------------------------------------------------------------------

STREAM = 'data: {"error": {"message": "no such thing", "code": 400, "retryable": false}}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (faults.status(400, {"error": {"message": "temperature must be non-negative"}}), "non-negative"),
        (faults.status(422, "Failed to deserialize"), "deserialize"),  # of a router
        (faults.status(200, STREAM, headers={"Content-Type": "text/event-stream"}), "no such thing"),
        (faults.status(307, "", headers={"Location": "/elsewhere"}), "307"),
    ],
    ids=["400", "422", "stream", "redirect"],
)
async def test_what_cannot_heal_ends_at_once_and_keeps_the_tokens_so_far(fault: Any, words: str, fault_free: Tokens):
    async with FaultyServer(on_turns(fault, 2, times=99)) as server, make_client(server.url) as client:
        model = make_model(client)
        error = await failure(model, TURNS)
        assert type(error) is SGLangHTTPError
        assert words in str(error)
        assert len(server.requests) == 3
        assert_kept(model, fault_free, turns=2)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def assert_kept(model: SGLangModel, fault_free: Tokens, *, turns: int) -> None:
    """The trajectory is that of the fault-free run up to the last complete turn."""
    kept = only_trajectory(model)
    length = len(kept.ids)
    assert (kept.turns, kept.mask[-1]) == (turns, 1)
    assert kept.ids == fault_free.ids[:length]
    assert kept.mask == fault_free.mask[:length]
    assert kept.logprobs == fault_free.logprobs[:length]


@pytest.mark.parametrize(
    ("fault", "error", "options"),
    [
        (faults.status(500, "boom"), SGLangHTTPError, {}),
        (faults.busy(), SGLangThrottledError, {"max_retries": 3}),  # not the SDK's error, which an agent would retry
    ],
    ids=["broken", "full"],
)
async def test_a_fault_that_stays_is_given_up_and_the_episode_can_go_on(
    fault_free: Tokens, fault: Any, error: type[Exception], options: dict[str, Any]
) -> None:
    attempts = 1 + options.get("max_retries", DEFAULT_LIMITS[RetryClass.SERVER_ERROR])
    choose = on_turns(fault, 1, times=attempts)
    async with FaultyServer(choose) as server, make_client(server.url, **options) as client:
        model = make_model(client)
        agent = make_agent(model)
        with pytest.raises(EventLoopException) as caught:
            await agent.invoke_async("What is 1 + 2?", limits={"turns": TURNS})
        assert type(caught.value.original_exception) is error
        assert any(f"{attempts} attempts" in note for note in caught.value.original_exception.__notes__)
        assert len(server.requests) == 1 + attempts
        assert_kept(model, fault_free, turns=1)
        # The agent has the history up to the failed call, the provider the path that belongs to it.
        result = await agent.invoke_async(None, limits={"turns": TURNS - 1})
        assert result.stop_reason == "limit_turns"
        assert_nothing_lost_or_duplicated(server, model, fault_free)


def longest_turn(tokens: Tokens) -> slice:
    """Where the turn with the most sampled tokens, the first one left out, has them."""
    starts = [n for n, loss in enumerate(tokens.mask) if loss and not tokens.mask[n - 1]]
    ends = [n + 1 for n, loss in enumerate(tokens.mask) if loss and not (tokens.mask[n + 1 :] or [0])[0]]
    longest = max(zip(starts[1:], ends[1:], strict=True), key=lambda run: run[1] - run[0])
    assert longest[1] - longest[0] > 2
    return slice(*longest)


@pytest.mark.parametrize("aborts", [0, 2])
@pytest.mark.parametrize("where", ["before the first token", "after the first token", "before the last", "after it"])
@pytest.mark.parametrize("option", ["max_sampled_tokens", "max_trajectory_tokens", "max_response_tokens"])
async def test_budgets_are_exact_at_their_boundary(fault_free: Tokens, option: str, where: str, aborts: int) -> None:
    turn = longest_turn(fault_free)
    end = {
        "before the first token": turn.start,
        "after the first token": turn.start + 1,
        "before the last": turn.stop - 1,
        "after it": turn.stop,
    }[where]
    budget = {
        "max_sampled_tokens": sum(fault_free.mask[:end]),
        "max_trajectory_tokens": end,
        "max_response_tokens": end - fault_free.mask.index(1),  # what follows the first prompt
    }[option]
    choose = on_turns(faults.aborted_partway(), *range(99), times=aborts)
    async with FaultyServer(choose) as server, make_client(server.url) as client:
        model = make_model(client, **{option: budget})
        error = await failure(model, turns=50)
        assert isinstance(error, MaxTokensReachedException)
        within_a_turn = where in ("after the first token", "before the last")
        assert isinstance(error, TokenBudgetReachedError) is not within_a_turn
        if within_a_turn:
            kind = LengthLimit.SAMPLED_BUDGET if option == "max_sampled_tokens" else LengthLimit.TRAJECTORY_BUDGET
            assert model.trajectories[0].finish.limited_by is kind
        else:
            assert f"{option}={budget}" in str(error)
        kept = only_trajectory(model)
        recorded = end if within_a_turn or where == "after it" else max(n for n in range(end) if fault_free.mask[n]) + 1
        assert kept.ids == fault_free.ids[:recorded]
        assert kept.logprobs == fault_free.logprobs[:recorded]


# ---- cancellation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["agent.cancel", "task.cancel", "asyncio.timeout"])
@pytest.mark.parametrize("where", ["waiting for the answer", "waiting to retry", "resuming"])
async def test_a_cancelled_episode_ends_at_its_last_complete_turn(how: str, where: str, fault_free: Tokens) -> None:
    fault = {
        "waiting for the answer": faults.hang(),
        "waiting to retry": faults.busy(retry_after=60),
        "resuming": faults.aborted(),
    }[where]
    async with FaultyServer(on_turns(fault, 2, times=99)) as server, make_client(server.url) as client:
        model = make_model(client)
        agent = make_agent(model)
        limit = asyncio.timeout(None)

        async def run() -> Any:
            async with limit:
                return await agent.invoke_async("What is 1 + 2?", limits={"turns": TURNS})

        task = asyncio.create_task(run())
        await server.wait_for_requests(3)
        await asyncio.sleep(0.02)
        if how == "agent.cancel":
            agent.cancel()
            assert (await task).stop_reason == "cancelled"
        elif how == "task.cancel":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            limit.reschedule(asyncio.get_running_loop().time())
            with pytest.raises(TimeoutError):
                await task
        await settle(client)
        assert server.running == []
        assert_kept(model, fault_free, turns=2)


async def test_an_aborted_answer_under_a_grammar_is_surfaced_since_the_grammar_would_start_over() -> None:
    async with FaultyServer([faults.aborted((5, 6))]) as server, make_client(server.url) as client:
        model = make_model(client, sampling_params={"max_new_tokens": 9, "regex": "a+"})
        assert (await make_agent(model).invoke_async("go")).stop_reason == "aborted"
        assert len(server.requests) == 1
        assert model.trajectories[0].finish_reason == "abort"


# ---- answers that are not what they should be ------------------------------------------------------------------------

WRONG: list[Any] = [None, "x", -1, 1.5, [], {}, True, 10**30, [1], [[]], {"a": 1}, ...]
"""Replaces any part of an answer; `...` removes it."""


def wrong_answers(answer: Any) -> Iterator[tuple[str, bytes]]:
    """The answer as JSON with each of its parts, in turn, replaced by each wrong value."""
    parts: list[tuple[Any, ...]] = []

    def collect(part: Any, path: tuple[Any, ...]) -> None:
        parts.append(path)
        items = part.items() if isinstance(part, dict) else enumerate(part[:2]) if isinstance(part, list) else ()
        for key, inner in items:
            collect(inner, (*path, key))

    collect(answer, ())
    for path in parts:
        for value in WRONG:
            holder = {"answer": copy.deepcopy(answer)}
            inner: Any = holder
            keys = ("answer", *path)
            for key in keys[:-1]:
                inner = inner[key]
            if value is ...:
                del inner[keys[-1]]
            else:
                inner[keys[-1]] = value
            name = f"{'.'.join(map(str, path))} = {'nothing' if value is ... else value!r}"
            yield name, json.dumps(holder.get("answer")).encode()


ASKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "logprobs": ({}, {}),
    "prompt logprobs": (
        {"return_prompt_logprobs": True},
        {"input_token_logprobs": [[None, 1, None], [-0.5, 2, None]]},
    ),
    "sampling sets": ({"return_sampling_mask": True}, {"output_token_sampling_mask": [[5, 9], [6]]}),
    "experts": ({"return_routed_experts": True, "require_routed_experts": True}, {"routed_experts": "EXPERTS"}),
    "ids alone": ({"return_logprob": False}, {"output_token_logprobs": None}),
}


@pytest.mark.parametrize("asked", ASKED)
async def test_a_wrong_answer_is_a_typed_error_or_what_it_says_whatever_part_is_wrong(asked: str) -> None:
    options, extra = ASKED[asked]
    meta = {
        "id": "r",
        "finish_reason": {"type": "stop", "matched": 6},
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cached_tokens": 1,
        "weight_version": "v",
        "weight_versions": [{"version": "v", "start": 0, "end": 1}, {"version": "w", "start": 1, "end": 2}],
        "e2e_latency": 0.1,
        "output_token_logprobs": [[-0.1, 5, None], [-0.2, 6, None]],
        **extra,
    }
    cases = dict(wrong_answers({"text": "x", "output_ids": [5, 6], "meta_info": meta}))
    if asked == "logprobs":
        assert len(cases) > 300
    else:  # the rest is the same
        cases = {name: body for name, body in cases.items() if any(key in name for key in extra) or "output" in name}
    bodies = iter(cases.values())
    kept = 0

    def choose(call: ServerCall) -> Fault:
        size = len(call.body["input_ids"])
        body = next(bodies).replace(b'"prompt_tokens": 3', b'"prompt_tokens": %d' % size)
        return faults.raw_answer(body.replace(b"EXPERTS", base64.b64encode(bytes(4 * (size + 1)))))

    async with FaultyServer(choose) as server:
        client = make_client(server.url, max_retries=0)
        for name in cases:
            model = make_model(client, **options)
            try:
                async for _ in model.stream([{"role": "user", "content": [{"text": "go"}]}]):
                    pass
            except StrandsSGLangError:
                assert model.trajectories == [], name
            except Exception as error:
                raise AssertionError(f"{name}: {error!r} is no error of this package") from error
            else:
                kept += 1
                manager = model.token_manager
                assert manager.token_ids[-2:] == [5, 6] or "output_ids" in name, name
                start = len(model.forest.turns[0].prompt_ids)
                spans = manager.weight_versions
                if len(manager) > start:
                    assert (spans[0].start, spans[-1].end) == (start, len(manager)), name
                    assert all(a.end == b.start for a, b in itertools.pairwise(spans)), name
                assert all(span.version is None or type(span.version) is str for span in spans), name
        await client.close()
    assert kept


async def test_a_server_that_does_not_tell_its_vocabulary_is_asked_once_and_reported(caplog):
    async with FaultyServer() as server, make_client(server.url) as client:
        await rollout(make_model(client, vocab_size=None), 3)
        assert server.paths.count("GET /model_info") == 1
        assert sum("give vocab_size" in record.getMessage() for record in caplog.records) == 1


async def test_a_field_that_has_no_effect_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    def without_logprobs(call: ServerCall) -> Fault:
        made = call.answer(Reply(ids=[7, 6]))
        made["meta_info"].pop("output_token_logprobs")
        return faults.raw_answer(made, headers={"x-smg-routed-worker-id": "w1"})

    async with FaultyServer(without_logprobs) as server, make_client(server.url) as client:
        model = make_model(client, sampling_params={"max_new_tokens": 8, "logit_bias": {"5": 1.0}})
        await rollout(model, 3)
        warned = [
            record.getMessage()
            for record in caplog.records
            if record.name.startswith("strands_sglang.backends.sglang") and record.levelname == "WARNING"
        ]
        assert sum("field=<return_logprob>" in text for text in warned) == 1
        assert sum("sampling_params.logit_bias" in text for text in warned) == 1
        kept = only_trajectory(model)
        assert {value for value, sampled in zip(kept.logprobs, kept.mask, strict=True) if sampled} == {None}
        assert len(server.requests) == 3
