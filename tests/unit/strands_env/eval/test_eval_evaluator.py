from __future__ import annotations

import asyncio
import copy
import json
import math
import shutil
import sys
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from strands_env.commands.recipe.task_files import DataBenchmark
from strands_env.commands.rescore import remove_score
from strands_env.core import (
    Action,
    Environment,
    ErrorRecord,
    Observation,
    Outcome,
    Phase,
    RewardFunction,
    RewardResult,
    StepResult,
    TaskContext,
    TerminationReason,
)
from strands_env.eval import ConfigMismatchError, EvalSample, Evaluator, RetryPolicy, TooManyFailuresError, read_results
from strands_env.eval.metrics import compute_pass_at_k
from strands_env.eval.report import write_report
from strands_env.eval.run import run
from strands_env.eval.run.tasks import TaskNamer
from strands_env.eval.store import StorePaths, load_run
from strands_env.rewards import CorrectnessJudgeReward, ExactMatchReward
from strands_env.testing import ScriptedModel
from tests.unit.distributed_support import Panic
from tests.unit.eval_support import FakeEnv, display, outcome, task, tasks, with_tokens

AT_ONCE = RetryPolicy(delay=0.0)


@pytest.fixture(autouse=True)
def forget_counts():
    FakeEnv.forget()


OWN_DEADLINE = "strands_env.core.termination.EpisodeTimeoutError"


def lost(
    reason: TerminationReason = TerminationReason.CONNECTION_ERROR,
    where: Phase = Phase.MODEL,
    kind: str = "ConnectionError",
) -> StepResult:
    error = ErrorRecord(type=kind, message="gone", traceback="", where=where)
    return StepResult(observation=Observation(), termination_reason=reason, error=error)


async def run_one(env_factory=FakeEnv, **options):
    """The sample of one task."""
    options = {"retry": AT_ONCE, "output_path": None, **options}
    return await Evaluator(env_factory, **options).evaluate_sample(tasks(1)[0])


@asynccontextmanager
async def heartbeat(pause: float = 0.0):
    """Counts, in a list of one number, how often others had the event loop."""
    beats = [0]

    async def beat():
        while True:
            beats[0] += 1
            await asyncio.sleep(pause)

    heart = asyncio.create_task(beat())
    try:
        yield beats
    finally:
        heart.cancel()


async def test_every_task_is_sampled_n_times_in_an_environment_of_its_own():
    seen: Counter[str] = Counter()

    async def factory(action: Action) -> FakeEnv:
        seen[action.task_context.id] += 1
        return FakeEnv(lambda _: outcome(text=action.text))

    results = await Evaluator(factory, n_samples_per_prompt=3, output_path=None).run(tasks(2))
    assert list(results) == ["p0", "p1"]
    assert seen == Counter([f"p{i}_{j}" for i in range(2) for j in range(3)])
    assert [item.index for item in results["p1"]] == [0, 1, 2]
    assert results["p1"][2].step_result.observation.final_response == "question p1"


async def test_the_time_of_a_killed_run_counts_when_it_is_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "TIME_SAVED_FROM", 0.0)
    monkeypatch.setattr(run, "TIME_SAVED_EVERY", 0.0)
    killed = tmp_path / "killed"

    def answer(action: Action) -> StepResult:
        if action.task_context.id == "p2_0":  # the files as signal 9 would leave them
            shutil.copytree(tmp_path / "run", killed)
        return outcome()

    def spent(folder) -> float:
        return load_run(StorePaths.of(folder).run)["about"]["wall_s"]

    await Evaluator(lambda: FakeEnv(answer), max_concurrency=1, output_path=tmp_path / "run").run(tasks(3))
    before = spent(killed)
    assert before > 0
    await Evaluator(lambda: FakeEnv(answer), output_path=killed).run(tasks(2))
    assert spent(killed) > before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling_seed": 10**30}, "sampling_seed must be"),
        ({"reward_threshold": "1"}, "reward_threshold must be a finite number, got '1'"),
        ({"reward_threshold": [1]}, r"reward_threshold must be a finite number, got \[1\]"),
        ({"reward_threshold": float("nan")}, "reward_threshold must be a finite number, got nan"),
        ({"n_samples_per_prompt": 0}, "n_samples_per_prompt"),
        ({"max_concurrency": True}, "max_concurrency"),
        ({"sample_timeout": 0}, "sample_timeout"),
        ({"max_failures": -1}, "max_failures"),
        ({"keep_results": False, "output_path": None}, "output_path"),
        ({"metrics_fns": [], "metric_fns": []}, "two names"),
        ({"executor": object()}, "exactly one"),
    ],
)
def test_wrong_options_say_what_is_wrong(options, message):
    with pytest.raises(ValueError, match=message):
        Evaluator(FakeEnv, **options)


