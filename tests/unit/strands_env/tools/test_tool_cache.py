"""Results of tools in a file that processes share."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
from strands import tool

from strands_env import Action
from strands_env.core import Environment
from strands_env.testing import ScriptedModel, call
from strands_env.tools import cached


def counting(path: Path, log: Path, seconds: float = 0.0, **options: Any) -> Any:
    @tool
    def look_up(name: str) -> str:
        """Look a name up.

        Args:
            name: The name.
        """
        with log.open("a") as lines:
            lines.write(f"{name}\n")
        time.sleep(seconds)
        if name == "nobody":
            raise LookupError(name)
        return f"number of {name}"

    return cached(look_up, path, **options)


async def answers(looked: Any, *names: str) -> list[Any]:
    async def one(name: str) -> Any:
        use = {"toolUseId": f"call {name}", "name": "look_up", "input": {"name": name}}
        return [event async for event in looked.stream(use, {})][-1].tool_result

    return list(await asyncio.gather(*(one(name) for name in names)))


def in_process(path: Path, log: Path) -> None:
    (result,) = asyncio.run(answers(counting(path, log, seconds=0.3), "ada"))
    assert result["content"] == [{"text": "number of ada"}]


def test_processes_make_one_call(tmp_path: Path) -> None:
    workers = [
        multiprocessing.get_context("spawn").Process(target=in_process, args=(tmp_path / "cache", tmp_path / "log"))
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert (tmp_path / "log").read_text() == "ada\n"


async def test_equal_calls_are_made_once_and_errors_each_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    looked = counting(tmp_path / "cache", log, seconds=0.05)
    one, again, other = await answers(looked, "ada", "ada", "bob")
    assert one["content"] == again["content"] == [{"text": "number of ada"}]
    assert other["content"] == [{"text": "number of bob"}]
    failed = await answers(looked, "nobody", "nobody")
    assert [result["status"] for result in failed] == ["error", "error"]
    assert sorted(log.read_text().split()) == ["ada", "bob", "nobody", "nobody"]


@pytest.mark.parametrize(
    ("given", "other"), [(2**64, 2**64 + 1), (float("nan"), None), (1, True), (1, 1.0), ("\ud83d", "?")]
)
async def test_any_input_is_its_own_key_and_any_result_is_kept(tmp_path: Path, given: Any, other: Any) -> None:
    seen: list[Any] = []

    @tool
    def square(n: Any) -> dict[str, Any]:
        """Square.

        Args:
            n: Any value.
        """
        seen.append(n)
        return {"status": "success", "content": [{"json": {"square": 3 * 2**80}}]}

    squares = cached(square, tmp_path / "cache")
    for n in (given, given, other):
        use: Any = {"toolUseId": "a", "name": "square", "input": {"n": n}}
        result = [event async for event in squares.stream(use, {})][-1].tool_result
        assert result["content"] == [{"json": {"square": 3 * 2**80}}]
    assert [repr(n) for n in seen] == [repr(given), repr(other)]


async def test_a_call_that_is_cancelled_or_lost_is_made_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    slow = asyncio.ensure_future(answers(counting(tmp_path / "cache", log, seconds=0.5), "ada"))
    while not log.exists():
        await asyncio.sleep(0.01)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    looked = counting(tmp_path / "cache", log, lease=0.2)
    assert (await answers(looked, "ada"))[0]["status"] == "success"
    looked._results.reserve("the key of a worker that died")
    assert looked._results.reserve("the key of a worker that died") is None
    await asyncio.sleep(0.25)
    assert looked._results.reserve("the key of a worker that died") is True


async def test_old_and_large_results_are_not_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for options in ({"ttl": 0.05}, {"max_bytes": 5}):
        looked = counting(tmp_path / "cache", log, **options)
        for _ in range(2):
            await answers(looked, "ada")
            await asyncio.sleep(0.1)
    assert log.read_text() == "ada\n" * 4
    with pytest.raises(ValueError, match="ttl must be a positive number, got 0"):
        counting(tmp_path / "cache", log, ttl=0)


async def test_in_an_environment(tmp_path: Path) -> None:
    class Lookups(Environment):
        def get_tools(self) -> list[Any]:
            return [counting(tmp_path / "cache", tmp_path / "log")]

    for _ in range(2):
        env = Lookups(model_factory=lambda: ScriptedModel([call("look_up", name="ada"), "done"]))
        result = await env.rollout(Action(message="?"))
        assert result.observation.messages[2]["content"][0]["toolResult"]["content"] == [{"text": "number of ada"}]
    assert (tmp_path / "log").read_text() == "ada\n"
