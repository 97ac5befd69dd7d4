"""The embedded engine's answers: layout, exactness, batching, prefixes, grammars, stops. On a tiny random model."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from strands_sglang.backends.engine import EmbeddedEngine, TinyModel, make_tiny_model
from strands_sglang.exceptions import BackendRequestError
from tests.servers.engine_server import forget_prefixes, generate
from tests.unit.engine_support import SMALL, assert_exact, forward

PROMPT = list(range(20, 60))
SCORED: dict[str, Any] = {"return_logprob": True, "logprob_start_len": 0}
YES_OR_NO = 'root ::= "yes" | "no"'


@pytest.fixture(scope="module")
def tiny() -> TinyModel:
    return make_tiny_model()


@pytest.fixture(scope="module")
def engine(tiny: TinyModel) -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(tiny.model, tokenizer=tiny.tokenizer, seed=0, threads=1)
    yield engine
    asyncio.run(engine.close())


def params(**values: Any) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True} | values


async def generate_ids(engine: EmbeddedEngine, **values: Any) -> list[int]:
    return list((await generate(engine, PROMPT, sampling_params=params(**values)))["output_ids"])


def prompts(count: int, *, longest: int = 700) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(10, 1000) for _ in range(rng.randint(2, longest))] for _ in range(count)]


async def test_no_new_tokens_scores_the_prompt_only(engine: EmbeddedEngine) -> None:
    answer = await generate(engine, PROMPT, sampling_params=params(max_new_tokens=0), **SCORED)
    assert (answer["output_ids"], answer["meta_info"]["finish_reason"]) == ([], {"type": "length", "length": 0})
    assert len(answer["meta_info"]["input_token_logprobs"]) == len(PROMPT)


# Exactness


@pytest.mark.parametrize("temperature", [1.0, 0.5])
async def test_logprobs_agree_with_a_separate_forward_pass(engine, tiny, temperature):
    sampling = params(temperature=temperature, max_new_tokens=24, sampling_seed=3, top_p=0.9, top_k=50)
    for prompt in prompts(3):
        answer = await generate(engine, prompt, sampling_params=sampling, **SCORED)
        assert_exact(answer, prompt, tiny.model, temperature)


async def test_greedy_takes_the_argmax_of_a_separate_forward_pass(engine: EmbeddedEngine, tiny: TinyModel) -> None:
    answer = await generate(engine, PROMPT, sampling_params=params(max_new_tokens=30))
    best = forward(tiny.model, PROMPT + answer["output_ids"]).argmax(-1)
    assert best[len(PROMPT) - 1 : -1].tolist() == answer["output_ids"]


async def test_greedy_output_is_bit_for_bit_the_same_alone_repeated_and_in_a_batch(engine: EmbeddedEngine) -> None:
    fields: dict[str, Any] = {"sampling_params": params(max_new_tokens=24), "return_logprob": True}
    alone = []
    for prompt in prompts(8):
        await forget_prefixes(engine)
        alone.append(await generate(engine, prompt, **fields))
    repeated = [await generate(engine, prompts(8)[-1], **fields)]
    assert repeated[0]["meta_info"]["cached_tokens"] == len(prompts(8)[-1]) - 1
    await forget_prefixes(engine)
    batch = await asyncio.gather(*(generate(engine, prompt, **fields) for prompt in prompts(8)))
    for one, other in zip([*alone, alone[-1]], [*batch, *repeated], strict=True):
        assert one["output_ids"] == other["output_ids"]
        assert one["meta_info"]["output_token_logprobs"] == other["meta_info"]["output_token_logprobs"]


async def test_the_rows_of_a_batch_are_computed_together(engine: EmbeddedEngine) -> None:
    runner = engine._scheduler._runner
    sizes: list[int] = []
    original = runner.forward
    runner.forward = lambda segments: sizes.append(len(segments)) or original(segments)  # type: ignore[method-assign]
    try:
        many = prompts(6, longest=20)
        await asyncio.gather(*(generate(engine, prompt, sampling_params=params(max_new_tokens=40)) for prompt in many))
    finally:
        runner.forward = original  # type: ignore[method-assign]
    assert max(sizes) == 6 and len(sizes) < 60


# Seeds


async def test_a_sampling_seed_repeats_its_sample_in_any_batch(engine: EmbeddedEngine) -> None:
    def run(seed: int) -> Any:
        return generate(engine, PROMPT, sampling_params=params(temperature=1.0, sampling_seed=seed, max_new_tokens=20))

    alone = await run(7)
    batch = await asyncio.gather(*(run(seed) for seed in (5, 6, 7, 8)))
    assert batch[2]["output_ids"] == alone["output_ids"]
    assert len({tuple(answer["output_ids"]) for answer in batch}) == 4


async def test_an_engine_seed_repeats_a_run(tiny: TinyModel) -> None:
    runs = []
    for _ in range(2):
        async with EmbeddedEngine(tiny.model, tokenizer=tiny.tokenizer, seed=11, threads=1) as engine:
            runs.append([(await generate(engine, PROMPT))["output_ids"] for _ in range(2)])
    assert runs[0] == runs[1] and runs[0][0] != runs[0][1]


async def test_sampling_follows_the_distribution(engine: EmbeddedEngine, tiny: TinyModel) -> None:
    answers = await asyncio.gather(
        *(generate(engine, [5], sampling_params=params(temperature=1.0, max_new_tokens=1)) for _ in range(400))
    )
    tokens = [answer["output_ids"][0] for answer in answers]
    probs = forward(tiny.model, [5])[0].softmax(-1)
    best = int(probs.argmax())
    expected = float(probs[best])
    assert tokens.count(best) / 400 == pytest.approx(expected, abs=5 * (expected * (1 - expected) / 400) ** 0.5)


@pytest.mark.parametrize(("key", "value"), [("top_k", 3), ("top_p", 0.3), ("min_p", 0.5)])
async def test_filters_keep_likely_tokens_only(engine: EmbeddedEngine, tiny: TinyModel, key: str, value: float) -> None:
    probs, order = forward(tiny.model, PROMPT)[-1].softmax(-1).sort(descending=True)
    kept = {
        "top_k": order[:3],
        "top_p": order[(probs.cumsum(0) - probs) <= 0.3],
        "min_p": order[probs >= probs[0] * 0.5],
    }[key].tolist()
    sampling = params(temperature=1.0, max_new_tokens=1) | {key: value}
    for _ in range(60):
        (token,) = await generate_ids(engine, **sampling)
        assert token in kept


# Stops


async def test_a_stop_token_is_in_the_ids_unless_ignore_eos_ignores_it(engine: EmbeddedEngine) -> None:
    free = await generate(engine, PROMPT, sampling_params=params())
    stop = free["output_ids"][3]
    assert stop not in free["output_ids"][:3]
    answer = await generate(engine, PROMPT, sampling_params=params(stop_token_ids=[stop], ignore_eos=False))
    assert answer["output_ids"] == free["output_ids"][:4]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert await generate_ids(engine, stop_token_ids=[stop]) == free["output_ids"]


async def test_a_stop_string_ends_the_answer_as_soon_as_it_is_whole(engine: EmbeddedEngine) -> None:
    sampling = params(regex="alpha STOP beta", stop=["STOP"], max_new_tokens=32)
    answer = await generate(engine, PROMPT, sampling_params=sampling)
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "STOP"}
    assert answer["text"].startswith("alpha STOP") and answer["text"] != "alpha STOP beta"


async def test_min_new_tokens_holds_the_end_back(engine: EmbeddedEngine) -> None:
    end = engine.tokenizer.eos_token_id
    ids = await generate_ids(engine, logit_bias={str(end): 1000.0}, min_new_tokens=3, ignore_eos=False)
    assert len(ids) == 4 and ids[-1] == end


async def test_penalties_discourage_what_was_sampled(engine: EmbeddedEngine) -> None:
    plain = await generate(engine, [5, 6], sampling_params=params(max_new_tokens=60))
    for penalty in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 2.0}):
        answer = await generate(engine, [5, 6], sampling_params=params(max_new_tokens=60) | penalty)
        assert len(set(answer["output_ids"])) > len(set(plain["output_ids"])), penalty


# Grammars


@pytest.mark.parametrize(("grammar", "texts"), [({"regex": "hello"}, ["hello"]), ({"ebnf": YES_OR_NO}, ["yes", "no"])])
async def test_a_grammar_is_obeyed_and_ends_with_the_end_of_sequence(engine, grammar, texts):
    sampling = {**grammar, "max_new_tokens": 32, "temperature": 0}
    answer = await generate(engine, PROMPT, sampling_params=sampling, return_logprob=True)
    assert answer["text"] in texts
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": engine.tokenizer.eos_token_id}
    assert answer["meta_info"]["output_token_logprobs"][-1][0] == pytest.approx(0.0)  # forced: masked before


async def test_a_schema_is_obeyed(engine: EmbeddedEngine) -> None:
    schema = json.dumps({"properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False})
    sampling = {"json_schema": schema, "max_new_tokens": 400, "temperature": 1.0}
    answers = await asyncio.gather(
        *(generate(engine, PROMPT, sampling_params={**sampling, "sampling_seed": seed}) for seed in range(4))
    )
    finished = [answer for answer in answers if answer["meta_info"]["finish_reason"]["type"] == "stop"]
    assert finished  # a random model may fill a whole answer with white space
    for answer in finished:
        assert json.loads(answer["text"]).keys() == {"ok"}


@pytest.mark.parametrize(("kind", "text"), [("json_schema", "{not json"), ("regex", "((("), ("ebnf", "=")])
async def test_a_bad_grammar_is_refused(engine: EmbeddedEngine, kind: str, text: str) -> None:
    with pytest.raises(BackendRequestError, match="cannot be compiled"):
        await generate(engine, PROMPT, sampling_params={kind: text})


# Prefixes


async def test_cached_tokens_are_those_of_the_recorded_table(engine: EmbeddedEngine) -> None:
    """The rows of facts measured on a server: 300-token prompt, then prompt + 4 output + 50 new."""
    first = [10 + index * 7 % 900 for index in range(300)]
    await forget_prefixes(engine)

    async def cached(ids: list[int], **fields: Any) -> tuple[int, int, list[int]]:
        answer = await generate(engine, ids, sampling_params=params(max_new_tokens=4), **fields)
        meta = answer["meta_info"]
        return meta["cached_tokens"], len(meta.get("input_token_logprobs", ())), answer["output_ids"]

    assert (await cached(first))[:2] == (0, 0)
    assert (await cached(first))[:2] == (299, 0)
    assert (await cached(first, return_logprob=True))[:2] == (299, 0)
    assert (await cached(first, return_logprob=True, logprob_start_len=0))[:2] == (0, 300)
    assert (await cached(first, return_logprob=True, logprob_start_len=299))[:2] == (299, 1)
    assert (await cached(first, return_logprob=True, logprob_start_len=300))[:2] == (299, 0)
    assert (await cached(first, return_logprob=True, logprob_start_len=150))[:2] == (150, 150)
    assert (await cached(first, logprob_start_len=0))[:2] == (299, 0)
    second = first + (await cached(first))[2] + [11 + index * 3 % 800 for index in range(50)]
    assert (await cached(second, return_logprob=True))[:2] == (303, 0)
    assert (await cached(second, return_logprob=True, logprob_start_len=0))[:2] == (0, 354)
    assert (await cached(second, return_logprob=True, logprob_start_len=304))[:2] == (304, 50)
    assert (await cached(second))[:2] == (353, 0)


async def test_a_continued_conversation_has_the_logprobs_of_one_forward_pass(engine, tiny):
    ids = list(PROMPT)
    expected: list[tuple[int, float]] = []
    for turn in range(4):
        answer = await generate(engine, ids, sampling_params=params(temperature=1.0), return_logprob=True)
        assert turn == 0 or answer["meta_info"]["cached_tokens"] > 0
        for index, (logprob, _, _) in enumerate(answer["meta_info"]["output_token_logprobs"]):
            expected.append((len(ids) + index, logprob))
        ids += answer["output_ids"] + [30 + turn, 31, 32]
    whole = forward(tiny.model, ids).log_softmax(-1)
    for position, logprob in expected:
        assert logprob == pytest.approx(float(whole[position - 1, ids[position]]), abs=1e-4)


async def test_the_samples_of_a_group_share_their_prompt(engine: EmbeddedEngine) -> None:
    await forget_prefixes(engine)
    shared = [15 + index * 11 % 900 for index in range(200)]
    await engine.pause_generation()  # so that all of them are there when the first step begins
    tasks = [
        asyncio.create_task(generate(engine, [*shared, 5 + number], sampling_params=params())) for number in range(6)
    ]
    while len(engine._scheduler.waiting) < 6:
        await asyncio.sleep(0.001)
    await engine.continue_generation()
    answers = await asyncio.gather(*tasks)
    assert sorted(answer["meta_info"]["cached_tokens"] for answer in answers) == [0] + [200] * 5


async def test_the_prefix_budget_is_kept_for_the_latest(tiny: TinyModel) -> None:
    first, *_, before, last = many = prompts(12, longest=60)
    async with EmbeddedEngine(tiny.model, tokenizer=tiny.tokenizer, prefix_cache_tokens=100, threads=1) as engine:
        for prompt in many:
            await generate(engine, prompt, sampling_params=params(max_new_tokens=4))
            assert sum(len(entry.tokens) for entry in engine._scheduler.cache._entries) <= 100
        for prompt, cached in ((last, len(last) - 1), (before, len(before) - 1), (first, 0)):
            answer = await generate(engine, prompt, sampling_params=params(max_new_tokens=4))
            assert answer["meta_info"]["cached_tokens"] == cached


# Other models


async def test_a_sliding_window_is_kept(tiny: TinyModel) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=16, max_position_embeddings=512)).eval()
    async with EmbeddedEngine(model, tokenizer=tiny.tokenizer, threads=1) as engine:
        answer = await generate(engine, PROMPT, sampling_params=params(max_new_tokens=24), **SCORED)
    assert_exact(answer, PROMPT, model)


def test_a_model_with_another_attention_is_refused_at_once(tiny: TinyModel) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    with pytest.raises(ValueError, match="softcap"):
        EmbeddedEngine(Gemma2ForCausalLM(Gemma2Config(**SMALL)), tokenizer=tiny.tokenizer, threads=1)