async def test_without_an_output_path_a_run_is_saved_in_the_working_folder_and_continued(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls = []

    def factory(action):
        calls.append(action.task_context.id)
        return FakeEnv()

    await Evaluator(factory).run(tasks(2))
    assert len(list(read_results("results.jsonl"))) == 2
    results = await Evaluator(factory).run(tasks(3))
    assert calls == ["p0_0", "p1_0", "p2_0"]
    assert [samples[0].reward for samples in results.values()] == [1.0] * 3


async def test_concurrency_is_bounded_and_used_without_a_task_for_each_sample():
    most = 0

    def answer(action: Action) -> StepResult:
        nonlocal most
        most = max(most, len(asyncio.all_tasks()))
        return outcome()

    await Evaluator(lambda: FakeEnv(answer, delay=0.001), max_concurrency=3, output_path=None).run(tasks(100))
    assert (FakeEnv.most, FakeEnv.cleanups) == (3, 100)
    assert most < 20


async def test_an_endless_source_is_read_as_it_goes():
    given = 0

    async def endless():
        nonlocal given
        while True:
            given += 1
            yield task(f"t{given}")

    evaluator = Evaluator(
        lambda: FakeEnv(lambda action: evaluator.stop() or outcome()), max_concurrency=2, output_path=None
    )
    results = await evaluator.run(endless())
    assert 1 <= sum(map(len, results.values())) <= 4
    assert given <= 4


@pytest.mark.parametrize("is_saved", [True, False])
async def test_a_thread_waits_less_for_the_interpreter_while_a_run_is_saved(is_saved, tmp_path):
    before, seen = sys.getswitchinterval(), set()

    def answer(action: Action) -> StepResult:
        seen.add(sys.getswitchinterval() < before)
        return outcome()

    await Evaluator(lambda: FakeEnv(answer), output_path=tmp_path if is_saved else None).run(tasks(3))
    assert (seen, sys.getswitchinterval()) == ({is_saved}, before)


async def test_a_list_is_read_many_tasks_at_a_time():
    finished_when_read: list[int] = []

    class Noting(list):
        def __iter__(self):
            for action in super().__iter__():
                finished_when_read.append(FakeEnv.cleanups)
                yield action

    count = 4 * run.READ_AHEAD
    results = await Evaluator(FakeEnv, max_concurrency=1, output_path=None).run(Noting(tasks(count)))
    assert sum(map(len, results.values())) == FakeEnv.cleanups == count
    assert len(set(finished_when_read[-count:])) <= 10


@pytest.mark.parametrize(("given", "said"), [([], 1), (iter(()), 1), (tasks(1), 0)])
async def test_no_tasks_are_said_in_one_line(given, said, caplog):
    assert len(await Evaluator(FakeEnv, output_path=None).run(given)) == 1 - said
    assert [record.getMessage() for record in caplog.records if "there are no tasks" in record.message] == [
        "benchmark=<> | there are no tasks: nothing was run"
    ] * said


async def test_a_blocking_source_does_not_block_the_loop():
    class Slow:
        def __iter__(self):
            assert threading.current_thread() is not threading.main_thread()
            for action in tasks(3):
                goal = beats[0] + 5
                while beats[0] < goal:
                    time.sleep(0.01)  # for ever, if the loop stands still while the source is read
                yield action

    async with heartbeat(0.01) as beats:
        assert len(await Evaluator(FakeEnv, output_path=None).run(Slow())) == 3


def broken():
    yield task("first")
    raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [(broken(), OSError, "disk is gone"), (["question"], TypeError, "Action"), (None, NotImplementedError, "load_dat")],
)
async def test_what_a_source_raises_ends_the_run(source, error, message):
    with pytest.raises(error, match=message):
        await Evaluator(FakeEnv, output_path=None).run(source)


