"""Sampling is seeded: an evaluation on the embedded engine gives the same samples however it was run."""

from __future__ import annotations

import asyncio
import json
from array import array
from typing import Any
from unittest.mock import MagicMock

import pytest

from strands_env.commands.cli import main
from strands_env.core import Action, Environment, TaskContext
from strands_env.core.models import local_model_factory, sglang_model_factory
from strands_env.core.seeds import RolloutSeed, SeededBackend, derive_seed
from strands_env.distributed import ProcessExecutor
from strands_env.eval import ConfigMismatchError, EvalError, Evaluator, read_results
from strands_env.testing import ScriptedModel
from strands_sglang.backends import Backend, GenerateAnswer, GenerateRequest, PromptIds
from strands_sglang.trajectory import Finish, FinishType
from tests.unit.eval_support import FakeEnv, tasks

SAMPLING = {"temperature": 1.0, "max_new_tokens": 6}


def make_env_factory() -> Any:
    """Environments over an embedded engine of their own process: each asks twice, so that a call has a history."""
    from strands_sglang.backends.engine import EmbeddedEngine
    from strands_sglang.tool_parsers import get_tool_parser

    engine = EmbeddedEngine("tiny", threads=1)
    models = local_model_factory(engine=engine, sampling_params=SAMPLING, tool_parser=get_tool_parser("hermes"))

    class Asking(Environment):
        async def interact(self, agent: Any, action: Action) -> Any:
            await self.invoke(agent, action.prompt)
            return await self.invoke(agent, "again")

    def factory() -> Environment:
        return Asking(model_factory=models, reward_fn=lambda action, result: 1.0)

    factory.engine = engine  # type: ignore[attr-defined]
    return factory


@pytest.fixture(scope="module")
def env_factory():
    pytest.importorskip("torch")
    factory = make_env_factory()
    yield factory
    asyncio.run(factory.engine.close())


def numbered(count: int) -> list[Action]:
    return [Action(message=f"number {i}", task_context=TaskContext(id=f"t{i}")) for i in range(count)]


def sampled(path: Any) -> dict[str, list[int]]:
    return {
        f"{sample.prompt_id}/{sample.index}": list(sample.step_result.observation.tokens.token_ids)
        for sample in read_results(path, with_tokens=True)
    }


async def test_a_resumed_run_has_the_samples_of_an_uninterrupted_one(env_factory, tmp_path):
    def evaluator(name: str, **options: Any) -> Evaluator:
        path = tmp_path / name
        return Evaluator(env_factory, n_samples_per_prompt=3, keep_tokens=True, output_path=path, **options)

    await evaluator("whole", max_concurrency=4).run(numbered(3))
    await evaluator("resumed", max_concurrency=1).run(numbered(1))
    (tmp_path / "resumed" / "results.jsonl").open("rb+").truncate(300)  # as a kill may leave it
    await evaluator("resumed", max_concurrency=7).run(numbered(3))
    assert sampled(tmp_path / "resumed") == sampled(tmp_path / "whole")

    await evaluator("other", sampling_seed=1).run(numbered(3))
    other = sampled(tmp_path / "other")
    assert all(other[name] != ids for name, ids in sampled(tmp_path / "whole").items())


async def test_samples_of_a_prompt_differ(env_factory):
    results = await Evaluator(env_factory, n_samples_per_prompt=4, keep_tokens=True, output_path=None).run(numbered(1))
    assert len({tuple(sample.step_result.observation.tokens.token_ids) for sample in results["t0"]}) == 4
    assert len({sample.action.task_context.rollout_seed for sample in results["t0"]}) == 4


async def test_worker_processes_sample_the_same(env_factory):
    options: dict[str, Any] = {"n_samples_per_prompt": 2, "keep_tokens": True, "output_path": None}
    here = await Evaluator(env_factory, **options).run(numbered(2))
    async with ProcessExecutor("tests.unit.test_eval_seeds:make_env_factory", n_workers=1) as executor:
        there = await Evaluator(executor=executor, **options).run(numbered(2))
    for name, samples in here.items():
        for one, other in zip(samples, there[name], strict=True):
            assert one.step_result.observation.tokens.token_ids == other.step_result.observation.tokens.token_ids


async def test_a_seed_that_was_used_must_match_to_resume(env_factory, tmp_path):
    await Evaluator(env_factory, output_path=tmp_path, sampling_seed=1).run(numbered(1))
    assert run_document(tmp_path)["environment"]["sampling_seed"] == 1
    for other in (2, None):
        with pytest.raises(ConfigMismatchError, match=f"sampling_seed: 1 in the file, now {other}"):
            await Evaluator(env_factory, output_path=tmp_path, sampling_seed=other).run(numbered(1))


async def test_the_engine_is_seeded_by_the_plain_factory_too(env_factory):
    """`sglang_model_factory(client=engine)` once left sampling to chance and recorded a seed all the same."""
    engine = env_factory.engine
    models = sglang_model_factory(
        tokenizer=engine.tokenizer, client=engine, sampling_params=SAMPLING, tool_parser="hermes"
    )
    runs = [
        await Evaluator(lambda: Environment(model_factory=models), output_path=None, keep_tokens=True).run(numbered(3))
        for _ in range(2)
    ]
    one, other = ([list(run[name][0].step_result.observation.tokens.token_ids) for name in run] for run in runs)
    assert one == other
    assert hasattr(runs[0]["t0"][0].action.task_context, "rollout_seed")


