"""A teacher's log-probabilities of a rollout: exact, every shared prefix scored once, nothing lost where it fails."""

from __future__ import annotations

import asyncio
import re
from array import array
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from strands import Agent

from strands_env.core.termination import UNKNOWN
from strands_env.training import (
    InvalidSampleError,
    TrainingSample,
    samples_from_model,
    score_with_teacher,
)
from strands_env.training.export import reference_logprobs
from strands_sglang import SGLangModel
from strands_sglang.backends import Backend, BackendWrapper, Capabilities, GenerateAnswer, GenerateRequest
from strands_sglang.backends.contract import PromptScoring, ScoredPrompt
from strands_sglang.exceptions import BackendConnectionError, BackendRequestError
from strands_sglang.trajectory import Finish, FinishType
from tests.unit.strands_env.training.test_training_sample import assert_same

torch = pytest.importorskip("torch", reason="needs the extra `local`")
pytest.importorskip("transformers", reason="needs the extra `local`")

from strands_sglang.backends.engine import EmbeddedEngine, make_tiny_model  # noqa: E402

STUDENT, TEACHER = make_tiny_model(seed=0), make_tiny_model(seed=1, layers=3)
TOP_K = 4


class Counting(BackendWrapper):
    """Counts what the teacher is asked, and fails where it is told to."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.asked: list[tuple[int, int]] = []
        self.fails_on: set[int] = set()

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        assert request.score_from is not None
        self.asked.append((request.score_from, len(request.prompt)))
        if len(self.asked) in self.fails_on:
            raise BackendConnectionError("the teacher is gone")
        return await super().ask(request)


@pytest.fixture
async def teacher() -> AsyncIterator[Counting]:
    async with EmbeddedEngine(TEACHER.model, tokenizer=TEACHER.tokenizer, threads=1) as engine:
        yield Counting(engine)


@pytest.fixture(scope="module")
def forest() -> list[TrainingSample]:
    """Four paths: two turns, a branch after the first, another after that branch, and a root of its own."""

    async def sampled() -> list[TrainingSample]:
        async with EmbeddedEngine(STUDENT.model, tokenizer=STUDENT.tokenizer, seed=3, threads=1) as engine:
            model = SGLangModel(client=engine, tokenizer=STUDENT.tokenizer, sampling_params={"max_new_tokens": 12})
            agent = Agent(model=model, system_prompt="Be brief.", callback_handler=None)
            kept = []
            for text in ("One?", "Two?"):
                await say(agent, text)
                kept.append(list(agent.messages))
            agent.messages[:] = kept[0]
            await say(agent, "Two, or three?")
            await say(agent, "Four?")
            agent.messages[:] = kept[0]
            await say(agent, "Two, or four?")
            agent.messages[:] = []
            await say(agent, "Another conversation.")
            return samples_from_model(model, reward=1.0)

    async def say(agent: Agent, text: str) -> None:
        try:
            await agent.invoke_async(text)
        except Exception as error:  # the tiny model's replies end at the limit
            assert "max" in type(error).__name__.lower(), error

    return asyncio.run(sampled())


def expected(sample: TrainingSample) -> Any:
    with torch.no_grad():
        logits = TEACHER.model(torch.tensor([sample.token_ids.tolist()])).logits[0].float()
    return torch.log_softmax(logits, dim=-1)[:-1]  # row i is about token i + 1


async def test_scores_are_those_of_transformers_on_every_path(forest: list[TrainingSample], teacher: Any) -> None:
    assert len(forest) == 4
    scored = await score_with_teacher(
        forest, teacher, tokenizer=STUDENT.tokenizer, teacher_tokenizer=TEACHER.tokenizer, top_k=TOP_K
    )
    for before, sample in zip(forest, scored, strict=True):
        rows, start = expected(sample), sample.prompt_length
        ids = torch.tensor(sample.token_ids.tolist())
        own = rows.gather(-1, ids[1:, None])[:, 0].numpy()
        assert np.isnan(sample.teacher_logprobs[:start]).all()
        np.testing.assert_allclose(sample.teacher_logprobs[start:], own[start - 1 :], atol=2e-5)
        best = rows.topk(TOP_K)
        assert sample.teacher_top_ids is not None and sample.teacher_top_logprobs is not None
        np.testing.assert_allclose(sample.teacher_top_logprobs[start:], best.values[start - 1 :].numpy(), atol=2e-5)
        assert (sample.teacher_top_ids[start:] == best.indices[start - 1 :].numpy()).mean() > 0.99  # ties apart
        assert (sample.teacher_top_ids[:start] == -1).all()
        sample.validate()
        assert_same(replace(sample, teacher_logprobs=None, teacher_top_ids=None, teacher_top_logprobs=None), before)


async def test_every_shared_prefix_is_scored_once(forest: list[TrainingSample], teacher: Counting) -> None:
    group = [*forest, replace(forest[0], rollout_id="the same again")]
    await score_with_teacher(group, teacher, tokenizer=STUDENT.tokenizer, teacher_tokenizer=TEACHER.tokenizer)
    distinct = {tuple(s.token_ids[: end + 1].tolist()) for s in forest for end in range(s.prompt_length, len(s))}
    assert len(teacher.asked) == len(forest)
    assert sum(end - start for start, end in teacher.asked) == len(distinct)


@pytest.mark.parametrize("broken", [1, 2, 3, 4])
async def test_a_sample_that_the_teacher_fails_on_is_kept_and_the_others_are_scored(forest, teacher, broken):
    teacher.fails_on = {broken}
    scored = await score_with_teacher(forest, teacher, tokenizer=STUDENT.tokenizer, teacher_tokenizer=TEACHER.tokenizer)
    failed = [sample for sample in scored if "teacher_error" in sample.metadata]
    assert [sample.metadata["teacher_error"] for sample in failed] == ["BackendConnectionError: the teacher is gone"]
    with pytest.raises(InvalidSampleError, match="the teacher is gone"):
        reference_logprobs(failed[0])
    for before, sample in zip(forest, scored, strict=True):
        assert np.array_equal(before.token_ids, sample.token_ids)
        if sample not in failed:
            reference = expected(sample).gather(-1, torch.tensor(sample.token_ids.tolist())[1:, None])[:, 0].numpy()
            start = sample.prompt_length
            np.testing.assert_allclose(reference_logprobs(sample)[start:], reference[start - 1 :], atol=2e-5)


def test_a_token_without_a_score_is_fine_unless_it_is_trained() -> None:
    sample = TrainingSample(
        token_ids=np.array([1, 2, 3, 4], dtype=np.int32),
        prompt_length=1,
        loss_mask=np.array([0, 1, 0, 1], dtype=np.uint8),
        reward=1.0,
        teacher_logprobs=np.array([np.nan, -1.0, np.nan, -2.0]),
    )
    assert reference_logprobs(sample) == [0.0, -1.0, 0.0, -2.0]
    trained = replace(sample, teacher_logprobs=np.array([np.nan, -1.0, -1.0, np.nan]))
    with pytest.raises(InvalidSampleError, match="no log-probabilities of the teacher"):
        reference_logprobs(trained)
    failed = replace(trained, end=UNKNOWN, reward=None, teacher_logprobs=None)
    assert reference_logprobs(failed) == [0.0] * 4


async def test_a_teacher_that_scores_nothing_is_an_error(forest: list[TrainingSample], teacher: Counting) -> None:
    teacher.fails_on = set(range(1, 9))
    with pytest.raises(BackendConnectionError, match="gone"):
        await score_with_teacher(forest, teacher, tokenizer=STUDENT.tokenizer, teacher_tokenizer=TEACHER.tokenizer)


async def test_an_engine_brings_its_tokenizer_and_another_vocabulary_is_refused(forest: list[TrainingSample]) -> None:
    other = make_tiny_model(vocab_size=400)
    async with EmbeddedEngine(other.model, tokenizer=other.tokenizer, threads=1) as engine:
        with pytest.raises(ValueError, match="tokenizer is not that of the model that sampled: the token"):
            await score_with_teacher(forest, engine, tokenizer=STUDENT.tokenizer)


async def test_a_teacher_whose_tokenizer_nobody_knows_is_refused(forest: list[TrainingSample], teacher: Any) -> None:
    with pytest.raises(ValueError, match="give teacher_tokenizer="):
        await score_with_teacher(forest, teacher, tokenizer=STUDENT.tokenizer)


class Scoring(Backend):
    """Answers with what it is given as scores."""

    capabilities = Capabilities(prompt_scoring=PromptScoring.CACHED)

    def __init__(self, scored: ScoredPrompt | None) -> None:
        self.scored = scored

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        return GenerateAnswer(
            output_ids=array("i", [1]), finish=Finish(type=FinishType.LENGTH), scored_prompt=self.scored
        )


@pytest.mark.parametrize(
    ("scored", "top_k"),
    [
        (None, 0),
        (ScoredPrompt(ids=array("i", [7, 8]), logprobs=array("d", [-1, -1])), 0),
        (ScoredPrompt(ids=array("i", [8, 7]), logprobs=array("d", [-1, -1])), 1),
    ],
)
async def test_an_answer_that_scores_other_tokens_is_no_score(scored: ScoredPrompt | None, top_k: int) -> None:
    with pytest.raises(Exception, match=r"does not score the 2 tokens|lacks the 1 most likely"):
        await Scoring(scored).score([9, 8, 7], start=1, top_k=top_k)


def scores(ids: Any, logprobs: Any, **top: Any) -> ScoredPrompt:
    return ScoredPrompt(ids=array("i", ids), logprobs=array("d", logprobs), **top)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda ids: scores(ids[:1], [-0.5]), r"must be of the \d+ tokens from position"),
        (lambda ids: scores([*ids, 1], [-0.5] * (len(ids) + 1)), r"must be of the \d+ tokens from position"),
        (lambda ids: scores([7] * len(ids), [-0.5] * len(ids)), r"must be of the \d+ tokens from position"),
        (lambda ids: scores(ids, [-0.5]), r"one log-probability for each of \d+ tokens, got 1"),
        (lambda ids: scores(ids, [float("-inf")] * len(ids)), "must be finite"),
        (lambda ids: [-0.5] * len(ids), "must be a ScoredPrompt, got list"),
    ],
)
async def test_wrong_scores_are_the_error_of_that_sample_alone(
    forest: list[TrainingSample], answer: Any, message: str
) -> None:
    """A teacher of one's own: what it answers for the first path is wrong, the others are scored."""

    class Own(Scoring):
        async def score(self, ids: Any, *, start: int = 0, top_k: int = 0, images: Any = ()) -> ScoredPrompt:
            listed = [int(token) for token in ids[start:]]
            if list(ids) == forest[0].token_ids.tolist():
                return answer(listed)  # type: ignore[no-any-return]
            return scores(listed, [-0.25] * len(listed))

    scored = await score_with_teacher(
        forest, Own(None), tokenizer=STUDENT.tokenizer, teacher_tokenizer=TEACHER.tokenizer
    )
    failed, *others = scored
    assert failed.teacher_logprobs is None
    assert re.search(message, failed.metadata["teacher_error"]), failed.metadata["teacher_error"]
    for sample in others:
        assert sample.teacher_logprobs is not None and "teacher_error" not in sample.metadata
        assert (sample.teacher_logprobs[sample.prompt_length :] == -0.25).all()


async def test_a_backend_that_scores_no_prompts_says_so() -> None:
    class Deaf(Scoring):
        capabilities = Capabilities()

    with pytest.raises(BackendRequestError, match="Deaf scores no prompts"):
        await Deaf(None).score([1])