@pytest.mark.parametrize("kind", ["in a thread", "on the loop"])
async def test_a_source_that_blocks_for_ever_holds_back_neither_its_tasks_nor_the_stop(kind):
    release, started = threading.Event(), asyncio.Event()

    def blocked():
        yield task("first")
        release.wait()
        yield task("second")

    async def waits():
        yield task("first")
        await asyncio.Event().wait()

    evaluator = Evaluator(lambda: FakeEnv(lambda _: started.set() or outcome()), max_concurrency=3, output_path=None)
    run = asyncio.create_task(evaluator.run(blocked() if kind == "in a thread" else waits()))
    try:
        await started.wait()
        evaluator.stop()
        assert list(await run) == ["first"]
        assert all(thread.daemon for thread in threading.enumerate() if thread.name == "strands-env")
    finally:
        release.set()


async def test_tokens_are_dropped_unless_kept_and_read_back_on_resume(tmp_path):
    def evaluator(**options) -> Evaluator:
        return Evaluator(lambda: FakeEnv(lambda _: with_tokens(outcome())), **options)

    without = (await evaluator(output_path=None).run(tasks(1)))["p0"][0].step_result
    assert (without.observation.tokens, without.trajectories) == (None, [])
    first, second = [await evaluator(keep_tokens=True, output_path=tmp_path).run(tasks(2)) for _ in range(2)]
    assert first["p0"][0].step_result.observation.tokens.rollout_token_ids == [3, 4]
    assert {name: list(samples) for name, samples in second.items()} == first
    assert second["p0"][-1:] == first["p0"] and second["p0"][0].step_result.trajectories


# ---- failures --------------------------------------------------------------------------------------------------------


async def test_a_rollout_lost_to_infrastructure_is_run_again():
    answers = iter([lost(), lost(TerminationReason.ABORTED), outcome()])
    made = await run_one(lambda: FakeEnv(lambda _: next(answers)))
    assert (made.attempts, made.reward, made.aborted) == (3, 1.0, False)


@pytest.mark.parametrize(
    ("result", "is_tried_again"),
    [
        (lost(TerminationReason.CONNECTION_ERROR), True),
        (lost(TerminationReason.ABORTED), True),
        (lost(TerminationReason.THROTTLED), True),
        (lost(TerminationReason.SETUP_ERROR), True),
        (lost(TerminationReason.CANCELLED), True),
        (lost(TerminationReason.UNCLASSIFIED_ERROR, Phase.LOOP), True),
        (lost(TerminationReason.TIMEOUT, Phase.SETUP), True),
        (lost(TerminationReason.TIMEOUT, Phase.MODEL), True),
        (lost(TerminationReason.TIMEOUT, Phase.LOOP, kind="httpx.ReadTimeout"), True),
        (lost(TerminationReason.TIMEOUT, Phase.LOOP, kind=OWN_DEADLINE), False),
        (lost(TerminationReason.TIMEOUT, Phase.REWARD, kind=OWN_DEADLINE), False),
        (lost(TerminationReason.REWARD_ERROR, Phase.REWARD), False),
        (outcome(0.0), False),
        (outcome(0.0, TerminationReason.MAX_TOKENS_REACHED), False),
        (outcome(0.0, TerminationReason.CONTENT_FILTERED), False),
    ],
)
async def test_only_what_infrastructure_lost_is_tried_again(result, is_tried_again):
    made = await run_one(lambda: FakeEnv(lambda _: result))
    assert (made.attempts, made.aborted) == ((3, True) if is_tried_again else (1, False))


@pytest.mark.parametrize("timeout", [None, 30.0])
@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (ValueError("bad task"), TerminationReason.UNCLASSIFIED_ERROR),
        (asyncio.CancelledError(), TerminationReason.CANCELLED),
        *((error, TerminationReason.UNCLASSIFIED_ERROR) for error in (Panic("x"), KeyboardInterrupt("x"))),
        *((error, TerminationReason.UNCLASSIFIED_ERROR) for error in (SystemExit(3), GeneratorExit())),
    ],
    ids=repr,
)
async def test_whatever_a_rollout_raises_is_one_sample_not_the_run(raised, reason, timeout):
    def answer(action: Action):
        return raised if action.task_context.id == "p1_0" else outcome()

    options = {"retry": AT_ONCE, "max_concurrency": 1, "output_path": None}
    evaluator = Evaluator(lambda: FakeEnv(answer), sample_timeout=timeout, **options)
    results = await evaluator.run(tasks(3))
    broken = results["p1"][0]
    assert (broken.step_result.termination_reason, broken.aborted, broken.attempts) == (reason, True, 3)
    assert str(raised) in broken.step_result.error.message
    assert [results[name][0].reward for name in ("p0", "p2")] == [1.0, 1.0] and FakeEnv.cleanups == 5


