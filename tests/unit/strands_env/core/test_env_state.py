"""`get_state`: the world that an agent leaves, for the reward and the record."""

from __future__ import annotations

import asyncio
import math
import re
import threading
from enum import IntEnum
from typing import Any

import pytest

from strands_env.core import (
    Action,
    Environment,
    Observation,
    Outcome,
    Phase,
    StepResult,
    TerminationReason,
)
from strands_env.core.deadline import run_with_timeout
from strands_env.core.rollout import LocalExecutor
from strands_env.core.termination import EpisodeTimeoutError
from strands_env.testing import ScriptedModel, call, reply

ACTION = Action(message="go")


class World(Environment):
    """Leaves what it is told to; the reward notes what it sees, and changes it."""

    def __init__(self, state: Any, script: list[Any] | None = None, **options: Any) -> None:
        def score(action: Action, result: StepResult) -> float:
            self.judged.append(result.state)
            if isinstance(result.state, dict):
                result.state.clear()
            return 1.0

        script = ["done"] if script is None else script
        super().__init__(model_factory=lambda: ScriptedModel(script), reward_fn=score, **options)
        self.state, self.judged, self.asked, self.cleaned = state, [], 0, False

    async def get_state(self) -> Any:
        self.asked += 1
        return await self.state() if callable(self.state) else self.state

    async def cleanup(self) -> None:
        self.cleaned = True


STATES = [
    None,
    {"rows": [(1, "lamp", None, 2.5, True)], "ключ": {"lone \ud800": 2**80}, "empty": [{}, [], ""]},
    {"__bytes_encoded__": True, "data": "aGk="},
    0,
    "x" * 999_998,
]


@pytest.mark.parametrize("state", STATES, ids=["nothing", "nested", "looks encoded", "zero", "as large as may be"])
async def test_a_state_reaches_reward_and_record_and_comes_back(state: Any) -> None:
    env = World(state)
    result = await env.rollout(ACTION)
    expected = [list(row) for row in state["rows"]] if isinstance(state, dict) and "rows" in state else None
    kept = state if expected is None else {**state, "rows": expected}
    assert result.state == kept and result.reward is not None and result.reward.reward == 1.0
    assert env.judged == [{}] if isinstance(state, dict) else env.judged == [kept]
    assert StepResult.from_json(result.to_json()).state == StepResult.from_bytes(result.to_bytes()).state == kept


async def test_a_state_is_a_copy_and_a_plain_function_runs_on_the_thread_of_reset() -> None:
    class Plain(World):
        def reset(self) -> None:  # type: ignore[override]
            self.thread, self.rows = threading.get_ident(), [1]

        def get_state(self) -> Any:  # type: ignore[override]
            assert threading.get_ident() == self.thread
            return {"rows": self.rows, "of": self.action.text}

        async def cleanup(self) -> None:
            self.rows.append(2)

    assert (await Plain(None).rollout(ACTION)).state == {"rows": [1], "of": "go"}


class Colour(IntEnum):
    RED = 1


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def cyclic() -> Any:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


NOT_JSON = [
    ({"at": [0, object()]}, r"state\['at'\]\[1\] is <object.*>, which is not JSON: return dictionaries"),
    ({"p": math.nan}, r"state\['p'\] is nan, which is not JSON"),
    ({1: "a", "1": "b"}, r"state is \{1: 'a'.*which is not JSON"),
    (b"bytes", "state is b'bytes', which is not JSON"),
    ({1, 2}, r"state is \{1, 2\}, which is not JSON"),
    (Colour.RED, "state is <Colour.RED: 1>, which is not JSON"),
    (cyclic(), r"more than 100 levels at state\['self'\]"),
    (nested(5000), "more than 100 levels"),
    ({1: nested(5000)}, r"state is \{1: .*which is not JSON"),
    ("x" * 999_999, "the state is 1,000,001 bytes of JSON, and at most 1,000,000 are kept: return counts or digests"),
]


@pytest.mark.parametrize(("state", "message"), NOT_JSON)
async def test_a_state_that_cannot_be_kept_is_no_state_and_has_no_reward(state: Any, message: str) -> None:
    env = World(state)
    result = await env.rollout(ACTION)
    assert result.error is not None and result.error.type.endswith("StateError")
    assert re.search(message, result.error.message)
    assert (result.outcome, result.reward, result.state, env.judged) == (Outcome.INFRASTRUCTURE, None, None, [])
    assert result.observation.final_response == "done"  # nothing else is lost
    with pytest.raises(ValueError, match=message):
        StepResult(observation=Observation(), state=state)


async def fails() -> Any:
    raise OSError("the world is gone")


async def hangs() -> Any:
    await asyncio.sleep(60)


@pytest.mark.parametrize(("state", "error"), [(fails, "OSError"), (hangs, "EpisodeTimeoutError")])
async def test_a_state_that_cannot_be_had_is_a_failure_of_the_infrastructure(state: Any, error: str) -> None:
    env = World(state, reward_timeout=0.05)
    result = await env.rollout(ACTION)
    assert result.error is not None and result.error.type.endswith(error)
    assert (result.outcome, result.reward, env.judged, env.cleaned) == (Outcome.INFRASTRUCTURE, None, [], True)


async def test_a_deadline_of_the_sample_that_passes_meanwhile_is_not_the_policys() -> None:
    env = World(hangs)
    with pytest.raises(EpisodeTimeoutError) as caught:
        await LocalExecutor(lambda: env).rollout(ACTION, timeout=0.2)
    assert caught.value.where is Phase.REWARD and env.cleaned


async def test_a_cancelled_step_is_cancelled_while_it_asks_and_cleaned_up() -> None:
    asked = asyncio.Event()

    async def state() -> Any:
        asked.set()
        await hangs()

    env = World(state)
    task = asyncio.create_task(env.rollout(ACTION))
    await run_with_timeout(asked.wait(), 30, Phase.LOOP)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert env.cleaned and env.judged == []


async def test_it_is_asked_where_the_policy_ended_the_step() -> None:
    limited = World("left", [reply("", call("unknown"))] * 3, max_tool_iters=1)
    result = await limited.rollout(ACTION)
    assert (result.termination_reason, result.state) == (TerminationReason.MAX_TOOL_ITERATIONS_REACHED, "left")
    cancelled = threading.Event()
    cancelled.set()
    for env, signal in ((World("left", [OSError("no server")]), None), (World("left"), cancelled)):
        result = await env.rollout(ACTION, cancel_signal=signal)
        assert (result.outcome, result.state, env.asked) == (Outcome.INFRASTRUCTURE, None, 0), result
