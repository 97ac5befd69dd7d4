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
from strands_env.eval import ConfigMismatchError, EvalError, Evaluator, read_results
from strands_env.eval.executors import ProcessExecutor
from strands_env.testing import ScriptedModel
from strands_sglang.backends import Backend, GenerateAnswer, GenerateRequest, token_array
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
        path, options = tmp_path / name, {"sampling_seed": 0, **options}
        return Evaluator(env_factory, n_samples_per_prompt=3, keep_tokens=True, output_path=path, **options)

    await evaluator("whole", max_concurrency=4).run(numbered(3))
    await evaluator("resumed", max_concurrency=1).run(numbered(1))
    (tmp_path / "resumed" / "results.jsonl").open("rb+").truncate(300)  # as a kill may leave it
    await evaluator("resumed", max_concurrency=7).run(numbered(3))
    whole = sampled(tmp_path / "whole")
    assert sampled(tmp_path / "resumed") == whole
    assert len(set(map(tuple, whole.values()))) == len(whole)  # also those of one prompt

    await evaluator("other", sampling_seed=1).run(numbered(3))
    other = sampled(tmp_path / "other")
    assert all(other[name] != ids for name, ids in whole.items())
    assert json.loads((tmp_path / "other" / "results.run.json").read_text())["environment"]["sampling_seed"] == 1
    with pytest.raises(ConfigMismatchError, match="sampling_seed: 1 in the file, now 2"):
        await evaluator("other", sampling_seed=2).run(numbered(1))
    await evaluator("other", sampling_seed=None).run(numbered(4))  # goes on with the recorded one
    await evaluator("four", sampling_seed=1).run(numbered(4))
    assert sampled(tmp_path / "other") == sampled(tmp_path / "four")


async def test_worker_processes_sample_the_same(env_factory):
    options: dict[str, Any] = {"n_samples_per_prompt": 2, "keep_tokens": True, "output_path": None, "sampling_seed": 0}
    here = await Evaluator(env_factory, **options).run(numbered(2))
    async with ProcessExecutor("tests.unit.strands_env.eval.test_eval_seeds:make_env_factory", n_workers=1) as executor:
        there = await Evaluator(executor=executor, **options).run(numbered(2))
    for name, samples in here.items():
        for one, other in zip(samples, there[name], strict=True):
            assert one.step_result.observation.tokens.token_ids == other.step_result.observation.tokens.token_ids


async def test_the_engine_is_seeded_by_the_plain_factory_too(env_factory):
    """`sglang_model_factory(client=engine)` once left sampling to chance and recorded a seed all the same."""
    engine = env_factory.engine
    models = sglang_model_factory(
        tokenizer=engine.tokenizer, client=engine, sampling_params=SAMPLING, tool_parser="hermes"
    )
    runs = [
        await Evaluator(
            lambda: Environment(model_factory=models), output_path=None, keep_tokens=True, sampling_seed=seed
        ).run(numbered(3))
        for seed in (0, 0, None)
    ]
    one, other, drawn = ([list(run[name][0].step_result.observation.tokens.token_ids) for name in run] for run in runs)
    assert one == other != drawn
    assert hasattr(runs[0]["t0"][0].action.task_context, "rollout_seed")


async def test_a_seed_that_was_not_used_is_not_recorded(tmp_path):
    def factory() -> Environment:
        return Environment(model_factory=lambda: ScriptedModel(["4"]))

    await Evaluator(factory, output_path=tmp_path, sampling_seed=1).run(numbered(1))
    assert "sampling_seed" not in (tmp_path / "results.run.json").read_text()
    assert "seed" not in (tmp_path / "results.jsonl").read_text()
    for seed in (2, None):
        done = await Evaluator(factory, output_path=tmp_path, sampling_seed=seed).run(numbered(1))
        assert not hasattr(done["t0"][0].action.task_context, "rollout_seed")


# ---- a fixed seed ----------------------------------------------------------------------------------------------------