@pytest.mark.parametrize(("phase", "attempts"), [(Phase.SETUP, 3), (Phase.LOOP, 1)])
async def test_sample_timeout_ends_a_rollout_that_hangs_and_only_a_setup_is_tried_again(phase, attempts):
    class Stuck(FakeEnv):
        async def reset(self) -> None:
            await super().reset()
            await asyncio.sleep(60 if phase is Phase.SETUP else 0)

    made = await run_one(lambda: Stuck(delay=60), sample_timeout=0.05)
    assert made.step_result.termination_reason is TerminationReason.TIMEOUT
    assert made.step_result.error.where is phase
    assert (made.attempts, made.aborted) == (attempts, phase is Phase.SETUP)
    assert FakeEnv.running == 0


def answers_yes(action: Action, result: StepResult) -> float:
    return float(result.observation.final_response == "yes")


@pytest.mark.parametrize("deadline", ["step", "sample"])
@pytest.mark.parametrize("has_reward", [True, False])
async def test_a_policy_that_hangs_on_hard_tasks_gains_nothing(deadline, has_reward):
    def env_factory(action: Action) -> Environment:
        is_hard = action.task_context.id in ("p2_0", "p3_0")
        return Environment(
            model_factory=lambda: ScriptedModel(["yes"], delay=60 if is_hard else 0),
            reward_fn=answers_yes if has_reward else None,
            step_timeout=1.5 if deadline == "step" else None,
        )

    evaluator = Evaluator(env_factory, sample_timeout=1.5 if deadline == "sample" else None, output_path=None)
    results = await evaluator.run(tasks(4))
    assert [results[name][0].reward for name in results] == ([1.0, 1.0, 0.0, 0.0] if has_reward else [None] * 4)
    assert results["p2"][0].step_result.termination_reason is TerminationReason.TIMEOUT
    metrics = evaluator.compute_metrics(results)
    assert (metrics["aborted"], evaluator.lost) == (0, 0)
    assert metrics["pass@1"] == 0.5 if has_reward else math.isnan(metrics["pass@1"])


async def test_what_ended_by_its_own_time_out_can_be_scored_again():
    def fails(*given):
        raise ConnectionError("no judge")

    env = Environment(model_factory=lambda: ScriptedModel(["yes"], delay=60), reward_fn=fails, step_timeout=0.1)
    made = await run_one(lambda: env)
    assert made.step_result.outcome is Outcome.GRADER
    again = remove_score(EvalSample.model_validate_json(made.model_dump_json()))
    assert (again.step_result.termination_reason, again.step_result.outcome) == ("timeout", Outcome.POLICY)
    env.reward_fn = lambda *given: 0.25
    await env.score(again.action, again.step_result)
    assert again.reward == 0.25


async def test_a_sample_timeout_during_the_reward_is_the_graders():
    def env_factory() -> Environment:
        return Environment(model_factory=lambda: ScriptedModel(["yes"]), reward_fn=lambda *given: asyncio.sleep(60))

    made = await run_one(env_factory, sample_timeout=0.5)
    assert (made.step_result.outcome, made.reward, made.attempts) == (Outcome.GRADER, None, 1)


@pytest.mark.parametrize("keeps_deadline", [True, False])
async def test_a_worker_that_does_not_keep_its_deadline_is_lost_and_not_the_loop_of_the_sample(
    keeps_deadline, monkeypatch
):
    monkeypatch.setattr("strands_env.eval.run.sampling.UNANSWERED_SECONDS", 0.0)

    async def with_deadline(action: Action, *, timeout: float | None = None) -> StepResult:
        await asyncio.sleep(60)

    async def without(action: Action) -> StepResult:
        await asyncio.sleep(60)

    executor = SimpleNamespace(rollout=with_deadline if keeps_deadline else without)
    made = await run_one(None, executor=executor, sample_timeout=0.05)
    found = (made.step_result.termination_reason, made.attempts, made.aborted)
    lost = (TerminationReason.CONNECTION_ERROR, 3, True)
    assert found == (lost if keeps_deadline else (TerminationReason.TIMEOUT, 1, False))