async def test_a_seed_that_was_not_used_is_not_recorded(tmp_path):
    await Evaluator(scripted_environment, output_path=tmp_path, sampling_seed=1).run(numbered(1))
    (sample,) = read_results(tmp_path)
    assert not hasattr(sample.action.task_context, "rollout_seed")
    assert "sampling_seed" not in (tmp_path / "results.run.json").read_text()
    assert "seed" not in (tmp_path / "results.jsonl").read_text()
    done = await Evaluator(scripted_environment, output_path=tmp_path, sampling_seed=2).run(numbered(1))
    assert len(done["t0"]) == 1


async def test_without_a_seed_nothing_is_added_to_the_task():
    results = await Evaluator(FakeEnv, sampling_seed=None, output_path=None).run(tasks(1))
    assert not hasattr(results["p0"][0].action.task_context, "rollout_seed")


def run_document(folder: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "results.run.json").read_text())
    return document


def scripted_environment() -> Environment:
    return Environment(model_factory=lambda: ScriptedModel(["4"]))


# ---- a fixed seed ----------------------------------------------------------------------------------------------------


async def test_a_fixed_seed_with_several_samples_is_refused():
    models = sglang_model_factory(tokenizer=None, client=None, sampling_params={"sampling_seed": 1})
    with pytest.raises(EvalError, match=r"sampling_seed=1 .* all 3 samples of a prompt the same"):
        await Evaluator(lambda: Environment(model_factory=models), n_samples_per_prompt=3, output_path=None).run(
            tasks(1)
        )
    with pytest.raises(ValueError, match="all 3 samples of a prompt the same"):
        Evaluator(FakeEnv, n_samples_per_prompt=3, config={"model": {"sampling_params": {"seed": 1}}}, output_path=None)


def test_a_fixed_seed_with_one_sample_is_the_users_choice():
    Evaluator(FakeEnv, config={"model": {"sampling_params": {"sampling_seed": 1}}}, output_path=None)


# ---- seeds of calls --------------------------------------------------------------------------------------------------


class Recorder:
    """Answers nothing and remembers the seeds."""

    vocab_size = 10

    def __init__(self) -> None:
        self.seeds: list[Any] = []
        self.finish = "stop"

    async def generate(self, input_ids: list[int], **fields: Any) -> dict[str, Any]:
        self.seeds.append(fields["sampling_params"].get("sampling_seed"))
        return {"output_ids": [9], "meta_info": {"finish_reason": {"type": self.finish}}}


def request(prompt: list[int], **params: Any) -> GenerateRequest:
    return GenerateRequest(prompt=PromptIds.of(prompt), sampling_params=params)


async def test_calls_differ_by_prompt_and_repetition_and_not_by_order():
    first, second = Recorder(), Recorder()
    one, other = SeededBackend(first, 3), SeededBackend(second, 3)
    for prompt in ([1], [2], [1]):
        await one.ask(request(prompt))
    for prompt in ([2], [1], [1]):
        await other.ask(request(prompt))
    assert len(set(first.seeds)) == 3
    assert second.seeds == [first.seeds[1], first.seeds[0], first.seeds[2]]
    assert (await one.info()).vocab_size == 10


async def test_what_continues_an_aborted_call_keeps_its_seed():
    recorder = Recorder()
    client = SeededBackend(recorder, 3)
    recorder.finish = "abort"
    await client.ask(request([1]))
    recorder.finish = "stop"
    await client.ask(request([1, 9]))
    await client.ask(request([1, 9]))
    assert recorder.seeds[0] == recorder.seeds[1] != recorder.seeds[2]


async def test_a_seed_of_the_users_stays():
    recorder = Recorder()
    await SeededBackend(recorder, 3).ask(request([1], sampling_seed=5))
    assert recorder.seeds == [5]


def test_models_are_seeded_only_where_asked_and_each_has_its_own():
    recorder = Recorder()
    asked = sglang_model_factory(tokenizer=MagicMock(), client=recorder, seeded=True)
    unasked = sglang_model_factory(tokenizer=MagicMock(), client=recorder)
    assert asked().client is recorder
    with RolloutSeed(1).active() as seed:
        assert unasked().client is recorder
        assert isinstance(asked().client, SeededBackend)
        assert seed.for_model() != seed.for_model()


def test_seeds_depend_on_where_parts_end():
    assert derive_seed("ab", "c") != derive_seed("a", "bc")
    assert 0 <= derive_seed("a") < 2**53


# ---- the command line ------------------------------------------------------------------------------------------------


def test_the_seed_of_the_command_line_is_that_of_sampling(tmp_path):
    pytest.importorskip("torch")
    given = ["eval", "arithmetic", "--backend", "local", "--model-id", "tiny", "--limit", "1", "--seed", "7", "-q"]
    assert main([*given, "--sampling", '{"max_new_tokens": 4}', "-o", str(tmp_path)]) == 0
    assert run_document(tmp_path)["environment"]["sampling_seed"] == 7


def test_a_fixed_seed_with_several_samples_is_a_wrong_argument(tmp_path, capsys):
    given = ["eval", "arithmetic", "--backend", "scripted", "-n", "3", "--sampling", '{"sampling_seed": 1}']
    assert main([*given, "-o", str(tmp_path)]) == 2
    assert "all 3 samples of a prompt the same" in capsys.readouterr().err


async def test_the_seeds_of_a_run_do_not_change_from_version_to_version() -> None:
    asked: list[Any] = []

    class Noted(Backend):
        async def ask(self, request: GenerateRequest) -> GenerateAnswer:
            asked.append(request.sampling_params["sampling_seed"])
            return GenerateAnswer(output_ids=array("i", [1]), finish=Finish(type=FinishType.STOP, matched=1))

    seeded = SeededBackend(Noted(), 7)
    for ids in ([1, 2, 3], [1, 2, 3], [1, 2, 3, 4]):
        await seeded.ask(GenerateRequest(prompt=PromptIds.of(ids)))
    assert asked == [4925236846549529, 2406123262252570, 7810327900555404]
