"""slime as far as our functions see it, written from its contract: fakes of its `Sample` and `GenerateState`."""

from __future__ import annotations

import asyncio
import copy
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from provider_support import Replay, add, call, completion, tokenizer
from strands import Agent, tool

from strands_env.core import Environment
from strands_env.training import slime
from strands_env.training.slime.shared_state import SESSION
from strands_sglang.testing import Reply


@dataclass
class Counter:
    """slime's `PrefixCacheInfo`."""

    cached_tokens: int = 0
    total_prompt_tokens: int = 0

    def add(self, meta: dict[str, Any]) -> None:
        self.cached_tokens += meta.get("cached_tokens", 0)
        self.total_prompt_tokens += meta.get("prompt_tokens", 0)


@dataclass
class Sample:
    """The fields of slime's `Sample` that the contract names."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: int | None = 0
    index: int | None = 3
    rollout_id: int | None = None
    prompt: Any = "What is 1 + 2?"
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: Any = "3"
    reward: Any = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_top_p_token_ids: Any = None
    rollout_top_p_token_offsets: Any = None
    rollout_routed_experts: Any = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = "session-of-this-sample"
    multimodal_inputs: dict[str, Any] | None = None
    non_generation_time: float = 0.0
    prefix_cache_info: Counter = field(default_factory=Counter)


PARAMS: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "max_new_tokens": 400,
    "stop": None,
    "stop_token_ids": None,
    "skip_special_tokens": True,
    "no_stop_trim": True,
    "spaces_between_special_tokens": False,
}


class AddEnv(Environment):
    """An environment that adds."""

    def get_tools(self) -> list[Any]:
        return [add]


def begin_process() -> None:
    """What rollouts of a process share begins anew; those that earlier tests left suspended end."""
    SESSION.suspended.close_at_exit()
    SESSION.__init__()  # type: ignore[misc]


class Rig:
    """slime as far as our functions see it.

    Attributes:
        args: Its arguments.
        state: Its `GenerateState`.
        client: The client all rollouts share.
        environment: Makes the environments, from `model_factory` and `options`.
        options: See `environment`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = types.SimpleNamespace(aborted=False, tokenizer=tokenizer())
        module = types.ModuleType("slime.rollout.sglang_rollout")
        module.GenerateState = lambda args: self.state  # type: ignore[attr-defined]
        for name in ("slime", "slime.rollout"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, "slime.rollout.sglang_rollout", module)
        generate = sys.modules["strands_env.training.slime.generate"]  # the package hands on a function of this name
        monkeypatch.setattr(generate, "get_client_from_slime_args", lambda args, **options: self.client)
        begin_process()
        self.client: Any = None
        self.environment: Callable[..., Any] = AddEnv
        self.options: dict[str, Any] = {"reward_fn": lambda action, result: 1.0}
        self.args = types.SimpleNamespace(
            strands_env_factory=f"{__name__}.make_env",
            strands_env_retries=0,
            partial_rollout=False,
            rig_of_the_test=self,
        )

    def serve(self, *replies: Any) -> Replay:
        self.client = Replay(list(replies))
        return self.client

    async def run(self, sample: Sample | None = None, **options: Any) -> Any:
        params = copy.deepcopy(PARAMS) | options.pop("params", {})
        return await slime.generate(self.args, sample or Sample(), params, **options)


def make_env(*, model_factory: Any, args: Any) -> Any:
    """The factory that the arguments name."""
    return args.rig_of_the_test.environment(model_factory=model_factory, **args.rig_of_the_test.options)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def good_replies(versions: tuple[str, str] = ("7", "7")) -> list[Reply]:
    return [completion(call(1, 2), version=versions[0], cached=4), completion("3", version=versions[1], cached=9)]


def with_top_p(made: Reply) -> Reply:
    """The reply with two survivors of top-p for every token."""
    count = len(made.ids)
    return Reply(
        ids=made.ids,
        meta={"top_p_token_ids": list(range(2 * count)), "top_p_token_offsets": list(range(0, 2 * count + 1, 2))},
    )


async def settle() -> None:
    """Let other tasks run for a while."""
    for _ in range(50):
        await asyncio.sleep(0.001)


def check(sample: Sample) -> None:
    """slime's assertions before training."""
    assert sample.response_length == len(sample.loss_mask or ()) == len(sample.rollout_log_probs or ())
    assert 0 < sample.response_length < len(sample.tokens)
    assert all(isinstance(value, float) for value in sample.rollout_log_probs or ())
    assert all(isinstance(value, int) for value in sample.tokens)


@tool
async def wait_for_ever() -> str:
    """Wait."""
    WaitingEnv.waits = True
    await asyncio.Event().wait()
    return ""


class WaitingEnv(AddEnv):
    """An environment whose tool never ends, and which knows that it was cleaned up."""

    cleaned = 0
    waits = False

    def get_tools(self) -> list[Any]:
        return [wait_for_ever]

    async def cleanup(self) -> None:
        type(self).cleaned += 1


def waiting_call() -> Reply:
    return completion('<tool_call>{"name": "wait_for_ever", "arguments": {}}</tool_call>')


def as_slime_flattens(groups: list[Any]) -> list[Any]:
    """The samples of a batch as slime makes them of groups of samples or of groups of lists: by its first element."""
    while isinstance(groups[0], list):
        groups = [element for group in groups for element in group]
    return groups


class TwoPaths(AddEnv):
    """A conversation whose history is edited half-way: two paths of one rollout."""

    async def interact(self, agent: Agent, action: Any) -> Any:
        await self.invoke(agent, action.prompt)
        agent.messages.clear()
        return await self.invoke(agent, "And now something else.")