@pytest.mark.parametrize("fails", ["hangs", "raises"])
async def test_a_finished_rollout_is_not_lost_in_its_cleanup(fails, monkeypatch):
    monkeypatch.setattr("strands_env.core.rollout.CLEANUP_SECONDS", 1.5)

    class Messy(FakeEnv):
        async def cleanup(self) -> None:
            if fails == "raises":
                raise ValueError("cannot be freed")
            await asyncio.sleep(60)

    made = await run_one(Messy, sample_timeout=1.0)
    assert (made.reward, made.aborted) == (1.0, False)
    assert made.step_result.cleanup_error.where is Phase.CLEANUP


async def test_what_an_environment_does_to_its_action_stays_there(tmp_path):
    seen = []

    def answer(action: Action):
        seen.append(action.message)
        context = action.task_context
        action.message += "!"
        context.id, context.ground_truth, context.more = "b", "mine", "more"
        context.empty.append("more")
        context.parts[0]["deep"].clear()
        context.conversation_history[0]["content"].clear()
        return ConnectionError("gone") if len(seen) == 1 else outcome()

    history = [{"role": "user", "content": [{"text": "before"}]}]
    fields = {"ground_truth": "4", "empty": [], "parts": [{"deep": [1]}], "conversation_history": history}
    given = task("a", **copy.deepcopy(fields))
    evaluator = Evaluator(lambda: FakeEnv(answer), retry=AT_ONCE, n_samples_per_prompt=2, output_path=tmp_path)
    made = (await evaluator.run([given]))["a"]
    assert seen == ["question a"] * 3
    assert given == task("a", **fields)
    for action in [item.action for item in (*made, *read_results(tmp_path))]:
        known = action.model_dump()["task_context"]
        assert action.message == "question a"
        assert known.keys() == {"id", *fields}
        assert {name: known[name] for name in fields} == fields
    assert [item.action.task_context.id for item in made] == ["a_0", "a_1"]


async def test_too_many_failures_end_the_run_and_its_display_and_keep_what_is_done(tmp_path):
    def answer(action: Action) -> StepResult:
        return outcome() if action.task_context.id == "p0_0" else lost()

    calls: list[str] = []
    progress = display(lambda name, state: calls.append(name))
    options = {"max_concurrency": 1, "max_failures": 1, "retry": AT_ONCE, "progress": progress}
    with pytest.raises(TooManyFailuresError, match="gone"):
        await Evaluator(lambda: FakeEnv(answer), output_path=tmp_path, **options).run(tasks(50))
    assert [item.prompt_id for item in read_results(tmp_path)] == ["p0", "p1", "p2"]
    assert calls[-1] == "finish"


async def test_a_lost_sample_has_no_reward_and_the_others_of_its_prompt_count():
    def answer(action: Action) -> StepResult:
        return lost() if action.task_context.id == "p0_0" else outcome()

    options = {"n_samples_per_prompt": 3, "max_concurrency": 1, "retry": AT_ONCE}
    evaluator = Evaluator(lambda: FakeEnv(answer), output_path=None, **options)
    results = await evaluator.run(tasks(2))
    found = evaluator.compute_metrics(results)
    assert (found["pass@1"], found["aborted"]) == (1.0, 1)
    assert (len(results["p0"]), found["prompts"], found["scored"]) == (3, 2, 5)


async def test_validate_sample_refuses_and_resume_tries_again(tmp_path):
    class Choosy(Evaluator):
        def validate_sample(self, sample):
            return sample.step_result.observation.final_response == "good"

    answers = iter(["bad", "good"])

    def evaluator() -> Choosy:
        return Choosy(lambda: FakeEnv(lambda _: outcome(text=next(answers))), output_path=tmp_path)

    assert (await evaluator().run(tasks(1)))["p0"][0].aborted
    assert not (await evaluator().run(tasks(1)))["p0"][0].aborted


# ---- saving and resuming ---------------------------------------------------------------------------------------------


