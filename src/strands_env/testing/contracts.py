"""Contract suites: subclass one in a test module, and pytest checks your environment or reward function.

```python
from strands_env.testing import EnvironmentContract, RewardContract


class TestMyEnv(EnvironmentContract):
    def make_env(self, model_factory):
        return MyEnv(model_factory=model_factory)


class TestMyReward(RewardContract):
    def make_reward(self):
        return MyReward()

    def examples(self):
        return [("4", "The answer is 4", 1.0), ("4", "The answer is 5", 0.0)]

    def tasks(self):  # on which the reward is proven
        return [Action(message="What is 2 + 2?", task_context=TaskContext(ground_truth="4"))]
```

An `async` clause runs in its own event loop: no pytest plugin is needed.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import math
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from strands import Agent

from strands_env.core.environment import Environment
from strands_env.core.episode import call_part
from strands_env.core.models import ModelFactory
from strands_env.core.scoring import as_reward_function
from strands_env.core.termination import Outcome, TerminationReason
from strands_env.core.threads import LoopBlockedError, run_watched
from strands_env.core.types import Action, RewardResult, StepResult, TaskContext
from strands_env.rewards.proof import answered, prove_reward

from .scripted import ScriptedCall, ScriptedModel

GRACE_SECONDS = 10.0
"""Time that cancelled work has to end."""
LEFT_BEHIND_SECONDS = 3.0
"""Time that threads and processes of an episode have to end after its cleanup."""


class Contract:
    """Clauses, one `test_*` method each, that end in time."""

    time_limit: float = 120.0
    """Seconds any clause may take; a hang is a failure."""

    def __init_subclass__(cls) -> None:
        """Let our `async` clauses run without a plugin; those of a user's class are for the user's plugin."""
        super().__init_subclass__()
        for name, clause in list(vars(cls).items()) if cls.__module__.startswith("strands_env.") else ():
            if name.startswith("test_") and inspect.iscoroutinefunction(clause):
                setattr(cls, name, _in_a_loop(clause))

    def _run(self, work: Coroutine[Any, Any, object]) -> None:
        """Run the work in a new event loop. Code that blocks that loop cannot take longer either.

        Raises:
            AssertionError: The time has passed.
        """
        try:
            run_watched(asyncio.wait_for(work, self.time_limit), self.time_limit + GRACE_SECONDS)
        except LoopBlockedError as error:
            raise AssertionError(f"it blocks the event loop: {error}") from error


def _in_a_loop(clause: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
    @functools.wraps(clause)
    def run(self: Contract) -> None:
        self._run(clause(self))

    return run


class EnvironmentContract(Contract, ABC):
    """The properties of an environment that evaluators and trainers rely on; each `test_*` method is one clause."""

    @abstractmethod
    def make_env(self, model_factory: ModelFactory) -> Environment:
        """A new environment over this factory, as your users would make it."""

    def make_action(self) -> Action:
        """An action the environment takes."""
        return Action(message="Hello", task_context=TaskContext(id="contract", ground_truth="done"))

    def examples(self) -> Iterable[tuple[str, float | None]]:
        """Known cases of `make_action()`: final response, expected reward (None for an abstention).

        Give one that is worth something: without it, a reward that is always 0 keeps this contract.
        """
        return ()

    async def test_examples(self) -> None:
        """Known answers get their rewards."""
        for response, expected in self.examples():
            result = await self._rollout(response)
            assert result.termination_reason is TerminationReason.TASK_COMPLETE, _explain(result)
            reward = None if result.reward is None else result.reward.reward
            assert _is_same(reward, expected), f"{response!r}: expected {expected!r}, got {reward!r}"

    async def test_episode_completes(self) -> None:
        """An agent that just answers ends the task, without an error in the loop, the reward, or the cleanup."""
        result = await self._rollout("done")
        assert result.termination_reason is TerminationReason.TASK_COMPLETE, _explain(result)
        assert result.observation.final_response == "done"
        assert result.cleanup_error is None, result.cleanup_error

    async def test_result_survives_json(self) -> None:
        """Messages, metrics and reward info are JSON values: a result can be stored and read back unchanged."""
        result = await self._rollout("done")
        assert StepResult.from_json(result.to_json()) == result

    async def test_episodes_follow_each_other(self) -> None:
        """An environment runs one episode after the other."""
        env = self.make_env(lambda: ScriptedModel(["done"]))
        for _ in range(2):
            result = await env.rollout(self.make_action())
            assert result.termination_reason is TerminationReason.TASK_COMPLETE, _explain(result)

    async def test_environments_run_side_by_side(self) -> None:
        """Several environments at once do not disturb each other."""
        results = await asyncio.gather(*(self._rollout(f"done {i}") for i in range(4)))
        for i, result in enumerate(results):
            assert result.observation.final_response == f"done {i}", _explain(result)

    async def test_cleanup_needs_no_reset_and_may_run_twice(self) -> None:
        """Cleanup works after a reset that never ran or failed half-way, and a second time."""
        env = self.make_env(lambda: ScriptedModel(["done"]))
        for part in (env.cleanup, env.reset, env.cleanup, env.cleanup):
            await call_part(env, part)

    async def test_cancelled_episode_is_cleaned_up(self) -> None:
        """Cancelling an episode in a model call runs the cleanup before the cancellation is raised."""
        called, cleaned = asyncio.Event(), asyncio.Event()

        def reply(messages: list[dict[str, Any]]) -> str:
            called.set()
            return "late"

        env = self.make_env(lambda: ScriptedModel(reply, delay=self.time_limit))
        original = env.cleanup

        async def cleanup() -> None:
            await call_part(env, original)
            cleaned.set()

        env.cleanup = cleanup  # type: ignore[method-assign]
        task = asyncio.create_task(env.rollout(self.make_action()))
        await called.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled(), "rollout() swallowed the cancellation"
        assert cleaned.is_set(), "cleanup() did not run"

    async def test_episode_leaves_no_task_behind(self) -> None:
        """After an episode no asyncio task of it is running."""
        before = asyncio.all_tasks()
        await self._rollout("done")
        await asyncio.sleep(0)
        assert not asyncio.all_tasks() - before

    def test_episode_leaves_no_thread_or_process_behind(self) -> None:
        """After an episode no thread and no child process of it is alive; shared ones may be."""
        self._run(self._rollout("done"))  # starts the shared ones
        before = _list_alive()
        self._run(self._rollout("done"))
        deadline = time.monotonic() + LEFT_BEHIND_SECONDS
        while (left := _list_alive() - before) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not left, f"left behind after cleanup(): {', '.join(sorted(left))}"

    async def test_failing_model_is_data_without_a_reward(self) -> None:
        """A model that fails gives a result with the error and no reward, never an exception or a reward of 0."""
        result = await self._rollout(ConnectionError("server gone"))
        assert result.termination_reason is TerminationReason.CONNECTION_ERROR, _explain(result)
        assert result.error is not None
        assert result.reward is None

    async def test_tools_are_all_usable(self) -> None:
        """Every tool has a valid and unique name, a description, and is accepted by an agent."""
        async with self.make_env(lambda: ScriptedModel(["done"])) as env:
            specs = await _tool_specs(env, self.make_action())
        for spec in specs:
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", spec["name"]), f"bad tool name {spec['name']!r}"
            assert spec["description"].strip(), f"tool {spec['name']!r} has no description"

    async def test_tools_called_wrongly_give_tool_results(self) -> None:
        """Calls without arguments, and of a tool that does not exist, are answered, and the loop continues."""
        async with self.make_env(lambda: ScriptedModel(["done"])) as env:
            names = [spec["name"] for spec in await _tool_specs(env, self.make_action())]
            calls = [ScriptedCall(name=name, input={}) for name in [*names, "no_such_tool"]]
            env.model_factory = lambda: ScriptedModel([*calls, "done"])
            env.max_tool_iters = env.max_tool_calls = None
            result = await env.step(self.make_action())
        assert result.termination_reason is TerminationReason.TASK_COMPLETE, _explain(result)
        assert result.observation.final_response == "done"

    async def test_action_is_not_changed(self) -> None:
        """An action may be used again for the next sample."""
        action = self.make_action()
        before = action.model_dump_json()
        await self.make_env(lambda: ScriptedModel(["done"])).rollout(action)
        assert action.model_dump_json() == before

    async def _rollout(self, *script: Any) -> StepResult:
        return await self.make_env(lambda: ScriptedModel(script)).rollout(self.make_action())


class RewardContract(Contract, ABC):
    """The properties of a reward function that environments rely on, and its proof on tasks; a clause per `test_*`."""

    is_deterministic: bool = True
    """The same answer always gets the same reward; set it to False for a judge."""

    @abstractmethod
    def make_reward(self) -> Any:
        """A new reward function, or a plain function."""

    def tasks(self) -> Iterable[Action]:
        """Tasks of its data, with their ground truths; several, for the gold of one is a wrong answer to another."""
        return ()

    def make_action(self, ground_truth: Any = ...) -> Action:
        """An action whose answer is scored, with this ground truth or one of its own."""
        default = Action(message="What is 2 + 2?", task_context=TaskContext(id="contract", ground_truth="4"))
        action = next(iter(self.tasks()), default).model_copy(deep=True)
        if ground_truth is not ...:
            action.task_context.ground_truth = ground_truth
        return action

    def examples(self) -> Iterable[tuple[Any, str | None, float | None]]:
        """Known cases: ground truth, final response (None for none), expected reward (None for an abstention).

        Give one that is worth something: without it, a reward that is always 0 keeps this contract.
        """
        return ()

    async def test_examples(self) -> None:
        """Known answers get their rewards."""
        for truth, response, expected in self.examples():
            reward = (await self._compute(self.make_action(truth), answered(response))).reward
            assert _is_same(reward, expected), f"{response!r} for {truth!r}: expected {expected!r}, got {reward!r}"

    async def test_reward_is_proven(self) -> None:
        """On `tasks`, every gold wins, no other answer does, and each answer scores the same twice."""
        if tasks := list(self.tasks()):
            proof = await prove_reward(tasks, self.make_reward(), ask_models=True)
            assert proof.rows and proof.ok, proof.table()

    async def test_any_answer_gives_a_reward_or_an_abstention(self) -> None:
        """Any reply of a model is scored or abstained from; nothing raises, hangs, or returns NaN or infinity."""
        for response in ODD_ANSWERS:
            result = await self._compute(self.make_action(), answered(response))
            assert result.reward is None or math.isfinite(result.reward)

    async def test_missing_ground_truth_is_survived(self) -> None:
        """A task without ground truth does not crash the reward."""
        await self._compute(self.make_action(None), answered("4"))

    async def test_info_is_json(self) -> None:
        """The info can be stored."""
        info = (await self._compute(self.make_action(), answered("4"))).info
        assert json.loads(json.dumps(info)) == info

    async def test_inputs_are_not_changed(self) -> None:
        """Action and result are read only."""
        action, result = self.make_action(), answered("The answer is 4")
        before = action.model_dump_json(), result.to_json()
        await self._compute(action, result)
        assert (action.model_dump_json(), result.to_json()) == before

    async def test_same_answer_same_reward(self) -> None:
        """The reward depends on the answer alone, also when many are computed at once."""
        if not self.is_deterministic:
            return
        reward = as_reward_function(self.make_reward())
        computed = [reward.compute(self.make_action(), answered("The answer is 4")) for _ in range(16)]
        assert len({result.reward for result in await asyncio.gather(*computed)}) == 1

    async def _compute(self, action: Action, step_result: StepResult) -> RewardResult:
        result = await as_reward_function(self.make_reward()).compute(action, step_result)
        assert isinstance(result, RewardResult), f"compute() must return a RewardResult, got {result!r}"
        return result


ODD_ANSWERS: tuple[str | None, ...] = (
    None,
    "",
    " ",
    "4",
    "\\boxed{",
    "\\boxed{9^{9^{9^9}}}",
    "{" * 1000,
    "((((((((((" * 100,
    "\x00\ud800\u202e",
    "é" * 100_000,
    "<think>never closed",
)
"""Final responses that have broken reward functions."""


RewardFunctionContract = RewardContract
"""The contract's name before it had the proof."""


def _is_same(reward: float | None, expected: float | None) -> bool:
    return reward is expected if reward is None or expected is None else math.isclose(reward, expected)


def _explain(result: StepResult) -> str:
    return f"ended with {result.termination_reason}" + ("" if result.error is None else f"\n{result.error.traceback}")


async def _tool_specs(env: Environment, action: Action) -> list[Any]:
    """Specs of the environment's tools, as its agent in a step has them."""
    specs: list[Any] = []

    async def look(agent: Agent, action: Action) -> Any:
        specs.extend(agent.tool_registry.get_all_tool_specs())
        return await env.invoke(agent, action.prompt)

    original, env.interact = env.interact, look  # type: ignore[method-assign]
    try:
        result = await env.step(action)
    finally:
        env.interact = original  # type: ignore[method-assign]
    assert result.outcome is Outcome.POLICY, _explain(result)
    return specs


def _list_alive() -> set[str]:
    """Threads and, on Linux, child processes of this process."""
    alive = {f"thread {thread.name!r} ({thread.ident})" for thread in threading.enumerate()}
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread, or a child, has ended
            for child in task.read_text().split():
                state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
                alive |= {f"process {child}"} if state != "Z" else set()
    return alive
