"""A rollout or a source of tasks that ends other than by returning costs only itself, and is reported."""

from __future__ import annotations

import asyncio
import sys

import pytest

from strands_env.core import Action, Environment, Phase, TerminationReason
from strands_env.eval import DatasetError, Evaluator, RetryPolicy
from strands_env.testing import ScriptedModel
from tests.unit.eval_support import FakeEnv, outcome, task, tasks, with_tokens


def made(kind: type[Environment] = Environment, **options) -> Environment:
    model = {"model_factory": lambda: ScriptedModel(["x"]), "reward_fn": lambda action, result: 1.0}
    return kind(**{**model, **options})


@pytest.mark.parametrize("deadlines", [{}, {"setup_timeout": 30.0, "cleanup_timeout": 30.0}], ids=["none", "some"])
@pytest.mark.parametrize(("raised", "words"), [(GeneratorExit, "GeneratorExit"), (SystemExit(3), "sys.exit(3)")])
@pytest.mark.parametrize("part", ["reset", "step", "cleanup", "reward"])
async def test_an_exit_in_an_environment_is_one_sample(part, raised, words, deadlines):
    async def leave(*args, **options):
        raise raised

    async def leave_early(self):
        raise raised

    method = leave_early if part == "reset" else leave
    kind = Environment if part == "reward" else type("Leaving", (Environment,), {part: method})
    reward = {"reward_fn": leave} if part == "reward" else {}
    evaluator = Evaluator(
        lambda: made(kind, **deadlines, **reward), retry=RetryPolicy(max_attempts=1), output_path=None
    )
    result = (await evaluator.run(tasks(1)))["p0"][0].step_result
    error = result.cleanup_error if part == "cleanup" else result.error
    assert words in error.message


@pytest.mark.parametrize("with_some", [False, True])
async def test_tokens_that_were_asked_for_and_do_not_exist_are_warned_about_once(with_some, caplog):
    def answer(action: Action):
        return with_tokens(outcome()) if with_some else outcome()

    await Evaluator(lambda: FakeEnv(answer), keep_tokens=True, output_path=None).run(tasks(3))
    assert sum("keep_tokens=True" in record.getMessage() for record in caplog.records) == (not with_some)


@pytest.mark.parametrize("returned", [None, 0.5, {"reward": 1}])
async def test_what_is_no_result_fails_its_sample(returned):
    results = await Evaluator(lambda: FakeEnv(lambda action: returned), output_path=None).run(tasks(1))
    assert results["p0"][0].aborted
    assert "must return a StepResult" in results["p0"][0].step_result.error.message


# ---- rollouts inside rollouts ----------------------------------------------------------------------------------------


async def rolls_out_first(*args, **options):
    await made().rollout(task("inner"))
    await asyncio.sleep(60)


async def rolls_out_one_that_hangs(*args, **options):
    await made(type("Stuck", (Environment,), {"reset": lambda self: asyncio.sleep(60)})).rollout(task("inner"))


async def in_the_factory() -> FakeEnv:
    await made().rollout(task("warm"))
    return FakeEnv(delay=60)


@pytest.mark.parametrize(
    "factory",
    [
        lambda: made(type("Outer", (Environment,), {"step": rolls_out_first})),
        lambda: made(type("InnerHangs", (Environment,), {"step": rolls_out_one_that_hangs})),
        in_the_factory,
    ],
    ids=["before", "hangs", "factory"],
)
async def test_the_deadline_is_that_of_the_outer_rollout(factory):
    evaluator = Evaluator(factory, sample_timeout=1.0, output_path=None)
    sample = (await evaluator.run(tasks(1)))["p0"][0]
    assert sample.step_result.termination_reason is TerminationReason.TIMEOUT
    assert (sample.step_result.error.where, sample.attempts) == (Phase.LOOP, 1)


# ---- sources ---------------------------------------------------------------------------------------------------------


def leaving():
    yield task("first")
    sys.exit(0)


async def leaving_later():
    yield task("first")
    sys.exit(0)


async def closing():
    yield task("first")
    raise GeneratorExit


class Leaving(Evaluator):
    def load_dataset(self):
        sys.exit(0)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (leaving, r"sys\.exit\(0\)"),
        (leaving_later, r"sys\.exit\(0\)"),
        (closing, "GeneratorExit"),
        (None, r"sys\.exit"),
    ],
)
async def test_a_source_that_exits_is_an_error_of_the_data(source, message, tmp_path):
    with pytest.raises(DatasetError, match=f"the data source .*{message}"):
        await Leaving(FakeEnv, output_path=tmp_path).run(source and source())