async def test_a_second_run_repeats_nothing_and_adds_what_is_new(tmp_path):
    unnamed = [Action(message=text) for text in "aba"]  # known by their content, and how often it came
    first = await Evaluator(FakeEnv, output_path=tmp_path).run([*tasks(2), *unnamed])
    assert len(first) == 5
    for options, count, new in (({}, 4, 2), ({"n_samples_per_prompt": 2}, 4, 7), ({"n_samples_per_prompt": 2}, 4, 0)):
        FakeEnv.forget()
        again = [action.model_copy(deep=True) for action in unnamed]
        second = await Evaluator(FakeEnv, output_path=tmp_path, **options).run([*tasks(count), *again])
        assert FakeEnv.cleanups == new
        assert {name: second[name][:1] for name in first} == first
        assert list(second) == ["p0", "p1", "p2", "p3", *list(first)[2:]]
    with pytest.raises(ConfigMismatchError, match="task 'p0'"):
        await Evaluator(FakeEnv, output_path=tmp_path).run([task("p0", ground_truth="another")])


async def test_passing_over_finished_samples_lets_others_have_the_loop(tmp_path):
    await Evaluator(FakeEnv, output_path=tmp_path, max_concurrency=50, fsync_interval=None).run(tasks(700))
    evaluator = Evaluator(FakeEnv, output_path=tmp_path, keep_results=False)
    original, seen = TaskNamer.name, []

    def name(self, action):
        seen.append(beats[0])
        return original(self, action)

    async with heartbeat() as beats:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TaskNamer, "name", name)
            await evaluator.run(tasks(700))
    assert len(set(seen)) >= 700 // 64


async def test_environments_that_never_wait_let_others_have_the_loop():
    class NeverWaiting(FakeEnv):
        async def step(self, action: Action) -> StepResult:
            seen.append(beats[0])
            return outcome()

    seen: list[int] = []
    async with heartbeat() as beats:
        await Evaluator(NeverWaiting, max_concurrency=1, output_path=None).run(tasks(10))
    assert len(set(seen)) == 10


def answering(text: str, api_key: str = "") -> FakeEnv:
    return FakeEnv(lambda _: outcome(text=text))


def prompted(prompt: str):
    return lambda: Environment(model_factory=lambda: ScriptedModel(["x"]), system_prompt=prompt)


def prompted_by_task(temperature: float):
    def model():
        return ScriptedModel(["x"])

    model.config = {"temperature": temperature}
    return lambda action: Environment(model_factory=model, system_prompt=action.text)


@pytest.mark.parametrize(
    ("one", "same", "other", "message"),
    [
        (
            *(partial(answering, text=text, api_key=key) for text, key in ("Aa", "Ab", "Bb")),
            r'answering\(api_key=\.\.\., text="A"\).* now .*text="B"',
        ),
        (
            *({"sampling": {"temperature": temperature}} for temperature in (0.0, 0.0, 1.0)),
            r"sampling.temperature: 0.0 in the file, now 1.0",
        ),
        (*map(prompted, ("one", "one", "two")), r"environment.system_prompt: 'one' in the file, now 'two'"),
        (*map(prompted_by_task, (0.0, 0.0, 1.0)), r"environment\.model\.temperature"),
    ],
    ids=["argument", "config", "environment", "model"],
)
async def test_results_of_another_configuration_are_refused_with_the_difference(one, same, other, message, tmp_path):
    def evaluator(made) -> Evaluator:
        given = {"env_factory": FakeEnv, "config": made} if isinstance(made, dict) else {"env_factory": made}
        return Evaluator(**given, output_path=tmp_path)

    await evaluator(one).run(tasks(1))
    await evaluator(same).run(tasks(2))
    with pytest.raises(ConfigMismatchError, match=message):
        await evaluator(other).run(tasks(3))
    assert len(list(read_results(tmp_path))) == 2


async def test_cancelling_cleans_up_and_saves(tmp_path):
    def factory(action: Action) -> FakeEnv:
        return FakeEnv(delay=0.0 if action.task_context.id == "p0_0" else 30)

    evaluator = Evaluator(factory, max_concurrency=3, output_path=tmp_path)
    run = asyncio.create_task(evaluator.run(tasks(9)))
    while FakeEnv.cleanups < 1 or FakeEnv.running < 3:
        await asyncio.sleep(0.005)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert FakeEnv.running == 0
    assert [item.prompt_id for item in read_results(tmp_path)] == ["p0"]


