"""Deadlines and output limits around any tool."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from strands import Agent, ToolContext, tool
from strands.types.events import ToolResultEvent
from strands.types.tools import AgentTool, ToolGenerator, ToolSpec, ToolUse

from strands_env.core.limits import limit_content, with_limits
from strands_env.core.threads import DaemonThreads
from strands_env.testing import ScriptedModel, call


async def run(wrapped: AgentTool, **arguments: Any) -> dict[str, Any]:
    """The result of one call, as an agent gets it."""
    model = ScriptedModel([call(wrapped.tool_name, **arguments), "done"])
    agent = Agent(model=model, tools=[wrapped], callback_handler=None)
    await agent.invoke_async("go")
    (block,) = agent.messages[2]["content"]
    return block["toolResult"]


def text_of(result: dict[str, Any]) -> str:
    return "".join(block.get("text", "") for block in result["content"])


@tool
def add(a: int, b: int) -> int:
    """Add.

    Args:
        a: One.
        b: Other.
    """
    return a + b


class Counter:
    count = 0

    @tool
    def bump(self) -> int:
        """Count."""
        self.count += 1
        return self.count


@tool(context=True)
def who(tool_context: ToolContext) -> str:
    """Name the agent."""
    return tool_context.tool_use["name"]


def double(x: int) -> int:
    """Double a number.

    Args:
        x: The number.
    """
    return 2 * x


@pytest.mark.parametrize(
    ("made", "arguments", "text"),
    [(add, {"a": 2, "b": 3}, "5"), (double, {"x": 4}, "8"), (Counter().bump, {}, "1"), (who, {}, "who")],
    ids=["tool", "plain function", "method", "with context"],
)
async def test_sync_tool_answers_as_before(made: Any, arguments: dict[str, Any], text: str) -> None:
    wrapped = with_limits(made)
    if isinstance(made, AgentTool):
        assert (wrapped.tool_spec, wrapped.tool_type) == (made.tool_spec, made.tool_type)
    result = await run(wrapped, **arguments)
    assert (result["status"], text_of(result)) == ("success", text)


async def test_a_call_leaves_no_generator_for_asyncio_to_close() -> None:
    left: list[str] = []
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(finalizer=lambda generator: left.append(generator.__qualname__))
    try:
        await run(with_limits(add), a=2, b=3)
    finally:
        sys.set_asyncgen_hooks(*hooks)
    assert left == []


def test_wrong_tools_and_limits_are_refused() -> None:
    assert with_limits(with_limits(add, timeout=1), timeout=2).wrapped is add  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="expected a tool"):
        with_limits(3)  # type: ignore[arg-type]
    for name in ("timeout", "max_output_chars"):
        with pytest.raises(ValueError, match=name):
            with_limits(add, **{name: 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_threads must be a positive whole number, got 0"):
        DaemonThreads(0)


@tool
def failing() -> str:
    """Fail."""
    raise KeyError("missing")


@tool
def returning(content: Any) -> Any:
    """Return."""
    return {"status": "success", "content": content}


class Raw(AgentTool):
    """A tool without a decorator: some notes, and then its result or an error."""

    tool_name = "raw"
    tool_type = "python"

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error

    @property
    def tool_spec(self) -> ToolSpec:
        return {"name": "raw", "description": "raw", "inputSchema": {"json": {"type": "object", "properties": {}}}}

    async def stream(self, tool_use: ToolUse, invocation_state: dict[str, Any], **kwargs: Any) -> ToolGenerator:
        for index in range(20):
            yield {"note": index}
        if self.error is not None:
            raise self.error
        yield {"toolUseId": tool_use["toolUseId"], "status": "success", "content": [{"text": "result"}]}


NO_BLOCKS = "list of blocks such as {'text': ...}"


@pytest.mark.parametrize(
    ("made", "arguments", "text"),
    [
        (add, {"a": "x"}, "a"),
        (failing, {}, "KeyError"),
        (Raw(RuntimeError("broken")), {}, "broken"),
        *[(returning, {"content": content}, NO_BLOCKS) for content in ("hello", ["hello"], None)],
    ],
    ids=["arguments", "exception", "raw", "text", "list of texts", "nothing"],
)
async def test_what_goes_wrong_is_an_error_result(made: Any, arguments: dict[str, Any], text: str) -> None:
    result = await run(with_limits(made), **arguments)
    assert result["status"] == "error" and text in text_of(result)


async def test_last_event_of_a_raw_tool_is_its_result_whatever_its_number() -> None:
    assert text_of(await run(with_limits(Raw()))) == "result"


class Panic(BaseException):
    """As extensions written in Rust raise it."""


@pytest.mark.parametrize(
    "raised", [SystemExit(3), KeyboardInterrupt("x"), Panic("p"), asyncio.CancelledError(), GeneratorExit()], ids=repr
)
@pytest.mark.parametrize("kind", ["sync", "async", "generator"])
async def test_what_is_no_exception_is_an_error_result_too(kind: str, raised: BaseException) -> None:
    def in_thread() -> str:
        raise raised

    async def in_loop() -> str:
        raise raised

    async def in_generator() -> Any:
        yield "progress"
        raise raised

    function = {"sync": in_thread, "async": in_loop, "generator": in_generator}[kind]
    result = await run(with_limits(tool(description="Fail.")(function)))
    assert result["status"] == "error"
    assert "tool" in text_of(result)


def hanging(release: threading.Event) -> Any:
    """A sync tool that returns once it is released."""

    @tool
    def hang() -> str:
        """Hang."""
        release.wait()
        return "late"

    return hang


async def test_sync_tool_that_never_returns_is_an_error_result_and_keeps_its_place() -> None:
    release = threading.Event()
    hang = hanging(release)
    threads = DaemonThreads(1)
    first = await run(with_limits(hang, timeout=0.1, threads=threads))
    assert first["status"] == "error" and "did not finish within 0.1 seconds" in text_of(first)
    assert threads.running == 1
    second = await run(with_limits(hang, timeout=0.1, threads=threads))
    assert "all 1 tool threads are busy or stuck" in text_of(second)
    release.set()
    while threads.running:  # the place is free again
        await asyncio.sleep(0.01)
    assert text_of(await run(with_limits(hang, timeout=60, threads=threads))) == "late"


@pytest.mark.parametrize("timeout", [0.05, 60.0], ids=["deadline", "agent"])
async def test_async_tool_sees_its_cancellation_and_is_left_behind_where_it_ignores_it(timeout, monkeypatch):
    monkeypatch.setattr("strands_env.core.deadline.TOOL_GRACE_SECONDS", 0.05)
    started, unwound = asyncio.Event(), []

    @tool
    async def slow() -> str:
        """Slow."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            unwound.append(True)
            await asyncio.Event().wait()
        return "late"

    task = asyncio.create_task(run(with_limits(slow, timeout=timeout)))
    await started.wait()
    if timeout == 60.0:
        task.cancel()
    await asyncio.wait({task})
    assert task.cancelled() if timeout == 60.0 else "did not finish" in text_of(task.result())
    assert unwound == [True]


