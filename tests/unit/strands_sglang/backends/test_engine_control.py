"""Aborting, pausing, updating weights, closing: what happens to requests in flight."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


from strands_sglang.backends.engine import EmbeddedEngine, TinyModel, make_tiny_model
from strands_sglang.backends.engine.scheduler import CHUNK
from strands_sglang.exceptions import BackendError, BackendRequestError, SGLangConnectionError
from tests.servers.engine_server import forget_prefixes, generate
from tests.unit.engine_support import SMALL, assert_exact

PROMPT = [20, 21, 22, 23]
LONG: dict[str, Any] = {"sampling_params": {"temperature": 0, "max_new_tokens": 3000, "ignore_eos": True}}


@pytest.fixture(scope="module")
def tiny() -> TinyModel:
    return make_tiny_model()


@pytest.fixture
async def engine(tiny: TinyModel) -> AsyncIterator[EmbeddedEngine]:
    async with EmbeddedEngine(tiny.model, tokenizer=tiny.tokenizer, threads=1) as engine:
        yield engine


async def running(engine: EmbeddedEngine, count: int = 1) -> None:
    """Wait until so many requests are being computed and have sampled something."""
    while not (
        len(engine._scheduler.running) == count and all(request.output for request in engine._scheduler.running)
    ):
        await asyncio.sleep(0.001)


async def test_an_abort_ends_its_own_request_with_what_was_sampled(engine: EmbeddedEngine) -> None:
    one, other = (
        asyncio.create_task(generate(engine, PROMPT, rid=rid, return_logprob=True, **LONG)) for rid in ("t-1", "t-10")
    )
    await running(engine, 2)
    with pytest.raises(BackendRequestError, match="rid='t-1' is that of a request in flight"):
        await generate(engine, PROMPT, rid="t-1", **LONG)
    assert (await engine.abort("t-1"), await engine.abort("unknown")) == (True, False)
    answer = await one
    meta = answer["meta_info"]
    assert (meta["id"], meta["finish_reason"]) == ("t-1", {"type": "abort", "message": "aborted"})
    assert 0 < meta["completion_tokens"] == len(answer["output_ids"]) == len(meta["output_token_logprobs"]) < 3000
    assert not other.done()
    other.cancel()  # which frees the engine, too
    with pytest.raises(asyncio.CancelledError):
        await other
    await engine._call(lambda: None)
    assert not engine._scheduler.running


async def test_a_waiting_request_is_aborted_and_knows_no_prompt(tiny: TinyModel) -> None:
    async with EmbeddedEngine(tiny.model, tokenizer=tiny.tokenizer, threads=1, max_batch_size=1) as engine:
        first = asyncio.create_task(generate(engine, PROMPT, **LONG))
        await running(engine)
        second = asyncio.create_task(generate(engine, PROMPT, rid="b", **LONG))
        while not engine._scheduler.waiting:
            await asyncio.sleep(0.001)
        await engine.abort("b")
        meta = (await second)["meta_info"]
        assert meta["finish_reason"]["type"] == "abort"
        assert "prompt_tokens" not in meta and meta["completion_tokens"] == 0
        await engine.abort_all()
        await first


async def test_a_pause_holds_running_requests_and_new_ones_and_changes_no_token(engine: EmbeddedEngine) -> None:
    fields = {"sampling_params": LONG["sampling_params"] | {"max_new_tokens": 200}}
    expected = await generate(engine, PROMPT, **fields)
    task = asyncio.create_task(generate(engine, PROMPT, **fields))
    await running(engine)
    await engine.pause_generation()
    new = asyncio.create_task(generate(engine, [5], sampling_params={"max_new_tokens": 1}))
    await asyncio.sleep(0.02)
    assert not task.done() and not new.done()
    await engine.continue_generation()
    assert (await task)["output_ids"] == expected["output_ids"]
    await new


async def test_an_abort_takes_effect_during_a_pause(engine: EmbeddedEngine) -> None:
    task = asyncio.create_task(generate(engine, PROMPT, **LONG))
    await running(engine)
    await engine.pause_generation()
    await engine.update_weights(make_tiny_model(seed=1).model)
    await engine.abort_all()
    assert (await task)["meta_info"]["finish_reason"]["type"] == "abort"
    await engine.continue_generation()
    # What the old weights computed for it was not stored.
    assert (await generate(engine, PROMPT, sampling_params={"max_new_tokens": 1}))["meta_info"]["cached_tokens"] == 0


@pytest.mark.parametrize("neighbour", [False, True])
async def test_a_request_whose_keys_were_forgotten_is_computed_again(engine: EmbeddedEngine, neighbour: bool) -> None:
    """With a neighbour, all but one token of its first chunk is in the cache."""
    known = [15 + index * 11 % 900 for index in range(CHUNK - 1)]
    prompt, fields = [*known, 7, 8, 9], {"sampling_params": LONG["sampling_params"] | {"max_new_tokens": 200}}
    expected = await generate(engine, prompt, **fields)
    await forget_prefixes(engine)
    task = asyncio.create_task(generate(engine, prompt, **fields))
    await running(engine)
    await engine.pause_generation()
    await engine._call(engine._scheduler.forget_computed)
    if neighbour:
        other = asyncio.create_task(generate(engine, [*known, 900, 901], sampling_params={"max_new_tokens": 0}))
        while len(engine._scheduler.waiting) < 2:
            await asyncio.sleep(0.001)
        await engine._call(lambda: engine._scheduler.waiting.rotate())  # the other one is computed first
    await engine.continue_generation()
    assert (await task)["output_ids"] == expected["output_ids"]
    if neighbour:
        await other


async def test_an_update_under_way_gives_two_spans_each_exact_under_its_weights(engine: EmbeddedEngine) -> None:
    new = make_tiny_model(seed=1)
    sampling = LONG["sampling_params"] | {"max_new_tokens": 300}
    first = await generate(engine, PROMPT, sampling_params=sampling)
    task = asyncio.create_task(generate(engine, PROMPT, sampling_params=sampling, return_logprob=True))
    await running(engine)
    await engine.pause_generation()
    held = len(engine._scheduler.running[0].output)
    await engine.update_weights(new.model.state_dict(), "v2")
    await engine.continue_generation()
    answer = await task
    meta = answer["meta_info"]
    assert meta["weight_versions"] == [
        {"version": "default", "start": 0, "end": held},
        {"version": "v2", "start": held, "end": 300},
    ]
    assert meta["weight_version"] == engine.weight_version == "v2"
    assert_exact(answer, PROMPT, new.model, since=held)
    # Prefixes that the old weights computed are not used for the new ones.
    again = await generate(engine, PROMPT + first["output_ids"], sampling_params=sampling)
    assert again["meta_info"]["cached_tokens"] < len(PROMPT) + held + 5


async def test_weights_of_another_shape_are_refused_and_change_nothing(engine: EmbeddedEngine) -> None:
    before = await generate(engine, PROMPT, sampling_params={"temperature": 0})
    with pytest.raises(ValueError, match="do not fit"):
        await engine.update_weights(make_tiny_model(hidden_size=32).model, "v2")
    assert (await generate(engine, PROMPT, sampling_params={"temperature": 0}))["output_ids"] == before["output_ids"]
    assert engine.weight_version == "default"


async def test_the_model_given_is_left_alone(tiny: TinyModel, engine: EmbeddedEngine) -> None:
    assert tiny.model.config._attn_implementation == "sdpa"
    before = {name: value.clone() for name, value in tiny.model.state_dict().items()}
    await engine.update_weights(make_tiny_model(seed=1).model)
    assert all(value.equal(before[name]) for name, value in tiny.model.state_dict().items())


async def test_closing_fails_requests_in_flight_and_new_ones(tiny: TinyModel) -> None:
    engine = EmbeddedEngine(tiny.model, tokenizer=tiny.tokenizer, threads=1)
    task = asyncio.create_task(generate(engine, PROMPT, **LONG))
    await running(engine)
    await engine.close()
    with pytest.raises(SGLangConnectionError):
        await task
    with pytest.raises(SGLangConnectionError):
        await generate(engine, PROMPT)
    await engine.close()


async def test_closing_from_another_thread_does_not_leave_a_call_behind(tiny, monkeypatch):
    engine = EmbeddedEngine(tiny.model, tokenizer=tiny.tokenizer, threads=1)
    closing = threading.Thread(target=lambda: asyncio.run(engine.close()))
    commands = engine._commands

    class Closing:
        """Closes the engine just before the first command is put."""

        def put(self, command: Any) -> None:
            if not closing.is_alive() and not engine._closed:
                closing.start()
                closing.join(0.5)
            commands.put(command)

        def __getattr__(self, name: str) -> Any:
            return getattr(commands, name)

    monkeypatch.setattr(engine, "_commands", Closing())
    with pytest.raises(SGLangConnectionError):
        await generate(engine, PROMPT, **LONG)
    await asyncio.to_thread(closing.join)


async def test_a_broken_step_fails_its_requests_and_not_the_engine(engine: EmbeddedEngine) -> None:
    runner = engine._scheduler._runner
    original = runner.forward

    def broken(segments: Any) -> Any:
        raise RuntimeError("boom")

    runner.forward = broken  # type: ignore[method-assign]
    with pytest.raises(BackendError, match="boom"):
        await generate(engine, PROMPT)
    runner.forward = original  # type: ignore[method-assign]
    assert (await generate(engine, PROMPT, sampling_params={"max_new_tokens": 1}))["output_ids"]


async def test_several_event_loops_share_an_engine(engine: EmbeddedEngine) -> None:
    params = {"temperature": 0, "max_new_tokens": 20}
    calls = (asyncio.to_thread(asyncio.run, generate(engine, PROMPT, sampling_params=params)) for _ in range(4))
    assert len({tuple(answer["output_ids"]) for answer in await asyncio.gather(*calls)}) == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_batch_size": 0}, "max_batch_size must be a positive whole number"),
        ({"threads": 0}, "threads must be"),
        ({"context_length": 0}, "context_length must be"),
        ({"device": "cuda:99"}, "device='cuda:99' cannot be used here"),
    ],
)
def test_arguments_out_of_range_are_refused(tiny: TinyModel, values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EmbeddedEngine(tiny.model, tokenizer=tiny.tokenizer, **values)


async def test_tied_weights_may_be_left_out_of_an_update(tiny: TinyModel) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**SMALL, tie_word_embeddings=True)
    old, new = Qwen3ForCausalLM(config), Qwen3ForCausalLM(config)
    state = {name: value for name, value in new.state_dict().items() if name != "lm_head.weight"}
    greedy = {"sampling_params": {"temperature": 0, "max_new_tokens": 16}}
    async with EmbeddedEngine(old, tokenizer=tiny.tokenizer, threads=1) as engine:
        await engine.update_weights(state, "v2")
        updated = await generate(engine, PROMPT, **greedy)
    async with EmbeddedEngine(new, tokenizer=tiny.tokenizer, threads=1) as engine:
        expected = await generate(engine, PROMPT, **greedy)
    assert updated["output_ids"] == expected["output_ids"]
