"""Reset and cleanup are paired, deadlines hold, and cancellation cleans up."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from strands import tool
from strands.types.exceptions import ContextWindowOverflowException

from strands_env.core import Action, Environment, StepResult
from strands_env.core import deadline as deadline_module
from strands_env.core.deadline import run_shielded, run_with_timeout
from strands_env.core.rollout import LocalExecutor
from strands_env.core.termination import EpisodeTimeoutError, Outcome, Phase, TerminationReason
from strands_env.testing import ScriptedModel, call, reply

ACTION = Action(message="hi")
SOON = 0.05
LONG = 60.0
released = threading.Event()


@tool
async def wait_long() -> str:
    """Never return."""
    await asyncio.sleep(LONG)
    return "late"


class LoggedEnv(Environment):
    """Notes what runs; each part may be replaced by a coroutine function."""

    def __init__(self, parts: dict[str, Callable[[], Any]] | None = None, **options: Any) -> None:
        options.setdefault("model_factory", lambda: ScriptedModel(["ok"]))
        super().__init__(**options)
        self.log: list[str] = []
        self.parts = parts or {}

    async def _part(self, name: str) -> None:
        self.log.append(name)
        if name in self.parts:
            await self.parts[name]()
        self.log.append(f"{name} done")

    async def reset(self) -> None:
        await self._part("reset")

    async def cleanup(self) -> None:
        await self._part("cleanup")

    def get_tools(self) -> list[Any]:
        return [wait_long]


async def sleep_long() -> None:
    await asyncio.sleep(LONG)


async def fail() -> None:
    raise OSError("no container")


async def meet_a_limit() -> None:
    raise ContextWindowOverflowException("of the agent that prepares the task")


async def cancel_itself(*given: Any) -> Any:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("part", "reason"), [(fail, "setup_error"), (meet_a_limit, "setup_error"), (sleep_long, "timeout")]
)
async def test_failing_reset_is_data_and_cleaned_up(part: Callable[[], Any], reason: str) -> None:
    env = LoggedEnv({"reset": part}, setup_timeout=SOON)
    result = await env.rollout(ACTION)
    assert (result.termination_reason, result.error.where) == (reason, Phase.SETUP)
    assert env.log == ["reset", "cleanup", "cleanup done"]


@pytest.mark.parametrize(("part", "kind"), [(fail, "OSError"), (sleep_long, "EpisodeTimeoutError")])
async def test_failing_cleanup_takes_nothing_away(part: Callable[[], Any], kind: str) -> None:
    env = LoggedEnv({"cleanup": part}, cleanup_timeout=SOON, reward_fn=lambda action, result: 1.0)
    result = await env.rollout(ACTION)
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    assert result.reward.reward == 1.0
    assert result.error is None
    assert result.cleanup_error.type.endswith(kind)
    assert result.cleanup_error.where is Phase.CLEANUP


async def test_loop_deadline_keeps_the_tokens() -> None:
    env = LoggedEnv(
        model_factory=lambda: ScriptedModel([call("wait_long"), "never"]),
        step_timeout=20 * SOON,  # time enough for the first reply, also on a busy machine
        reward_fn=lambda action, result: 1.0,
    )
    result = await env.step(ACTION)
    # A policy that never gets to an end must not leave the denominator.
    assert (result.termination_reason, result.outcome) == (TerminationReason.TIMEOUT, Outcome.POLICY)
    assert result.reward.reward == 1.0
    assert result.error.where is Phase.LOOP
    assert sum(result.observation.tokens.loss_mask) > 0


async def score_late(*given: Any) -> float:
    await asyncio.sleep(LONG)
    return 1.0


async def divide(*given: Any) -> float:
    raise ZeroDivisionError("no judge")


@pytest.mark.parametrize(
    ("reward", "reason"),
    [
        (divide, "reward_error"),
        (cancel_itself, "reward_error"),
        (score_late, "timeout"),
        (lambda *given: released.wait(LONG), "timeout"),
    ],
    ids=["raises", "cancels itself", "late", "late, in a thread"],
)
async def test_reward_that_fails_loses_nothing(reward: Any, reason: str) -> None:
    released.clear()
    result = await LoggedEnv(reward_fn=reward, reward_timeout=SOON).step(ACTION)
    released.set()
    assert (result.termination_reason, result.reward, result.error.where) == (reason, None, Phase.REWARD)
    assert result.observation.final_response == "ok"
    assert result.observation.tokens is not None
    assert result.observation.metrics["loop_termination_reason"] == "task_complete"


JUDGMENTS = iter([None, {"score": 0.5}, {"score": 0.5}])
"""Those of a client that fails once."""


@pytest.mark.parametrize(
    ("reward", "answer", "expected"),
    [
        (lambda action, result: float(result.observation.final_response.strip() == "4"), "", 0.0),
        (lambda action, result: float(result.observation.final_response), "", 0.0),
        (lambda action, result: "4" in result.observation.final_response, "", 0.0),
        (divide, "", None),  # what failed is not the lack of an answer
        (lambda action, result: float(result.observation.final_response.nothing), "4", None),
        (lambda action, result: result.observation.messages[-1]["content"][0]["text"] == "4", "", 0.0),
        (lambda action, result: (None).judge(result), "", None),  # a client that is not there for any answer
        (lambda action, result: next(JUDGMENTS)["score"], "", 0.5),
    ],
    ids=["attribute", "float", "in", "other error", "with an answer", "last message", "no client", "fails once"],
)
async def test_a_reward_that_cannot_read_a_missing_answer_scores_it_0(
    reward: Any, answer: str, expected: float | None
) -> None:
    env = LoggedEnv(model_factory=lambda: ScriptedModel([answer]), reward_fn=reward)
    result = await env.step(ACTION)
    assert (result.reward and result.reward.reward) == expected
    assert result.outcome is (Outcome.GRADER if expected is None else Outcome.POLICY)


@pytest.mark.parametrize("error", [TimeoutError("user simulator"), ConnectionError("gone")])
async def test_what_interact_waits_for_is_not_the_policys_time(error: Exception) -> None:
    class Simulated(LoggedEnv):
        async def interact(self, agent: Any, action: Any) -> Any:
            await self.invoke(agent, action.prompt)
            raise error

    result = await Simulated(step_timeout=LONG, reward_fn=lambda *given: 1.0).step(ACTION)
    assert (result.outcome, result.reward) == (Outcome.INFRASTRUCTURE, None)


async def test_is_scored_that_raises_is_an_error_of_the_reward() -> None:
    env = LoggedEnv(reward_fn=lambda *given: 1.0)
    env.is_scored = lambda reason: {}[reason]  # type: ignore[method-assign]
    result = await env.step(ACTION)
    assert (result.termination_reason, result.reward) == (TerminationReason.REWARD_ERROR, None)


async def test_cleanup_finishes_even_when_cancelled_itself() -> None:
    release = asyncio.Event()
    env = LoggedEnv({"cleanup": release.wait})
    task = asyncio.create_task(env.rollout(ACTION))
    while "cleanup" not in env.log:
        await asyncio.sleep(0)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(SOON / 2)
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert env.log[-1] == "cleanup done"


async def test_cancelled_step_with_a_deadline_leaves_no_task_behind() -> None:
    env = LoggedEnv(model_factory=lambda: ScriptedModel(["ok"], delay=LONG), step_timeout=LONG)
    before = asyncio.all_tasks()
    task = asyncio.create_task(env.step(ACTION))
    await asyncio.sleep(SOON)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("part", ["reset", "model", "cleanup"])
async def test_cancellation_from_inside_is_data(part: str) -> None:
    script = [asyncio.CancelledError() if part == "model" else "ok"]
    result = await LoggedEnv({part: cancel_itself}, model_factory=lambda: ScriptedModel(script)).rollout(ACTION)
    record = result.cleanup_error if part == "cleanup" else result.error
    assert record.type.endswith("WorkCancelledError")
    assert part == "model" or "in cancel_itself" in record.traceback
    assert result.termination_reason == ("task_complete" if part == "cleanup" else "cancelled")


async def test_work_that_ignores_cancellation_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline_module, "GRACE_SECONDS", SOON)
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(EpisodeTimeoutError, match=r"loop took longer than its deadline of 0\.05 s"):
        await run_with_timeout(stubborn(), SOON, Phase.LOOP)
    release.set()


async def test_cleanup_that_ignores_its_cancellation_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline_module, "GRACE_SECONDS", SOON)
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    env = LoggedEnv({"cleanup": stubborn}, cleanup_timeout=SOON)
    result = await LocalExecutor(lambda: env).rollout(ACTION, timeout=LONG)
    release.set()
    assert result.cleanup_error.type.endswith("EpisodeTimeoutError")


@pytest.mark.parametrize("ended_by", ["deadline", "cancellation"])
async def test_cleanup_has_its_own_time_however_the_rollout_was_ended(ended_by, monkeypatch):
    monkeypatch.setattr(deadline_module, "GRACE_SECONDS", SOON)
    env = LoggedEnv(
        {"cleanup": lambda: asyncio.sleep(6 * SOON)}, model_factory=lambda: ScriptedModel(["ok"], delay=LONG)
    )
    timeout = SOON if ended_by == "deadline" else LONG
    task = asyncio.create_task(LocalExecutor(lambda: env).rollout(ACTION, timeout=timeout))
    if ended_by == "cancellation":
        while "reset done" not in env.log:
            await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(EpisodeTimeoutError if ended_by == "deadline" else asyncio.CancelledError):
        await task
    assert env.log[-1] == "cleanup done"


async def test_deadline_of_a_rollout_that_is_cleaning_up_takes_nothing_away() -> None:
    env = LoggedEnv({"cleanup": lambda: asyncio.sleep(12 * SOON)})
    result = await LocalExecutor(lambda: env).rollout(ACTION, timeout=8 * SOON)
    assert (result.termination_reason, result.cleanup_error) == (TerminationReason.TASK_COMPLETE, None)


async def test_context_manager_pairs_reset_and_cleanup() -> None:
    env = LoggedEnv()
    async with env as entered:
        assert entered is env
        await env.step(ACTION)
        await env.step(ACTION)
    assert env.log == ["reset", "reset done", "cleanup", "cleanup done"]
    env = LoggedEnv({"reset": fail})
    with pytest.raises(OSError, match="no container"):
        async with env:
            raise AssertionError("unreachable")
    assert env.log == ["reset", "cleanup", "cleanup done"]


async def test_error_in_the_body_wins_over_one_in_cleanup() -> None:
    with pytest.raises(KeyError):
        async with LoggedEnv({"cleanup": fail}):
            raise KeyError("body")
    with pytest.raises(OSError, match="no container"):
        async with LoggedEnv({"cleanup": fail}):
            pass


# ---- one thread for what belongs to a thread -----------------------------------------------------------------------


class Database(Environment):
    """A plain `reset`: SQLite refuses every thread but the one that opened it."""

    def reset(self) -> None:  # type: ignore[override]
        self.rows = sqlite3.connect(":memory:")
        self.rows.execute("create table t (x)")

    def get_tools(self) -> list[Any]:
        @tool
        def insert(x: int) -> str:
            """Insert a number."""
            self.rows.execute("insert into t values (?)", (x,))
            return "inserted"

        @tool
        def hang() -> str:
            """Never return in time."""
            time.sleep(1.0)
            return "late"

        return [insert, hang]

    def compute_metrics(self, *counters: Any, **named: Any) -> dict[str, Any]:
        [(rows,)] = self.rows.execute("select count(*) from t")
        return {**super().compute_metrics(*counters, **named), "rows": rows}

    def cleanup(self) -> None:  # type: ignore[override]
        self.rows.close()


async def test_a_plain_reset_and_synchronous_tools_metrics_and_rewards_share_a_thread() -> None:
    def total(action: Action, result: StepResult) -> float:
        return float(env.rows.execute("select sum(x) from t").fetchone()[0])

    before = threading.active_count()
    env = Database(
        model_factory=lambda: ScriptedModel([reply("", call("insert", x=1), call("insert", x=2)), "done"]),
        reward_fn=total,
    )
    for _ in range(2):
        result = await env.rollout(Action(message="go"))
        assert result.tool_errors == [] and result.cleanup_error is None, result
        assert result.reward is not None and result.reward.reward == 3.0
        assert result.observation.metrics["rows"] == 2
    while threading.active_count() > before:
        await asyncio.sleep(0.01)


async def test_a_tool_that_hangs_holds_up_its_own_environment_alone() -> None:
    def env() -> Database:
        script = [call("hang"), call("insert", x=1), "done"]
        return Database(model_factory=lambda: ScriptedModel(script), tool_timeout=0.2)

    other = Database(model_factory=lambda: ScriptedModel([call("insert", x=1), "done"]))
    hung, fine = await asyncio.gather(env().rollout(Action(message="go")), other.rollout(Action(message="go")))
    assert fine.tool_errors == [] and fine.cleanup_error is None
    assert hung.termination_reason is TerminationReason.TASK_COMPLETE
    assert "did not finish" in str(hung.observation.messages[2]) and "busy" in str(hung.observation.messages[4])
    assert hung.cleanup_error is None  # it waits for the thread


def gym_reset(self, seed=None):
    raise AssertionError("never called")


def of_any(self, *given, **named):
    raise AssertionError("never called")


@pytest.mark.parametrize("name", ["reset", "get_tools", "get_hooks", "get_system_prompt", "get_history"])
@pytest.mark.parametrize("method", [gym_reset, of_any, lambda self, *, action: None, lambda self, action, other: None])
def test_a_method_of_the_task_takes_the_action_or_nothing(name: str, method: Any) -> None:
    with pytest.raises(
        TypeError, match=rf"Gym.{name}\(self.* cannot be called: declare {name}\(self\), or {name}\(self, action"
    ):
        type("Gym", (Environment,), {name: method})


class OfTheTask(Environment):
    """Everything depends on the task."""

    async def reset(self, action: Action) -> None:
        self.log = [f"reset {action.text}"]

    def get_tools(self, action: Action) -> list[Any]:
        self.log.append(f"tools {action.text}")
        return [wait_long]

    def get_hooks(self, action: Action) -> list[Any]:
        self.log.append(f"hooks {action.text}")
        return []

    def get_system_prompt(self, action: Action) -> str:
        return f"prompt of {action.text}"

    def get_history(self) -> list[Any]:
        return [{"role": "user", "content": [{"text": "1"}]}, {"role": "assistant", "content": [{"text": "one"}]}]


@pytest.mark.parametrize("way", ["rollout", "async with", "step"])
async def test_the_task_reaches_every_method_that_declares_it(way: str) -> None:
    model = ScriptedModel(["ok"])
    env = OfTheTask(model_factory=lambda: model)
    if way == "rollout":
        result = await env.rollout(ACTION)
    elif way == "step":
        result = await env.step(ACTION)
    else:
        async with env:
            result = await env.step(ACTION)
    assert result.termination_reason is TerminationReason.TASK_COMPLETE
    assert env.log == ["reset hi", "tools hi", "hooks hi"]
    assert result.observation.system_prompt == "prompt of hi"
    assert [message["content"][0]["text"] for message in model.last_messages] == ["1", "one", "hi"]
    assert [message["content"][0]["text"] for message in result.observation.history or ()] == ["1", "one"]


class ReadsTheTask(OfTheTask):
    """The same without the parameter, in front of methods with it, and everywhere else."""

    async def reset(self) -> None:  # type: ignore[override]
        await super().reset()  # type: ignore[call-arg]
        assert super().get_system_prompt(self.action) == f"prompt of {self.action.text}"

    def get_tools(self) -> list[Any]:  # type: ignore[override]
        @tool
        def task() -> str:
            """The task."""
            return self.action.text

        return [*super().get_tools(self.action), task]

    async def interact(self, agent: Any, action: Action) -> Any:
        self.log.append(f"interact {self.action.text}")
        return await super().interact(agent, action)

    def is_scored(self, reason: TerminationReason) -> bool:
        self.log.append(f"scored {self.action.text}")
        return super().is_scored(reason)

    async def cleanup(self) -> None:
        self.log.append(f"cleanup {self.action.text}")


async def test_every_part_of_an_episode_reads_its_task() -> None:
    env = ReadsTheTask(model_factory=lambda: ScriptedModel([call("task"), "ok"]), reward_fn=lambda action, result: 1.0)
    result = await env.rollout(ACTION)
    assert result.reward is not None and result.reward.reward == 1.0 and result.cleanup_error is None, result
    assert env.log == ["reset hi", "tools hi", "hooks hi", "interact hi", "scored hi", "cleanup hi"]
    assert "'text': 'hi'" in str(result.observation.messages[2])
    with pytest.raises(RuntimeError, match=r"ReadsTheTask\.action is the running step's task, and no step is running"):
        _ = env.action


async def test_each_of_several_steps_at_once_has_its_own_task_and_inner_episodes_have_theirs() -> None:
    class Shared(Environment):
        def get_tools(self) -> list[Any]:
            @tool
            async def ask() -> str:
                """Run another environment, whose tool reads the task of this one."""
                inner = Shared(model_factory=lambda: ScriptedModel([call("ask_inner"), "ok"]))
                inner.get_tools = lambda: [tool(ask_inner)]  # type: ignore[method-assign]

                def ask_inner() -> str:
                    """Read both tasks."""
                    return f"[{self.action.text}] around [{inner.action.text}]"

                result = await inner.rollout(Action(message=f"inner {self.action.text}"))
                return str(result.observation.messages[2]["content"])

            return [ask]

    env = Shared(model_factory=lambda: ScriptedModel([call("ask"), "ok"]))
    results = await asyncio.gather(*(env.step(Action(message=f"task {i}")) for i in range(3)))
    for i, result in enumerate(results):
        assert f"[task {i}] around [inner task {i}]" in str(result.observation.messages[2]), result


async def test_without_a_rollout_a_reset_without_the_parameter_comes_before_the_task() -> None:
    class Early(Environment):
        async def reset(self) -> None:
            self.seen = self.action

    with pytest.raises(RuntimeError, match=r"'async with' calls reset\(self\) before the first one"):
        async with Early(model_factory=lambda: ScriptedModel(["ok"])):
            raise AssertionError("unreachable")
    assert (await Early(model_factory=lambda: ScriptedModel(["ok"])).rollout(ACTION)).error is None


async def test_a_reset_that_fails_at_the_first_step_is_the_steps_failure() -> None:
    class Broken(Environment):
        async def reset(self, action: Action) -> None:
            raise OSError("no world")

    async with Broken(model_factory=lambda: ScriptedModel(["ok"])) as env:
        result = await env.step(ACTION)
    assert result.error is not None
    assert (result.termination_reason, result.error.message) == (TerminationReason.SETUP_ERROR, "no world")


async def test_a_cleanup_needs_no_task_for_its_deadline(monkeypatch):
    started: list[object] = []
    start = deadline_module._start
    monkeypatch.setattr(deadline_module, "_start", lambda work, *rest: started.append(work) or start(work, *rest))

    async def at_once() -> None: ...

    await run_shielded(at_once(), 60.0, Phase.CLEANUP)
    assert len(started) == 1