async def test_results_can_stay_on_disk(tmp_path):
    evaluator = Evaluator(FakeEnv, output_path=tmp_path, keep_results=False)
    assert await evaluator.run(tasks(4)) == {}
    assert evaluator.compute_metrics()["samples"] == 4


# ---- metrics and compatibility ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metrics_fns", "metric_fns"])
async def test_metrics_have_pass_at_k_always_and_the_users_functions(name):
    own = {name: [lambda results: compute_pass_at_k(results, [1], reward_threshold=2.0)]}
    evaluator = Evaluator(FakeEnv, n_samples_per_prompt=3, output_path=None, **own)
    metrics = evaluator.compute_metrics(await evaluator.run(tasks(2)))
    assert (metrics["pass@1"], metrics["pass@2"], metrics["pass@3"]) == (0.0, 1.0, 1.0)
    assert metrics["output_tokens_per_sample"] == 5.0


async def test_a_subclass_brings_its_data_set():
    class Mine(Evaluator):
        benchmark_name = "mine"

        def load_dataset(self):
            yield Action(message="q", task_context=TaskContext(id="only"))

    assert list(await Mine(FakeEnv, output_path=None).run()) == ["only"]


@pytest.mark.parametrize("given", ["a list", "a file", "a stream"])
async def test_tasks_that_cannot_be_scored_are_told_before_the_run(given, tmp_path, caplog):
    """The reward has been tried, and warned of, when the first rollout begins; the results are the same."""
    rows = [{"question": "2+2?", "answer": gold, "id": f"row{place}"} for place, gold in enumerate(["4", "17", None])]
    file = tmp_path / "quiz.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told: list[int] = []

    def answer(messages: Any) -> str:
        told.append(len(caplog.records))
        return "4"

    def factory() -> Environment:
        return Environment(model_factory=lambda: ScriptedModel(answer), reward_fn=ExactMatchReward())

    results = []
    for seconds in (30.0, 0.0):
        told.clear(), caplog.clear()
        evaluator = DataBenchmark(factory, data_path=file, output_path=None, proof_seconds=seconds)
        listed = list(evaluator.load_dataset())
        results.append(await evaluator.run({"a list": listed, "a file": None, "a stream": iter(listed)}[given]))
        warned = [record.getMessage() for record in caplog.records if "fails its proof" in record.getMessage()]
        proven = seconds > 0 and given != "a stream"
        assert (evaluator.proof is not None) == proven == bool(told[0]) == (len(warned) == 1)
        assert not proven or "failed=<1>, tasks=<row2>" in warned[0]
    rewards = [{name: [item.reward for item in items] for name, items in found.items()} for found in results]
    assert rewards[0] == rewards[1] == {"row0": [1.0], "row1": [0.0], "row2": [None]}


@pytest.mark.parametrize("reward", ["a judge", "reads a database", "raises on everything"])
async def test_a_reward_that_lets_no_gold_win_is_told_once_and_no_judge_is_asked(reward, caplog):
    asked: list[int] = []

    def judge() -> ScriptedModel:
        asked.append(1)
        return ScriptedModel(["correct"])

    rewards = {"a judge": CorrectnessJudgeReward(judge), "reads a database": lambda a, r: 0.0}
    reward_fn = rewards.get(reward, lambda a, r: 1 / 0)
    evaluator = Evaluator(
        lambda: Environment(model_factory=lambda: ScriptedModel(["4"]), reward_fn=reward_fn), output_path=None
    )
    await evaluator.prove([Action(message="2+2?", task_context=TaskContext(ground_truth="4"))])
    told = [record.getMessage() for record in caplog.records]
    assert not asked and len(told) == (reward != "a judge")
    assert all("no gold wins or is scored" in text for text in told)


async def test_metrics_without_kept_results_are_those_of_the_tasks_that_were_run(tmp_path):
    await Evaluator(lambda: FakeEnv(lambda action: outcome(0.0)), output_path=tmp_path).run(tasks(2))
    again = Evaluator(lambda: FakeEnv(), output_path=tmp_path, keep_results=False, config={})
    assert await again.run([task("new")]) == {}
    assert again.compute_metrics()["pass@1"] == 1.0
    assert list(again.load_results()) == ["new"]


