"""The testing kit: sound environments and rewards pass it, unsound ones are caught."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from strands import Agent, tool

from strands_env.core import Action, Environment, RewardFunction, RewardResult, StepResult
from strands_env.core.models import ModelFactory
from strands_env.rewards import (
    CorrectnessJudgeReward,
    ExactMatchReward,
    FormatReward,
    MathRewardFunction,
    RegexMatchReward,
    ToolUseReward,
    WeightedReward,
)
from strands_env.testing import EnvironmentContract, RewardContract, ScriptedModel, call, reply


@tool
async def shout(text: str) -> str:
    """Repeat loudly."""
    return text.upper()


class SoundEnv(Environment):
    def get_tools(self) -> list[Any]:
        return [shout]


class TestSoundEnvironment(EnvironmentContract):
    def make_env(self, model_factory: ModelFactory) -> Environment:
        return SoundEnv(model_factory=model_factory, reward_fn=ExactMatchReward())

    def examples(self) -> Any:
        return [("done", 1.0), ("nothing", 0.0)]


def suite_of(reward: Any, examples: Any = (), **attributes: Any) -> RewardContract:
    """The contract of this reward function."""
    methods = {"make_reward": lambda self: reward, "examples": lambda self: examples, **attributes}
    return type("Suite", (RewardContract,), methods)()


REWARDS: dict[str, Any] = {
    "exact": lambda: (ExactMatchReward(), [("4", "4", 1.0), ("4", "5", 0.0), (None, "4", None), ("4", None, 0.0)]),
    "maths": lambda: (MathRewardFunction(timeout=3.0), [("4", r"\boxed{\frac{8}{2}}", 1.0), ("4", "five", 0.0)]),
    "regex": lambda: (RegexMatchReward(r"(\d+)", group=1), ()),
    "format": lambda: (FormatReward("4"), ()),
    "format of turns": lambda: (FormatReward("4", every_turn=True), ()),
    "tools": lambda: (ToolUseReward(), ()),
    "weighted": lambda: (WeightedReward({"a": (ExactMatchReward(), 1.0), "b": (FormatReward("4"), 0.5)}), ()),
    "judge": lambda: (CorrectnessJudgeReward(lambda: ScriptedModel(['{"reasoning": "", "verdict": "correct"}'])), ()),
}


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.filterwarnings("ignore:Agent.structured_output_async:DeprecationWarning")
def test_shipped_rewards_keep_the_contract(name: str) -> None:
    if name == "maths":
        pytest.importorskip("math_verify", reason="needs the extra `math`")
    suite = suite_of(*REWARDS[name]())
    clauses = [clause for clause in dir(suite) if clause.startswith("test_")]
    for clause in clauses:
        getattr(suite, clause)()
    assert len(clauses) == 7


class FailingCleanup(SoundEnv):
    async def cleanup(self) -> None:
        raise OSError("still mounted")


class CleanupNeedsReset(SoundEnv):
    session: Any = None

    async def reset(self) -> None:
        self.session = object()

    async def cleanup(self) -> None:
        assert self.session is not None
        self.session = None


class OneEpisodeOnly(SoundEnv):
    used = False

    async def reset(self) -> None:
        if self.used:
            raise RuntimeError("used up")
        self.used = True


class SharedAnswer(SoundEnv):
    last: Any = None

    async def interact(self, agent: Agent, action: Action) -> Any:
        SharedAnswer.last = agent.model
        await asyncio.sleep(0.01)
        agent.model = SharedAnswer.last
        return await self.invoke(agent, action.prompt)


class SwallowsCancellation(SoundEnv):
    async def rollout(self, action: Action, **options: Any) -> StepResult:
        try:
            return await super().rollout(action, **options)
        except asyncio.CancelledError:
            return StepResult(observation={})  # type: ignore[arg-type]


class LeavesATask(SoundEnv):
    async def reset(self) -> None:
        self.task = asyncio.create_task(asyncio.sleep(60))


class LeavesAProcess(SoundEnv):
    async def reset(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(8)"])


class LeavesAThread(SoundEnv):
    async def reset(self) -> None:
        threading.Thread(target=threading.Event().wait, args=(8,), daemon=True).start()


class ScoresFailures(SoundEnv):
    def is_scored(self, reason: Any) -> bool:
        return True


class MetricsThatAreNoJson(SoundEnv):
    def compute_metrics(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"first_seen": (1, 2)}  # a tuple comes back as a list


class NamelessTool(SoundEnv):
    def get_tools(self) -> list[Any]:
        @tool(name="shout", description=" ")
        async def silent(text: str) -> str:
            return text

        return [silent]


class ToolsThatBreakTheLoop(SoundEnv):
    def get_hooks(self) -> list[Any]:
        from strands.hooks import BeforeToolCallEvent

        def check(event: BeforeToolCallEvent) -> None:
            event.tool_use["input"]["text"].strip()

        return [check]


class ChangesTheAction(SoundEnv):
    async def interact(self, agent: Agent, action: Action) -> Any:
        action.task_context.ground_truth = "mine"
        return await super().interact(agent, action)


@pytest.mark.parametrize(
    ("unsound", "clause"),
    [
        (FailingCleanup, "test_episode_completes"),
        (CleanupNeedsReset, "test_cleanup_needs_no_reset_and_may_run_twice"),
        (OneEpisodeOnly, "test_episodes_follow_each_other"),
        (SharedAnswer, "test_environments_run_side_by_side"),
        (SwallowsCancellation, "test_cancelled_episode_is_cleaned_up"),
        (LeavesATask, "test_episode_leaves_no_task_behind"),
        (LeavesAProcess, "test_episode_leaves_no_thread_or_process_behind"),
        (LeavesAThread, "test_episode_leaves_no_thread_or_process_behind"),
        (ScoresFailures, "test_failing_model_is_data_without_a_reward"),
        (MetricsThatAreNoJson, "test_result_survives_json"),
        (NamelessTool, "test_tools_are_all_usable"),
        (ToolsThatBreakTheLoop, "test_tools_called_wrongly_give_tool_results"),
        (ChangesTheAction, "test_action_is_not_changed"),
        (SoundEnv, "test_examples"),  # its reward is always 0
    ],
)
def test_unsound_environment_is_caught(unsound, clause, monkeypatch):
    monkeypatch.setattr("strands_env.testing.contracts.LEFT_BEHIND_SECONDS", 0.2)

    class Suite(EnvironmentContract):
        time_limit = 20.0

        def make_env(self, model_factory: ModelFactory) -> Environment:
            return unsound(model_factory=model_factory, reward_fn=lambda action, result: 0.0)

        def examples(self) -> Any:
            return [("nothing", 0.0), ("done", 1.0)]

    with pytest.raises((AssertionError, OSError)):
        getattr(Suite(), clause)()


class Counting(RewardFunction):
    count = 0

    async def compute(self, action: Action, step_result: StepResult) -> RewardResult:
        self.count += 1
        return RewardResult(reward=float(self.count))


class Untyped(RewardFunction):
    async def compute(self, action: Action, step_result: StepResult) -> Any:
        return 1.0


UNSOUND: list[tuple[Any, str]] = [
    (lambda _, result: len(result.observation.final_response), "test_any_answer_gives_a_reward_or_an_abstention"),
    (lambda action, _: float(action.task_context.ground_truth), "test_missing_ground_truth_is_survived"),
    (lambda *_: RewardResult(info={"where": {1, 2}}), "test_info_is_json"),
    (lambda _, result: result.observation.messages.clear(), "test_inputs_are_not_changed"),
    (Counting(), "test_same_answer_same_reward"),
    (Untyped(), "test_info_is_json"),
    (lambda *_: 0.5, "test_examples"),
]


@pytest.mark.parametrize(("unsound", "clause"), UNSOUND)
def test_unsound_reward_is_caught(unsound: Any, clause: str) -> None:
    with pytest.raises((AssertionError, TypeError)):
        getattr(suite_of(unsound, examples=[("4", "4", 1.0)]), clause)()


class Blocking(RewardFunction):
    async def compute(self, action: Action, step_result: StepResult) -> Any:
        time.sleep(5)


@pytest.mark.parametrize("hanging", [Blocking(), lambda action, result: time.sleep(5)], ids=["async", "sync"])
def test_reward_that_hangs_is_caught_in_time(hanging: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strands_env.testing.contracts.GRACE_SECONDS", 0.5)
    with pytest.raises((AssertionError, TimeoutError)):
        suite_of(hanging, time_limit=0.2).test_missing_ground_truth_is_survived()


async def test_script_that_has_ended_is_an_error() -> None:
    result = await SoundEnv(model_factory=lambda: ScriptedModel([call("shout", text="a")])).step(Action(message="x"))
    assert "the script has ended, at call 2" in result.error.message


async def test_scripted_tokens_are_the_texts() -> None:
    model = ScriptedModel([reply("Let me see.", call("shout", text="hi")), "HI"])
    result = await SoundEnv(model_factory=lambda: model).step(Action(message="say hi"))
    tokens = result.observation.tokens
    sampled = bytes(t for t, mask in zip(tokens.token_ids, tokens.loss_mask, strict=True) if mask).decode()
    assert sampled == 'Let me see.{"name": "shout", "arguments": {"text": "hi"}}\nHI\n'
    assert {logprob for logprob in tokens.logprobs if logprob is not None} == {-0.5}