async def test_a_fixed_seed_with_several_samples_is_refused():
    models = sglang_model_factory(tokenizer=None, client=None, sampling_params={"sampling_seed": 1})
    evaluator = Evaluator(lambda: Environment(model_factory=models), n_samples_per_prompt=2, output_path=None)
    with pytest.raises(EvalError, match=r"sampling_seed=1 .* all 2 samples of a prompt the same"):
        await evaluator.run(tasks(1))
    config = {"model": {"sampling_params": {"seed": 1}}}
    with pytest.raises(ValueError, match="all 3 samples of a prompt the same"):
        Evaluator(FakeEnv, n_samples_per_prompt=3, config=config, output_path=None)
    Evaluator(FakeEnv, config=config, output_path=None)  # with one sample it is the user's choice


def test_the_seed_of_the_command_line_is_that_of_sampling(tmp_path, capsys):
    pytest.importorskip("torch")
    given = ["eval", "arithmetic", "--backend", "local", "--model-id", "tiny", "--limit", "1", "--seed", "7", "-q"]
    assert main([*given, "--sampling", '{"max_new_tokens": 4}', "-o", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "results.run.json").read_text())["environment"]["sampling_seed"] == 7
    fixed = ["-n", "3", "--sampling", '{"sampling_seed": 1}', "-o", str(tmp_path / "x")]
    assert main([*given, *fixed]) == 2
    assert "all 3 samples of a prompt the same" in capsys.readouterr().err


# ---- seeds of calls --------------------------------------------------------------------------------------------------


class Recorder(Backend):
    """Answers one token and remembers the seeds."""

    def __init__(self) -> None:
        self.seeds: list[Any] = []
        self.finish = FinishType.STOP

    async def ask(self, request: GenerateRequest) -> GenerateAnswer:
        self.seeds.append(request.sampling_params["sampling_seed"])
        return GenerateAnswer(output_ids=array("i", [9]), finish=Finish(type=self.finish, matched=9))


def request(prompt: list[int], **params: Any) -> GenerateRequest:
    return GenerateRequest(prompt=token_array(prompt), sampling_params=params)


async def test_calls_differ_by_prompt_and_repetition_and_not_by_order_or_version():
    first, second = Recorder(), Recorder()
    one, other = SeededBackend(first, 7), SeededBackend(second, 7)
    for prompt in ([1, 2, 3], [1, 2, 3], [1, 2, 3, 4]):
        await one.ask(request(prompt))
    for prompt in ([1, 2, 3, 4], [1, 2, 3], [1, 2, 3]):
        await other.ask(request(prompt))
    assert first.seeds == [4925236846549529, 2406123262252570, 7810327900555404]
    assert second.seeds == [first.seeds[2], *first.seeds[:2]]
    assert derive_seed("ab", "c") != derive_seed("a", "bc")


async def test_what_continues_an_aborted_call_keeps_its_seed_and_one_of_the_users_stays():
    recorder = Recorder()
    client = SeededBackend(recorder, 3)
    recorder.finish = FinishType.ABORT
    await client.ask(request([1]))
    recorder.finish = FinishType.STOP
    await client.ask(request([1, 9]))
    await client.ask(request([1, 9]))
    assert recorder.seeds[0] == recorder.seeds[1] != recorder.seeds[2]
    await client.ask(request([1], sampling_seed=5))
    assert recorder.seeds[-1] == 5


def test_models_are_seeded_only_where_asked_and_each_has_its_own():
    recorder = Recorder()
    asked = sglang_model_factory(tokenizer=MagicMock(), client=recorder, seeded=True)
    unasked = sglang_model_factory(tokenizer=MagicMock(), client=recorder)
    assert asked().client is recorder
    with RolloutSeed(1).active() as seed:
        assert unasked().client is recorder
        assert isinstance(asked().client, SeededBackend)
        assert seed.for_model() != seed.for_model()