class Constant(RewardFunction):
    """The same for all answers."""

    def __init__(self, right: float = 1.0) -> None:
        self._right = right

    async def compute(self, action, step_result):
        return RewardResult(reward=self._right)


@pytest.mark.parametrize("takes_action", [False, True])
async def test_a_run_is_not_continued_with_another_reward(takes_action, tmp_path, caplog):
    def evaluator(reward) -> Evaluator:
        def make(action: Action | None = None) -> Environment:
            prompt = action and f"Task {action.task_context.id}."  # which of each task is another
            return Environment(model_factory=lambda: ScriptedModel(["ok"]), reward_fn=reward, system_prompt=prompt)

        return Evaluator(make if takes_action else lambda: make(), output_path=tmp_path)

    await evaluator(Constant()).run(tasks(1))
    assert "continuing" not in caplog.text
    await evaluator(Constant()).run(tasks(2))
    assert "samples=<1> | continuing a saved run" in caplog.text
    where = r"environment.(task\.)?reward.arguments.right: 1.0 in the file, now 0.5"
    for count in (2, 3):  # all samples are there, and one is to be run
        with pytest.raises(ConfigMismatchError, match=where):
            await evaluator(Constant(0.5)).run(tasks(count))
    assert len(list(read_results(tmp_path))) == 2


async def test_samples_before_the_task_of_the_recorded_environment_wait_for_its_comparison(tmp_path):
    asked: list[str] = []
    lost = [ConnectionError("lost")]

    async def make(action: Action, right: float) -> Environment:
        def answer(messages: Any) -> str:
            asked.append(action.task_context.id)
            if action.task_context.id == "p0_0" and lost:
                raise lost.pop()
            return "ok"

        if action.task_context.id == "p0_0":
            while not asked:  # the first environment is that of the second task
                await asyncio.sleep(0)
        return Environment(model_factory=lambda: ScriptedModel(answer), reward_fn=Constant(right))

    options = {"output_path": tmp_path, "retry": RetryPolicy(max_attempts=1), "config": {"env_factory": "mine"}}
    await Evaluator(lambda action: make(action, 1.0), **options).run(tasks(2))
    assert asked == ["p1_0", "p0_0"]
    with pytest.raises(ConfigMismatchError, match=r"environment.task.reward.arguments.right: 1.0 in the file, now 0.5"):
        await Evaluator(lambda action: make(action, 0.5), **options).run(tasks(2))
    assert len(asked) == 2


async def test_secrets_of_the_configuration_are_written_nowhere(tmp_path):
    config = {"environment": {"config": {"api_key": "hunter2", "nested": [{"password": "hunter2", "size": 3}]}}}
    options = {"output_path": tmp_path, "config": config, "about": {"options": config}}
    await Evaluator(FakeEnv, **options).run(tasks(1))
    await Evaluator(FakeEnv, **options).run(tasks(2))
    write_report(tmp_path, tmp_path / "report.html")
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert b'"size": 3' in written["results.run.json"] and "report.html" in written
    assert not [name for name, data in written.items() if b"hunter2" in data]


async def test_what_a_notebook_shows_of_results_is_a_line_each(tmp_path):
    def answer(action):
        result = with_tokens(outcome(text="word " * 1000))
        return result.model_copy(update={"error": ErrorRecord.from_exception(ValueError("no " * 99), Phase.LOOP)})

    evaluator = Evaluator(lambda: FakeEnv(answer), output_path=tmp_path, n_samples_per_prompt=2, keep_tokens=True)
    results = await evaluator.run(tasks(500))
    made = results["p0"][0]
    error = f"ValueError: {'no ' * 99}"[:80]
    said = f"reward=1.0, termination_reason='task_complete', error={error!r}, messages=2, tokens=4, trajectories=1"
    assert repr(made) == f"EvalSample(prompt_id='p0', index=0, {said})"
    assert repr(made.step_result) == f"StepResult({said})"
    assert repr(made.step_result.observation) == "Observation(messages=2, tokens=4)"
    assert len(repr(made.step_result.trajectories[0])) < 300
    for found in (results, evaluator.results, evaluator.load_results(), await evaluator.run(tasks(500))):
        assert repr(found) == "CollectedResults(prompts=500, samples=1000)"
    assert repr(found["p0"]) == "LazySamples(samples=2)"
