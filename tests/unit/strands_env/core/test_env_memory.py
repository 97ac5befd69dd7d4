"""The law of `core/garbage.py`: what a rollout used is freed when it ends, without a garbage collection."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import traceback
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, ClassVar

import pytest
from provider_support import Replay, add, call, tokenizer
from strands import Agent, tool
from strands.hooks import BeforeModelCallEvent

from strands_env.core import Action, Environment
from strands_env.core.episode import Episode
from strands_env.core.rollout import LocalExecutor
from strands_env.core.termination import TerminationReason
from strands_env.eval import Evaluator, RetryPolicy
from strands_env.testing import ScriptedModel
from strands_env.testing import call as ask_for
from strands_sglang import SGLangModel
from strands_sglang.exceptions import SGLangConnectionError
from strands_sglang.testing import Reply
from tests.unit.eval_support import FakeEnv


@tool
async def fail(a: int, b: int) -> str:
    """Fail."""
    raise ValueError("no")


class Used:
    """An environment that knows by weak references what its rollouts used."""

    def __init__(self, script: list[Any], **options: Any) -> None:
        self._references: list[weakref.ref[Any]] = []
        self._contexts: list[contextvars.Context] = []
        used = self

        class Env(Environment):
            def get_tools(self) -> list[Any]:
                return [add, fail]

            def get_hooks(self) -> list[Any]:
                return [used._note]

        def factory() -> SGLangModel:
            return SGLangModel(client=Replay(list(script)), tokenizer=tokenizer())

        self.env = Env(model_factory=factory, **options)

    def _note(self, event: BeforeModelCallEvent) -> None:
        agent, episode = event.agent, Episode.current()
        assert episode is not None and isinstance(agent.model, SGLangModel)
        held = (agent, agent.model, agent.model.conversation, episode.recorder)
        self._references.extend(map(weakref.ref, held))
        self._contexts.append(contextvars.copy_context())  # as connections and timers do

    @property
    def alive(self) -> set[str]:
        assert self._references
        return {type(used).__name__ for reference in self._references if (used := reference()) is not None}


@pytest.fixture
async def no_collections() -> AsyncIterator[None]:
    if asyncio.Task is asyncio.tasks._PyTask:  # type: ignore[attr-defined]
        why = "inspect_ai (nest_asyncio2) has put futures written in Python in place of asyncio's, in this process"
        pytest.skip(f"{why}: they hold themselves by the error that they raise")
    await Used(["done"]).env.rollout(Action(message="go"))  # jinja leaves garbage where a template is checked first
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ([call(1, 2), "done"], "task_complete"),
        ([call(1, 2, "fail"), "done"], "task_complete"),
        (["<tool_call>\n{not json}\n</tool_call>", "done"], "task_complete"),
        ([call(1, 2), SGLangConnectionError("refused")], "connection_error"),
        ([call(1, 2)] * 3, "max_tool_iterations_reached"),
        ([call(1, 2), Reply(text="late", delay=9)], "timeout"),
        ([call(1, 2), Reply(text="late", delay=9)], None),
    ],
    ids=["well", "failing tool", "malformed call", "failing model", "limit", "deadline", "cancelled"],
)
async def test_what_a_rollout_used_is_freed_at_its_end(script: list[Any], reason: str | None) -> None:
    used = Used(script, max_tool_iters=2, step_timeout=0.2 if reason == "timeout" else None)
    rollouts = asyncio.gather(*(used.env.rollout(Action(message="go")) for _ in range(3)), return_exceptions=True)
    if reason is None:
        await asyncio.sleep(0.05)
        rollouts.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollouts
    else:
        assert {result.termination_reason for result in await rollouts} == {reason}
    del rollouts
    await asyncio.sleep(0)
    assert used.alive == set()


@pytest.mark.usefixtures("no_collections")
async def test_what_a_sub_agent_used_is_freed_at_the_end_of_the_rollout() -> None:
    models: list[weakref.ref[Any]] = []

    class Env(Environment):
        def get_tools(self) -> list[Any]:
            @tool
            async def ask(a: int, b: int) -> str:
                """Ask."""
                model = self.model_for("helper", model_factory=lambda: ScriptedModel(["done"]))
                models.append(weakref.ref(model))
                return str(await Agent(model=model, callback_handler=None).invoke_async("go"))

            return [ask]

    env = Env(model_factory=lambda: ScriptedModel([ask_for("ask", a=1, b=2), "done"]))
    result = await env.rollout(Action(message="go"))
    assert (result.termination_reason, len(models)) == (TerminationReason.TASK_COMPLETE, 1)
    assert models[0]() is None


class Kept:
    """Something large in a frame."""

    seen: ClassVar[list[weakref.ref[Any]]] = []

    def __init__(self) -> None:
        Kept.seen.append(weakref.ref(self))


def refuse(*given: Any) -> float:
    kept = Kept()
    raise OSError(f"no {type(kept).__name__}")


@tool
def refusing() -> str:
    """Refuse."""
    return str(refuse())


async def refuse_later() -> None:
    await asyncio.sleep(0)
    refuse()


class Parts(Environment):
    """Some of its parts fail."""

    def __init__(self, *script: Any, **parts: Any) -> None:
        self.parts = {name: parts.pop(name) for name in ("reset", "cleanup", "tools") if name in parts}
        super().__init__(model_factory=lambda: ScriptedModel([*script, "done"]), **parts)

    async def reset(self) -> None:
        await self.parts.get("reset", super().reset)()

    async def cleanup(self) -> None:
        await self.parts.get("cleanup", super().cleanup)()

    def get_tools(self) -> list[Any]:
        return self.parts.get("tools", list)()


class Refusing(FakeEnv):
    """Only looks like an environment."""

    async def step(self, action: Action) -> Any:
        await refuse_later()


ENDS: dict[str, Callable[[], Any]] = {
    "factory": refuse,
    "reset": lambda: Parts(reset=refuse_later),
    "only looks like one": Refusing,
    "tool": lambda: Parts(ask_for("refusing"), tools=lambda: [refusing]),
    "reward": lambda: Parts(reward_fn=refuse),
    "cleanup": lambda: Parts(cleanup=refuse_later),
}


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("timeout", [None, 60.0], ids=["alone", "deadline"])
@pytest.mark.parametrize("end", ENDS)
async def test_frames_of_an_error_are_freed_with_the_rollout(end: str, timeout: float | None) -> None:
    """An error holds the frames it went through: none of them may hold the error."""
    Kept.seen.clear()
    with suppress(OSError):
        await LocalExecutor(ENDS[end]).rollout(Action(message="go"), timeout=timeout)
    assert Kept.seen
    while any(kept() for kept in Kept.seen):  # a thread takes a moment to end
        await asyncio.sleep(0.005)


@pytest.mark.usefixtures("no_collections")
async def test_frames_of_an_error_of_another_executor_are_freed_too(monkeypatch) -> None:
    monkeypatch.setattr("strands_env.eval.run.sampling.logger.disabled", True)  # pytest keeps what is logged

    class Elsewhere:
        async def rollout(self, action: Action, *, timeout: float | None = None) -> Any:
            await refuse_later()

        async def close(self) -> None: ...

    Kept.seen.clear()
    options = {"sample_timeout": 60.0, "retry": RetryPolicy(max_attempts=1), "output_path": None}
    assert (await Evaluator(executor=Elsewhere(), **options).evaluate_sample(Action(message="go"))).aborted
    assert [kept() for kept in Kept.seen] == [None]


@pytest.mark.usefixtures("no_collections")
async def test_samples_of_a_run_are_freed_when_its_caller_drops_them(tmp_path) -> None:
    ((sample,),) = (await Evaluator(FakeEnv, output_path=tmp_path).run([Action(message="go")])).values()
    kept = weakref.ref(sample)
    del sample
    assert kept() is None


def frames_of(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("deadline", [None, 60.0])
async def test_an_error_that_the_caller_handles_keeps_its_traceback(deadline: float | None) -> None:
    class Failing(Environment):
        async def interact(self, agent: Any, action: Action) -> Any:
            await refuse_later()

    env = Failing(model_factory=lambda: ScriptedModel(["done"]), step_timeout=deadline)
    try:
        refuse()
    except OSError as error:
        result = await env.step(Action(message="go"))
        assert frames_of(error)[-1] == "refuse"
    assert result.error is not None and "refuse_later" in result.error.traceback