async def test_stuck_threads_do_not_block_other_tools() -> None:
    release = threading.Event()
    hang = hanging(release)
    # More than asyncio's pool has.
    stuck = [asyncio.create_task(run(with_limits(hang, timeout=600))) for _ in range(60)]
    await asyncio.sleep(0)
    assert text_of(await run(with_limits(add), a=1, b=1)) == "2"
    release.set()
    assert {text_of(result) for result in await asyncio.gather(*stuck)} == {"late"}


async def test_threads_are_handed_over() -> None:
    threads = DaemonThreads(2)
    seen = []

    def work(index: int) -> int:
        seen.append(threads.running)
        time.sleep(0.002)
        return index

    assert await asyncio.gather(*(threads.run(work, index) for index in range(50))) == list(range(50))
    assert max(seen) <= 2


async def test_a_free_thread_takes_the_next_call() -> None:
    threads = DaemonThreads()
    assert len({await threads.run(threading.current_thread) for _ in range(5)}) == 1


def test_a_forked_process_has_threads_of_its_own() -> None:
    script = """if True:
        import asyncio, os
        from strands_env.core.threads import default_threads
        ask = lambda: asyncio.run(default_threads.run(os.getpid))
        ask()
        child = os.fork()
        if child == 0:
            os._exit(ask() != os.getpid())
        raise SystemExit(os.waitpid(child, 0)[1])"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


async def test_cancelled_waiter_gives_its_place_back() -> None:
    threads = DaemonThreads(1)
    release = threading.Event()
    first = asyncio.create_task(threads.run(release.wait))
    await asyncio.sleep(0.01)
    waiter = asyncio.create_task(threads.run(lambda: None))
    await asyncio.sleep(0.01)
    release.set()
    waiter.cancel()
    await first
    assert await threads.run(lambda: 7) == 7


async def test_stream_events_pass_through() -> None:
    @tool
    async def steps() -> Any:
        """Stream."""
        yield "one"
        yield "two"

    events = [event async for event in with_limits(steps).stream({"toolUseId": "1", "name": "steps", "input": {}}, {})]
    assert [event.get("tool_stream_event", {}).get("data") for event in events[:2]] == ["one", "two"]
    assert isinstance(events[-1], ToolResultEvent)


async def test_endless_stream_without_a_pause_is_a_timeout() -> None:
    @tool
    async def flood() -> Any:
        """Flood."""
        for _ in range(300_000):  # so that the test ends where the limit does not hold
            yield "x" * 1000

    other = asyncio.create_task(asyncio.sleep(0.1))
    result = await run(with_limits(flood, timeout=1.0))
    assert other.done()
    assert "did not finish within 1 seconds" in text_of(result)


def test_long_output_keeps_both_ends_and_is_limited_altogether() -> None:
    (flooded,) = limit_content([{"text": "a" * 50_000 + "b" * 50_000}], 100)
    assert flooded == {"text": f"{'a' * 50}\n... [99900 characters left out] ...\n{'b' * 50}"}
    image = {"image": {"format": "png", "source": {"bytes": b"x" * 100}}}
    blocks = [{"text": "a" * 6}, image, {"json": {"key": "b" * 20}}, {"text": "c"}]
    limited = limit_content(blocks, 10)
    assert limited[:2] == [{"text": "a" * 6}, image]
    assert limited[2]["text"].startswith('{"')
    assert limited[3:] == [{"text": "... [1 characters of later text left out] ..."}]
    assert limit_content([{"text": "a" * 10}, {"text": "ERROR: disk"}, image, {"text": "full"}], 10)[1:] == [
        image,
        {"text": "... [15 characters of later text left out] ..."},
    ]
    assert limit_content([{"text": "abc"}], 3) == [{"text": "abc"}]
